//! Request for the network of a sandbox, in the form of CNI.

use std::net::IpAddr;

use serde_json::{Map, Value};
use switchyard_cni::{self as cni, Attachment, Capabilities};
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{
    Bandwidth, CgroupPlacement, Dns, ID_PLACEHOLDER, PodNetwork, SandboxSpec, Subnet,
};
use switchyard_namespaces::Ns;

use super::forwarding::port_mapping;
use crate::base::layout::SandboxDirs;

/// The name of a sandbox's interface.
pub(super) const INTERFACE: &str = "eth0";
/// The burst of a rate limit, in bits: the largest that the kernel takes.
pub(super) const MAX_BURST_BITS: u64 = u32::MAX as u64;

/// The attachment that is requested from CNI. The first wanted address is also passed as `IP` in `CNI_ARGS`,
/// for plugins that read it there, if `IgnoreUnknown` makes the others ignore it.
pub(super) fn attachment(
    id: SandboxId,
    network: &PodNetwork,
    dirs: &SandboxDirs,
    wanted: &[IpAddr],
) -> Attachment {
    let PodNetwork {
        link: _,
        mac,
        ports,
        bandwidth,
        args,
        capabilities,
    } = network;
    let lenient = args
        .iter()
        .any(|(key, value)| key == "IgnoreUnknown" && matches!(value.as_str(), "1" | "true"));
    let id = id.to_string();
    let extra = capabilities
        .iter()
        .map(|(name, values)| {
            let values: Map<String, Value> = values
                .iter()
                .map(|(key, value)| (key.clone(), value.clone().into()))
                .collect();
            (name.clone(), Value::Object(values))
        })
        .collect();
    Attachment {
        container_id: id.clone(),
        netns: Some(dirs.pin(Ns::Net)),
        ifname: INTERFACE.to_owned(),
        args: args
            .iter()
            .map(|(key, value)| (key.clone(), value.replace(ID_PLACEHOLDER, &id)))
            .chain(
                wanted
                    .first()
                    .filter(|_| lenient)
                    .map(|ip| ("IP".to_owned(), ip.to_string())),
            )
            .collect(),
        capabilities: Capabilities {
            port_mappings: ports.iter().map(port_mapping).collect(),
            bandwidth: bandwidth.map(limits),
            ips: wanted.iter().map(ToString::to_string).collect(),
            mac: mac.map(|mac| mac.to_string()),
            extra,
            ..Capabilities::default()
        },
    }
}

/// Adds the values of well-known capabilities, which reach the plugins that declare them: the requested
/// resolver configuration and cgroup parent, and the owner's address ranges, one address from each.
pub(super) fn add_capabilities(
    capabilities: &mut Capabilities,
    spec: &SandboxSpec,
    ranges: &[Subnet],
) {
    capabilities.dns = spec.dns.as_ref().map(
        |Dns {
             servers,
             searches,
             options,
             host_defaults: _,
         }| {
            cni::Dns {
                servers: servers.clone(),
                searches: searches.clone(),
                options: options.clone(),
            }
        },
    );
    let (CgroupPlacement::Parent(group) | CgroupPlacement::Leaf { path: group, .. }) = &spec.cgroup;
    capabilities.cgroup_path = Some(group.display().to_string()).filter(|path| !path.is_empty());
    let pool = |range: &Subnet| {
        vec![cni::IpRange {
            subnet: range.to_string(),
            ..cni::IpRange::default()
        }]
    };
    capabilities.ip_ranges = ranges.iter().map(pool).collect();
}

fn limits(bandwidth: Bandwidth) -> cni::Bandwidth {
    let Bandwidth {
        ingress_bits,
        egress_bits,
    } = bandwidth;
    let burst = |rate: Option<u64>| rate.map_or(0, |_| MAX_BURST_BITS);
    cni::Bandwidth {
        ingress_rate: ingress_bits.unwrap_or(0),
        ingress_burst: burst(ingress_bits),
        egress_rate: egress_bits.unwrap_or(0),
        egress_burst: burst(egress_bits),
    }
}
