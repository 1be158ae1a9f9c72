# Sourced by the scripts that make a Debian of their own: where the machine gets its packages from.
# shellcheck shell=bash

# debian_sources: the files of apt that name a Debian archive, or a line that does where there is none.
debian_sources() {
    local files=()
    mapfile -t files < <(grep -lsE '^(deb|URIs:).*/debian(-security)?/?( |$)' /etc/apt/sources.list \
        /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources)
    if ((${#files[@]})); then
        printf '%s\n' "${files[@]}"
    else
        echo 'deb http://deb.debian.org/debian bookworm main'
    fi
}

# debian_source_of SUITE: a line for that suite of the same archive, without its updates.
debian_source_of() {
    local files archive
    mapfile -t files < <(debian_sources)
    # The address of a line (`deb [options] ADDRESS SUITE ...`) or of a paragraph (`URIs: ADDRESS`).
    archive=$(cat -- "${files[@]}" 2>/dev/null | grep -E '^(deb|URIs:) ' | grep -oE '[a-z+]+://[^ ]*/debian/?( |$)' | sed -n 1p)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${archive:-http://deb.debian.org/debian} $1 main"
}
