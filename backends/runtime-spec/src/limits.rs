//! Limits of the process itself: rlimits and the OOM score adjustment, reduced to what the node can give.

use switchyard_core::spec::{OomScoreAdj, Rlimit};
use switchyard_core::{Error, Result};

use crate::input::Host;
use crate::oci;

/// Every limit of setrlimit(2) with its name in `/proc/<pid>/limits`.
pub const NAMES: [(&str, &str); 16] = [
    ("RLIMIT_AS", "Max address space"),
    ("RLIMIT_CORE", "Max core file size"),
    ("RLIMIT_CPU", "Max cpu time"),
    ("RLIMIT_DATA", "Max data size"),
    ("RLIMIT_FSIZE", "Max file size"),
    ("RLIMIT_LOCKS", "Max file locks"),
    ("RLIMIT_MEMLOCK", "Max locked memory"),
    ("RLIMIT_MSGQUEUE", "Max msgqueue size"),
    ("RLIMIT_NICE", "Max nice priority"),
    ("RLIMIT_NOFILE", "Max open files"),
    ("RLIMIT_NPROC", "Max processes"),
    ("RLIMIT_RSS", "Max resident set"),
    ("RLIMIT_RTPRIO", "Max realtime priority"),
    ("RLIMIT_RTTIME", "Max realtime timeout"),
    ("RLIMIT_SIGPENDING", "Max pending signals"),
    ("RLIMIT_STACK", "Max stack size"),
];

/// The rlimits of a spec. Of two with the same name the later applies.
///
/// Without `CAP_SYS_RESOURCE` a runtime cannot raise a hard limit: it is reduced to the node's, with a
/// warning.
///
/// # Errors
/// `InvalidArgument`, naming `rlimits`, for an unknown name or a soft limit above the hard one.
pub fn rlimits(
    asked: &[Rlimit],
    host: &Host,
    warnings: &mut Vec<String>,
) -> Result<Vec<oci::Rlimit>> {
    let mut limits: Vec<oci::Rlimit> = Vec::new();
    for Rlimit { name, soft, hard } in asked {
        let upper = name.trim().to_ascii_uppercase();
        let kind = if upper.starts_with("RLIMIT_") {
            upper
        } else {
            format!("RLIMIT_{upper}")
        };
        if !NAMES.iter().any(|(known, _)| *known == kind) {
            return Err(Error::invalid(
                "rlimits",
                format!("{name:?} is no limit of Linux"),
            ));
        }
        if soft > hard {
            return Err(Error::invalid(
                "rlimits",
                format!("soft limit {soft} of {kind} is over the hard limit {hard}"),
            ));
        }
        let mut limit = oci::Rlimit {
            kind,
            hard: *hard,
            soft: *soft,
        };
        if let Some(most) = host
            .hard_rlimits
            .get(&limit.kind)
            .filter(|most| !host.has_sys_resource() && **most < *hard)
        {
            warnings.push(format!(
                "{} is cut from {hard} to {most}: the daemon has no CAP_SYS_RESOURCE of the whole node to go above",
                limit.kind
            ));
            limit.hard = *most;
            limit.soft = limit.soft.min(*most);
        }
        limits.retain(|other| other.kind != limit.kind);
        limits.push(limit);
    }
    Ok(limits)
}

/// The OOM score adjustment that can be set: without `CAP_SYS_RESOURCE` of the whole node none below this process's own, with a
/// warning.
pub fn oom_score_adj(asked: OomScoreAdj, host: &Host, warnings: &mut Vec<String>) -> OomScoreAdj {
    if asked < host.oom_score_adj && !host.has_sys_resource() {
        warnings.push(format!(
            "oom_score_adj is {} instead of {asked}: the daemon has no CAP_SYS_RESOURCE of the whole node to go below",
            host.oom_score_adj
        ));
        return host.oom_score_adj;
    }
    asked
}

/// The hard limits in the text of `/proc/<pid>/limits`; unlimited ones are left out.
#[must_use]
pub fn parse_hard_limits(text: &str) -> std::collections::BTreeMap<String, u64> {
    let mut limits = std::collections::BTreeMap::new();
    for line in text.lines() {
        let Some((name, rest)) = NAMES
            .iter()
            .find_map(|(name, label)| line.strip_prefix(label).map(|rest| (*name, rest)))
        else {
            continue;
        };
        if let Some(hard) = rest
            .split_whitespace()
            .nth(1)
            .and_then(|word| word.parse().ok())
        {
            limits.insert(name.to_owned(), hard);
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::host::bare_host;

    /// The kernel grants what needs CAP_SYS_RESOURCE only to who has it in the first user namespace.
    #[test]
    fn privileges_of_a_user_namespace_raise_no_limit_of_the_node() {
        let score = |score| OomScoreAdj::new(score).unwrap();
        let whole = || Host {
            oom_score_adj: score(-5),
            hard_rlimits: BTreeMap::from([("RLIMIT_NOFILE".to_owned(), 1000)]),
            ..bare_host()
        };
        let inside = || Host {
            in_user_namespace: true,
            ..whole()
        };
        let unprivileged = || Host {
            capabilities: Vec::new(),
            ..whole()
        };
        for (host, asked, granted) in [
            (whole(), (-997, 5000), (-997, 5000)),
            // An unprivileged LXC container, and rootless kind: all capabilities, in their own namespace.
            (inside(), (-997, 5000), (-5, 1000)),
            (inside(), (-5, 1000), (-5, 1000)),
            (inside(), (500, 10), (500, 10)),
            // A unit with a bounding set.
            (unprivileged(), (-997, 5000), (-5, 1000)),
        ] {
            let mut warnings = Vec::new();
            let limit = Rlimit {
                name: "nofile".to_owned(),
                soft: asked.1,
                hard: asked.1,
            };
            let limits = rlimits(&[limit], &host, &mut warnings).unwrap();
            let adjusted = oom_score_adj(score(asked.0), &host, &mut warnings);
            assert_eq!((adjusted.get(), limits[0].hard), granted, "{asked:?}");
            let is_less = asked != granted;
            assert_eq!(warnings.len(), if is_less { 2 } else { 0 }, "{warnings:?}");
        }
    }
}
