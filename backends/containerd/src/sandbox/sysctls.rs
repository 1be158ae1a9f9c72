//! Kernel parameters of a sandbox: when each is set.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use switchyard_core::Result;
use switchyard_core::spec::{SandboxNetwork, SandboxSpec};
use switchyard_core::sysctl::{SysctlName, SysctlNamespace};
use switchyard_namespaces as namespaces;

use crate::base::error::from_namespaces;

/// Moment at which a kernel parameter of a sandbox is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SetAt {
    /// Creation of its namespaces, before anything is in them: plugins and connections find it set.
    Creation,
    /// Joining of the existing network namespace to which it belongs.
    Joining,
    /// Attachment, when the plugins have made the interface to which it belongs.
    Attachment,
}

impl SetAt {
    /// The moments at which a parameter is set.
    fn of(network: &SandboxNetwork, parameter: &str) -> &'static [Self] {
        let name = SysctlName::parse(parameter);
        let name = name.filter(|name| name.namespace() == Some(SysctlNamespace::Network));
        match (name, network) {
            (Some(_), SandboxNetwork::Joined(_)) => &[Self::Joining],
            (Some(name), SandboxNetwork::Pod(_)) if name.interface().is_some() => {
                &[Self::Attachment]
            }
            // The plugin bridge enables IPv6 on the loopback device and on the interface, whatever has been set.
            (Some(name), SandboxNetwork::Pod(_)) if name.is_of_all_interfaces() => {
                &[Self::Creation, Self::Attachment]
            }
            (
                Some(_) | None,
                SandboxNetwork::Host
                | SandboxNetwork::Pod(_)
                | SandboxNetwork::Isolated
                | SandboxNetwork::Joined(_),
            ) => &[Self::Creation],
        }
    }

    /// The parameters of a sandbox that are set then.
    pub(super) fn parameters(self, spec: &SandboxSpec) -> BTreeMap<String, String> {
        let is_now = |name: &str| Self::of(&spec.network, name).contains(&self);
        spec.sysctls
            .iter()
            .filter(|(name, _)| is_now(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

/// Sets the kernel parameters of interfaces in the network namespace of a sandbox to which plugins have given these addresses.
/// Returns those that it still has: without IPv6, the kernel has removed those of IPv6, unless there is no other.
pub(super) async fn set_for_interfaces(
    spec: &SandboxSpec,
    netns: PathBuf,
    ips: Vec<IpAddr>,
) -> Result<Vec<IpAddr>> {
    let parameters = SetAt::Attachment.parameters(spec);
    if parameters.is_empty() {
        return Ok(ips);
    }
    let of_addresses =
        |name: &String| SysctlName::parse(name).is_some_and(|name| name.is_of_ipv6_addresses());
    let has_ipv6 = ips.iter().any(IpAddr::is_ipv6);
    let are_changed = has_ipv6 && parameters.keys().any(of_addresses);
    namespaces::tasks::set_sysctls(netns.clone(), parameters)
        .await
        .map_err(from_namespaces)?;
    if !are_changed {
        return Ok(ips);
    }
    let left = namespaces::tasks::addresses(netns)
        .await
        .map_err(from_namespaces)?;
    Ok(still_there(ips, &left))
}

/// The addresses of a sandbox that are among those that are left in its namespace. Of IPv4 none is removed.
fn still_there(ips: Vec<IpAddr>, left: &[IpAddr]) -> Vec<IpAddr> {
    let there: Vec<IpAddr> = ips
        .iter()
        .copied()
        .filter(|ip| ip.is_ipv4() || left.contains(ip))
        .collect();
    // A pod without an address has failed for a kubelet: as on containerd, it has those that the plugins gave it.
    if there.is_empty() { ips } else { there }
}

#[cfg(test)]
mod tests {
    use switchyard_core::spec::PodNetwork;

    use super::*;

    #[test]
    fn parameter_of_an_interface_is_set_once_the_interface_is_there() {
        let pod = SandboxNetwork::Pod(PodNetwork::default());
        let joined = SandboxNetwork::Joined("/run/netns/x".into());
        let isolated = SandboxNetwork::Isolated;
        let [creation, joining, attachment] =
            [[SetAt::Creation], [SetAt::Joining], [SetAt::Attachment]];
        let both = [SetAt::Creation, SetAt::Attachment];
        let cases: &[(&str, &[SetAt], &[SetAt])] = &[
            ("net.ipv4.conf.eth0.rp_filter", &attachment, &joining),
            ("net.ipv6.neigh.eth0.gc_stale_time", &attachment, &joining),
            ("net/ipv4/conf/eth0.1/forwarding", &attachment, &joining),
            ("net.mpls.conf.net1.input", &attachment, &joining),
            ("net.ipv6.conf.eth0.disable_ipv6", &attachment, &joining),
            ("net.ipv6.conf.all.disable_ipv6", &both, &joining),
            ("net.ipv6.conf.default.accept_dad", &both, &joining),
            ("net.ipv4.conf.lo.rp_filter", &both, &joining),
            ("net.ipv4.ip_forward", &creation, &joining),
            ("net.core.somaxconn", &creation, &joining),
            ("kernel.msgmax", &creation, &creation),
        ];
        for (name, of_pod, of_joined) in cases {
            assert_eq!(SetAt::of(&pod, name), *of_pod, "{name}");
            assert_eq!(SetAt::of(&joined, name), *of_joined, "{name}");
            assert_eq!(SetAt::of(&isolated, name), creation, "{name}");
        }
    }

    #[test]
    fn addresses_that_the_kernel_has_removed_are_none_of_the_sandbox() {
        let list = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let cases: &[(&[&str], &[&str], &[&str])] = &[
            (&["10.0.0.2", "fd00::2"], &["10.0.0.2"], &["10.0.0.2"]),
            (&["fd00::2", "10.0.0.2"], &["10.0.0.2"], &["10.0.0.2"]),
            (
                &["10.0.0.2", "fd00::2"],
                &["fd00::2", "10.0.0.2"],
                &["10.0.0.2", "fd00::2"],
            ),
            // A link-local address of IPv4 is not listed.
            (&["169.254.1.2", "fd00::2"], &[], &["169.254.1.2"]),
            (&["fd00::2"], &[], &["fd00::2"]),
        ];
        for (ips, left, expected) in cases {
            let found = still_there(list(ips), &list(left));
            assert_eq!(found, list(expected), "{ips:?} {left:?}");
        }
    }
}
