# What a Nomad agent (1.8 or newer) needs to run tasks by Switchyard. Installed as /etc/nomad.d/switchyard.hcl, beside the agent's own file.
#
# The plugins are where the agent looks for them: in its plugin_dir, which is `plugins` below its data_dir if it does not say. So with the
# data_dir of HashiCorp's packages: switchyard nomad-plugin install /opt/nomad/data/plugins

client {
  # Debian's package containernetworking-plugins; group networks (bridge, cni/*) are made by the agent with them.
  cni_path = "/opt/cni/bin:/usr/lib/cni"
}

# The task driver: jobs say driver = "switchyard". The block is named after the file in plugin_dir, whatever jobs call the driver.
plugin "switchyard" {
  # Jobs that say driver = "docker" run as they are; Nomad's own docker driver is not used then.
  # args = ["--name", "docker"]
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
