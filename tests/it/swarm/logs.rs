//! `docker service logs` for tasks of this node, and the rotation of their logs.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_crash_points::{CrashPoint, Operation};
use switchyard_tests::host::eventually;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;

use super::services::{create, objects, registry, tasks, wait_all_removed};

/// Time for something to appear.
const LIMIT: Duration = Duration::from_secs(60);

/// Number of lines that a task prints.
const LINES: u32 = 200_000;

/// In how many parts.
const PARTS: u32 = 400;

/// `docker service logs -f`, with its output in a file.
struct LogFollower {
    child: Child,
    printed: PathBuf,
}

impl LogFollower {
    fn start(cluster: &SwarmCluster, options: &[&str], service: &str, name: &str) -> Self {
        let printed = cluster.dir().join(name);
        let file = File::create(&printed).expect("the directory is ours");
        let errors = file.try_clone().expect("a file can be opened twice");
        let words = [
            &["service", "logs", "--raw", "--follow"],
            options,
            &[service],
        ]
        .concat();
        let child = cluster
            .docker_command(0, &words)
            .stdout(file)
            .stderr(errors)
            .spawn();
        Self {
            child: child.expect("it was found, so it starts"),
            printed,
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.printed).expect("it is there")).into_owned()
    }

    #[track_caller]
    fn wait_lines(&self, count: usize) {
        let has = eventually(LIMIT, || self.text().lines().count() >= count);
        assert!(has, "{} lines of {count}", self.text().lines().count());
    }

    /// Ends it, as an operator does.
    fn interrupt(mut self) -> String {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id is an i32"));
        kill(pid, Signal::SIGINT).expect("it follows on");
        self.child.wait().expect("it ends");
        self.text()
    }
}

impl Drop for LogFollower {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The logs of a service as the docker client prints them.
#[track_caller]
fn service_logs(cluster: &SwarmCluster, options: &[&str], service: &str) -> String {
    cluster.docker(&[&["service", "logs", "--raw"], options, &[service]].concat())
}

/// The lines from one number to another.
fn numbers(first: u32, last: u32) -> String {
    (first..=last).map(|number| format!("{number}\n")).collect()
}

/// Compares long texts without printing them.
#[track_caller]
fn assert_same(what: &str, text: &str, expected: &str) {
    let mut pairs = text.lines().zip(expected.lines()).enumerate();
    let wrong = pairs.find(|(_, (line, wanted))| line != wanted);
    let counts = (text.lines().count(), expected.lines().count());
    assert!(
        text == expected,
        "{what}: {counts:?} lines; the first that differs: {wrong:?}"
    );
}

/// The files of the log of the only task, the oldest one first and the present one last.
fn log_files(worker: &SwarmWorker) -> Vec<PathBuf> {
    let logs = worker.root().state().join("swarm-logs");
    let dirs: Vec<PathBuf> = fs::read_dir(logs)
        .into_iter()
        .flatten()
        .flatten()
        .map(|dir| dir.path())
        .collect();
    let [dir] = &dirs[..] else { return Vec::new() };
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path())
        .collect();
    files.sort_by_key(|file| (file.ends_with("output.log"), file.clone()));
    files
}

#[test]
fn logs_of_running_rotated_and_ended_tasks_are_what_was_printed() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    // In parts, slowly until it has been looked at while it ran.
    let shared = worker.root().run().join("shared");
    fs::create_dir(&shared).expect("the root can be written");
    let mount = format!("type=bind,source={},target=/shared", shared.display());
    let script = format!(
        "i=0; while [ $i -lt {PARTS} ]; do seq $((i*{part}+1)) $(((i+1)*{part})); i=$((i+1)); [ -e /shared/enough ] || sleep 0.3; done",
        part = LINES / PARTS
    );
    let options = [
        "--mount",
        &mount,
        "--log-driver",
        "json-file",
        "--log-opt",
        "max-size=64k",
        "--log-opt",
        "max-file=100",
        "--restart-condition",
        "none",
    ];
    create(&cluster, "count", &options, &image, &script);
    cluster.wait_until("the task runs", || {
        tasks(&cluster, "count")
            .iter()
            .any(|task| task.contains(" Running "))
    });
    let follower = LogFollower::start(&cluster, &[], "count", "followed");
    for round in 1..=3 {
        cluster.wait_until("the log is rotated", || log_files(&worker).len() > round);
        // The next logkeeper writes its last lines again: into the same file, or into the next one.
        worker.daemon().kill_at(&[(CrashPoint::LinesWritten, 2)]);
        let killed = eventually(LIMIT, || worker.daemon().pending_kills().is_empty());
        assert!(killed, "nothing was written\n{}", worker.daemon().tail());
    }
    follower.wait_lines(1000);
    let early = service_logs(&cluster, &[], "count");
    let count = u32::try_from(early.lines().count()).expect("there are few lines");
    assert!(count > 1000, "{count} lines of a task that runs");
    assert_same("a running task", &early, &numbers(1, count));
    fs::write(shared.join("enough"), "").expect("the root can be written");

    cluster.wait_until("the task has ended", || {
        tasks(&cluster, "count")
            .iter()
            .any(|task| task.contains(" Complete "))
    });
    let all = numbers(1, LINES);
    assert_same("an ended task", &service_logs(&cluster, &[], "count"), &all);
    assert_eq!(
        service_logs(&cluster, &["--tail", "1"], "count"),
        format!("{LINES}\n")
    );
    assert_same(
        "the end",
        &service_logs(&cluster, &["--tail", "150000"], "count"),
        &numbers(50_001, LINES),
    );
    assert_same(
        "since an hour ago",
        &service_logs(&cluster, &["--since", "1h"], "count"),
        &all,
    );
    assert_eq!(
        service_logs(&cluster, &["--since", "2099-01-01T00:00:00Z"], "count"),
        ""
    );
    let stamped = service_logs(&cluster, &["--timestamps", "--tail", "100"], "count");
    let since = stamped
        .split(' ')
        .next()
        .expect("a line begins with a time")
        .to_owned();
    let late = service_logs(&cluster, &["--since", &since], "count");
    assert_same("since a line", &late, &numbers(LINES - 99, LINES));

    follower.wait_lines(LINES as usize);
    assert_same("a follower", &follower.interrupt(), &all);
    cluster.docker(&["service", "rm", "count"]);
    wait_all_removed(&cluster, &worker);
}

#[test]
fn follower_sees_tasks_that_come_later_and_both_streams() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let script = "echo out $0; echo err >&2; exec sleep 1000";
    create(
        &cluster,
        "web",
        &["--env", "SLOT={{.Task.Slot}}"],
        &image,
        &script.replace("$0", "$SLOT"),
    );
    let follower = LogFollower::start(&cluster, &["--tail", "0"], "web", "followed");
    cluster.wait_until("the task runs", || {
        objects(&worker).iter().any(|(_, state)| state == "running")
    });
    cluster.docker(&["service", "scale", "--detach", "web=2"]);
    let has = |text: &str| follower.text().lines().any(|line| line == text);
    cluster.wait_until("the second task is followed", || has("out 2"));
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let all = service_logs(&cluster, &[], "web");
    assert_eq!(sorted(&all), ["out 1", "out 2"]);
    // Standard error of tasks is standard error of the client.
    let shown = cluster
        .docker_command(0, &["service", "logs", "web"])
        .output()
        .expect("docker was found");
    let errors = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(
        shown.status.success() && errors.matches("| err").count() == 2,
        "{errors}"
    );
    create(
        &cluster,
        "mute",
        &["--log-driver", "none"],
        &image,
        "echo nobody; exec sleep 1000",
    );
    cluster.wait_until("it runs", || {
        tasks(&cluster, "mute")
            .iter()
            .any(|task| task.contains(" Running "))
    });
    let shown = cluster
        .docker_command(0, &["service", "logs", "mute"])
        .output()
        .expect("docker was found");
    let errors = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(
        shown.status.success() && errors.contains("does not support reading"),
        "{errors}"
    );
}

#[test]
fn rotation_that_is_killed_at_any_step_is_continued_and_loses_no_line() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let options = [
        "--log-driver",
        "json-file",
        "--log-opt",
        "max-size=8k",
        "--log-opt",
        "max-file=3",
    ];
    let script = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done";
    create(&cluster, "count", &options, &image, script);
    let mut steps: Vec<(CrashPoint, u32)> = Operation::RotateLog
        .crash_points()
        .iter()
        .map(|step| (*step, 1))
        .collect();
    steps.push((CrashPoint::LogSetAside, 2));
    for kill in steps {
        cluster.wait_until("the task runs", || !log_files(&worker).is_empty());
        worker.daemon().kill_at(&[kill]);
        let killed = eventually(LIMIT, || worker.daemon().pending_kills().is_empty());
        assert!(
            killed,
            "{kill:?} is not reached\n{}",
            worker.daemon().tail()
        );
        worker.daemon().wait_killed();
        worker.daemon().spawn();
        worker.daemon().wait_ready();
        let newest = || {
            log_files(&worker)
                .pop()
                .filter(|file| file.ends_with("output.log"))
        };
        cluster.wait_until("the log is reopened", || newest().is_some());
        let size = newest()
            .and_then(|file| file.metadata().ok())
            .map_or(0, |metadata| metadata.len());
        let grows = || {
            newest()
                .and_then(|file| file.metadata().ok())
                .is_some_and(|now| now.len() != size)
        };
        cluster.wait_until("the log is written", grows);
        let printed = worker.output(&["logs", "count.1"]);
        let shown: Vec<u32> = printed
            .lines()
            .map(|line| line.parse().expect("it is a number"))
            .collect();
        assert!(
            shown.windows(2).all(|pair| pair[1] == pair[0] + 1),
            "{kill:?}: {printed}"
        );
    }
    cluster.wait_until("the oldest files are removed", || {
        let files = log_files(&worker);
        let read = |file: &PathBuf| fs::read_to_string(file).unwrap_or_default();
        files.len() <= 3 && !files.iter().any(|file| read(file).contains(" F 1\n"))
    });
}

#[test]
fn logs_go_through_a_manager_that_is_not_the_leader() {
    let cluster = SwarmCluster::with_managers(3);
    let (_registry, image) = registry(&cluster);
    let worker = SwarmWorker::start(&cluster, |_| String::new());
    let file = worker
        .token_file(&cluster.token("worker"))
        .display()
        .to_string();
    worker.output(&["swarm", "join", "--token-file", &file, &cluster.address(2)]);
    cluster.wait_until("a session is open", || {
        worker.status()["manager"] == cluster.address(2)
    });
    create(&cluster, "web", &[], &image, "seq 5000; exec sleep 1000");
    let printed = || worker.output(&["logs", "web.1"]).lines().count() == 5000;
    cluster.wait_until("the task runs", || {
        objects(&worker).iter().any(|(_, state)| state == "running")
    });
    cluster.wait_until("it has printed all", printed);
    // The node listens for requests of logs from shortly after its session is open.
    cluster.wait_until("the logs are asked for", || {
        !service_logs(&cluster, &[], "web").is_empty()
    });
    let follower = LogFollower::start(&cluster, &[], "web", "followed");
    for _ in 0..3 {
        assert_same(
            "a task",
            &service_logs(&cluster, &[], "web"),
            &numbers(1, 5000),
        );
    }
    follower.wait_lines(5000);
    assert_same("a follower", &follower.interrupt(), &numbers(1, 5000));
    assert_eq!(service_logs(&cluster, &["--tail", "1"], "web"), "5000\n");
    assert_eq!(
        worker.status()["manager"],
        cluster.address(2),
        "the session continues"
    );
}
