//! The resources that a container reserves on the node, as far as CRI shows them.
//!
//! CRI has no field for requests. A kubelet encodes them in other fields: the CPU shares, and the OOM score
//! adjustment.

use switchyard_core::spec::{CpuShares, MemoryLimit, OomScoreAdj, Reserved, Resources};

/// The cgroup v2 file to which a kubelet with memory QoS writes the memory request.
const MEMORY_MIN: &str = "memory.min";

/// The OOM score adjustments that a kubelet computes from memory requests: 1000 less the thousandths of the
/// node's memory. Values outside are not computed from requests.
const SCORES: std::ops::RangeInclusive<i32> = 3..=998;

/// The lowest score that means no memory request, or one of less than a thousandth of the node's memory.
const NOTHING: i32 = 999;

/// Computes the reservation of a container with these limits on a node with this much memory, in bytes; 0 if
/// the node's memory is unknown.
pub(crate) fn reserved(limits: &Resources, node_memory: u64) -> Reserved {
    Reserved {
        cpu_milli: cpu_milli(limits),
        memory_bytes: memory_bytes(limits, node_memory),
    }
}

/// The shares are 1024 for each CPU, rounded down, and at least 2.
fn cpu_milli(limits: &Resources) -> u64 {
    match limits.cpu_shares {
        None | Some(CpuShares::LEAST) => 0,
        Some(shares) => shares.get().saturating_mul(1000).div_ceil(1024),
    }
}

fn memory_bytes(limits: &Resources, node_memory: u64) -> u64 {
    if let Some(bytes) = limits
        .unified
        .get(MEMORY_MIN)
        .and_then(|text| text.trim().parse().ok())
    {
        return bytes;
    }
    let limit = limits.memory_limit_bytes.and_then(MemoryLimit::get);
    match limits.oom_score_adj.map(OomScoreAdj::get) {
        Some(score) if SCORES.contains(&score) => {
            let thousandths = u64::from(1000_u32.saturating_sub_signed(score));
            (node_memory / 1000)
                .saturating_mul(thousandths)
                .min(limit.unwrap_or(u64::MAX))
        }
        Some(NOTHING..) => 0,
        // A pod whose requests equal its limits, or a client other than a kubelet.
        Some(_) | None => limit.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::spec::CgroupFile;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn limits(score: Option<i32>, limit: Option<i64>) -> Resources {
        Resources {
            oom_score_adj: score.map(|score| OomScoreAdj::new(score).unwrap()),
            memory_limit_bytes: limit.map(|bytes| MemoryLimit::new(bytes).unwrap()),
            ..Resources::default()
        }
    }

    #[test]
    fn cpu_request_is_derived_from_shares() {
        // As kubelets compute it: milli * 1024 / 1000, rounded down.
        for milli in [0_u64, 1, 2] {
            let shares = CpuShares::clamped(milli * 1024 / 1000);
            let limits = Resources {
                cpu_shares: Some(shares),
                ..Resources::default()
            };
            assert_eq!(reserved(&limits, 0).cpu_milli, 0, "{milli}");
        }
        for milli in [3_u64, 10, 100, 250, 999, 1000, 1001, 64_000] {
            let shares = CpuShares::clamped(milli * 1024 / 1000);
            let limits = Resources {
                cpu_shares: Some(shares),
                ..Resources::default()
            };
            assert_eq!(reserved(&limits, 0).cpu_milli, milli);
        }
        assert_eq!(reserved(&Resources::default(), 0).cpu_milli, 0);
    }

    #[test]
    fn memory_request_is_derived_from_burstable_oom_score() {
        for request in [GIB / 2, GIB, 5 * GIB, 31 * GIB] {
            let score = 1000 - i32::try_from(1000 * request / (32 * GIB)).unwrap();
            let got = reserved(&limits(Some(score), None), 32 * GIB).memory_bytes;
            assert!(
                got <= request && request - got <= 32 * GIB / 1000,
                "{request} {got}"
            );
        }
        let bounded = limits(Some(500), Some(1 << 20));
        assert_eq!(reserved(&bounded, 32 * GIB).memory_bytes, 1 << 20);
    }

    #[test]
    fn other_oom_scores_give_the_qos_class() {
        let check = |score, limit, expected| {
            assert_eq!(
                reserved(&limits(score, limit), 32 * GIB).memory_bytes,
                expected,
                "{score:?} {limit:?}"
            );
        };
        check(Some(1000), Some(1 << 30), 0);
        check(Some(999), Some(1 << 30), 0);
        check(Some(-997), Some(1 << 30), GIB);
        check(Some(-997), None, 0);
        check(None, Some(1 << 30), GIB);
        check(None, Some(-1), 0);
        check(None, None, 0);
        let mut limits_set = limits(Some(500), None);
        limits_set
            .unified
            .insert(CgroupFile::new("memory.min").unwrap(), "12345".to_owned());
        assert_eq!(reserved(&limits_set, 32 * GIB).memory_bytes, 12345);
    }
}
