//! Reads recorded trees of cgroup files: one of a v1 node, one of a v2 node with systemd.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::path::{Path, PathBuf};

use switchyard_cgroup::{CgroupMode, Group, Hierarchy, Reader};
use switchyard_core::stats::{Detail, HugepageUsage, Usage};

fn reader(tree: &str) -> Reader {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/trees")
        .join(tree);
    Reader::new(Hierarchy::at(&root).unwrap())
}

fn group(text: &str) -> Group {
    Group::from_cgroups_path(text).unwrap()
}

fn usage(reader: &Reader, name: &str) -> Usage {
    reader.usage(&group(name)).unwrap().unwrap()
}

const SCOPE: &str = "kubepods-pod1.slice:switchyard:abc";

#[test]
fn v1_usage_includes_descendants() {
    let reader = reader("v1");
    assert_eq!(reader.hierarchy().mode(), CgroupMode::V1);
    let usage = usage(&reader, "/kubepods/pod1");
    let cpu = usage.cpu.unwrap();
    assert_eq!(
        (cpu.total_ns, cpu.user_ns, cpu.system_ns),
        (123_456_789_012, Some(10_000_000_000), Some(2_340_000_000))
    );
    assert_eq!(
        (cpu.throttled_periods, cpu.throttled_ns),
        (Some(7), Some(987_654_321))
    );
    let memory = usage.memory.unwrap();
    assert_eq!(
        (memory.usage_bytes, memory.working_set_bytes),
        (50_000_000, 40_000_000)
    );
    assert_eq!(memory.available_bytes, Some(67_108_864 - 40_000_000));
    assert_eq!(
        (memory.rss_bytes, memory.cache_bytes),
        (Some(20_000_000), Some(30_000_000))
    );
    assert_eq!(
        (
            memory.page_faults,
            memory.major_page_faults,
            memory.peak_bytes
        ),
        (Some(1234), Some(12), Some(60_000_000))
    );
    let swap = usage.swap.unwrap();
    assert_eq!(
        (swap.usage_bytes, swap.available_bytes),
        (1_000_000, Some(100_000_000 - 67_108_864 - 1_000_000))
    );
    assert_eq!(
        (memory.mapped_bytes, memory.kernel_bytes, memory.limit_hits),
        (Some(8192), Some(70_000), Some(4))
    );
    assert_eq!(
        (memory.own_page_faults, memory.own_major_page_faults),
        (Some(5), Some(6))
    );
    assert_eq!(usage.pids, Some(3));
    // From the v2 tree of the hybrid layout, which has no controllers.
    let stalled = [
        cpu.pressure,
        memory.pressure,
        usage.io.and_then(|io| io.pressure),
    ];
    assert_eq!(
        stalled.map(|pressure| pressure.map(|pressure| pressure.some.total_us)),
        [Some(11), Some(12), Some(13)]
    );
}

#[test]
fn unlimited_v1_cgroup_has_no_available_memory() {
    let usage = usage(&reader("v1"), "/kubepods/free");
    let memory = usage.memory.unwrap();
    assert_eq!(
        (
            memory.working_set_bytes,
            memory.available_bytes,
            memory.rss_bytes
        ),
        (0, None, None)
    );
    assert_eq!((usage.cpu, usage.swap, usage.pids), (None, None, None));
}

#[test]
fn v2_scope_usage_includes_pressure() {
    let reader = reader("v2");
    assert_eq!(reader.hierarchy().mode(), CgroupMode::V2);
    let usage = usage(&reader, SCOPE);
    let cpu = usage.cpu.unwrap();
    assert_eq!(
        (cpu.total_ns, cpu.user_ns, cpu.system_ns),
        (5_000_000_000, Some(3_000_000_000), Some(2_000_000_000))
    );
    assert_eq!(
        (cpu.throttled_periods, cpu.throttled_ns),
        (Some(2), Some(1_500_000))
    );
    let pressure = cpu.pressure.unwrap();
    assert_eq!(
        (
            pressure.some.total_us,
            pressure.full.map(|full| full.total_us)
        ),
        (4200, Some(1700))
    );
    assert!((pressure.some.avg10 - 1.5).abs() < f64::EPSILON);
    let memory = usage.memory.unwrap();
    assert_eq!(
        (
            memory.usage_bytes,
            memory.working_set_bytes,
            memory.available_bytes
        ),
        (40_000_000, 32_000_000, Some(32_000_000))
    );
    assert_eq!(
        (memory.rss_bytes, memory.cache_bytes, memory.peak_bytes),
        (Some(30_000_000), Some(9_000_000), Some(45_000_000))
    );
    assert_eq!(
        (memory.page_faults, memory.major_page_faults),
        (Some(77), Some(3))
    );
    assert_eq!(memory.pressure.unwrap().full.unwrap().total_us, 7);
    assert_eq!(usage.io.unwrap().pressure.unwrap().some.total_us, 5);
    let swap = usage.swap.unwrap();
    assert_eq!(
        (swap.usage_bytes, swap.available_bytes, usage.pids),
        (1000, Some(4000), Some(2))
    );
    let more = (
        memory.mapped_bytes,
        memory.kernel_bytes,
        memory.limit_hits,
        memory.own_page_faults,
    );
    assert_eq!(more, (Some(4096), Some(90_000), Some(9), None));
}

fn detail(tree: &str, name: &str) -> Detail {
    reader(tree)
        .pass()
        .detail(&group(name), None)
        .unwrap()
        .unwrap()
}

#[test]
fn v1_detail_is_by_device_and_page_size() {
    let Detail {
        oom_kills,
        devices,
        hugepages,
        processes,
        threads_limit,
        ..
    } = detail("v1", "/kubepods/pod1");
    assert_eq!((oom_kills, processes), (Some(3), Some(3)));
    // The group has no limit of its own; that of its parent applies.
    assert_eq!(threads_limit, Some(900));
    let [device] = devices.as_slice() else {
        panic!("{devices:?}")
    };
    // No node has a device with these numbers.
    assert_eq!(
        (device.device.as_str(), device.major, device.minor),
        ("254:999", 254, 999)
    );
    let pairs = |counts: &[(String, u64)]| {
        counts
            .iter()
            .map(|(op, n)| format!("{op} {n}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        pairs(&device.bytes),
        ["Read 8192", "Write 4096", "Total 12288"]
    );
    assert_eq!(pairs(&device.operations), ["Read 2", "Write 1"]);
    let pages = HugepageUsage {
        page_size: "2MB".into(),
        usage_bytes: 2 << 20,
        peak_bytes: Some(4 << 20),
    };
    assert_eq!(hugepages, [pages]);
}

#[test]
fn group_without_hugetlb_directory_hides_no_huge_pages_of_others() {
    let reader = reader("v1");
    let mut pass = reader.pass();
    let mut hugepages = |name| pass.detail(&group(name), None).unwrap().unwrap().hugepages;
    assert_eq!(hugepages("/kubepods/free"), []);
    assert_eq!(hugepages("/kubepods/pod1").len(), 1);
}

#[test]
fn v2_detail_omits_unavailable_peaks() {
    let Detail {
        oom_kills,
        devices,
        hugepages,
        processes,
        threads_limit,
        ..
    } = detail("v2", SCOPE);
    assert_eq!(
        (oom_kills, processes, threads_limit),
        (Some(2), Some(1), Some(77))
    );
    assert_eq!(devices[0].bytes[0], ("Read".to_owned(), 4096));
    assert_eq!(devices[0].operations[1], ("Write".to_owned(), 2));
    assert_eq!(
        hugepages,
        [HugepageUsage {
            page_size: "1GB".into(),
            usage_bytes: 0,
            peak_bytes: None
        }]
    );
}

#[test]
fn cgroup_of_exited_processes_has_no_file_limits() {
    // The ids in the recorded lists are of processes on another node; these are of no process.
    let read = detail("v1", "/kubepods/pod1/inner");
    assert_eq!(read.open_files_limit, None);
    assert_eq!(
        reader("v1")
            .pass()
            .detail(&group("/kubepods/none"), None)
            .unwrap(),
        None
    );
}

#[test]
fn limits_of_a_crun_scope_come_from_its_inner_cgroup() {
    let reader = reader("v2");
    let usage = usage(&reader, "kubepods-pod1.slice:switchyard:crun");
    let cpu = usage.cpu.unwrap();
    assert_eq!(
        (cpu.total_ns, cpu.throttled_periods, cpu.throttled_ns),
        (5_000_000_000, Some(2), Some(1_500_000))
    );
    let memory = usage.memory.unwrap();
    assert_eq!(
        (memory.working_set_bytes, memory.available_bytes),
        (32_000_000, Some(32_000_000))
    );
    assert_eq!(usage.swap.unwrap().available_bytes, Some(4000));
    let scope = group("kubepods-pod1.slice:switchyard:crun");
    assert_eq!(reader.procs(&scope).unwrap(), Some(vec![42]));
    assert_eq!(reader.oom_kills(&scope).unwrap(), Some(1));
}

#[test]
fn unlimited_v2_cgroup_has_no_available_memory() {
    let usage = usage(&reader("v2"), "/free");
    assert_eq!(usage.memory.unwrap().available_bytes, None);
    assert_eq!(usage.swap.unwrap().available_bytes, None);
}

#[test]
fn oom_kills_are_counted_on_v1_and_v2() {
    assert_eq!(
        reader("v1").oom_kills(&group("/kubepods/pod1")).unwrap(),
        Some(3)
    );
    assert_eq!(reader("v2").oom_kills(&group(SCOPE)).unwrap(), Some(2));
    assert_eq!(reader("v2").oom_kills(&group("/free")).unwrap(), Some(1));
}

#[test]
fn processes_include_descendant_cgroups() {
    assert_eq!(
        reader("v1").procs(&group("/kubepods/pod1")).unwrap(),
        Some(vec![10, 20, 30])
    );
    assert_eq!(reader("v2").procs(&group(SCOPE)).unwrap(), Some(vec![42]));
}

#[test]
fn missing_cgroup_is_none_and_removal_succeeds() {
    for tree in ["v1", "v2"] {
        let reader = reader(tree);
        let gone = group("/kubepods/gone");
        assert_eq!(reader.usage(&gone).unwrap(), None);
        assert_eq!(reader.oom_kills(&gone).unwrap(), None);
        assert_eq!(reader.procs(&gone).unwrap(), None);
        assert!(reader.watch_oom(&gone).unwrap().is_none());
        reader.remove(&gone).unwrap();
    }
}

#[test]
fn removal_is_depth_first_and_deletes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["memory/a/b/c", "memory/a/d", "cpu/a", "unified/a/x"] {
        std::fs::create_dir_all(dir.path().join(path)).unwrap();
    }
    let reader = Reader::new(Hierarchy::at(dir.path()).unwrap());
    reader.remove(&group("/a")).unwrap();
    for path in ["memory/a", "cpu/a", "unified/a"] {
        assert!(!dir.path().join(path).exists(), "{path}");
    }
    let file: PathBuf = dir.path().join("memory/b/file");
    std::fs::create_dir_all(dir.path().join("memory/b")).unwrap();
    std::fs::create_dir_all(dir.path().join("unified/b")).unwrap();
    std::fs::write(&file, b"").unwrap();
    assert!(reader.remove(&group("/b")).is_err());
    assert!(file.exists() && !dir.path().join("unified/b").exists());
}
