//! The OCI runtime.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::drill::incident::{Incident, Sign};
use crate::drill::node::DrillNode;
use crate::prereq;
use crate::root::PrivateRoot;

/// A file that makes the runtime slow while it is there.
#[derive(Debug)]
struct SlowRuntime(PathBuf);

impl Drop for SlowRuntime {
    fn drop(&mut self) {
        // The end of the root removes it otherwise.
        let _ = fs::remove_file(&self.0);
    }
}

fn directory(root: &PrivateRoot) -> PathBuf {
    root.path().join("bin")
}

/// Installs a runtime that begins no command for a while if a file is there, and is runc otherwise.
///
/// # Panics
/// When the root cannot be written.
pub(crate) fn with_runtime(root: &PrivateRoot) -> String {
    let dir = directory(root);
    fs::create_dir(&dir).expect("the root can be written");
    let program = dir.join("runc");
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' exec '*) [ -e {}/limits ] && sleep 20 ;; esac\nexec {} \"$@\"\n",
        dir.display(),
        prereq::require("runc", "runc").display()
    );
    fs::write(&program, script).expect("the root can be written");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("it is ours");
    format!("[containerd.runtimes.runc]\nbinary = {program:?}\n")
}

/// The runtime begins no command in time: the probes of all pods fail.
///
/// # Panics
/// When the root cannot be written.
pub(crate) fn begins_no_command(node: &DrillNode) -> Incident {
    let pods = ["web-2", "web-3", "api-1", "api-2"]
        .map(|name| node.app("shop", name, "exec sleep 100000"));
    let slow = SlowRuntime(directory(node.root()).join("limits"));
    fs::write(&slow.0, "").expect("the root can be written");
    let probes = pods.map(|pod| node.probing(&pod, Duration::from_secs(1)));
    Incident::new("api-1", Sign::Alert("SwitchyardExecStartsFail"))
        .with_all(probes)
        .with(slow)
}
