# Configuration with which a Nomad agent (1.8 or newer) runs tasks on Switchyard. Install it as /etc/nomad.d/switchyard.hcl, in addition to
# the agent's own file.
#
# The plugins must be in the agent's plugin_dir, which defaults to `plugins` below its data_dir. With the data_dir of HashiCorp's packages,
# install them by: switchyard nomad-plugin install /opt/nomad/data/plugins

client {
  # The agent creates group networks (bridge, cni/*) with CNI plugins: the package containernetworking-plugins or cni-plugins.
  # An agent of before January 2026 looks no further than to the first directory that is missing or empty, and gets no job with such a network:
  # name the one that has them alone.
  cni_path = "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni"
}

# The task driver: jobs set driver = "switchyard". The block is named after the file in plugin_dir, even if `--name` changes the driver's name.
plugin "switchyard" {
  # With this, jobs with driver = "docker" run unchanged, and Nomad's own docker driver is not used.
  # args = ["--name", "docker"]
  config {
    # The keys of Nomad's docker driver, with its defaults; docs/nomad-options.md lists all of them.
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

# The device plugin, for device blocks of jobs. The devices are defined in the daemon's configuration.
plugin "switchyard-device" {}
