//! Rules for source files: headers and sizes.

use std::fs;
use std::path::{Path, PathBuf};

use super::repository;

/// The most lines that a source file may have without a reason in its header.
const MOST_LINES: usize = 500;

/// The most lines that a source file may have with one.
const MOST_LINES_WITH_REASON: usize = 800;

/// The beginning of the line of the header that gives the reason.
const REASON: &str = "//! Longer than 500 lines because ";

/// The files of the repository whose name ends with this, without build output, generated code and hidden directories.
pub(super) fn files(endings: &[&str]) -> Vec<PathBuf> {
    fn walk(dir: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir)
            .expect("a directory of the repository can be read")
            .flatten()
        {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if name != "target" && name != "generated" && !name.starts_with('.') {
                    walk(&path, endings, found);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(repository(), endings, &mut found);
    found.sort();
    assert!(
        !found.is_empty(),
        "no file of the repository ends in {endings:?}"
    );
    found
}

#[track_caller]
fn check_sources(rule: &str, broken: impl Fn(&Path, &str) -> bool) {
    let wrong: Vec<_> = files(&[".rs"])
        .into_iter()
        .filter(|path| {
            broken(
                path,
                &fs::read_to_string(path).expect("a source file can be read"),
            )
        })
        .map(|path| path.display().to_string())
        .collect();
    assert!(wrong.is_empty(), "{rule}:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_has_a_module_comment() {
    check_sources("the file does not begin with `//!`", |_, text| {
        !text.starts_with("//! ")
    });
}

#[test]
fn long_files_give_a_reason_in_their_header() {
    check_sources(
        "the file has more than 500 lines without a reason in its header, more than 800, or a reason without need",
        |_, text| !has_allowed_length(text),
    );
}

/// Returns whether a file is short, or its header, the `//!` lines at its top, says why it is longer.
fn has_allowed_length(text: &str) -> bool {
    let mut header = text.lines().take_while(|line| line.starts_with("//!"));
    let has_reason = header.any(|line| line.starts_with(REASON));
    let lines = text.lines().count();
    if has_reason {
        lines > MOST_LINES && lines <= MOST_LINES_WITH_REASON
    } else {
        lines <= MOST_LINES
    }
}

#[test]
fn reason_in_the_header_allows_800_lines() {
    let file = |header: &str, lines: usize| {
        let code = lines - header.lines().count();
        format!("{header}{}", "x();\n".repeat(code))
    };
    let short = "//! A table.\n";
    let reasoned =
        format!("//! A table.\n//!\n{REASON}each row is one call, and calls are compared.\n");
    assert!(has_allowed_length(&file(short, 500)) && !has_allowed_length(&file(short, 501)));
    assert!(has_allowed_length(&file(&reasoned, 501)) && has_allowed_length(&file(&reasoned, 800)));
    assert!(
        !has_allowed_length(&file(&reasoned, 801)) && !has_allowed_length(&file(&reasoned, 500))
    );
    let below = format!("{short}x();\n{REASON}it is not in the header.\n");
    assert!(!has_allowed_length(&file(&below, 501)));
}

#[test]
fn scripts_are_executable_and_strict() {
    use std::os::unix::fs::PermissionsExt;
    for script in [
        "tests/run",
        "tests/advisories",
        "tests/bench",
        "tests/chaos",
        "tests/drill",
        "tests/fuzz",
        "tests/openrc",
        "tests/root",
        "tests/versions",
        "tests/vm",
        ".ci/run",
        "deploy/package",
        "deploy/quickstart",
    ] {
        let path = repository().join(script);
        let mode = fs::metadata(&path)
            .unwrap_or_else(|error| panic!("{script}: {error}"))
            .permissions()
            .mode();
        assert!(mode & 0o111 == 0o111, "{script} is not executable");
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("\nset -euo pipefail\n"),
            "{script} continues after a failure"
        );
    }
}
