# A job that shares the group "acme/tpu/v2" of config.toml with the pods of Kubernetes on the same node: see docs/devices.md.
job "training" {
  type = "batch"

  group "training" {
    # If a pod has just been allocated the device, a retry gets another one.
    reschedule {
      attempts  = 3
      interval  = "1h"
      delay     = "30s"
      unlimited = false
    }

    task "main" {
      driver = "switchyard"

      config {
        image   = "docker.io/library/busybox:latest"
        command = "sh"
        args    = ["-c", "echo I have $ACME_DEVICES; sleep 3600"]
      }

      resources {
        cpu    = 100
        memory = 64

        device "acme/tpu/v2" {
          count = 1
        }
      }
    }
  }
}
