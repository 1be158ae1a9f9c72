//! All kinds of findings, by family: the first digit of a code is that of its family.
//!
//! A code is never given another meaning, and never reused. `docs/doctor.md` is generated from these tables.

use super::finding::FindingCode;

pub(super) mod daemon;
pub(super) mod node;
pub(super) mod orchestrators;
pub(super) mod runtime;

/// The subjects of the families, in the order of their digits, which begin with 1.
const FAMILIES: [&str; 8] = [
    "the node and its kernel",
    "containerd and runtimes",
    "networks",
    "a kubelet",
    "Nomad",
    "Docker Swarm",
    "devices",
    "the daemon, its configuration, upgrades",
];

/// All codes, in their order.
#[must_use]
pub fn all() -> Vec<&'static FindingCode> {
    let families = [node::ALL, runtime::ALL, orchestrators::ALL, daemon::ALL];
    families.into_iter().flatten().copied().collect()
}

/// All codes as `docs/doctor.md` has them: a chapter for each family, with a section for each code.
#[must_use]
pub fn chapters() -> String {
    let mut text = String::new();
    for (digit, family) in (1..).zip(FAMILIES) {
        text.push_str(&format!("\n## {digit}xx: {family}\n\n"));
        let prefix = format!("SY{digit}");
        for code in all()
            .into_iter()
            .filter(|code| code.code.starts_with(&prefix))
        {
            text.push_str(&section(code));
        }
    }
    text
}

fn section(code: &FindingCode) -> String {
    let FindingCode {
        code,
        severity,
        title,
        consequence,
        cure,
    } = code;
    let severity = severity.as_str();
    format!("### {code}\n**{title}** ({severity}).\n{consequence}\n\n*Cure*: {cure}\n\n")
}
