//! Routes.

use std::net::IpAddr;

use nix::errno::Errno;

use super::decode::{attributes, u32_at};
use super::error::NetlinkError;
use super::message::{Attributes, Request};
use super::names::{IpPrefix, check_family, family, put_address, read_address};
use super::socket::Socket;
use super::uapi::{
    AF_INET, AF_INET6, AF_UNSPEC, NLM_F_CREATE, NLM_F_EXCL, RT_SCOPE_LINK, RT_SCOPE_NOWHERE,
    RT_SCOPE_UNIVERSE, RT_TABLE_MAIN, RTA_DST, RTA_GATEWAY, RTA_OIF, RTA_PREFSRC, RTA_PRIORITY,
    RTA_TABLE, RTA_VIA, RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE, RTN_UNICAST, RTNH_F_ONLINK,
    RTPROT_STATIC,
};

/// Length of `struct rtmsg`.
const RTMSG: usize = 12;

/// A way to other machines, by one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Destination of the route. Bits of a host are left out.
    pub to: IpPrefix,
    /// The machine that passes packets on; else all are reached directly.
    pub gateway: Option<IpAddr>,
    /// True if the gateway is taken for a neighbour although no address of the device is in its network.
    pub is_on_link: bool,
    /// The index of the device.
    pub link: u32,
    /// The source address of packets that have none yet.
    pub source: Option<IpAddr>,
    /// The routing table; 254 is the one that is asked without rules.
    pub table: u32,
    /// Rank among routes to the same addresses: the one with the lower number is used. The kernel takes 0 of IPv6 for 1024.
    pub metric: u32,
}

// === impl Route ===

impl Route {
    /// A route to all of these addresses by a gateway, in the main table.
    #[must_use]
    pub const fn by_gateway(to: IpPrefix, gateway: IpAddr, link: u32) -> Self {
        Self {
            gateway: Some(gateway),
            ..Self::direct(to, link)
        }
    }

    /// A route to all of these addresses directly, in the main table.
    #[must_use]
    pub const fn direct(to: IpPrefix, link: u32) -> Self {
        Self {
            to,
            gateway: None,
            is_on_link: false,
            link,
            source: None,
            table: RT_TABLE_MAIN,
            metric: 0,
        }
    }

    /// Reads the body of `RTM_NEWROUTE`; nothing if it is too short for one, or no way by one device: to the node itself, to nobody, by
    /// several devices, or by a gateway of the other family.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let &[family, length, _, _, table, _, _, kind, ..] = body else {
            return None;
        };
        let all = match family {
            AF_INET => IpPrefix::ALL_IPV4,
            AF_INET6 => IpPrefix::ALL_IPV6,
            _ => return None,
        };
        let mut to = None;
        let mut link = None;
        let mut route = Self::direct(all, 0);
        route.table = table.into();
        route.is_on_link = u32_at(body, 8)? & RTNH_F_ONLINK != 0;
        for (kind, value) in attributes(body.get(RTMSG..)?) {
            match kind {
                RTA_DST => to = read_address(value),
                RTA_VIA => return None,
                RTA_GATEWAY => route.gateway = read_address(value),
                RTA_OIF => link = u32_at(value, 0),
                RTA_PREFSRC => route.source = read_address(value),
                RTA_TABLE => route.table = u32_at(value, 0).unwrap_or(route.table),
                RTA_PRIORITY => route.metric = u32_at(value, 0).unwrap_or_default(),
                _ => {}
            }
        }
        check_family(all.address(), [to, route.gateway, route.source]).ok()?;
        route.to = IpPrefix::new(to.unwrap_or_else(|| all.address()), length).ok()?;
        route.link = link?;
        (kind == RTN_UNICAST).then_some(route)
    }

    fn put(&self, all: &mut Attributes) {
        let to = self.to.network();
        if to.length() > 0 {
            put_address(all, RTA_DST, to.address());
        }
        if let Some(gateway) = self.gateway {
            put_address(all, RTA_GATEWAY, gateway);
        }
        if let Some(source) = self.source {
            put_address(all, RTA_PREFSRC, source);
        }
        all.u32(RTA_OIF, self.link);
        all.u32(RTA_TABLE, self.table);
        if self.metric != 0 {
            all.u32(RTA_PRIORITY, self.metric);
        }
    }

    fn request(
        &self,
        kind: u16,
        flags: u16,
        how: [u8; 3],
        doing: &str,
    ) -> Result<Request, NetlinkError> {
        check_family(self.to.address(), [self.gateway, self.source])?;
        let doing = format!("{doing} {}", said(self));
        let request = Request::new(kind, flags, &self.header(how), doing).acknowledged();
        Ok(request.with(|all| self.put(all)))
    }

    /// A `struct rtmsg`: family, lengths of destination and source, type of service, table, protocol, scope, type, flags. The table is
    /// among the attributes, which have room for its number.
    fn header(&self, how: [u8; 3]) -> [u8; RTMSG] {
        let flags = if self.is_on_link { RTNH_F_ONLINK } else { 0 };
        let mut bytes = [0; RTMSG];
        bytes[0] = family(self.to.address());
        bytes[1] = self.to.length();
        bytes[5..8].copy_from_slice(&how);
        bytes[8..].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }
}

/// Adds a route. Refused with `EEXIST` if there is one to the same addresses with the same metric in the table, and with `ENETUNREACH` or
/// `EHOSTUNREACH` if the gateway is no neighbour.
///
/// # Errors
/// [`NetlinkError::Value`] if its addresses are of different families.
pub fn add_route(route: &Route) -> Result<Request, NetlinkError> {
    let scope = if route.gateway.is_some() || route.to.address().is_ipv6() {
        RT_SCOPE_UNIVERSE
    } else {
        RT_SCOPE_LINK
    };
    let how = [RTPROT_STATIC, scope, RTN_UNICAST];
    route.request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, how, "add a route")
}

/// Deletes a route, whoever has added it. One that is gone, also with its device, is success.
///
/// # Errors
/// Those of [`add_route`].
pub fn delete_route(route: &Route) -> Result<Request, NetlinkError> {
    // Of any protocol, scope and type.
    let request = route.request(
        RTM_DELROUTE,
        0,
        [0, RT_SCOPE_NOWHERE, 0],
        "delete the route",
    )?;
    Ok(request.done_by(&[Errno::ESRCH, Errno::ENODEV]))
}

fn said(route: &Route) -> String {
    let Route { to, link, .. } = route;
    match route.gateway {
        Some(gateway) => format!("to {to} by {gateway} on device {link}"),
        None => format!("to {to} on device {link}"),
    }
}

/// All routes of the socket's namespace that lead by one device, of both families and in all tables.
///
/// # Errors
/// Those of [`Socket::list`].
pub fn list_routes(socket: &mut Socket) -> Result<Vec<Route>, NetlinkError> {
    let all = [AF_UNSPEC; RTMSG];
    let messages = socket.list(RTM_GETROUTE, &all, "list the routes")?;
    let routes = messages
        .iter()
        .filter(|message| message.kind == RTM_NEWROUTE);
    Ok(routes
        .filter_map(|message| Route::read(&message.body))
        .collect())
}
