//! Rules for source files: names, headers and sizes.

use std::fs;
use std::path::{Path, PathBuf};

use super::repository;

/// The most lines that a source file may have.
const MOST_LINES: usize = 500;

/// The files of the repository whose name ends with this, without build output, generated code and hidden directories.
pub(super) fn files(endings: &[&str]) -> Vec<PathBuf> {
    fn walk(dir: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a directory of the repository can be read").flatten() {
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
    assert!(!found.is_empty(), "no file of the repository ends in {endings:?}");
    found
}

#[track_caller]
fn check_sources(rule: &str, broken: impl Fn(&Path, &str) -> bool) {
    let wrong: Vec<_> = files(&[".rs"])
        .into_iter()
        .filter(|path| broken(path, &fs::read_to_string(path).expect("a source file can be read")))
        .map(|path| path.display().to_string())
        .collect();
    assert!(wrong.is_empty(), "{rule}:\n{}", wrong.join("\n"));
}

#[test]
fn no_file_is_called_mod() {
    check_sources("`foo/mod.rs` is written `foo.rs`", |path, _| {
        path.file_name().is_some_and(|name| name == "mod.rs")
    });
}

#[test]
fn every_file_has_a_module_comment() {
    check_sources("the file does not begin with `//!`", |_, text| !text.starts_with("//! "));
}

#[test]
fn no_file_is_too_long() {
    check_sources("the file is longer than 500 lines", |_, text| text.lines().count() > MOST_LINES);
}

#[test]
fn no_file_ends_without_a_newline_or_holds_tabs() {
    check_sources("the file holds a tab, a carriage return or no last newline", |_, text| {
        text.contains('\t') || text.contains('\r') || !text.ends_with('\n')
    });
}

#[test]
fn scripts_are_executable_and_strict() {
    use std::os::unix::fs::PermissionsExt;
    for script in [
        "tests/run",
        "tests/advisories",
        "tests/bench",
        "tests/chaos",
        "tests/fuzz",
        "tests/root",
        "tests/vm",
        ".ci/run",
        "deploy/quickstart",
    ] {
        let path = repository().join(script);
        let mode =
            fs::metadata(&path).unwrap_or_else(|error| panic!("{script}: {error}")).permissions().mode();
        assert!(mode & 0o111 == 0o111, "{script} is not executable");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\nset -euo pipefail\n"), "{script} continues after a failure");
    }
}
