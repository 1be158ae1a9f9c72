//! Limits of a cgroup, reduced to what the node can give and converted to the OCI runtime spec.

use std::collections::BTreeSet;

use switchyard_core::spec::{
    CpuList, CpuPeriod, CpuQuota, CpuShares, HugepageLimit, MemoryLimit, Resources, Swappiness,
};
use switchyard_core::text::first_names;
use switchyard_core::{Error, Result};

use crate::input::{CgroupDriver, CgroupVersion, Host};
use crate::limits::oom_score_adj;
use crate::oci::{LinuxCpu, LinuxHugepageLimit, LinuxMemory, LinuxPids, LinuxResources};

/// The limits of a new task, or of an update of a running one; limits that were not requested are absent.
///
/// A limit for which this node has no controller is left out with a warning, as by containerd. Device rules
/// and limits on block devices are not part of this: an update must not change them.
///
/// # Errors
/// `InvalidArgument`, naming the field below `resources`; `Unimplemented` for swappiness on cgroup v2.
pub fn linux_resources(asked: &Resources, host: &Host, warnings: &mut Vec<String>) -> Result<LinuxResources> {
    let memory = memory(asked, host, warnings)?;
    let mut unified = unified(asked, host)?;
    if let Some((file, value)) = no_swap_for_systemd(memory.as_ref(), host) {
        unified.entry(file).or_insert(value);
    }
    Ok(LinuxResources {
        devices: Vec::new(),
        memory,
        cpu: cpu(asked),
        pids: asked.pids_limit.map(|limit| LinuxPids { limit: limit.signed() }),
        block_io: None,
        network: None,
        hugepage_limits: hugepages(&asked.hugepages, host, warnings).into_iter().map(spec_limit).collect(),
        unified,
    })
}

/// The `unified` entry for a swap limit of 0 with the systemd driver. runc writes such a limit to the cgroup
/// without setting the unit's property, so systemd resets it to no limit when units are reloaded; entries of
/// `unified` runc does pass to systemd.
fn no_swap_for_systemd(memory: Option<&LinuxMemory>, host: &Host) -> Option<(String, String)> {
    let none =
        memory.is_some_and(|memory| memory.swap.is_some_and(|swap| swap > 0) && memory.swap == memory.limit);
    let unit = host.cgroup == CgroupVersion::V2 && host.cgroup_driver == CgroupDriver::Systemd;
    (none && unit).then(|| ("memory.swap.max".to_owned(), "0".to_owned()))
}

/// The limits that this node will enforce: those of [`linux_resources`], and the OOM score adjustment that
/// can be set.
///
/// What is left out or reduced is reported by a warning and is not in the result, so that a request for the
/// result gives the same without warnings.
///
/// # Errors
/// Those of [`linux_resources`].
pub fn granted(asked: &Resources, host: &Host, warnings: &mut Vec<String>) -> Result<Resources> {
    asked.check_memory()?;
    swappiness(asked, host)?;
    unified(asked, host)?;
    let swap = swap(asked, host, warnings);
    Ok(Resources {
        memory_swap_limit_bytes: swap,
        hugepages: hugepages(&asked.hugepages, host, warnings),
        oom_score_adj: asked.oom_score_adj.map(|score| oom_score_adj(score, host, warnings)),
        ..asked.clone()
    })
}

fn invalid(field: &str, why: impl std::fmt::Display) -> Error {
    Error::invalid(format_args!("resources.{field}"), why)
}

fn cpu(asked: &Resources) -> Option<LinuxCpu> {
    // Blanks around a list, which clients may send, stay out of the spec.
    let list = |list: &Option<CpuList>| list.as_ref().map(|list| list.as_str().trim().to_owned());
    let cpu = LinuxCpu {
        shares: asked.cpu_shares.map(CpuShares::get),
        quota: asked.cpu_quota_us.map(CpuQuota::signed),
        period: asked.cpu_period_us.map(CpuPeriod::get),
        cpus: list(&asked.cpuset_cpus),
        mems: list(&asked.cpuset_mems),
    };
    (cpu != LinuxCpu::default()).then_some(cpu)
}

fn memory(asked: &Resources, host: &Host, warnings: &mut Vec<String>) -> Result<Option<LinuxMemory>> {
    asked.check_memory()?;
    let memory = LinuxMemory {
        limit: asked.memory_limit_bytes.map(MemoryLimit::signed),
        reservation: asked.memory_reservation_bytes.map(MemoryLimit::signed),
        swap: swap(asked, host, warnings).map(MemoryLimit::signed),
        swappiness: swappiness(asked, host)?.map(Swappiness::get),
    };
    Ok((memory != LinuxMemory::default()).then_some(memory))
}

/// The limit of memory plus swap.
fn swap(asked: &Resources, host: &Host, warnings: &mut Vec<String>) -> Option<MemoryLimit> {
    if host.swap_accounting {
        // A memory limit without a swap limit means no swap: the sum equals the memory limit.
        return asked.memory_swap_limit_bytes.or(asked.memory_limit_bytes);
    }
    if let Some(swap) = asked.memory_swap_limit_bytes {
        warnings.push(format!("the swap limit of {swap} bytes is left out: this node does not account swap"));
    }
    None
}

fn swappiness(asked: &Resources, host: &Host) -> Result<Option<Swappiness>> {
    match (asked.memory_swappiness, host.cgroup) {
        (Some(_), CgroupVersion::V2) => Err(Error::unimplemented(
            "resources.memory_swappiness: is not supported: this node runs cgroup v2, which has no such limit",
        )),
        (percent, CgroupVersion::V1 | CgroupVersion::V2) => Ok(percent),
    }
}

/// The limits on pages of sizes that this node can limit; of several for one size, the last.
fn hugepages(asked: &[HugepageLimit], host: &Host, warnings: &mut Vec<String>) -> Vec<HugepageLimit> {
    let mut limits: Vec<HugepageLimit> = Vec::new();
    let mut left_out = BTreeSet::new();
    for limit in asked {
        let size = limit.page_size.as_str();
        if host.hugepage_sizes.iter().any(|known| known == size) {
            limits.retain(|other| other.page_size != limit.page_size);
            limits.push(limit.clone());
        } else if limit.limit_bytes > 0 {
            left_out.insert(size);
        }
    }
    if !left_out.is_empty() {
        let count = left_out.len();
        let sizes = first_names(left_out.iter().copied());
        warnings.push(format!(
            "limits on huge pages are left out ({count}), because this node cannot limit pages of these sizes: {sizes}"
        ));
    }
    limits
}

fn spec_limit(limit: HugepageLimit) -> LinuxHugepageLimit {
    let HugepageLimit { page_size, limit_bytes } = limit;
    LinuxHugepageLimit { page_size: page_size.to_string(), limit: limit_bytes }
}

fn unified(asked: &Resources, host: &Host) -> Result<std::collections::BTreeMap<String, String>> {
    for (file, value) in &asked.unified {
        if value.contains('\0') {
            return Err(invalid("unified", format!("the value of {file} has a NUL byte")));
        }
        if host.cgroup == CgroupVersion::V1 {
            return Err(invalid("unified", format!("{file} needs cgroup v2, and this node runs cgroup v1")));
        }
    }
    Ok(asked.unified.iter().map(|(file, value)| (file.to_string(), value.clone())).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use switchyard_core::spec::{CgroupFile, HugepageSize, OomScoreAdj, PidsLimit};

    use super::*;
    use crate::host::bare_host;

    fn file(name: &str) -> CgroupFile {
        CgroupFile::new(name).unwrap()
    }

    fn with(change: impl FnOnce(&mut Resources)) -> Resources {
        let mut resources = Resources::default();
        change(&mut resources);
        resources
    }

    #[track_caller]
    fn check(host: &Host, asked: &Resources, expected: &Value, warned: usize) {
        let mut warnings = Vec::new();
        let made = linux_resources(asked, host, &mut warnings).unwrap();
        assert_eq!(&serde_json::to_value(made).unwrap(), expected);
        assert_eq!(warnings.len(), warned, "{warnings:?}");
    }

    #[track_caller]
    fn refused(host: &Host, asked: &Resources, field: &str) {
        let error = linux_resources(asked, host, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("resources.{field}: ")), "{error}");
    }

    #[test]
    fn no_limits_give_no_resources() {
        check(&bare_host(), &Resources::default(), &json!({}), 0);
    }

    fn memory(limit: Option<i64>, swap: Option<i64>) -> Resources {
        let limit_of = |bytes: i64| MemoryLimit::new(bytes).unwrap();
        with(|r| {
            r.memory_limit_bytes = limit.map(limit_of);
            r.memory_swap_limit_bytes = swap.map(limit_of);
        })
    }

    #[test]
    fn memory_limit_disables_swap_where_accounted() {
        let asked = memory(Some(64 << 20), None);
        check(&bare_host(), &asked, &json!({ "memory": { "limit": 67108864, "swap": 67108864 } }), 0);
        let unaccounted = Host { swap_accounting: false, ..bare_host() };
        check(&unaccounted, &asked, &json!({ "memory": { "limit": 67108864 } }), 0);
        let unlimited = memory(Some(-1), None);
        check(&bare_host(), &unlimited, &json!({ "memory": { "limit": -1, "swap": -1 } }), 0);
    }

    #[test]
    fn swap_limit_includes_memory_and_is_omitted_without_accounting() {
        let both = memory(Some(100), Some(200));
        check(&bare_host(), &both, &json!({ "memory": { "limit": 100, "swap": 200 } }), 0);
        let any_swap = memory(Some(100), Some(-1));
        check(&bare_host(), &any_swap, &json!({ "memory": { "limit": 100, "swap": -1 } }), 0);
        let unaccounted = Host { swap_accounting: false, ..bare_host() };
        check(&unaccounted, &both, &json!({ "memory": { "limit": 100 } }), 1);
        refused(&bare_host(), &memory(Some(200), Some(100)), "memory_swap_limit_bytes");
        refused(&bare_host(), &memory(None, Some(100)), "memory_swap_limit_bytes");
    }

    #[test]
    fn limits_that_contradict_each_other_are_not_granted() {
        let mut asked = memory(Some(10), None);
        asked.memory_reservation_bytes = MemoryLimit::new(11).ok();
        refused(&bare_host(), &asked, "memory_reservation_bytes");
        let error = granted(&asked, &bare_host(), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().starts_with("resources.memory_reservation_bytes: "), "{error}");
    }

    #[test]
    fn cpu_and_pids_limits_are_passed_on() {
        let asked = with(|r| {
            r.cpu_shares = Some(CpuShares::clamped(512));
            r.cpu_quota_us = Some(CpuQuota::UNLIMITED);
            r.cpu_period_us = CpuPeriod::new(100_000).ok();
            r.cpuset_cpus = CpuList::new(" 0-2,7\n").ok();
            r.pids_limit = Some(PidsLimit::UNLIMITED);
        });
        let cpu = json!({ "shares": 512, "quota": -1, "period": 100_000, "cpus": "0-2,7" });
        check(&bare_host(), &asked, &json!({ "cpu": cpu, "pids": { "limit": -1 } }), 0);
    }

    #[test]
    fn unsupported_hugepage_limits_are_omitted_and_reported_unless_zero() {
        let limit = |page_size: &str, limit_bytes| HugepageLimit {
            page_size: HugepageSize::new(page_size).unwrap(),
            limit_bytes,
        };
        let asked = with(|r| r.hugepages = vec![limit("2MB", 0), limit("1GB", 1 << 30)]);
        check(&bare_host(), &asked, &json!({}), 1);
        let host = Host { hugepage_sizes: vec!["2MB".to_owned()], ..bare_host() };
        check(&host, &asked, &json!({ "hugepageLimits": [{ "pageSize": "2MB", "limit": 0 }] }), 1);
    }

    #[test]
    fn many_unsupported_hugepage_limits_are_one_short_warning() {
        let limit = |number| HugepageLimit {
            page_size: HugepageSize::new(format!("{number}KB")).unwrap(),
            limit_bytes: 1,
        };
        let asked = with(|r| r.hugepages = (1000..2000).map(limit).collect());
        let mut warnings = Vec::new();
        linux_resources(&asked, &bare_host(), &mut warnings).unwrap();
        let sizes = "\"1000KB\", \"1001KB\", \"1002KB\" and 997 more";
        let text =
            "limits on huge pages are left out (1000), because this node cannot limit pages of these sizes";
        assert_eq!(warnings, [format!("{text}: {sizes}")]);
    }

    #[test]
    fn granted_limits_are_effective_and_idempotent() {
        let host = Host { swap_accounting: false, capabilities: Vec::new(), ..bare_host() };
        let asked = Resources {
            cpu_shares: Some(CpuShares::clamped(512)),
            hugepages: vec![HugepageLimit {
                page_size: HugepageSize::new("1GB").unwrap(),
                limit_bytes: 1 << 30,
            }],
            oom_score_adj: OomScoreAdj::new(-500).ok(),
            ..memory(Some(100), Some(200))
        };
        let mut warnings = Vec::new();
        let granted_now = granted(&asked, &host, &mut warnings).unwrap();
        let expected = Resources {
            cpu_shares: asked.cpu_shares,
            oom_score_adj: Some(OomScoreAdj::default()),
            ..memory(Some(100), None)
        };
        assert_eq!((&granted_now, warnings.len()), (&expected, 3), "{warnings:?}");
        let mut none = Vec::new();
        assert_eq!(granted(&granted_now, &host, &mut none).unwrap(), expected);
        assert_eq!(none, Vec::<String>::new());
        let no_swap = granted(&memory(Some(100), None), &bare_host(), &mut none).unwrap();
        assert_eq!(no_swap, memory(Some(100), Some(100)), "memory and no word about swap means no swap");
    }

    #[test]
    fn systemd_gets_a_zero_swap_limit() {
        let unit = Host { cgroup_driver: CgroupDriver::Systemd, cgroup: CgroupVersion::V2, ..bare_host() };
        let swap_max = |host: &Host, asked: &Resources| {
            let made = linux_resources(asked, host, &mut Vec::new()).unwrap();
            made.unified.get("memory.swap.max").cloned()
        };
        let no_swap = memory(Some(100), None);
        assert_eq!(swap_max(&unit, &no_swap).as_deref(), Some("0"));
        assert_eq!(swap_max(&unit, &memory(Some(100), Some(100))).as_deref(), Some("0"));
        for (limit, swap) in [(100, Some(200)), (100, Some(-1)), (-1, None)] {
            assert_eq!(swap_max(&unit, &memory(Some(limit), swap)), None, "{limit} {swap:?}");
        }
        let own =
            Resources { unified: [(file("memory.swap.max"), "7".to_owned())].into(), ..no_swap.clone() };
        assert_eq!(swap_max(&unit, &own).as_deref(), Some("7"), "who names the file has it");
        assert_eq!(swap_max(&Host { swap_accounting: false, ..unit.clone() }, &no_swap), None);
        assert_eq!(swap_max(&Host { cgroup_driver: CgroupDriver::Fs, ..unit.clone() }, &no_swap), None);
        // The settings reported to a client are only those that it has requested.
        assert!(granted(&no_swap, &unit, &mut Vec::new()).unwrap().unified.is_empty());
    }

    #[test]
    fn swappiness_is_v1_only() {
        let v1 = Host { cgroup: CgroupVersion::V1, ..bare_host() };
        let asked = with(|r| r.memory_swappiness = Swappiness::new(0).ok());
        check(&v1, &asked, &json!({ "memory": { "swappiness": 0 } }), 0);
        let v2 = Host { cgroup: CgroupVersion::V2, ..bare_host() };
        refused(&v2, &asked, "memory_swappiness");
    }

    #[test]
    fn unified_is_verbatim_on_v2_and_rejected_on_v1() {
        let asked = with(|r| drop(r.unified.insert(file("memory.high"), "1000".to_owned())));
        let v2 = Host { cgroup: CgroupVersion::V2, ..bare_host() };
        check(&v2, &asked, &json!({ "unified": { "memory.high": "1000" } }), 0);
        refused(&Host { cgroup: CgroupVersion::V1, ..bare_host() }, &asked, "unified");
        refused(&v2, &with(|r| drop(r.unified.insert(file("memory.high"), "a\0".to_owned()))), "unified");
    }
}
