//! A CNI plugin of a test, at the end of the chain of a root's network.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::root::PrivateRoot;

/// The end of a plugin: it passes on the result of the plugin before.
const PASSING_ON: &str = r#"[ "$CNI_COMMAND" = ADD ] || exit 0
# The result of the plugin before is the last key, or the last before the type.
echo "$input" | sed -e 's/.*"prevResult"://' -e 't next' -e ':next' -e 's/,"type":"NAME".*//' -e t -e 's/}$//'
"#;

/// Adds a plugin of this name to the chain, a script of the shell. What it was given is `$input` in `body`, and `DIR` is the
/// directory of the plugin, which is returned. Unless `body` exits, the plugin succeeds, and passes on the result.
///
/// # Panics
/// When the root cannot be written, or its network was not configured by it.
#[must_use]
pub fn add(root: &PrivateRoot, name: &str, body: &str) -> PathBuf {
    let dir = root.path().join("cni").join(name);
    fs::create_dir_all(&dir).expect("the root can be written");
    let script = format!(
        "#!/bin/sh\ninput=$(cat)\n{}{}",
        body.replace("DIR", dir.to_str().expect("the path is ASCII")),
        PASSING_ON.replace("NAME", name)
    );
    let plugin = dir.join(name);
    fs::write(&plugin, script).expect("the root can be written");
    fs::set_permissions(&plugin, Permissions::from_mode(0o755)).expect("it is ours");
    let file = root.cni_conf().join("10-test.conflist");
    let text = fs::read(&file).expect("the root has written it");
    let mut list: Value = serde_json::from_slice(&text).expect("it is JSON");
    let plugins = list["plugins"].as_array_mut().expect("it is a list");
    plugins.push(json!({ "type": name }));
    fs::write(&file, list.to_string()).expect("the root can be written");
    dir
}
