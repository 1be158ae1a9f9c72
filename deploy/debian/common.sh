# The directories of the default configuration.
run=/run/switchyard
state=/var/lib/switchyard
# The state of an external containerd.
external=/run/containerd
cgroups=/sys/fs/cgroup
# The devices of the node, and the addresses in use of its networks.
devices=/sys/class/net
addresses=/var/lib/cni/networks

# placed KIND: the directories of this kind (run, state, containerd) that the removal has written down, because the program and
# its configuration are gone when they are needed. No path has a blank or a character of a pattern.
placed() {
    sed -n "s/^$1 //p" "$state/places" 2>/dev/null || true
}

# runs, states: ours, of the default configuration and of the one of this node.
runs() {
    { echo "$run" && placed run; } | sort -u
}

states() {
    { echo "$state" && placed state; } | sort -u
}

# served_bundles: for each shim of this node its process and the directory of its task, which is where it works. So the state of a
# containerd is found wherever its socket is. A caller that asks often keeps the answer in `served`.
served_bundles() {
    if [ "${served+kept}" ]; then
        echo "$served"
        return 0
    fi
    find /proc/[0-9]*/cwd -maxdepth 0 -lname '*/io.containerd.runtime.v2.task/*/*' -printf '%h %l\n' 2>/dev/null |
        while read -r dir bundle; do
            # A person's shell may work there too.
            if is_shim "${dir#/proc/}"; then
                echo "${dir#/proc/} $bundle"
            fi
        done
}

# externals: where a containerd of others may have its tasks.
externals() {
    {
        echo "$external"
        placed containerd
        served_bundles | sed -n 's/^[0-9]* \(.*\)\/io\.containerd\.runtime\.v2\.task\/.*/\1/p'
    } | sort -u
}

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

# is_shim PID [KIND]: whether it is a shim of this node, of a kind as in the name of its program.
is_shim() {
    is_own_root "$1" && { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null | grep -q -e "^[^ ]*containerd-shim${2:-}"
}

# bundles: the directories of the tasks that a shim serves: all in the managed containerd, and ours in that of the node.
bundles() {
    ours=$({ runs && states; } | sort -u)
    any_of_ours=$(echo "$ours" | paste -s -d '|' -)
    {
        for root in $(runs); do
            for dir in "$root"/containerd/state/io.containerd.runtime.v2.task/*/*; do
                [ ! -d "$dir" ] || echo "$dir"
            done
        done
        for root in $(externals); do
            for dir in "$root"/io.containerd.runtime.v2.task/*/*; do
                if [ -d "$dir" ] && is_ours "$dir"; then
                    echo "$dir"
                fi
            done
        done
    } | sort -u
}

# is_ours BUNDLE: whether it is of a task of ours, by its id or by its spec. The ids of most tasks are in the run directory alone, whose
# files may be lost. Their specs mount files of their sandboxes.
is_ours() {
    for place in $ours; do
        if [ -d "$place/tasks/${1##*/}" ] || [ -d "$place/sandboxes/${1##*/}" ]; then
            return 0
        fi
    done
    grep -q -E "\"source\": *\"($any_of_ours)/sandboxes/[0-9a-f]+/" "$1/config.json" 2>/dev/null
}

# processes PATTERN: those of the node's root whose command line, with a space after each word, matches. It has one of these two words: a
# look at each process of the node in turn would take long.
processes() {
    grep -la -e logkeeper -e containerd /proc/[0-9]*/cmdline 2>/dev/null | while read -r file; do
        pid=${file#/proc/}
        pid=${pid%/cmdline}
        if { tr '\0' ' ' <"$file"; } 2>/dev/null | grep -q -e "$1" && is_own_root "$pid"; then
            echo "$pid"
        fi
    done
}

# managed: the managed containerd and logkeeper. The pid files are not used, because they may be lost.
managed() {
    for root in $(runs); do
        processes "^[^ ]* logkeeper --socket $root/"
    done
    for root in $(states); do
        processes "^[^ ]* --config $root/containerd/config\.toml \$"
    done
}

# shims: those of the managed containerd.
shims() {
    for root in $(runs); do
        processes "^[^ ]*containerd-shim.* -address $root/containerd/"
    done
}

# children_of PIDS: the processes that these have started.
children_of() {
    [ -n "$1" ] || return 0
    for dir in /proc/[0-9]*; do
        parent=$(sed 's/.*) . \([0-9]*\) .*/\1/' "$dir/stat" 2>/dev/null) || continue
        case " $1 " in
            *" $parent "*) echo "${dir#/proc/}" ;;
        esac
    done
}

# cgroups_of PID: in brackets, so that none is a part of another one.
cgroups_of() {
    { text=$(tr '\n' ' ' <"/proc/$1/cgroup"); } 2>/dev/null && echo "<$text>"
}

# pids_of_unnamed: of each bundle that names no process, what its shim has started.
pids_of_unnamed() {
    bundles | while read -r dir; do
        [ ! -e "$dir/init.pid" ] || continue
        for pid in $(served_bundles | sed -n "s|^\([0-9]*\) $dir\$|\1|p"); do
            children=$(children_of "$pid")
            # The file of a runc is lost, and its shim stays when the container has exited. Runtimes of virtual machines write no such file,
            # and not each of their machines is a child of the shim.
            is_shim "$pid" -runc- || children=${children:-$pid}
            echo "$children"
        done
    done
}

# pids_of_lost: of each sandbox and task of ours without a bundle, one process in the cgroup that is named after it.
pids_of_lost() {
    bundles=$(bundles)
    ids=$(for root in $(runs) $(states); do
        for dir in "$root"/tasks/* "$root"/sandboxes/*; do
            case $bundles in
                *"/${dir##*/}"*) ;;
                *) [ ! -d "$dir" ] || echo "${dir##*/}" ;;
            esac
        done
    done | grep -E '^[0-9a-f]{64}$' | sort -u) || return 0
    [ -n "$ids" ] || return 0
    find "$cgroups" -type d 2>/dev/null | grep -F -e "$ids" | while read -r dir; do
        # A shim may be there, which stays when its container has exited.
        for pid in $(cat "$dir/cgroup.procs" 2>/dev/null); do
            if ! is_shim "$pid"; then
                echo "$pid"
                break
            fi
        done
    done
}

# running_pids: the main processes of the containers that run: those that bundles name, and of containers whose files are lost those that
# shims have started or that are in their cgroups. Of the latter, a process in the cgroups of one before it is a command in the same
# container.
running_pids() {
    served=$(served_bundles)
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
    # A failure in the words of a loop would pass for an empty list.
    others=$(children_of "$(shims | tr '\n' ' ')" && pids_of_unnamed && pids_of_lost)
    for pid in $others; do
        is_running "$pid" && its=$(cgroups_of "$pid") || continue
        case $seen in
            *"$its"*) ;;
            *)
                echo "$pid"
                seen="$seen$its"
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

# remove_empty: the directories of addresses, if there are none.
remove_empty() {
    rmdir --ignore-fail-on-non-empty "$addresses" "${addresses%/*}" 2>/dev/null || true
}

# bridges_of_pods: those that pods had, whatever their names, by the files that say so.
bridges_of_pods() {
    for root in $(states); do
        for mark in "$root"/network/*.pods; do
            name=${mark##*/}
            name=${name%.pods}
            if [ -f "$mark" ] && [ -d "$devices/$name/brif" ]; then
                echo "$name"
            fi
        done
    done | sort -u
}

# remove_bridges NAMES: with what says of the addresses on them, once the devices of pods have gone with their namespaces. One that keeps
# ports is another one by now, which has the same name.
remove_bridges() {
    for name in $1; do
        tries=20
        while [ -n "$(ls -A "$devices/$name/brif" 2>/dev/null)" ] && [ "$tries" -gt 0 ]; do
            sleep 0.1
            tries=$((tries - 1))
        done
        if [ "$tries" -eq 0 ]; then
            echo "switchyard: the bridge $name stays, because something is connected to it: remove it if nobody needs it"
            continue
        fi
        # Before the device, without which nobody looks for them.
        used=$(find "$addresses/$name" -mindepth 1 -name '*[.:]*' ! -name 'last_reserved_ip.*' 2>/dev/null) || true
        [ -n "$used" ] || rm -rf "${addresses:?}/$name"
        if [ -e "$devices/$name" ] && command -v ip >/dev/null; then
            ip link delete dev "$name" || true
        fi
    done
    remove_empty
}
