//! Every write has a crash point: whatever changes a disk or the mounts is followed by a crash point, at which tests
//! can kill the daemon, or has an exception with a reason here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use switchyard_crash_points::CrashPoint::{self, *};

use super::files::files;
use super::repository;

/// Calls that change a disk or the mounts. Files that are opened for writing are created by one of these.
const CHANGES: [&str; 17] = [
    "fs::write(",
    "files::rename(",
    "files::replace(",
    "fs::copy(",
    "fs::hard_link(",
    "fs::symlink(",
    " symlink(",
    " linkat(",
    "mkfifo(",
    " File::create(",
    "fs::File::create(",
    "create_new(",
    ".create(true)",
    "set_len(",
    "write_durable(",
    "mount(Some(",
    "mount(None::<",
];
/// Crates that change nothing of a node's: doubles for tests, the steps themselves, and files of control
/// groups, which are the kernel's. The callers of `gateway/linux` reach the steps.
const EXEMPT_CRATES: [&str; 5] = [
    "backends/cgroup/",
    "backends/contract/",
    "backends/fake/",
    "gateway/linux/",
    "gateway/crash-points/",
];

/// Reason why a function that changes something does not reach a crash point itself.
enum Exemption {
    /// Its caller does, right after.
    CrashPoint(CrashPoint),
    /// It makes no difference where a kill comes.
    Harmless(&'static str),
}
use Exemption::Harmless;

/// The functions that do not.
const EXEMPT_FUNCTIONS: &[(&str, &str, Exemption)] = &[
    (
        "backends/containerd/src/base/disk_io.rs",
        "try_write",
        Harmless("nobody reads the file, and the next write makes it whole"),
    ),
    (
        "backends/containerd/src/base/epoch.rs",
        "begin",
        Exemption::CrashPoint(FileNamed),
    ),
    (
        "backends/containerd/src/base/fs.rs",
        "write_durable",
        Exemption::CrashPoint(FileNamed),
    ),
    (
        "backends/containerd/src/base/instance.rs",
        "settle",
        Exemption::CrashPoint(FileNamed),
    ),
    (
        "backends/containerd/src/base/instance.rs",
        "recover_as",
        Harmless("a command of an operator, who repeats it"),
    ),
    (
        "backends/containerd/src/base/mount.rs",
        "mount_one",
        Exemption::CrashPoint(TaskStaged),
    ),
    (
        "backends/containerd/src/node/runtime_probes.rs",
        "probe_all",
        Harmless("what is torn is asked again"),
    ),
    (
        "backends/containerd/src/node/runtime_probes.rs",
        "mount_tmpfs",
        Harmless("the mounts end with us"),
    ),
    (
        "backends/containerd/src/node/runtime_probes.rs",
        "run_trial_bundle",
        Harmless("the next trial takes its place away first"),
    ),
    (
        "backends/containerd/src/node/runtime_probes.rs",
        "write",
        Harmless("the next trial takes its place away first"),
    ),
    (
        "backends/containerd/src/task/checkpoint/archive.rs",
        "finish",
        Exemption::CrashPoint(CheckpointNamed),
    ),
    (
        "backends/containerd/src/task/checkpoint/layer.rs",
        "write",
        Exemption::CrashPoint(CheckpointLayered),
    ),
    (
        "backends/containerd/src/task/storage/stage.rs",
        "mount_staged",
        Exemption::CrashPoint(TaskStaged),
    ),
    (
        "backends/containerd/src/task/fifos.rs",
        "make_fifos",
        Exemption::CrashPoint(TaskFifos),
    ),
    (
        "backends/containerd/src/task/start.rs",
        "reserve_mark",
        Exemption::CrashPoint(TaskUnstaged),
    ),
    (
        "backends/containerd/src/task/start.rs",
        "mark_started",
        Exemption::CrashPoint(TaskMarked),
    ),
    (
        "backends/containerd/src/task/update.rs",
        "write_limits_marker",
        Exemption::CrashPoint(TaskLimitsMarked),
    ),
    (
        "backends/containerd/src/base/trees.rs",
        "set_aside",
        Harmless("to who wants it removed it is gone"),
    ),
    (
        "backends/containerd/src/node/userns.rs",
        "idmap_works",
        Harmless("the next trial takes its place away first"),
    ),
    (
        "backends/containerd/src/task/storage/volumes.rs",
        "publish",
        Exemption::CrashPoint(VolumeNamed),
    ),
    (
        "backends/containerd/src/task/storage/volumes.rs",
        "unpublish",
        Exemption::CrashPoint(VolumeUnnamed),
    ),
    (
        "backends/ledger/src/journal.rs",
        "append",
        Harmless("what is cut off is no whole record, or a lease that nobody was reported"),
    ),
    (
        "backends/tree/src/copy.rs",
        "register_hard_link",
        Exemption::CrashPoint(VolumeDrafted),
    ),
    (
        "backends/tree/src/copy.rs",
        "link",
        Exemption::CrashPoint(VolumeDrafted),
    ),
    (
        "backends/namespaces/src/helper.rs",
        "file_in",
        Harmless("a file that is not whole is replaced before it is used"),
    ),
    (
        "backends/namespaces/src/helper.rs",
        "make",
        Harmless("a file of the kernel, about a process that ends with us"),
    ),
    (
        "backends/namespaces/src/mounts.rs",
        "stop_propagation",
        Harmless("what is to be unmounted stays so"),
    ),
    (
        "backends/namespaces/src/mounts/path_handle.rs",
        "bind_mount_at",
        Exemption::CrashPoint(TaskStaged),
    ),
    (
        "backends/namespaces/src/pin.rs",
        "create_mount_files",
        Exemption::CrashPoint(PinsPlaced),
    ),
    (
        "backends/namespaces/src/within.rs",
        "with_own_mounts",
        Harmless("the mounts end with us"),
    ),
    (
        "backends/network/src/addresses/directory.rs",
        "open_lock",
        Harmless("a lock file without content, which every user opens"),
    ),
    (
        "backends/network/src/addresses/directory.rs",
        "reserve",
        Harmless("the file names its holder, by whom it is released"),
    ),
    (
        "backends/network/src/addresses/directory.rs",
        "note_last",
        Harmless("without it the next search only begins elsewhere"),
    ),
    (
        "gateway/doctor/src/bundle/archive.rs",
        "create",
        Harmless("a command of an operator, who repeats it"),
    ),
    (
        "gateway/cli/src/nomad_links.rs",
        "install",
        Harmless("a command of an operator, who repeats it"),
    ),
    (
        "gateway/cli/src/nomad_links.rs",
        "remember",
        Harmless("a directory on record need not have links, and a torn line names none"),
    ),
    (
        "gateway/cli/src/nomad_links.rs",
        "note_removed",
        Harmless("links in the file that were not removed yet are not made again"),
    ),
    (
        "gateway/cli/src/nomad_links.rs",
        "make",
        Harmless("the file names it until all are made, and it is not made twice"),
    ),
    (
        "gateway/cli/src/package/removal.rs",
        "write",
        Harmless(
            "the file is replaced as a whole, and directories that are in none are searched as well",
        ),
    ),
    (
        "gateway/operator/src/audit/sink.rs",
        "open_file",
        Harmless("the next daemon appends to an empty file"),
    ),
    (
        "gateway/operator/src/events/segments.rs",
        "create",
        Harmless("an empty segment has no record, and the next daemon appends to it"),
    ),
    (
        "gateway/cli/src/package/installation.rs",
        "write",
        Harmless(
            "what is missing is only not waited for, and the next attempt adds to what is there",
        ),
    ),
    (
        "gateway/daemon/src/detach.rs",
        "prepare",
        Harmless("an empty log of a managed process is as good as none"),
    ),
    (
        "gateway/daemon/src/detach.rs",
        "claim",
        Harmless("a lock file without content, which every start uses"),
    ),
    (
        "gateway/daemon/src/lock.rs",
        "note_holder",
        Harmless("the lock is what counts; the process id in it is for a message alone"),
    ),
    (
        "gateway/daemon/src/lock.rs",
        "open",
        Exemption::CrashPoint(DirLocked),
    ),
    (
        "gateway/daemon/src/managed/log.rs",
        "open",
        Harmless("an empty log of a managed process is as good as none"),
    ),
    (
        "gateway/daemon/src/managed/log.rs",
        "copy_truncate",
        Harmless("until it is emptied the log is whole, and is copied again"),
    ),
    (
        "gateway/logkeeper/src/log_file.rs",
        "open",
        Exemption::CrashPoint(LogMade),
    ),
    (
        "gateway/logkeeper/src/position.rs",
        "create",
        Exemption::CrashPoint(PositionMade),
    ),
    (
        "gateway/logkeeper/src/sink.rs",
        "append",
        Exemption::CrashPoint(LinesWritten),
    ),
    (
        "gateway/logkeeper/src/spool.rs",
        "create",
        Exemption::CrashPoint(SpoolMade),
    ),
    (
        "gateway/logkeeper/src/spool.rs",
        "recover",
        Exemption::CrashPoint(LogTakenUp),
    ),
    (
        "gateway/logkeeper/src/state_dir.rs",
        "open",
        Harmless("a lock file without content, which every start uses"),
    ),
    (
        "gateway/swarm/src/secrets.rs",
        "mount_tmpfs",
        Harmless("the next daemon uses the mount"),
    ),
    (
        "gateway/swarm/src/secrets.rs",
        "write_file",
        Harmless("in memory alone; the next daemon removes those of tasks that do not run"),
    ),
];

/// The functions of a file that change something and reach no step.
fn unnamed(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    // Where the function begins that a line is in, and its name.
    let mut inside: Option<(usize, &str)> = None;
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    for (at, line) in lines.iter().enumerate() {
        if *line == "#[cfg(test)]" && lines.get(at + 1).is_some_and(|next| next.ends_with('{')) {
            break;
        }
        let code = line.trim_start();
        if let Some(name) = function(code) {
            inside = Some((at, name));
        }
        // The formatter puts long arguments on lines of their own.
        let arguments = if line.ends_with('(') {
            lines.get(at + 1).map_or("", |next| next.trim_start())
        } else {
            ""
        };
        let call = format!("{line}{arguments}");
        if code.starts_with("//") || !CHANGES.iter().any(|change| call.contains(change)) {
            continue;
        }
        let (begin, name) = inside.expect("only functions do something");
        let end = format!("{}}}", " ".repeat(indent(lines[begin])));
        let named = lines[begin..]
            .iter()
            .take_while(|line| **line != end)
            .any(|line| line.contains("reach("));
        if !named {
            found.insert(name);
        }
    }
    found
}

/// The name of the function that this line begins.
fn function(code: &str) -> Option<&str> {
    let words = ["pub(crate) ", "pub(super) ", "pub ", "const ", "async "];
    let bare = words
        .iter()
        .fold(code, |code, word| code.strip_prefix(word).unwrap_or(code));
    let name = bare.strip_prefix("fn ")?;
    name.split(['(', '<']).next()
}

/// Returns whether a file is built for tests only: its declaration, in the file above it, stands behind
/// `#[cfg(test)]`, or the file above it is for tests itself.
fn is_for_tests(path: &Path, text_of: &BTreeMap<String, String>) -> bool {
    let name = path
        .file_stem()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let declarations = [
        format!("#[cfg(test)]\nmod {name};"),
        format!("#[cfg(test)]\npub(crate) mod {name};"),
    ];
    let dir = path.parent().expect("a source file is in a directory");
    let above = [
        dir.with_extension("rs"),
        dir.join("lib.rs"),
        dir.join("main.rs"),
    ];
    let text = |path: &std::path::PathBuf| text_of.get(path.to_str().unwrap_or_default());
    let is_declared_so = above.iter().filter_map(text).any(|text| {
        declarations
            .iter()
            .any(|declarations| text.contains(declarations))
    });
    is_declared_so || (text(&above[0]).is_some() && is_for_tests(&above[0], text_of))
}

#[test]
fn every_write_is_followed_by_a_step_or_is_exempt() {
    let mut texts = BTreeMap::new();
    for path in files(&[".rs"]) {
        let name = path
            .strip_prefix(repository())
            .expect("it is below")
            .to_str()
            .expect("it is ASCII")
            .to_owned();
        let ours = name.contains("/src/")
            && (name.starts_with("backends/") || name.starts_with("gateway/"));
        if ours
            && !name.contains("/tests/")
            && !EXEMPT_CRATES.iter().any(|apart| name.starts_with(apart))
        {
            texts.insert(
                name,
                fs::read_to_string(&path).expect("a source file can be read"),
            );
        }
    }
    let mut unnamed_in: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (name, text) in &texts {
        if !is_for_tests(Path::new(name), &texts) {
            unnamed_in.extend(
                unnamed(text)
                    .into_iter()
                    .map(|function| (name.as_str(), function)),
            );
        }
    }
    let allowed: BTreeSet<(&str, &str)> = EXEMPT_FUNCTIONS
        .iter()
        .map(|(file, function, _)| (*file, *function))
        .collect();
    let new: Vec<_> = unnamed_in.difference(&allowed).collect();
    assert!(
        new.is_empty(),
        "no kill is played after what these change (`reach` a crash point, or say why not here): {new:#?}"
    );
    let old: Vec<_> = allowed.difference(&unnamed_in).collect();
    assert!(
        old.is_empty(),
        "these are allowed what they do not do: {old:#?}"
    );
    for (file, function, why) in EXEMPT_FUNCTIONS {
        match why {
            Exemption::CrashPoint(step) => {
                let named = format!("{step:?}");
                assert!(
                    texts.values().any(|text| text.contains(&named)),
                    "{file}: {function} has no {named}"
                );
            }
            Harmless(why) => assert!(!why.is_empty(), "{file}: {function}"),
        }
    }
}

#[test]
fn a_write_without_a_step_is_found() {
    let text = "fn named() {\n    fs::write(a, b);\n    reach(CrashPoint::X);\n}\n\nimpl X {\n    pub fn not(&self) {\n        \
                files::rename(a, b, no);\n    }\n\n    fn other() {\n        reach(CrashPoint::X);\n    }\n}\n";
    assert_eq!(unnamed(text), BTreeSet::from(["not"]));
    let broken = "fn broken() {\n    mount(\n        Some(source),\n        target,\n    );\n}\n";
    assert_eq!(unnamed(broken), BTreeSet::from(["broken"]));
    assert_eq!(
        unnamed(
            "fn f() {\n    // fs::write(\n}\n#[cfg(test)]\nmod tests {\n fn g() { fs::write( }\n}\n"
        ),
        BTreeSet::new()
    );
}
