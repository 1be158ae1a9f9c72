//! Logs that a manager asks for, also in ways in which no real one does.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use switchyard_proto::docker::swarmkit::v1 as swarm;
use tonic::Status;

use super::log_broker::Published;
use super::manager::ScriptedManager;
use super::sessions::Running;
use crate::executor::TaskLog;

/// A node with logs, which a manager knows.
struct LogNode {
    manager: ScriptedManager,
    node: Running,
    place: tempfile::TempDir,
}

impl LogNode {
    async fn start() -> Self {
        let manager = ScriptedManager::start(true).await;
        let mut node = Running::start(&manager).await;
        node.until(|report| report.sessions == 1).await;
        Self {
            manager,
            node,
            place: tempfile::tempdir().unwrap(),
        }
    }

    /// Adds a task of `service1`, whose log has no file yet.
    fn task(&self, task: &str) -> PathBuf {
        let file = self.place.path().join(task).join("output.log");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        self.node.executor.logs.lock().push(TaskLog {
            service_id: "service1".to_owned(),
            task_id: task.to_owned(),
            file: Some(file.clone()),
            has_ended: false,
        });
        file
    }

    fn end(&self, task: &str) {
        for log in self
            .node
            .executor
            .logs
            .lock()
            .iter_mut()
            .filter(|log| log.task_id == task)
        {
            log.has_ended = true;
        }
    }

    /// Returns what is published for a subscription that does not follow.
    async fn read(&self, id: &str, options: swarm::LogSubscriptionOptions) -> Published {
        self.manager.subscribe(of_service(id, options)).await;
        self.manager
            .published(id, |published| published.closes == 1)
            .await
    }
}

fn of_service(id: &str, options: swarm::LogSubscriptionOptions) -> swarm::SubscriptionMessage {
    let selector = swarm::LogSelector {
        service_ids: vec!["service1".to_owned()],
        ..Default::default()
    };
    swarm::SubscriptionMessage {
        id: id.to_owned(),
        selector: Some(selector),
        options: Some(options),
        close: false,
    }
}

fn closed(id: &str) -> swarm::SubscriptionMessage {
    swarm::SubscriptionMessage {
        id: id.to_owned(),
        close: true,
        ..Default::default()
    }
}

fn following() -> swarm::LogSubscriptionOptions {
    swarm::LogSubscriptionOptions {
        follow: true,
        ..Default::default()
    }
}

fn tail(tail: i64) -> swarm::LogSubscriptionOptions {
    swarm::LogSubscriptionOptions {
        tail,
        ..Default::default()
    }
}

fn streams(streams: Vec<i32>) -> swarm::LogSubscriptionOptions {
    swarm::LogSubscriptionOptions {
        streams,
        ..Default::default()
    }
}

/// Writes an entry of each number; the odd ones are of standard error.
fn write(file: &PathBuf, numbers: std::ops::Range<u32>) {
    let mut log = fs::File::options()
        .create(true)
        .append(true)
        .open(file)
        .unwrap();
    for number in numbers {
        let stream = if number % 2 == 0 { "stdout" } else { "stderr" };
        let (minute, second) = (number / 60, number % 60);
        writeln!(
            log,
            "2026-01-01T00:{minute:02}:{second:02}.000000007Z {stream} F line {number}"
        )
        .unwrap();
    }
}

/// The text of these numbers.
fn lines(numbers: impl IntoIterator<Item = u32>) -> String {
    numbers
        .into_iter()
        .map(|number| format!("line {number}\n"))
        .collect()
}

#[tokio::test]
async fn logs_are_cut_by_tail_time_and_stream_and_closed_once() {
    let node = LogNode::start().await;
    let file = node.task("task1");
    write(&file, 0..4);
    fs::rename(&file, file.with_file_name("output.log.20260101-000100")).unwrap();
    write(&file, 4..10);
    let all = swarm::LogSubscriptionOptions::default;
    let since = Some(prost_types::Timestamp {
        seconds: 1_767_225_600 + 3,
        nanos: 7,
    });
    for (id, options, expected) in [
        ("all", all(), lines(0..10)),
        ("none", tail(-1), String::new()),
        ("one", tail(-2), lines(9..10)),
        ("eight", tail(-9), lines(2..10)),
        ("many", tail(i64::MIN), lines(0..10)),
        (
            "since",
            swarm::LogSubscriptionOptions { since, ..all() },
            lines(3..10),
        ),
        ("out", streams(vec![1]), lines([0, 2, 4, 6, 8])),
        (
            "err",
            swarm::LogSubscriptionOptions {
                tail: -3,
                ..streams(vec![2])
            },
            lines([7, 9]),
        ),
        ("unknown", streams(vec![0, 9]), String::new()),
        ("first", tail(5), String::new()),
    ] {
        let published = node.read(id, options).await;
        assert_eq!(
            (published.text(), published.calls, published.breaks),
            (expected, 1, 0),
            "{id}"
        );
    }
    let published = node.read("again", all()).await;
    let message = &published.messages[3];
    let context = message.context.clone().unwrap();
    assert_eq!(
        [context.service_id, context.node_id, context.task_id],
        ["service1", "node1", "task1"]
    );
    assert_eq!(message.stream(), swarm::LogStream::Stderr);
    assert_eq!(message.timestamp, since);
}

#[tokio::test]
async fn partial_and_malformed_lines_are_kept_as_they_are() {
    let node = LogNode::start().await;
    let file = node.task("task1");
    let text = "2026-01-01T00:00:00Z stdout P par\n2026-01-01T00:00:01Z stdout F tial\nno entry\n\
                2026-01-01T00:00:02Z stdout F torn";
    fs::write(&file, text).unwrap();
    let published = node
        .read("running", swarm::LogSubscriptionOptions::default())
        .await;
    let data: Vec<&[u8]> = published
        .messages
        .iter()
        .map(|message| &message.data[..])
        .collect();
    assert_eq!(data, [&b"par"[..], b"tial\n", b"no entry\n"]);
    // Managers refuse messages without a time.
    assert_eq!(
        published.messages[2].timestamp,
        published.messages[1].timestamp
    );
    node.end("task1");
    let published = node
        .read("ended", swarm::LogSubscriptionOptions::default())
        .await;
    assert!(published.text().ends_with("torn\n"), "{published:?}");
}

#[tokio::test]
async fn long_logs_come_in_messages_that_managers_take() {
    let node = LogNode::start().await;
    let file = node.task("task1");
    let mut log = fs::File::create(&file).unwrap();
    let long = "x".repeat(16 << 10);
    for number in 0..200 {
        writeln!(log, "2026-01-01T00:00:00Z stdout P {number} {long}").unwrap();
        writeln!(log, "2026-01-01T00:00:00Z stdout F {number} end").unwrap();
    }
    writeln!(log, "2026-01-01T00:00:00Z stdout F {}", "y".repeat(3 << 20)).unwrap();
    let published = node
        .read("long", swarm::LogSubscriptionOptions::default())
        .await;
    let expected: String = (0..200)
        .map(|number| format!("{number} {long}{number} end\n"))
        .collect();
    let text = published.text();
    assert_eq!(text.len(), expected.len() + (3 << 20) + 1);
    assert!(text.starts_with(&expected) && text.ends_with("yyy\n"));
    assert!(published.largest < 1 << 20, "{}", published.largest);
}

#[tokio::test]
async fn follower_reads_over_rotations_ends_and_new_tasks_until_it_is_closed() {
    let node = LogNode::start().await;
    let file = node.task("task1");
    write(&file, 0..5);
    let options = swarm::LogSubscriptionOptions {
        tail: -3,
        ..following()
    };
    node.manager.subscribe(of_service("follow", options)).await;
    let has = |number: u32| {
        let last = format!("line {number}\n");
        move |published: &Published| published.text().ends_with(&last)
    };
    node.manager.published("follow", has(4)).await;
    write(&file, 5..8);
    fs::rename(&file, file.with_file_name("output.log.20260101-000100")).unwrap();
    write(&file, 8..12);
    node.manager.published("follow", has(11)).await;
    node.end("task1");
    // A task that comes later is read from its first line on, though only the last ones of others were asked for.
    let other = node.task("task2");
    write(&other, 20..25);
    node.manager.published("follow", has(24)).await;
    // The same subscription is sent again.
    node.manager
        .subscribe(of_service("follow", following()))
        .await;
    node.node
        .executor
        .logs
        .lock()
        .retain(|log| log.task_id != "task1");
    write(&other, 25..26);
    let published = node.manager.published("follow", has(25)).await;
    assert_eq!(published.text(), lines((3..12).chain(20..26)));
    assert_eq!(
        (published.calls, published.closes, published.breaks),
        (1, 0, 0)
    );
    node.manager.subscribe(closed("follow")).await;
    node.manager
        .published("follow", |published| published.breaks == 1)
        .await;
    write(&other, 26..27);
    node.read("later", swarm::LogSubscriptionOptions::default())
        .await;
    assert_eq!(
        node.manager.published("follow", |_| true).await.text(),
        published.text()
    );
}

#[tokio::test]
async fn tasks_without_a_log_delay_nobody() {
    let node = LogNode::start().await;
    // One that was not started yet, one whose driver is none, one whose log is a directory, and one with a log.
    node.task("absent");
    let discarded = TaskLog {
        service_id: "service1".into(),
        task_id: "discarded".into(),
        file: None,
        has_ended: false,
    };
    node.node.executor.logs.lock().push(discarded);
    fs::create_dir(node.task("odd")).unwrap();
    write(&node.task("task1"), 0..1);
    let published = node
        .read("all", swarm::LogSubscriptionOptions::default())
        .await;
    let text = published.text();
    assert!(
        text.contains("[switchyard: configured logging driver does not support reading]\n"),
        "{text}"
    );
    assert!(
        text.contains("is not a regular file") && text.ends_with("line 0\n"),
        "{text}"
    );
    let out = swarm::LogSubscriptionOptions {
        streams: vec![1],
        ..Default::default()
    };
    assert_eq!(node.read("out", out).await.text(), "line 0\n");
    let nothing = swarm::SubscriptionMessage {
        selector: None,
        ..of_service("nothing", following())
    };
    let nothing = swarm::SubscriptionMessage {
        options: None,
        ..nothing
    };
    node.manager.subscribe(nothing).await;
    let published = node
        .manager
        .published("nothing", |published| published.closes == 1)
        .await;
    assert!(published.messages.is_empty());
}

#[tokio::test]
async fn failures_of_the_broker_leave_the_session_and_its_subscriptions_alone() {
    let manager = ScriptedManager::start(true).await;
    *manager.shared.logs.refusals.lock() = vec![Status::unavailable("no leader"); 2];
    let mut running = Running::start(&manager).await;
    running.until(|report| report.sessions == 1).await;
    let node = LogNode {
        manager,
        node: running,
        place: tempfile::tempdir().unwrap(),
    };
    let file = node.task("task1");
    write(&file, 0..1);
    node.manager
        .subscribe(of_service("follow", following()))
        .await;
    node.manager
        .published("follow", |published| published.text() == lines(0..1))
        .await;
    assert_eq!(*node.manager.shared.logs.listens.lock(), 3);
    let listener = node.manager.shared.logs.listener.lock().take().unwrap();
    listener
        .send(Err(Status::aborted("the leader has changed")))
        .await
        .unwrap();
    drop(listener);
    // The follower continues, and the new stream repeats it.
    node.manager
        .subscribe(of_service("follow", following()))
        .await;
    write(&file, 1..2);
    let published = node
        .manager
        .published("follow", |published| published.text() == lines(0..2))
        .await;
    assert_eq!(published.calls, 1);
    // One that is over is not served again, before the manager has forgotten it.
    node.read("once", swarm::LogSubscriptionOptions::default())
        .await;
    node.manager
        .subscribe(of_service("once", swarm::LogSubscriptionOptions::default()))
        .await;
    node.read("twice", swarm::LogSubscriptionOptions::default())
        .await;
    assert_eq!(node.manager.published("once", |_| true).await.calls, 1);
    assert_eq!(node.manager.shared.asked.lock().sessions.len(), 1);
}

#[tokio::test]
async fn manager_without_a_broker_is_asked_once_in_a_session() {
    let manager = ScriptedManager::start(true).await;
    *manager.shared.logs.refusals.lock() = vec![Status::unimplemented("unknown service"); 9];
    let mut node = Running::start(&manager).await;
    node.until(|report| report.sessions == 1).await;
    manager
        .until("heartbeats continue", |asked| asked.heartbeats > 4)
        .await;
    assert_eq!(*manager.shared.logs.listens.lock(), 1);
    assert_eq!(manager.shared.asked.lock().sessions.len(), 1);
}

#[tokio::test]
async fn thousands_of_subscriptions_take_a_bounded_part_and_end_with_the_session() {
    let node = LogNode::start().await;
    write(&node.task("task1"), 0..3);
    for garbage in ["", "a b", &"x".repeat(1000)] {
        node.manager
            .subscribe(of_service(garbage, following()))
            .await;
    }
    let many = vec!["service1".to_owned(); 20_000];
    let selector = Some(swarm::LogSelector {
        service_ids: many,
        ..Default::default()
    });
    let wide = swarm::SubscriptionMessage {
        selector,
        ..of_service("wide", following())
    };
    node.manager.subscribe(wide).await;
    let published = node
        .manager
        .published("wide", |published| published.closes == 1)
        .await;
    assert!(published.messages.is_empty());
    for number in 0..3000 {
        node.manager
            .subscribe(of_service(&format!("s{number}"), following()))
            .await;
    }
    node.manager
        .until("heartbeats continue", |asked| asked.heartbeats > 3)
        .await;
    let open = || {
        let published = node.manager.shared.logs.published.lock();
        published
            .values()
            .filter(|one| one.closes + one.breaks == 0 && one.calls > 0)
            .count()
    };
    for _ in 0..600 {
        if open() == 64 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(open(), 64);
    // A place is free again.
    node.manager.subscribe(closed("s0")).await;
    node.manager
        .published("s0", |published| published.breaks == 1)
        .await;
    node.read("after", swarm::LogSubscriptionOptions::default())
        .await;
    // The end of the session ends them all.
    let stream = node.manager.shared.session.lock().take().unwrap();
    stream
        .send(Err(Status::aborted("dispatcher is stopped")))
        .await
        .unwrap();
    drop(stream);
    node.manager
        .until("a second session", |asked| asked.sessions.len() == 2)
        .await;
    for _ in 0..600 {
        if open() == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{} subscriptions outlive their session", open());
}
