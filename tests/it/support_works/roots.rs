//! `tests/root --enter`, by which tests and `tests/bench --root` run with the programs of another system: on a root of stubs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use switchyard_tests::prereq;
use switchyard_tests::scratch::Scratch;

use crate::architecture::repository;

/// The programs whose versions are shown.
const SHOWN: [&str; 3] = ["containerd", "runc", "crun"];

/// Makes a root with a shell and these stubs.
fn make_root(root: PathBuf, stubs: &[&str]) -> PathBuf {
    for dir in ["dev", "proc", "run", "sys", "usr/bin"] {
        fs::create_dir_all(root.join(dir)).expect("the scratch directory can be written");
    }
    symlink("usr/bin", root.join("bin")).expect("the name is free");
    let programs = root.join("usr/bin");
    fs::copy(prereq::require_static_busybox(), programs.join("busybox"))
        .expect("the program can be read");
    for name in ["sh", "umount"] {
        symlink("busybox", programs.join(name)).expect("the name is free");
    }
    for name in stubs {
        let file = programs.join(name);
        fs::write(&file, format!("#!/bin/sh\necho {name} of the root\n"))
            .expect("the scratch directory can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    }
    root
}

fn enter(root: &Path, script: &str) -> Output {
    let mut command = Command::new(repository().join("tests/root"));
    command.arg("--enter").arg(root).args(["sh", "-c", script]);
    command.output().expect("the repository has the script")
}

#[test]
fn command_in_a_root_has_its_programs_and_of_the_machine_the_repository_alone() {
    let scratch = Scratch::new();
    let root = make_root(scratch.path().join("root"), &SHOWN);
    let outside = scratch.path().join("outside");
    fs::write(&outside, "").expect("the scratch directory can be written");
    let script = format!(
        "pwd; test -e it/main.rs && echo repository; test -d /proc/self && echo proc; test -e {} || echo nothing else; exit 7",
        outside.display()
    );
    let output = enter(&root, &script);
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    let tests = repository().join("tests").display().to_string();
    let expected = [
        "containerd of the root",
        "runc of the root",
        "crun of the root",
        &tests,
        "repository",
        "proc",
        "nothing else",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{error}");
    assert_eq!(output.status.code(), Some(7), "{error}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the kernel has it");
    assert!(!mounts.contains(&root.display().to_string()), "{mounts}");
}

#[test]
fn root_that_is_none_or_lacks_a_program_runs_nothing() {
    let scratch = Scratch::new();
    let dir = |name: &str| scratch.path().join(name);
    fs::create_dir(dir("empty")).expect("the scratch directory can be written");
    fs::write(dir("file"), "").expect("the scratch directory can be written");
    let no_root = "is not the root of another system";
    let cases = [
        (PathBuf::from("/"), no_root),
        (dir("empty"), no_root),
        (dir("file"), no_root),
        (dir("missing"), "No such file or directory"),
        (
            make_root(dir("no-containerd"), &["runc", "crun"]),
            "containerd: ",
        ),
        (make_root(dir("no-runc"), &["containerd", "crun"]), "runc: "),
        (make_root(dir("no-crun"), &["containerd", "runc"]), "crun: "),
    ];
    for (root, reason) in cases {
        let output = enter(&root, "echo it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{}: {said}", root.display());
        assert!(!said.contains("it runs"), "{}: {said}", root.display());
        assert!(error.contains(reason), "{}: {error}", root.display());
    }
}
