//! CDI devices (Container Device Interface), by name.

use std::fs;

use switchyard_proto::cri::v1::{CdiDevice, ContainerConfig};
use switchyard_tests::node::TestNode;

/// Writes the CDI file of a vendor of two devices, in YAML.
fn vendor(node: &TestNode, name: &str) {
    let hook = node.root().path().join(format!("hook-{name}"));
    let text = format!(
        "cdiVersion: 0.7.0\nkind: vendor.example/{name}\ndevices:\n\
         - name: full\n  containerEdits:\n    env: [DEVICE=full]\n    deviceNodes:\n\
         \x20   - path: /dev/vendor/full\n      hostPath: /dev/full\n      permissions: r\n\
         - name: zero\n  containerEdits:\n    deviceNodes:\n    - path: /dev/vendor/zero\n      hostPath: /dev/zero\n\
         containerEdits:\n  env: [VENDOR={name}]\n  additionalGids: [4711]\n  mounts:\n\
         \x20 - hostPath: {dir}\n    containerPath: /usr/lib/vendor\n    options: [ro, nosuid]\n\
         \x20 hooks:\n  - hookName: createRuntime\n    path: /bin/sh\n    args: [sh, -c, 'cat > {hook}']\n",
        dir = node.root().cdi().display(),
        hook = hook.display(),
    );
    fs::write(node.root().cdi().join(format!("{name}.yaml")), text)
        .expect("the root can be written");
}

const SCRIPT: &str = "echo $VENDOR $DEVICE; test -c /dev/vendor/full && echo full; test -c /dev/vendor/zero && echo zero; \
    id -G | grep -cw 4711; ls /usr/lib/vendor | wc -l; touch /usr/lib/vendor/x 2>/dev/null || echo read-only; \
    { echo x > /dev/vendor/full; } 2>/dev/null || echo refused; head -c 2 /dev/vendor/zero | od -An -tx1";

#[test]
fn cdi_devices_are_injected_from_field_and_annotations() {
    let node = TestNode::shared();
    vendor(&node, "given");
    // What one vendor has written wrong is no other vendor's matter.
    fs::write(node.root().cdi().join("broken.json"), "{").expect("the root can be written");
    let pod = node.pod("cdi");
    let seen = pod.run_shell(SCRIPT, |config| {
        config.cdi_devices = vec![CdiDevice {
            name: "vendor.example/given=full".into(),
        }];
        config.annotations.insert(
            "cdi.k8s.io/plugin_1".into(),
            "vendor.example/given=zero".into(),
        );
    });
    let lines: Vec<_> = seen.lines().map(str::trim).collect();
    assert_eq!(lines[..4], ["given full", "full", "zero", "1"], "{seen}");
    assert_eq!(lines[5..], ["read-only", "refused", "00 00"], "{seen}");
    let state =
        fs::read_to_string(node.root().path().join("hook-given")).expect("the hook was run");
    assert!(state.contains("\"ociVersion\""), "{state}");
}

#[test]
fn unknown_cdi_device_is_rejected_by_name() {
    let node = TestNode::shared();
    let pod = node.pod("none");
    let refused = |change: fn(&mut ContainerConfig)| {
        let mut config = node.container("main", &["true"]);
        change(&mut config);
        pod.try_create(&config)
            .expect_err("there is no such device")
            .message()
            .to_owned()
    };
    let message = refused(|config| {
        config.cdi_devices = vec![CdiDevice {
            name: "vendor.example/none=a".into(),
        }];
    });
    assert!(
        message.contains("vendor.example/none=a is in no file"),
        "{message}"
    );
    let message = refused(|config| {
        config
            .annotations
            .insert("cdi.k8s.io/x".into(), "what".into());
    });
    assert!(message.contains("vendor/class=device"), "{message}");
}
