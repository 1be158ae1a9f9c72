# The directories of the default configuration.
run=/run/switchyard
state=/var/lib/switchyard
# The state of an external containerd.
external=/run/containerd

# is_running PID: whether the process exists and is no zombie.
is_running() {
    [ -r "/proc/$1/stat" ] && [ "$(sed 's/.*) \(.\).*/\1/' "/proc/$1/stat" 2>/dev/null)" != Z ]
}

# is_own_root PID: whether root runs the process on this node itself. A user may run anything under any command line, and a node in a
# container (LXC, docker, kind) has the same paths, in another pid namespace or below another root directory. The mount namespace does not
# tell: a unit of this node may have one of its own.
is_own_root() {
    # shellcheck disable=SC3013 # dash has it.
    [ "/proc/$1/root" -ef / ] && [ "/proc/$1/ns/pid" -ef /proc/self/ns/pid ] &&
        grep -q '^Uid:[[:space:]]0[[:space:]]0[[:space:]]0[[:space:]]0$' "/proc/$1/status" 2>/dev/null
}

# bundles: the directories of the tasks that a shim serves: all in the managed containerd, and ours in that of the node.
bundles() {
    {
        for dir in "$run"/containerd/state/io.containerd.runtime.v2.task/*/*; do
            [ ! -d "$dir" ] || echo "$dir"
        done
        for ours in "$run"/tasks/* "$run"/sandboxes/* "$state"/tasks/* "$state"/sandboxes/*; do
            [ -d "$ours" ] || continue
            for dir in "$external"/io.containerd.runtime.v2.task/*/"${ours##*/}"; do
                [ ! -d "$dir" ] || echo "$dir"
            done
        done
        # The ids of most tasks are in the run directory alone, whose files may be lost. Their specs mount files of their sandboxes.
        for file in "$external"/io.containerd.runtime.v2.task/*/*/config.json; do
            if grep -q -e "\"source\": *\"$state/sandboxes/[0-9a-f]*/" "$file" 2>/dev/null; then
                echo "${file%/*}"
            fi
        done
    } | sort -u
}

# processes PATTERN: those of the node's root whose command line, with a space after each word, matches.
processes() {
    for dir in /proc/[0-9]*; do
        if { tr '\0' ' ' <"$dir/cmdline"; } 2>/dev/null | grep -q -e "$1" && is_own_root "${dir#/proc/}"; then
            echo "${dir#/proc/}"
        fi
    done
}

# managed: the managed containerd and logkeeper. The pid files are not used, because they may be lost.
managed() {
    processes "^[^ ]* logkeeper --socket $run/"
    processes "^[^ ]* --config $state/containerd/config\.toml \$"
}

# shims: those of the managed containerd.
shims() {
    processes "^[^ ]*containerd-shim.* -address $run/containerd/"
}

# children_of_shims: the processes that shims of the managed containerd have started.
children_of_shims() {
    shims=" $(shims | tr '\n' ' ')"
    for dir in /proc/[0-9]*; do
        parent=$(sed 's/.*) . \([0-9]*\) .*/\1/' "$dir/stat" 2>/dev/null) || continue
        case $shims in
            *" $parent "*) echo "${dir#/proc/}" ;;
        esac
    done
}

# cgroups_of PID: in brackets, so that none is a part of another one.
cgroups_of() {
    { text=$(tr '\n' ' ' <"/proc/$1/cgroup"); } 2>/dev/null && echo "<$text>"
}

# running_pids: the main processes of the containers that run: those that bundles name, and of containers whose files are lost those that
# shims have started. Of the latter, a process in the cgroups of one before it is a command in the same container.
running_pids() {
    named=$(bundles | while read -r dir; do
        cat "$dir/init.pid" 2>/dev/null && echo
    done | sort -nu)
    seen=
    for pid in $named; do
        if is_running "$pid"; then
            echo "$pid"
            seen="$seen$(cgroups_of "$pid")" || true
        fi
    done
    for pid in $(children_of_shims); do
        is_running "$pid" && cgroups=$(cgroups_of "$pid") || continue
        case $seen in
            *"$cgroups"*) ;;
            *)
                echo "$pid"
                seen="$seen$cgroups"
                ;;
        esac
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
