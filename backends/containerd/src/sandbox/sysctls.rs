//! Kernel parameters of a sandbox: when each is set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use switchyard_core::Result;
use switchyard_core::spec::{SandboxNetwork, SandboxSpec};
use switchyard_core::sysctl::{SysctlName, SysctlNamespace};
use switchyard_namespaces as namespaces;

use crate::base::error::from_namespaces;

/// When a kernel parameter of a sandbox is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SetAt {
    /// When its namespaces are created, before anything is in them: plugins and connections find it set.
    Creation,
    /// When the existing network namespace is joined to which it belongs.
    Joining,
    /// When the plugins have made the interface to which it belongs.
    Attachment,
}

impl SetAt {
    fn of(network: &SandboxNetwork, parameter: &str) -> Self {
        let name = SysctlName::parse(parameter);
        let name = name.filter(|name| name.namespace() == Some(SysctlNamespace::Network));
        match (name, network) {
            (Some(_), SandboxNetwork::Joined(_)) => Self::Joining,
            (Some(name), SandboxNetwork::Pod(_)) if name.interface().is_some() => Self::Attachment,
            (
                Some(_) | None,
                SandboxNetwork::Host
                | SandboxNetwork::Pod(_)
                | SandboxNetwork::Isolated
                | SandboxNetwork::Joined(_),
            ) => Self::Creation,
        }
    }

    /// The parameters of a sandbox that are set then.
    pub(super) fn parameters(self, spec: &SandboxSpec) -> BTreeMap<String, String> {
        let is_now = |name: &str| Self::of(&spec.network, name) == self;
        spec.sysctls
            .iter()
            .filter(|(name, _)| is_now(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

/// Sets the kernel parameters of interfaces that plugins have made in the network namespace of a sandbox.
pub(super) async fn set_for_interfaces(spec: &SandboxSpec, netns: PathBuf) -> Result<()> {
    let parameters = SetAt::Attachment.parameters(spec);
    if parameters.is_empty() {
        return Ok(());
    }
    namespaces::tasks::set_sysctls(netns, parameters)
        .await
        .map_err(from_namespaces)
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
        for (name, of_pod, of_joined) in [
            (
                "net.ipv4.conf.eth0.rp_filter",
                SetAt::Attachment,
                SetAt::Joining,
            ),
            (
                "net.ipv6.neigh.eth0.gc_stale_time",
                SetAt::Attachment,
                SetAt::Joining,
            ),
            (
                "net/ipv4/conf/eth0.1/forwarding",
                SetAt::Attachment,
                SetAt::Joining,
            ),
            (
                "net.mpls.conf.net1.input",
                SetAt::Attachment,
                SetAt::Joining,
            ),
            (
                "net.ipv6.conf.all.disable_ipv6",
                SetAt::Creation,
                SetAt::Joining,
            ),
            (
                "net.ipv4.conf.lo.rp_filter",
                SetAt::Creation,
                SetAt::Joining,
            ),
            ("net.core.somaxconn", SetAt::Creation, SetAt::Joining),
            ("kernel.msgmax", SetAt::Creation, SetAt::Creation),
        ] {
            assert_eq!(SetAt::of(&pod, name), of_pod, "{name}");
            assert_eq!(SetAt::of(&joined, name), of_joined, "{name}");
            assert_eq!(SetAt::of(&isolated, name), SetAt::Creation, "{name}");
        }
    }
}
