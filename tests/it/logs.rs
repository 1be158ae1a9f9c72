//! `switchyard logs` and `switchyard top`: what tasks of all owners print and use.

mod followed;
mod hostile;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::Agent;
use switchyard_tests::nomad::task::TaskSetup;

/// Time for something to appear.
const LIMIT: Duration = Duration::from_secs(60);

/// Time for a task to end.
const RUN: Duration = Duration::from_secs(60);

/// The error of a command that failed.
#[track_caller]
fn refused(done: &Output) -> String {
    let error = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(
        done.status.code(),
        Some(1),
        "{error}{}",
        String::from_utf8_lossy(&done.stdout)
    );
    error
}

/// A command that prints into files until it ends.
struct Follower {
    child: Child,
    stdout: PathBuf,
}

impl Follower {
    fn start(node: &TestNode, words: &[&str], name: &str) -> Self {
        let stdout = node.root().path().join(name);
        let file = fs::File::create(&stdout).expect("the root can be written");
        let errors = file.try_clone().expect("a file can be opened twice");
        let child = node
            .command(words)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn();
        Self {
            child: child.expect("the binary exists"),
            stdout,
        }
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.stdout).expect("it is text")
    }

    /// Waits until it has printed this.
    #[track_caller]
    fn wait_text(&self, condition: impl Fn(&str) -> bool) {
        assert!(
            eventually(LIMIT, || condition(&self.text())),
            "{:?}",
            self.text()
        );
    }

    /// Waits until it has ended, and returns what it has printed.
    #[track_caller]
    fn wait_end(mut self) -> (ExitStatus, String) {
        let mut status = None;
        eventually(LIMIT, || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        let text = self.text();
        (
            status.unwrap_or_else(|| panic!("it still runs: {} bytes", text.len())),
            text,
        )
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // It may have ended already, which is as intended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn container_is_found_by_id_or_name_and_its_streams_are_apart() {
    let node = TestNode::shared();
    let pod = node.pod("printing");
    let id = pod.start_shell(
        "main",
        "echo one; echo two >&2; printf '\\033[1mbold'; sleep 0.2; echo three >&2",
    );
    let _ = node.cri().wait_exit(&id);
    let done = node.call(&["logs", &id]);
    assert!(done.status.success());
    assert_eq!(String::from_utf8_lossy(&done.stdout), "one\n\x1b[1mbold");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "two\nthree\n");
    let objects: Value =
        serde_json::from_str(&node.output(&["ps", "--output", "json"])).expect("it is JSON");
    let tasks = objects["tasks"].as_array().expect("it is a list");
    let task = tasks
        .iter()
        .find(|task| task["id"] == json!(id))
        .expect("it is listed");
    let name = task["display_name"].as_str().expect("it has a name");
    assert_eq!(
        node.output(&["logs", "--stream", "stdout", name]),
        "one\n\x1b[1mbold"
    );
    assert_eq!(
        node.output(&["logs", "--tail", "2", "--stream", "stdout", &id[..20]]),
        "one\n\x1b[1mbold"
    );

    let entries = node.output(&["logs", "--output", "json", &id]);
    let entries: Vec<Value> = entries
        .lines()
        .map(|line| serde_json::from_str(line).expect("it is JSON"))
        .collect();
    let texts: Vec<_> = entries
        .iter()
        .map(|entry| entry["text"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(
        texts.iter().filter(|text| **text == "three").count(),
        1,
        "{texts:?}"
    );
    let unfinished = entries
        .iter()
        .find(|entry| entry["partial"] == json!(true))
        .expect("it is unfinished");
    assert_eq!(unfinished["text"], json!("\u{1b}[1mbold"));
    let last = entries
        .last()
        .and_then(|entry| entry["time"].as_str())
        .expect("it has a time")
        .to_owned();
    assert_eq!(
        node.output(&["logs", "--since", &last, "--output", "json", &id])
            .lines()
            .count(),
        1
    );
    let with_times = node.output(&["logs", "--timestamps", "--stream", "stdout", &id]);
    let (time, text) = with_times.split_once(' ').expect("it has a time");
    assert!(
        time.starts_with("20") && time.len() == 30 && text.starts_with("one\n"),
        "{with_times}"
    );
    // The same by the CRI client.
    let cri = node.root().cri_socket().display().to_string();
    let done = std::process::Command::new(switchyard_tests::daemon::binary())
        .args(["cri", "--socket", &cri, "logs", &id])
        .output()
        .expect("the binary exists");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "one\n\x1b[1mbold");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "two\nthree\n");
}

#[test]
fn task_without_log_is_refused_with_the_reason() {
    let node = TestNode::shared();
    let pod = node.pod("silent");
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| config.log_path.clear());
    let error = refused(&node.call(&["logs", &id]));
    assert!(
        error.contains("has no log: its pod has no log directory, or it has no log path"),
        "{error}"
    );
    let error = refused(&node.call(&["logs", "no such task"]));
    assert!(
        error.contains("nothing has the name \"no such task\""),
        "{error}"
    );
    let error = refused(&node.call(&["logs", pod.id()]));
    assert!(
        error.contains("is a sandbox: name one of its tasks"),
        "{error}"
    );
    let created = pod.create(&node.container("created", &["true"]));
    let error = refused(&node.call(&["logs", &created]));
    assert!(
        error.contains("has no log file: it was not started yet"),
        "{error}"
    );
    assert_eq!(
        node.call(&["logs", "--tail", "-1", &id]).status.code(),
        Some(2)
    );
}

#[test]
fn job_has_plain_text_in_the_files_of_its_agent() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let config = json!({
        "image": node.image(), "command": "sh", "network_mode": "host",
        "args": ["-c", "echo said; until [ -e /local/end ]; do sleep 0.05; done"],
    });
    let mut task = TaskSetup::new(node.root(), &agent, "web", &config);
    driver.start(&task.config).expect("it starts");
    let name = format!("job/group/web ({})", &task.config.alloc_id[..8]);
    let error = refused(&node.call(&["logs", &name]));
    assert!(
        error.contains("has no log file: it has written nothing yet, its job or its agent"),
        "{error}"
    );

    // The model of an agent reads the FIFOs; the files are written here as an agent does.
    task.wait_stdout(|text| text == "said\n");
    let logs = task.alloc_dir().join("alloc/logs");
    let file = |number: u64| logs.join(format!("web.stdout.{number}"));
    fs::write(file(3), "one\ntwo\n").expect("the root can be written");
    fs::write(file(4), "three\n").expect("the root can be written");
    fs::write(logs.join("web.stderr.0"), "wrong\n").expect("the root can be written");
    let done = node.call(&["logs", &name]);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "one\ntwo\nthree\n");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "wrong\n");
    assert_eq!(
        node.output(&["logs", "--tail", "2", "--stream", "stdout", &name]),
        "two\nthree\n"
    );
    for refusal in [&["--since", "10m"][..], &["--timestamps"]] {
        let error = refused(&node.call(&[&["logs", &name], refusal].concat()));
        assert!(
            error.contains("is plain text without times, as Nomad agents write it"),
            "{error}"
        );
    }
    let follower = Follower::start(
        &node,
        &["logs", "-f", "--tail", "1", "--stream", "stdout", &name],
        "followed",
    );
    follower.wait_text(|text| text == "three\n");
    fs::write(file(5), "four\n").expect("the root can be written");
    follower.wait_text(|text| text == "three\nfour\n");
    fs::write(task.task_dir().join("local/end"), "").expect("the root can be written");
    let result = driver.wait(task.id(), RUN).expect("it ends");
    assert_eq!(result.exit_code, 0);
    let (status, text) = follower.wait_end();
    assert!(status.success() && text == "three\nfour\n", "{text}");

    // What the job puts in place of its log is not followed.
    fs::remove_file(file(5)).expect("it is there");
    std::os::unix::fs::symlink("/etc/passwd", file(5)).expect("the root can be written");
    let error = refused(&node.call(&["logs", "--tail", "1", &name]));
    assert!(error.contains("leads through a symbolic link"), "{error}");
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
    drop(task);
    agent.stop();
}

#[test]
fn top_shows_who_uses_most_of_two_readings() {
    let node = TestNode::shared();
    let pod = node.pod("busy");
    let busy = pod.start_shell("main", "while :; do :; done");
    let idle = pod.start_shell("idle", "exec sleep 1000");
    let top: Value = serde_json::from_str(&node.output(&["top", "--once", "--output", "json"]))
        .expect("it is JSON");
    let tasks = top["tasks"].as_array().expect("it is a list");
    let of = |id: &str| {
        tasks
            .iter()
            .find(|task| task["id"] == json!(id))
            .expect("it runs")
    };
    let percent = |id: &str| of(id)["cpu_percent"].as_f64().expect("it was measured");
    assert!(
        percent(&busy) > 5.0 && percent(&idle) < percent(&busy),
        "{top:#}"
    );
    assert!(
        of(&busy)["memory_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 0),
        "{top:#}"
    );
    assert_eq!(of(&idle)["pids"], json!(1), "{top:#}");
    assert!(
        of(&idle)["received_bytes_per_second"].is_number(),
        "{top:#}"
    );
    assert!(
        top["seconds"].as_f64().is_some_and(|seconds| seconds > 1.0),
        "{top:#}"
    );
    let text = node.output(&["top", "--once", "--owner", "kubernetes", "--sort", "memory"]);
    assert!(
        text.contains(" tasks, over ") && text.contains(&busy[..13]),
        "{text}"
    );
    let text = node.output(&["top", "--once", "--owner", "swarm"]);
    assert!(text.starts_with("0 tasks, over "), "{text}");
}
