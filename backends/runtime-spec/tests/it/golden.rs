//! Specs against golden files. `SWITCHYARD_REGENERATE_GOLDEN=1 cargo test` rewrites them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;
use switchyard_core::spec::{
    CgroupFile, CgroupPlacement, CpuList, CpuPeriod, CpuQuota, CpuShares, DeviceNode, EnvVar,
    HugepageLimit, HugepageSize, MemoryLimit, MissingSource, Mount, MountSource, OomScoreAdj,
    PidMode, PidsLimit, Propagation, Rlimit, SeccompProfile, SelinuxLabel,
};
use switchyard_runtime_spec::cgroups_path::cgroups_path;
use switchyard_runtime_spec::infra::{self, InfraInput};
use switchyard_runtime_spec::input::SelinuxDefaults;
use switchyard_runtime_spec::oci::Capabilities;
use switchyard_runtime_spec::seccomp::default_filter;
use switchyard_runtime_spec::{
    Arch, Built, CgroupDriver, CgroupVersion, DEFAULT_MASKED_PATHS, DEFAULT_READONLY_PATHS, Host,
    Namespace,
};

use crate::support::{Case, bare_host, words};

/// Compares with `tests/golden/<name>.json`; the long filter is replaced by its size, it has files of its
/// own.
#[track_caller]
fn check(name: &str, built: Built) {
    let mut spec = built.spec;
    if let Some(filter) = spec.pointer_mut("/linux/seccomp") {
        let rules = filter["syscalls"].as_array().map_or(0, Vec::len);
        *filter = format!("{} with {rules} rules", filter["defaultAction"]).into();
    }
    let mut whole = serde_json::Map::new();
    whole.insert("spec".to_owned(), spec);
    whole.insert("warnings".to_owned(), built.warnings.into());
    compare(name, &Value::Object(whole));
}

#[track_caller]
fn compare(name: &str, made: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(&sorted(made)).unwrap() + "\n";
    if std::env::var_os("SWITCHYARD_REGENERATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "{} differs:\n{}",
        path.display(),
        diff(&expected, &text)
    );
}

/// The same value with the keys of all objects sorted: serde_json keeps their order if any crate of the build
/// enables that.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<&String, Value> = map
                .iter()
                .map(|(key, value)| (key, sorted(value)))
                .collect();
            Value::Object(
                ordered
                    .into_iter()
                    .map(|(key, value)| (key.clone(), value))
                    .collect(),
            )
        }
        Value::Array(list) => Value::Array(list.iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Lines that are only in one of the texts, with the line before the first of them.
fn diff(expected: &str, made: &str) -> String {
    let old: Vec<&str> = expected.lines().collect();
    let new: Vec<&str> = made.lines().collect();
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old[same..]
        .iter()
        .rev()
        .zip(new[same..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let mut text = format!("@@ line {}\n", same + 1);
    for line in &old[same..old.len() - tail] {
        let _ = writeln!(text, "-{line}");
    }
    for line in &new[same..new.len() - tail] {
        let _ = writeln!(text, "+{line}");
    }
    text
}

#[test]
fn plain() {
    check("plain", Case::plain().build().unwrap());
}

#[test]
fn privileged() {
    let mut case = Case::privileged();
    case.host.cgroup = CgroupVersion::V1;
    case.task.security.seccomp = SeccompProfile::RuntimeDefault;
    case.task.security.masked_paths = DEFAULT_MASKED_PATHS.iter().map(PathBuf::from).collect();
    check("privileged", case.build().unwrap());
}

#[test]
fn host_namespaces() {
    let mut case = Case::plain();
    case.sandbox.network = Namespace::Host;
    case.sandbox.ipc = Namespace::Host;
    case.sandbox.uts = Namespace::Host;
    case.sandbox.pid = Some(Namespace::Host);
    case.sandbox.shm = Some(PathBuf::from("/dev/shm"));
    case.task.pid = PidMode::Sandbox;
    check("host-namespaces", case.build().unwrap());
}

#[test]
fn cgroup_v2_with_systemd() {
    let mut case = Case::plain();
    let parent = CgroupPlacement::Parent(PathBuf::from("/kubepods.slice/kubepods-pod1.slice"));
    let place = cgroups_path(&parent, "abc", CgroupDriver::Systemd, "switchyard").unwrap();
    assert!(place.systemd);
    case.cgroups_path = place.path;
    let resources = &mut case.task.resources;
    resources.cpu_shares = Some(CpuShares::clamped(512));
    resources.cpu_quota_us = CpuQuota::new(50_000).ok();
    resources.cpu_period_us = CpuPeriod::new(100_000).ok();
    resources.cpuset_cpus = CpuList::new("0-1").ok();
    resources.memory_limit_bytes = MemoryLimit::new(64 << 20).ok();
    resources.memory_reservation_bytes = MemoryLimit::new(32 << 20).ok();
    resources.pids_limit = PidsLimit::new(100).ok();
    resources.oom_score_adj = OomScoreAdj::new(-997).ok();
    resources.unified.insert(
        CgroupFile::new("memory.high").unwrap(),
        "60000000".to_owned(),
    );
    check("cgroup-v2-systemd", case.build().unwrap());
}

#[test]
fn tty_as_root_of_a_node_without_sys_resource() {
    let mut case = Case::plain();
    case.host = Host {
        cgroup: CgroupVersion::V1,
        swap_accounting: false,
        seccomp: false,
        oom_score_adj: OomScoreAdj::default(),
        capabilities: bare_host()
            .capabilities
            .into_iter()
            .filter(|name| name != "CAP_SYS_RESOURCE")
            .collect(),
        hard_rlimits: BTreeMap::from([("RLIMIT_NOFILE".to_owned(), 4096)]),
        ..bare_host()
    };
    case.task.stdio.tty = true;
    case.task.command = words(&["sh"]);
    case.task.args = Vec::new();
    case.task.cwd = Some(PathBuf::from("/tmp"));
    case.task.env = vec![EnvVar {
        name: "RAW".to_owned(),
        value: vec![b'a', 0xff],
    }];
    case.task.security.capabilities.add = words(&["SYS_RESOURCE", "NET_ADMIN"]);
    case.task.security.seccomp = SeccompProfile::RuntimeDefault;
    case.task.rlimits = vec![Rlimit {
        name: "nofile".to_owned(),
        soft: 1024,
        hard: 65_536,
    }];
    case.task.resources.memory_limit_bytes = MemoryLimit::new(64 << 20).ok();
    case.task.resources.oom_score_adj = OomScoreAdj::new(-500).ok();
    check("tty", case.build().unwrap());
}

#[test]
fn readonly_and_confined() {
    let mut case = Case::plain();
    case.host.apparmor = Some("switchyard-default".to_owned());
    case.host.selinux = Some(SelinuxDefaults::default());
    case.sandbox.selinux = Some(SelinuxLabel {
        level: "s0:c1,c2".to_owned(),
        ..Default::default()
    });
    let security = &mut case.task.security;
    security.readonly_rootfs = true;
    security.no_new_privileges = true;
    security.capabilities.drop = words(&["ALL"]);
    security.seccomp = SeccompProfile::RuntimeDefault;
    security.masked_paths = DEFAULT_MASKED_PATHS.iter().map(PathBuf::from).collect();
    security.readonly_paths = DEFAULT_READONLY_PATHS.iter().map(PathBuf::from).collect();
    check("readonly", case.build().unwrap());
}

#[test]
fn hugepages() {
    let mut case = Case::plain();
    case.host.hugepage_sizes = words(&["2MB"]);
    let limit = |size: &str, limit_bytes| HugepageLimit {
        page_size: HugepageSize::new(size).unwrap(),
        limit_bytes,
    };
    case.task.resources.hugepages = vec![
        limit("2MB", 4 << 20),
        limit("1GB", 0),
        limit("64KB", 1 << 20),
    ];
    check("hugepages", case.build().unwrap());
}

#[test]
fn mounts_and_devices() {
    let mut case = Case::plain();
    let host = |destination: &str, path: &str, propagation| {
        let source = MountSource::Host {
            path: PathBuf::from(path),
            missing: MissingSource::CreateDir,
        };
        Mount {
            propagation,
            ..Mount::new(destination, source)
        }
    };
    let readonly = Mount {
        readonly: true,
        options: words(&["noexec"]),
        ..host("/data", "/link", Propagation::Private)
    };
    let recursive = Mount {
        recursive_readonly: true,
        ..Mount {
            options: Vec::new(),
            destination: "/rro".into(),
            ..readonly.clone()
        }
    };
    let tmpfs = Mount::new(
        "/data/tmp",
        MountSource::Tmpfs {
            size_bytes: 1 << 20,
            mode: 0o1777,
        },
    );
    case.task.mounts = vec![
        host("/a/b/c", "/shared/x", Propagation::Bidirectional),
        tmpfs,
        readonly,
        host("/etc/hosts", "/srv/hosts", Propagation::Private),
        host("/a", "/slave/y", Propagation::HostToTask),
        recursive,
    ];
    let device = |host: &str, inside: &str, permissions: &str| DeviceNode {
        host_path: PathBuf::from(host),
        container_path: PathBuf::from(inside),
        permissions: permissions.to_owned(),
    };
    case.task.devices = vec![
        device("/dev/fuse", "/dev/fuse", "rw"),
        device("/dev/snd", "/dev/audio", "r"),
    ];
    check("mounts-and-devices", case.build().unwrap());
}

#[test]
fn infra() {
    let case = Case::plain();
    let built = infra::build(&InfraInput {
        command: words(&["/pause"]),
        user: &case.user,
        sandbox: &case.sandbox,
        host: &case.host,
        cgroups_path: "/kubepods/pod1/sandbox",
        annotations: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
    });
    check("infra", built.unwrap());
}

#[test]
fn default_seccomp_filters() {
    let none = Capabilities::default();
    let every = Capabilities {
        bounding: bare_host().capabilities,
        ..Default::default()
    };
    for (name, arch, capabilities) in [
        ("seccomp-x86_64", Arch::X86_64, &none),
        ("seccomp-x86_64-all-capabilities", Arch::X86_64, &every),
        ("seccomp-aarch64", Arch::Aarch64, &none),
    ] {
        let filter = default_filter(
            &Host {
                arch,
                ..bare_host()
            },
            capabilities,
        );
        compare(name, &serde_json::to_value(filter).unwrap());
    }
}
