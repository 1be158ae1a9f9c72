//! Numbers of the kernel's interface, as its headers name them: `linux/netlink.h`, `rtnetlink.h`, `if_link.h`, `if_addr.h`,
//! `neighbour.h`, `fib_rules.h`, `pkt_sched.h` and `pkt_cls.h`. They never change.

/// Lengths of `struct nlmsghdr` and of `struct nlattr`.
pub(crate) const NLMSG_HDRLEN: usize = 16;
pub(crate) const NLA_HDRLEN: usize = 4;
pub(crate) const NLA_F_NESTED: u16 = 0x8000;
/// The bits of an attribute's type that are no flags.
pub(crate) const NLA_TYPE_MASK: u16 = 0x3fff;

pub(crate) const NLMSG_NOOP: u16 = 1;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
pub(crate) const NLMSG_OVERRUN: u16 = 4;

/// Flags of messages. Those from 0x100 on mean other things in requests that make, in requests that read, and in acknowledgements.
pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_CAPPED: u16 = 0x100;
pub(crate) const NLM_F_ACK_TLVS: u16 = 0x200;

pub(crate) const NLMSGERR_ATTR_MSG: u16 = 1;

/// Socket options of `SOL_NETLINK`.
pub(crate) const SOL_NETLINK: i32 = 270;
pub(crate) const NETLINK_CAP_ACK: i32 = 10;
pub(crate) const NETLINK_EXT_ACK: i32 = 11;
pub(crate) const NETLINK_GET_STRICT_CHK: i32 = 12;

pub(crate) const AF_UNSPEC: u8 = 0;
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_GETLINK: u16 = 18;
pub(crate) const RTM_SETLINK: u16 = 19;
pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_DELADDR: u16 = 21;
pub(crate) const RTM_GETADDR: u16 = 22;
pub(crate) const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_DELROUTE: u16 = 25;
pub(crate) const RTM_GETROUTE: u16 = 26;
pub(crate) const RTM_NEWNEIGH: u16 = 28;
pub(crate) const RTM_DELNEIGH: u16 = 29;
pub(crate) const RTM_GETNEIGH: u16 = 30;
pub(crate) const RTM_NEWRULE: u16 = 32;
pub(crate) const RTM_DELRULE: u16 = 33;
pub(crate) const RTM_NEWQDISC: u16 = 36;
pub(crate) const RTM_DELQDISC: u16 = 37;
pub(crate) const RTM_NEWTFILTER: u16 = 44;

pub(crate) const IFF_UP: u32 = 1;

pub(crate) const IFLA_ADDRESS: u16 = 1;
pub(crate) const IFLA_IFNAME: u16 = 3;
pub(crate) const IFLA_MTU: u16 = 4;
pub(crate) const IFLA_MASTER: u16 = 10;
pub(crate) const IFLA_LINKINFO: u16 = 18;
pub(crate) const IFLA_AF_SPEC: u16 = 26;
pub(crate) const IFLA_GROUP: u16 = 27;
pub(crate) const IFLA_NET_NS_FD: u16 = 28;
pub(crate) const IFLA_INFO_KIND: u16 = 1;
pub(crate) const IFLA_INFO_DATA: u16 = 2;
pub(crate) const IFLA_INFO_SLAVE_KIND: u16 = 4;
pub(crate) const IFLA_INFO_SLAVE_DATA: u16 = 5;
pub(crate) const VETH_INFO_PEER: u16 = 1;
pub(crate) const IFLA_INET_CONF: u16 = 1;
pub(crate) const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
pub(crate) const IN6_ADDR_GEN_MODE_EUI64: u8 = 0;
pub(crate) const IN6_ADDR_GEN_MODE_NONE: u8 = 1;

pub(crate) const IFLA_BRPORT_STATE: u16 = 1;
pub(crate) const IFLA_BRPORT_MODE: u16 = 4;
pub(crate) const IFLA_BRPORT_LEARNING: u16 = 8;
pub(crate) const IFLA_BRPORT_UNICAST_FLOOD: u16 = 9;
pub(crate) const IFLA_BRPORT_ISOLATED: u16 = 33;

pub(crate) const IFA_ADDRESS: u16 = 1;
pub(crate) const IFA_LOCAL: u16 = 2;
pub(crate) const IFA_BROADCAST: u16 = 4;
pub(crate) const IFA_FLAGS: u16 = 8;
pub(crate) const IFA_F_NODAD: u32 = 2;
pub(crate) const IFA_F_OPTIMISTIC: u32 = 4;
pub(crate) const IFA_F_DADFAILED: u32 = 8;
pub(crate) const IFA_F_TENTATIVE: u32 = 0x40;

pub(crate) const RT_TABLE_MAIN: u32 = 254;
pub(crate) const RTPROT_STATIC: u8 = 4;
pub(crate) const RT_SCOPE_UNIVERSE: u8 = 0;
pub(crate) const RT_SCOPE_LINK: u8 = 253;
pub(crate) const RT_SCOPE_NOWHERE: u8 = 255;
pub(crate) const RTN_UNICAST: u8 = 1;
pub(crate) const RTNH_F_ONLINK: u32 = 4;
pub(crate) const RTA_DST: u16 = 1;
pub(crate) const RTA_OIF: u16 = 4;
pub(crate) const RTA_GATEWAY: u16 = 5;
pub(crate) const RTA_PRIORITY: u16 = 6;
pub(crate) const RTA_PREFSRC: u16 = 7;
pub(crate) const RTA_TABLE: u16 = 15;
pub(crate) const RTA_VIA: u16 = 18;

pub(crate) const NDA_DST: u16 = 1;
pub(crate) const NDA_LLADDR: u16 = 2;
pub(crate) const NUD_PERMANENT: u16 = 0x80;

pub(crate) const FR_ACT_TO_TBL: u8 = 1;
pub(crate) const FRA_DST: u16 = 1;
pub(crate) const FRA_SRC: u16 = 2;
pub(crate) const FRA_IIFNAME: u16 = 3;
pub(crate) const FRA_PRIORITY: u16 = 6;
pub(crate) const FRA_TABLE: u16 = 15;

pub(crate) const TC_H_ROOT: u32 = 0xffff_ffff;
pub(crate) const TC_H_INGRESS: u32 = 0xffff_fff1;
pub(crate) const TCA_KIND: u16 = 1;
pub(crate) const TCA_OPTIONS: u16 = 2;
pub(crate) const TC_LINKLAYER_ETHERNET: u8 = 1;
pub(crate) const TCA_TBF_PARMS: u16 = 1;
pub(crate) const TCA_TBF_RATE64: u16 = 4;
pub(crate) const TCA_TBF_BURST: u16 = 6;
pub(crate) const ETH_P_ALL: u16 = 3;
pub(crate) const TCA_U32_SEL: u16 = 5;
pub(crate) const TCA_U32_ACT: u16 = 7;
pub(crate) const TC_U32_TERMINAL: u8 = 1;
pub(crate) const TCA_ACT_KIND: u16 = 1;
pub(crate) const TCA_ACT_OPTIONS: u16 = 2;
pub(crate) const TCA_MIRRED_PARMS: u16 = 2;
pub(crate) const TC_ACT_STOLEN: i32 = 4;
pub(crate) const TCA_EGRESS_REDIR: i32 = 1;
