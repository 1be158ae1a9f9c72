//! Inside `backends/containerd` imports go one way: down.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use switchyard_source::imports::imports;

use super::repository;
use super::source::sources;

/// The parts of the crate, from the bottom up. A part is a file with the directory of its modules, or one
/// module of `task`. It may import itself and what stands before it.
const PARTS: &[&str] = &[
    "base",
    "client",
    "record",
    "cleanup",
    "context",
    "live",
    "cgroups",
    "shims",
    "predecessor_calls",
    "processes",
    "image",
    "node",
    "network",
    "sandbox",
    "task/process",
    "task/fifos",
    "task/inputs",
    "task/cgroups/oom",
    "task/freeze",
    "task/lifecycle",
    "task/entry",
    "task/logs",
    "task/table",
    "task/cgroups",
    "task/storage",
    "task/exit",
    "task",
    "task/attach",
    "task/checkpoint",
    "exec",
    "stats",
    "recover",
    "backend",
    "fuzzing",
    "lib",
];

/// The part that a file belongs to.
fn part_of(file: &Path) -> &'static str {
    let dir = repository().join("backends/containerd/src");
    let file = file.strip_prefix(&dir).expect("a file of the crate lies in its directory");
    let names: Vec<_> = file.iter().map(|name| name.to_string_lossy().replace(".rs", "")).collect();
    let path = names.join("/");
    let is_in = |part: &&&str| path == **part || path.starts_with(&format!("{part}/"));
    let longest = PARTS.iter().filter(is_in).max_by_key(|part| part.len());
    longest.copied().unwrap_or_else(|| panic!("{path} belongs to no part: add one to PARTS"))
}

#[test]
fn parts_of_the_containerd_backend_import_only_those_below_them() {
    let source = sources().into_iter().find(|source| source.name == "switchyard-containerd");
    let imports = imports(&source.expect("the crate is a member of the workspace").root);
    assert!(imports.len() > 100, "these are too few files with imports: {}", imports.len());
    let wrong: Vec<String> = upward(&imports).into_iter().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The imports of a part by one below it.
fn upward(imports: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> BTreeSet<String> {
    let floor = |part: &str| PARTS.iter().position(|known| *known == part);
    let name = |file: &Path| file.strip_prefix(repository()).unwrap_or(file).display().to_string();
    let mut wrong = BTreeSet::new();
    for (from, targets) in imports {
        for to in targets {
            let importer = part_of(from);
            let imported = part_of(to);
            if floor(importer) < floor(imported) {
                let files = format!("{} imports {}", name(from), name(to));
                wrong.insert(format!("{importer} may not import {imported}: {files}"));
            }
        }
    }
    wrong
}

#[test]
fn import_of_a_part_above_is_found() {
    let file = |name: &str| repository().join("backends/containerd/src").join(name);
    let import = |from: &str, to: &str| BTreeMap::from([(file(from), BTreeSet::from([file(to)]))]);
    for (above, below) in [
        ("sandbox.rs", "cgroups/busy.rs"),
        ("task/exit.rs", "task/entry.rs"),
        ("task/entry.rs", "task/cgroups/oom.rs"),
        ("task/attach/unread.rs", "task/start.rs"),
        ("backend/parts.rs", "recover.rs"),
    ] {
        assert_eq!(upward(&import(above, below)), BTreeSet::new(), "{above} {below}");
        assert_eq!(upward(&import(below, above)).len(), 1, "{below} {above}");
    }
    assert!(upward(&import("shims.rs", "shims/bundle.rs")).is_empty(), "files of one part");
}
