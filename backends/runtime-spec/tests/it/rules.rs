//! The rules of a whole spec, each tested by itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use switchyard_core::id::TaskId;
use switchyard_core::spec::{
    DeviceNode, IoWeight, MissingSource, Mount, MountSource, PidMode, Propagation, Rlimit,
    SeccompProfile, Throttle, Throttled,
};
use switchyard_core::{ErrorKind, Reason};
use switchyard_runtime_spec::input::{DeviceInfo, HostNode, HostPropagation, SelinuxDefaults};
use switchyard_runtime_spec::{
    HostFs, ImageVolume, Namespace, ResolvedMount, ResolvedSource, Staging, depends_on_host_paths,
    has_net_admin,
};

use crate::support::{Case, FakeFs, words};

mod mounts;
mod relabel;
mod renamed;

fn bind(destination: &str, source: &str) -> Mount {
    Mount::new(
        destination,
        MountSource::Host {
            path: PathBuf::from(source),
            missing: MissingSource::Fail,
        },
    )
}

/// Counts the accesses to files that clients may choose.
#[derive(Default)]
struct CountingFs(AtomicUsize);

impl CountingFs {
    fn count(&self) -> &FakeFs {
        self.0.fetch_add(1, Ordering::Relaxed);
        &FakeFs
    }
}

impl HostFs for CountingFs {
    fn source(&self, path: &Path, missing: MissingSource) -> io::Result<PathBuf> {
        self.count().source(path, missing)
    }

    fn propagation(&self, path: &Path) -> io::Result<HostPropagation> {
        FakeFs.propagation(path)
    }

    fn node(&self, path: &Path) -> io::Result<HostNode> {
        self.count().node(path)
    }

    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>> {
        self.count().all_devices()
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.count().read(path, limit)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        FakeFs.list(dir)
    }
}

#[test]
fn spec_that_depends_on_no_host_path_accesses_none() {
    let disk = || PathBuf::from("/dev/sda");
    let changes: [fn(&mut Case, PathBuf); 6] = [
        |_, _| {},
        |case, disk| {
            let permissions = "r".to_owned();
            case.task.devices.push(DeviceNode {
                host_path: disk.clone(),
                container_path: disk,
                permissions,
            });
        },
        |case, disk| {
            case.task.throttles.push(Throttle {
                device: disk,
                what: Throttled::Reads,
                rate: 1,
            })
        },
        |case, disk| {
            case.task.io_weights.push(IoWeight {
                device: Some(disk),
                weight: 10,
            })
        },
        |case, profile| case.task.security.seccomp = SeccompProfile::Localhost(profile),
        |case, _| *case = Case::privileged(),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut case = Case::plain();
        case.sandbox.network = Namespace::Host;
        case.task.net_priority = Some(1);
        case.host.net_priorities = true;
        change(&mut case, disk());
        let fs = CountingFs::default();
        // The file of the profile is not there.
        let _ = case.build_with(&fs);
        let accesses = fs.0.into_inner() > 0;
        assert_eq!(
            (accesses, depends_on_host_paths(&case.task)),
            (number > 0, number > 0),
            "{number}"
        );
    }
    let mut case = Case::plain();
    case.task.cdi_devices = words(&["vendor.com/gpu=0"]);
    assert!(depends_on_host_paths(&case.task));
}

fn destinations(spec: &Value) -> Vec<&str> {
    spec["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["destination"].as_str().unwrap())
        .collect()
}

fn namespace<'a>(spec: &'a Value, kind: &str) -> Option<&'a Value> {
    spec["linux"]["namespaces"]
        .as_array()
        .unwrap()
        .iter()
        .find(|namespace| namespace["type"] == kind)
}

#[track_caller]
fn args(change: impl FnOnce(&mut Case), expected: &[&str]) {
    let mut case = Case::plain();
    case.task.args = Vec::new();
    change(&mut case);
    assert_eq!(
        case.build().unwrap().spec["process"]["args"],
        Value::from(words(expected))
    );
}

#[test]
fn command_replaces_entrypoint_and_drops_the_images_command() {
    args(|_| {}, &["/bin/web", "--help"]);
    args(|case| case.task.args = words(&["x"]), &["/bin/web", "x"]);
    args(|case| case.task.command = words(&["sh"]), &["sh"]);
    args(
        |case| (case.task.command, case.task.args) = (words(&["sh"]), words(&["-c"])),
        &["sh", "-c"],
    );
    args(|case| case.image.entrypoint = Vec::new(), &["--help"]);
}

#[test]
fn empty_command_is_rejected_by_name() {
    let mut case = Case::plain();
    (case.task.args, case.image.entrypoint, case.image.cmd) = (Vec::new(), Vec::new(), Vec::new());
    assert!(case.refused().starts_with("command: nothing to run"));
    case.task.command = words(&["a\0b"]);
    assert!(case.refused().starts_with("command: "));
}

#[test]
fn environment_order_is_image_hostname_request() {
    let mut case = Case::plain();
    case.image.env = words(&["HOSTNAME=image", "A=1", "broken"]);
    case.task.env = vec![switchyard_core::spec::EnvVar {
        name: "A".to_owned(),
        value: b"2".to_vec(),
    }];
    let built = case.build().unwrap();
    let path = format!(
        "PATH={}",
        switchyard_runtime_spec::environment::DEFAULT_PATH
    );
    assert_eq!(
        built.spec["process"]["env"],
        Value::from(words(&["HOSTNAME=web-1", "A=2", &path]))
    );
    assert_eq!(built.warnings.len(), 1);
    // One warning for all that is malformed.
    case.image.env = vec!["a".repeat(1000); 1000];
    let built = case.build().unwrap();
    let lines: Vec<_> = built
        .warnings
        .iter()
        .filter(|warning| warning.starts_with("1000 lines"))
        .collect();
    assert!(
        built.warnings.len() == 1 && lines.iter().all(|line| line.len() < 300),
        "{:?}",
        built.warnings
    );
}

#[test]
fn privileged_task_needs_a_privileged_sandbox() {
    let mut case = Case::privileged();
    case.sandbox.privileged = false;
    assert!(case.refused().starts_with("security.privileged: "));
}

#[test]
fn task_has_net_admin_if_a_process_of_it_can_get_it() {
    let has = |case: &Case| has_net_admin(&case.build().unwrap().spec);
    for (added, dropped, ambient, expected) in [
        ("", "", "", false),
        ("NET_RAW SYS_ADMIN", "", "", false),
        ("NET_ADMIN", "", "", true),
        ("CAP_NET_ADMIN", "ALL", "", true),
        ("ALL", "", "", true),
        ("ALL", "NET_ADMIN", "", false),
        ("NET_ADMIN", "NET_ADMIN", "", false),
        ("", "", "NET_ADMIN", true),
        ("", "", "NET_BIND_SERVICE", false),
    ] {
        let mut case = Case::plain();
        let capabilities = &mut case.task.security.capabilities;
        let names = |text: &str| words(&text.split_whitespace().collect::<Vec<_>>());
        capabilities.add = names(added);
        capabilities.drop = names(dropped);
        capabilities.add_ambient = names(ambient);
        assert_eq!(has(&case), expected, "{added:?} {dropped:?} {ambient:?}");
        // What the node itself lacks, no task gets.
        case.host
            .capabilities
            .retain(|name| name != "CAP_NET_ADMIN");
        assert!(!has(&case), "{added:?} {dropped:?} {ambient:?}");
    }
    assert!(has(&Case::privileged()));
    assert!(!has_net_admin(&Value::Null));
}

#[test]
fn pid_namespaces_follow_the_request() {
    let mut case = Case::plain();
    assert_eq!(
        namespace(&case.build().unwrap().spec, "pid")
            .unwrap()
            .get("path"),
        None
    );
    case.task.pid = PidMode::Host;
    assert_eq!(namespace(&case.build().unwrap().spec, "pid"), None);
    case.task.pid = PidMode::Sandbox;
    assert!(case.refused().starts_with("pid: "));
    case.sandbox.pid = Some(Namespace::Path(PathBuf::from("/proc/7/ns/pid")));
    assert_eq!(
        namespace(&case.build().unwrap().spec, "pid").unwrap()["path"],
        "/proc/7/ns/pid"
    );
    case.task.pid = PidMode::Target(TaskId::from_bytes([7; 32]));
    assert_eq!(
        case.build().unwrap_err().kind(),
        ErrorKind::FailedPrecondition
    );
    case.target_pid = Some(PathBuf::from("/proc/8/ns/pid"));
    assert_eq!(
        namespace(&case.build().unwrap().spec, "pid").unwrap()["path"],
        "/proc/8/ns/pid"
    );
}

#[test]
fn cgroup_namespace_is_private_on_v2_unless_privileged() {
    assert!(namespace(&Case::plain().build().unwrap().spec, "cgroup").is_some());
    assert!(namespace(&Case::privileged().build().unwrap().spec, "cgroup").is_none());
    let mut case = Case::plain();
    case.host.cgroup = switchyard_runtime_spec::CgroupVersion::V1;
    assert!(namespace(&case.build().unwrap().spec, "cgroup").is_none());
}

#[test]
fn invalid_devices_are_rejected_by_name() {
    for (host, inside, permissions) in [
        ("/dev/none", "/dev/x", "r"),
        ("/etc/passwd", "/dev/x", "r"),
        ("/dev/fuse", "dev/x", "r"),
        ("/dev/fuse", "/dev/x", "rx"),
    ] {
        let mut case = Case::plain();
        case.task.devices = vec![DeviceNode {
            host_path: PathBuf::from(host),
            container_path: PathBuf::from(inside),
            permissions: permissions.to_owned(),
        }];
        assert!(
            case.refused().starts_with("devices: "),
            "{}",
            case.refused()
        );
    }
}

#[test]
fn privileged_task_has_all_devices_and_no_masked_paths() {
    let mut case = Case::privileged();
    case.task.security.masked_paths = vec![PathBuf::from("/proc/keys")];
    let spec = case.build().unwrap().spec;
    let rules = spec["linux"]["resources"]["devices"].as_array().unwrap();
    assert_eq!(rules.len(), 1);
    assert_eq!(
        (&rules[0]["allow"], &rules[0]["access"]),
        (&Value::from(true), &Value::from("rwm"))
    );
    assert_eq!(spec["linux"]["devices"].as_array().unwrap().len(), 2);
    assert_eq!(spec["linux"].get("maskedPaths"), None);
}

#[test]
fn rlimits_are_validated_and_clamped() {
    let limit = |name: &str, soft, hard| Rlimit {
        name: name.to_owned(),
        soft,
        hard,
    };
    let mut case = Case::plain();
    case.task.rlimits = vec![limit("RLIMIT_BOGUS", 1, 1)];
    assert!(case.refused().starts_with("rlimits: "));
    case.task.rlimits = vec![limit("RLIMIT_CORE", 2, 1)];
    assert!(case.refused().starts_with("rlimits: "));
    case.task.rlimits = vec![limit("RLIMIT_CORE", 1, 1), limit("core", 0, u64::MAX)];
    let built = case.build().unwrap();
    let expected = serde_json::json!([{ "type": "RLIMIT_CORE", "hard": u64::MAX, "soft": 0 }]);
    assert_eq!(
        (&built.spec["process"]["rlimits"], built.warnings.len()),
        (&expected, 0)
    );
}

#[test]
fn block_device_limits_use_device_numbers() {
    let limit = |device: &str, what, rate| Throttle {
        device: device.into(),
        what,
        rate,
    };
    let mut case = Case::plain();
    case.task.throttles = vec![
        limit("/dev/sda", Throttled::ReadBytes, 1),
        limit("/dev/sda", Throttled::ReadBytes, 2),
        limit("/dev/sda", Throttled::WriteBytes, 3),
        limit("/dev/sda", Throttled::Reads, 4),
        limit("/dev/sda", Throttled::Writes, 5),
    ];
    let rate = |rate| serde_json::json!([{ "major": 8, "minor": 0, "rate": rate }]);
    let expected = serde_json::json!({
        "throttleReadBpsDevice": rate(2),
        "throttleWriteBpsDevice": rate(3),
        "throttleReadIOPSDevice": rate(4),
        "throttleWriteIOPSDevice": rate(5),
    });
    assert_eq!(
        case.build().unwrap().spec["linux"]["resources"]["blockIO"],
        expected
    );
    for (device, rate) in [
        ("/dev/sda", 0),
        ("/dev/fuse", 1),
        ("/etc/passwd", 1),
        ("/missing", 1),
    ] {
        case.task.throttles = vec![limit(device, Throttled::Reads, rate)];
        assert!(case.refused().starts_with("throttles: "), "{device}");
    }
}

#[test]
fn network_priorities_cover_only_physical_host_interfaces() {
    let mut case = Case::plain();
    case.task.net_priority = Some(7);
    case.host.net_priorities = true;
    assert!(
        case.refused().starts_with(
            "net_priority: is not supported: the kernel has priorities for the host's"
        )
    );
    case.sandbox.network = Namespace::Host;
    let expected = serde_json::json!({
        "priorities": [{ "name": "eth0", "priority": 7 }, { "name": "vlan7", "priority": 7 }],
    });
    assert_eq!(
        case.build().unwrap().spec["linux"]["resources"]["network"],
        expected
    );
    case.host.net_priorities = false;
    assert!(
        case.refused()
            .starts_with("net_priority: is not supported: this node has no controller net_prio")
    );
}

#[test]
fn block_device_weights_are_applied_or_rejected() {
    let share = |device: Option<&str>, weight| IoWeight {
        device: device.map(Into::into),
        weight,
    };
    let mut case = Case::plain();
    case.task.io_weights = vec![
        share(None, 10),
        share(None, 500),
        share(Some("/dev/sda"), 1000),
    ];
    let expected = serde_json::json!({
        "weight": 500,
        "weightDevice": [{ "major": 8, "minor": 0, "weight": 1000 }],
    });
    assert_eq!(
        case.build().unwrap().spec["linux"]["resources"]["blockIO"],
        expected
    );
    for bad in [
        share(None, 9),
        share(None, 1001),
        share(Some("/dev/fuse"), 10),
    ] {
        case.task.io_weights = vec![bad];
        assert!(case.refused().starts_with("blkio_weight: "));
    }
    case.task.io_weights = vec![share(None, 500)];
    case.host.io_weights = false;
    assert!(
        case.refused()
            .starts_with("blkio_weight: is not supported: ")
    );
}
