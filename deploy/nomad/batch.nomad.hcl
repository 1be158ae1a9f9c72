# A batch job with a prestart and a poststop task: nomad job run batch.nomad.hcl
job "sum" {
  type = "batch"

  group "sum" {
    task "prepare" {
      driver = "switchyard"

      lifecycle {
        hook = "prestart"
      }

      config {
        image        = "docker.io/library/busybox:1.36"
        network_mode = "none"
        command      = "sh"
        args         = ["-c", "seq 1 100 > ${NOMAD_ALLOC_DIR}/data/numbers"]
      }
    }

    task "work" {
      driver = "switchyard"

      config {
        image        = "docker.io/library/busybox:1.36"
        network_mode = "none"
        command      = "awk"
        args         = ["{ sum += $1 } END { print sum }", "${NOMAD_ALLOC_DIR}/data/numbers"]
      }

      resources {
        cpu        = 200
        memory     = 64
        memory_max = 128
      }
    }

    task "tell" {
      driver = "switchyard"

      lifecycle {
        hook = "poststop"
      }

      config {
        image        = "docker.io/library/busybox:1.36"
        network_mode = "none"
        command      = "echo"
        args         = ["done"]
      }
    }
  }
}
