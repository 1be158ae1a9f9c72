//! Stress on the tools of operators: a storm of scrapes, names that are markup or very long, and a full disk
//! below the audit log or the history.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::host::{eventually, number};
use switchyard_tests::http;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};

use super::{ServerPids, assert_alive, peak_memory};

/// Number of requested scrapes; `SWITCHYARD_TEST_SCRAPES` sets another number.
const SCRAPES: usize = 2_000;

/// Number of clients that request them.
const CLIENTS: usize = 200;

/// Time for something to appear.
const LIMIT: Duration = Duration::from_secs(40);

#[test]
fn storm_of_scrapes_leaves_pods_and_memory_alone() {
    let scrapes = number("SWITCHYARD_TEST_SCRAPES", SCRAPES);
    let node = TestNode::start();
    let before = ServerPids::now(&node);
    let pod = node.pod("scraped");
    let id = pod.start_shell("main", "exec sleep 1000");
    let admin = node.daemon().admin();
    let socket = node.root().run().join("admin.sock");
    let peak = peak_memory(&node);
    let answered = AtomicUsize::new(0);
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (answered, refused, socket) = (&answered, &refused, &socket);
            scope.spawn(move || {
                for number in 0..scrapes / CLIENTS {
                    // One in eight is for the metrics of containers, on the socket.
                    let answer = match (client + number) % 8 {
                        0 => http::get_unix(socket, "/metrics/containers"),
                        _ => http::get(admin, "/metrics"),
                    };
                    match answer {
                        Ok(answer) if answer.status == 200 => {
                            answered.fetch_add(1, Ordering::Relaxed)
                        }
                        // A connection that has to make room for another one is closed.
                        Ok(_) | Err(_) => refused.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
        scope.spawn(|| {
            for number in 0..3 {
                let pod = node.pod(&format!("meanwhile{number}"));
                assert_eq!(pod.run_shell("echo works", |_| {}), "works");
            }
        });
    });
    let answered = answered.into_inner();
    let refused = refused.into_inner();
    assert_eq!(answered + refused, scrapes / CLIENTS * CLIENTS);
    assert!(
        answered > scrapes / 2,
        "{answered} of {scrapes} scrapes were answered"
    );
    let grown = peak_memory(&node).saturating_sub(peak);
    assert!(grown < 64 << 20, "{grown} bytes more were needed");
    assert_eq!(node.daemon().get_from_admin_address("/readyz").0, 200);
    assert_eq!(node.cri().sh(&id, "echo unharmed"), "unharmed");
    assert_alive(&node, &before);
}

/// Returns whether this is one sample of the text format: a name, labels in quotes without an unescaped one
/// inside, a number.
fn is_sample(line: &str) -> bool {
    let Some((series, value)) = line.rsplit_once(' ') else {
        return false;
    };
    let (is_escaped, is_quoted) =
        series
            .bytes()
            .fold((false, false), |(is_escaped, is_quoted), byte| {
                (
                    is_quoted && byte == b'\\' && !is_escaped,
                    is_quoted ^ (byte == b'"' && !is_escaped),
                )
            });
    !is_escaped && !is_quoted && value.parse::<f64>().is_ok()
}

#[test]
fn names_of_markup_and_of_a_thousand_bytes_are_shown_as_text() {
    let node = TestNode::start_configured(|root| {
        let file = root.path().join("audit/audit.log");
        format!(
            "[audit]\nto = \"file\"\nfile = {:?}\n",
            file.display().to_string()
        )
    });
    let before = ServerPids::now(&node);
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let config = json!({ "image": node.image(), "command": "sleep", "args": ["1000"], "network_mode": "host" });
    let long = "x".repeat(1024);
    let markup = "<script>\"alert('1')\\</script>";
    let escape = "a\u{1b}[2J\u{9b}31m\nb";
    let jobs = [markup, long.as_str(), escape];
    let mut served = Vec::new();
    for job in jobs {
        let mut task = TaskSetup::new(node.root(), &agent, "main", &config);
        (task.config.job_id, task.config.job_name) = (job.to_owned(), job.to_owned());
        match driver.start(&task.config) {
            Ok(_) => served.push((job, task)),
            Err(status) => assert!(status.message().contains("job"), "{status}"),
        }
    }
    assert!(
        served.iter().any(|(job, _)| *job == markup),
        "a job may have such a name"
    );

    assert_command_line_shows_text(&node, served.iter().map(|(job, _)| *job));
    let containers = node.daemon().get("/metrics/containers");
    assert_eq!(containers.0, 200);
    let samples: Vec<_> = containers
        .1
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    assert!(
        samples.iter().any(|line| line.contains("<script>")),
        "{samples:?}"
    );
    let broken: Vec<_> = samples.iter().filter(|line| !is_sample(line)).collect();
    assert!(broken.is_empty(), "{broken:?}");
    let audit =
        fs::read_to_string(node.root().path().join("audit/audit.log")).expect("it is written");
    for line in audit.lines() {
        assert!(
            serde_json::from_str::<Value>(line).is_ok() && line.len() < 16 << 10,
            "{line}"
        );
    }
    for (_, task) in &served {
        driver
            .destroy(task.id(), true)
            .expect("it can be destroyed");
    }
    assert_alive(&node, &before);
}

fn assert_command_line_shows_text<'a>(node: &TestNode, jobs: impl Iterator<Item = &'a str>) {
    let text = [
        node.output(&["ps"]),
        node.output(&["events"]),
        node.output(&["history"]),
        node.output(&["status", "--verbose"]),
        node.output(&["devices"]),
        node.output(&["images"]),
    ];
    for text in &text {
        assert!(
            !text.chars().any(|c| c.is_control() && c != '\n'),
            "{text:?}"
        );
    }
    let objects: Value =
        serde_json::from_str(&node.output(&["ps", "--output", "json"])).expect("it is JSON");
    let tasks = objects["tasks"].as_array().expect("there are some");
    for job in jobs {
        let task = tasks.iter().find(|task| task["names"]["nomad_job"] == job);
        let task = task.unwrap_or_else(|| panic!("{job:?} in {objects}"));
        let id = &task["id"];
        let name = &task["display_name"];
        let inspected = node.output(&["inspect", id.as_str().expect("it is a text")]);
        assert!(
            !inspected.chars().any(|c| c.is_control() && c != '\n'),
            "{inspected:?}"
        );
        let by_name = node.output(&[
            "inspect",
            "--output",
            "json",
            name.as_str().expect("it is a text"),
        ]);
        assert!(by_name.contains(&id.to_string()), "{by_name}");
    }
}

/// Fills the disk of a directory to its last byte.
fn fill(dir: &Path) -> File {
    let mut file = File::create(dir.join("filling")).expect("there is room for a name");
    let mut size = 1 << 20;
    while size > 0 {
        if file.write_all(&vec![1; size]).is_err() {
            size /= 2;
        }
    }
    file
}

#[test]
fn a_full_disk_below_the_audit_log_fails_no_request_and_loses_counted_lines_alone() {
    let mut dir = None;
    let node = TestNode::start_configured(|root| {
        let audit = root.path().join("audit");
        root.small_disk(&audit, "size=256k");
        let section = format!(
            "[audit]\nto = \"file\"\nfile = {:?}\n",
            audit.join("audit.log").display().to_string()
        );
        dir = Some(audit);
        section
    });
    let dir = dir.expect("the configuration was made");
    let lost = || {
        let text = node.daemon().get("/metrics").1;
        let line = text.lines().find_map(|line| {
            line.strip_prefix("switchyard_audit_lines_total{result=\"lost\"} ")
                .map(str::to_owned)
        });
        line.map_or(0.0, |count| count.parse::<f64>().expect("it is a number"))
    };
    assert_eq!(node.pod("first").run_shell("echo works", |_| {}), "works");
    assert_eq!(lost(), 0.0);
    let filling = fill(&dir);
    // The last page of the log has room for some lines still.
    let is_lost = (0..20).any(|number| {
        assert_eq!(
            node.pod(&format!("second{number}"))
                .run_shell("echo works", |_| {}),
            "works"
        );
        lost() > 0.0
    });
    assert!(is_lost, "{}", node.daemon().tail());
    assert_eq!(node.daemon().get("/readyz").0, 200);
    filling.set_len(0).expect("it is ours");
    assert_eq!(node.pod("third").run_shell("echo works", |_| {}), "works");
    let lines = || fs::read_to_string(dir.join("audit.log")).expect("it is there");
    assert!(
        eventually(LIMIT, || lines().contains("\"third\"")),
        "{}",
        lines()
    );
    // A line that was cut off by the full disk is ended before the next one.
    let torn = lines()
        .lines()
        .filter(|line| serde_json::from_str::<Value>(line).is_err())
        .count();
    assert!(torn <= 1, "{}", lines());
}

#[test]
fn a_full_disk_below_the_history_fails_no_request_and_loses_counted_events_alone() {
    let node = TestNode::start_configured(|root| {
        root.small_disk(&root.state().join("history"), "size=64k");
        String::new()
    });
    let dir = node.root().state().join("history");
    let lost = || {
        let text = node.daemon().get("/metrics").1;
        let line = text.lines().find_map(|line| {
            line.strip_prefix("switchyard_history_events_total{result=\"lost\"} ")
                .map(str::to_owned)
        });
        line.map_or(0.0, |count| count.parse::<f64>().expect("it is a number"))
    };
    assert_eq!(node.pod("first").run_shell("echo works", |_| {}), "works");
    assert_eq!(lost(), 0.0);
    let filling = fill(&dir);
    // The last page of the segment has room for some events still.
    let is_lost = (0..20).any(|number| {
        let pod = node.pod(&format!("second{number}"));
        assert_eq!(pod.run_shell("echo works", |_| {}), "works");
        lost() > 0.0
    });
    assert!(is_lost, "{}", node.daemon().tail());
    assert_eq!(node.daemon().get("/readyz").0, 200);
    assert!(node.output(&["events"]).contains("second0"));
    filling.set_len(0).expect("it is ours");
    assert_eq!(node.pod("third").run_shell("echo works", |_| {}), "works");
    let shown = || node.call(&["history", "third"]);
    let is_recorded = || String::from_utf8_lossy(&shown().stdout).contains("task_exited");
    assert!(eventually(LIMIT, is_recorded), "{:?}", shown());
    let errors = String::from_utf8_lossy(&shown().stderr).into_owned();
    assert!(errors.contains("could not be recorded"), "{errors}");
    let names = fs::read_dir(&dir).expect("it is there");
    let names = names.map(|entry| entry.expect("it can be read").file_name());
    let segments = names.filter(|name| name.to_string_lossy().starts_with("events-1-"));
    assert_eq!(segments.count(), 1, "a torn record begins no segment");
}
