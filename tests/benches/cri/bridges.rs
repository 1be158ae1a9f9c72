//! The bridges that the benchmark makes.

use std::path::Path;

use switchyard_network::netlink::{Family, LinkName, Socket, delete_link};

/// The bridge of all pods on the CNI configuration, and its subnet, which must be free on the node.
pub(crate) const BRIDGE: &str = "swscale0";
pub(crate) const SUBNET: &str = "10.254.176.0/20";
/// The bridge of our pods if the daemon attaches them itself, with another subnet.
const OUR_BRIDGE: &str = "swscale1";
const OUR_SUBNET: &str = "10.254.144.0/20";
/// Both.
pub(crate) const BRIDGES: [&str; 2] = [BRIDGE, OUR_BRIDGE];
/// A subnet of the same size for the gateway's own bridge.
pub(crate) const BRIDGE_SUBNET: &str = "10.254.160.0/20";

/// The bridge of our pods, which is deleted with this. The daemon that has made it has to be gone by then.
pub(crate) struct OurPodBridge;

/// The settings by which our pods are on a bridge of the gateway.
pub(crate) fn pod_settings() -> String {
    format!(
        "[cri]\nnetwork = \"bridge\"\n[network.pods]\nname = {OUR_BRIDGE:?}\nsubnets = [{OUR_SUBNET:?}]\n"
    )
}

/// Deletes a bridge of the benchmark; says so if it cannot.
pub(crate) fn delete_bridge(name: &str) {
    let bridge = LinkName::new(name).map(|name| delete_link(&name.into()));
    let deleted = bridge.and_then(|bridge| {
        let mut socket = Socket::open(Family::Route)?;
        socket.run_one(&bridge)
    });
    if let Err(error) = deleted {
        eprintln!("the bridge {name} stays: {error}");
    }
}

impl Drop for OurPodBridge {
    fn drop(&mut self) {
        if Path::new("/sys/class/net").join(OUR_BRIDGE).exists() {
            delete_bridge(OUR_BRIDGE);
        }
    }
}
