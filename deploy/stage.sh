# Sourced by deploy/debian/build and deploy/package: stages the files of a built binary into one tree, from which all packages are made.
# The caller has set `repository` and `script`, its own name, and defines no functions of these names.

units=(switchyard.service switchyard-logkeeper.service)

die() {
    echo "$script: $*" >&2
    exit 1
}

# put MODE FILE PATH: copies a file into the tree.
put() { install -D -m "$1" "$2" "$tree/$3"; }

# pack PATH: standard input, compressed as Debian does it.
pack() {
    install -d "$tree/$(dirname "$1")"
    gzip -9n >"$tree/$1"
}

# with_common FILE: standard input, a script of a package, with the functions in this file for its line "# @COMMON@".
with_common() {
    sed -e "/^# @COMMON@$/{r $1
        d}"
}

# identify BINARY HOST_PROGRAM PROGRAM...: what the binary is, and an empty tree for it. HOST_PROGRAM, which may be empty, names a program
# of the same commit that this machine can run; the others are programs that the caller needs. Sets binary, host_program, architecture,
# platform, tools, upstream, commit, work and tree, and exports SOURCE_DATE_EPOCH.
identify() {
    local program identity reported
    binary=$(realpath "$1")
    host_program=${2:+$(realpath "$2")}
    shift 2
    for program in "$binary" ${host_program:+"$host_program"}; do
        [[ -x $program ]] || die "$program is not a program: build it with cargo build --release --locked -p switchyard"
    done
    command -v readelf >/dev/null || die "readelf is missing: install binutils"
    choose_platform "$binary"
    host_program=${host_program:-$binary}
    for program in gzip jq "${tools}strip" "$@"; do
        command -v "$program" >/dev/null || die "$program is missing: see the head of the script"
    done
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -c "safe.directory=$repository" -C "$repository" log -1 --format=%ct 2>/dev/null ||
        date +%s)}
    export SOURCE_DATE_EPOCH
    reported=$("$host_program" version --output json)
    upstream=$(jq -r .version <<<"$reported")
    commit=$(jq -r .revision <<<"$reported")
    [[ $upstream =~ ^[0-9][0-9A-Za-z.+-]*$ ]] || die "$host_program reports the version '$upstream', which is not one"
    if [[ $host_program != "$binary" ]]; then
        # A binary that cannot be run has both as text.
        for identity in "$upstream" "$commit"; do
            LC_ALL=C grep -qaF -e "$identity" "$binary" ||
                die "$binary is of another commit than $host_program, which reports '$identity': build both of the same"
        done
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    tree=$work/tree
    umask 022
}

# choose_platform BINARY: the architecture of a binary that this machine need not be able to run, as dpkg and as cargo call it, and what
# the names of its binutils begin with.
choose_platform() {
    case $(LC_ALL=C readelf --file-header --wide "$1" | sed -n 's/^ *Machine: *//p') in
        'Advanced Micro Devices X86-64')
            architecture=amd64
            platform=x86_64-unknown-linux-gnu
            ;;
        AArch64)
            architecture=arm64
            platform=aarch64-unknown-linux-gnu
            ;;
        *) die "$1 is for an architecture that this script does not know" ;;
    esac
    tools=
    case $(dpkg --print-architecture 2>/dev/null || uname -m) in
        "$architecture" | "${platform%%-*}") ;;
        *) tools=${platform/unknown-/}- ;;
    esac
}

# clamp_times DIR: nothing in it is younger than SOURCE_DATE_EPOCH.
clamp_times() {
    find "$1" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0r touch --no-dereference --date="@$SOURCE_DATE_EPOCH"
}

# stage_program: the binary, its units, the links for Nomad agents, and what is in /etc.
stage_program() {
    local unit policy
    put 0755 "$binary" usr/bin/switchyard
    "${tools}strip" --strip-unneeded --remove-section=.comment --remove-section=.note "$tree/usr/bin/switchyard"
    for unit in "${units[@]}"; do
        put 0644 "$repository/deploy/systemd/$unit" "usr/lib/systemd/system/$unit"
    done
    # An agent names this directory as its plugin_dir, or links what is in it.
    install -d "$tree/usr/lib/switchyard/nomad-plugins"
    ln -s ../../../bin/switchyard "$tree/usr/lib/switchyard/nomad-plugins/switchyard"
    ln -s ../../../bin/switchyard "$tree/usr/lib/switchyard/nomad-plugins/switchyard-device"
    put 0644 "$repository/deploy/debian/config.toml" etc/switchyard/config.toml
    # Drop-ins of operators; no upgrade touches them.
    install -d "$tree/etc/switchyard/config.d"
    # Labels of the files for SELinux: the installation chooses those of the node's policy.
    for policy in container-selinux refpolicy; do
        put 0644 "$repository/deploy/selinux/$policy/switchyard.cil" "usr/share/switchyard/selinux/$policy/switchyard.cil"
    done
    put 0644 "$repository/deploy/debian/logrotate" etc/logrotate.d/switchyard
}

# stage_documents ZSH: manual pages, completions (those of zsh in a directory of this name), the documented configuration and examples.
stage_documents() {
    local doc=usr/share/doc/switchyard page file
    mkdir "$work/man"
    "$host_program" man --dir "$work/man"
    for page in "$work"/man/*.1; do
        pack "usr/share/man/man1/$(basename "$page").gz" <"$page"
    done
    install -d "$tree"/usr/share/{bash-completion/completions,"zsh/$1",fish/vendor_completions.d}
    "$host_program" completion bash >"$tree/usr/share/bash-completion/completions/switchyard"
    "$host_program" completion zsh >"$tree/usr/share/zsh/$1/_switchyard"
    "$host_program" completion fish >"$tree/usr/share/fish/vendor_completions.d/switchyard.fish"
    "$host_program" config default | pack "$doc/config.toml.gz"
    pack "$doc/changelog.gz" <"$repository/CHANGELOG.md"
    for file in crictl.yaml nomad/agent.hcl nomad/{batch,device,service,sidecar}.nomad.hcl devices/pod.yaml devices/job.nomad.hcl \
        prometheus/{alertmanager,alerts,nodes,prometheus,rules,watchdog}.yaml grafana/switchyard{,-fleet}.json; do
        put 0644 "$repository/deploy/$file" "$doc/examples/$file"
    done
}

# What is linked into the binary: a bill of materials (CycloneDX), and the licences of the crates.
stage_crates() {
    local doc=usr/share/doc/switchyard crates="$work/crates" metadata="$work/metadata" name number dir
    # The crates of Cargo.lock that are linked, not those of tests and build scripts.
    (cd "$repository" && cargo tree --locked -p switchyard --target "$platform" --edges normal --prefix none --no-dedupe --format '{p}') |
        sed 's/^\([^ ]*\) v\([^ ]*\).*/\1 \2/' | sort -u >"$crates"
    (cd "$repository" && cargo metadata --locked --format-version 1 --filter-platform "$platform") >"$metadata"
    jq --rawfile crates "$crates" --rawfile lock "$repository/Cargo.lock" --arg version "$upstream" --from-file "$repository/deploy/debian/sbom.jq" \
        "$metadata" | pack "$doc/sbom.cdx.json.gz"
    jq -r --rawfile crates "$crates" '($crates | split("\n")) as $linked | .packages[] | select(.source != null) |
        select("\(.name) \(.version)" as $id | $linked | index([$id])) |
        [.name, .version, (.manifest_path | rtrimstr("/Cargo.toml"))] | @tsv' "$metadata" | while read -r name number dir; do
        printf '==== %s %s\n\n' "$name" "$number"
        find "$dir" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) -print0 | sort -z |
            xargs -0r cat
    done | pack "$doc/licenses-of-crates.gz"
}
