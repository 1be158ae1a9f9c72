# The directory of the default configuration.
run=/run/switchyard

# is_running PID: whether the process exists and is no zombie.
is_running() {
    [ -r "/proc/$1/stat" ] && [ "$(sed 's/.*) \(.\).*/\1/' "/proc/$1/stat" 2>/dev/null)" != Z ]
}

# bundles: the directories of the tasks that a shim serves, in the managed containerd, and ours in that of the node.
bundles() {
    for dir in "$run"/containerd/state/io.containerd.runtime.v2.task/*/*; do
        [ ! -d "$dir" ] || echo "$dir"
    done
    for ours in "$run"/tasks/* "$run"/sandboxes/*; do
        [ -d "$ours" ] || continue
        for dir in /run/containerd/io.containerd.runtime.v2.task/*/"${ours##*/}"; do
            [ ! -d "$dir" ] || echo "$dir"
        done
    done
}

# running_pids: the main processes of the containers that run.
running_pids() {
    bundles | while read -r dir; do
        pid=$(cat "$dir/init.pid" 2>/dev/null) || pid=
        if [ -n "$pid" ] && is_running "$pid"; then
            echo "$pid"
        fi
    done
}

# program_was_replaced PID: whether the file that the process executes is not the one of that name any more.
program_was_replaced() {
    case $(readlink "/proc/$1/exe" 2>/dev/null) in
        *' (deleted)') return 0 ;;
        *) return 1 ;;
    esac
}

# managed_pid PART: the process in the pid file of a managed containerd or logkeeper, if it runs.
managed_pid() {
    pid=$(sed -n '1s/^\([0-9]*\).*/\1/p' "$run/$1/$1.pid" 2>/dev/null) || pid=
    if [ -n "$pid" ] && is_running "$pid"; then
        echo "$pid"
    fi
}
