//! Settings for what a bridge does with one of its ports.

use super::link::header;
use super::message::Request;
use super::names::LinkRef;
use super::uapi::{
    IFLA_BRPORT_ISOLATED, IFLA_BRPORT_LEARNING, IFLA_BRPORT_MODE, IFLA_BRPORT_UNICAST_FLOOD,
    IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND, IFLA_LINKINFO, RTM_NEWLINK,
};

/// Settings of a port of a bridge; what is `None` stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortFlags {
    /// True if a frame may leave by the port by which it came: a container reaches its own published port.
    pub hairpin: Option<bool>,
    /// True if frames of other ports with this flag are kept away from it: neighbours do not reach each other, the node reaches both.
    pub isolated: Option<bool>,
    /// True if the bridge learns hardware addresses from its frames.
    pub learning: Option<bool>,
    /// True if it gets frames for hardware addresses that the bridge does not know.
    pub unicast_flood: Option<bool>,
}

/// Changes the settings of a port. The kernel leaves them out when it makes a device: this is a request of its own, and may be in the same
/// batch. Refused with `EINVAL` or `EOPNOTSUPP` if the device is no port of a bridge.
#[must_use]
pub fn set_port(link: &LinkRef, flags: PortFlags) -> Request {
    let PortFlags {
        hairpin,
        isolated,
        learning,
        unicast_flood,
    } = flags;
    let values = [
        (IFLA_BRPORT_MODE, hairpin),
        (IFLA_BRPORT_ISOLATED, isolated),
        (IFLA_BRPORT_LEARNING, learning),
        (IFLA_BRPORT_UNICAST_FLOOD, unicast_flood),
    ];
    let doing = format!("change settings of the bridge's port {link}");
    // RTM_SETLINK does not know these attributes.
    Request::new(RTM_NEWLINK, 0, &header(link.index(), 0, 0), doing)
        .acknowledged()
        .with(|all| {
            link.put(all);
            all.nest(IFLA_LINKINFO, |info| {
                info.text(IFLA_INFO_SLAVE_KIND, "bridge");
                info.nest(IFLA_INFO_SLAVE_DATA, |data| {
                    for (kind, value) in values {
                        if let Some(value) = value {
                            data.u8(kind, value.into());
                        }
                    }
                });
            });
        })
}
