# Makes a container as managers of unprivileged ones do (LXC, Incus, Proxmox): a user namespace with a range of ids, and mounts, network,
# processes and cgroups of its own. Starts the daemon in it, again whenever that ends, and ends as a command in it ends.
#
#   sh DIRECTORY/contained.sh outside DIRECTORY COMMAND...
#
# It is the main process of a unit with Delegate=yes, and runs itself again in each of the three places. DIRECTORY/state, which belongs to
# the first id of the range, becomes the daemon's state directory.
# shellcheck shell=sh
set -eu

# As root of the node: delegates a part of the unit's cgroup, and maps the ids. Who has made a container waits in another cgroup, since
# controllers are given to the children only of a cgroup without processes.
outside() {
    own=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
    mkdir "$own/monitor" "$own/payload"
    echo $$ >"$own/monitor/cgroup.procs"
    for controller in $(cat "$own/cgroup.controllers"); do
        echo "+$controller" >"$own/cgroup.subtree_control"
    done
    chown 100000:100000 "$own/payload" "$own/payload/cgroup.procs" "$own/payload/cgroup.subtree_control" "$own/payload/cgroup.threads"
    unshare --user sleep infinity &
    holder=$!
    trap 'kill "$holder"' EXIT
    until [ "$(readlink "/proc/$holder/ns/user")" != "$(readlink /proc/self/ns/user)" ]; do
        sleep 0.1
    done
    echo '0 100000 65536' >"/proc/$holder/uid_map"
    echo '0 100000 65536' >"/proc/$holder/gid_map"
    # shellcheck disable=SC2016 # The inner shell expands it.
    sh -c 'echo $$ >"$1" && shift && exec "$@"' sh "$own/payload/cgroup.procs" \
        nsenter --user="/proc/$holder/ns/user" -- unshare --mount --net --ipc --uts --cgroup sh "$0" inside "$@"
}

# As root of the user namespace: file systems of its own in place of those of the node, and a cgroup below that of the container.
inside() {
    mount -t sysfs sysfs /sys
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir /sys/fs/cgroup/init
    echo $$ >/sys/fs/cgroup/init/cgroup.procs
    ip link set lo up
    for place in /etc/switchyard /run /tmp /var/lib/cni /var/log; do
        mount -t tmpfs tmpfs "$place"
    done
    mount --bind "$1/state" /var/lib/switchyard
    printf 'version = 1\n[network.bridge]\ndriver = "native"\n' >/etc/switchyard/config.toml
    exec unshare --pid --fork --kill-child --mount-proc sh "$0" init "$@"
}

# As the first process of the container.
init() {
    while :; do
        switchyard serve >>/var/log/daemon.log 2>&1 || sleep 1
    done &
    shift
    "$@" || {
        status=$?
        tail -n 100 /var/log/daemon.log
        exit "$status"
    }
}

place=$1
shift
"$place" "$@"
