# A service with a private network, with a port published on the address that Nomad chose: nomad job run service.nomad.hcl
job "web" {
  group "web" {
    count = 2

    network {
      port "http" {
        to = 8080
      }
    }

    service {
      name     = "web"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/"
        interval = "10s"
        timeout  = "2s"
      }
    }

    task "server" {
      driver = "switchyard"

      config {
        image   = "docker.io/library/busybox:1.36"
        command = "httpd"
        args    = ["-f", "-v", "-p", "8080", "-h", "/local"]
        ports   = ["http"]
      }

      template {
        data        = "Hello from {{ env \"NOMAD_ALLOC_ID\" }}\n"
        destination = "local/index.html"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
