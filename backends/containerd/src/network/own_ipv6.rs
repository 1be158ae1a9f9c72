//! The range of IPv6 that the gateway's own bridge has although its configuration names none (ADR 118).
//!
//! ```text
//! <state>/network/<bridge>.ipv6    the range; "none"; or "withheld" and the range, of a bridge that is made without it
//!
//! at a start   the bridge is there     it has what the file says; without a file it has none, and the file says so from then on
//!              it is yet to be made    it gets a range, unless something is in the way; the file says it before the bridge is made
//! ```
//!
//! What is in the way is looked at again before a bridge is made anew, as after a reboot: what an operator has set may not be set any more, and a
//! node that learns its routes from routers must not lose them by a range that nobody asked for. The addresses of the bridge say nothing about the
//! decision: it has none before it is set up, and the kernel takes those of IPv6 from a device that is set down.
//!
//! The range follows from the machine id and the name of the bridge: it is the same whenever it is made, and another one on each node.

use std::fmt;
use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use ring::hmac::{self, HMAC_SHA256};
use switchyard_core::spec::Subnet;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::if_present;
use switchyard_linux::report;
use switchyard_namespaces::has_device;
use switchyard_network::driver::DriverError;
use switchyard_network::netlink::{IpFamily, is_forwarding, would_ignore_routers};
use thiserror::Error;

use super::bridge::IPV6_MTU_MIN;
use super::native::check_kernel;
use super::pod_bridge::parsed;
use super::routes::{Conflict, Routes};
use crate::base::config;
use crate::base::fs::{create_private_dir_blocking, write_durable};
use crate::base::layout::Layout;

/// The file with the id of the node: 32 hexadecimal digits, or `uninitialized` while it has none.
const MACHINE_ID: &str = "/etc/machine-id";
/// The kernel parameter by which an operator disables IPv6.
const DISABLED: &str = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
/// Key with which the ids of applications are made, so that nobody learns the machine id from a range. It never changes.
const APPLICATION: [u8; 16] = 0xd90c_8e7a_8e31_e2bd_d8fc_7e0a_3b24_1511_u128.to_be_bytes();
/// The content of a file of a bridge that has no range by itself.
const NONE: &str = "none";
/// The word before the range that a bridge is made without.
const WITHHELD: &str = "withheld";
/// The length of the prefix of a range.
const PREFIX: u8 = 64;

/// Content of the file of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RangeRecord {
    /// It has no range, and gets none.
    NoRange,
    Range(Subnet),
    /// It is made without this range, since something was in the way. The next one of its name may have it.
    Withheld(Subnet),
}

/// Result of looking for the file of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FoundRecord {
    Missing,
    /// Nothing that this version understands, or that can be read.
    Strange,
    Known(RangeRecord),
}

/// Step for the range of a bridge at a start.
#[derive(Debug, PartialEq, Eq)]
enum RangeStep {
    /// The bridge has this range by itself, or none.
    Keep(Option<Subnet>),
    /// It has none, and that is on record from now on.
    Note(RangeRecord),
    /// It is to be made with a range, which is this one if one is on record, unless something is in the way.
    Look(Option<Subnet>),
}

/// Reason why a bridge that is to be made has no range by itself.
#[derive(Debug, Error)]
enum RangeObstacle {
    #[error("IPv6 is disabled on the node ({DISABLED} is 1)")]
    Disabled,
    #[error(
        "the node does not forward packets of IPv6 yet, and has no default route that would show what it loses by that"
    )]
    NoUplink,
    #[error(
        "the node does not forward packets of IPv6 yet, and {0} would not listen to routers any more if it did: accept_ra is 1"
    )]
    RoutersIgnored(String),
    #[error("{MACHINE_ID} has no id of the node")]
    NoMachineId,
    #[error("{range} is taken: {why}")]
    Taken { range: Subnet, why: String },
    #[error("nobody knows what is free")]
    Unknown(#[source] switchyard_core::Error),
    #[error("the kernel cannot do what it takes")]
    Kernel(#[from] DriverError),
}

// === impl config::BridgeConfig ===

impl config::BridgeConfig {
    /// Returns whether the bridge may have a range of IPv6 by itself: it is allowed, and no other one is configured.
    #[must_use]
    pub fn takes_ipv6(&self) -> bool {
        let ranges = parsed(&self.subnets);
        let has_one = ranges.iter().any(|range| range.first().is_ipv6());
        let fits = self.mtu == 0 || self.mtu >= IPV6_MTU_MIN;
        self.ipv6 && fits && !has_one
    }

    /// The file that says which range of IPv6 the bridge has by itself, in this state directory.
    #[must_use]
    pub fn ipv6_record(&self, state: &Path) -> PathBuf {
        state.join("network").join(format!("{}.ipv6", self.name))
    }

    /// The range of IPv6 that the bridge has by itself while it exists, as the text of its file says, if it has one.
    #[must_use]
    pub fn recorded_ipv6(&self, text: &str) -> Option<Subnet> {
        let Some(RangeRecord::Range(range)) = RangeRecord::read(text) else {
            return None;
        };
        self.takes_ipv6().then_some(range)
    }
}

// === impl RangeRecord ===

impl RangeRecord {
    /// Parses a text. Only a range that this version could have made counts. Pure.
    fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == NONE {
            return Some(Self::NoRange);
        }
        match text.strip_prefix(WITHHELD) {
            Some(rest) => made_range(rest.strip_prefix(' ')?).map(Self::Withheld),
            None => made_range(text).map(Self::Range),
        }
    }
}

impl fmt::Display for RangeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRange => f.write_str(NONE),
            Self::Range(range) => write!(f, "{range}"),
            Self::Withheld(range) => write!(f, "{WITHHELD} {range}"),
        }
    }
}

/// The configuration of networks as it is in force: with the range of IPv6 that the gateway's own bridge has by itself, if it has one. Reads small
/// files of the kernel, and writes down what was decided. What fails is logged, and leaves the bridge without. Blocks.
pub(crate) fn with_own_ipv6(
    network: &config::NetworkConfig,
    layout: &Layout,
) -> config::NetworkConfig {
    let mut network = network.clone();
    if network.bridge.takes_ipv6() {
        let range = own_range(&network, layout.state());
        let bridge = &mut network.bridge;
        bridge.subnets.extend(range.map(|range| range.to_string()));
    }
    network
}

fn own_range(network: &config::NetworkConfig, state: &Path) -> Option<Subnet> {
    let bridge = &network.bridge;
    let file = bridge.ipv6_record(state);
    let found = read_record(&file);
    let known = match step(found, has_device(&bridge.name), bridge.is_native()) {
        RangeStep::Keep(range) => return range,
        RangeStep::Note(record) => {
            note(&file, record);
            return None;
        }
        RangeStep::Look(known) => known,
    };
    let looked = look(network, known).inspect_err(|obstacle| tell(&bridge.name, obstacle));
    let withheld = known.map(RangeRecord::Withheld);
    let decided = looked.as_ref().ok().copied().map(RangeRecord::Range);
    // Without a range that has ever been on record there is nothing to withhold.
    let record = decided.or(withheld)?;
    let is_noted = FoundRecord::Known(record) == found || note(&file, record);
    looked.ok().filter(|_| is_noted)
}

/// Returns what is done about a bridge with such a record. One that exists keeps what it has, by whichever driver, since containers may
/// have addresses of it. Pure.
fn step(found: FoundRecord, is_there: bool, is_native: bool) -> RangeStep {
    let record = match found {
        FoundRecord::Known(record) => record,
        FoundRecord::Strange => return RangeStep::Keep(None),
        FoundRecord::Missing => {
            return match (is_there, is_native) {
                (true, true) => RangeStep::Note(RangeRecord::NoRange),
                (false, true) => RangeStep::Look(None),
                (_, false) => RangeStep::Keep(None),
            };
        }
    };
    match (record, is_there, is_native) {
        (RangeRecord::Range(range), true, _) => RangeStep::Keep(Some(range)),
        (RangeRecord::Range(range) | RangeRecord::Withheld(range), false, true) => {
            RangeStep::Look(Some(range))
        }
        // Plugins are to make it, with the configured ranges alone.
        (RangeRecord::Range(range), false, false) => RangeStep::Note(RangeRecord::Withheld(range)),
        (RangeRecord::NoRange, _, _)
        | (RangeRecord::Withheld(_), true, _)
        | (RangeRecord::Withheld(_), _, false) => RangeStep::Keep(None),
    }
}

/// Looks whether a bridge that is to be made can have a range, which is the known one, if there is one.
fn look(network: &config::NetworkConfig, known: Option<Subnet>) -> Result<Subnet, RangeObstacle> {
    let name = &network.bridge.name;
    if fs::read_to_string(DISABLED).is_ok_and(|text| text.trim() == "1") {
        return Err(RangeObstacle::Disabled);
    }
    let routes = Routes::read(name).map_err(RangeObstacle::Unknown)?;
    check_forwarding(&routes.uplinks())?;
    let range = match known {
        Some(range) => range,
        None => {
            let text = fs::read_to_string(MACHINE_ID).unwrap_or_default();
            let machine = machine_id(&text).ok_or(RangeObstacle::NoMachineId)?;
            range_of(machine, name)
        }
    };
    let mut of_pods = parsed(&network.pods.subnets).into_iter();
    if let Some(pods) = of_pods.find(|pods| pods.overlaps(&range)) {
        let why = format!("network.pods.subnets has {pods}");
        return Err(RangeObstacle::Taken { range, why });
    }
    if let Some(Conflict { why, .. }) = routes.conflict_or_address(&range, name) {
        return Err(RangeObstacle::Taken { range, why });
    }
    check_kernel(name)?;
    Ok(range)
}

/// Looks whether the node may forward packets of IPv6 although nobody has asked for it.
fn check_forwarding(uplinks: &[String]) -> Result<(), RangeObstacle> {
    if is_forwarding(IpFamily::V6).map_err(DriverError::from)? {
        return Ok(());
    }
    if uplinks.is_empty() {
        return Err(RangeObstacle::NoUplink);
    }
    match would_ignore_routers(uplinks).map_err(DriverError::from)? {
        Some(interface) => Err(RangeObstacle::RoutersIgnored(interface)),
        None => Ok(()),
    }
}

fn read_record(file: &Path) -> FoundRecord {
    let text = match if_present(fs::read_to_string(file)) {
        Ok(None) => return FoundRecord::Missing,
        Ok(Some(text)) => text,
        Err(fault) => {
            tracing::warn!(path = %file.display(), error = report(&fault), "cannot read which range of IPv6 the gateway's own bridge has: it has none until the next start");
            return FoundRecord::Strange;
        }
    };
    let found = RangeRecord::read(&text).map_or(FoundRecord::Strange, FoundRecord::Known);
    if found == FoundRecord::Strange {
        tracing::warn!(path = %file.display(), "the file does not say which range of IPv6 the gateway's own bridge has: it has none");
    }
    found
}

/// The range in a text, if this version could have made it. Pure.
fn made_range(text: &str) -> Option<Subnet> {
    let all = Subnet::of(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0).into(), 8);
    let range: Subnet = text.parse().ok()?;
    (range.prefix() == PREFIX && all.contains_all(&range)).then_some(range)
}

/// Writes down what was decided. Returns whether it is on record.
fn note(file: &Path, record: RangeRecord) -> bool {
    let text = record.to_string();
    let written = create_private_dir_blocking(file.parent().unwrap_or(Path::new("/")))
        .and_then(|()| write_durable(file, format!("{text}\n").as_bytes(), 0o644));
    match &written {
        Ok(()) => {
            reach(CrashPoint::OwnIpv6Recorded);
            tracing::info!(
                path = %file.display(),
                what = text.as_str(),
                "the range of IPv6 that the gateway's own bridge has by itself is on record"
            );
        }
        Err(error) => tracing::warn!(
            path = %file.display(),
            what = text.as_str(),
            error = error.report(),
            "cannot write down which range of IPv6 the gateway's own bridge has: it has none until the next start"
        ),
    }
    written.is_ok()
}

fn tell(bridge: &str, obstacle: &RangeObstacle) {
    let reason = report(obstacle);
    if matches!(obstacle, RangeObstacle::Taken { .. }) {
        tracing::warn!(
            interface = bridge,
            reason,
            "the gateway's own bridge gets no range of IPv6: choose one by network.bridge.subnets, or set network.bridge.ipv6 = false"
        );
    } else {
        tracing::info!(
            interface = bridge,
            reason,
            "the gateway's own bridge gets no range of IPv6 by itself"
        );
    }
}

/// The id of the node, by the text of its file. Pure.
fn machine_id(text: &str) -> Option<[u8; 16]> {
    let id: [u8; 16] = hex::decode(text.trim()).ok()?.try_into().ok()?;
    (id != [0; 16]).then_some(id)
}

/// The range of a bridge of a node: a network of 48 bits for each node (RFC 4193), and a subnet of it for each name. Pure.
fn range_of(machine: [u8; 16], bridge: &str) -> Subnet {
    let node = keyed_hash(&machine, &APPLICATION);
    let node: &[u8] = node.as_ref();
    let subnet = keyed_hash(node, bridge.as_bytes());
    let subnet: &[u8] = subnet.as_ref();
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[1..6].copy_from_slice(&node[..5]);
    octets[6..8].copy_from_slice(&subnet[..2]);
    Subnet::of(Ipv6Addr::from(octets).into(), PREFIX)
}

/// HMAC with SHA-256. Pure.
fn keyed_hash(key: &[u8], message: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(HMAC_SHA256, key), message)
}

#[cfg(test)]
mod tests;
