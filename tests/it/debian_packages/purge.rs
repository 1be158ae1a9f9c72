//! Detection of the node's own processes by a purge of the package, which refuses to lose their containers, and what it
//! leaves.

mod bridges;
mod refusals;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::scratch::Scratch;

use super::{read, repository};

/// Long enough for what should happen.
const LIMIT: Duration = Duration::from_secs(40);

/// An id of a sandbox or task.
const ID: &str = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

/// The user and the group `nobody`.
const NOBODY: u32 = 65534;

/// Directories as those of the package, and what the scripts find there.
struct Node {
    scratch: Scratch,
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("the program is there"),
        )
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// A line that it prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let output = self.0.stdout.as_mut().expect("it is piped");
        BufReader::new(output)
            .read_line(&mut line)
            .expect("it prints a line");
        line.trim().to_owned()
    }
}

impl Node {
    fn new() -> Self {
        let node = Self {
            scratch: Scratch::new(),
        };
        for dir in ["run", "state", "external"] {
            fs::create_dir(node.dir(dir)).expect("the scratch directory can be written");
        }
        node
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// A call of functions of the scripts, with the directories of this node.
    fn script(&self, function: &str) -> String {
        // Without what it does when dpkg calls it.
        let postrm = read(&repository().join("deploy/debian/postrm"));
        let functions = postrm.split_once("\ncase $1 in\n");
        let (functions, _) = functions.expect("the functions stand before their calls");
        format!(
            "{functions}\n. {}/deploy/debian/common.sh; run={1}/run state={1}/state external={1}/external cgroups={1}/cgroups; {function}",
            repository().display(),
            self.scratch.path().display()
        )
    }

    /// The output of functions of the scripts, sorted.
    fn output(&self, function: &str) -> Vec<String> {
        let mut command = Command::new("sh");
        command.args(["-c", &self.script(function)]);
        sorted_lines(&command.output().expect("every system has a shell"))
    }

    /// The command line of a logkeeper that the daemon manages.
    fn logkeeper(&self) -> String {
        format!(
            "/usr/bin/switchyard logkeeper --socket {}/logkeeper.sock",
            self.dir("run").display()
        )
    }

    /// A shim of the managed containerd that has started this besides the main process of its container, and that process.
    fn shim(&self, more: &str) -> (Running, String) {
        let address = self.dir("run").join("containerd/containerd.sock");
        let mut command = Command::new("bash");
        command
            .arg0(format!(
                "containerd-shim-runc-v2 -namespace n -id i -address {}",
                address.display()
            ))
            .args([
                "-c",
                &format!("setpriv --pdeathsig KILL sleep 1000 & echo $!; {more} wait"),
            ]);
        let mut shim = Running::start(&mut command);
        let main = shim.line();
        (shim, main)
    }

    /// A bundle whose main process is this one, below a directory of containerd.
    fn bundle(&self, containerd: &Path, id: &str, pid: &str) -> PathBuf {
        let bundle = containerd
            .join("io.containerd.runtime.v2.task/k8s.io")
            .join(id);
        fs::create_dir_all(&bundle).expect("the scratch directory can be written");
        fs::write(bundle.join("init.pid"), pid).expect("the scratch directory can be written");
        bundle
    }
}

#[track_caller]
fn sorted_lines(output: &Output) -> Vec<String> {
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

/// A process that has exited.
fn exited() -> String {
    let mut child = Command::new("true").spawn().expect("every system has it");
    child.wait().expect("it exits");
    child.id().to_string()
}

/// A process of the node that has this command line and waits for its input.
fn waiting(command_line: &str) -> Command {
    let mut command = Command::new("cat");
    command.arg0(command_line);
    command
}

/// The same in namespaces of its own, as a nested node has them.
fn nested(namespaces: &[&str], script: &str, command_line: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(namespaces)
        .args(["bash", "-c", script, command_line]);
    command
}

#[test]
fn purge_finds_processes_of_the_nodes_own_root_alone() {
    let node = Node::new();
    let line = node.logkeeper();
    let own = Running::start(&mut waiting(&line));
    let in_own_mounts = Running::start(&mut nested(&["--mount"], "exec -a \"$0\" cat", &line));
    let of_user = Running::start(waiting(&line).uid(NOBODY).gid(NOBODY));
    let in_own_pids = Running::start(&mut nested(
        &["--pid", "--fork", "--kill-child"],
        "exec -a \"$0\" cat",
        &line,
    ));
    let root = node.dir("root");
    fs::create_dir(&root).expect("the scratch directory can be written");
    let other_root = format!(
        "mount -t tmpfs none {0} && cd {0} && mkdir usr && mount --rbind /usr usr &&
         ln -s usr/bin usr/lib usr/lib64 . && exec chroot . bash -c 'exec -a \"$0\" cat' \"$0\"",
        root.display()
    );
    let in_own_root = Running::start(&mut nested(&["--mount"], &other_root, &line));

    let all_run = || {
        processes::all()
            .iter()
            .filter(|process| process.command == line)
            .count()
            == 5
    };
    assert!(eventually(LIMIT, all_run), "{:?}", processes::all());
    let mut expected = [own.pid(), in_own_mounts.pid()];
    expected.sort();
    assert_eq!(node.output("managed"), expected);
    drop((of_user, in_own_pids, in_own_root));
}

/// A user's process that is called like a shim is none, nor are its children containers.
#[test]
fn purge_takes_no_users_process_for_a_shim() {
    let node = Node::new();
    let (shim, main) = node.shim("");
    assert_eq!(
        (node.output("shims"), node.output("running_pids")),
        (vec![shim.pid()], vec![main])
    );
    let address = node.dir("run").join("containerd/containerd.sock");
    let mut command = Command::new("bash");
    command
        .arg0(format!("containerd-shim -address {}", address.display()))
        .args([
            "-c",
            "setpriv --pdeathsig KILL sleep 1000 & echo $!; read -r _; kill $!",
        ])
        .uid(NOBODY)
        .gid(NOBODY);
    let mut of_user = Running::start(&mut command);
    of_user.line();
    drop(shim);
    assert_eq!(
        (node.output("shims"), node.output("running_pids")),
        (Vec::new(), Vec::new())
    );
    drop(of_user.0.stdin.take());
    of_user.0.wait().expect("it ends with its input");
}

#[test]
fn purge_finds_a_container_whose_files_alone_are_lost() {
    let node = Node::new();
    let state = node.dir("run").join("containerd/state");
    // What another one has left that has exited.
    node.bundle(&state, "exited", &exited());
    let (shim, main) = node.shim("");
    assert_eq!(node.output("running_pids"), [main.as_str()]);
    // With its own files it is printed once.
    let bundle = node.bundle(&state, "runs", &main);
    assert_eq!(node.output("running_pids"), [main.as_str()]);
    kill(
        Pid::from_raw(main.parse().expect("it is a number")),
        Signal::SIGKILL,
    )
    .expect("it runs");
    assert!(
        eventually(LIMIT, || node.output("running_pids").is_empty()),
        "{:?}",
        node.output("running_pids")
    );
    drop(shim);

    // A command in a container is none.
    let (_shim, main) = node.shim("setpriv --pdeathsig KILL sleep 1000 &");
    fs::write(bundle.join("init.pid"), &main).expect("the scratch directory can be written");
    assert_eq!(node.output("running_pids"), [main]);
}

#[test]
fn purge_finds_containers_of_an_external_containerd_after_the_run_directory_was_emptied() {
    let node = Node::new();
    let external = node.dir("external");
    let sandbox = node.dir("state").join("sandboxes").join(ID);
    fs::create_dir_all(&sandbox).expect("the scratch directory can be written");
    let main = Running::start(&mut waiting("main"));
    let task = node.bundle(&external, &ID.replace('5', "6"), &main.pid());
    let spec = |source: &str| {
        format!(r#"{{"mounts":[{{"destination":"/etc/hosts","source":"{source}"}}]}}"#)
    };
    let write = |dir: &Path, source: &str| {
        fs::write(dir.join("config.json"), spec(source))
            .expect("the scratch directory can be written");
    };
    write(&task, &format!("{}/hosts", sandbox.display()));
    let foreign = Running::start(&mut waiting("foreign"));
    let other = node.bundle(&external, &ID.replace('5', "7"), &foreign.pid());
    write(&other, "/var/lib/kubelet/hosts");
    // A pod that mounts our directory, as one that collects logs.
    let collector = node.bundle(&external, &ID.replace('5', "8"), &foreign.pid());
    write(&collector, &node.dir("state").display().to_string());
    assert_eq!(node.output("running_pids"), [main.pid()]);

    // The process of a pod has the pod's id.
    let infra = Running::start(&mut waiting("infra"));
    node.bundle(&external, ID, &infra.pid());
    let mut expected = [main.pid(), infra.pid()];
    expected.sort();
    assert_eq!(node.output("running_pids"), expected);
}

/// The directories of a configuration, as the package's removal has written them down.
#[test]
fn purge_finds_containers_wherever_containerd_and_the_run_directory_are() {
    let node = Node::new();
    let run = node.dir("other-run");
    let beside = node.dir("k3s/containerd");
    let places = format!("run {}\ncontainerd {}\n", run.display(), beside.display());
    let managed = Running::start(&mut waiting("managed"));
    node.bundle(&run.join("containerd/state"), "managed", &managed.pid());
    let external = Running::start(&mut waiting("external"));
    node.bundle(&beside, ID, &external.pid());
    fs::create_dir_all(run.join("tasks").join(ID)).expect("the scratch directory can be written");
    let foreign = Running::start(&mut waiting("foreign"));
    node.bundle(&beside, &ID.replace('5', "6"), &foreign.pid());
    assert_eq!(node.output("running_pids"), [""; 0]);

    fs::write(node.dir("state/places"), places).expect("the scratch directory can be written");
    let mut expected = [managed.pid(), external.pid()];
    expected.sort();
    assert_eq!(node.output("running_pids"), expected);
    let logkeeper = format!("/usr/bin/switchyard logkeeper --socket {}/x", run.display());
    let logkeeper = Running::start(&mut waiting(&logkeeper));
    assert!(
        eventually(LIMIT, || node.output("managed") == [logkeeper.pid()]),
        "{:?}",
        node.output("managed")
    );
}

/// A shim works in the directory of its task, so that one of ours is found in any containerd.
#[test]
fn purge_finds_tasks_of_an_unknown_containerd_by_their_shims_also_without_their_files() {
    for (program, is_named, is_found) in [
        ("containerd-shim-runc-v2", true, true),
        ("containerd-shim-kata-v2", false, true),
        // Its file is lost, and nothing that it has started runs.
        ("containerd-shim-runc-v2", false, false),
    ] {
        let node = Node::new();
        let main = Running::start(&mut waiting("main"));
        let bundle = node.bundle(&node.dir("snap/containerd"), ID, &main.pid());
        fs::create_dir_all(node.dir("run/tasks").join(ID))
            .expect("the scratch directory can be written");
        assert_eq!(node.output("running_pids"), [""; 0]);
        let mut shim = waiting(&format!("/usr/bin/{program} -namespace k8s.io -id {ID}"));
        let shim = Running::start(shim.current_dir(&bundle));
        let found = if is_named {
            main.pid()
        } else {
            fs::remove_file(bundle.join("init.pid")).expect("it is there");
            shim.pid()
        };
        let expected: Vec<String> = is_found.then_some(found).into_iter().collect();
        assert!(
            eventually(LIMIT, || node.output("running_pids") == expected),
            "{program}: {:?}",
            node.output("running_pids")
        );
    }
}

/// The bundle and the shim are lost, and the task's own directory is there.
#[test]
fn purge_finds_a_process_in_the_cgroup_of_a_task_without_a_bundle() {
    let node = Node::new();
    let main = Running::start(&mut waiting("main"));
    let shim = Running::start(&mut waiting("/usr/bin/containerd-shim-runc-v2"));
    let group = node
        .dir("cgroups/a.slice")
        .join(format!("switchyard-{ID}.scope"));
    fs::create_dir_all(&group).expect("the scratch directory can be written");
    let procs = group.join("cgroup.procs");
    fs::write(&procs, format!("{}\n{}\n", shim.pid(), main.pid()))
        .expect("the scratch directory can be written");
    assert_eq!(node.output("running_pids"), [""; 0]);
    fs::create_dir_all(node.dir("run/tasks").join(ID))
        .expect("the scratch directory can be written");
    assert!(
        eventually(LIMIT, || node.output("running_pids") == [main.pid()]),
        "{:?}",
        node.output("running_pids")
    );
    fs::write(&procs, format!("{}\n", shim.pid())).expect("the scratch directory can be written");
    assert_eq!(node.output("running_pids"), [""; 0]);
}

/// A state directory with a volume, a draft of one, and other files.
fn fill(state: &Path) {
    for dir in [
        "volumes/swarm/data",
        "volumes/.passing/draft",
        "tasks/one",
        "swarm",
    ] {
        fs::create_dir_all(state.join(dir)).expect("the scratch directory can be written");
    }
    for file in [
        "volumes/swarm/data/rows",
        "instance",
        "places",
        "swarm/node.pem",
    ] {
        fs::write(state.join(file), "precious").expect("the scratch directory can be written");
    }
}

#[test]
fn purge_keeps_named_volumes_alone_unless_it_is_asked_for_them() {
    let node = Node::new();
    let state = node.dir("state");
    fill(&state);
    let said = node.output("remove_state").join("\n");
    assert!(
        said.contains("volumes/swarm/data") && said.contains("SWITCHYARD_PURGE_VOLUMES=1"),
        "{said}"
    );
    let rows = state.join("volumes/swarm/data/rows");
    assert_eq!(read(&rows), "precious");
    let left = [
        ".",
        "./volumes",
        "./volumes/swarm",
        "./volumes/swarm/data",
        "./volumes/swarm/data/rows",
    ];
    assert_eq!(node.output("cd $state; find ."), left);

    // A second purge, as after another installation.
    fill(&state);
    assert_eq!(
        node.output("SWITCHYARD_PURGE_VOLUMES=1; remove_state"),
        [""; 0]
    );
    assert!(!state.exists());

    // Without a volume there is nothing to keep.
    fs::create_dir_all(state.join("volumes/swarm")).expect("the scratch directory can be written");
    assert_eq!(node.output("remove_state"), [""; 0]);
    assert!(!state.exists());
}

#[test]
fn purge_leaves_a_disk_with_volumes_mounted_and_empties_it_if_it_is_asked() {
    for (asked, expected) in [
        ("", vec!["mounted", "rows"]),
        ("SWITCHYARD_PURGE_VOLUMES=1;", vec!["gone"]),
    ] {
        let node = Node::new();
        let call = format!(
            "mkdir $state/volumes $state/elsewhere; mount -t tmpfs none $state/volumes; mkdir -p $state/volumes/swarm/data; \
             : >$state/volumes/swarm/data/rows; {asked} remove_state >/dev/null; \
             if mountpoint -q $state/volumes; then echo mounted; ls $state/volumes/swarm/data; else ls -d $state 2>/dev/null || echo gone; fi"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &node.script(&call)]);
        let output = command.output().expect("every system has it");
        assert_eq!(sorted_lines(&output), expected, "{asked}");
    }
}

/// Such a directory may have files of others.
#[test]
fn purge_names_directories_of_a_configuration_and_leaves_them() {
    let node = Node::new();
    let other = node.dir("data");
    fs::create_dir(&other).expect("the scratch directory can be written");
    let places = format!("state {}\nrun /none\n", other.display());
    fs::write(node.dir("state/places"), places).expect("the scratch directory can be written");
    let said = node.output("kept=$(runs && states); remove_state; report_kept \"$kept\"");
    assert!(
        said.len() == 1 && said[0].contains(&format!("{} stays", other.display())),
        "{said:?}"
    );
    assert!(other.exists() && !node.dir("state").exists());
}
