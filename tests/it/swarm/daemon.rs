//! The daemon as a worker, by its command line and its configuration.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use switchyard_crash_points::{CrashPoint, Operation};
use switchyard_tests::prereq;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;

/// Waits until the only worker of the swarm is ready, and returns its line.
#[track_caller]
fn ready(cluster: &SwarmCluster) -> String {
    cluster.wait_until(
        "the worker is ready",
        || matches!(&cluster.workers()[..], [one] if one.contains(" Ready ")),
    );
    cluster.workers().remove(0)
}

/// Waits until the daemon reports this state of its membership.
#[track_caller]
fn wait_for_state(cluster: &SwarmCluster, worker: &SwarmWorker, state: &str) {
    cluster.wait_until(state, || worker.status()["state"] == state);
}

/// The secret of a token.
fn secret(token: &str) -> &str {
    token.rsplit('-').next().expect("a token has parts")
}

/// All files below a directory that contain a text.
fn files_with(dir: &Path, text: &str) -> Vec<String> {
    let grep = prereq::require("grep", "grep");
    let found = Command::new(grep)
        .args(["-rlaF", "-D", "skip", "--", text])
        .arg(dir)
        .output();
    let found = found.expect("grep was found");
    String::from_utf8_lossy(&found.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn node_joins_is_ready_keeps_its_node_over_restarts_and_leaves() {
    let cluster = SwarmCluster::new();
    let mut worker = SwarmWorker::start(&cluster, |root| {
        let audit = root.path().join("audit.log");
        format!(
            "[log]\nlevel = \"trace\"\n[audit]\nto = \"file\"\nfile = \"{}\"\n[swarm]\nlabels = {{ rack = \"7\" }}\n",
            audit.display()
        )
    });
    assert_eq!(worker.status()["state"], "not_joined");
    assert!(!worker.daemon().get("/readyz?verbose").1.contains("swarm"));
    assert!(
        worker
            .daemon()
            .get("/metrics")
            .1
            .contains("\nswitchyard_swarm_member 0\n")
    );

    let token = cluster.token("worker");
    let file = worker.token_file(&token).display().to_string();
    let words = [
        "swarm",
        "join",
        "--availability",
        "drain",
        "--token-file",
        &file,
        &cluster.address(0),
    ];
    let printed = worker.output(&words);
    let line = ready(&cluster);
    let [node, _, "Ready", "Drain"] = line.split(' ').collect::<Vec<_>>()[..] else {
        panic!("it is drained: {line}")
    };
    assert!(
        printed.contains(&format!("this node is {node} of the swarm ")),
        "{printed}"
    );
    let inspect = |format: &str| {
        cluster
            .docker(&["node", "inspect", "--format", format, node])
            .trim()
            .to_owned()
    };
    assert_eq!(
        inspect("{{.Description.Engine.Labels}}"),
        "map[rack:7 switchyard:true]"
    );
    let plugins = inspect("{{.Description.Engine.Plugins}}");
    assert!(!plugins.contains("overlay"), "{plugins}");

    let again = worker.refusal(&["swarm", "join", "--token-file", &file, &cluster.address(0)]);
    assert!(again.contains("already") && again.contains(node), "{again}");
    assert_session_is_shown(&cluster, &mut worker, node);

    for end in [Signal::SIGTERM, Signal::SIGKILL] {
        if end == Signal::SIGKILL {
            worker.daemon().kill9();
        }
        worker.daemon().restart();
        cluster.wait_until("a session is open again", || {
            worker.status()["manager"] == cluster.address(0)
        });
        assert_eq!(ready(&cluster), line, "after {end}");
    }

    let left = worker.output(&["swarm", "leave"]);
    assert!(left.contains(&format!("docker node rm {node}")), "{left}");
    assert_eq!(worker.status()["departure"]["cause"], "left");
    let files: Vec<_> = fs::read_dir(worker.root().state().join("swarm"))
        .unwrap()
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(
        worker
            .refusal(&["swarm", "leave"])
            .contains("this node is in no swarm")
    );
    cluster.docker(&["node", "rm", "--force", node]);
    worker.join(&cluster, &token);
    assert!(!ready(&cluster).contains(node));

    assert_no_secret_is_kept(&worker, &file, secret(&token));
}

fn assert_session_is_shown(cluster: &SwarmCluster, worker: &mut SwarmWorker, node: &str) {
    cluster.wait_until("a session is open", || {
        worker.status()["manager"] == cluster.address(0)
    });
    let text = worker.output(&["swarm", "status"]);
    assert!(
        text.contains(&format!("node         {node}\n"))
            && text.contains("certificate  valid until"),
        "{text}"
    );
    let metrics = worker.daemon().get("/metrics").1;
    for line in [
        "switchyard_swarm_member 1",
        "switchyard_swarm_session_open 1",
        "switchyard_swarm_sessions_total 1",
    ] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line}");
    }
    let part = worker.daemon().get("/readyz/swarm");
    assert_eq!(part.0, 200, "{}", part.1);
}

fn assert_no_secret_is_kept(worker: &SwarmWorker, token_file: &str, secret: &str) {
    let bundle = worker
        .root()
        .path()
        .join("bundle.tar.gz")
        .display()
        .to_string();
    worker.output(&["support-bundle", "--output-file", &bundle]);
    fs::remove_file(token_file).expect("it is there");
    let unpacked = worker.root().path().join("unpacked");
    fs::create_dir(&unpacked).expect("the root can be written");
    let tar = prereq::require("tar", "tar");
    let done = Command::new(tar)
        .args(["-xzf", &bundle, "-C"])
        .arg(&unpacked)
        .status();
    assert!(done.is_ok_and(|status| status.success()));
    let audit =
        fs::read_to_string(worker.root().path().join("audit.log")).expect("the daemon writes one");
    for operation in ["join_swarm", "leave_swarm"] {
        let line = audit
            .lines()
            .find(|line| line.contains(operation))
            .unwrap_or_else(|| panic!("{operation}: {audit}"));
        assert!(
            line.contains("\"uid\":0") && line.contains("\"ok\""),
            "{line}"
        );
    }
    let pages = [
        worker.output(&["events"]),
        worker.output(&["status", "--verbose"]),
    ]
    .concat();
    assert!(!pages.contains(secret));
    assert_eq!(
        files_with(worker.root().path(), secret),
        Vec::<String>::new()
    );
}

#[test]
fn wrong_tokens_roles_and_users_are_refused_and_leave_nothing() {
    let cluster = SwarmCluster::new();
    let worker = SwarmWorker::start(&cluster, |_| {
        "[admin]\nsocket_group = \"64123\"\n".to_owned()
    });
    let token = cluster.token("worker");
    let join = |token: &str, manager: &str| {
        let file = worker.token_file(token).display().to_string();
        let refusal = worker.refusal(&["swarm", "join", "--token-file", &file, manager]);
        assert!(!refusal.contains(secret(token)), "{refusal}");
        refusal
    };
    let flipped = if token.ends_with('0') { '1' } else { '0' };
    let wrong = format!("{}{flipped}", &token[..token.len() - 1]);
    assert!(join(&wrong, &cluster.address(0)).contains("valid join token"));
    assert!(
        join("SWMTKN-1-x-hunter2hunter2", &cluster.address(0))
            .contains("docker swarm join-token worker")
    );
    assert!(
        join(&token, "127.0.0.9:2377").contains("cannot connect to the manager 127.0.0.9:2377")
    );
    assert!(join(&token, "tcp://127.0.0.1").contains("HOST or HOST:PORT"));
    assert!(
        join(&cluster.token("manager"), &cluster.address(0)).contains("docker node rm --force")
    );
    assert!(!worker.root().state().join("swarm").exists());
    assert_eq!(worker.status()["state"], "not_joined");
    let usage = worker.call(&["swarm", "join", &cluster.address(0)]);
    assert_eq!(usage.status.code(), Some(2));

    let file = worker.token_file(&token);
    assert_members_of_the_group_change_nothing(&cluster, &worker, &file);

    // Standard input works for root, and a second manager when the first is away.
    let mut command = Command::new(switchyard_tests::daemon::binary());
    command.args([
        "swarm",
        "join",
        "--token-file",
        "-",
        "127.0.0.9",
        &cluster.address(0),
    ]);
    command
        .arg("--socket")
        .arg(worker.root().run().join("admin.sock"));
    let done = command
        .stdin(Stdio::from(fs::File::open(&file).unwrap()))
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert_eq!(worker.status()["state"], "member");
}

/// Members of the group of the socket see the membership, and change nothing.
fn assert_members_of_the_group_change_nothing(
    cluster: &SwarmCluster,
    worker: &SwarmWorker,
    token_file: &Path,
) {
    let client = worker.root().path().join("client");
    let install = prereq::require("install", "coreutils");
    let done = Command::new(install)
        .args(["-m", "0755"])
        .arg(switchyard_tests::daemon::binary())
        .arg(&client)
        .status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "the binary cannot be copied"
    );
    let member = |words: &[&str]| {
        let ids = [
            "--reuid", "65534", "--regid", "65534", "--groups", "64123", "--",
        ];
        let mut command = Command::new(prereq::require("setpriv", "util-linux"));
        command
            .args(ids)
            .arg(&client)
            .args(words)
            .arg("--socket")
            .arg(worker.root().run().join("admin.sock"));
        command
            .stdin(Stdio::from(
                fs::File::open(token_file).expect("it can be read"),
            ))
            .output()
            .expect("setpriv was found")
    };
    // The exit status is 1 because of the join that was refused.
    let shown = member(&["swarm", "status"]);
    assert!(
        String::from_utf8_lossy(&shown.stdout).contains("not joined"),
        "{shown:?}"
    );
    for words in [
        &["swarm", "join", "--token-file", "-", &cluster.address(0)][..],
        &["swarm", "leave"],
    ] {
        let done = member(words);
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(
            done.status.code() == Some(1) && error.contains("only root may"),
            "{words:?}: {error}"
        );
    }
    assert!(
        cluster.workers().iter().all(|line| !line.contains("Ready")),
        "{:?}",
        cluster.workers()
    );
}

#[test]
fn token_file_joins_by_itself_once_and_not_after_a_removal() {
    let cluster = SwarmCluster::new();
    let token = cluster.dir().join("worker-token");
    let put = |text: &str| {
        fs::write(&token, text).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&token, private).unwrap();
    };
    put("SWMTKN-1-wrong");
    let extra = format!(
        "[swarm]\njoin_token_file = \"{}\"\nmanagers = [\"{}\"]\n",
        token.display(),
        cluster.address(0)
    );
    let mut worker = SwarmWorker::start(&cluster, |_| extra);
    wait_for_state(&cluster, &worker, "joining");
    cluster.wait_until("the file is refused", || {
        worker.status()["problems"]
            .to_string()
            .contains("worker-token")
    });
    put(&cluster.token("worker"));
    wait_for_state(&cluster, &worker, "member");
    let line = ready(&cluster);
    let node = line.split(' ').next().unwrap().to_owned();

    cluster.docker(&["node", "rm", "--force", &node]);
    wait_for_state(&cluster, &worker, "ended");
    worker.daemon().restart();
    let status = worker.status();
    assert_eq!(
        (&status["state"], &status["node"]),
        (&"ended".into(), &node.as_str().into())
    );
    assert!(
        status["problems"]
            .to_string()
            .contains("was removed from the swarm"),
        "{status}"
    );
    let (code, page) = worker.daemon().get("/readyz/swarm");
    assert!(code == 503 && page.contains("was removed"), "{page}");
    assert_eq!(worker.daemon().get("/readyz").0, 200);
    assert_eq!(worker.call(&["swarm", "status"]).status.code(), Some(1));
    worker.output(&["swarm", "leave"]);
    worker.daemon().restart();
    assert_eq!(worker.status()["state"], "not_joined");
    assert!(cluster.workers().is_empty(), "{:?}", cluster.workers());
    worker.join(&cluster, &cluster.token("worker"));
    assert!(!ready(&cluster).contains(&node));
}

#[test]
fn daemon_that_is_killed_while_it_joins_or_leaves_goes_on_with_it() {
    let cluster = SwarmCluster::new();
    let mut worker = SwarmWorker::start(&cluster, |_| String::new());
    let file = worker
        .token_file(&cluster.token("worker"))
        .display()
        .to_string();
    let steps = Operation::JoinSwarm
        .crash_points()
        .iter()
        .filter(|step| **step != CrashPoint::SwarmFileDrafted);
    for step in steps {
        worker.daemon().kill_at(&[(*step, 1)]);
        let killed = worker.call(&["swarm", "join", "--token-file", &file, &cluster.address(0)]);
        assert_eq!(killed.status.code(), Some(1), "{step:?}: {killed:?}");
        worker.daemon().wait_killed();
        let [first] = &cluster.workers()[..] else {
            panic!("{step:?}: {:?}", cluster.workers())
        };
        let node = first.split(' ').next().unwrap().to_owned();
        worker.daemon().spawn();
        worker.daemon().wait_ready();
        if *step == CrashPoint::JoinRequestSaved {
            // The managers are not stored yet: the token has to come again.
            worker.output(&["swarm", "join", "--token-file", &file, &cluster.address(0)]);
        }
        wait_for_state(&cluster, &worker, "member");
        assert!(ready(&cluster).starts_with(&node), "{step:?}");

        let end = if *step == CrashPoint::JoinRequestSaved {
            CrashPoint::SwarmDepartureSaved
        } else if *step == CrashPoint::SwarmManagersSaved {
            CrashPoint::JoinRequestForgotten
        } else {
            CrashPoint::NodeCertificateRemoved
        };
        worker.daemon().kill_at(&[(end, 1)]);
        assert_eq!(worker.call(&["swarm", "leave"]).status.code(), Some(1));
        worker.daemon().wait_killed();
        worker.daemon().spawn();
        worker.daemon().wait_ready();
        wait_for_state(&cluster, &worker, "not_joined");
        assert_eq!(worker.status()["departure"]["cause"], "left", "{end:?}");
        cluster.docker(&["node", "rm", "--force", &node]);
    }
}

#[test]
fn disabled_node_takes_part_in_no_swarm() {
    let cluster = SwarmCluster::new();
    let mut worker = SwarmWorker::start(&cluster, |_| "[swarm]\nenabled = false\n".to_owned());
    let file = worker
        .token_file(&cluster.token("worker"))
        .display()
        .to_string();
    let address = cluster.address(0);
    for words in [
        &["swarm", "status"][..],
        &["swarm", "leave"],
        &["swarm", "join", "--token-file", &file, &address],
    ] {
        assert!(
            worker.refusal(words).contains("swarm.enabled is false"),
            "{words:?}"
        );
    }
    assert!(
        !worker
            .daemon()
            .get("/metrics")
            .1
            .contains("switchyard_swarm_member 1")
    );
    assert!(cluster.workers().is_empty() && !worker.root().state().join("swarm").exists());
}
