//! Idioms that `gateway/linux` implements for all crates are implemented there alone.

use std::fs;

use super::files::files;
use super::repository;

/// Words of calls and files that are in `gateway/linux` alone, with what to use instead.
const WORDS: &[(&str, &str)] = &[
    ("mountinfo", "switchyard_linux::mounts"),
    (
        "fs::rename",
        "files::replace or files::rename of switchyard_linux, with these names: the test of writes finds them",
    ),
    ("tokio::task::spawn_blocking", "switchyard_linux::blocking"),
    ("task::spawn_blocking;", "switchyard_linux::blocking"),
    ("setrlimit(", "switchyard_linux::raise_open_files_limit"),
    ("umask(", "switchyard_linux::inherited"),
];

/// Files that have such a word, and why.
const EXEMPT: &[(&str, &str, &str)] = &[
    (
        "gateway/crash-points/src/faults.rs",
        "fs::rename",
        "faults exist in builds for tests alone",
    ),
    (
        "gateway/streaming/src/io.rs",
        "tokio::task::spawn_blocking",
        "streaming knows no crate of ours but that of TLS",
    ),
    (
        "gateway/streaming/src/io.rs",
        "task::spawn_blocking;",
        "streaming knows no crate of ours but that of TLS",
    ),
    (
        "gateway/swarm/src/scripted/logs.rs",
        "fs::rename",
        "a double for tests",
    ),
];

/// The code of a file: without comments, and without its tests.
fn code(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let lines = text[..tests]
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn idioms_of_linux_are_in_one_crate() {
    let mut unused: Vec<_> = EXEMPT
        .iter()
        .map(|(file, word, _)| (*file, *word))
        .collect();
    for path in files(&[".rs"]) {
        let name = path
            .strip_prefix(repository())
            .expect("it is below")
            .to_str()
            .expect("it is ASCII");
        let is_source = name.contains("/src/")
            && (name.starts_with("backends/") || name.starts_with("gateway/"));
        if !is_source || name.starts_with("gateway/linux/") || name.contains("tests") {
            continue;
        }
        let code = code(&fs::read_to_string(&path).expect("a source file can be read"));
        for (word, instead) in WORDS {
            if !code.contains(word) {
                continue;
            }
            let is_exempt = EXEMPT
                .iter()
                .any(|(file, exempt, _)| (*file, *exempt) == (name, *word));
            assert!(is_exempt, "{name} has {word}: use {instead}");
            unused.retain(|exemption| *exemption != (name, *word));
        }
    }
    assert!(
        unused.is_empty(),
        "these have no such word any more: {unused:?}"
    );
}

#[test]
fn comments_and_tests_are_no_code() {
    assert_eq!(
        code("a\n    // mountinfo\nb\n#[cfg(test)]\nmod tests {\nfs::rename\n}\n"),
        "a\nb"
    );
}
