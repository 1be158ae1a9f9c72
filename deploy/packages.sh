# Sourced by deploy/quickstart and the scripts in tests: installs missing Debian packages, and finds cargo and the revision of the
# sources.

# install_packages NAME...: a second call does nothing and needs no network.
install_packages() {
    local missing=() package attempt policy=/usr/sbin/policy-rc.d
    for package in "$@"; do
        # shellcheck disable=SC2016 # The format is dpkg-query's own.
        if [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
            missing+=("$package")
        fi
    done
    if ((${#missing[@]} == 0)); then
        echo "Debian packages: all ${#} are installed."
        return
    fi
    if ((EUID != 0)); then
        echo "These Debian packages are missing, and only root can install them: ${missing[*]}" >&2
        return 1
    fi

    echo "Debian packages to install: ${missing[*]}"
    # On a terminal, dpkg's output shows the progress.
    local shown=/dev/null
    if [[ -t 1 ]]; then
        shown=/dev/stdout
    fi
    # The services of the packages containerd, docker-registry and prometheus must not start: scripts and tests start their own
    # instances. An existing policy of the machine is kept.
    (
        if [[ ! -e $policy ]]; then
            trap 'rm -f "$policy"' EXIT
            printf '#!/bin/sh\nexit 101\n' >"$policy"
            chmod 0755 "$policy"
        fi
        for attempt in 1 2 3; do
            if apt-get -qq -o Acquire::Retries=3 update &&
                DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 \
                    -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}" >"$shown"; then
                exit 0
            fi
            echo "apt-get failed (attempt $attempt of 3)." >&2
            sleep "$((attempt * 5))"
        done
        exit 1
    )
    # Not started now nor at the next boot: the services would occupy the ports 5000 and 9090, and dockerd would change the packet rules.
    local unit
    for unit in docker-registry:docker-registry.service prometheus:prometheus.service docker.io:docker.service docker.io:docker.socket; do
        if [[ " ${missing[*]} " == *" ${unit%%:*} "* ]] && command -v systemctl >/dev/null; then
            systemctl --quiet disable "${unit##*:}" || true
        fi
    done
}

# find_cargo: adds rustup's Rust to the PATH if it is missing there.
find_cargo() {
    if ! command -v cargo >/dev/null; then
        PATH="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:$PATH"
    fi
    if ! command -v cargo >/dev/null; then
        echo "Rust is not installed: see https://rustup.rs, then run this again." >&2
        return 1
    fi
}
