# Sourced by deploy/quickstart: removes what it created, in the order of dependencies. Each step does nothing if its
# object is absent, so a second call has no effect. Uses the variables of deploy/quickstart.
# shellcheck shell=bash disable=SC2154

# Where containerd keeps files of its shims and runtimes, independent of its configured directories.
shim_sockets=/run/containerd/s
runtime_state=/run/containerd/runc

remove_all() {
    # If this script wrote the configuration, it started everything that uses these directories. If the configuration is
    # the user's own, so is the instance: then only what this script added to it is removed.
    local whole='' state_too=''
    if [[ -e $config ]] && grep -qxF "$mark" "$config"; then
        whole=1
    fi
    if [[ -e $own/state-is-ours ]]; then
        state_too=1
    fi
    if [[ ! $whole && ! -d $own ]]; then
        echo "There is nothing to remove."
        return
    fi
    step "Remove what quickstart made"
    stop_nomad
    stop_swarm
    remove_pods "$whole"
    stop_process "$own/serve.pid" "serve --config $config"
    stop_process "$own/registry/pid" "$own/registry/config.yml"
    if [[ $whole ]]; then
        remove_runtime
        unmount_below "$state" "$run"
    fi
    remove_network "$whole"
    if [[ $whole ]]; then
        rm -rf --one-file-system "$run"
        say "Removed: pods, Nomad's agent and tasks, the swarm, daemon, containerd, registry, bridges, $run."
    else
        say "Removed: the pod, Nomad's agent and job, the swarm and its service, the daemon, the registry, the bridge."
        say "$config was not written by this script, so what that daemon started and stored stays."
    fi
    if [[ $whole && $state_too ]]; then
        rm -rf --one-file-system "$state"
        say "Removed: $state."
    else
        rm -rf --one-file-system "$own"
        say "Removed: $own. The rest of $state existed before, or does not belong to this script."
    fi
    # Last, because an interrupted removal can be continued as long as the configuration exists.
    if [[ $whole ]]; then
        rm -f "$config"
        rmdir --ignore-fail-on-non-empty /etc/switchyard
        # The pods' own directories below it have gone with them.
        rmdir --ignore-fail-on-non-empty /var/log/switchyard 2>/dev/null || true
        say "Removed: $config."
    fi
    say "Debian packages and the build in ${binary%/quick/switchyard} stay."
}

# remove_pods WHOLE: has the daemon remove all pods, or only that of this script.
remove_pods() {
    local pods='' pod
    [[ -x $binary && -S $run/cri.sock ]] && daemon_runs || return 0
    if [[ $1 ]]; then
        pods=$(timeout 30 "$binary" cri --socket "$run/cri.sock" pods --output json | tr -d ' \n' |
            grep -oE '"(id|pod_id)":"[0-9a-f]{64}"' | grep -oE '[0-9a-f]{64}' || true)
    elif [[ -s $own/pod.json ]]; then
        pods=$(pod_field pod)
    fi
    for pod in $pods; do
        timeout 60 "$binary" cri --socket "$run/cri.sock" rm "$pod" >/dev/null ||
            say "The daemon could not remove pod ${pod:0:12}; it is removed with the rest."
    done
}

# stop_process PIDFILE WORD: sends SIGTERM to the process of the file, SIGKILL after 20 s, and removes the file.
stop_process() {
    local pid
    if is_process "$1" "$2"; then
        pid=$(<"$1")
        kill -TERM "$pid" 2>/dev/null || true
        if ! wait_for 20 is_gone "$pid"; then
            kill -KILL "$pid" 2>/dev/null || true
            wait_for 10 is_gone "$pid" || die "process $pid does not end"
        fi
    fi
    rm -f "$1"
}

# A zombie counts as gone: its parent may reap it late.
is_gone() { [[ ! -e /proc/$1/stat ]] || [[ $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) == Z* ]]; }

# is_own_root PID: whether root runs the process on this node itself. A user may run anything under any command line, and a node in a
# container has the same paths, in another pid namespace or below another root directory.
is_own_root() {
    [[ /proc/$1/root -ef / && /proc/$1/ns/pid -ef /proc/self/ns/pid ]] &&
        grep -q '^Uid:[[:space:]]0[[:space:]]0[[:space:]]0[[:space:]]0$' "/proc/$1/status" 2>/dev/null
}

# our_processes: our programs whose command line names our directories, and their descendants. The program's name is
# checked as well, so that an editor or a pager with one of our files open does not count.
our_processes() {
    local dir pid words found=' ' more=1 parent
    for dir in /proc/[0-9]*; do
        pid=${dir#/proc/}
        is_own_root "$pid" || continue
        words=$({ tr '\0' ' ' <"$dir/cmdline"; } 2>/dev/null) || continue
        case $(basename "$(readlink "$dir/exe" 2>/dev/null)" " (deleted)") in
            switchyard | containerd | containerd-shim* | runc | crun | docker-registry | nomad | dockerd)
                if [[ " $words" == *[=\ ]"$state"[/\ ]* || " $words" == *[=\ ]"$run"[/\ ]* ||
                    " $words" == *[=\ ]"$config"\ * ]]; then
                    found+="$pid "
                fi
                ;;
        esac
    done
    while [[ $more ]]; do
        more=
        for dir in /proc/[0-9]*; do
            pid=${dir#/proc/}
            parent=$(sed 's/.*) . //; s/ .*//' "$dir/stat" 2>/dev/null) || continue
            if [[ $parent && $found == *" $parent "* && $found != *" $pid "* ]]; then
                found+="$pid "
                more=1
            fi
        done
    done
    for pid in $found; do
        is_gone "$pid" || echo "$pid"
    done
}

# Ends what the daemon left running: the managed containerd, the logkeeper, shims and containers; then removes what
# killed processes leave: cgroups, sockets, state of the runtimes.
remove_runtime() {
    local pids pid groups sockets socket ids id attempt
    groups=$(mktemp) sockets=$(mktemp)
    ids=$({
        find "$run" "$state" -xdev -type d -regextype posix-extended -regex '.*/[0-9a-f]{64}' -not -path '*/snapshots/*'
        grep -lsF -e "$run/" -e "$state/" "$runtime_state"/*/*/{state.json,status} | xargs -r -n1 dirname
    } 2>/dev/null | grep -oE '[0-9a-f]{64}$' | sort -u || true)
    for attempt in {1..10}; do
        pids=$(our_processes)
        [[ $pids ]] || break
        for pid in $pids; do
            cut -d: -f2- "/proc/$pid/cgroup" 2>/dev/null >>"$groups" || true
            sockets_of "$pid" >>"$sockets" || true
        done
        # shellcheck disable=SC2086 # One word for each process.
        kill -KILL $pids 2>/dev/null || true
        wait_for 5 all_gone "$pids" || true
    done
    [[ ! $pids ]] || die "these processes do not end after $attempt tries: $pids"
    while read -r socket; do rm -f "$socket"; done < <(sort -u "$sockets")
    for id in $ids; do rm -rf "${runtime_state:?}"/*/"${id:?}"; done
    remove_groups "$groups" "$ids"
    rm -f "$groups" "$sockets"
    # Only if they are empty, because the node's own containerd keeps its files there.
    rmdir --ignore-fail-on-non-empty "$shim_sockets" "$runtime_state"/* "$runtime_state" /run/containerd \
        2>/dev/null || true
}

all_gone() {
    local pid
    for pid in $1; do is_gone "$pid" || return 1; done
}

# sockets_of PID: the sockets that it listens on in the directory of the shims' sockets.
sockets_of() {
    local inodes
    inodes=$(find "/proc/$1/fd" -lname 'socket:*' -printf '%l\n' 2>/dev/null | tr -dc '0-9\n')
    [[ $inodes ]] || return 0
    awk -v inodes="$inodes" -v dir="$shim_sockets/" '
        BEGIN { count = split(inodes, list, "\n"); for (i = 1; i <= count; i++) wanted[list[i]] = 1 }
        ($7 in wanted) && index($8, dir) == 1 { print $8 }' /proc/net/unix
}

# remove_groups FILE IDS: removes the cgroups that the processes were in, and those named after ids, if they are empty;
# then the cgroups above them that have our name. A cgroup in which this script itself runs is never empty.
remove_groups() {
    local id line controllers path dir
    {
        while IFS= read -r line; do
            controllers=${line%%:*} path=${line#*:}
            [[ $path == *[0-9a-f]* && $path != / ]] || continue
            case $controllers in
                '') printf '%s\n' "/sys/fs/cgroup$path" "/sys/fs/cgroup/unified$path" ;;
                name=*) printf '%s\n' "/sys/fs/cgroup/${controllers#name=}$path" ;;
                *) printf '%s\n' "/sys/fs/cgroup/$controllers$path" ;;
            esac
        done < <(sort -u "$1" | grep -E '[0-9a-f]{64}|/switchyard')
        for id in $2; do find /sys/fs/cgroup -type d -name "*$id*" 2>/dev/null; done
        find /sys/fs/cgroup -depth -type d -path '*/switchyard*' 2>/dev/null
    } | sort -ru | while IFS= read -r dir; do
        rmdir "$dir" 2>/dev/null || true
    done
}

# unmount_below DIRECTORY...: unmounts everything, also stacked mounts; the newest first.
unmount_below() {
    local dir point attempt
    for dir in "$@"; do
        for attempt in {1..10}; do
            local points
            points=$(awk -v dir="$dir/" 'index($5 "/", dir) == 1 { print $5 }' /proc/self/mountinfo | tac)
            [[ $points ]] || break
            while IFS= read -r point; do umount -l "$(printf '%b' "$point")" 2>/dev/null || true; done <<<"$points"
        done
        [[ ! $points ]] || die "still mounted after $attempt tries: $points"
    done
}

# remove_network WHOLE: removes bridges, and what was made for them. The tables of a user's own instance stay.
remove_network() {
    local name port addresses
    for name in "$bridge" "$task_bridge"; do
        for port in /sys/class/net/"$name"/brif/*; do
            if [[ -e $port ]]; then
                ip link delete "$(basename "$port")" 2>/dev/null || true
            fi
        done
        if [[ -e /sys/class/net/$name ]]; then
            ip link delete "$name"
        fi
    done
    if [[ $1 ]]; then
        remove_tables
    fi
    if command -v iptables-save >/dev/null; then
        remove_rules "$network"
        remove_rules "$task_bridge"
        addresses=$(find "$own/cni/ipam" -type f -name '[0-9]*' -printf '%f\n' 2>/dev/null || true)
        remove_firewall "$addresses"
    fi
}

# remove_tables: removes the tables of nf_tables that the daemon has made for its bridges if its driver is native, and the rules in FORWARD for
# them. Its containers have ended, but records and elements of those that were killed are still there, so the command has to be forced. It is
# for the tables of all gateways of the node: beside those of another one, whose daemon may be stopped, it is not called.
remove_tables() {
    local shown table node=(--config "$config" --socket "$run/admin.sock")
    if [[ ! -x $binary ]]; then
        say "Tables of nf_tables may stay, since the build is gone: nft list tables; those of this script are $(own_table)."
        return
    fi
    shown=$("$binary" network show "${node[@]}") || shown=''
    if [[ ! $shown ]]; then
        say "Tables of nf_tables may stay: see the message above, and nft list tables; those of this script are $(own_table)."
    elif [[ ! $(tables_of others "$shown") ]]; then
        "$binary" network clear --force "${node[@]}" >/dev/null ||
            say "Not all tables are removed: see the message above, and $binary network show."
    else
        tables_of this "$shown" | while read -r table; do
            say "A table stays, since another gateway has tables on this node too. To remove it: nft delete table $table"
        done
    fi
}

# tables_of WHOM SHOWN: the tables of `this` script, or of `others`, in the output of `network show`: the lines before the first empty one.
tables_of() {
    awk -v whom="$1" -v own="$(own_table)" '
        NF == 0 { exit }
        $1 ~ /^(ip|ip6|bridge)$/ && ($2 == own) == (whom == "this") { print $1, $2 }' <<<"$2"
}

# own_table: the name of the tables of this script's daemon. It follows from that of the daemon's own bridge: what a name of a table cannot have
# is replaced, and eight digits tell it from another bridge of which the same is left.
own_table() {
    local name=${task_bridge//[^a-z0-9_]/_}
    if [[ $name != "$task_bridge" ]]; then
        name+=_$(printf %s "$task_bridge" | sha256sum | cut -c1-8)
    fi
    echo "switchyard_$name"
}

# remove_rules NETWORK: removes the rules of the nat table that the plugins marked with the network's name, and the chains
# of single pods that they jump to; last the chains that all networks share, if no pod of any network uses them.
remove_rules() {
    local rules chains shown
    rules=$(iptables-save -t nat 2>/dev/null | grep -F -- "\"$1\\\"" || true)
    if [[ $rules ]]; then
        chains=$(grep -oE '(^-A|-j) CNI-(DN-)?[0-9a-f]+( |$)' <<<"$rules" | awk '{ print $2 }' | sort -u)
        {
            echo '*nat'
            grep -vE '^-A CNI-(DN-)?[0-9a-f]+ ' <<<"$rules" | sed 's/^-A /-D /'
            sed '/./!d; s/^/-F /' <<<"$chains"
            sed '/./!d; s/^/-X /' <<<"$chains"
            echo COMMIT
        } | iptables-restore --noflush -w 10
    fi
    if shown=$(iptables -w 10 -t nat -S CNI-HOSTPORT-DNAT 2>/dev/null) && ! grep -q '^-A' <<<"$shown"; then
        {
            echo '*nat'
            iptables-save -t nat | grep -E -- '^-A (PREROUTING|OUTPUT|POSTROUTING) .*-j CNI-HOSTPORT-' | sed 's/^-A /-D /'
            iptables-save -t nat | grep -oE '^:CNI-HOSTPORT-[A-Z]+' | sed 's/^:/-F /'
            iptables-save -t nat | grep -oE '^:CNI-HOSTPORT-[A-Z]+' | sed 's/^:/-X /'
            echo COMMIT
        } | iptables-restore --noflush -w 10
    fi
}

# remove_firewall ADDRESSES: removes the firewall plugin's rules for tasks that could not be removed, and its chains if
# they are unused.
remove_firewall() {
    local address rule rules
    for address in $1; do
        while read -r rule; do
            # shellcheck disable=SC2086 # One word for each part of the rule.
            iptables -w 10 ${rule/#-A/-D} || true
        done < <(iptables -w 10 -S CNI-FORWARD 2>/dev/null | grep -F -- " $address/32 " || true)
    done
    # An unused chain has only the jump to the chain with an operator's own rules.
    rules=$(iptables-save -t filter 2>/dev/null || true)
    if grep -q '^:CNI-FORWARD' <<<"$rules" && ! grep -q '^-A CNI-ADMIN' <<<"$rules" &&
        [[ ! $(grep '^-A CNI-FORWARD' <<<"$rules" | grep -v -- '-j CNI-ADMIN$') ]]; then
        {
            echo '*filter'
            grep -E -- '^-A FORWARD .*-j CNI-FORWARD$' <<<"$rules" | sed 's/^-A /-D /'
            grep -oE '^:CNI-(FORWARD|ADMIN)' <<<"$rules" | sed 's/^:/-F /'
            grep -oE '^:CNI-(FORWARD|ADMIN)' <<<"$rules" | sed 's/^:/-X /'
            echo COMMIT
        } | iptables-restore --noflush -w 10
    fi
}
