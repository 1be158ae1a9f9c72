# Two tasks on one network, which the agent makes: they reach each other on loopback. nomad job run sidecar.nomad.hcl
# The agent needs CNI plugins and the kernel's module `bridge` for it; `nomad alloc logs -f ALLOC watch` shows the sidecar's work.
job "pair" {
  group "pair" {
    network {
      mode = "bridge"

      port "http" {
        to = 8080
      }
    }

    task "server" {
      driver = "switchyard"

      config {
        image   = "docker.io/library/busybox:1.36"
        command = "httpd"
        args    = ["-f", "-p", "8080", "-h", "/local"]
      }

      template {
        data        = "Hello from the server\n"
        destination = "local/index.html"
      }
    }

    task "watch" {
      driver = "switchyard"

      # Started before the server, and there as long as it is.
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        image   = "docker.io/library/busybox:1.36"
        command = "sh"
        args    = ["-c", "while sleep 2; do wget -q -O - http://127.0.0.1:8080/; done"]
      }
    }
  }
}
