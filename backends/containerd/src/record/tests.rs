//! Tests that records are decoded to what was encoded.

use std::collections::BTreeMap;

use proptest::prelude::*;
use switchyard_core::id::Owner;
use switchyard_core::spec::{
    CgroupFile, CpuQuota, CpuShares, HugepageLimit, HugepageSize, MemoryLimit, Meta, OomScoreAdj,
    Resources, Swappiness, Throttle, Throttled,
};
use switchyard_core::state::{Exit, ExitCause};

use super::*;

proptest! {
    #[test]
    fn an_exit_survives_its_label(code in any::<i32>(), at in 0..u64::MAX / 2, started in prop::option::of(0..u64::MAX / 2),
                                  cause in 0..4u8, why in "\\PC{0,200}") {
        let cause = match cause {
            0 => ExitCause::Exited,
            1 => ExitCause::OomKilled,
            2 => ExitCause::Lost,
            _ => ExitCause::StartFailed(why),
        };
        let exit = Exit { code, finished_at: from_ns(at), cause };
        let label = ExitRecord::from_core(&exit, started.map(from_ns)).to_label();
        prop_assert_eq!(ExitRecord::parse_label(&label).unwrap().to_core(), (exit, started.map(from_ns)));
    }

    #[test]
    fn the_label_of_a_failed_start_fits_whatever_the_reason(why in "\\PC{0,9000}") {
        let exit = Exit::start_failed(SystemTime::UNIX_EPOCH, why);
        let label = ExitRecord::from_core(&exit, None).to_label();
        prop_assert!(label.len() + EXIT.len() < 4096, "{} bytes", label.len());
    }

    #[test]
    fn meta_survives_with_any_bytes(name in "\\PC*", record in prop::collection::vec(any::<u8>(), 0..300), at in 0..u64::MAX / 2) {
        let meta = Meta {
            owner: Owner::Nomad,
            name,
            labels: BTreeMap::from([("a".into(), "b".into())]),
            created_at: from_ns(at),
            record,
        };
        let encoded = encode(&MetaRecord::from_core(&meta));
        let extensions = std::collections::HashMap::from([(EXTENSION.to_owned(), encoded)]);
        let decoded: MetaRecord = decode("x", &extensions).unwrap();
        prop_assert_eq!(&*decoded.to_core().unwrap(), &meta);
    }
}

/// The labels of an object whose client asks for these.
fn labels_of(asked: BTreeMap<String, String>) -> std::collections::HashMap<String, String> {
    let meta = Meta {
        owner: Owner::Kubernetes,
        name: "n".into(),
        labels: asked,
        created_at: SystemTime::UNIX_EPOCH,
        record: Vec::new(),
    };
    labels(&meta, "task", "one")
}

#[test]
fn labels_of_an_object_are_few_and_those_of_kubernetes_come_first() {
    let ours = labels_of(BTreeMap::new()).len();
    let many = |value: usize| {
        let labels = (0..60_000).map(|number| (format!("a{number:05}"), "v".repeat(value)));
        labels
            .chain([("io.kubernetes.pod.name".to_owned(), "p".to_owned())])
            .collect::<BTreeMap<_, _>>()
    };
    let labels = labels_of(many(1));
    assert_eq!(labels.len(), 256 + ours);
    assert_eq!(
        labels.get("io.kubernetes.pod.name").map(String::as_str),
        Some("p")
    );
    assert!(labels.contains_key("a00254") && !labels.contains_key("a00255"));
    // 64 KiB of 1,006 bytes each.
    let labels = labels_of(many(1000));
    assert_eq!(
        labels.keys().filter(|key| key.starts_with("a0")).count(),
        65
    );
}

#[test]
fn resources_survive() {
    let resources = Resources {
        cpu_shares: Some(CpuShares::LEAST),
        cpu_quota_us: Some(CpuQuota::UNLIMITED),
        memory_limit_bytes: MemoryLimit::new(1 << 40).ok(),
        hugepages: vec![HugepageLimit {
            page_size: HugepageSize::new("2MB").unwrap(),
            limit_bytes: 7,
        }],
        unified: BTreeMap::from([(CgroupFile::new("memory.high").unwrap(), "max".into())]),
        oom_score_adj: OomScoreAdj::new(-998).ok(),
        memory_swappiness: Swappiness::new(0).ok(),
        ..Resources::default()
    };
    assert_eq!(ResourcesRecord::from_core(&resources).to_core(), resources);
}

#[test]
fn exits_of_the_first_version_are_read_and_written() {
    let at = from_ns(1_763_900_000_123_456_789);
    let started = Some(from_ns(1_763_899_000_000_000_000));
    let exit = |code, cause| Exit {
        code,
        finished_at: at,
        cause,
    };
    let exits = [
        (exit(7, ExitCause::Exited), started),
        (exit(137, ExitCause::OomKilled), started),
        (exit(255, ExitCause::Lost), None),
        (
            exit(128, ExitCause::StartFailed("no such file".into())),
            None,
        ),
    ];
    let golden: Vec<_> = include_str!("golden/exits.jsonl").lines().collect();
    assert_eq!(golden.len(), exits.len());
    for ((exit, started), line) in exits.into_iter().zip(golden) {
        let label = ExitRecord::from_core(&exit, started).to_label();
        assert_eq!(label, line);
        let read = ExitRecord::parse_label(line).unwrap();
        assert_eq!(read.to_core(), (exit, started));
    }
}

#[test]
fn recorded_value_that_no_kernel_accepts_is_read_as_not_requested() {
    let text = r#"{
        "cpu_shares": 1, "cpu_quota_us": 999, "cpu_period_us": 999, "cpuset_cpus": "2-1", "cpuset_mems": "",
        "memory_limit_bytes": 0, "memory_swap_limit_bytes": -2, "memory_reservation_bytes": 0,
        "memory_swappiness": 101, "pids_limit": 0, "oom_score_adj": 1001, "unified": {"memory.high": "1", "../x.y": "2"}, "hugepages": [["0MB", 1]]
    }"#;
    let record: ResourcesRecord = serde_json::from_str(text).unwrap();
    let expected = Resources {
        cpu_shares: Some(CpuShares::LEAST),
        unified: BTreeMap::from([(CgroupFile::new("memory.high").unwrap(), "1".into())]),
        ..Resources::default()
    };
    assert_eq!((record.to_core(), record.oom_score_adj()), (expected, None));
}

#[test]
fn limits_on_block_devices_survive() {
    for what in [
        Throttled::ReadBytes,
        Throttled::WriteBytes,
        Throttled::Reads,
        Throttled::Writes,
    ] {
        let throttle = Throttle {
            device: "/dev/sda".into(),
            what,
            rate: 7,
        };
        let text = serde_json::to_string(&ThrottleRecord::from_core(&throttle)).unwrap();
        assert_eq!(
            serde_json::from_str::<ThrottleRecord>(&text)
                .unwrap()
                .to_core(),
            throttle
        );
    }
}

#[test]
fn a_record_of_an_unknown_type_is_refused_by_name() {
    let any = Any {
        type_url: "switchyard.io/record.v9".into(),
        value: vec![],
    };
    let extensions = std::collections::HashMap::from([(EXTENSION.to_owned(), any)]);
    let error = decode::<MetaRecord>("abc", &extensions).unwrap_err();
    assert!(
        error.report().contains("abc") && error.report().contains("v9"),
        "{}",
        error.report()
    );
}

/// The JSON of a record that an earlier version has written.
fn golden(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn records_of_this_format_are_read_and_written_without_loss() {
    let sandbox = golden(include_str!("golden/sandbox.json"));
    let read: SandboxRecord = serde_json::from_value(sandbox.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), sandbox);
    assert_eq!(read.meta.to_core().unwrap().owner, Owner::Kubernetes);
    assert_eq!(read.host_ports.unwrap().to_core().ports.len(), 2);
    assert!(read.users.unwrap().to_core().is_some());

    let task = golden(include_str!("golden/task.json"));
    let read: TaskRecord = serde_json::from_value(task.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), task);
    assert!(read.leases.iter().all(|lease| lease.to_core().is_some()));
    assert!(read.group().is_some());
    assert_eq!(
        ResourcesRecord::from_core(&read.resources.to_core()),
        read.resources
    );
}

#[test]
fn fields_of_a_later_version_stay_in_a_record_that_is_written_again() {
    let mut later = golden(include_str!("golden/task.json"));
    later["numa"] = serde_json::json!({"nodes": [0, 1], "policy": "bind"});
    later["meta"]["region"] = "north".into();
    let mut read: TaskRecord = serde_json::from_value(later.clone()).unwrap();
    read.uid = 7;
    later["uid"] = 7.into();
    assert_eq!(serde_json::to_value(&read).unwrap(), later);
    let mut later = golden(include_str!("golden/sandbox.json"));
    later["mesh"] = 1.5.into();
    let mut read: SandboxRecord = serde_json::from_value(later.clone()).unwrap();
    read.note.clear();
    later["note"] = "".into();
    assert_eq!(serde_json::to_value(&read).unwrap(), later);
}

#[test]
fn records_of_the_earliest_format_are_read_with_what_was_the_rule_then() {
    let sandbox: SandboxRecord =
        serde_json::from_value(golden(include_str!("golden/sandbox-earliest.json"))).unwrap();
    assert!(sandbox.owns(Ns::Uts) && sandbox.owns(Ns::Net) && !sandbox.owns(Ns::Ipc));
    assert_eq!(
        (sandbox.users, sandbox.host_ports, sandbox.boot.as_str()),
        (None, None, "")
    );
    let task: TaskRecord =
        serde_json::from_value(golden(include_str!("golden/task-earliest.json"))).unwrap();
    assert_eq!(
        (task.epoch, task.resources),
        (None, ResourcesRecord::default())
    );
    assert!(task.leases.is_empty() && task.compute.is_nothing() && task.quota.is_none());
    assert_eq!(
        task.output,
        OutputRecord::Log("/var/log/pods/x/0.log".into())
    );
}
