//! Specs run by real runtimes on a root file system made of busybox. Needs root, runc, crun, busybox-static,
//! util-linux.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use switchyard_core::spec::{
    CpuPeriod, CpuQuota, CpuShares, ExecSpec, GroupPolicy, MemoryLimit, MissingSource, Mount,
    MountSource, OomScoreAdj, PidsLimit, Rlimit, SeccompProfile, UserRef, UserSpec,
};
use switchyard_runtime_spec::infra::{self, InfraInput};
use switchyard_runtime_spec::process::exec_process;
use switchyard_runtime_spec::user::{self, AccountFiles};
use switchyard_runtime_spec::{
    CgroupDriver, DEFAULT_MASKED_PATHS, DEFAULT_READONLY_PATHS, Host, Namespace, RealHost,
    ResolvedUser,
};

use crate::support::{Case, words};

mod bundle;

use bundle::Bundle;

const APPLETS: [&str; 9] = [
    "sh", "cat", "id", "ls", "sleep", "unshare", "touch", "env", "mount",
];

#[track_caller]
fn succeeded(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}: {}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

#[track_caller]
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}"))
        .trim()
}

#[test]
fn default_spec_runs_with_default_seccomp_and_capabilities() {
    let bundle = Bundle::new();
    let status = bundle.run(&bundle.case("cat /proc/self/status"));
    assert_eq!(field(&status, "Seccomp"), "2");
    // The fourteen default capabilities, in all sets but the inheritable and the ambient one.
    for set in ["CapBnd", "CapEff", "CapPrm"] {
        assert_eq!(field(&status, set), "00000000a80425fb", "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(field(&status, set), "0000000000000000", "{set}");
    }
    assert_eq!(field(&status, "NoNewPrivs"), "0");
}

/// Runs crun in a mount namespace of its own, without the v2 tree of a hybrid node, which crun 1.8 refuses to
/// work beside.
const CRUN: &str =
    "mountpoint -q /sys/fs/cgroup/unified && umount /sys/fs/cgroup/unified; exec crun \"$@\"";

#[test]
fn crun_accepts_the_same_spec() {
    let bundle = Bundle::new();
    let mut case = bundle.case("cat /proc/self/status");
    case.task.resources.memory_limit_bytes = MemoryLimit::new(64 << 20).ok();
    case.task.resources.cpu_shares = Some(CpuShares::clamped(100));
    bundle.write(&case.build_with(&RealHost).unwrap().spec);
    let mut command = Command::new("/usr/bin/unshare");
    command
        .args(["--mount", "/bin/sh", "-c", CRUN, "crun", "--root"])
        .arg(bundle.path("state"));
    command
        .args(["run", "--bundle"])
        .arg(bundle.dir.path())
        .arg(&bundle.name)
        .stdin(Stdio::null());
    let status = succeeded(&command.output().unwrap());
    assert_eq!(
        (field(&status, "Seccomp"), field(&status, "CapBnd")),
        ("2", "00000000a80425fb")
    );
}

#[test]
fn default_seccomp_denies_new_namespaces_and_unconfined_allows_them() {
    let bundle = Bundle::new();
    let mut case = bundle.case("unshare -U true 2>&1; echo code $?");
    assert!(bundle.run(&case).contains("Operation not permitted"));
    case.task.security.seccomp = SeccompProfile::Unconfined;
    let status = bundle.run(&Case {
        image: bundle.case("cat /proc/self/status").image,
        ..case
    });
    assert_eq!(field(&status, "Seccomp"), "0");
}

#[test]
fn privileged_task_has_node_capabilities_and_devices() {
    let bundle = Bundle::new();
    let mut case = bundle.case("cat /proc/self/status; test -w /sys && ls /dev");
    case.task.security.privileged = true;
    let text = bundle.run(&case);
    let own = fs::read_to_string("/proc/self/status").unwrap();
    assert_eq!(field(&text, "CapBnd"), field(&own, "CapBnd"));
    assert_eq!(field(&text, "Seccomp"), "0");
    assert!(text.lines().any(|line| line == "kmsg"), "{text}");
}

#[test]
fn users_groups_and_ambient_capabilities_reach_the_process() {
    let bundle = Bundle::new();
    let mut case = bundle.case("id; cat /proc/self/status");
    let asked = UserSpec {
        user: Some(UserRef::Name("web".to_owned())),
        gid: None,
        supplemental: vec![60],
        named: vec!["7".to_owned()],
        policy: GroupPolicy::Merge,
    };
    let files = AccountFiles::open(&bundle.path("rootfs"), user::MAX_FILE_BYTES).unwrap();
    case.user = files.resolve(&asked, "").unwrap();
    case.task.security.capabilities.add_ambient = words(&["NET_BIND_SERVICE"]);
    case.task.security.no_new_privileges = true;
    let text = bundle.run(&case);
    assert!(
        text.contains("uid=33(web) gid=34") && text.contains("50(extra)") && text.contains("60"),
        "{text}"
    );
    assert_eq!(
        (field(&text, "CapAmb"), field(&text, "CapEff")),
        ("0000000000000400", "0000000000000400")
    );
    assert_eq!(field(&text, "NoNewPrivs"), "1");
}

#[test]
fn mounts_and_masked_paths_are_applied() {
    let bundle = Bundle::new();
    let data = bundle.path("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "of the host\n").unwrap();
    let mount = |destination: &str, recursive_readonly| {
        let source = MountSource::Host {
            path: data.clone(),
            missing: MissingSource::Fail,
        };
        let options = words(&["noexec"]);
        Mount {
            readonly: true,
            recursive_readonly,
            options,
            ..Mount::new(destination, source)
        }
    };
    let tmpfs = Mount::new(
        "/tmp",
        MountSource::Tmpfs {
            size_bytes: 1 << 20,
            mode: 0o1777,
        },
    );
    let mut case = bundle.case(
        "cat /data/file /etc/hosts; for f in /data/x /rro/x /x /proc/sysrq-trigger; do touch $f 2>/dev/null && echo wrote $f; done; \
         touch /tmp/x /dev/shm/y && echo tmp; cat /proc/mounts; true",
    );
    case.task.mounts = vec![mount("/data", false), mount("/rro", true), tmpfs];
    case.task.security.readonly_rootfs = true;
    case.task.security.masked_paths = DEFAULT_MASKED_PATHS.iter().map(PathBuf::from).collect();
    case.task.security.readonly_paths = DEFAULT_READONLY_PATHS.iter().map(PathBuf::from).collect();
    for path in ["data", "rro"] {
        fs::create_dir(bundle.path("rootfs").join(path)).unwrap();
    }
    let text = bundle.run(&case);
    assert!(
        text.contains("of the host") && text.contains("hosts of the sandbox"),
        "{text}"
    );
    assert!(
        !text.contains("wrote") && text.contains("\ntmp\n"),
        "{text}"
    );
    assert!(bundle.path("shm/y").exists());
    let options = |at: &str| {
        let line = text
            .lines()
            .rfind(|line| line.split(' ').nth(1) == Some(at))
            .unwrap_or_default();
        line.split(' ').nth(3).unwrap_or_default().to_owned()
    };
    assert!(
        options("/data").contains("ro") && options("/data").contains("noexec"),
        "{text}"
    );
    assert!(
        options("/tmp").contains("size=1024k") && options("/sys").starts_with("ro"),
        "{text}"
    );
}

#[test]
fn limits_reach_the_kernel_and_unsupported_ones_are_omitted() {
    let bundle = Bundle::new();
    let mut case = bundle.case(
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; \
         cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null; cat /proc/self/oom_score_adj; ulimit -n; true",
    );
    let resources = &mut case.task.resources;
    resources.memory_limit_bytes = MemoryLimit::new(64 << 20).ok();
    resources.pids_limit = PidsLimit::new(77).ok();
    resources.cpu_shares = Some(CpuShares::clamped(100));
    resources.cpu_quota_us = CpuQuota::new(50_000).ok();
    resources.cpu_period_us = CpuPeriod::new(100_000).ok();
    resources.oom_score_adj = OomScoreAdj::new(-900).ok();
    resources.hugepages = vec![switchyard_core::spec::HugepageLimit {
        page_size: switchyard_core::spec::HugepageSize::new("2MB").unwrap(),
        limit_bytes: 2 << 20,
    }];
    case.task.rlimits = vec![Rlimit {
        name: "RLIMIT_NOFILE".to_owned(),
        soft: 100,
        hard: u64::MAX,
    }];
    let text = bundle.run(&case);
    let lowest = if bundle.host.has_sys_resource() {
        -900
    } else {
        bundle.host.oom_score_adj.get().max(-900)
    };
    let expected = [
        "67108864".to_owned(),
        "77".to_owned(),
        lowest.to_string(),
        "100".to_owned(),
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn exec_runs_with_the_tasks_user_and_seccomp() {
    let bundle = Bundle::new();
    let mut case = bundle.case("exec sleep 600");
    case.user = ResolvedUser {
        uid: 33,
        gid: 34,
        additional_gids: vec![34],
    };
    let built = case.build_with(&RealHost).unwrap();
    bundle.start(&built.spec);
    let exec = ExecSpec {
        command: words(&[
            "/bin/sh",
            "-c",
            "id -u; echo $HOSTNAME; cat /proc/self/status",
        ]),
        tty: false,
        size: None,
        stdin: false,
        env: Vec::new(),
        cwd: Some(PathBuf::from("/tmp")),
        drain: Duration::ZERO,
    };
    let process = exec_process(&built.spec["process"], &exec, &mut Vec::new()).unwrap();
    let file = bundle.path("process.json");
    fs::write(&file, serde_json::to_vec(&process).unwrap()).unwrap();
    let output = bundle
        .runc(&["exec", "--process", file.to_str().unwrap(), &bundle.name])
        .output()
        .unwrap();
    let text = succeeded(&output);
    assert!(text.starts_with("33\nweb-1\n"), "{text}");
    assert_eq!(
        (field(&text, "Seccomp"), field(&text, "CapBnd")),
        ("2", "00000000a80425fb")
    );
}

/// A process with namespaces of its own, which it keeps alive.
struct Holder(Child);

impl Holder {
    fn new() -> Self {
        let mut child = Command::new("/usr/bin/unshare")
            .args([
                "--net",
                "--ipc",
                "--uts",
                "/bin/busybox",
                "sh",
                "-c",
                "echo ready; exec sleep 600",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is missing: install the Debian package util-linux");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn namespace(&self, kind: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/{kind}", self.0.id()))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn infra_process_holds_the_pid_namespace_that_tasks_join() {
    let bundle = Bundle::new();
    let holder = Holder::new();
    let mut case = bundle.case("exec cat /proc/1/cmdline");
    let join = |kind: &str| Namespace::Path(holder.namespace(kind));
    (case.sandbox.network, case.sandbox.ipc, case.sandbox.uts) =
        (join("net"), join("ipc"), join("uts"));
    let nobody = ResolvedUser {
        uid: 65_535,
        gid: 65_535,
        additional_gids: vec![65_535],
    };
    let built = infra::build(&InfraInput {
        command: words(&["/bin/sleep", "600"]),
        user: &nobody,
        sandbox: &case.sandbox,
        host: &bundle.host,
        cgroups_path: &case.cgroups_path,
        annotations: BTreeMap::new(),
    });
    bundle.start(&built.unwrap().spec);
    let state: Value = serde_json::from_str(&succeeded(
        &bundle.runc(&["state", &bundle.name]).output().unwrap(),
    ))
    .unwrap();
    let pid = state["pid"].as_u64().unwrap();
    let same = |kind: &str| {
        let link = |path: PathBuf| fs::read_link(path).unwrap();
        assert_eq!(
            link(PathBuf::from(format!("/proc/{pid}/ns/{kind}"))),
            link(holder.namespace(kind)),
            "{kind}"
        );
    };
    ["net", "ipc", "uts"].into_iter().for_each(same);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert_eq!(
        (field(&status, "CapBnd"), field(&status, "Seccomp")),
        ("0000000000000000", "2")
    );
    assert_eq!(field(&status, "NoNewPrivs"), "1");

    let task = Bundle::new();
    case.sandbox.pid = Some(Namespace::Path(PathBuf::from(format!(
        "/proc/{pid}/ns/pid"
    ))));
    case.task.pid = switchyard_core::spec::PidMode::Sandbox;
    case.cgroups_path = format!("/{}/task", task.name);
    assert_eq!(task.run(&case), "/bin/sleep\x00600\x00");
}
