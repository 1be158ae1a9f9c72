//! The process of a container: the rules for command and arguments, environment, working directory, user,
//! terminal, input.

use switchyard_proto::cri::v1::{Int64Value, KeyValue, SupplementalGroupsPolicy};
use switchyard_tests::cri::{context, image_spec};
use switchyard_tests::image::busybox;
use switchyard_tests::node::TestNode;

#[test]
fn command_and_arguments_replace_those_of_the_image() {
    let node = TestNode::shared();
    let image = busybox()
        .entrypoint(&["echo", "entry"])
        .cmd(&["cmd"])
        .build();
    node.registry().push("programs/words:1", &image);
    let reference = node.registry().reference("programs/words:1");
    node.cri().pull(&reference, None).expect("it can be pulled");
    let pod = node.pod("words");
    for (name, command, args, expected) in [
        ("neither", &[][..], &[][..], "entry cmd"),
        ("args", &[], &["given"], "entry given"),
        ("command", &["echo", "own"], &[], "own"),
        ("both", &["echo", "own"], &["given"], "own given"),
    ] {
        let mut config = node.container(name, command);
        config.args = args.iter().map(|word| (*word).to_owned()).collect();
        config.image = Some(image_spec(&reference));
        let _ = node.cri().wait_exit(&pod.start(&config));
        assert_eq!(pod.log_text(name), expected, "{name}");
    }
    drop(pod);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn empty_entrypoint_of_an_image_leaves_its_command() {
    let node = TestNode::shared();
    let image = busybox().entrypoint(&[""]).cmd(&["echo", "cmd"]).build();
    node.registry().push("programs/empty:1", &image);
    let reference = node.registry().reference("programs/empty:1");
    node.cri().pull(&reference, None).expect("it can be pulled");
    let pod = node.pod("empty");
    for (name, args, expected) in [
        ("neither", &[][..], "cmd"),
        ("args", &["echo", "own"], "own"),
    ] {
        let mut config = node.container(name, &[]);
        config.args = args.iter().map(|word| (*word).to_owned()).collect();
        config.image = Some(image_spec(&reference));
        let _ = node.cri().wait_exit(&pod.start(&config));
        assert_eq!(pod.log_text(name), expected, "{name}");
    }
    drop(pod);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn container_overrides_image_environment_directory_and_user() {
    let node = TestNode::shared();
    let image = busybox()
        .env("ONE", "image")
        .env("TWO", "image")
        .working_dir("/home/app")
        .user("app")
        .build();
    node.registry().push("programs/user:1", &image);
    let reference = node.registry().reference("programs/user:1");
    let id = node.cri().pull(&reference, None).expect("it can be pulled");
    assert_eq!(id, image.config.digest);
    assert_eq!(
        node.cri()
            .image(&reference)
            .expect("it is asked for")
            .expect("it is there")
            .username,
        "app"
    );
    let pod = node.pod("user");
    let script = "echo $ONE $TWO $THREE; pwd; id -u; id -g; id -G; echo $HOME";
    let own = pod.run_shell(script, |config| {
        // As kubelets do: by the image id that the pull returned.
        config.image = Some(image_spec(&id));
        config.envs = vec![
            KeyValue {
                key: "TWO".into(),
                value: b"own".to_vec(),
            },
            KeyValue {
                key: "THREE".into(),
                value: b"own".to_vec(),
            },
        ];
    });
    let lines: Vec<_> = own.lines().collect();
    assert_eq!(
        lines[..4],
        ["image own own", "/home/app", "1000", "1000"],
        "{own}"
    );
    let mut groups: Vec<_> = lines[4].split(' ').collect();
    groups.sort_unstable();
    assert_eq!(groups, ["1000", "29", "44"], "{own}");
    let other = pod.run_shell(script, |config| {
        config.image = Some(image_spec(&reference));
        config.working_dir = "/tmp/made".to_owned();
        let context = context(config);
        context.run_as_user = Some(Int64Value { value: 33 });
        context.run_as_group = Some(Int64Value { value: 100 });
        context.supplemental_groups = vec![4242];
        context.set_supplemental_groups_policy(SupplementalGroupsPolicy::Strict);
    });
    let lines: Vec<_> = other.lines().collect();
    assert_eq!(
        lines[..4],
        ["image image", "/tmp/made", "33", "100"],
        "{other}"
    );
    assert_eq!(lines[4], "100 4242", "{other}");
    let named = pod.start_shell_with("named", "exec sleep 1000", |config| {
        context(config).run_as_username = "www-data".to_owned();
    });
    let user = node
        .cri()
        .status(&named)
        .expect("it has a status")
        .user
        .expect("its user is reported");
    let user = user.linux.expect("its Linux user is reported");
    assert_eq!((user.uid, user.gid), (33, 33));
    assert_eq!(user.supplemental_groups, [33, 44]);
    drop(pod);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn tty_is_allocated_on_request() {
    let node = TestNode::shared();
    let pod = node.pod("tty");
    let script = "test -t 0 && test -t 1 && echo terminal >&2 || echo none";
    assert_eq!(pod.run_shell(script, |_| {}), "none");
    let id = pod.start_shell_with("tty", script, |config| {
        config.tty = true;
        config.stdin = true;
    });
    assert_eq!(node.cri().wait_exit(&id).exit_code, 0);
    let lines = pod.log("tty");
    // All output of a terminal is one stream, and its line ends are no text.
    assert!(
        lines.len() == 1 && lines[0].ends_with(" stdout F terminal"),
        "{lines:?}"
    );
}

#[test]
fn stdin_stays_open_on_request_and_is_at_eof_otherwise() {
    let node = TestNode::shared();
    let pod = node.pod("stdin");
    assert_eq!(pod.run_shell("cat; echo end", |_| {}), "end");
    let id = pod.start_shell_with("open", "echo ready; cat; echo end", |config| {
        config.stdin = true
    });
    pod.wait_log("open", |lines| !lines.is_empty());
    assert_eq!(node.cri().sh(&id, "ps -o args | grep -c '^cat'"), "1");
    node.cri().stop(&id, 0).expect("it can be stopped");
    assert_eq!(pod.log_text("open"), "ready");
}
