//! Failures on a real node: each is counted where it happens.

use switchyard_tests::image::{busybox, random_layer};
use switchyard_tests::node::TestNode;
use switchyard_tests::{cni_plugin, prereq};

use super::{scrape, value};

/// A plugin that refuses all that is to be attached.
const REFUSING: &str = r#"if [ "$CNI_COMMAND" = ADD ]; then
    echo '{"cniVersion":"1.0.0","code":100,"msg":"no"}'
    exit 1
fi
"#;

/// The size of a layer, in bytes.
const SIZE: usize = 1 << 20;

#[test]
fn plugin_that_refuses_is_counted_with_its_step_and_its_operation() {
    let node = TestNode::start_configured(|root| {
        let dir = cni_plugin::add(root, "refusing", REFUSING);
        format!(
            "[network]\nbin_dirs = [{dir:?}, {:?}]\n",
            prereq::CNI_BIN_DIR
        )
    });
    node.cri()
        .run_pod(&node.pod_config("refused"))
        .expect_err("its network refuses it");
    let text = scrape(&node);
    let runs = |plugin, command, result| {
        let labels = [("plugin", plugin), ("command", command), ("result", result)];
        value(&text, "switchyard_cni_runs_total", &labels)
    };
    assert_eq!(runs("bridge", "ADD", "ok"), Some(1.0), "{text}");
    assert_eq!(runs("refusing", "ADD", "failed"), Some(1.0), "{text}");
    assert_eq!(runs("refusing", "DEL", "failed"), None, "{text}");
    assert!(runs("bridge", "DEL", "ok") >= Some(1.0), "{text}");
    let timed = [("plugin", "refusing"), ("command", "ADD")];
    assert_eq!(
        value(&text, "switchyard_cni_run_duration_seconds_count", &timed),
        Some(1.0)
    );
    let creation = ("operation", "create_sandbox");
    let internal = ("kind", "internal");
    assert_eq!(
        value(
            &text,
            "switchyard_operation_failures_total",
            &[creation, internal, ("owner", "kubernetes")]
        ),
        Some(1.0),
        "{text}"
    );
    assert_eq!(
        value(
            &text,
            "switchyard_operation_step_failures_total",
            &[creation, internal, ("step", "attach_network")]
        ),
        Some(1.0),
        "{text}"
    );
}

#[test]
fn pulls_and_their_bytes_are_counted_by_registry() {
    let node = TestNode::start();
    let registry = node.registry();
    let host = registry.address().to_string();
    let image = busybox().layer(random_layer(SIZE, 4201)).build();
    registry.push("counted:1", &image);
    let cri = node.cri();
    cri.pull(&registry.reference("counted:1"), None)
        .expect("the registry has it");
    for _ in 0..2 {
        cri.pull(&registry.reference("counted:2"), None)
            .expect_err("the registry does not have it");
    }
    let text = scrape(&node);
    let pulls = |result| {
        let labels = [("registry", host.as_str()), ("result", result)];
        value(&text, "switchyard_image_pulls_total", &labels)
    };
    assert!(pulls("ok") >= Some(1.0), "{text}");
    assert_eq!(pulls("not_found"), Some(2.0), "{text}");
    let bytes = value(
        &text,
        "switchyard_image_pull_bytes_total",
        &[("registry", host.as_str())],
    );
    assert!(bytes >= Some(SIZE as f64), "{text}");
}

#[test]
fn start_of_a_command_is_told_from_its_end() {
    let node = TestNode::start();
    let pod = node.pod("probed");
    let id = pod.start(&node.container("main", &["sleep", "1000"]));
    node.cri()
        .exec(&id, &["sleep", "100"], 1)
        .expect_err("it does not end in time");
    node.cri()
        .exec(&id, &["/no/such/program"], 1)
        .expect_err("there is none");
    let text = scrape(&node);
    let of_commands = ("operation", "exec_sync");
    let failures = |kind| {
        let labels = [of_commands, ("kind", kind)];
        value(&text, "switchyard_operation_failures_total", &labels)
    };
    assert_eq!(failures("deadline_exceeded"), Some(1.0), "{text}");
    assert_eq!(failures("invalid_argument"), Some(1.0), "{text}");
    let steps = [of_commands, ("step", "start_command")];
    assert_eq!(
        value(&text, "switchyard_operation_step_failures_total", &steps),
        Some(1.0),
        "only one was not started: {text}"
    );
    let [operation, step] = steps;
    assert_eq!(
        value(
            &text,
            "switchyard_operation_step_failures_total",
            &[operation, step, ("kind", "invalid_argument")]
        ),
        Some(1.0),
        "{text}"
    );
}
