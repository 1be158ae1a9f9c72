# Two tasks on one network, which the agent makes: they reach each other on loopback. nomad job run sidecar.nomad.hcl
job "pair" {
  group "pair" {
    network {
      mode = "bridge"

      port "proxy" {
        to = 8080
      }
    }

    task "server" {
      driver = "switchyard"

      config {
        image   = "docker.io/library/busybox:1.36"
        command = "httpd"
        args    = ["-f", "-p", "127.0.0.1:9090", "-h", "/local"]
      }

      template {
        data        = "Hello from behind\n"
        destination = "local/index.html"
      }
    }

    task "proxy" {
      driver = "switchyard"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image   = "docker.io/library/busybox:1.36"
        command = "nc"
        args    = ["-lk", "-p", "8080", "-e", "nc", "127.0.0.1", "9090"]
      }
    }
  }
}
