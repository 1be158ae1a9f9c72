//! The processes that agents start: how they begin, what they answer without the daemon, and when they exit.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use switchyard_proto::nomad::base::proto as base;
use switchyard_proto::nomad::base::proto::base_plugin_client::BasePluginClient;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::driver_capabilities::FsIsolation;
use switchyard_proto::nomad::drivers::proto::fingerprint_response::HealthState;
use switchyard_tests::daemon::Daemon;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::driver::ResponseStream;
use switchyard_tests::nomad::plugin::{COOKIE, GRACE, connect, hclog};
use switchyard_tests::nomad::{Agent, BlockingDriver, PluginProcess, agent};
use switchyard_tests::root::PrivateRoot;
use tonic::{Code, Status};

/// Time for which an agent waits for the exit of a plugin whose calls fail.
const EXIT_WAIT: Duration = Duration::from_secs(3);

/// Time for an immediate answer on a busy machine.
const SOON: Duration = Duration::from_secs(20);

fn signal(plugin: &PluginProcess, signal: Signal) {
    let pid = i32::try_from(plugin.pid()).expect("Linux keeps process ids below 2^22");
    kill(Pid::from_raw(pid), signal).expect("the plugin runs");
}

/// Reads on until the driver is healthy: it may have said before that containerd is not there yet.
#[track_caller]
fn wait_healthy(fingerprints: &mut ResponseStream<nomad::FingerprintResponse>) {
    let begin = Instant::now();
    loop {
        let next = fingerprints
            .next(SOON)
            .expect("it does not end")
            .expect("it is no error");
        if next.health() == HealthState::Healthy {
            return;
        }
        assert!(begin.elapsed() < SOON, "{next:?}");
    }
}

#[test]
fn agent_starts_without_daemon_and_tasks_wait_for_it() {
    let root = PrivateRoot::new();
    let agent = Agent::start(&root, &json!({}));
    let driver = agent.driver();
    let capabilities = driver.capabilities();
    assert!(capabilities.exec && capabilities.send_signals && !capabilities.must_create_network);
    assert_eq!(capabilities.fs_isolation(), FsIsolation::Image);
    assert!(driver.task_schema().block.is_some());
    let mut fingerprints = driver.fingerprint().expect("it is opened");
    let first = fingerprints
        .next(SOON)
        .expect("it does not end")
        .expect("it is no error");
    assert_eq!(first.health(), HealthState::Undetected);
    assert!(
        first
            .health_description
            .contains("nomad.sock: the agent's log has the reason")
            && first.err.is_empty(),
        "{first:?}"
    );
    let mut events = driver.events().expect("it is opened");
    assert!(
        events.try_next(Duration::from_millis(200)).is_none(),
        "there are no events without a daemon"
    );
    assert_eq!(agent.plugin().ping("plugin").expect("it answers").status, 1);

    // Calls about tasks are answered by the daemon, whenever it starts.
    let asked = driver.clone();
    let stopping = std::thread::spawn(move || asked.stop("none/such/12345678", Duration::ZERO, ""));
    let mut daemon = Daemon::prepare(&root, "");
    daemon.spawn();
    daemon.wait_ready();
    stopping
        .join()
        .expect("it is answered")
        .expect("what is not there is stopped");
    wait_healthy(&mut fingerprints);
    let lines = hclog(&agent.plugin().stderr());
    assert!(
        lines.iter().any(|line| line["@level"] == "warn"),
        "{lines:?}"
    );
    assert_eq!(
        agent.plugin().stdout().lines().count(),
        1,
        "only the handshake is said there"
    );
}

#[test]
fn plugin_exits_by_its_deadline_and_leaves_no_file() {
    let root = PrivateRoot::new();
    let agent = Agent::start(&root, &json!({}));
    let socket = agent.plugin().address().to_owned();
    assert!(socket.exists());
    agent.stop();
    assert!(!socket.exists());
    let left = fs::read_dir(socket.parent().expect("it is in a directory"))
        .expect("it is there")
        .count();
    assert_eq!(
        left, 0,
        "launches that were only asked what they are left something"
    );
    // The driver gets Shutdown, but the plugin is not stopped.
    let agent = Agent::start(&root, &json!({}));
    agent.driver().shutdown().expect("it takes the news");
    let mut plugin = agent.plugin();
    assert!(plugin.exit(GRACE).expect("it ends by itself").success());
}

#[test]
fn plugin_survives_interrupts_and_loss_of_all_connections() {
    let root = PrivateRoot::new();
    let agent = Agent::start(&root, &json!({}));
    signal(&agent.plugin(), Signal::SIGINT);
    for _ in 0..3 {
        drop(UnixStream::connect(agent.plugin().address()).expect("it listens"));
    }
    let pid = agent.plugin().pid();
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .expect("it runs")
        .count();
    assert_eq!(tasks, 1, "it is one thread");
    // The agent is killed: pipes and connections are closed. The next agent process finds the plugin
    // unchanged.
    let (parts, record) = agent.crash();
    assert_eq!(record.pid, pid);
    std::thread::sleep(Duration::from_millis(300));
    let agent = Agent::reattach(parts, record);
    assert_eq!(agent.plugin().pid(), pid);
    signal(&agent.plugin(), Signal::SIGTERM);
    let socket = agent.plugin().address().to_owned();
    assert!(agent.plugin().exit(SOON).expect("it ends").success());
    assert!(!socket.exists());
}

#[test]
fn plugin_exits_with_its_daemon_even_after_agent_death() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    // The session is open once the daemon answers.
    agent
        .driver()
        .stop("none/such/12345678", Duration::ZERO, "")
        .expect("what is not there is stopped");
    let waiting = agent.driver();
    let wait = std::thread::spawn(move || waiting.wait("none/such/12345678", SOON));
    assert_eq!(
        wait.join()
            .expect("it is answered")
            .expect_err("there is no such task")
            .code(),
        Code::NotFound
    );
    node.daemon().kill9();
    let begin = Instant::now();
    assert!(
        agent.plugin().exit(SOON).is_some(),
        "the plugin outlives the daemon"
    );
    assert!(
        begin.elapsed() < EXIT_WAIT,
        "an agent would have given up by then: {:?}",
        begin.elapsed()
    );
    let lines = hclog(&agent.plugin().stderr());
    assert!(lines.iter().any(|line| {
        line["@message"]
            .as_str()
            .unwrap_or_default()
            .contains("the daemon has gone")
    }));

    // A new one waits for the daemon; when its agent has died nobody reads its output, and it exits all the
    // same.
    let driver = agent.dispense();
    let mut fingerprints = driver.fingerprint().expect("it is opened");
    let first = fingerprints
        .next(SOON)
        .expect("it does not end")
        .expect("it is no error");
    assert_eq!(first.health(), HealthState::Undetected);
    node.daemon().spawn();
    node.daemon().wait_ready();
    wait_healthy(&mut fingerprints);
    drop((driver, fingerprints));
    let (parts, record) = agent.crash();
    let agent = Agent::reattach(parts, record);
    // Until its first call about a task, the agent may be about to recover some.
    agent
        .driver()
        .stop("none/such/12345678", Duration::ZERO, "")
        .expect("what is not there is stopped");
    assert_eq!(node.daemon().get("/readyz").0, 200);
    node.daemon().terminate();
    assert!(
        agent.plugin().exit(SOON).is_some(),
        "the plugin outlives the daemon"
    );
    node.daemon().spawn();
    node.daemon().wait_ready();
}

#[test]
fn plugin_start_failure_is_logged_in_hclog_format() {
    let root = PrivateRoot::new();
    let exe = agent::install_plugins(&root).join("switchyard");
    let agent = Agent::start(&root, &json!({}));
    let runtime = agent.runtime();
    let refused = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|word| (*word).to_owned()).collect();
        let failed = PluginProcess::launch(&exe, &args, runtime).expect_err("it cannot start");
        let status = failed.status.expect("it ends");
        let lines = hclog(&failed.stderr);
        assert!(
            lines.len() == 1 && lines[0]["@level"] == "error",
            "{lines:?}"
        );
        (
            status.code(),
            lines[0]["@message"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let (code, printed) = refused(&["--no-such"]);
    assert!(
        code == Some(2) && printed.contains("--no-such"),
        "{printed}"
    );
    let (code, printed) = refused(&["--name", "two words"]);
    assert!(
        code == Some(1) && printed.contains("two words"),
        "{printed}"
    );
    // A user who runs it by hand gets an explanation.
    let failed = PluginProcess::launch_with(
        &exe,
        &["nomad-plugin".into(), "driver".into()],
        &[],
        runtime,
    );
    let failed = failed.expect_err("it is not for people");
    assert_eq!(failed.status.and_then(|status| status.code()), Some(1));
    assert!(
        failed.stderr.contains("plugin_dir") && !failed.stderr.starts_with('{'),
        "{}",
        failed.stderr
    );
    // Nor does it act as a plugin when another program starts it.
    let wrong = [("NOMAD_PLUGIN_MAGIC_COOKIE", "something else")];
    let failed =
        PluginProcess::launch_with(&exe, &[], &wrong, runtime).expect_err("that is no agent");
    assert_eq!(failed.status.and_then(|status| status.code()), Some(1));
}

#[test]
fn plugin_answers_while_nobody_reads_its_stderr() {
    let root = PrivateRoot::new();
    let agent = Agent::start(&root, &json!({}));
    let (exe, args) = agent.program();
    let mut command = Command::new(exe);
    command
        .args(args)
        .args(["--log-level", "trace"])
        .env(COOKIE.0, COOKIE.1);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let read = BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut line);
    assert!(read.is_ok(), "{read:?}");
    let address = line
        .split('|')
        .nth(3)
        .unwrap_or_else(|| panic!("no handshake: {line:?}"));
    let mut client = BasePluginClient::new(connect(Path::new(address), agent.runtime()));
    // Each call logs so much that some dozens of calls fill a pipe.
    let ask = async {
        for _ in 0..500 {
            client.plugin_info(base::PluginInfoRequest {}).await?;
        }
        Ok::<_, Status>(())
    };
    let asked = agent
        .runtime()
        .block_on(async { tokio::time::timeout(SOON, ask).await });
    child.kill().expect("it runs");
    child.wait().expect("it can be waited for");
    asked.expect("it is not held up").expect("it answers");
    let mut printed = String::new();
    child
        .stderr
        .expect("it is piped")
        .read_to_string(&mut printed)
        .expect("it is text");
    assert!(
        printed.len() > 32 << 10,
        "it said too little to be held up: {} bytes",
        printed.len()
    );
    assert!(!hclog(&printed).is_empty());
}

#[test]
fn concurrent_agents_are_served_by_name() {
    let node = TestNode::start();
    let docker = Agent::start_with(node.root(), &["--name", "docker"], &json!({}));
    let own = Agent::start(node.root(), &json!({ "must_create_network": true }));
    assert_eq!(docker.plugin().info().expect("it answers").name, "docker");
    assert_eq!(own.plugin().info().expect("it answers").name, "switchyard");
    assert!(!docker.driver().capabilities().must_create_network);
    assert!(own.driver().capabilities().must_create_network);
    for agent in [&docker, &own] {
        agent
            .driver()
            .stop("none/such/12345678", Duration::ZERO, "")
            .expect("what is not there is stopped");
    }
    let launchers = || {
        let (_, page) = node.daemon().get("/metrics");
        page.lines()
            .find_map(|line| line.strip_prefix("switchyard_nomad_launchers "))
            .map(str::to_owned)
    };
    assert!(
        eventually(SOON, || launchers().as_deref() == Some("2")),
        "{:?}",
        launchers()
    );
    assert_eq!(node.daemon().get("/readyz/nomad").0, 200);
    docker.stop();
    own.stop();
    assert!(
        eventually(SOON, || launchers().as_deref() == Some("0")),
        "{:?}",
        launchers()
    );
    let (_, page) = node.daemon().get("/metrics");
    let counted = "{code=\"OK\",method=\"hashicorp.nomad.plugins.drivers.proto.Driver/StopTask\",protocol=\"nomad\"} 2";
    assert!(page.contains(counted), "{page}");
}

#[test]
fn invalid_plugin_configuration_is_rejected_at_set_config() {
    let root = PrivateRoot::new();
    let agent = Agent::start(&root, &json!({}));
    let (exe, args) = agent.program();
    let plugin = PluginProcess::launch(exe, args, agent.runtime()).expect("it starts");
    let spec = plugin
        .config_schema()
        .expect("it answers")
        .spec
        .expect("it takes something");
    let encode = |config| switchyard_tests::nomad::config::encode(&spec, &config);
    let status = plugin
        .set_config(encode(json!({ "image_pull_timeout": "soon" })), None)
        .expect_err("that is no time");
    assert!(status.message().contains("image_pull_timeout"), "{status}");
    let status = plugin
        .set_config(vec![0x81], None)
        .expect_err("that is no MessagePack");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    // What means nothing here is taken, with a warning once the agent means it.
    plugin
        .set_config(
            encode(json!({ "endpoint": "unix:///x" })),
            Some(agent::nomad_config()),
        )
        .expect("it is taken");
    let reported = eventually(SOON, || {
        hclog(&plugin.stderr())
            .iter()
            .any(|line| line["@message"].to_string().contains("endpoint"))
    });
    assert!(reported, "{}", plugin.stderr());
    assert!(BlockingDriver::new(&plugin, agent.runtime()).init().is_ok());
}
