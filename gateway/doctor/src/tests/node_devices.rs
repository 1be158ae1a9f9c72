//! SY780: the device files that every program of a node uses.

use super::test_node::device;
use super::*;

#[test]
fn devices_that_are_missing_replaced_closed_or_of_another_user() {
    let regular = FileFacts {
        kind: FileKind::Regular,
        mode: 0o644,
        uid: 0,
        character_device: None,
    };
    let give_back = "chown root:root /dev/null && chmod 666 /dev/null";
    for (file, expected, command) in [
        // The root of a user namespace.
        (device(3, 100_000, 0o666), "warning", give_back),
        (device(3, 1000, 0o666), "warning", give_back),
        (device(3, 100_000, 0), "error", give_back),
        (device(3, 0, 0o644), "error", give_back),
        (
            device(5, 0, 0o666),
            "error",
            "rm -f /dev/null && mknod -m 666 /dev/null c 1 3",
        ),
        (
            regular,
            "error",
            "rm -f /dev/null && mknod -m 666 /dev/null c 1 3",
        ),
    ] {
        let code = format!("SY780 {expected}");
        let found = check(
            |node| {
                node.device_files.insert("/dev/null".into(), file);
            },
            &[code.as_str()],
        );
        assert_eq!(found[0].command.as_deref(), Some(command), "{file:?}");
        assert!(found[0].found.starts_with("/dev/null: "), "{found:?}");
    }
    let found = check(|node| node.remove("/dev/urandom"), &["SY780 error"]);
    let command = "mknod -m 666 /dev/urandom c 1 9";
    assert_eq!(found[0].command.as_deref(), Some(command));
    // The host's root, in a user namespace; and what only adds permissions.
    for file in [device(8, 65_534, 0o666), device(8, 0, 0o777)] {
        check(
            |node| {
                node.device_files.insert("/dev/random".into(), file);
            },
            &[],
        );
    }
}
