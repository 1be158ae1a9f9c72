//! Every program that scripts and tests call is in a Debian package that they install: a machine that has
//! more packages must not hide a gap in a list. And what the scripts of our own package find on a node, and
//! what the program does for them.

pub(crate) mod build;
mod leaving;
mod postinst;
mod prerm;
mod program_calls;
mod purge;
mod quickstart;
mod selinux;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use switchyard_tests::debian::{
    FreshDebian, PackageDatabase, packages_of_list, packages_of_script,
};
use switchyard_tests::scratch::Scratch;
use switchyard_tests::shards::RootTests;

/// Scripts, what they source, and the one with the list of what they install.
const SCRIPTS: [(&str, &[&str]); 9] = [
    (
        "deploy/quickstart",
        &[
            "deploy/packages.sh",
            "deploy/quickstart-nomad.sh",
            "deploy/quickstart-remove.sh",
            "deploy/quickstart-swarm.sh",
        ],
    ),
    ("tests/advisories", &["deploy/packages.sh"]),
    ("tests/bench", &["deploy/packages.sh"]),
    ("tests/chaos", &["deploy/packages.sh"]),
    ("tests/drill", &["deploy/packages.sh"]),
    (
        "tests/root",
        &["deploy/packages.sh", "tests/guest/sources.sh"],
    ),
    ("tests/run", &["deploy/packages.sh"]),
    ("tests/versions", &["deploy/packages.sh"]),
    (
        "tests/vm",
        &[
            "deploy/packages.sh",
            "deploy/debian/build",
            "deploy/stage.sh",
            "tests/guest/image.sh",
            "tests/guest/sources.sh",
        ],
    ),
];

/// Programs that are called although no list has them, and the reason.
const OTHERS: [(&str, &str); 10] = [
    (
        "apparmor_parser",
        "the daemon calls it where the node has AppArmor",
    ),
    ("cargo", "Rust comes from rustup"),
    ("docker", "shown where there is one"),
    ("dockerd", "shown where there is one"),
    ("git", "the revision is unknown without it"),
    ("no-such-program-anywhere", "nobody has it, as a test wants"),
    ("nomad", "shown where there is one"),
    ("quota", "the name of a package, and of a mount option"),
    ("rpc.mountd", "called in the guest, whose image has it"),
    ("systemctl", "called where systemd runs"),
];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the repository")
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Makes a /run of its own, with programs that write down their calls, and runs a script there.
const IN_OWN_RUN: &str = r#"
mount -t tmpfs tmpfs /run
mkdir -p /run/bin $DIRECTORY
for program in switchyard deb-systemd-helper deb-systemd-invoke systemctl; do
    printf '#!/bin/sh\necho "call: ${0##*/} $*" >&2\n' >/run/bin/$program
    chmod 0755 /run/bin/$program
done
PATH=/run/bin:$PATH exec sh "$0" "$@"
"#;

/// Runs a script of the package as dpkg does, with these words, in a /run of its own that has `directory`. `definitions` stand after the
/// functions of all scripts.
fn run_script(
    name: &str,
    definitions: &str,
    words: &[&str],
    directory: &str,
    environment: &[(&str, &str)],
) -> Output {
    let scratch = Scratch::new();
    let own = read(&repository().join("deploy/debian").join(name));
    let common = read(&repository().join("deploy/debian/common.sh"));
    let (begin, end) = own
        .split_once("# @COMMON@\n")
        .expect("the package's build replaces this line");
    let script = scratch.path().join(name);
    fs::write(&script, format!("{begin}{common}{definitions}{end}"))
        .expect("the scratch directory can be written");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-ec", IN_OWN_RUN])
        .arg(&script)
        .args(words)
        .env("DIRECTORY", directory)
        .envs(environment.iter().copied());
    command.output().expect("every system has it")
}

/// The lines that a script has printed on its two outputs.
fn said(output: &Output) -> Vec<String> {
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    said.lines().map(str::to_owned).collect()
}

fn is_other(program: &str) -> bool {
    OTHERS.iter().any(|(name, _)| *name == program)
}

/// Those of these programs that this machine has and the fresh one would not.
fn hidden(fresh: &FreshDebian<'_>, programs: impl IntoIterator<Item = String>) -> Vec<String> {
    let is_here = |program: &String| {
        [
            "/usr/bin",
            "/usr/sbin",
            "/bin",
            "/sbin",
            "/usr/local/bin",
            "/usr/local/sbin",
        ]
        .iter()
        .any(|dir| Path::new(dir).join(program).exists())
    };
    programs
        .into_iter()
        .filter(|name| !is_other(name) && is_here(name) && !fresh.has_program(name))
        .collect()
}

#[test]
fn every_program_of_a_script_is_in_its_package_list() {
    let database = PackageDatabase::read();
    let mut wrong = Vec::new();
    for (script, sourced) in SCRIPTS {
        let script_path = repository().join(script);
        // What the list has and this machine has not, hides nothing here.
        let list: Vec<_> = packages_of_script(&script_path)
            .into_iter()
            .filter(|name| database.has(name))
            .collect();
        let fresh = database.fresh_debian(&list);
        let texts: Vec<_> = std::iter::once(&script)
            .chain(sourced)
            .map(|file| read(&repository().join(file)))
            .collect();
        let called = program_calls::of_script(&texts.join("\n"));
        assert!(called.contains("apt-get"), "{script}: {called:?}");
        let programs = hidden(&fresh, called);
        wrong.extend(
            programs
                .into_iter()
                .map(|program| format!("{script} calls {program}")),
        );
    }
    assert!(
        wrong.is_empty(),
        "no listed package has these programs, nor one that such a package needs:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_program_that_a_test_calls_is_in_a_package_that_tests_run_installs() {
    let database = PackageDatabase::read();
    let list = packages_of_script(&repository().join("tests/run"));
    let fresh = database.fresh_debian(&list);
    let dirs = ["tests", "gateway", "backends"].map(|dir| repository().join(dir));
    let files = dirs.iter().flat_map(|dir| program_calls::sources(dir));
    assert_has_programs(&fresh, files);
}

#[test]
fn every_program_that_a_test_in_a_root_calls_is_in_a_package_of_the_root() {
    let database = PackageDatabase::read();
    let script = repository().join("tests/root");
    let lists = ["root_packages", "whole_packages"].map(|name| packages_of_list(&script, name));
    // What only later suites have, hides nothing here.
    let mut list = lists.concat();
    list.retain(|name| database.has(name));
    let fresh = database.fresh_debian(&list);
    let dirs = ["tests/it", "tests/src"].map(|dir| repository().join(dir));
    let files = dirs.iter().flat_map(|dir| program_calls::sources(dir));
    assert_has_programs(&fresh, files.filter(|file| runs_in_root(file)));
}

#[test]
fn sources_of_modules_that_are_left_out_are_not_searched_for_programs_of_the_root() {
    for (file, runs) in [
        ("tests/it/status_page.rs", false),
        ("tests/it/status_page/links.rs", false),
        ("tests/it/nomad/go_host.rs", false),
        ("tests/it/architecture/files.rs", false),
        ("tests/src/browser/contrast.rs", false),
        ("tests/it/nomad.rs", true),
        ("tests/it/nomad/images.rs", true),
        ("tests/it/cri/python_client.rs", true),
        ("tests/src/swarm.rs", true),
        ("tests/src/shards/table.rs", true),
    ] {
        assert_eq!(runs_in_root(&repository().join(file)), runs, "{file}");
    }
}

/// Returns whether a source file has tests that run whole in a root of another suite, or is a fixture of such tests.
fn runs_in_root(file: &Path) -> bool {
    let tests = repository().join("tests");
    let module = |dir: &str| {
        let path = file.strip_prefix(tests.join(dir)).ok()?;
        Some(
            path.with_extension("")
                .display()
                .to_string()
                .replace('/', "::")
                + "::",
        )
    };
    // The browser is a fixture of `status_page` alone.
    let is_browser = |module: String| module.starts_with("browser::");
    module("it").is_none_or(|module| RootTests::Whole.has(&module))
        && !module("src").is_some_and(is_browser)
}

/// Fails unless all programs that these sources call, and the packages that they name for them, are in a Debian.
#[track_caller]
fn assert_has_programs(fresh: &FreshDebian<'_>, files: impl Iterator<Item = PathBuf>) {
    let mut wrong = Vec::new();
    let mut required = 0;
    for file in files {
        let text = read(&file);
        let called = program_calls::literals(&text, "Command::new(\"");
        let mut programs: Vec<_> = called
            .into_iter()
            .filter(|program| *program != "/usr/bin/switchyard")
            .collect();
        let calls = program_calls::required(&text).into_iter();
        for (program, packages) in calls.filter(|(name, _)| !is_other(name)) {
            required += 1;
            programs.push(program);
            // Packages of the base system need not be listed.
            for package in packages.split(' ').filter(|name| !fresh.has_package(name)) {
                wrong.push(format!("{}: the list has no {package}", file.display()));
            }
        }
        programs.retain(|program| !is_other(program) && !fresh.has_program(program));
        wrong.extend(
            programs
                .iter()
                .map(|program| format!("{}: no package of the list has {program}", file.display())),
        );
    }
    assert!(required > 20, "{required} calls of prereq were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unlisted_package_is_detected() {
    let database = PackageDatabase::read();
    let base = database.fresh_debian(&[]);
    assert!(base.has_program("sh") && base.has_program("awk") && base.has_program("/bin/mount"));
    // Tests install both.
    assert!(!base.has_program("runc") && !base.has_package("gcc"));
    let with = database.fresh_debian(&["gcc".to_owned()]);
    assert!(
        with.has_program("gcc")
            && with.has_program("cc")
            && with.has_program("ld")
            && !with.has_program("runc")
    );
    assert_eq!(
        hidden(
            &base,
            [
                "runc".to_owned(),
                "sh".to_owned(),
                "nobody-has-this".to_owned()
            ]
        ),
        ["runc"]
    );
}
