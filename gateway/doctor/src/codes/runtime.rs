//! 2xx: containerd and OCI runtimes. 3xx: the network.

use super::super::finding::FindingCode;

pub(in super::super) const CRI_PLUGIN: FindingCode = FindingCode::error(
    "SY201",
    "containerd's own CRI plugin uses the same namespace",
    "Each of the two removes what it does not know: pods, images and snapshots of the other.",
    "Set another containerd.namespace on a node without containers, or disable the plugin in containerd's configuration: disabled_plugins = [\"io.containerd.grpc.v1.cri\"] (containerd 2: \"io.containerd.cri.v1.runtime\" and \"io.containerd.cri.v1.images\" as well).",
);
pub(in super::super) const NO_CONTAINERD: FindingCode = FindingCode::error(
    "SY202",
    "nothing listens on containerd's socket",
    "Nothing can be created, started or pulled. Running containers continue.",
    "Start containerd, or correct containerd.address. A managed containerd is started by the daemon; the end of <state>/containerd/containerd.log says why it does not run.",
);
pub(in super::super) const NO_CONTAINERD_PROGRAM: FindingCode = FindingCode::error(
    "SY203",
    "the program of the managed containerd is missing",
    "The daemon cannot start containerd.",
    "Install containerd, or set containerd.binary to its path.",
);
pub(in super::super) const NO_RUNTIME: FindingCode = FindingCode::error(
    "SY204",
    "an OCI runtime is missing",
    "Containers of this runtime handler cannot be created.",
    "Install the runtime, or correct containerd.runtimes.",
);
pub(in super::super) const NO_SHIM: FindingCode = FindingCode::error(
    "SY205",
    "a shim is missing",
    "Containers of this runtime handler cannot be created.",
    "Install the shim (containerd-shim-runc-v2 is in the package containerd), or correct the `type` of the runtime.",
);
pub(in super::super) const VULNERABLE: FindingCode = FindingCode::warning(
    "SY206",
    "a program has known container escapes",
    "A container or an image may affect the host. Only the version number is compared: a distribution may have fixed it without changing the number.",
    "Upgrade the program. If your distribution has fixed this version, list it in advisories.ignore.",
);
pub(in super::super) const OLD_CONTAINERD: FindingCode = FindingCode::error(
    "SY207",
    "containerd is too old",
    "Versions before 1.6 lack calls that the daemon needs.",
    "Upgrade containerd.",
);
pub(in super::super) const CONTAINERD_CONFIG: FindingCode = FindingCode::warning(
    "SY208",
    "containerd's configuration cannot be read",
    "It is not known whether its CRI plugin uses the same namespace.",
    "Correct the file: `containerd config dump` says what is wrong.",
);
pub(in super::super) const NO_SNAPSHOTTER: FindingCode = FindingCode::error(
    "SY209",
    "a configured snapshotter cannot be used",
    "No image is unpacked for it, and no container is created with it. If it is the default one, the node is not ready. Others that are configured work.",
    "Do what the reason of containerd or the kernel asks for, such as another disk for <state>, a dataset of ZFS or a module, and run `switchyard restart containerd`. Or set the snapshotter \"native\", which works on every file system, and copies each layer: docs/snapshotters.md.",
);
pub(in super::super) const NO_CNI_CONFIG: FindingCode = FindingCode::warning(
    "SY301",
    "there is no usable CNI configuration",
    "Pods with a network of their own cannot be created; the kubelet reports the node as not ready. Pods with the host's network, and Nomad's tasks, do not need it.",
    "Install the cluster's network add-on, or write a .conflist file into network.conf_dir; or set cri.network to \"bridge\", for pods on a bridge of the gateway: docs/kubelet.md.",
);
pub(in super::super) const CNI_CONFIG_SKIPPED: FindingCode = FindingCode::warning(
    "SY302",
    "a CNI configuration is skipped",
    "The file has no effect; a later file, if there is one, is the network of all new pods.",
    "Correct or remove the file.",
);
pub(in super::super) const NO_CNI_PLUGIN: FindingCode = FindingCode::error(
    "SY303",
    "a plugin of the CNI configuration is missing",
    "Pods with a network of their own cannot be created.",
    "Install the plugin into one of network.bin_dirs: the package containernetworking-plugins or cni-plugins has the standard ones, and so has a release of github.com/containernetworking/plugins where there is no package; a network add-on installs its own.",
);
pub(in super::super) const NO_BRIDGE_PLUGIN: FindingCode = FindingCode::error(
    "SY304",
    "a plugin of the gateway's bridge network is missing",
    "Nomad's tasks without a network mode cannot be created, nor pods with cri.network = \"bridge\".",
    "Install the package containernetworking-plugins or cni-plugins; where there is none, as on Flatcar, unpack a release of github.com/containernetworking/plugins into /opt/cni/bin. If they are elsewhere, add their directory to network.bin_dirs.",
);
pub(in super::super) const NO_IPTABLES: FindingCode = FindingCode::error(
    "SY305",
    "iptables or ip6tables is missing",
    "The CNI plugins portmap and firewall need them, also without IPv6: tasks and pods on a bridge of the gateway cannot be created, and no host port can be published.",
    "Install the package iptables or iptables-nft, and ip6tables where that is a package of its own (Alpine). Plugins that use nftables by themselves are not enough for the gateway's own networks.",
);
pub(in super::super) const SUBNET_ROUTED: FindingCode = FindingCode::error(
    "SY306",
    "the bridge network overlaps a network of the node",
    "The daemon refuses to create tasks on the bridge network, because packets to one of the two would be lost.",
    "Set network.bridge.subnets to addresses that the node has no route to.",
);
pub(in super::super) const SUBNETS_OVERLAP: FindingCode = FindingCode::warning(
    "SY307",
    "two container networks overlap",
    "When both are in use, packets to one of them are lost.",
    "Give each network addresses of its own: in its CNI configuration, by network.bridge.subnets or network.pods.subnets, or by the podCIDR that the cluster gives the node. Remove a CNI configuration that no pod uses any more.",
);
pub(in super::super) const PORTS_OVERLAP: FindingCode = FindingCode::warning(
    "SY308",
    "port ranges overlap",
    "A port is given out twice: the second user cannot bind it, or its connections are redirected to the first.",
    "Set client.max_dynamic_port of Nomad agents below 30000, keep net.ipv4.ip_local_port_range above 32767, or list fixed ports in net.ipv4.ip_local_reserved_ports.",
);
pub(in super::super) const FORWARD_DROP: FindingCode = FindingCode::warning(
    "SY309",
    "the packet filter drops forwarded packets",
    "Pods of the CNI network reach nothing beyond the node, and published ports do not answer. Docker and some firewalls set this policy.",
    "Add the plugin firewall to the CNI configuration, or accept the bridge's packets in the chain FORWARD.",
);

pub(in super::super) const FEW_ADDRESSES: FindingCode = FindingCode::warning(
    "SY310",
    "few addresses of a network are left",
    "Once none is left, no pod or task on this network is created: \"no IP addresses available in range set\".",
    "Enlarge the range in the network's configuration, in network.bridge.subnets or in network.pods.subnets, or run less on the node. An address for a container that neither the daemon nor another program on the node has (`ctr -n k8s.io containers list`) was leaked: remove its file.",
);
pub(in super::super) const NO_NAME_SERVER: FindingCode = FindingCode::warning(
    "SY311",
    "tasks have no DNS server",
    "Tasks of Nomad and Swarm whose job names no server resolve no names: those of the node are local caches, belong to one of its interfaces, or are of a family that the bridge network lacks.",
    "Set network.dns to servers that tasks can ask, for instance the address of the bridge if the cache also listens there; or give the bridge a range of the other family by network.bridge.subnets.",
);
pub(in super::super) const PORTS_ON_IPV4: FindingCode = FindingCode::note(
    "SY312",
    "published ports answer on IPv4 alone",
    "The node has IPv6, and the bridge network of tasks has no range of it: a port that a job publishes without an address does not answer on addresses of IPv6, and one on such an address is refused.",
    "If clients use IPv6, give the bridge a range of it by network.bridge.subnets while the node has no tasks.",
);
pub(in super::super) const NO_IPV6: FindingCode = FindingCode::error(
    "SY313",
    "a network of containers has IPv6, and the node has not",
    "Pods or tasks on it cannot be created: the bridge cannot get its address (\"permission denied\", \"operation not supported\").",
    "Remove the range of IPv6 from network.bridge.subnets, from network.pods.subnets, from the podCIDR or from the CNI configuration. Or enable IPv6: start the kernel without ipv6.disable=1, and set net.ipv6.conf.all.disable_ipv6 = 0 in /etc/sysctl.d.",
);
pub(in super::super) const ROUTERS_IGNORED: FindingCode = FindingCode::warning(
    "SY314",
    "the node loses its routes of IPv6 once it forwards",
    "The kernel ignores what routers advertise on an interface that forwards, unless accept_ra is 2: the default route of IPv6 that the node has learnt is removed then, and later its addresses. The plugin bridge turns forwarding on with the first container that has IPv6. With the driver native the daemon refuses such a container instead. On a bridge with both families that had IPv6 before forwarding was switched off, it connects the container, and leaves forwarding of IPv6 off.",
    "Set net.ipv6.conf.INTERFACE.accept_ra = 2 in /etc/sysctl.d before that, for each of these interfaces. systemd-networkd and NetworkManager listen to routers themselves, and set accept_ra = 0.",
);
pub(in super::super) const NATIVE_LACKING: FindingCode = FindingCode::warning(
    "SY315",
    "the kernel lacks what the driver native needs",
    "Plugins connect tasks, and pods with cri.network = \"bridge\", to the gateway's bridges, although the driver is native, by network.bridge.driver or as this node began with it, and leave the bridges open to each other.",
    "Install the kernel's package of modules, or boot a kernel with CONFIG_NFT_NAT, CONFIG_NFT_MASQ, CONFIG_NFT_CT and CONFIG_NFT_FIB_IPV4 (with IPv6 also CONFIG_NFT_FIB_IPV6). Then restart the daemon. Where that cannot be, as in a container without privileges, write driver = \"cni\" into [network.bridge].",
);
pub(in super::super) const NATIVE_DROPPED: FindingCode = FindingCode::warning(
    "SY316",
    "the packet filter drops what a bridge of the gateway forwards",
    "Tasks or pods on the bridge reach nothing beyond the node, or their published ports answer on the node alone, or both. Where the policy of FORWARD of iptables is DROP, the daemon accepts their packets at the end of that chain, within a minute: it does not run, or could not. What firewalld rejects stays rejected.",
    "Where firewalld rejects them, accept them by these commands, which it keeps. Where the policy is DROP, look in the daemon's log why it does not accept them; it needs the program iptables in the variant that has the chain (`iptables-nft` or `iptables-legacy`). Or accept them by these commands, also after each boot. docs/network.md has more about other firewalls.",
);
pub(in super::super) const TABLE_CHANGED: FindingCode = FindingCode::warning(
    "SY317",
    "a table of the gateway's network was changed by others",
    "Published ports, connections to beyond the node, and the protection of 127.0.0.1 of the node may not work. A daemon that runs with the driver native mends this within seconds.",
    "Put rules of your own into a table of your own. If it stays so, look in the daemon's log why it does not mend the table; a table that no container needs any more is removed by `switchyard network clear`.",
);
pub(in super::super) const FORMER_NETWORK: FindingCode = FindingCode::note(
    "SY318",
    "the node keeps the former defaults of its bridges",
    "What the configuration does not set is as before this version: CNI plugins attach tasks, and pods with cri.network = \"bridge\", containers of all bridges reach each other, and other machines that have a route reach them. Nodes that begin with it have the driver native, and their bridges are kept apart.",
    "To have the same here, write driver = \"native\" into [network.bridge], and isolation = \"bridge\" and direct_routing = false into [network], and restart the daemon; what runs keeps its network. To keep it as it is, write the three values that were found, which ends this note; of driver = \"cni\" the other two follow.",
);
pub(in super::super) const UNKNOWN_NETWORK: FindingCode = FindingCode::error(
    "SY319",
    "it is not known which defaults the bridges of this node have",
    "The next start of the daemon ends with this error: it guesses neither that CNI plugins attach tasks, nor that bridges may reach each other.",
    "Put the file back from a backup, or set network.bridge.driver, network.isolation and network.direct_routing.",
);
pub(in super::super) const NOT_PINNED: FindingCode = FindingCode::warning(
    "SY320",
    "containers can send with the addresses of others",
    "The kernel has no tables of the family bridge, by which the driver native keeps a container with NET_RAW from sending with the addresses of its neighbours, and from taking theirs by ARP and neighbour discovery. All else of the driver works.",
    "Boot a kernel with CONFIG_NF_TABLES_BRIDGE, and restart the daemon. Or set network.bridge.pin = \"none\", and drop NET_RAW from containers that need not be trusted.",
);

pub(super) const ALL: &[&FindingCode] = &[
    &CRI_PLUGIN,
    &NO_CONTAINERD,
    &NO_CONTAINERD_PROGRAM,
    &NO_RUNTIME,
    &NO_SHIM,
    &VULNERABLE,
    &OLD_CONTAINERD,
    &CONTAINERD_CONFIG,
    &NO_SNAPSHOTTER,
    &NO_CNI_CONFIG,
    &CNI_CONFIG_SKIPPED,
    &NO_CNI_PLUGIN,
    &NO_BRIDGE_PLUGIN,
    &NO_IPTABLES,
    &SUBNET_ROUTED,
    &SUBNETS_OVERLAP,
    &PORTS_OVERLAP,
    &FORWARD_DROP,
    &FEW_ADDRESSES,
    &NO_NAME_SERVER,
    &PORTS_ON_IPV4,
    &NO_IPV6,
    &ROUTERS_IGNORED,
    &NATIVE_LACKING,
    &NATIVE_DROPPED,
    &TABLE_CHANGED,
    &FORMER_NETWORK,
    &UNKNOWN_NETWORK,
    &NOT_PINNED,
];
