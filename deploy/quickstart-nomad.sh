# Sourced by deploy/quickstart: demonstrates the plugins for Nomad agents. If `nomad` is in the PATH, it starts an agent that
# runs a job; otherwise it performs an agent's handshake with each plugin. Uses the variables and functions of deploy/quickstart.
# shellcheck shell=bash disable=SC2154

plugins=$own/nomad/plugins
agent_config=$own/nomad/agent.hcl
job=quickstart
agent_group=switchyard-quickstart
# The magic cookie by which a program knows that a Nomad agent started it as a plugin; it is the same for all agents and plugins.
cookie=NOMAD_PLUGIN_MAGIC_COOKIE=e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255

show_nomad() {
    step "Make the plugins for a Nomad agent: switchyard nomad-plugin install $plugins"
    "$binary" nomad-plugin install --record "$own/nomad/installed" "$plugins" | indent
    say "An agent needs that directory as its plugin_dir, and these two blocks from deploy/nomad/agent.hcl:"
    echo
    sed -n '/^plugin "/,/^}/{/^ *#/d;p}' "$repository/deploy/nomad/agent.hcl" | indent
    if command -v nomad >/dev/null; then
        start_agent
        run_job "$1"
        show_job
    else
        step "Start both plugins as an agent does (there is no 'nomad' in the PATH to be one)"
        greet_plugin switchyard
        greet_plugin switchyard-device
    fi
}

# greet_plugin NAME: starts the plugin with the cookie, shows its handshake line (protocol versions, socket, transport), and
# stops it.
greet_plugin() {
    local answer=$own/nomad/answer pid
    env "$cookie" "$plugins/$1" --socket "$run/nomad.sock" >"$answer" 2>"$own/nomad/$1.log" </dev/null &
    pid=$!
    if ! wait_for 30 grep -qx '1|2|unix|/.*|grpc|.*' "$answer"; then
        kill -KILL "$pid" 2>/dev/null || true
        cat "$own/nomad/$1.log" >&2
        die "the plugin $1 does not answer"
    fi
    say "$1: $(<"$answer")"
    kill "$pid"
    wait "$pid" || die "the plugin $1 exited with $?"
    rm -f "$answer"
}

# === the agent

# The caller's environment may have settings for another cluster.
nomad_here() {
    env -i PATH="$PATH" HOME="${HOME:-/root}" NOMAD_ADDR="http://127.0.0.1:$(<"$own/nomad/port")" \
        NOMAD_CLI_SHOW_HINTS=0 nomad "$@"
}

agent_runs() { is_process "$own/nomad/pid" "-config=$agent_config"; }

start_agent() {
    step "Start a Nomad agent, server and client in one, on loopback: $(nomad version | sed -n 1p)"
    if agent_runs; then
        say "Using the agent of the last run: process $(<"$own/nomad/pid")."
    else
        write_agent_config
        start_detached "$own/nomad/pid" "$own/nomad/agent.log" nomad agent \
            "-config=$repository/deploy/nomad/agent.hcl" "-config=$agent_config"
        wait_for 5 agent_runs || die_with_agent_log "the agent exited at once"
        say "The agent is process $(<"$own/nomad/pid"); its log is $own/nomad/agent.log."
    fi
    wait_for 90 driver_or_end || die_with_agent_log "the agent has no healthy driver after 90 s"
    agent_runs || die_with_agent_log "the agent exited"
    nomad_here node status -self | grep -E '^(Status|Driver Status)' | indent
}

# The settings that differ from an agent of a cluster: its directories, and addresses on loopback.
write_agent_config() {
    local port group=/$agent_group
    if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
        group=$agent_group.slice
    fi
    port=$(cat "$own/nomad/port" 2>/dev/null || echo 4646)
    while is_taken "$port" || is_taken "$((port + 1))" || is_taken "$((port + 2))"; do
        port=$((5001 + RANDOM % 20000))
    done
    echo "$port" >"$own/nomad/port"
    cat >"$agent_config" <<END
# Written by deploy/quickstart, and removed by its --remove. The agent reads it after deploy/nomad/agent.hcl.
bind_addr            = "127.0.0.1"
data_dir             = "$own/nomad/data"
plugin_dir           = "$plugins"
disable_update_check = true

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

ports {
  http = $port
  rpc  = $((port + 1))
  serf = $((port + 2))
}

server {
  enabled          = true
  bootstrap_expect = 1
}

client {
  enabled           = true
  network_interface = "lo"
  cgroup_parent     = "$group"

  options {
    "driver.allowlist" = "switchyard"
    # Disabled, because outside of clouds the requests of these fingerprinters only time out.
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
END
}

driver_or_end() { driver_is_healthy || ! agent_runs; }

driver_is_healthy() { [[ $(nomad_here node status -self 2>/dev/null | grep -E '^Driver Status *= .*switchyard') ]]; }

die_with_agent_log() {
    tail -n 25 "$own/nomad/agent.log" >&2
    die "$*; the whole log is $own/nomad/agent.log"
}

# === its job

# The job has no network mode, like most jobs of the docker driver: it gets a private network, and its port is published.
write_job() {
    cat <<END
job "$job" {
  group "$job" {
    network {
      port "http" {
        to = 8080
      }
    }

    task "server" {
      driver = "switchyard"

      config {
        image   = "$1"
        command = "sh"
        args    = ["/local/serve"]
        ports   = ["http"]
      }

      template {
        destination = "local/serve"
        data        = <<SCRIPT
trap "exit 0" TERM
echo "Hello from {{ env "NOMAD_ALLOC_ID" }}, an allocation of Nomad." | tee /local/index.html
httpd -p 8080 -h /local
count=0
while :; do
  count=\$((count + 1))
  echo "This is line \$count of the log."
  sleep 5 &
  wait \$!
done
SCRIPT
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
END
}

run_job() {
    local file=$own/nomad/$job.nomad.hcl
    step "Run a job in it: nomad job run $file"
    write_job "$1" >"$file"
    # In its first seconds a server refuses jobs because it has no keys yet.
    wait_for 30 submit "$file" || die "the job was not accepted: $(<"$own/nomad/job.log")"
    if ! wait_for 150 task_runs "$1"; then
        nomad_here job status "$job" >&2 || true
        die_with_agent_log "the job does not run after 150 s"
    fi
    nomad_here job status "$job" | sed -n '/^Allocations/,$p' | indent
}

submit() { nomad_here job run -detach "$1" >"$own/nomad/job.log" 2>&1; }

# The id of a running allocation of the newest version of the job.
allocation() {
    local version
    version=$(nomad_here job inspect -t '{{ .Version }}' "$job" 2>/dev/null) || return 0
    nomad_here job allocs -t '{{ range . }}{{ if eq .ClientStatus "running" }}{{ .JobVersion }} {{ .ID }}{{ "\n" }}{{ end }}{{ end }}' \
        "$job" 2>/dev/null | sed -n "s/^$version //p" | sed -n 1p
}

task_runs() { [[ $(allocation) ]]; }

show_job() {
    local id port
    id=$(allocation)
    step "Its log: nomad alloc logs ${id:0:8}"
    wait_for 15 has_job_log "$id" || die_with_agent_log "the task has written nothing"
    nomad_here alloc logs "$id" | tail -n 3 | indent
    step "A command in it: nomad alloc exec ${id:0:8} ip -4 addr show eth0"
    nomad_here alloc exec -i=false -t=false "$id" ip -4 addr show eth0 | indent
    port=$(nomad_here alloc status -t '{{ range .AllocatedResources.Shared.Ports }}{{ .Value }}{{ end }}' "$id")
    step "Its port, as Nomad has chosen it: GET http://127.0.0.1:$port/"
    if http_ok "$port" /; then
        http_get "$port" / | body | indent
    else
        say "No answer: perhaps the image has no httpd."
    fi
}

has_job_log() { [[ $(nomad_here alloc logs "$1" 2>/dev/null) ]]; }

# === the end

# stop_nomad: stops the jobs, if the agent runs; then the agent, which ends its plugins.
stop_nomad() {
    local pid
    if agent_runs && command -v nomad >/dev/null && daemon_runs; then
        stop_jobs || say "The agent could not stop its jobs; they are removed with the rest."
    fi
    stop_process "$own/nomad/pid" "-config=$agent_config"
    for pid in $(logmons); do
        kill -KILL "$pid" 2>/dev/null || true
    done
    unmount_below "$own/nomad"
    find /sys/fs/cgroup -depth -type d -path "*/$agent_group*" -exec rmdir {} \; 2>/dev/null || true
}

# logmons: the processes that an agent leaves to read the output of running tasks. Their command line does not name the agent.
logmons() {
    local pid
    for pid in $(find /proc/[0-9]*/fd -lname "$own/nomad/*" 2>/dev/null | cut -d/ -f3 | sort -u); do
        if tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qE '/nomad logmon '; then
            echo "$pid"
        fi
    done
}

stop_jobs() {
    local id
    for id in $(nomad_here job status 2>/dev/null | awk 'NR > 1 && NF > 4 { print $1 }'); do
        nomad_here job stop -purge -detach "$id" >/dev/null 2>&1 || true
    done
    wait_for 30 no_task
}

no_task() {
    local shown
    shown=$("$binary" ps --socket "$run/admin.sock" --output json) && ! grep -qE '"owner": *"nomad"' <<<"$shown"
}
