# Sourced by deploy/quickstart: demonstrates the worker of a Docker swarm. If `docker` and `dockerd` are in the PATH, it starts a
# manager with directories and a network namespace of its own, joins its swarm, and runs a service on this node. A dockerd
# that runs already is not touched. Uses the variables and functions of deploy/quickstart.
# shellcheck shell=bash disable=SC2154

swarm=$own/swarm
service=quickstart
manager_netns=switchyard-quickstart
manager_link=swy-quick2           # the node's end of the link to the namespace of the manager
docker_key=/etc/docker/key.json   # dockerd before 24 makes it, wherever its other files are

show_swarm() {
    if ! command -v docker >/dev/null || ! command -v dockerd >/dev/null; then
        say "There is no 'docker' with 'dockerd' in the PATH, so no swarm is shown."
        return
    fi
    start_manager
    join_swarm || return 0
    run_service "$1"
    show_service
}

# The caller's environment may name another daemon, and its home may have a context.
docker_here() {
    env -i PATH="$PATH" HOME="$swarm" DOCKER_CLI_HINTS=false docker --host "unix://$swarm/docker.sock" "$@"
}

manager_runs() { is_process "$swarm/pid" "--data-root=$swarm/data"; }

# manager_address: the address of the manager, which is the second one of the subnet of the link.
manager_address() { sed 's|0/24$|2|' "$swarm/subnet"; }

start_manager() {
    step "Start a manager of a swarm, in a network namespace of its own: $(dockerd --version)"
    mkdir -p "$swarm"
    if manager_runs; then
        say "Using the manager of the last run: process $(<"$swarm/pid")."
        return
    fi
    link_manager
    [[ -e $docker_key ]] || touch "$swarm/key-is-ours"
    [[ -e /run/docker ]] || touch "$swarm/run-is-ours"
    echo '{}' >"$swarm/daemon.json"
    # Not by `ip netns exec`, which would hide the cgroups.
    start_detached "$swarm/pid" "$swarm/dockerd.log" \
        nsenter --net="/run/netns/$manager_netns" dockerd \
        "--data-root=$swarm/data" --exec-root="$swarm/exec" --pidfile="$swarm/docker.pid" --config-file="$swarm/daemon.json" \
        --host="unix://$swarm/docker.sock" --iptables=false --ip-masq=false --bridge=none --userland-proxy=false
    wait_for 60 manager_answers || die_with_manager_log "dockerd does not answer after 60 s"
    if [[ $(docker_here info --format '{{.Swarm.LocalNodeState}}') != active ]]; then
        docker_here swarm init --advertise-addr "$(manager_address)" >/dev/null || die_with_manager_log "there is no swarm"
    fi
    say "The manager is process $(<"$swarm/pid"), at $(manager_address):2377; its log is $swarm/dockerd.log."
}

manager_answers() { docker_here version >/dev/null 2>&1; }

die_with_manager_log() {
    tail -n 25 "$swarm/dockerd.log" >&2
    die "$*; the whole log is $swarm/dockerd.log"
}

# link_manager: makes the namespace, and a link from the node to it.
link_manager() {
    [[ -s $swarm/subnet ]] || free_subnet {100..105} >"$swarm/subnet"
    unlink_manager
    ip netns add "$manager_netns"
    ip link add "$manager_link" type veth peer name eth0 netns "$manager_netns"
    ip addr add "$(sed 's|0/24$|1/24|' "$swarm/subnet")" dev "$manager_link"
    ip link set "$manager_link" up
    ip -n "$manager_netns" addr add "$(manager_address)/24" dev eth0
    ip -n "$manager_netns" link set eth0 up
    ip -n "$manager_netns" link set lo up
}

unlink_manager() {
    ip link delete "$manager_link" 2>/dev/null || true
    ip netns delete "$manager_netns" 2>/dev/null || true
}

# swarm_field NAME: a field of the node's membership. The status is 1 also if something has to be mended.
swarm_field() { { "$binary" swarm status --socket "$run/admin.sock" --output json || true; } | json_field "$1"; }

# join_swarm: fails if the node takes part in a swarm that is not ours.
join_swarm() {
    local address
    address=$(manager_address)
    if [[ $(swarm_field state) == member ]]; then
        if [[ -e $swarm/joined ]]; then
            say "The node is a member since the last run."
            return
        fi
        say "The node is a member of another swarm already, and stays there."
        return 1
    fi
    step "Join its swarm: switchyard swarm join --token-file - $address"
    # The manager listens a moment after it has made the swarm.
    wait_for 30 join_once "$address" || die "the node could not join: $(<"$swarm/join.log")"
    touch "$swarm/joined"
    indent <"$swarm/join.log"
    wait_for 30 node_is_ready || die_with_manager_log "the node is not ready after 30 s"
    docker_here node ls --format 'table {{.Hostname}}\t{{.Status}}\t{{.Availability}}\t{{.ManagerStatus}}\t{{.EngineVersion}}' | indent
}

join_once() {
    docker_here swarm join-token --quiet worker |
        "$binary" swarm join --socket "$run/admin.sock" --token-file - "$1" >"$swarm/join.log" 2>&1
}

node_is_ready() { [[ $(docker_here node inspect --format '{{.Status.State}}' "$(swarm_field node)" 2>/dev/null) == ready ]]; }

# run_service IMAGE
run_service() {
    if service_runs && [[ $(docker_here service inspect --format '{{.Spec.TaskTemplate.ContainerSpec.Image}}' "$service") == "$1" ]]; then
        step "Use the service of the last run"
        return
    fi
    step "Run a service on this node: docker service create --network host --name $service $1"
    docker_here service rm "$service" >/dev/null 2>&1 || true
    # The manager has no access to the registry on loopback, so it cannot look up the digest.
    # shellcheck disable=SC2016 # The shell in the container expands it.
    docker_here service create --detach --no-resolve-image --name "$service" --network host \
        --constraint "node.id==$(swarm_field node)" --env 'TASK={{.Task.Name}}' "$1" sh -c '
        trap "exit 0" TERM
        echo "Hello from $TASK, a task of a Docker swarm."
        while :; do
            sleep 5 &
            wait $!
        done' >/dev/null
    if ! wait_for 60 service_runs; then
        docker_here service ps --no-trunc "$service" >&2
        die_with_log "the service does not run after 60 s"
    fi
    docker_here service ps --format 'table {{.Name}}\t{{.Node}}\t{{.DesiredState}}\t{{.CurrentState}}' "$service" | indent
}

service_runs() { [[ $(docker_here service ps --format '{{.CurrentState}}' "$service" 2>/dev/null | grep '^Running') ]]; }

show_service() {
    step "Its log: switchyard logs $service.1"
    wait_for 15 service_has_log || die_with_log "the task has written nothing"
    "$binary" logs --socket "$run/admin.sock" "$service.1" | indent
}

service_has_log() { [[ $("$binary" logs --socket "$run/admin.sock" "$service.1" 2>/dev/null) ]]; }

# === the end

# stop_swarm: has the node leave the swarm, if this script has joined it, and removes the manager.
stop_swarm() {
    [[ -d $swarm ]] || return 0
    if [[ -e $swarm/joined ]] && daemon_runs; then
        if timeout 60 "$binary" swarm leave --socket "$run/admin.sock" >/dev/null; then
            rm -f "$swarm/joined"
        else
            say "The node could not leave the swarm; its tasks are removed with the rest."
        fi
    fi
    stop_process "$swarm/pid" "--data-root=$swarm/data"
    unmount_below "$swarm"
    unlink_manager
    if [[ -e $swarm/key-is-ours ]]; then
        rm -f "$docker_key"
        rmdir --ignore-fail-on-non-empty "${docker_key%/*}" 2>/dev/null || true
    fi
    # dockerd makes them, wherever its other files are.
    if [[ -e $swarm/run-is-ours ]]; then
        rmdir --ignore-fail-on-non-empty /run/docker/plugins /run/docker 2>/dev/null || true
    fi
    rm -rf --one-file-system "$swarm"
}
