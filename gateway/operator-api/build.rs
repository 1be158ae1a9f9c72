//! Gives a release build the version and the revision of the commit that it is built from, where `SWITCHYARD_VERSION` and
//! `SWITCHYARD_REVISION` do not give others. The profile `quick` inherits from that of releases.
//!
//! Builds for tests have the manifest's version and no revision, so that a commit does not rebuild what depends on this
//! crate. So do builds from an archive, where there is no git checkout.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "build/identity.rs"]
mod identity;

use identity::Checkout;

/// Paths that a build is made of, relative to the root of the repository.
const SOURCES: [&str; 7] = [
    "gateway",
    "backends",
    "proto",
    "config.toml",
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
];

/// Paths in git's directory that change when the commit that is checked out, or a tag, changes.
const OF_GIT: [&str; 4] = ["HEAD", "logs/HEAD", "packed-refs", "refs/tags"];

/// Variables with the version and the revision, from outside or from here.
const VARIABLES: [&str; 2] = ["SWITCHYARD_VERSION", "SWITCHYARD_REVISION"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    for variable in VARIABLES {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if !identity::is_of_commit(&env::var("PROFILE").unwrap_or_default()) {
        return;
    }
    let wanted = VARIABLES.map(|variable| env::var_os(variable).is_none());
    if !wanted.contains(&true) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join(".git").exists() {
        return;
    }
    let Some(checkout) = checkout(&root) else {
        println!(
            "cargo::warning=git does not name the commit of this checkout: the build has no revision"
        );
        return;
    };
    for path in SOURCES.iter().map(|path| root.join(path)) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let values = [
        identity::version(env!("CARGO_PKG_VERSION"), &checkout),
        identity::revision(&checkout),
    ];
    for ((variable, value), is_wanted) in VARIABLES.iter().zip(values).zip(wanted) {
        if is_wanted {
            println!("cargo::rustc-env={variable}={value}");
        }
    }
}

/// The checkout; `None` if git is missing or fails.
fn checkout(root: &Path) -> Option<Checkout> {
    let head = git(
        root,
        &[
            "log",
            "-1",
            "--abbrev=12",
            "--date=format-local:%Y%m%d.%H%M%S",
            "--format=%h %cd",
        ],
    )?;
    let (commit, time) = head.trim().split_once(' ')?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCES);
    let is_changed = !git(root, &status)?.trim().is_empty();
    // Fails if the commit has no such tag.
    let tag = git(
        root,
        &["describe", "--exact-match", "--tags", "--match=v[0-9]*"],
    );
    for path in OF_GIT {
        let found = git(root, &["rev-parse", "--git-path", path])?;
        let found: PathBuf = root.join(found.trim());
        // A path that does not exist would let each build run this again.
        if found.exists() {
            println!("cargo::rerun-if-changed={}", found.display());
        }
    }
    Some(Checkout {
        commit: commit.to_owned(),
        time: time.to_owned(),
        release: tag
            .as_deref()
            .and_then(identity::release)
            .map(str::to_owned),
        is_changed,
    })
}

/// The output of git; `None` if it fails.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-c")
        // The checkout may belong to the user who calls sudo.
        .arg(format!("safe.directory={}", real(root).display()))
        .arg("-C")
        .arg(root)
        .args(args)
        .env("TZ", "UTC")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The path without `..`, as git compares it.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
