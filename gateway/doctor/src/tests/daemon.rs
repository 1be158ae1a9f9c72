//! 8xx: the daemon and its configuration.

use switchyard_operator_api::RefusedReloadView;
use switchyard_operator_api::{Change, Effect};

use super::super::facts::{FoundDaemon, daemon_at};
use super::*;

fn of_status(change: impl FnOnce(&mut StatusReport), expected: &[&str]) -> Vec<Finding> {
    check(|node| change(node.status.as_mut().unwrap()), expected)
}

#[test]
fn daemon_that_does_not_run() {
    let notes = ["SY801 error", "SY803 note", "SY803 note", "SY803 note"];
    let found = check(TestNode::kill_daemon, &notes);
    assert_eq!(
        found[0].command.as_deref(),
        Some("systemctl status switchyard")
    );
    assert!(!look(TestNode::kill_daemon).daemon);
}

#[test]
fn parts_that_are_down() {
    let down = |is_needed: bool| {
        move |status: &mut StatusReport| {
            status.parts[1].up = false;
            status.parts[1].needed = is_needed;
        }
    };
    of_status(down(true), &["SY802 error"]);
    let unreadable = |status: &mut StatusReport| {
        down(true)(status);
        status.parts[1].name = "objects".into();
    };
    let found = of_status(unreadable, &["SY816 error"]);
    assert_eq!(
        found[0].command.as_deref(),
        Some("switchyard ps --state unreadable")
    );
    of_status(down(false), &["SY802 warning"]);
}

#[test]
fn objects_with_a_trouble() {
    for (kind, expected) in [
        ("silent_shim", "SY819 warning"),
        ("unrecorded_exit", "SY820 warning"),
        ("left_cgroup", "SY821 warning"),
        ("tree_set_aside", "SY822 warning"),
        ("damaged_image", "SY823 warning"),
        ("unended_task", "SY824 warning"),
        ("full_pipe", "SY825 warning"),
        ("failing_operations", "SY826 warning"),
        ("of_a_later_version", "SY802 warning"),
    ] {
        let trouble = TroubleView {
            kind: kind.to_owned(),
            count: 2,
            objects: vec!["abc (shop/web)".to_owned()],
        };
        let found = of_status(|status| status.troubles = vec![trouble], &[expected]);
        let text = &found[0].found;
        assert!(text.contains("abc (shop/web), and 1 more"), "{text}");
    }
}

#[test]
fn programs_of_other_versions() {
    let found = of_status(
        |status| status.programs[0].replaced = true,
        &["SY809 warning"],
    );
    assert_eq!(
        found[0].command.as_deref(),
        Some("systemctl restart switchyard")
    );
    let found = of_status(
        |status| status.programs[0].configuration_current = Some(false),
        &["SY818 warning"],
    );
    assert_eq!(
        found[0].command.as_deref(),
        Some("systemctl restart switchyard")
    );
    let both = |status: &mut StatusReport| {
        status.programs[0].replaced = true;
        status.programs[0].configuration_current = Some(false);
    };
    of_status(both, &["SY809 warning"]);
    let older = "logkeeper 0.0.1 protocol 2, process 7".to_owned();
    let found = of_status(|status| status.parts[0].detail = older, &["SY810 warning"]);
    assert_eq!(
        found[0].command.as_deref(),
        Some("switchyard restart logkeeper")
    );
    of_status(
        |status| status.parts[0].detail = "logkeeper protocol 2".into(),
        &["SY810 warning"],
    );
    let other = |status: &mut StatusReport| {
        status.version = "0.0.1".into();
        status.parts[0].detail = "logkeeper 0.0.1 protocol 2".into();
    };
    of_status(other, &["SY814 note"]);
}

#[test]
fn configuration_files() {
    let found = check(
        |node| node.config("[cri]\nsocket_grup = \"x\""),
        &["SY804 error"],
    );
    assert!(found[0].found.contains("config.toml:3"), "{found:?}");
    let group = "[[devices.groups]]\nvendor = \"a\"\ntype = \"t\"\nname = \"v\"\nresource = \"a.com/t\"\npaths = [\"/dev/a\"]";
    check(
        |node| {
            node.config(group);
            node.file("/var/lib/kubelet/device-plugins/x", "");
        },
        &["SY805 warning"],
    );
    let found = check(
        |node| {
            node.config("[log]\nlevel = \"warn\"");
            let environment =
                "PATH=/usr/bin\0SWITCHYARD_LOG__LEVEL=debug\0SWITCHYARD_LOGKEEPER__MODE=external\0";
            node.file(&format!("/proc/{DAEMON}/environ"), environment);
        },
        &["SY806 note"],
    );
    assert!(
        found[0].found.contains("log.level is overridden by"),
        "{found:?}"
    );
    // A relative path is one from the directory of the daemon.
    let found = check(
        |node| {
            node.process(DAEMON, "/usr/bin/switchyard serve -c node.toml");
            node.links.insert(
                format!("/proc/{DAEMON}/cwd").into(),
                "/srv/switchyard".into(),
            );
            let text = "version = 1\n[cri]\nsocket_grup = \"x\"\n";
            node.configs
                .insert("/srv/switchyard/node.toml".into(), text.to_owned());
        },
        &["SY804 error"],
    );
    assert!(found[0].found.contains("socket_grup"), "{found:?}");
    // A daemon starts with unknown keys elsewhere.
    let found = check(
        |node| node.config("[exec]\nmax_per_containr = 1"),
        &["SY815 warning"],
    );
    assert!(
        found[0]
            .found
            .contains("did you mean \"max_per_container\"?"),
        "{found:?}"
    );
}

#[test]
fn reloads() {
    let refused = RefusedReloadView {
        at: "now".into(),
        why: "/etc/x:1: unknown key".into(),
    };
    of_status(
        |status| status.config.as_mut().unwrap().refused = Some(refused),
        &["SY807 warning"],
    );
    let change = Change {
        key: "log.format".into(),
        effect: Effect::Restart,
        location: String::new(),
        before: None,
        after: None,
    };
    let found = of_status(
        |status| status.config.as_mut().unwrap().pending.push(change),
        &["SY808 note"],
    );
    assert!(found[0].found.contains("log.format"), "{found:?}");
}

#[test]
fn groups_and_addresses_of_servers() {
    let config = "[nomad]\nsocket_group = \"nomads\"";
    let found = check(|node| node.config(config), &["SY811 error"]);
    assert_eq!(
        found[0].command.as_deref(),
        Some("groupadd --system nomads")
    );
    check(
        |node| {
            node.config(config);
            node.groups.insert("nomads".into());
        },
        &[],
    );
    check(
        |node| node.config("[admin]\nlisten = \"0.0.0.0:9640\""),
        &["SY812 warning"],
    );
}

#[test]
fn faults_of_the_next_start() {
    let fault = "/etc/x.pem cannot be read";
    let found = check(
        |node| {
            let environment = "SWITCHYARD_LOGKEEPER__MODE=external\0A=bad\0";
            node.file(&format!("/proc/{DAEMON}/environ"), environment);
            node.start_faults.insert("bad".into(), fault.into());
        },
        &["SY817 error"],
    );
    assert_eq!(found[0].found, fault);
    // A daemon with an invalid configuration does not come so far.
    check(
        |node| {
            node.config("[admin]\nsocket_group = 1");
            node.file(
                &format!("/proc/{DAEMON}/environ"),
                "SWITCHYARD_LOGKEEPER__MODE=external\0A=bad\0",
            );
            node.start_faults.insert("bad".into(), fault.into());
        },
        &["SY804 error"],
    );
    check(
        |node| node.config("[admin]\nsocket_group = \"operators\""),
        &["SY811 error"],
    );
}

/// Replaces what systemd shows of the unit, which is loaded.
fn unit(node: &mut TestNode, properties: &str) {
    let shown = format!("LoadState=loaded\n{properties}\n");
    node.command("systemctl show --property=Environment", &shown);
}

#[test]
fn next_start_is_that_of_the_unit_whose_process_the_daemon_is() {
    let mode = "Environment=SWITCHYARD_LOGKEEPER__MODE=external";
    let bad = |node: &mut TestNode| node.start_faults.insert("bad".into(), "a fault".into());
    for (main_pid, expected) in [(DAEMON, &["SY817 error"][..]), (DAEMON + 1, &[][..])] {
        check(
            |node| {
                unit(node, &format!("{mode} A=bad\nMainPID={main_pid}"));
                bad(node);
            },
            expected,
        );
    }
    // It is corrected in the unit.
    check(
        |node| {
            unit(node, &format!("{mode}\nMainPID={DAEMON}"));
            let environment = "SWITCHYARD_LOGKEEPER__MODE=external\0A=bad\0";
            node.file(&format!("/proc/{DAEMON}/environ"), environment);
            bad(node);
        },
        &[],
    );
    let invalid = format!("{mode} SWITCHYARD_EXEC__MAX_PER_CONTAINER=0\nMainPID={DAEMON}");
    let found = check(|node| unit(node, &invalid), &["SY817 error"]);
    assert!(found[0].found.contains("max_per_container"), "{found:?}");
}

#[test]
fn instances_that_share_something() {
    let second = |text: &'static str| {
        move |node: &mut TestNode| {
            node.process(101, "/usr/bin/switchyard serve --config /srv/other.toml");
            node.configs
                .insert("/srv/other.toml".into(), format!("version = 1\n{text}\n"));
        }
    };
    let apart = "[paths]\nstate = \"/srv/state\"\nrun = \"/srv/run\"\n[admin]\nlisten = \"127.0.0.1:9641\"\n\
                 [network.bridge]\ndriver = \"native\"\nname = \"other0\"\nsubnets = [\"10.99.0.0/16\"]";
    check(second(apart), &[]);
    let shared = "[paths]\nrun = \"/srv/run\"\n[network.bridge]\naddresses_dir = \"/srv/cni\"\ndriver = \"native\"";
    let found = check(second(shared), &["SY813 error"]);
    for key in ["paths.state", "admin.listen", "addresses_dir", "native"] {
        assert!(found[0].found.contains(key), "{found:?}");
    }
    assert!(!found[0].found.contains("paths.run"), "{found:?}");
    let with_pods = "[paths]\nstate = \"/srv/state\"\nrun = \"/srv/run\"\n[admin]\nlisten = \"127.0.0.1:9641\"\n\
                     [network.bridge]\nname = \"other0\"\nsubnets = [\"10.99.0.0/16\"]\n[cri]\nnetwork = \"bridge\"";
    check(second(with_pods), &[]);
    let both = |node: &mut TestNode| {
        second(with_pods)(node);
        node.config("[cri]\nnetwork = \"bridge\"");
    };
    let found = check(both, &["SY813 error"]);
    assert!(found[0].found.contains("network.pods.name"), "{found:?}");
}

#[test]
fn relative_files_of_other_processes_are_sought_in_their_directories() {
    let daemon = |node: &mut TestNode| {
        node.process(101, "/usr/bin/switchyard serve --config=other.toml");
        let apart = "version = 1\n[paths]\nstate = \"/srv/state\"\nrun = \"/srv/run\"\n[admin]\nlisten = \"127.0.0.1:9641\"\n\
                     [network.bridge]\nname = \"other0\"\nsubnets = [\"10.99.0.0/16\"]\n";
        node.configs.insert("/srv/other.toml".into(), apart.into());
    };
    let containerd = |node: &mut TestNode| {
        node.config("[containerd]\nmode = \"external\"");
        node.sockets
            .insert("/run/containerd/containerd.sock".into(), true);
        node.process(101, "/usr/bin/containerd -c conf/containerd.toml");
        let disabled = "disabled_plugins = [\"cri\"]\n";
        node.file("/srv/conf/containerd.toml", disabled);
    };
    let kubelet = |node: &mut TestNode| {
        node.remove("/proc/200");
        node.process(101, "/usr/bin/kubelet --config kubelet.yaml");
        let other = "cgroupDriver: cgroupfs\ncontainerRuntimeEndpoint: /run/crio/crio.sock\n";
        node.file("/srv/kubelet.yaml", other);
        node.sockets.insert("/run/crio/crio.sock".into(), true);
    };
    let in_srv = |node: &mut TestNode| node.links.insert("/proc/101/cwd".into(), "/srv".into());
    // With what is found while the directory is not known, and when it is. A daemon whose file is not known does not have
    // the defaults.
    let changes: [fn(&mut TestNode); 3] = [daemon, containerd, kubelet];
    let expected: [[&[&str]; 2]; 3] = [
        [&[], &[]],
        [&["SY201 error"], &[]],
        [&[], &["SY401 warning"]],
    ];
    for (change, [unknown, known]) in changes.into_iter().zip(expected) {
        check(change, unknown);
        check(
            |node| {
                change(node);
                in_srv(node);
            },
            known,
        );
    }
    // Only the daemon whose file is known serves a socket.
    let mut node = TestNode::healthy();
    daemon(&mut node);
    let socket = Path::new("/srv/run/admin.sock");
    assert_eq!(daemon_at(&node, socket), None);
    in_srv(&mut node);
    assert_eq!(daemon_at(&node, socket), Some(101));
}

#[test]
fn name_is_given_back_to_the_daemon_that_answers_and_else_to_the_one_that_is_given() {
    let socket = Path::new("/run/switchyard/admin.sock");
    let state = |path: &str| vec![("SWITCHYARD_PATHS__STATE".to_owned(), path.to_owned())];
    let given = Sources {
        env: state("/srv/given"),
        ..Sources::default()
    };
    let mut node = TestNode::healthy();
    node.file(
        &format!("/proc/{DAEMON}/environ"),
        "PATH=/usr/bin\0SWITCHYARD_PATHS__STATE=/srv/own\0",
    );
    let sources =
        |node: &TestNode, given: &Sources| FoundDaemon::sources_of_running(node, given, socket);
    assert_eq!(sources(&node, &given).unwrap().env, state("/srv/own"));

    // Its file may be given as well, and no other one.
    let default = Sources {
        file: Some(config::DEFAULT_FILE.into()),
        ..given.clone()
    };
    assert_eq!(sources(&node, &default).unwrap().env, state("/srv/own"));
    let other = Sources {
        file: Some("/srv/other.toml".into()),
        ..given.clone()
    };
    let refused = sources(&node, &other).unwrap_err().report();
    assert!(
        refused.contains("/srv/other.toml") && refused.contains(config::DEFAULT_FILE),
        "{refused}"
    );
    assert!(
        refused.contains("--config") && refused.contains("--socket"),
        "{refused}"
    );

    // The unit of a daemon that does not run has no say.
    node.kill_daemon();
    assert_eq!(sources(&node, &given).unwrap().env, state("/srv/given"));
    assert_eq!(sources(&node, &other).unwrap().file, other.file);
}

#[test]
fn daemon_that_does_not_run_has_the_variables_of_its_unit_and_of_the_file_for_both_units() {
    let mut node = TestNode::healthy();
    node.kill_daemon();
    node.command(
        "systemctl show --property=Environment",
        "LoadState=loaded\nEnvironment=SWITCHYARD_LOGKEEPER__MODE=external SWITCHYARD_PATHS__RUN=/run/unit\n\
         EnvironmentFiles=/etc/default/switchyard (ignore_errors=yes)\n",
    );
    node.file(
        "/etc/default/switchyard",
        "# both units\n\n SWITCHYARD_PATHS__RUN = '/run/file' \n;x=y\nSWITCHYARD_LOG__LEVEL=\"debug\"\nOTHER=1\n",
    );
    let socket = Path::new("/run/file/admin.sock");
    let env = FoundDaemon::look(&node, &Sources::default(), socket)
        .sources
        .env;
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        env,
        [
            variable("SWITCHYARD_LOGKEEPER__MODE", "external"),
            variable("SWITCHYARD_PATHS__RUN", "/run/file"),
            variable("SWITCHYARD_LOG__LEVEL", "debug"),
        ]
    );
}

#[test]
fn daemon_that_does_not_run_has_the_file_and_the_keys_of_its_unit() {
    let mut node = TestNode::healthy();
    node.kill_daemon();
    unit(
        &mut node,
        "ExecStart={ path=/usr/bin/switchyard ; argv[]=/usr/bin/switchyard serve --config etc/x.toml --set log.level=debug ; }",
    );
    let look = |node: &TestNode, given: &Sources| {
        FoundDaemon::look(node, given, Path::new("/run/switchyard/admin.sock")).sources
    };
    let found = look(&node, &Sources::default());
    assert_eq!(found.file, Some("/etc/x.toml".into()));
    assert_eq!(found.flags[0].key, "log.level");
    let given = Sources {
        file: Some("/srv/given.toml".into()),
        ..Sources::default()
    };
    assert_eq!(look(&node, &given).file, given.file);
}

#[test]
fn unit_that_systemd_does_not_have_replaces_nothing_that_is_given() {
    let mut node = TestNode::healthy();
    node.kill_daemon();
    node.command(
        "systemctl show --property=Environment",
        "LoadState=not-found\nEnvironment=LANG=C SWITCHYARD_LOG__LEVEL=debug\n",
    );
    let given = Sources {
        env: vec![("SWITCHYARD_PATHS__RUN".to_owned(), "/run/given".to_owned())],
        ..Sources::default()
    };
    let socket = Path::new("/run/given/admin.sock");
    let found = FoundDaemon::look(&node, &given, socket);
    assert_eq!(found.sources.env, given.env);
}

#[test]
fn file_of_the_daemon_may_be_given_by_another_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::create_dir(path("conf")).unwrap();
    for name in ["conf/own.toml", "other.toml"] {
        std::fs::write(path(name), "version = 1\n").unwrap();
    }
    std::os::unix::fs::symlink("conf/own.toml", path("link.toml")).unwrap();
    let mut node = TestNode::healthy();
    node.process(
        DAEMON,
        &format!(
            "/usr/bin/switchyard serve --config {}",
            path("link.toml").display()
        ),
    );
    let refuses = |name: &str| {
        let given = Sources {
            file: Some(path(name)),
            ..Sources::default()
        };
        FoundDaemon::sources_of_running(&node, &given, Path::new("/run/switchyard/admin.sock"))
            .is_err()
    };
    for same in ["link.toml", "conf/own.toml", "conf/../conf/own.toml"] {
        assert!(!refuses(same), "{same}");
    }
    assert!(refuses("other.toml") && refuses("missing.toml"));
}
