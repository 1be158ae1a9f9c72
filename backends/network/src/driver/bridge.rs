//! The bridge itself: made by the first container that needs it, and set up as the containers need it.

use std::io::ErrorKind;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use switchyard_crash_points::{CrashPoint, reach};

use super::error::DriverError;
use super::{BridgeDriver, State};
use crate::netlink::{
    Address, Bridge, Family, IpFamily, Ipv4Setting, Ipv6Setting, Link, LinkName, LinkRef, Mac,
    NetNs, NetlinkError, NewLink, Socket, Veth, add_address, enable_forwarding, find_link,
    set_ipv4, set_ipv6, set_mac, set_up,
};
use crate::nft::NftFamily;

/// A bridge that is ready for a container.
pub(super) struct ReadyBridge {
    pub(super) index: u32,
    pub(super) mac: Mac,
}

impl BridgeDriver {
    /// Makes the bridge unless it is there, and sees to it that it is up, has its addresses, and has a table.
    pub(super) fn ready_bridge(&self, state: &mut State) -> Result<ReadyBridge, DriverError> {
        let name = &self.settings.name;
        let known = state.bridge;
        let kernel = state.kernel(&self.settings.table)?;
        let link = match find_link(&mut kernel.route, &name.clone().into())? {
            Some(link) => link,
            None => self.make_bridge(&mut kernel.route)?,
        };
        if link.kind.as_deref() != Some("bridge") {
            return Err(DriverError::NoBridge {
                name: name.to_string(),
                kind: link.kind.unwrap_or_else(|| "of hardware".to_owned()),
            });
        }
        let mac = link.mac.ok_or_else(|| NetlinkError::Value {
            value: format!("the bridge {name}"),
            reason: "it has no hardware address",
        })?;
        let reference = LinkRef::Index(link.index);
        let is_known = known == Some(link.index);
        let mut requests = Vec::new();
        if !is_known {
            // Else it would have the lowest address of its ports, and change it with them.
            requests.push(set_mac(&reference, mac));
            requests.push(set_ipv4(&reference, &[(Ipv4Setting::RouteLocalnet, 1)]));
        }
        requests.push(set_up(&reference));
        for prefix in &self.gateways {
            let address = Address {
                link: link.index,
                prefix: *prefix,
            };
            requests.push(add_address(&address).done_by(&[Errno::EEXIST]));
        }
        kernel.route.run(&requests)?;
        if !is_known {
            self.set_parameters()?;
            // It has the elements of the bridge, which containers need also if they publish nothing.
            self.restore_locked(state)?;
            state.bridge = Some(link.index);
        }
        Ok(ReadyBridge {
            index: link.index,
            mac,
        })
    }

    fn make_bridge(&self, route: &mut Socket) -> Result<Link, DriverError> {
        let name = &self.settings.name;
        let bridge = Bridge {
            link: NewLink {
                mtu: self.settings.mtu,
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

    /// Kernel parameters, of the namespace of the calling thread: forwarding, and no addresses or routes by advertisements of containers.
    fn set_parameters(&self) -> Result<(), DriverError> {
        let accept_ra = set_ipv6(&self.settings.name, Ipv6Setting::AcceptRa, 0);
        if self.families.contains(&NftFamily::Ip6) {
            accept_ra?;
            enable_forwarding(IpFamily::V6)?;
        } else if !accept_ra.as_ref().err().is_none_or(is_missing) {
            // A kernel without IPv6 has no such parameter.
            accept_ra?;
        }
        if self.families.contains(&NftFamily::Ip4) {
            enable_forwarding(IpFamily::V4)?;
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
    let outcome = thread::scope(|scope| {
        let looked = scope.spawn(|| {
            let failed = |source: Errno| NetlinkError::Socket {
                doing: "make a network namespace to look what the kernel can do".to_owned(),
                source: source.into(),
            };
            unshare(CloneFlags::CLONE_NEWNET).map_err(failed)?;
            make_links()
        });
        looked.join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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
