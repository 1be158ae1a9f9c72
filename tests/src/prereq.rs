//! Checks that a program or file exists, and fails with the name of the Debian package that has it.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directories searched beside `PATH`: a non-login shell of root often lacks the `sbin` ones.
const SYSTEM_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The plugins that the tests' networks use.
const CNI_PLUGINS: [&str; 7] = [
    "bridge",
    "host-local",
    "loopback",
    "portmap",
    "firewall",
    "bandwidth",
    "tuning",
];

/// Directory of the CNI plugins in Debian's package.
pub const CNI_BIN_DIR: &str = "/usr/lib/cni";

/// The full path of `program`.
///
/// # Panics
/// When it is not installed; the message names `debian_package`.
#[track_caller]
#[must_use]
pub fn require(program: &str, debian_package: &str) -> PathBuf {
    if let Some(path) = find(program) {
        return path;
    }
    panic!("`{program}` is not installed: run `apt-get install {debian_package}`");
}

/// Fails unless `path` exists.
///
/// # Panics
/// When it is missing; the message names `debian_package`.
#[track_caller]
pub fn require_file(path: &Path, debian_package: &str) {
    assert!(
        path.exists(),
        "{} is missing: run `apt-get install {debian_package}`",
        path.display()
    );
}

/// Fails unless everything that runs real containers is installed, and the test runs as root.
///
/// # Panics
/// At the first thing that is missing, with the package that holds it.
#[track_caller]
pub fn require_all() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "these tests make namespaces, mounts and bridges: run them as root"
    );
    for (program, package) in [
        ("containerd", "containerd"),
        ("containerd-shim-runc-v2", "containerd"),
        ("ctr", "containerd"),
        ("runc", "runc"),
        ("crun", "crun"),
        ("docker-registry", "docker-registry"),
        ("iptables", "iptables"),
        ("ip", "iproute2"),
    ] {
        let _ = require(program, package);
    }
    for plugin in CNI_PLUGINS {
        require_file(
            &Path::new(CNI_BIN_DIR).join(plugin),
            "containernetworking-plugins",
        );
    }
    let _ = require_static_busybox();
}

/// The path of a busybox that needs no libraries, so that it runs in an image of its own.
///
/// # Panics
/// When it is missing or dynamically linked.
#[track_caller]
#[must_use]
pub fn require_static_busybox() -> PathBuf {
    let path = require("busybox", "busybox-static");
    let bytes = std::fs::read(&path).expect("busybox was found, so it can be read");
    assert!(
        !bytes
            .windows(8)
            .take(4096)
            .any(|window| window == b"/ld-linu" || window == b"/ld-musl"),
        "{} is linked dynamically: run `apt-get install busybox-static`",
        path.display()
    );
    path
}

pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_DIRS.iter().map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| {
            file.metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}
