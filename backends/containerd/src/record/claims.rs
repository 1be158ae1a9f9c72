//! Records of the node's resources that sandboxes and tasks claim: host ports, devices, CPU and memory.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use switchyard_core::spec::{ComputeClaim, HostPort, HostPorts, LeaseClaim, Protocol, Reserved};

/// The host ports of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct HostPortsRecord {
    group: String,
    ports: Vec<PortRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PortRecord {
    protocol: String,
    port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ip: Option<IpAddr>,
}

/// A lease of devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseRecord {
    token: String,
    slots: Vec<String>,
    /// The task asked for these devices by name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    named: bool,
}

/// The CPU and memory of the node that are reserved for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ComputeRecord {
    cpu_milli: u64,
    memory_bytes: u64,
    exclusive_cpus: bool,
}

// === impl HostPortsRecord ===

impl HostPortsRecord {
    pub(crate) fn from_core(claims: &HostPorts) -> Self {
        let HostPorts { group, ports } = claims;
        let port = |HostPort { protocol, port, ip }: &HostPort| PortRecord {
            protocol: protocol.as_str().to_owned(),
            port: *port,
            ip: *ip,
        };
        Self {
            group: group.clone(),
            ports: ports.iter().map(port).collect(),
        }
    }

    /// The name of the group that its sandbox is in; empty for none.
    pub(crate) fn group_name(&self) -> String {
        self.to_core().group_name().to_owned()
    }

    /// Ports of an unknown protocol are left out: no other sandbox can claim one in this version.
    pub(crate) fn to_core(&self) -> HostPorts {
        let port = |PortRecord { protocol, port, ip }: &PortRecord| {
            Some(HostPort {
                protocol: Protocol::parse(protocol)?,
                port: *port,
                ip: *ip,
            })
        };
        HostPorts {
            group: self.group.clone(),
            ports: self.ports.iter().filter_map(port).collect(),
        }
    }
}

// === impl LeaseRecord ===

impl LeaseRecord {
    pub(crate) fn from_core(claim: &LeaseClaim) -> Self {
        let LeaseClaim {
            token,
            slots,
            named,
        } = claim;
        Self {
            token: token.to_string(),
            slots: slots.iter().map(ToString::to_string).collect(),
            named: *named,
        }
    }

    /// `None` if the token or a slot is not valid.
    pub(crate) fn to_core(&self) -> Option<LeaseClaim> {
        let slots = self
            .slots
            .iter()
            .map(|slot| slot.parse().ok())
            .collect::<Option<_>>()?;
        Some(LeaseClaim {
            token: self.token.parse().ok()?,
            slots,
            named: self.named,
        })
    }
}

// === impl ComputeRecord ===

impl ComputeRecord {
    pub(crate) const fn from_core(claim: ComputeClaim) -> Self {
        let ComputeClaim {
            reserved:
                Reserved {
                    cpu_milli,
                    memory_bytes,
                },
            exclusive_cpus,
        } = claim;
        Self {
            cpu_milli,
            memory_bytes,
            exclusive_cpus,
        }
    }

    pub(crate) const fn to_core(self) -> ComputeClaim {
        let Self {
            cpu_milli,
            memory_bytes,
            exclusive_cpus,
        } = self;
        ComputeClaim {
            reserved: Reserved {
                cpu_milli,
                memory_bytes,
            },
            exclusive_cpus,
        }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use switchyard_core::id::LeaseToken;

    #[test]
    fn claims_survive() {
        let ports = [
            (Protocol::Tcp, None),
            (Protocol::Udp, Some("fd00::1".parse().unwrap())),
            (Protocol::Sctp, None),
        ];
        let ports = ports
            .map(|(protocol, ip)| HostPort {
                protocol,
                port: 8080,
                ip,
            })
            .to_vec();
        let claims = HostPorts {
            group: "pod".to_owned(),
            ports,
        };
        let text = serde_json::to_string(&HostPortsRecord::from_core(&claims)).unwrap();
        assert_eq!(
            serde_json::from_str::<HostPortsRecord>(&text)
                .unwrap()
                .to_core(),
            claims
        );
        let lease = LeaseClaim {
            token: LeaseToken::from_bytes([7; 16]),
            slots: vec!["a::1".parse().unwrap()],
            named: true,
        };
        assert_eq!(LeaseRecord::from_core(&lease).to_core(), Some(lease));
    }
}
