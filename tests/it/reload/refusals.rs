//! Reloads that are refused, changes that wait, and values that have no effect.

use std::fs;

use serde_json::Value;
use switchyard_tests::node::TestNode;

use super::{apply, keys, metric, reload};

/// The standard error of the command line when a reload of the present file is refused.
#[track_caller]
fn refused(node: &TestNode) -> String {
    let done = node.call(&["config", "reload"]);
    assert_eq!(
        done.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&done.stdout)
    );
    String::from_utf8(done.stderr).expect("it is text")
}

#[test]
fn a_wrong_file_is_refused_with_file_line_and_key_and_changes_nothing() {
    let node = TestNode::start();
    let file = node.root().config();
    let before = node.output(&["config", "dump", "--running"]);
    let good = fs::read_to_string(&file).expect("it was written");
    let lines = good.lines().count();
    let reloadable = "\n[ledger]\novercommit = \"off\"\n";
    for (wrong, line, why) in [
        ("[ledgr]\n", 4, "unknown"),
        (
            "[exec]\nmax_per_container = \"many\"\n",
            5,
            "max_per_container",
        ),
        (
            "[exec]\nmax_per_container = 0\n",
            5,
            "exec.max_per_container",
        ),
        ("[exec\n", 4, ""),
    ] {
        fs::write(&file, format!("{good}{reloadable}{wrong}")).expect("it can be written");
        let text = refused(&node);
        let position = format!("{}:{}", file.display(), lines + line);
        assert!(
            text.contains(&position) && text.contains(why),
            "{position} is not in {text}"
        );
        assert!(text.contains("was not reloaded"), "{text}");
        assert_eq!(node.output(&["config", "dump", "--running"]), before);
    }
    fs::remove_file(&file).expect("it is ours");
    assert!(refused(&node).contains(&file.display().to_string()));
    assert_eq!(
        metric(&node, "switchyard_config_reloads_total{result=\"refused\"}"),
        5.0
    );
    assert_eq!(
        metric(&node, "switchyard_config_last_reload_successful"),
        0.0
    );
    let shown = node.output(&["status"]);
    assert!(shown.contains("A reload was refused at"), "{shown}");
    fs::write(&file, format!("{good}{reloadable}")).expect("it can be written");
    let report = node.output(&["config", "reload"]);
    assert!(
        report.contains("ledger.overcommit") && report.contains("\"warn\" -> \"off\""),
        "{report}"
    );
    assert_eq!(
        metric(&node, "switchyard_config_last_reload_successful"),
        1.0
    );
    assert!(!node.output(&["status"]).contains("refused"));
    assert!(
        node.output(&["config", "dump", "--running"])
            .contains("overcommit = \"off\"")
    );
}

#[test]
fn a_drop_in_is_reloaded_and_a_broken_one_refused() {
    let node = TestNode::start();
    let dir = node.root().config().with_file_name("config.d");
    fs::create_dir(&dir).expect("the root can be written");
    let drop_in = dir.join("50-exec.toml");
    fs::write(&drop_in, "version = 1\n[exec]\nmax_per_container = 7\n").expect("it can be written");
    let shown = node.output(&["config", "reload"]);
    assert!(
        shown.contains("1024 -> 7") && shown.contains(&format!("{}:3", drop_in.display())),
        "{shown}"
    );
    fs::write(&drop_in, "[exec]\nmax_per_container = 8\n").expect("it can be written");
    let text = refused(&node);
    assert!(
        text.contains(&drop_in.display().to_string()) && text.contains("version"),
        "{text}"
    );
    let origin = node.output(&["config", "dump", "--running", "--origin"]);
    let expected = format!("max_per_container = 7  # {}:3", drop_in.display());
    assert!(origin.contains(&expected), "{origin}");
    fs::remove_file(&drop_in).expect("it is ours");
    assert!(node.output(&["config", "reload"]).contains("7 -> 1024"));
}

#[test]
fn a_start_ignores_an_unknown_key_and_reports_it_and_a_reload_refuses_it() {
    let node = TestNode::start_with("[exec]\nmax_per_containr = 7\n", |_| {});
    let unknown = "unknown key \"max_per_containr\" in [exec]: did you mean \"max_per_container\"?";
    assert_eq!(node.pod("works").run_shell("echo works", |_| {}), "works");
    assert_eq!(metric(&node, "switchyard_config_ignored_keys"), 1.0);
    assert!(node.has_logged(unknown), "{}", node.daemon().tail());
    let doctor = node.call(&["doctor"]);
    let doctor = String::from_utf8(doctor.stdout).expect("it is text");
    for shown in [node.output(&["status"]), doctor, refused(&node)] {
        assert!(shown.contains(unknown), "{shown}");
    }
    assert_eq!(metric(&node, "switchyard_config_ignored_keys"), 1.0);
    let report = reload(&node, "[exec]\nmax_per_container = 7\n");
    assert_eq!(keys(&report, "applied"), ["exec.max_per_container"]);
    assert_eq!(metric(&node, "switchyard_config_ignored_keys"), 0.0);
    let shown = node.output(&["status"]);
    assert!(!shown.contains("max_per_containr"), "{shown}");
}

#[test]
fn a_change_that_needs_a_restart_waits_and_is_told_until_it_is_made() {
    let node = TestNode::start();
    let report = reload(
        &node,
        "[admin]\nmax_connections = 77\n[exec]\nmax_per_container = 7\n",
    );
    assert_eq!(keys(&report, "applied"), ["exec.max_per_container"]);
    assert_eq!(keys(&report, "pending"), ["admin.max_connections"]);
    assert_eq!(report["pending"][0]["effect"], "restart");
    let running = node.output(&["config", "dump", "--running"]);
    assert!(running.contains("max_connections = 256") && running.contains("max_per_container = 7"));
    assert_eq!(metric(&node, "switchyard_config_pending_changes"), 1.0);
    let shown = node.output(&["status"]);
    assert!(
        shown.contains("admin.max_connections") && shown.contains("256 -> 77"),
        "{shown}"
    );
    node.daemon().restart();
    assert!(
        node.output(&["config", "dump", "--running"])
            .contains("max_connections = 77")
    );
    assert_eq!(metric(&node, "switchyard_config_pending_changes"), 0.0);
    // What a client on the network sees names neither keys nor files.
    let (_, text) = node.daemon().get_from_admin_address("/statusz");
    let report: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(report.get("config"), None);
    assert_eq!(node.daemon().get_from_admin_address("/v1/config").0, 404);
}

#[test]
fn the_environment_of_the_daemon_overrides_the_file_and_is_told() {
    let node = TestNode::start_with_variables(&[("SWITCHYARD_EXEC__MAX_PER_CONTAINER", "9")]);
    let report = reload(&node, "[exec]\nmax_per_container = 7\n");
    assert_eq!(keys(&report, "applied"), [""; 0], "{report:#}");
    let told = &report["overridden"][0];
    assert_eq!(
        (&told["key"], &told["by"]),
        (
            &"exec.max_per_container".into(),
            &"environment variable SWITCHYARD_EXEC__MAX_PER_CONTAINER".into()
        ),
        "{report:#}"
    );
    assert!(
        node.output(&["config", "dump", "--running"])
            .contains("max_per_container = 9")
    );
}

#[test]
fn nothing_changes_when_nothing_was_changed() {
    let node = TestNode::start();
    apply(&node, "", &[]);
    assert!(
        node.output(&["config", "reload"])
            .contains("nothing has changed")
    );
    let wrong = node.call(&[
        "config",
        "dump",
        "--running",
        "--set",
        "exec.max_per_container=1",
    ]);
    assert_eq!(wrong.status.code(), Some(2));
}
