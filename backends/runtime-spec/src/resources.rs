//! Limits of a cgroup, checked and converted to the OCI runtime spec.

use switchyard_core::spec::{HugepageLimit, Resources};
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
        cpu: cpu(asked)?,
        pids: pids(asked)?,
        block_io: None,
        network: None,
        hugepage_limits: hugepages(&asked.hugepages, host, warnings)?,
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
/// Those of [`linux_resources`]; `InvalidArgument` for a score adjustment that is out of range.
pub fn granted(asked: &Resources, host: &Host, warnings: &mut Vec<String>) -> Result<Resources> {
    let made = linux_resources(asked, host, warnings)?;
    let score = asked.oom_score_adj.map(|score| oom_score_adj(score, host, warnings)).transpose()?;
    let hugepages = made.hugepage_limits.into_iter();
    Ok(Resources {
        memory_swap_limit_bytes: made.memory.and_then(|memory| memory.swap),
        hugepages: hugepages
            .map(|LinuxHugepageLimit { page_size, limit }| HugepageLimit { page_size, limit_bytes: limit })
            .collect(),
        oom_score_adj: score,
        ..asked.clone()
    })
}

fn invalid(field: &str, why: impl std::fmt::Display) -> Error {
    Error::invalid(format_args!("resources.{field}"), why)
}

fn cpu(asked: &Resources) -> Result<Option<LinuxCpu>> {
    if let Some(shares) = asked.cpu_shares.filter(|shares| !(2..=262_144).contains(shares)) {
        return Err(invalid("cpu_shares", format!("{shares} is not in 2..=262144")));
    }
    let quota = match asked.cpu_quota_us {
        Some(quota) if quota < 0 => Some(-1),
        Some(quota) if quota < 1000 => {
            return Err(invalid("cpu_quota_us", format!("{quota} is below the kernel's least of 1000")));
        }
        quota => quota,
    };
    if let Some(period) = asked.cpu_period_us.filter(|period| !(1000..=1_000_000).contains(period)) {
        return Err(invalid("cpu_period_us", format!("{period} is not in 1000..=1000000")));
    }
    let cpu = LinuxCpu {
        shares: asked.cpu_shares,
        quota,
        period: asked.cpu_period_us,
        cpus: cpu_list("cpuset_cpus", asked.cpuset_cpus.as_deref())?,
        mems: cpu_list("cpuset_mems", asked.cpuset_mems.as_deref())?,
    };
    Ok((cpu != LinuxCpu::default()).then_some(cpu))
}

/// A list of numbers and ranges, for example `0-2,7`; an empty one requests nothing.
fn cpu_list(field: &str, list: Option<&str>) -> Result<Option<String>> {
    let Some(list) = list.map(str::trim).filter(|list| !list.is_empty()) else { return Ok(None) };
    let number = |text: &str| {
        text.trim()
            .parse::<u32>()
            .map_err(|_| invalid(field, format!("{list:?} is no list of numbers and ranges")))
    };
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if number(first)? > number(last)? {
            return Err(invalid(field, format!("range {part:?} ends before it starts")));
        }
    }
    Ok(Some(list.to_owned()))
}

fn memory(asked: &Resources, host: &Host, warnings: &mut Vec<String>) -> Result<Option<LinuxMemory>> {
    let bytes = |field: &str, value: Option<i64>| match value {
        Some(value) if value == 0 || value < -1 => {
            Err(invalid(field, format!("{value} is neither a number of bytes nor -1 for no limit")))
        }
        value => Ok(value),
    };
    let limit = bytes("memory_limit_bytes", asked.memory_limit_bytes)?;
    let reservation = bytes("memory_reservation_bytes", asked.memory_reservation_bytes)?;
    if let (Some(limit), Some(reservation)) = (limit, reservation)
        && limit > 0
        && (reservation > limit || reservation == -1)
    {
        return Err(invalid(
            "memory_reservation_bytes",
            format!("{reservation} is over the limit of {limit}"),
        ));
    }
    let swap = match (bytes("memory_swap_limit_bytes", asked.memory_swap_limit_bytes)?, limit) {
        (Some(swap), None) if swap > 0 => {
            return Err(invalid(
                "memory_swap_limit_bytes",
                format!("{swap} needs memory_limit_bytes beside it"),
            ));
        }
        (Some(swap), Some(limit)) if swap > 0 && (swap < limit || limit == -1) => {
            return Err(invalid(
                "memory_swap_limit_bytes",
                format!("{swap} is below memory_limit_bytes, which it includes ({limit})"),
            ));
        }
        (Some(swap), _) if !host.swap_accounting => {
            warnings
                .push(format!("the swap limit of {swap} bytes is left out: this node does not account swap"));
            None
        }
        // A memory limit without a swap limit means no swap: the sum equals the memory limit.
        (None, limit) if host.swap_accounting => limit,
        (swap, _) => swap,
    };
    let memory = LinuxMemory { limit, reservation, swap, swappiness: swappiness(asked, host)? };
    Ok((memory != LinuxMemory::default()).then_some(memory))
}

fn swappiness(asked: &Resources, host: &Host) -> Result<Option<u64>> {
    match (asked.memory_swappiness, host.cgroup) {
        (Some(percent), _) if percent > 100 => {
            Err(invalid("memory_swappiness", format!("{percent} is not in 0..=100")))
        }
        (Some(_), CgroupVersion::V2) => Err(Error::unimplemented(
            "resources.memory_swappiness: is not supported: this node runs cgroup v2, which has no such limit",
        )),
        (percent, CgroupVersion::V1 | CgroupVersion::V2) => Ok(percent),
    }
}

fn pids(asked: &Resources) -> Result<Option<LinuxPids>> {
    match asked.pids_limit {
        None => Ok(None),
        Some(limit) if limit == 0 || limit < -1 => Err(invalid(
            "pids_limit",
            format!("{limit} is neither a number of processes nor -1 for no limit"),
        )),
        Some(limit) => Ok(Some(LinuxPids { limit })),
    }
}

fn hugepages(
    asked: &[HugepageLimit],
    host: &Host,
    warnings: &mut Vec<String>,
) -> Result<Vec<LinuxHugepageLimit>> {
    let mut limits: Vec<LinuxHugepageLimit> = Vec::new();
    for HugepageLimit { page_size, limit_bytes } in asked {
        let digits = page_size.trim_end_matches(|c: char| c.is_ascii_uppercase());
        let unit = &page_size[digits.len()..];
        if digits.parse::<u32>().is_err() || !["KB", "MB", "GB"].contains(&unit) {
            return Err(invalid(
                "hugepages",
                format!("{page_size:?} is no page size as the kernel names it (2MB)"),
            ));
        }
        if host.hugepage_sizes.iter().any(|size| size == page_size) {
            limits.retain(|other| other.page_size != *page_size);
            limits.push(LinuxHugepageLimit { page_size: page_size.clone(), limit: *limit_bytes });
        } else if *limit_bytes > 0 {
            warnings.push(format!(
                "the limit on huge pages of {page_size} is left out: this node cannot limit them"
            ));
        }
    }
    Ok(limits)
}

fn unified(asked: &Resources, host: &Host) -> Result<std::collections::BTreeMap<String, String>> {
    for (file, value) in &asked.unified {
        if file.contains('/') || !file.contains('.') || file.contains('\0') || value.contains('\0') {
            return Err(invalid("unified", format!("{file:?} is no file of a cgroup")));
        }
        if host.cgroup == CgroupVersion::V1 {
            return Err(invalid("unified", format!("{file} needs cgroup v2, and this node runs cgroup v1")));
        }
    }
    Ok(asked.unified.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::host::bare_host;

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

    #[test]
    fn memory_limit_disables_swap_where_accounted() {
        let asked = with(|r| r.memory_limit_bytes = Some(64 << 20));
        check(&bare_host(), &asked, &json!({ "memory": { "limit": 67108864, "swap": 67108864 } }), 0);
        let unaccounted = Host { swap_accounting: false, ..bare_host() };
        check(&unaccounted, &asked, &json!({ "memory": { "limit": 67108864 } }), 0);
        check(
            &bare_host(),
            &with(|r| r.memory_limit_bytes = Some(-1)),
            &json!({ "memory": { "limit": -1, "swap": -1 } }),
            0,
        );
    }

    #[test]
    fn swap_limit_includes_memory_and_is_omitted_without_accounting() {
        let asked =
            |memory, swap| with(|r| (r.memory_limit_bytes, r.memory_swap_limit_bytes) = (memory, swap));
        check(
            &bare_host(),
            &asked(Some(100), Some(200)),
            &json!({ "memory": { "limit": 100, "swap": 200 } }),
            0,
        );
        check(
            &bare_host(),
            &asked(Some(100), Some(-1)),
            &json!({ "memory": { "limit": 100, "swap": -1 } }),
            0,
        );
        let unaccounted = Host { swap_accounting: false, ..bare_host() };
        check(&unaccounted, &asked(Some(100), Some(200)), &json!({ "memory": { "limit": 100 } }), 1);
        refused(&bare_host(), &asked(Some(200), Some(100)), "memory_swap_limit_bytes");
        refused(&bare_host(), &asked(None, Some(100)), "memory_swap_limit_bytes");
    }

    #[test]
    fn out_of_range_limit_is_rejected_by_name() {
        let host = bare_host();
        refused(&host, &with(|r| r.cpu_shares = Some(1)), "cpu_shares");
        refused(&host, &with(|r| r.cpu_shares = Some(262_145)), "cpu_shares");
        refused(&host, &with(|r| r.cpu_quota_us = Some(999)), "cpu_quota_us");
        refused(&host, &with(|r| r.cpu_period_us = Some(1_000_001)), "cpu_period_us");
        refused(&host, &with(|r| r.cpuset_cpus = Some("0-".to_owned())), "cpuset_cpus");
        refused(&host, &with(|r| r.cpuset_cpus = Some("3-1".to_owned())), "cpuset_cpus");
        refused(&host, &with(|r| r.cpuset_mems = Some("a".to_owned())), "cpuset_mems");
        refused(&host, &with(|r| r.memory_limit_bytes = Some(0)), "memory_limit_bytes");
        refused(&host, &with(|r| r.memory_reservation_bytes = Some(-2)), "memory_reservation_bytes");
        refused(&host, &with(|r| r.pids_limit = Some(0)), "pids_limit");
        let both = with(|r| (r.memory_limit_bytes, r.memory_reservation_bytes) = (Some(10), Some(11)));
        refused(&host, &both, "memory_reservation_bytes");
    }

    #[test]
    fn cpu_and_pids_limits_are_passed_on() {
        let asked = with(|r| {
            r.cpu_shares = Some(512);
            r.cpu_quota_us = Some(-5);
            r.cpu_period_us = Some(100_000);
            r.cpuset_cpus = Some("0-2,7".to_owned());
            r.cpuset_mems = Some(String::new());
            r.pids_limit = Some(-1);
        });
        let cpu = json!({ "shares": 512, "quota": -1, "period": 100_000, "cpus": "0-2,7" });
        check(&bare_host(), &asked, &json!({ "cpu": cpu, "pids": { "limit": -1 } }), 0);
    }

    #[test]
    fn unsupported_hugepage_limits_are_omitted_and_reported_unless_zero() {
        let limit =
            |page_size: &str, limit_bytes| HugepageLimit { page_size: page_size.to_owned(), limit_bytes };
        let asked = with(|r| r.hugepages = vec![limit("2MB", 0), limit("1GB", 1 << 30)]);
        check(&bare_host(), &asked, &json!({}), 1);
        let host = Host { hugepage_sizes: vec!["2MB".to_owned()], ..bare_host() };
        check(&host, &asked, &json!({ "hugepageLimits": [{ "pageSize": "2MB", "limit": 0 }] }), 1);
        refused(&host, &with(|r| r.hugepages = vec![limit("2M", 0)]), "hugepages");
    }

    #[test]
    fn granted_limits_are_effective_and_idempotent() {
        let host = Host { swap_accounting: false, oom_score_adj: 0, capabilities: Vec::new(), ..bare_host() };
        let asked = with(|r| {
            r.cpu_shares = Some(512);
            (r.memory_limit_bytes, r.memory_swap_limit_bytes) = (Some(100), Some(200));
            r.hugepages = vec![HugepageLimit { page_size: "1GB".to_owned(), limit_bytes: 1 << 30 }];
            r.oom_score_adj = Some(-500);
        });
        let mut warnings = Vec::new();
        let granted_now = granted(&asked, &host, &mut warnings).unwrap();
        let expected = with(|r| {
            (r.cpu_shares, r.memory_limit_bytes, r.oom_score_adj) = (Some(512), Some(100), Some(0));
        });
        assert_eq!((&granted_now, warnings.len()), (&expected, 3), "{warnings:?}");
        let mut none = Vec::new();
        assert_eq!(granted(&granted_now, &host, &mut none).unwrap(), expected);
        assert_eq!(none, Vec::<String>::new());
        let memory = with(|r| r.memory_limit_bytes = Some(100));
        let no_swap = granted(&memory, &bare_host(), &mut none).unwrap();
        assert_eq!(no_swap.memory_swap_limit_bytes, Some(100), "memory and no word about swap means no swap");
    }

    #[test]
    fn systemd_gets_a_zero_swap_limit() {
        let unit = Host { cgroup_driver: CgroupDriver::Systemd, cgroup: CgroupVersion::V2, ..bare_host() };
        let swap_max = |host: &Host, asked: &Resources| {
            let made = linux_resources(asked, host, &mut Vec::new()).unwrap();
            made.unified.get("memory.swap.max").cloned()
        };
        let asked =
            |memory, swap| with(|r| (r.memory_limit_bytes, r.memory_swap_limit_bytes) = (Some(memory), swap));
        assert_eq!(swap_max(&unit, &asked(100, None)).as_deref(), Some("0"));
        assert_eq!(swap_max(&unit, &asked(100, Some(100))).as_deref(), Some("0"));
        for (memory, swap) in [(100, Some(200)), (100, Some(-1)), (-1, None)] {
            assert_eq!(swap_max(&unit, &asked(memory, swap)), None, "{memory} {swap:?}");
        }
        let own = Resources {
            unified: [("memory.swap.max".to_owned(), "7".to_owned())].into(),
            ..asked(100, None)
        };
        assert_eq!(swap_max(&unit, &own).as_deref(), Some("7"), "who names the file has it");
        assert_eq!(swap_max(&Host { swap_accounting: false, ..unit.clone() }, &asked(100, None)), None);
        assert_eq!(
            swap_max(&Host { cgroup_driver: CgroupDriver::Fs, ..unit.clone() }, &asked(100, None)),
            None
        );
        // A client is told only what it has requested.
        assert!(granted(&asked(100, None), &unit, &mut Vec::new()).unwrap().unified.is_empty());
    }

    #[test]
    fn swappiness_is_v1_only() {
        let v1 = Host { cgroup: CgroupVersion::V1, ..bare_host() };
        let asked = with(|r| r.memory_swappiness = Some(0));
        check(&v1, &asked, &json!({ "memory": { "swappiness": 0 } }), 0);
        let v2 = Host { cgroup: CgroupVersion::V2, ..bare_host() };
        refused(&v2, &asked, "memory_swappiness");
        refused(&v1, &with(|r| r.memory_swappiness = Some(101)), "memory_swappiness");
    }

    #[test]
    fn unified_is_verbatim_on_v2_and_rejected_on_v1() {
        let asked = with(|r| drop(r.unified.insert("memory.high".to_owned(), "1000".to_owned())));
        let v2 = Host { cgroup: CgroupVersion::V2, ..bare_host() };
        check(&v2, &asked, &json!({ "unified": { "memory.high": "1000" } }), 0);
        refused(&Host { cgroup: CgroupVersion::V1, ..bare_host() }, &asked, "unified");
        refused(&v2, &with(|r| drop(r.unified.insert("../x.y".to_owned(), String::new()))), "unified");
    }
}
