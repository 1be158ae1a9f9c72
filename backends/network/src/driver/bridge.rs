//! The bridge itself: made by the first container that needs it, and set up as the containers need it.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use switchyard_crash_points::{CrashPoint, reach};

use super::BridgeDriver;
use super::container::hairpin;
use super::error::DriverError;
use super::names::mac_of;
use super::tables::State;
use crate::netlink::{
    Address, AddressState, Bridge, Family, HeldAddress, IpFamily, IpPrefix, Ipv4Setting,
    Ipv6Setting, Link, LinkName, LinkRef, Mac, NetNs, NetlinkError, NewLink, Request, Socket, Veth,
    add_address, delete_address, enable_forwarding, find_link, has_ipv6_setting, list_addresses,
    set_ipv4, set_ipv6, set_mac, set_master, set_mtu, set_up, would_ignore_routers,
};
use crate::nft::{NftFamily, NftSubnet};

/// Limit of host's ends that are connected in one batch.
const CONNECTED_AT_ONCE: usize = 64;

/// Value of `keep_addr_on_down` of a bridge with IPv6: the kernel keeps its addresses by each value above 0. Not 1, which is the default of some nodes for
/// all devices, and would say of a bridge of IPv4 alone that it has had IPv6.
const KEPT_ADDRESSES: u32 = 2;

/// A bridge that is ready for a container.
pub(super) struct ReadyBridge {
    pub(super) index: u32,
    pub(super) mac: Mac,
}

/// Result of one look at the uplinks of the node, by which all is decided for a bridge that is set up.
#[derive(Debug, Default)]
pub(super) struct UplinkLook {
    /// An uplink that would not listen to routers any more if the node forwarded IPv6: then it does not, and containers are connected all the
    /// same.
    listens: Option<String>,
}

impl BridgeDriver {
    /// Makes the bridge unless it is there, and sees to it that it is up, has its addresses, and has a table. What fails leaves the tables of
    /// other bridges as they were: what the kernel refuses of this one would be refused in each repair of them.
    pub(super) fn ready_bridge(&self, state: &mut State) -> Result<ReadyBridge, DriverError> {
        let name = &self.settings.name;
        state.check_free(name, &self.rules)?;
        let route = &mut state.kernel(self.tables.name())?.route;
        let found = find_link(route, &name.clone().into())?;
        if let Some(link) = &found {
            self.check_kind(link)?;
        }
        let before = state.bridges.get(name).cloned();
        let device = state.know(name, &self.rules)?.device;
        let is_known = device.is_some() && device == found.as_ref().map(|link| link.index);
        let ready = self.set_up_found(state, found, is_known);
        if ready.is_err() {
            state.put_back(name, before);
        }
        ready
    }

    /// Looks whether a device of the bridge's name is a bridge, if there is one. Blocks.
    ///
    /// # Errors
    /// [`DriverError::NoBridge`], [`DriverError::Links`].
    pub fn check_device(&self) -> Result<(), DriverError> {
        let mut state = self.tables.lock();
        let route = &mut state.kernel(self.tables.name())?.route;
        match find_link(route, &self.settings.name.clone().into())? {
            Some(link) => self.check_kind(&link),
            None => Ok(()),
        }
    }

    fn check_kind(&self, link: &Link) -> Result<(), DriverError> {
        let kind = match link.kind.as_deref() {
            Some("bridge") => return Ok(()),
            Some(kind) => format!("of the kind {kind}"),
            None => "of hardware".to_owned(),
        };
        let name = self.settings.name.to_string();
        Err(DriverError::NoBridge { name, kind })
    }

    /// Sees to it that a bridge is up and has its addresses, and, unless this process has done so before, all else that it needs: it is made, if
    /// none was found.
    fn set_up_found(
        &self,
        state: &mut State,
        found: Option<Link>,
        is_known: bool,
    ) -> Result<ReadyBridge, DriverError> {
        // Before anything is made, and once for all that follows: routers may tell the node something at any moment.
        let look = if is_known {
            None
        } else {
            Some(self.look_at_uplinks()?)
        };
        let link = match found {
            Some(link) => link,
            None => self.make_bridge(&mut state.kernel(self.tables.name())?.route)?,
        };
        self.check_kind(&link)?;
        let mac = link.mac.ok_or_else(|| NetlinkError::Value {
            value: format!("the bridge {}", self.settings.name),
            reason: "it has no hardware address",
        })?;
        let ready = ReadyBridge {
            index: link.index,
            mac,
        };
        self.set_up_bridge(state, &ready, look.as_ref())?;
        Ok(ready)
    }

    /// Sees to it that a bridge is up and has its addresses. `look` is given if this process has not done so yet: then also to all else that it
    /// needs.
    fn set_up_bridge(
        &self,
        state: &mut State,
        bridge: &ReadyBridge,
        look: Option<&UplinkLook>,
    ) -> Result<(), DriverError> {
        let reference = LinkRef::Index(bridge.index);
        let mut requests = Vec::new();
        if look.is_some() {
            if self.settings.is_gateway {
                self.allow_ipv6()?;
            }
            // Else it would have the lowest address of its ports, and change it with them.
            requests.push(set_mac(&reference, bridge.mac));
            // One that was there before may have been made with another configuration.
            requests.extend(self.settings.mtu.map(|mtu| set_mtu(&reference, mtu)));
            let held = list_addresses(&mut state.kernel(self.tables.name())?.route)?;
            let of_bridge = held.into_iter();
            let of_bridge: Vec<HeldAddress> = of_bridge
                .filter(|held| held.address.link == bridge.index)
                .collect();
            requests.extend(self.without_unusable(&of_bridge));
            requests.extend(self.without_former(state, &of_bridge)?);
        }
        if !self.settings.is_gateway {
            self.disable_ipv6()?;
            // Containers may send to the bridge itself: without an address, the kernel then takes no packet of IPv4 from it. Each time, since
            // udev sets what sysctl.d has for all interfaces when it learns of a new one.
            requests.push(set_ipv4(&reference, &[(Ipv4Setting::RpFilter, 1)]));
        }
        requests.push(set_up(&reference));
        for prefix in self.gateways.iter().filter(|_| self.settings.is_gateway) {
            let address = Address {
                link: bridge.index,
                prefix: *prefix,
            };
            requests.push(add_address(&address).done_by(&[Errno::EEXIST]));
        }
        state.kernel(self.tables.name())?.route.run(&requests)?;
        if let Some(look) = look {
            self.connect_again(state, bridge.index)?;
            // It has the elements of the bridge, which containers need also if they publish nothing.
            self.tables.restore_for(state, &self.families)?;
            if self.settings.is_gateway {
                self.lead_out(state, &reference, look)?;
            }
            state.know(&self.settings.name, &self.rules)?.device = Some(bridge.index);
        }
        Ok(())
    }

    /// Requests that take from the bridge those of its own addresses that the kernel does not use, as others have given them to it with a search
    /// for duplicates: it gets them again without.
    fn without_unusable(&self, of_bridge: &[HeldAddress]) -> Vec<Request> {
        let is_own = |address: IpAddr| self.gateways.iter().any(|own| own.address() == address);
        let unusable = of_bridge.iter().filter(|held| {
            held.state != AddressState::Usable && is_own(held.address.prefix.address())
        });
        unusable.map(|held| delete_address(&held.address)).collect()
    }

    /// Requests that take from the bridge what addresses it has for nobody.
    fn without_former(
        &self,
        state: &State,
        of_bridge: &[HeldAddress],
    ) -> Result<Vec<Request>, DriverError> {
        if self.leaves_addresses {
            return Ok(Vec::new());
        }
        let of_bridge = of_bridge.iter().map(|held| held.address);
        let of_bridge: Vec<Address> = of_bridge
            .filter(|address| !self.is_present(state, address.prefix))
            .collect();
        if of_bridge.is_empty() {
            return Ok(Vec::new());
        }
        // Also of containers that plugins have connected, which are not known here.
        let in_use = self.pool.reservations()?;
        let is_former = |address: &&Address| {
            let network = address.prefix.network();
            let has = |ip: IpAddr| {
                IpPrefix::new(ip, network.length()).is_ok_and(|one| one.network() == network)
            };
            !in_use.iter().any(|one| has(one.address))
        };
        let former = of_bridge.iter().filter(is_former);
        Ok(former.map(delete_address).collect())
    }

    /// Returns whether the bridge is to have an address of this network: of one of its subnets, or a link-local one.
    fn is_present(&self, state: &State, prefix: IpPrefix) -> bool {
        let address = prefix.address();
        let is_link_local = matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
        let known = state.bridges.get(&self.settings.name);
        let is_known = |subnet: &NftSubnet| known.is_some_and(|one| one.overlap(subnet).is_some());
        let subnet = NftSubnet::new(address, prefix.length());
        self.settings.is_gateway && (is_link_local || subnet.as_ref().is_ok_and(is_known))
    }

    /// Lets packets leave the bridge, and lets those of the node itself from 127.0.0.0/8 in. Last, since the rules keep these addresses of the
    /// node from containers.
    pub(super) fn lead_out(
        &self,
        state: &mut State,
        bridge: &LinkRef,
        look: &UplinkLook,
    ) -> Result<(), DriverError> {
        self.forward(look)?;
        let settings = set_ipv4(bridge, &[(Ipv4Setting::RouteLocalnet, 1)]);
        let kernel = state.kernel(self.tables.name())?;
        kernel.route.run_one(&settings)?;
        Ok(())
    }

    /// Connects the containers of a bridge that somebody has deleted, and that is made anew. For those of a bridge that was only not seen by
    /// this process yet, it changes nothing.
    fn connect_again(&self, state: &mut State, bridge: u32) -> Result<(), DriverError> {
        let of_it = state.attachments.iter();
        let of_it = of_it.filter(|(_, known)| known.bridge == self.settings.name);
        let hosts: Vec<LinkRef> = of_it.map(|(host, _)| host.clone().into()).collect();
        let route = &mut state.kernel(self.tables.name())?.route;
        for some in hosts.chunks(CONNECTED_AT_ONCE) {
            let requests = some.iter().flat_map(|host| {
                [set_master(host, bridge), hairpin(host)]
                    .map(|request| request.done_by(&[Errno::ENODEV]))
            });
            route.run(&requests.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn make_bridge(&self, route: &mut Socket) -> Result<Link, DriverError> {
        let name = &self.settings.name;
        let bridge = Bridge {
            link: NewLink {
                mtu: self.settings.mtu,
                // As one that was there before, and containers know.
                mac: Some(mac_of(self.gateways.first().map(|first| first.address()))),
                ..NewLink::new(name.clone())
            },
        };
        // A plugin of another daemon may make it at the same time.
        route.run_one(&bridge.create().done_by(&[Errno::EEXIST]))?;
        reach(CrashPoint::BridgeMade);
        let made = find_link(route, &name.clone().into())?;
        made.ok_or_else(|| {
            let gone = NetlinkError::Value {
                value: format!("the bridge {name}"),
                reason: "it was deleted by somebody else right after it was made",
            };
            gone.into()
        })
    }

    /// Disables IPv6 of the bridge itself, so that the node takes no packet of it from containers.
    fn disable_ipv6(&self) -> Result<(), DriverError> {
        match set_ipv6(&self.settings.name, Ipv6Setting::DisableIpv6, 1) {
            Err(error) if !is_missing(&error) => Err(error.into()),
            // A kernel without IPv6 has no such parameter.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Kernel parameters of a bridge that is a gateway, in the namespace of the calling thread: IPv6 if it has a subnet of it, and no
    /// addresses or routes by advertisements of containers.
    fn allow_ipv6(&self) -> Result<(), DriverError> {
        let name = &self.settings.name;
        let accept_ra = set_ipv6(name, Ipv6Setting::AcceptRa, 0);
        if self.families.contains(&NftFamily::Ip6) {
            accept_ra?;
            // As the node may have it by default.
            set_ipv6(name, Ipv6Setting::DisableIpv6, 0)?;
            // Else the kernel takes its addresses when somebody sets it down. Also a mark: see `works_without_forwarding`.
            set_ipv6(name, Ipv6Setting::KeepAddrOnDown, KEPT_ADDRESSES)?;
        } else if !accept_ra.as_ref().err().is_none_or(is_missing) {
            // A kernel without IPv6 has no such parameter.
            accept_ra?;
        }
        Ok(())
    }

    /// Looks whether the node would lose addresses and routes that routers have told it, as soon as it forwards for this bridge: who asks for
    /// a bridge may be on another node. If the bridge has had IPv6, the node has forwarded for it before, and somebody has switched that
    /// off: if it has IPv4 too, containers are connected, and forwarding of IPv6 stays off. Asks the kernel alone, and waits for no other call.
    ///
    /// # Errors
    /// [`DriverError::RoutersIgnored`], [`DriverError::Links`].
    pub fn keep_routers(&self) -> Result<(), DriverError> {
        self.look_at_uplinks().map(drop)
    }

    /// The same, with what was found.
    pub(super) fn look_at_uplinks(&self) -> Result<UplinkLook, DriverError> {
        let forwards = self.settings.is_gateway && self.families.contains(&NftFamily::Ip6);
        if !forwards {
            return Ok(UplinkLook::default());
        }
        match would_ignore_routers(&[])? {
            Some(interface) if !self.works_without_forwarding()? => {
                Err(DriverError::RoutersIgnored {
                    bridge: self.settings.name.to_string(),
                    interface,
                })
            }
            listens => Ok(UplinkLook { listens }),
        }
    }

    /// Returns whether containers are connected while the node does not forward IPv6: the bridge has had IPv6 before, and has IPv4 beside it. That
    /// it has [`KEPT_ADDRESSES`] says that this driver has set it up with IPv6, also if others have taken the addresses since: it gets them back. One that plugins have made has the addresses alone.
    fn works_without_forwarding(&self) -> Result<bool, DriverError> {
        let name = &self.settings.name;
        if !self.families.contains(&NftFamily::Ip4) {
            return Ok(false);
        }
        if has_ipv6_setting(name, Ipv6Setting::KeepAddrOnDown, KEPT_ADDRESSES)? {
            return Ok(true);
        }
        let mut route = Socket::open(Family::Route)?;
        let Some(link) = find_link(&mut route, &name.clone().into())? else {
            return Ok(false);
        };
        let all = list_addresses(&mut route)?;
        // Of one that is a duplicate, nobody knows whether it was ever in use.
        let of_bridge = |held: &&HeldAddress| {
            held.address.link == link.index && held.state != AddressState::Duplicate
        };
        let has = |gateway: IpAddr| {
            let mut held = all.iter().filter(of_bridge);
            held.any(|held| held.address.prefix.address() == gateway)
        };
        let mut of_ipv6 = self.gateways.iter().map(|gateway| gateway.address());
        Ok(of_ipv6.all(|gateway| gateway.is_ipv4() || has(gateway)))
    }

    /// Lets the node forward packets, but not of IPv6 where it would have lost by that what routers tell it.
    fn forward(&self, look: &UplinkLook) -> Result<(), DriverError> {
        for family in &self.families {
            let (family, version) = match family {
                NftFamily::Ip4 => (IpFamily::V4, 4),
                NftFamily::Ip6 => (IpFamily::V6, 6),
                // What a bridge forwards by itself.
                NftFamily::Bridge => continue,
            };
            if family == IpFamily::V6
                && let Some(uplink) = &look.listens
            {
                tracing::warn!(
                    interface = self.settings.name.as_str(),
                    "the node does not forward packets of IPv6, and would lose what {uplink} learns from routers if it did: containers reach nothing beyond the node by IPv6, nor do other machines reach their ports. Set accept_ra=2 of each such interface, and then net.ipv6.conf.all.forwarding=1, also in /etc/sysctl.d: `switchyard doctor` has the command (SY103)"
                );
                continue;
            }
            if enable_forwarding(family)? {
                tracing::info!(
                    interface = self.settings.name.as_str(),
                    "the node forwards packets of IPv{version} from now on, as a bridge of the gateway needs it"
                );
            }
        }
        Ok(())
    }
}

/// Returns whether there is no such kernel parameter.
fn is_missing(error: &NetlinkError) -> bool {
    matches!(error, NetlinkError::Parameter { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// Looks whether the kernel has bridges and pairs of devices, in a network namespace that ends at once.
pub(super) fn probe_links() -> Result<(), NetlinkError> {
    let failed = |source: io::Error| NetlinkError::Socket {
        doing: "make a network namespace to look what the kernel can do".to_owned(),
        source,
    };
    thread::scope(|scope| {
        let look = move || {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| failed(errno.into()))?;
            make_links()
        };
        let looking = thread::Builder::new()
            .name("probe".to_owned())
            .spawn_scoped(scope, look)
            .map_err(failed)?;
        looking
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn make_links() -> Result<(), NetlinkError> {
    let link = |name| Ok::<_, NetlinkError>(NewLink::new(LinkName::new(name)?));
    let pair = Veth {
        link: link("probe1")?,
        master: None,
        peer: link("probe2")?,
        peer_namespace: NetNs::current()?,
    };
    let bridge = Bridge {
        link: link("probe0")?,
    };
    let mut socket = Socket::open(Family::Route)?;
    socket.run(&[bridge.create(), pair.create()]).map(drop)
}
