# What a Nomad agent (1.8 or newer) needs to run tasks by Switchyard. Installed as /etc/nomad.d/switchyard.hcl, beside the agent's own file.

# The two plugins; `switchyard nomad-plugin install /opt/nomad/plugins` makes them in another directory.
plugin_dir = "/usr/lib/switchyard/nomad-plugins"

client {
  # Debian's package containernetworking-plugins; group networks (bridge, cni/*) are made by the agent with them.
  cni_path = "/opt/cni/bin:/usr/lib/cni"
}

# The task driver: jobs say driver = "switchyard". With args = ["--name", "docker"] jobs written for docker run as they are.
plugin "switchyard" {
  # args = ["--socket", "/run/switchyard/nomad.sock"]
  config {
    # The keys of Nomad's docker driver, with its defaults; docs/nomad-options.md has them all.
    allow_privileged = false
    volumes {
      enabled = false
    }
    gc {
      image       = true
      image_delay = "3m"
    }
    extra_labels = ["job_name", "task_group_name", "task_name"]
  }
}

# Devices of the node for device blocks of jobs. Which there are is said in the daemon's configuration.
plugin "switchyard-device" {}
