//! SELinux, in a boot of its own where it enforces: containers are confined, those of different sandboxes are kept from each other's
//! files, and what is denied is in the audit log. The policy is Debian's, with the types of containers of `selinux.cil`.

mod services;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::{context, namespaces, security};
use switchyard_tests::host::eventually;
use switchyard_tests::nomad::{Agent, TaskSetup};

use crate::daemon::kill_main;
use crate::node::{GuestFact, GuestNode, LIMIT, cgroup_file, property, run};
use crate::nomad::{agent_paths, task};
use crate::units::doctor_finds;

pub(crate) const FACTS: &[GuestFact] = &[
    (
        "package_labels_program_directories_and_sockets",
        package_labels_its_files,
    ),
    (
        "pods_are_confined_and_cannot_use_each_others_files",
        pods_are_confined_and_apart,
    ),
    (
        "relabelling_has_bounds_and_levels_outlive_the_daemon",
        relabelling_has_bounds,
    ),
    (
        "levels_and_privileges_that_are_asked_for_are_given",
        levels_and_privileges,
    ),
    (
        "nomad_tasks_are_confined_and_cannot_use_each_others_volumes",
        tasks_are_confined_and_apart,
    ),
    (
        "swarm_services_are_confined_and_cannot_use_each_others_volumes",
        services::services_are_confined_and_apart,
    ),
];

const IDLE: &str = "exec sleep 1000";

/// Directories of the host, each with a file that contains its name; removed when this is dropped.
struct Sources(PathBuf);

impl Sources {
    fn new(names: &[&str]) -> Self {
        let root = PathBuf::from("/var/lib/guest-selinux");
        for name in names {
            let dir = root.join(name);
            fs::create_dir_all(&dir).expect("it can be made");
            fs::write(dir.join("file"), name).expect("it can be written");
        }
        Self(root)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// A mount of one of them.
    fn mount(&self, name: &str, at: &str, selinux_relabel: bool) -> cri::Mount {
        cri::Mount {
            selinux_relabel,
            ..mount(&self.path(name), at)
        }
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("it is there");
    }
}

fn mount(path: &str, at: &str) -> cri::Mount {
    cri::Mount {
        host_path: path.to_owned(),
        container_path: at.to_owned(),
        ..Default::default()
    }
}

/// A label without the byte that the kernel ends it with.
fn trimmed(label: &str) -> String {
    label.trim_end_matches(['\0', '\n']).to_owned()
}

/// The label of a process of the guest.
fn label_of_process(pid: &str) -> String {
    let label = fs::read_to_string(format!("/proc/{pid}/attr/current"));
    trimmed(&label.expect("it runs"))
}

/// The label of a file.
fn label_of(path: impl AsRef<Path>) -> String {
    let path = path.as_ref().display().to_string();
    run(&["stat", "--format", "%C", &path])
}

/// The level of a label of this domain or type, as `system_u:system_r:container_t`.
#[track_caller]
fn level<'l>(label: &'l str, begin: &str) -> &'l str {
    let rest = label.strip_prefix(begin);
    let level = rest.and_then(|rest| rest.strip_prefix(':'));
    level.unwrap_or_else(|| panic!("{label} is no label of {begin}"))
}

/// Checks that a level has two categories.
#[track_caller]
fn assert_pair(level: &str) {
    let categories = level.strip_prefix("s0:").unwrap_or_default();
    let categories: Vec<_> = categories.split(',').collect();
    let is_category = |name: &&str| {
        let number = name.strip_prefix('c').map(str::parse::<u16>);
        matches!(number, Some(Ok(0..1024)))
    };
    let is_pair = matches!(categories.as_slice(), [one, other] if one != other)
        && categories.iter().all(is_category);
    assert!(is_pair, "{level} has no pair of categories");
}

/// The label of the main process of a container of a pod, which commands in it have too.
#[track_caller]
fn label_of_container(node: &GuestNode, container: &str) -> String {
    let pids = cgroup_file(container, "cgroup.procs");
    let main = label_of_process(pids.lines().next().expect("it runs"));
    let command = node.cri.sh(container, "cat /proc/self/attr/current");
    assert_eq!(main, trimmed(&command));
    main
}

/// Lists what the kernel denied in this boot: its log has what nobody else takes, and the journal what its log drops.
fn denials() -> String {
    let journal = [
        "--boot",
        "--no-pager",
        "--output",
        "cat",
        "_TRANSPORT=audit",
    ];
    let journal = Command::new("journalctl").args(journal).output();
    let journal = journal.expect("it can be run");
    let text = format!(
        "{}\n{}",
        run(&["dmesg"]),
        String::from_utf8_lossy(&journal.stdout)
    );
    let lines = text.lines().filter(|line| line.contains("avc:  denied"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Checks that the audit log has a denial of this access by a process with this label to an object of this class and label. The kernel
/// does not log more than some a second, so the access is repeated.
#[track_caller]
fn assert_denied(process: &str, object: &str, class: &str, access: impl Fn()) {
    let words = format!("scontext={process} tcontext={object} tclass={class} permissive=0");
    let is_logged = eventually(LIMIT, || {
        access();
        denials().contains(&words)
    });
    assert!(is_logged, "no denial has {words:?}:\n{}", denials());
}

/// Checks that a container may not read a file.
#[track_caller]
fn assert_refused(node: &GuestNode, container: &str, path: &str) {
    let answer = node.cri.exec(container, &["cat", path], 30);
    let answer = answer.unwrap_or_else(|status| panic!("exec: {status}"));
    let error = String::from_utf8_lossy(&answer.stderr);
    assert!(
        answer.exit_code != 0 && error.contains("Permission denied"),
        "{path}: {} {error}",
        answer.exit_code
    );
}

fn package_labels_its_files(_: &GuestNode) {
    let enforces = fs::read_to_string("/sys/fs/selinux/enforce").expect("SELinux is on");
    assert_eq!(enforces, "1");
    let modules = run(&["semodule", "--list-modules=full"]);
    let is_own = |line: &str| line.starts_with("200 switchyard ");
    assert!(modules.lines().any(is_own), "{modules}");
    for (path, type_) in [
        ("/usr/bin/switchyard", "container_runtime_exec_t"),
        ("/etc/switchyard/config.toml", "container_config_t"),
        ("/var/lib/switchyard", "container_var_lib_t"),
        ("/run/switchyard", "container_var_run_t"),
        ("/run/switchyard/cri.sock", "container_var_run_t"),
        ("/run/switchyard/nomad.sock", "container_var_run_t"),
        ("/run/switchyard/admin.sock", "container_var_run_t"),
        (
            "/run/switchyard/containerd/containerd.sock",
            "container_var_run_t",
        ),
    ] {
        let label = label_of(path);
        let begin = format!("system_u:object_r:{type_}");
        assert_eq!(level(&label, &begin), "s0", "{path}");
    }
    let containerd = fs::read_to_string("/run/switchyard/containerd/containerd.pid");
    let containerd = containerd.expect("the daemon manages it");
    let containerd = containerd.split_whitespace().next().expect("it is a pid");
    let units = ["switchyard", "switchyard-logkeeper"];
    let mut pids = units.map(|unit| property(unit, "MainPID")).to_vec();
    pids.push(containerd.to_owned());
    for pid in pids {
        let label = label_of_process(&pid);
        let _ = level(&label, "system_u:system_r:container_runtime_t");
    }
    let mut found = doctor_finds();
    found.retain(|(kind, _)| kind.starts_with("SY115") || kind.starts_with("SY125"));
    assert_eq!(found, [], "the policy has all that labels need");
}

fn pods_are_confined_and_apart(node: &GuestNode) {
    const SOCKET: &str = "/run/switchyard/cri.sock";
    let sources = Sources::new(&["one", "two", "plain"]);
    let pods = [node.pod("selinux-one"), node.pod("selinux-two")];
    let one = pods[0].start_shell_with("main", IDLE, |config| {
        config.mounts = vec![
            sources.mount("one", "/own", true),
            sources.mount("plain", "/plain", false),
            mount(SOCKET, "/cri.sock"),
        ];
    });
    let two = pods[1].start_shell_with("main", IDLE, |config| {
        config.mounts = vec![
            sources.mount("two", "/own", true),
            sources.mount("one", "/other", false),
        ];
    });
    let labels = [&one, &two].map(|container| label_of_container(node, container));
    let levels = labels
        .each_ref()
        .map(|label| level(label, "system_u:system_r:container_t"));
    for level in levels {
        assert_pair(level);
    }
    assert_ne!(levels[0], levels[1]);

    // What a pod was given is its own, also what it makes there and what the daemon makes for it.
    for (container, name, level) in [(&one, "one", levels[0]), (&two, "two", levels[1])] {
        let own = format!("system_u:object_r:container_file_t:{level}");
        assert_eq!(node.cri.sh(container, "cat /own/file"), name);
        let hosts = node.cri.sh(
            container,
            "echo new > /own/new && echo new > /new && echo new > /dev/shm/new && cat /etc/hosts",
        );
        assert!(hosts.contains("localhost"), "{hosts}");
        for path in ["", "file", "new"] {
            let path = Path::new(&sources.path(name)).join(path);
            assert_eq!(label_of(&path), own, "{}", path.display());
        }
    }
    // Another container of the same pod has its label, and may use them.
    let side = pods[0].start_shell_with("side", IDLE, |config| {
        config.mounts = vec![sources.mount("one", "/own", true)];
    });
    assert_eq!(label_of_container(node, &side), labels[0]);
    assert_eq!(node.cri.sh(&side, "cat /own/new"), "new");

    // All else is not: the files of the other one, those of the host, and the daemon's socket.
    let [of_one, of_two] = &labels;
    assert_denied(of_two, &label_of(sources.path("one")), "dir", || {
        assert_refused(node, &two, "/other/file");
    });
    assert_denied(of_one, &label_of(sources.path("plain")), "dir", || {
        assert_refused(node, &one, "/plain/file");
    });
    assert_denied(of_one, &label_of(SOCKET), "sock_file", || {
        assert_refused(node, &one, "/cri.sock");
    });
}

fn relabelling_has_bounds(node: &GuestNode) {
    let sources = Sources::new(&["tree"]);
    let link = sources.path("tree/link");
    symlink("/etc/shadow", &link).expect("it can be made");
    let relabelled = |path: &str, at: &str| cri::Mount {
        selinux_relabel: true,
        ..mount(path, at)
    };
    let kept = [
        "/etc",
        "/etc/shadow",
        "/run/switchyard/cri.sock",
        "/run/switchyard/containerd",
    ];
    let before = kept.map(label_of);
    let mut config = node.pod_config("selinux-bounds");
    // Its first process is the daemon's own pause program.
    namespaces(&mut config).set_pid(cri::NamespaceMode::Pod);
    let pod = node.pod_from(config, "");
    let start = |name: &str| {
        pod.start_shell_with(name, IDLE, |config| {
            config.mounts = vec![
                sources.mount("tree", "/own", true),
                // As a kubelet mounts the termination log.
                relabelled(&sources.path("tree/file"), "/dev/termination-log"),
            ];
        })
    };
    let first = start("first");
    let label = label_of_container(node, &first);
    let level_of_pod = level(&label, "system_u:system_r:container_t");
    assert_pair(level_of_pod);
    assert_eq!(node.cri.sh(&first, "cat /dev/termination-log"), "tree");
    // The link itself belongs to the pod, and what it names does not.
    let own = format!("system_u:object_r:container_file_t:{level_of_pod}");
    assert_eq!(label_of(&link), own);
    for path in [
        "/etc",
        "/run/switchyard/cri.sock",
        "/run/switchyard/containerd",
    ] {
        let mut config = node.container("refused", IDLE);
        config.mounts = vec![relabelled(path, "/host")];
        let created = node.cri.create(&pod.id, &config, &pod.config);
        let refused = created.expect_err("it would be opened to containers");
        let words = format!("{path} cannot be relabelled");
        assert!(refused.message().contains(&words), "{refused}");
    }
    assert_eq!(kept.map(label_of), before);

    kill_main("switchyard");
    node.wait_ready();
    assert_eq!(label_of_container(node, &start("second")), label);
    let other = node.pod("selinux-other");
    let other = label_of_container(node, &other.start_shell("main", IDLE));
    assert_ne!(other, label);
}

fn levels_and_privileges(node: &GuestNode) {
    let sources = Sources::new(&["plain"]);
    let with_level = |level: &str| {
        Some(cri::SeLinuxOption {
            level: level.to_owned(),
            ..Default::default()
        })
    };
    let mut config = node.pod_config("selinux-level");
    // In another order than the kernel's.
    security(&mut config).selinux_options = with_level("s0:c701,c700");
    let pod = node.pod_from(config, "");
    let with_volume = |name: &str| {
        pod.start_shell_with(name, IDLE, |config| {
            config.mounts = vec![sources.mount("plain", "/own", true)];
        })
    };
    let of_pod = with_volume("main");
    // What has its label is not written to, so it was changed at the same moment still.
    let file = sources.path("plain/file");
    let changed = || run(&["stat", "--format", "%C %z", &file]);
    let once = changed();
    let own = "system_u:object_r:container_file_t:s0:c700,c701 ";
    assert!(once.starts_with(own), "{once}");
    let _ = with_volume("side");
    assert_eq!(changed(), once);
    let of_its_own = pod.start_shell_with("own", IDLE, |config| {
        context(config).selinux_options = with_level("s0:c702");
    });
    for (container, level) in [(of_pod, "s0:c700,c701"), (of_its_own, "s0:c702")] {
        let label = format!("system_u:system_r:container_t:{level}");
        assert_eq!(label_of_container(node, &container), label);
    }

    let mut config = node.pod_config("selinux-privileged");
    security(&mut config).privileged = true;
    let pod = node.pod_from(config, "");
    let privileged = pod.start_shell_with("main", IDLE, |config| {
        context(config).privileged = true;
        config.mounts = vec![sources.mount("plain", "/plain", false)];
    });
    let label = label_of_container(node, &privileged);
    let _ = level(&label, "system_u:system_r:spc_t");
    assert_eq!(node.cri.sh(&privileged, "cat /plain/file"), "plain");
}

/// The output and exit code of a command in a task.
#[track_caller]
fn in_task(agent: &Agent, task: &TaskSetup, command: &[&str]) -> (String, String, i32) {
    let output = agent.driver().exec(task.id(), command, LIMIT);
    let output = output.unwrap_or_else(|status| panic!("{command:?}: {status}"));
    (trimmed(&output.stdout), output.stderr, output.code)
}

fn tasks_are_confined_and_apart(node: &GuestNode) {
    let sources = Sources::new(&["one", "two", "shared"]);
    let agent = Agent::start(agent_paths(), &json!({ "volumes": { "enabled": true } }));
    let volumes = |own: &str, other: &str| {
        json!({
            "volumes": [
                format!("{}:/own:Z", sources.path(own)),
                format!("{}:/shared:z", sources.path("shared")),
                format!("{}:/other", sources.path(other)),
            ]
        })
    };
    // The first one has its volume before the other one mounts it.
    let mut tasks = [("one", "two"), ("two", "one")].map(|(own, other)| {
        let task = task(&agent, &node.image(), IDLE, volumes(own, other));
        let started = agent.driver().start(&task.config);
        started.unwrap_or_else(|status| panic!("{own}: {status}"));
        task
    });
    let labels = tasks
        .each_ref()
        .map(|task| in_task(&agent, task, &["cat", "/proc/self/attr/current"]).0);
    let levels = labels
        .each_ref()
        .map(|label| level(label, "system_u:system_r:container_t"));
    for level in levels {
        assert_pair(level);
    }
    assert_ne!(levels[0], levels[1], "they are of two allocations");
    for (index, (own, other)) in [("one", "two"), ("two", "one")].into_iter().enumerate() {
        let task = &tasks[index];
        for (path, content) in [("/own/file", own), ("/shared/file", "shared")] {
            let (printed, error, code) = in_task(&agent, task, &["cat", path]);
            assert_eq!((printed.as_str(), code), (content, 0), "{own}: {error}");
        }
        let denied = format!("system_u:object_r:container_file_t:{}", levels[1 - index]);
        assert_eq!(label_of(sources.path(other)), denied);
        assert_denied(&labels[index], &denied, "dir", || {
            let (_, error, code) = in_task(&agent, task, &["cat", "/other/file"]);
            assert!(
                code != 0 && error.contains("Permission denied"),
                "{own}: {code} {error}"
            );
        });
    }
    assert_eq!(
        label_of(sources.path("shared")),
        "system_u:object_r:container_file_t:s0"
    );
    for task in &mut tasks {
        let destroyed = agent.driver().destroy(task.id(), true);
        destroyed.expect("it can be destroyed");
        task.remove_cgroups();
    }
}
