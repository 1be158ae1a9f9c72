//! Tests of resources: their keys in cgroup v1 and v2.

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
    assert!(
        error
            .to_string()
            .starts_with(&format!("resources.{field}: ")),
        "{error}"
    );
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
    check(
        &bare_host(),
        &asked,
        &json!({ "memory": { "limit": 67108864, "swap": 67108864 } }),
        0,
    );
    let unaccounted = Host {
        swap_accounting: false,
        ..bare_host()
    };
    check(
        &unaccounted,
        &asked,
        &json!({ "memory": { "limit": 67108864 } }),
        0,
    );
    let unlimited = memory(Some(-1), None);
    check(
        &bare_host(),
        &unlimited,
        &json!({ "memory": { "limit": -1, "swap": -1 } }),
        0,
    );
}

#[test]
fn swap_limit_includes_memory_and_is_omitted_without_accounting() {
    let both = memory(Some(100), Some(200));
    check(
        &bare_host(),
        &both,
        &json!({ "memory": { "limit": 100, "swap": 200 } }),
        0,
    );
    let any_swap = memory(Some(100), Some(-1));
    check(
        &bare_host(),
        &any_swap,
        &json!({ "memory": { "limit": 100, "swap": -1 } }),
        0,
    );
    let unaccounted = Host {
        swap_accounting: false,
        ..bare_host()
    };
    check(
        &unaccounted,
        &both,
        &json!({ "memory": { "limit": 100 } }),
        1,
    );
    refused(
        &bare_host(),
        &memory(Some(200), Some(100)),
        "memory_swap_limit_bytes",
    );
    refused(
        &bare_host(),
        &memory(None, Some(100)),
        "memory_swap_limit_bytes",
    );
}

#[test]
fn limits_that_contradict_each_other_are_not_granted() {
    let mut asked = memory(Some(10), None);
    asked.memory_reservation_bytes = MemoryLimit::new(11).ok();
    refused(&bare_host(), &asked, "memory_reservation_bytes");
    let error = granted(&asked, &bare_host(), &mut Vec::new()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("resources.memory_reservation_bytes: "),
        "{error}"
    );
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
    check(
        &bare_host(),
        &asked,
        &json!({ "cpu": cpu, "pids": { "limit": -1 } }),
        0,
    );
}

#[test]
fn unsupported_hugepage_limits_are_omitted_and_reported_unless_zero() {
    let limit = |page_size: &str, limit_bytes| HugepageLimit {
        page_size: HugepageSize::new(page_size).unwrap(),
        limit_bytes,
    };
    let asked = with(|r| r.hugepages = vec![limit("2MB", 0), limit("1GB", 1 << 30)]);
    check(&bare_host(), &asked, &json!({}), 1);
    let host = Host {
        hugepage_sizes: vec!["2MB".to_owned()],
        ..bare_host()
    };
    check(
        &host,
        &asked,
        &json!({ "hugepageLimits": [{ "pageSize": "2MB", "limit": 0 }] }),
        1,
    );
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
    let text = "limits on huge pages are left out (1000), because this node cannot limit pages of these sizes";
    assert_eq!(warnings, [format!("{text}: {sizes}")]);
}

#[test]
fn granted_limits_are_effective_and_idempotent() {
    let host = Host {
        swap_accounting: false,
        capabilities: Vec::new(),
        ..bare_host()
    };
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
    assert_eq!(
        (&granted_now, warnings.len()),
        (&expected, 3),
        "{warnings:?}"
    );
    let mut none = Vec::new();
    assert_eq!(granted(&granted_now, &host, &mut none).unwrap(), expected);
    assert_eq!(none, Vec::<String>::new());
    let no_swap = granted(&memory(Some(100), None), &bare_host(), &mut none).unwrap();
    assert_eq!(
        no_swap,
        memory(Some(100), Some(100)),
        "memory and no word about swap means no swap"
    );
}

#[test]
fn systemd_gets_a_zero_swap_limit() {
    let unit = Host {
        cgroup_driver: CgroupDriver::Systemd,
        cgroup: CgroupVersion::V2,
        ..bare_host()
    };
    let swap_max = |host: &Host, asked: &Resources| {
        let made = linux_resources(asked, host, &mut Vec::new()).unwrap();
        made.unified.get("memory.swap.max").cloned()
    };
    let no_swap = memory(Some(100), None);
    assert_eq!(swap_max(&unit, &no_swap).as_deref(), Some("0"));
    assert_eq!(
        swap_max(&unit, &memory(Some(100), Some(100))).as_deref(),
        Some("0")
    );
    for (limit, swap) in [(100, Some(200)), (100, Some(-1)), (-1, None)] {
        assert_eq!(
            swap_max(&unit, &memory(Some(limit), swap)),
            None,
            "{limit} {swap:?}"
        );
    }
    let own = Resources {
        unified: [(file("memory.swap.max"), "7".to_owned())].into(),
        ..no_swap.clone()
    };
    assert_eq!(
        swap_max(&unit, &own).as_deref(),
        Some("7"),
        "who names the file has it"
    );
    assert_eq!(
        swap_max(
            &Host {
                swap_accounting: false,
                ..unit.clone()
            },
            &no_swap
        ),
        None
    );
    assert_eq!(
        swap_max(
            &Host {
                cgroup_driver: CgroupDriver::Fs,
                ..unit.clone()
            },
            &no_swap
        ),
        None
    );
    // The settings reported to a client are only those that it has requested.
    assert!(
        granted(&no_swap, &unit, &mut Vec::new())
            .unwrap()
            .unified
            .is_empty()
    );
}

#[test]
fn swappiness_is_v1_only() {
    let v1 = Host {
        cgroup: CgroupVersion::V1,
        ..bare_host()
    };
    let asked = with(|r| r.memory_swappiness = Swappiness::new(0).ok());
    check(&v1, &asked, &json!({ "memory": { "swappiness": 0 } }), 0);
    let v2 = Host {
        cgroup: CgroupVersion::V2,
        ..bare_host()
    };
    refused(&v2, &asked, "memory_swappiness");
}

#[test]
fn unified_is_verbatim_on_v2_and_rejected_on_v1() {
    let asked = with(|r| drop(r.unified.insert(file("memory.high"), "1000".to_owned())));
    let v2 = Host {
        cgroup: CgroupVersion::V2,
        ..bare_host()
    };
    check(
        &v2,
        &asked,
        &json!({ "unified": { "memory.high": "1000" } }),
        0,
    );
    refused(
        &Host {
            cgroup: CgroupVersion::V1,
            ..bare_host()
        },
        &asked,
        "unified",
    );
    refused(
        &v2,
        &with(|r| drop(r.unified.insert(file("memory.high"), "a\0".to_owned()))),
        "unified",
    );
}
