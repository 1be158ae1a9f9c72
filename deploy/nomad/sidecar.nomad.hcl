# Two tasks in a group network, which the agent creates: they reach each other on loopback. nomad job run sidecar.nomad.hcl
# It needs CNI plugins and the kernel module `bridge`; `nomad alloc logs -f ALLOC watch` shows the sidecar's work.
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

      # Started before the server, and runs as long as it.
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
