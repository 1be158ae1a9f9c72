//! Checks of the device files that every program of a node uses.

use std::io;
use std::path::Path;

use super::codes::orchestrators::NODE_DEVICE;
use super::facts::Facts;
use super::finding::{Finding, Severity};
use super::view::FileFacts;

/// The devices, with their numbers. Root has them, and everybody may read and write them.
const DEVICES: [(&str, (u64, u64)); 5] = [
    ("/dev/null", (1, 3)),
    ("/dev/zero", (1, 5)),
    ("/dev/full", (1, 7)),
    ("/dev/random", (1, 8)),
    ("/dev/urandom", (1, 9)),
];

/// The permissions that all have.
const OPEN_TO_ALL: u32 = 0o666;

/// The user that the kernel shows for one who has no number here: root of the host, on a node that is a container in a user
/// namespace.
const OVERFLOW_UID: u32 = 65_534;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    DEVICES
        .into_iter()
        .filter_map(|(path, numbers)| match facts.view.stat(Path::new(path)) {
            Ok(file) => fault(path, numbers, file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let found = Finding::new(&NODE_DEVICE, format!("{path}: there is no such file"));
                Some(found.command(make_command(path, numbers)))
            }
            Err(_) => None,
        })
        .collect()
}

/// Finds what is wrong with a file that is to be the device with these numbers. Pure.
fn fault(path: &str, numbers: (u64, u64), file: FileFacts) -> Option<Finding> {
    let FileFacts {
        kind: _,
        mode,
        uid,
        character_device,
    } = file;
    if character_device != Some(numbers) {
        let (major, minor) = numbers;
        let text = format!("{path}: it is not the character device {major}:{minor}");
        let command = format!("rm -f {path} && {}", make_command(path, numbers));
        return Some(Finding::new(&NODE_DEVICE, text).command(command));
    }
    let command = format!("chown root:root {path} && chmod 666 {path}");
    if mode & OPEN_TO_ALL != OPEN_TO_ALL {
        let text = format!("{path}: its mode is {mode:04o} instead of 0666, its owner {uid}");
        return Some(Finding::new(&NODE_DEVICE, text).command(command));
    }
    (uid != 0 && uid != OVERFLOW_UID).then(|| {
        let text = format!("{path}: its owner is {uid}, who may change its mode");
        let found = Finding::new(&NODE_DEVICE, text).severity(Severity::Warning);
        found.command(command)
    })
}

fn make_command(path: &str, (major, minor): (u64, u64)) -> String {
    format!("mknod -m 666 {path} c {major} {minor}")
}
