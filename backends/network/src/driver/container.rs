//! One container: its pair of devices, its limits, and what is set inside its network namespace.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use switchyard_crash_points::{CrashPoint, reach};

use super::BridgeDriver;
use super::attachment::{AttachRequest, LimitBits, Limits};
use super::bridge::ReadyBridge;
use super::error::DriverError;
use super::names::{ifb_link, mac_of};
use super::tables::State;
use crate::addresses::AssignedAddress;
use crate::netlink::{
    Address, Family, Ifb, IpPrefix, Ipv6Setting, Link, LinkName, LinkRef, Mac, NetNs, NetlinkError,
    NewLink, PortFlags, PortState, Rate, Request, Route, Socket, Veth, add_address, add_neighbour,
    add_route, delete_link, derive_link_local, disable_link_local, find_link, limit,
    redirect_ingress, set_ipv6, set_port, set_up,
};

/// The index of the loopback device in every network namespace.
const LOOPBACK: u32 = 1;
const LOOPBACK_NAME: &str = "lo";
/// Number of looks at whether the bridge forwards the frames of a new port, and the pause between them. With the spanning tree
/// protocol, which an operator may have switched on, it takes half a minute: the container is not kept waiting for that.
const LOOKS: usize = 50;
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// Errors by which kernels without IPv6 refuse to decide on a link-local address: there is none then.
const WITHOUT_IPV6: &[Errno] = &[Errno::EAFNOSUPPORT, Errno::EOPNOTSUPP, Errno::EINVAL];

impl BridgeDriver {
    /// Makes the devices of a container and sets all of its addresses and routes. Returns its hardware address. The bridge may not forward
    /// its frames yet: see [`forwarding_port`].
    pub(super) fn connect_links(
        &self,
        state: &mut State,
        request: &AttachRequest,
        namespace: &NetNs,
        bridge: &ReadyBridge,
        addresses: &[AssignedAddress],
    ) -> Result<Mac, DriverError> {
        let host = self.host_link(&request.holder);
        let mac = request
            .mac
            .unwrap_or_else(|| mac_of(addresses.first().map(|one| one.address)));
        let interface = LinkName::new(request.holder.interface())?;
        let pair = Veth {
            link: self.new_link(host.clone()),
            master: Some(bridge.index),
            peer: NewLink {
                mac: Some(mac),
                group: 0,
                ..self.new_link(interface.clone())
            },
            peer_namespace: namespace.clone(),
        };
        let route = &mut state.kernel(self.tables.name())?.route;
        make_pair(route, &pair)
            .map_err(|error| DriverError::of_port(error, &self.settings.name))?;
        reach(CrashPoint::PairMade);
        if request.limits != Limits::default() {
            self.limit_bandwidth(route, request, &host)?;
        }
        // Without the gateway's address, the bridge is nobody's neighbour.
        let gateway = self.settings.is_gateway.then_some(bridge);
        configure(
            namespace,
            &interface,
            addresses,
            gateway.map(|bridge| bridge.mac),
        )?;
        if let Some(bridge) = gateway {
            let known = addresses.iter();
            let known = known.map(|one| add_neighbour(bridge.index, one.address, mac));
            route.run(&known.collect::<Vec<_>>())?;
        }
        reach(CrashPoint::ContainerConfigured);
        Ok(mac)
    }

    fn new_link(&self, name: LinkName) -> NewLink {
        NewLink {
            mtu: self.settings.mtu,
            group: self.tables.group(),
            ..NewLink::new(name)
        }
    }

    fn limit_bandwidth(
        &self,
        route: &mut Socket,
        request: &AttachRequest,
        name: &LinkName,
    ) -> Result<(), DriverError> {
        let host = find_link(route, &name.clone().into())?.ok_or_else(|| gone(name))?;
        let rate = |bits: LimitBits| Rate::new(bits.bits_per_second, bits.burst_bits, host.mtu);
        if let Some(bits) = request.limits.into {
            route.run_one(&limit(host.index, rate(bits)?))?;
        }
        let Some(bits) = request.limits.out else {
            return Ok(());
        };
        let name = ifb_link(name);
        let ifb = Ifb {
            link: NewLink {
                mtu: Some(host.mtu),
                ..self.new_link(name.clone())
            },
        };
        // One of an attachment of before, which was not detached.
        route.run(&[delete_link(&name.clone().into()), ifb.create()])?;
        let by = find_link(route, &name.clone().into())?.ok_or_else(|| gone(&name))?;
        let [queue, filter] = redirect_ingress(host.index, by.index);
        route.run(&[limit(by.index, rate(bits)?), queue, filter])?;
        Ok(())
    }
}

/// Lets a container reach itself by its own published port, whose packets come back by the port of the bridge on which they arrived.
pub(super) fn hairpin(host: &LinkRef) -> Request {
    let flags = PortFlags {
        hairpin: Some(true),
        ..PortFlags::default()
    };
    set_port(host, flags)
}

/// Makes both ends, instead of those of an attachment of the same holder that was not detached.
fn make_pair(route: &mut Socket, pair: &Veth) -> Result<(), NetlinkError> {
    let host = LinkRef::Name(pair.link.name.clone());
    let requests = [
        pair.create(),
        hairpin(&host),
        disable_link_local(&host).done_by(WITHOUT_IPV6),
    ];
    match route.run(&requests) {
        Err(error) if error.refusal() == Some(Errno::EEXIST) => {
            route.run_one(&delete_link(&host))?;
            route.run(&requests).map(drop)
        }
        made => made.map(drop),
    }
}

/// Sets addresses inside the network namespace of a container; and routes, if there is a gateway, with this hardware address.
fn configure(
    namespace: &NetNs,
    interface: &LinkName,
    addresses: &[AssignedAddress],
    gateway: Option<Mac>,
) -> Result<(), DriverError> {
    let has_ipv6 = addresses.iter().any(|one| one.address.is_ipv6());
    let mut inside = namespace.run(|| {
        if has_ipv6 {
            enable_ipv6(interface)?;
        }
        Socket::open(Family::Route)
    })??;
    let link = find_link(&mut inside, &interface.clone().into())?.ok_or_else(|| gone(interface))?;
    let requests = container_requests(link.index, addresses, gateway)?;
    inside.run(&requests)?;
    Ok(())
}

/// A namespace may have IPv6 disabled, as the node has, or as it is the default of some container engines: a container that gets an address
/// of it has it. Its own kernel parameters are set after this.
fn enable_ipv6(interface: &LinkName) -> Result<(), NetlinkError> {
    let loopback = LinkName::new(LOOPBACK_NAME)?;
    set_ipv6(&loopback, Ipv6Setting::DisableIpv6, 0)?;
    set_ipv6(interface, Ipv6Setting::DisableIpv6, 0)?;
    set_ipv6(interface, Ipv6Setting::KeepAddrOnDown, 1)
}

/// Returns the requests for all that is set inside, in one batch.
fn container_requests(
    link: u32,
    addresses: &[AssignedAddress],
    gateway: Option<Mac>,
) -> Result<Vec<Request>, NetlinkError> {
    let own = LinkRef::Index(link);
    let mut requests = vec![
        set_up(&LinkRef::Index(LOOPBACK)),
        // The namespace may have another default, as that of the node; pins know only this one.
        derive_link_local(&own).done_by(WITHOUT_IPV6),
        set_up(&own),
    ];
    for one in addresses {
        let prefix = IpPrefix::new(one.address, one.prefix)?;
        let all = match one.address {
            IpAddr::V4(_) => IpPrefix::ALL_IPV4,
            IpAddr::V6(_) => IpPrefix::ALL_IPV6,
        };
        requests.push(add_address(&Address { link, prefix }));
        let Some(gateway) = gateway else {
            continue;
        };
        requests.push(add_route(&Route::by_gateway(all, one.gateway, link))?);
        // Without it the first packet waits for an answer, a second longer if the first question is lost.
        requests.push(add_neighbour(link, one.gateway, gateway));
    }
    Ok(requests)
}

/// The host's end, once the bridge forwards its frames, or when that takes too long. Since Linux 6.7 the first look makes the kernel see the
/// carrier of a new port; before, it does so by itself within some milliseconds.
pub(super) fn forwarding_port(host: &LinkName) -> Result<Link, NetlinkError> {
    let mut route = Socket::open(Family::Route)?;
    let mut looks = 0;
    loop {
        let link = find_link(&mut route, &host.clone().into())?.ok_or_else(|| gone(host))?;
        looks += 1;
        if link.port == Some(PortState::Forwarding) || looks == LOOKS {
            return Ok(link);
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

fn gone(name: &LinkName) -> NetlinkError {
    NetlinkError::Value {
        value: format!("the network device {name}"),
        reason: "it was deleted by somebody else right after it was made",
    }
}
