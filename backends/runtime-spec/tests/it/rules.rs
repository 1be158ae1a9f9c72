//! The rules of a whole spec, each tested by itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use switchyard_core::id::TaskId;
use switchyard_core::spec::{
    DeviceNode, IoWeight, MissingSource, Mount, MountSource, PidMode, Propagation, Rlimit, SeccompProfile,
    Throttle, Throttled,
};
use switchyard_core::{ErrorKind, Reason};
use switchyard_runtime_spec::input::{DeviceInfo, HostNode, HostPropagation, SelinuxDefaults};
use switchyard_runtime_spec::{
    HostFs, ImageVolume, Namespace, ResolvedMount, ResolvedSource, Staging, depends_on_host_paths,
};

use crate::support::{Case, FakeFs, words};

fn bind(destination: &str, source: &str) -> Mount {
    Mount::new(destination, MountSource::Host { path: PathBuf::from(source), missing: MissingSource::Fail })
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
            case.task.devices.push(DeviceNode { host_path: disk.clone(), container_path: disk, permissions });
        },
        |case, disk| case.task.throttles.push(Throttle { device: disk, what: Throttled::Reads, rate: 1 }),
        |case, disk| case.task.io_weights.push(IoWeight { device: Some(disk), weight: 10 }),
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
        assert_eq!((accesses, depends_on_host_paths(&case.task)), (number > 0, number > 0), "{number}");
    }
    let mut case = Case::plain();
    case.task.cdi_devices = words(&["vendor.com/gpu=0"]);
    assert!(depends_on_host_paths(&case.task));
}

fn destinations(spec: &Value) -> Vec<&str> {
    spec["mounts"].as_array().unwrap().iter().map(|mount| mount["destination"].as_str().unwrap()).collect()
}

fn namespace<'a>(spec: &'a Value, kind: &str) -> Option<&'a Value> {
    spec["linux"]["namespaces"].as_array().unwrap().iter().find(|namespace| namespace["type"] == kind)
}

#[track_caller]
fn args(change: impl FnOnce(&mut Case), expected: &[&str]) {
    let mut case = Case::plain();
    case.task.args = Vec::new();
    change(&mut case);
    assert_eq!(case.build().unwrap().spec["process"]["args"], Value::from(words(expected)));
}

#[test]
fn command_replaces_entrypoint_and_drops_the_images_command() {
    args(|_| {}, &["/bin/web", "--help"]);
    args(|case| case.task.args = words(&["x"]), &["/bin/web", "x"]);
    args(|case| case.task.command = words(&["sh"]), &["sh"]);
    args(|case| (case.task.command, case.task.args) = (words(&["sh"]), words(&["-c"])), &["sh", "-c"]);
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
    case.task.env = vec![switchyard_core::spec::EnvVar { name: "A".to_owned(), value: b"2".to_vec() }];
    let built = case.build().unwrap();
    let path = format!("PATH={}", switchyard_runtime_spec::environment::DEFAULT_PATH);
    assert_eq!(built.spec["process"]["env"], Value::from(words(&["HOSTNAME=web-1", "A=2", &path])));
    assert_eq!(built.warnings.len(), 1);
    // One warning for all that is malformed.
    case.image.env = vec!["a".repeat(1000); 1000];
    let built = case.build().unwrap();
    let lines: Vec<_> = built.warnings.iter().filter(|warning| warning.starts_with("1000 lines")).collect();
    assert!(built.warnings.len() == 1 && lines.iter().all(|line| line.len() < 300), "{:?}", built.warnings);
}

#[test]
fn privileged_task_needs_a_privileged_sandbox() {
    let mut case = Case::privileged();
    case.sandbox.privileged = false;
    assert!(case.refused().starts_with("security.privileged: "));
}

#[test]
fn mounts_are_sorted_by_depth_and_replace_the_default_ones() {
    let mut case = Case::plain();
    case.task.mounts =
        vec![bind("/x/y/z", "/a"), bind("/x", "/b"), bind("/dev/shm", "/c"), bind("/etc//hosts/", "/d")];
    let spec = case.build().unwrap().spec;
    let list = destinations(&spec);
    let place = |path: &str| list.iter().position(|other| *other == path).unwrap();
    assert!(place("/x") < place("/x/y/z") && place("/dev") < place("/dev/shm"), "{list:?}");
    for path in ["/dev/shm", "/etc/hosts"] {
        assert_eq!(list.iter().filter(|other| **other == path).count(), 1, "{list:?}");
    }
    assert_eq!(spec["mounts"][place("/etc/hosts")]["source"], "/d");
}

#[test]
fn mount_at_dev_replaces_everything_below() {
    let mut case = Case::plain();
    case.task.mounts = vec![bind("/dev", "/dev")];
    let spec = case.build().unwrap().spec;
    assert!(destinations(&spec).iter().all(|path| !path.starts_with("/dev/")), "{:?}", destinations(&spec));
}

#[test]
fn shm_follows_the_ipc_namespace() {
    let shm = |case: &Case| {
        let spec = case.build().unwrap().spec;
        let place = destinations(&spec).iter().position(|path| *path == "/dev/shm").unwrap();
        (spec["mounts"][place]["type"].clone(), spec["mounts"][place]["source"].clone())
    };
    let mut case = Case::plain();
    assert_eq!(shm(&case), ("bind".into(), "/run/switchyard/sandbox/shm".into()));
    case.sandbox.shm = None;
    assert_eq!(shm(&case), ("tmpfs".into(), "shm".into()));
    case.sandbox.ipc = Namespace::Host;
    assert_eq!(shm(&case), ("bind".into(), "/dev/shm".into()));
}

#[test]
fn mount_overrides_an_image_volume() {
    let mut case = Case::plain();
    let volume = |path: &str| ImageVolume {
        destination: PathBuf::from(path),
        source: ResolvedSource::unstaged(PathBuf::from("/volumes/1")),
    };
    case.volumes = vec![volume("/data"), volume("/cache")];
    case.task.mounts = vec![bind("/data", "/mine")];
    let spec = case.build().unwrap().spec;
    let source = |path: &str| {
        let place = destinations(&spec).iter().position(|other| *other == path).unwrap();
        spec["mounts"][place]["source"].as_str().unwrap().to_owned()
    };
    assert_eq!((source("/data").as_str(), source("/cache").as_str()), ("/mine", "/volumes/1"));
}

#[test]
fn invalid_mounts_are_rejected_by_name() {
    let with = |option: &str| Mount { options: words(&[option]), ..bind("/a", "/b") };
    let propagated = |propagation, source: &str| Mount { propagation, ..bind("/a", source) };
    for mount in [
        bind("relative", "/b"),
        bind("/", "/b"),
        bind("/a/../b", "/b"),
        bind("/a", "b"),
        bind("/a", "/missing"),
        with("ro"),
        with("a,b"),
        with("size=1m"),
        with("rshared"),
        with(""),
        propagated(Propagation::HostToTask, "/private"),
        propagated(Propagation::Bidirectional, "/private"),
        propagated(Propagation::Bidirectional, "/slave"),
        Mount { recursive_readonly: true, ..bind("/a", "/b") },
        Mount { recursive_readonly: true, readonly: true, ..propagated(Propagation::HostToTask, "/shared") },
        Mount { source: MountSource::Tmpfs { size_bytes: 0, mode: 0o17777 }, ..bind("/a", "/b") },
    ] {
        let mut case = Case::plain();
        case.task.mounts = vec![mount.clone()];
        assert!(case.refused().starts_with("mounts: "), "{mount:?}: {}", case.refused());
    }
    let mut case = Case::plain();
    case.task.mounts = vec![bind("/a", "/b"), bind("/a/", "/c")];
    assert!(case.refused().starts_with("mounts: "));
}

#[test]
fn missing_recursive_read_only_support_is_reported_first() {
    let mut case = Case::plain();
    case.recursive_readonly = false;
    case.task.mounts = vec![Mount { readonly: true, recursive_readonly: true, ..bind("/a", "/b") }];
    let error = case.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unimplemented);
    assert_eq!(error.reason(), Some(Reason::RecursiveReadonlyMount), "{error:?}");
}

#[test]
fn strongest_propagation_applies_to_the_root() {
    let propagation = |list: &[(Propagation, &str, &str)]| {
        let mut case = Case::plain();
        case.task.mounts =
            list.iter().map(|(p, to, from)| Mount { propagation: *p, ..bind(to, from) }).collect();
        case.build().unwrap().spec["linux"]["rootfsPropagation"].clone()
    };
    let both = (Propagation::Bidirectional, "/a", "/shared");
    let down = (Propagation::HostToTask, "/b", "/slave");
    assert_eq!(propagation(&[both, down]), "rshared");
    assert_eq!(propagation(&[down, both]), "rshared");
    assert_eq!(propagation(&[down]), "rslave");
    assert_eq!(propagation(&[]), Value::Null);
}

#[test]
fn relabel_is_rejected_only_with_selinux() {
    let mut case = Case::plain();
    case.task.mounts = vec![Mount { selinux_relabel: true, ..bind("/a", "/link") }, bind("/b", "/c")];
    case.build().unwrap();
    case.host.selinux = Some(SelinuxDefaults::default());
    let refused = case.refused();
    assert!(refused.starts_with("mounts.selinux_relabel: is not supported: /srv/target"), "{refused}");
    case.task.mounts[0].selinux_relabel = false;
    case.build().unwrap();
}

/// The OCI mount of a mount at `/x` that is staged at `/stage/0`.
fn staged(requested: Mount, staging: Staging) -> switchyard_core::Result<Value> {
    let mut case = Case::plain();
    let source = ResolvedSource { path: PathBuf::from("/stage/0"), staging };
    case.staged = vec![ResolvedMount { requested, source, volume: None }];
    let spec = case.build()?.spec;
    let place = destinations(&spec).iter().position(|other| *other == "/x").unwrap();
    Ok(spec["mounts"][place].clone())
}

#[test]
fn staged_source_is_what_the_runtime_mounts() {
    let name = || "0".to_owned();
    let source = |source| Mount { source, ..bind("/x", "/unused") };
    let image = source(MountSource::Image { reference: "i".to_owned(), sub_path: PathBuf::new() });
    let below = source(MountSource::Beneath { root: "/shared".into(), path: "a".into() });
    let of_image = Staging::Image { name: name(), id: "sha256:1".to_owned(), top: None };
    let mapped = |path: &str| Staging::IdMapped { name: name(), path: path.into() };
    let beneath =
        |root: &str| Staging::Beneath { name: name(), root: root.into(), path: "a".into(), shared: false };
    let both_ways = |mount: &Mount| Mount { propagation: Propagation::Bidirectional, ..mount.clone() };
    for (mount, staging, options) in [
        (image, of_image, ["rbind", "rprivate", "ro"]),
        (
            source(MountSource::Volume { name: "v".to_owned(), sub_path: PathBuf::new() }),
            mapped("/v"),
            ["rbind", "rprivate", "rw"],
        ),
        (both_ways(&bind("/x", "/link")), mapped("/shared/a"), ["rbind", "rshared", "rw"]),
        (both_ways(&below), beneath("/shared"), ["rbind", "rshared", "rw"]),
    ] {
        let expected = serde_json::json!({
            "destination": "/x", "type": "bind", "source": "/stage/0", "options": options,
        });
        assert_eq!(staged(mount.clone(), staging).unwrap(), expected, "{mount:?}");
    }
    // The propagation of the host's own path counts, not that of the staging directory.
    let refused = staged(both_ways(&below), beneath("/private")).unwrap_err();
    assert!(refused.report().contains("/private/a is not on a shared mount"), "{}", refused.report());
    let refused = staged(Mount { id_mapped: true, ..below }, beneath("/shared")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unimplemented);
}

#[test]
fn bind_option_disables_recursion() {
    let mut case = Case::plain();
    case.task.mounts = vec![Mount { options: words(&["bind", "nosuid"]), ..bind("/zzz", "/b") }];
    let spec = case.build().unwrap().spec;
    let place = destinations(&spec).iter().position(|other| *other == "/zzz").unwrap();
    assert_eq!(spec["mounts"][place]["options"], Value::from(words(&["bind", "rprivate", "rw", "nosuid"])));
}

#[test]
fn pid_namespaces_follow_the_request() {
    let mut case = Case::plain();
    assert_eq!(namespace(&case.build().unwrap().spec, "pid").unwrap().get("path"), None);
    case.task.pid = PidMode::Host;
    assert_eq!(namespace(&case.build().unwrap().spec, "pid"), None);
    case.task.pid = PidMode::Sandbox;
    assert!(case.refused().starts_with("pid: "));
    case.sandbox.pid = Some(Namespace::Path(PathBuf::from("/proc/7/ns/pid")));
    assert_eq!(namespace(&case.build().unwrap().spec, "pid").unwrap()["path"], "/proc/7/ns/pid");
    case.task.pid = PidMode::Target(TaskId::from_bytes([7; 32]));
    assert_eq!(case.build().unwrap_err().kind(), ErrorKind::FailedPrecondition);
    case.target_pid = Some(PathBuf::from("/proc/8/ns/pid"));
    assert_eq!(namespace(&case.build().unwrap().spec, "pid").unwrap()["path"], "/proc/8/ns/pid");
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
        assert!(case.refused().starts_with("devices: "), "{}", case.refused());
    }
}

#[test]
fn privileged_task_has_all_devices_and_no_masked_paths() {
    let mut case = Case::privileged();
    case.task.security.masked_paths = vec![PathBuf::from("/proc/keys")];
    let spec = case.build().unwrap().spec;
    let rules = spec["linux"]["resources"]["devices"].as_array().unwrap();
    assert_eq!(rules.len(), 1);
    assert_eq!((&rules[0]["allow"], &rules[0]["access"]), (&Value::from(true), &Value::from("rwm")));
    assert_eq!(spec["linux"]["devices"].as_array().unwrap().len(), 2);
    assert_eq!(spec["linux"].get("maskedPaths"), None);
}

#[test]
fn rlimits_are_validated_and_clamped() {
    let limit = |name: &str, soft, hard| Rlimit { name: name.to_owned(), soft, hard };
    let mut case = Case::plain();
    case.task.rlimits = vec![limit("RLIMIT_BOGUS", 1, 1)];
    assert!(case.refused().starts_with("rlimits: "));
    case.task.rlimits = vec![limit("RLIMIT_CORE", 2, 1)];
    assert!(case.refused().starts_with("rlimits: "));
    case.task.rlimits = vec![limit("RLIMIT_CORE", 1, 1), limit("core", 0, u64::MAX)];
    let built = case.build().unwrap();
    let expected = serde_json::json!([{ "type": "RLIMIT_CORE", "hard": u64::MAX, "soft": 0 }]);
    assert_eq!((&built.spec["process"]["rlimits"], built.warnings.len()), (&expected, 0));
}

#[test]
fn block_device_limits_use_device_numbers() {
    let limit = |device: &str, what, rate| Throttle { device: device.into(), what, rate };
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
    assert_eq!(case.build().unwrap().spec["linux"]["resources"]["blockIO"], expected);
    for (device, rate) in [("/dev/sda", 0), ("/dev/fuse", 1), ("/etc/passwd", 1), ("/missing", 1)] {
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
        case.refused()
            .starts_with("net_priority: is not supported: the kernel has priorities for the host's")
    );
    case.sandbox.network = Namespace::Host;
    let expected = serde_json::json!({
        "priorities": [{ "name": "eth0", "priority": 7 }, { "name": "vlan7", "priority": 7 }],
    });
    assert_eq!(case.build().unwrap().spec["linux"]["resources"]["network"], expected);
    case.host.net_priorities = false;
    assert!(
        case.refused().starts_with("net_priority: is not supported: this node has no controller net_prio")
    );
}

#[test]
fn block_device_weights_are_applied_or_rejected() {
    let share = |device: Option<&str>, weight| IoWeight { device: device.map(Into::into), weight };
    let mut case = Case::plain();
    case.task.io_weights = vec![share(None, 10), share(None, 500), share(Some("/dev/sda"), 1000)];
    let expected = serde_json::json!({
        "weight": 500,
        "weightDevice": [{ "major": 8, "minor": 0, "weight": 1000 }],
    });
    assert_eq!(case.build().unwrap().spec["linux"]["resources"]["blockIO"], expected);
    for bad in [share(None, 9), share(None, 1001), share(Some("/dev/fuse"), 10)] {
        case.task.io_weights = vec![bad];
        assert!(case.refused().starts_with("blkio_weight: "));
    }
    case.task.io_weights = vec![share(None, 500)];
    case.host.io_weights = false;
    assert!(case.refused().starts_with("blkio_weight: is not supported: "));
}
