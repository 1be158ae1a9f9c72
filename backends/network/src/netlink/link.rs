//! Network devices: bridges, pairs of virtual Ethernet devices, and what can be changed and read of any device.

use nix::errno::Errno;

use super::decode::{attribute, attributes, i32_at, text, u32_at};
use super::error::NetlinkError;
use super::message::{Attributes, Request};
use super::names::{LinkName, LinkRef, Mac};
use super::netns::NetNs;
use super::socket::Socket;
use super::uapi::{
    AF_INET, AF_INET6, AF_UNSPEC, IFF_UP, IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_BRPORT_STATE,
    IFLA_GROUP, IFLA_IFNAME, IFLA_INET_CONF, IFLA_INET6_ADDR_GEN_MODE, IFLA_INFO_DATA,
    IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND, IFLA_LINKINFO, IFLA_MASTER,
    IFLA_MTU, IFLA_NET_NS_FD, IN6_ADDR_GEN_MODE_EUI64, IN6_ADDR_GEN_MODE_NONE, NLM_F_CREATE,
    NLM_F_EXCL, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, RTM_SETLINK, VETH_INFO_PEER,
};

/// Length of `struct ifinfomsg`.
const IFINFOMSG: usize = 16;

/// Settings that all new devices have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLink {
    /// Its name.
    pub name: LinkName,
    /// The largest packet that it takes, in bytes without the Ethernet header; else the kernel's default of its kind.
    pub mtu: Option<u32>,
    /// Its hardware address; else the kernel makes one at random.
    pub mac: Option<Mac>,
    /// A group of devices, by which many are found and deleted at once; 0 is that of all others.
    pub group: u32,
}

/// A new bridge, which is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// The device. Without a hardware address of its own, a bridge takes the lowest one of its ports, and changes it with them.
    pub link: NewLink,
}

/// A new pair of devices: one end in the namespace of the socket, the other one in another namespace, and both have their final names at once.
#[derive(Debug, Clone)]
pub struct Veth {
    /// The end in the namespace of the socket, which is up.
    pub link: NewLink,
    /// The bridge of which it is a port, by its index.
    pub master: Option<u32>,
    /// The other end. The kernel cannot make it up: use [`set_up`] inside.
    pub peer: NewLink,
    /// The namespace of the other end.
    pub peer_namespace: NetNs,
}

/// A device, as it was when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its index, which no other device of the namespace has while it exists.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its kind, such as `bridge`; physical devices and loopback have none.
    pub kind: Option<String>,
    /// Its hardware address; loopback and tunnels have none.
    pub mac: Option<Mac>,
    /// The largest packet that it takes.
    pub mtu: u32,
    /// The bridge, or another device, of which it is a port.
    pub master: Option<u32>,
    /// Its group.
    pub group: u32,
    /// True if it was set up; it may be without a carrier.
    pub is_up: bool,
    /// As a port of a bridge, whether it forwards already.
    pub port: Option<PortState>,
}

/// Treatment by a bridge of the frames of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// It drops them: the kernel has not seen the carrier of the port yet, or something else withholds it.
    Closed,
    /// It forwards them.
    Forwarding,
}

/// A setting of IPv4 that the kernel takes with a request about a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Ipv4Setting {
    /// Routing of packets that arrive there: 0 or 1.
    Forwarding = 1,
    /// Check that the source of a packet is reached by the same device, else it is dropped: 0 (none), 1 (strictly), 2 (loosely).
    RpFilter = 8,
    /// Announcement of its address when it is set up: 0 or 1.
    ArpNotify = 22,
    /// Permission to route addresses of 127/8 to it: 0 or 1.
    RouteLocalnet = 26,
}

// === impl NewLink ===

impl NewLink {
    /// One with this name, and with the kernel's defaults.
    #[must_use]
    pub const fn new(name: LinkName) -> Self {
        Self {
            name,
            mtu: None,
            mac: None,
            group: 0,
        }
    }

    /// A request to make one in the namespace of the socket. It is refused with `EEXIST` if there is one of the name.
    pub(crate) fn create(&self, kind: &str, doing: String) -> Request {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        Request::new(RTM_NEWLINK, flags, &header(0, IFF_UP, IFF_UP), doing)
            .acknowledged()
            .with(|all| self.put(all))
            .with(|all| all.nest(IFLA_LINKINFO, |info| info.text(IFLA_INFO_KIND, kind)))
    }

    fn put(&self, all: &mut Attributes) {
        all.text(IFLA_IFNAME, self.name.as_str());
        if let Some(mtu) = self.mtu {
            all.u32(IFLA_MTU, mtu);
        }
        if let Some(mac) = self.mac {
            all.bytes(IFLA_ADDRESS, &mac.bytes());
        }
        if self.group != 0 {
            all.u32(IFLA_GROUP, self.group);
        }
    }
}

// === impl Bridge ===

impl Bridge {
    /// Makes it. Refused with `EEXIST` if there is a device of the name, of whatever kind: look with [`find_link`].
    #[must_use]
    pub fn create(&self) -> Request {
        let doing = format!("make the bridge {}", self.link.name);
        self.link.create("bridge", doing)
    }
}

// === impl Veth ===

impl Veth {
    /// Makes both ends, or nothing. Refused with `EEXIST` if one of the names is taken in its namespace.
    #[must_use]
    pub fn create(&self) -> Request {
        let doing = format!(
            "make the pair of network devices {} and {}",
            self.link.name, self.peer.name
        );
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        Request::new(RTM_NEWLINK, flags, &header(0, IFF_UP, IFF_UP), doing)
            .acknowledged()
            .naming(&self.peer_namespace)
            .with(|all| self.link.put(all))
            .with(|all| {
                if let Some(master) = self.master {
                    all.u32(IFLA_MASTER, master);
                }
                all.nest(IFLA_LINKINFO, |info| {
                    info.text(IFLA_INFO_KIND, "veth");
                    info.nest(IFLA_INFO_DATA, |data| {
                        data.nest(VETH_INFO_PEER, |peer| self.put_peer(peer))
                    });
                });
            })
    }

    fn put_peer(&self, peer: &mut Attributes) {
        peer.fixed(&header(0, 0, 0));
        self.peer.put(peer);
        let descriptor = self.peer_namespace.descriptor();
        peer.bytes(IFLA_NET_NS_FD, &descriptor.to_ne_bytes());
    }
}

// === impl Link ===

impl Link {
    /// Reads the body of `RTM_NEWLINK`; nothing if it is too short for one, or has no name.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let index = u32::try_from(i32_at(body, 4)?).ok()?;
        let flags = u32_at(body, 8)?;
        let mut link = Self {
            index,
            name: String::new(),
            kind: None,
            mac: None,
            mtu: 0,
            master: None,
            group: 0,
            is_up: flags & IFF_UP != 0,
            port: None,
        };
        for (kind, value) in attributes(body.get(IFINFOMSG..)?) {
            match kind {
                IFLA_IFNAME => link.name = text(value),
                IFLA_ADDRESS => link.mac = read_mac(value),
                IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or_default(),
                IFLA_MASTER => link.master = u32_at(value, 0).filter(|index| *index != 0),
                IFLA_GROUP => link.group = u32_at(value, 0).unwrap_or_default(),
                IFLA_LINKINFO => {
                    link.kind = attribute(value, IFLA_INFO_KIND).map(text);
                    link.port = read_port(value);
                }
                _ => {}
            }
        }
        (!link.name.is_empty()).then_some(link)
    }
}

fn read_mac(value: &[u8]) -> Option<Mac> {
    Mac::new(value.try_into().ok()?).ok()
}

/// The state of a port of a bridge: `BR_STATE_FORWARDING` is 3.
fn read_port(info: &[u8]) -> Option<PortState> {
    let is_port = attribute(info, IFLA_INFO_SLAVE_KIND).map(text)? == "bridge";
    let state = attribute(attribute(info, IFLA_INFO_SLAVE_DATA)?, IFLA_BRPORT_STATE)?;
    let state = match state {
        [3, ..] => PortState::Forwarding,
        _ => PortState::Closed,
    };
    is_port.then_some(state)
}

/// All devices of the socket's namespace.
///
/// # Errors
/// Those of [`Socket::list`].
pub fn list_links(socket: &mut Socket) -> Result<Vec<Link>, NetlinkError> {
    let messages = socket.list(RTM_GETLINK, &header(0, 0, 0), "list the network devices")?;
    let links = messages
        .iter()
        .filter(|message| message.kind == RTM_NEWLINK);
    Ok(links
        .filter_map(|message| Link::read(&message.body))
        .collect())
}

/// A device of the socket's namespace, if there is one. Since Linux 6.7, the kernel first opens a port whose carrier it has not looked at yet.
///
/// # Errors
/// Those of [`Socket::run`].
pub fn find_link(socket: &mut Socket, link: &LinkRef) -> Result<Option<Link>, NetlinkError> {
    let doing = format!("look for the {link}");
    let request = Request::new(RTM_GETLINK, 0, &header(link.index(), 0, 0), doing)
        .acknowledged()
        .done_by(&[Errno::ENODEV])
        .with(|all| link.put(all));
    let messages = socket.run_one(&request)?;
    Ok(messages
        .iter()
        .find_map(|message| Link::read(&message.body)))
}

/// Deletes a device. What is connected to a bridge stays; the other end of a pair goes too. One that is gone is success.
///
/// The kernel waits here for readers of the device, some 25 ms: delete many by [`delete_links_of_group`], or let the pairs go with their
/// namespaces.
#[must_use]
pub fn delete_link(link: &LinkRef) -> Request {
    Request::new(
        RTM_DELLINK,
        0,
        &header(link.index(), 0, 0),
        format!("delete the {link}"),
    )
    .acknowledged()
    .done_by(&[Errno::ENODEV])
    .with(|all| link.put(all))
}

/// Deletes all devices of a group, as fast as one.
///
/// # Errors
/// [`NetlinkError::Value`] for group 0, which all devices of the node have that are in no other.
pub fn delete_links_of_group(group: u32) -> Result<Request, NetlinkError> {
    if group == 0 {
        return Err(NetlinkError::Value {
            value: "group 0".to_owned(),
            reason: "all network devices that are in no other group are in it",
        });
    }
    let doing = format!("delete the network devices of group {group}");
    Ok(Request::new(RTM_DELLINK, 0, &header(0, 0, 0), doing)
        .acknowledged()
        .done_by(&[Errno::ENODEV])
        .with(|all| all.u32(IFLA_GROUP, group)))
}

/// Sets a device up.
#[must_use]
pub fn set_up(link: &LinkRef) -> Request {
    set_flags(link, IFF_UP, format!("set the {link} up"))
}

/// Sets a device down: it answers nothing more. One that is gone is success.
#[must_use]
pub fn set_down(link: &LinkRef) -> Request {
    set_flags(link, 0, format!("set the {link} down")).done_by(&[Errno::ENODEV])
}

fn set_flags(link: &LinkRef, flags: u32, doing: String) -> Request {
    Request::new(RTM_SETLINK, 0, &header(link.index(), flags, IFF_UP), doing)
        .acknowledged()
        .with(|all| link.put(all))
}

/// Makes a device a port of a bridge, by the index of that: a name may have become another device's.
#[must_use]
pub fn set_master(link: &LinkRef, master: u32) -> Request {
    change(link, format!("make the {link} a port of device {master}"))
        .with(|all| all.u32(IFLA_MASTER, master))
}

/// Sets the largest packet that a device takes, in bytes without the Ethernet header.
#[must_use]
pub fn set_mtu(link: &LinkRef, mtu: u32) -> Request {
    change(link, format!("set the MTU of the {link} to {mtu}")).with(|all| all.u32(IFLA_MTU, mtu))
}

/// Sets the hardware address of a device. A bridge then keeps it, also if it is the one that the bridge has: else a bridge takes the lowest
/// address of its ports.
#[must_use]
pub fn set_mac(link: &LinkRef, mac: Mac) -> Request {
    change(
        link,
        format!("set the hardware address of the {link} to {mac}"),
    )
    .with(|all| all.bytes(IFLA_ADDRESS, &mac.bytes()))
}

/// Keeps the kernel from giving a device a link-local address of IPv6 when it is set up. Refused where the kernel has no IPv6.
#[must_use]
pub fn disable_link_local(link: &LinkRef) -> Request {
    let doing = format!("leave the {link} without a link-local address");
    change(link, doing).with(|all| put_link_local(all, IN6_ADDR_GEN_MODE_NONE))
}

/// Has the kernel make the link-local address of IPv6 of a device from its hardware address when it is set up, whatever it does by default.
/// Refused where the kernel has no IPv6.
#[must_use]
pub fn derive_link_local(link: &LinkRef) -> Request {
    let doing = format!("derive the link-local address of the {link} from its hardware address");
    change(link, doing).with(|all| put_link_local(all, IN6_ADDR_GEN_MODE_EUI64))
}

/// Sets how a link-local address is made: `IN6_ADDR_GEN_MODE_…`.
fn put_link_local(all: &mut Attributes, mode: u8) {
    all.nest(IFLA_AF_SPEC, |families| {
        families.nest(AF_INET6.into(), |inet6| {
            inet6.u8(IFLA_INET6_ADDR_GEN_MODE, mode);
        });
    });
}

/// Changes settings of IPv4 of a device, which are also below `/proc/sys/net/ipv4/conf`.
#[must_use]
pub fn set_ipv4(link: &LinkRef, settings: &[(Ipv4Setting, u32)]) -> Request {
    change(link, format!("change settings of IPv4 of the {link}")).with(|all| {
        all.nest(IFLA_AF_SPEC, |families| {
            families.nest(AF_INET.into(), |inet| {
                inet.nest(IFLA_INET_CONF, |conf| {
                    for (setting, value) in settings {
                        conf.u32(*setting as u16, *value);
                    }
                });
            });
        });
    })
}

fn change(link: &LinkRef, doing: String) -> Request {
    Request::new(RTM_SETLINK, 0, &header(link.index(), 0, 0), doing)
        .acknowledged()
        .with(|all| link.put(all))
}

/// A `struct ifinfomsg`: family, padding, type of device, index, flags, and which flags change.
pub(crate) fn header(index: u32, flags: u32, changes: u32) -> [u8; IFINFOMSG] {
    let mut bytes = [0; IFINFOMSG];
    bytes[0] = AF_UNSPEC;
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..].copy_from_slice(&changes.to_ne_bytes());
    bytes
}
