# Sourced by tests/vm, with tests/guest/sources.sh: makes the disk image, the kernel and the initrd of the Debian guest, once for each
# state of this file and of selinux.cil beside it. It uses the machine's own Debian sources, and nothing else from the network.
# shellcheck shell=bash

# What the guest has besides a minimal Debian: systemd, AppArmor, and what a node that runs Switchyard has.
guest_packages=(
    apparmor criu dbus kmod procps systemd-sysv udev
    busybox-static containerd containernetworking-plugins crun docker-registry iproute2 iptables quota runc
    firewalld # beside the daemon's own tables; a test starts it
    nfs-kernel-server # a server that the node mounts exports of; tests start it
    policycoreutils selinux-policy-default # for the boot with SELinux in place of AppArmor
    docker.io # the manager of a swarm; tests start it
    qemu-user-static # runs programs of another architecture; tests register the one that is kept
)
guest_kernel=linux-image-cloud-amd64
guest_suite=bookworm

# The modules of Debian's SELinux policy that its base is not complete without, and that of programs which nothing confines. With those of
# programs that the guest lacks, an emulated guest would build the policy for a minute whenever a module is added.
selinux_modules=(base getty unconfined xdg xserver)

# What the cloud kernel mounts the root file system by, which counts what projects take; all else is loaded from there.
initrd_modules=(virtio_pci virtio_blk quota_v2)

# The types of containers, which Debian's policy lacks.
selinux_types=$(dirname "${BASH_SOURCE[0]}")/selinux.cil

# guest_image CACHE: prints the directory that holds root.img, vmlinuz and initrd.gz; makes it when it is not there.
guest_image() {
    local cache=$1 key dir
    key=$(cat "${BASH_SOURCE[0]}" "$selinux_types" | sha256sum | cut -c 1-16)
    dir=$cache/$key
    mkdir -p "$cache"
    # Another may be making it.
    exec 9>"$cache.lock"
    flock 9
    if [[ ! -e $dir/root.img ]]; then
        # Images of older states of these files are of no use to anybody.
        rm -rf "$cache"/*
        echo "Making the guest's image in $dir." >&2
        make_guest "$dir.new" >&2
        mv "$dir.new" "$dir"
    fi
    exec 9>&-
    echo "$dir"
}

make_guest() {
    local dir=$1 root=$1/root sources version
    rm -rf "$dir"
    mkdir -p "$dir"
    mapfile -t sources < <(debian_sources)
    mmdebstrap --quiet --variant=minbase --mode=root --include="$(IFS=,; echo "${guest_packages[*]}")" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/bin/qemu-*-static' --dpkgopt='path-include=/usr/bin/qemu-aarch64-static' \
        "$guest_suite" "$root" "${sources[@]}"
    add_kernel "$dir" "$root"
    version=$(ls "$root/lib/modules")
    make_initrd "$root" "$version" "$dir/initrd.gz"
    set_up_guest "$root"
    # Last, as it labels all files.
    add_selinux_policy "$root"
    # Room for images and containers; the file is sparse.
    mke2fs -q -t ext4 -O quota,project -E quotatype=prjquota -L root -d "$root" "$dir/root.img" 3g
    rm -rf --one-file-system "$root"
}

# The package is unpacked, not installed: its scripts would make an initrd and look for a boot loader.
add_kernel() {
    local dir=$1 root=$2 package
    package=$(apt-cache depends --important "$guest_kernel" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p')
    (
        cd "$dir"
        apt-get -qq -o APT::Sandbox::User=root download "$package"
        # /lib is a symbolic link in the guest, and a directory in the package.
        dpkg-deb --fsys-tarfile "$package"_*.deb | tar --extract --keep-directory-symlink --directory="$root"
        rm "$package"_*.deb
    )
    mv "$root"/boot/vmlinuz-* "$dir/vmlinuz"
    rm -rf "$root"/boot/*
    chroot "$root" /usr/sbin/depmod "$(ls "$root/lib/modules")"
}

# make_initrd ROOT VERSION FILE: a busybox that loads the drivers of the disk and goes on from there.
make_initrd() {
    local root=$1 version=$2 file=$3 modules="$1/lib/modules/$2" tree=$1.initrd name path
    mkdir -p "$tree"/{bin,dev,proc,root,sys,modules}
    cp "$(type -P busybox)" "$tree/bin/busybox"
    {
        echo '#!/bin/busybox sh'
        echo 'busybox mount -t proc proc /proc; busybox mount -t sysfs sys /sys; busybox mount -t devtmpfs dev /dev'
        for name in "${initrd_modules[@]}"; do
            # A line of modules.dep is a module and those it needs, the deepest last.
            grep -E "/$name\.ko:" "$modules/modules.dep" | tr -d ':' | tr ' ' '\n' | tac
        done | awk 'NF && !seen[$0]++' | while read -r path; do
            cp "$modules/$path" "$tree/modules/"
            echo "busybox insmod /modules/$(basename "$path")"
        done
        echo 'while [ ! -b /dev/vda ]; do busybox sleep 0.1; done'
        echo 'busybox mount -t ext4 -o prjquota /dev/vda /root && busybox umount /proc /sys'
        echo 'exec busybox switch_root /root /sbin/init'
    } >"$tree/init"
    chmod 0755 "$tree/init"
    (cd "$tree" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$file"
    rm -rf --one-file-system "$tree"
}

# set_up_guest ROOT: what makes a Debian a guest of ours. The tests themselves come on the second disk.
set_up_guest() {
    local root=$1
    echo guest >"$root/etc/hostname"
    echo '127.0.0.1 localhost guest' >"$root/etc/hosts"
    : >"$root/etc/fstab"
    # Whatever the machine resolves names by, the guest has nobody to ask.
    rm -f "$root/etc/resolv.conf"
    echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
    cat >"$root/etc/systemd/system/guest.service" <<'END'
[Unit]
Description=The tests of the second disk
# udev makes the name of the port, which may be later than the last unit of the node.
Requires=dev-virtio\x2dports-results.device
After=multi-user.target dev-virtio\x2dports-results.device
OnFailure=poweroff.target

[Service]
Type=oneshot
ExecStart=/bin/sh -c '(mkdir -p /tests && mount -o ro /dev/vdb /tests && /tests/run) || { echo "guest: failed"; systemctl poweroff; }'
StandardOutput=file:/dev/virtio-ports/results
StandardError=inherit
TimeoutStartSec=infinity

[Install]
WantedBy=guest.target
END
    # A target of its own: multi-user.target, which the units of the tests belong to, need not wait for the tests.
    cat >"$root/etc/systemd/system/guest.target" <<'END'
[Unit]
Description=A node with tests in it
Requires=multi-user.target
After=multi-user.target
END
    mkdir -p "$root/etc/systemd/system/guest.target.wants" "$root/etc/systemd/journald.conf.d"
    ln -s ../guest.service "$root/etc/systemd/system/guest.target.wants/guest.service"
    ln -sf guest.target "$root/etc/systemd/system/default.target"
    # Kept on the disk, so that the boot after a power cut can tell of the one before.
    printf '[Journal]\nStorage=persistent\nSyncIntervalSec=1s\nRateLimitBurst=0\n' \
        >"$root/etc/systemd/journald.conf.d/guest.conf"
    # Slow, or of no use here; the node's own containerd, dockerd, registry and NFS server would take what the tests start themselves, and
    # systemd-binfmt would register emulators.
    local unit
    for unit in containerd.service docker.service docker.socket docker-registry.service nfs-server.service nfs-client.target nfs-blkmap.service \
        rpcbind.service rpcbind.socket systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
        fstrim.timer e2scrub_all.timer e2scrub_reap.service systemd-binfmt.service quota.service quotarpc.service getty@tty1.service serial-getty@ttyS0.service; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    # Neither a boot nor a call by the bus starts it; what its package has enabled. It has sysctl run whenever nf_conntrack is loaded, too.
    rm -f "$root"/etc/systemd/system/{multi-user.target.wants/firewalld.service,dbus-org.fedoraproject.FirewallD1.service} \
        "$root"/{etc,usr/lib}/modprobe.d/firewalld-sysctls.conf
    rm -f "$root/etc/machine-id"
    # One that stays: with a new one at each boot the journal of the last would not be found.
    tr -d '-' </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
}

# add_selinux_policy ROOT: what the guest needs to boot with SELinux enforcing, as tests/vm asks for on the kernel's command line. Its own
# programs may do everything, as on a node where they are not confined; containers may do what selinux.cil says.
add_selinux_policy() {
    local root=$1 name options=()
    for name in $(chroot "$root" /usr/sbin/semodule --list-modules); do
        if [[ " ${selinux_modules[*]} " != *" $name "* ]]; then
            options+=(--disable="$name")
        fi
    done
    mkdir "$root/selinux"
    chroot "$root" /bin/sh -c 'cd /selinux && semodule --cil --extract=base' >/dev/null
    {
        cat "$selinux_types"
        # A rule names one class, and the policy has more than a hundred.
        sed -n 's/^(class \([a-z0-9_]*\) .*/(allow domain guest_types (\1 (all)))/p' "$root/selinux/base.cil"
    } >"$root/selinux/guest_containers.cil"
    chroot "$root" /usr/sbin/semodule --noreload "${options[@]}" --install=/selinux/guest_containers.cil
    rm -r "$root/selinux"
    # It labels a file by its descriptor in /proc.
    # shellcheck disable=SC2016 # The inner shell has the argument.
    unshare --mount sh -c 'mount -t proc proc "$1/proc" &&
        chroot "$1" /usr/sbin/setfiles -m -F -e /proc /etc/selinux/default/contexts/files/file_contexts /' sh "$root"
}
