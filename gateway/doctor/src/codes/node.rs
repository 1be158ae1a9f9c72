//! 1xx: the node, its kernel and its service manager.

use super::super::finding::FindingCode;

pub(in super::super) const NO_OVERLAY: FindingCode = FindingCode::error(
    "SY101",
    "the kernel has no overlay file system",
    "No container can be created with the snapshotter overlayfs.",
    "Load the module (`modprobe overlay`), or install the kernel's package of modules.",
);
pub(in super::super) const NO_NETWORK_FEATURE: FindingCode = FindingCode::error(
    "SY102",
    "the kernel lacks a feature for container networks",
    "Pods and tasks with a network of their own cannot be connected: CNI plugins create bridges, pairs of virtual interfaces and packet rules.",
    "Install the kernel's package of modules, and load the module by /etc/modules-load.d.",
);
pub(in super::super) const NO_FORWARDING: FindingCode = FindingCode::warning(
    "SY103",
    "the node does not forward packets",
    "Containers with a network of their own reach nothing beyond the node. The CNI plugin bridge turns forwarding on when it connects the first container; other plugins expect it to be on, and kubeadm refuses a node without it.",
    "Set the sysctl in a file below /etc/sysctl.d, and run `sysctl --system`, or with OpenRC `rc-service sysctl restart`.",
);
pub(in super::super) const BRIDGE_BYPASSES_RULES: FindingCode = FindingCode::warning(
    "SY104",
    "packets between containers of a bridge bypass iptables",
    "A pod does not reach a Service whose endpoint is on the same bridge, and network policies do not apply to such packets.",
    "Load br_netfilter by /etc/modules-load.d, and set net.bridge.bridge-nf-call-iptables = 1 in /etc/sysctl.d, with IPv6 also net.bridge.bridge-nf-call-ip6tables = 1.",
);
pub(in super::super) const CGROUP_V1: FindingCode = FindingCode::warning(
    "SY105",
    "the node uses cgroup v1",
    "Kubelets from 1.35 refuse to start unless failCgroupV1 is off, memory pressure and graceful limits of memory do not exist, and systemd from 258 does not boot.",
    "Boot with systemd.unified_cgroup_hierarchy=1, which empties the node of containers.",
);
pub(in super::super) const NO_CONTROLLER: FindingCode = FindingCode::error(
    "SY106",
    "a cgroup controller is missing",
    "Limits of this kind cannot be set: containers that request them are not created, and usage is not reported.",
    "Enable the controller on the kernel's command line (cgroup_enable=memory on some boards), or in the cgroup that this machine runs in.",
);
pub(in super::super) const FEW_INOTIFY: FindingCode = FindingCode::warning(
    "SY107",
    "the limits of inotify are low",
    "Kubelets, followers of logs and programs in containers share the instances of root. When they are used up, `kubectl logs -f` and plugin watchers fail with \"too many open files\".",
    "Set fs.inotify.max_user_instances = 8192 and fs.inotify.max_user_watches = 524288 in /etc/sysctl.d.",
);
pub(in super::super) const FEW_PIDS: FindingCode = FindingCode::note(
    "SY108",
    "the node has few process ids",
    "All containers together cannot have more processes and threads than this.",
    "Set kernel.pid_max = 4194304 in /etc/sysctl.d.",
);
pub(in super::super) const FEW_FILES: FindingCode = FindingCode::warning(
    "SY109",
    "the daemon may open few files",
    "With many containers and clients, connections are refused and pulls fail with \"too many open files\".",
    "Set LimitNOFILE=1048576 in the unit, as the packaged unit has it, and restart the daemon.",
);
pub(in super::super) const CONNTRACK_FULL: FindingCode = FindingCode::warning(
    "SY110",
    "the table of tracked connections is nearly full",
    "When it is full, the kernel drops new connections of all containers (\"nf_conntrack: table full, dropping packet\").",
    "Raise net.netfilter.nf_conntrack_max in /etc/sysctl.d, and look for the container that opens them.",
);
pub(in super::super) const DISK_SPACE: FindingCode = FindingCode::warning(
    "SY111",
    "a disk has little space left",
    "A kubelet evicts pods below its thresholds (10 % of its own disk, 15 % of that of images), and nothing can be pulled or created when it is full.",
    "Remove images that nothing uses, and files of exited containers, or give the directory a larger disk.",
);
pub(in super::super) const DISK_INODES: FindingCode = FindingCode::warning(
    "SY112",
    "a disk has few inodes left",
    "No file can be created when they are used up, whatever space is free; a kubelet evicts pods below 5 %.",
    "Remove images that nothing uses: images with many small files are the usual cause.",
);
pub(in super::super) const NOT_TMPFS: FindingCode = FindingCode::warning(
    "SY113",
    "a directory of the current boot is not on tmpfs",
    "Its contents survive a reboot, after which the daemon has to find out that they are stale, and output of containers is written to the disk twice.",
    "Move paths.run (or logkeeper.state_dir) to a tmpfs, as /run mostly is, or mount one there.",
);
pub(in super::super) const MOUNT_OPTIONS: FindingCode = FindingCode::warning(
    "SY114",
    "the state directory is mounted with an option that containers inherit",
    "Programs in volumes of images cannot be executed (noexec) or do not change their user (nosuid); on a read-only disk nothing can be created.",
    "Mount the disk without these options, or move paths.state.",
);
pub(in super::super) const SELINUX: FindingCode = FindingCode::note(
    "SY115",
    "SELinux enforces its policy, and containers get no labels",
    "Containers run in the domain of containerd: SELinux confines them no more than containerd itself.",
    "Give the daemon's files the labels of docs/selinux.md, then set containerd.selinux = true, and restart the daemon. It applies to containers that are created from then on.",
);
pub(in super::super) const NO_APPARMOR: FindingCode = FindingCode::note(
    "SY116",
    "AppArmor is not active",
    "Containers run without its default profile, which is one of the defences against escapes. SELinux is not active either.",
    "Boot with AppArmor (`apparmor=1 security=apparmor`), and install the package apparmor.",
);
pub(in super::super) const UNIT_NOT_ENABLED: FindingCode = FindingCode::warning(
    "SY117",
    "a unit is not started at boot",
    "After a reboot nobody starts the daemon, or writes the logs of containers.",
    "Install the package's units and enable them.",
);
pub(in super::super) const UNIT_SETTINGS: FindingCode = FindingCode::error(
    "SY118",
    "a setting of a unit endangers containers",
    "Without Delegate=yes systemd moves containers out of their cgroups; with another KillMode than process a restart of the unit kills what it started.",
    "Remove the drop-in that changes the setting: `systemctl cat` shows it.",
);
pub(in super::super) const START_LIMIT: FindingCode = FindingCode::warning(
    "SY119",
    "a unit is not started again after some quick failures",
    "After the limit the unit stays down until somebody starts it: nobody manages the containers, or containers that write output wait.",
    "Set StartLimitIntervalSec=0 in the unit, as the packaged units have it; `systemctl reset-failed` lifts a limit that was hit.",
);
pub(in super::super) const UNSEEN: FindingCode = FindingCode::note(
    "SY120",
    "not everything could be looked at",
    "Findings may be missing.",
    "Run `switchyard doctor` as root.",
);
pub(in super::super) const UNFINISHED: FindingCode = FindingCode::warning(
    "SY121",
    "a check did not end",
    "Its findings are missing. A file system that hangs, a user database that does not answer, or a process that hangs is the likely reason.",
    "Look at `dmesg -T | tail` and at what the line names; then run it again.",
);
pub(in super::super) const LIMIT_NEAR: FindingCode = FindingCode::warning(
    "SY122",
    "a limit that all processes share is nearly reached",
    "Containers do not start, and programs in them fail with \"resource temporarily unavailable\" or \"too many open files in system\".",
    "Look for the container that has most of them (`ps -eLo cgroup | sort | uniq -c | sort -n | tail` for threads), limit it, or raise the sysctl.",
);
pub(in super::super) const SELINUX_POLICY: FindingCode = FindingCode::warning(
    "SY125",
    "the SELinux policy lacks what labels of containers need",
    "Without the types of containers no container starts while containerd.selinux is true. Without contexts for the daemon's directories, sockets and files in them get types that the policy gives to other programs.",
    "Install the policy for containers (container-selinux; in Debian from 13 on it is a part of selinux-policy-default), then the file contexts of docs/selinux.md. Until then leave containerd.selinux = false.",
);
pub(in super::super) const NO_NEEDED_FEATURE: FindingCode = FindingCode::error(
    "SY126",
    "the kernel lacks what the daemon needs",
    "The daemon does not start.",
    "Boot a later kernel of the distribution: Debian 11, Ubuntu 22.04, RHEL 9 and later ones have one. In a container, let its seccomp filter allow the call.",
);
pub(in super::super) const NO_HOST_FEATURE: FindingCode = FindingCode::note(
    "SY127",
    "the kernel lacks an optional feature",
    "What needs it is refused, with this reason; all else works.",
    "Boot a later kernel, if that is needed. In a container, let its seccomp filter allow the call.",
);
pub(in super::super) const IN_USER_NAMESPACE: FindingCode = FindingCode::note(
    "SY128",
    "the node is a container in a user namespace",
    "Containers get no OOM score and no hard limit that is better than the daemon's own, with a warning. Only groups that net.ipv4.ping_group_range of a pod or task names may send pings without CAP_NET_RAW. The kernel refuses pods with a user namespace of their own, disk quotas and volumes of NFS.",
    "Run the node as a privileged container or a virtual machine, if these are needed.",
);
pub(in super::super) const APPARMOR_UNUSABLE: FindingCode = FindingCode::note(
    "SY129",
    "the kernel has AppArmor, but this node cannot use it",
    "Containers run without AppArmor profiles. A task that names one, be it the default, is refused.",
    "In a container, give it a namespace of AppArmor profiles (Incus and LXD: security.nesting=true); otherwise mount securityfs at /sys/kernel/security.",
);

pub(super) const ALL: &[&FindingCode] = &[
    &NO_OVERLAY,
    &NO_NETWORK_FEATURE,
    &NO_FORWARDING,
    &BRIDGE_BYPASSES_RULES,
    &CGROUP_V1,
    &NO_CONTROLLER,
    &FEW_INOTIFY,
    &FEW_PIDS,
    &FEW_FILES,
    &CONNTRACK_FULL,
    &DISK_SPACE,
    &DISK_INODES,
    &NOT_TMPFS,
    &MOUNT_OPTIONS,
    &SELINUX,
    &NO_APPARMOR,
    &UNIT_NOT_ENABLED,
    &UNIT_SETTINGS,
    &START_LIMIT,
    &UNSEEN,
    &UNFINISHED,
    &LIMIT_NEAR,
    &SELINUX_POLICY,
    &NO_NEEDED_FEATURE,
    &NO_HOST_FEATURE,
    &IN_USER_NAMESPACE,
    &APPARMOR_UNUSABLE,
];
