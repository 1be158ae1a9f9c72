//! All kinds of findings, by family: 1xx the node and its kernel, 2xx containerd and runtimes, 3xx the network,
//! 4xx a kubelet, 5xx Nomad, 6xx Swarm, 7xx devices, 8xx the daemon and its configuration.
//!
//! A code is never given another meaning, and never reused.

use super::finding::FindingCode;

pub(super) mod daemon;
pub(super) mod node;
pub(super) mod orchestrators;
pub(super) mod runtime;

/// All codes, in their order.
#[must_use]
pub fn all() -> Vec<&'static FindingCode> {
    let families = [node::ALL, runtime::ALL, orchestrators::ALL, daemon::ALL];
    families.into_iter().flatten().copied().collect()
}

/// The code as `docs/doctor.md` has it.
#[must_use]
pub fn section(code: &FindingCode) -> String {
    let FindingCode { code, severity, title, consequence, cure } = code;
    let severity = severity.as_str();
    format!("### {code}\n**{title}** ({severity}).\n{consequence}\n\n*Cure*: {cure}\n")
}
