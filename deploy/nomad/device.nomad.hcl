# A task that uses a device of the node: nomad job run device.nomad.hcl
# The group must be in the daemon's configuration, for example
#
#   [[devices.groups]]
#   vendor = "generic"
#   type = "serial"
#   name = "uart"
#   paths = ["/dev/ttyS[0-9]*"]
#
# and `nomad node status -verbose NODE` lists the devices.
job "serial" {
  type = "batch"

  group "serial" {
    task "read" {
      driver = "switchyard"

      config {
        image        = "docker.io/library/busybox:1.36"
        network_mode = "none"
        command      = "sh"
        args         = ["-c", "ls -l /dev/ttyS*"]
      }

      resources {
        cpu    = 100
        memory = 32

        device "generic/serial" {
          count = 1
        }
      }
    }
  }
}
