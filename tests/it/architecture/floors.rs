//! Inside `backends/containerd`, and inside the gateway of `core`, imports go one way: down.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use switchyard_source::imports::imports;

use super::repository;
use super::source::library;

/// A directory of modules that stand above each other.
struct Building {
    /// The crate, and the directory in the repository.
    place: (&'static str, &'static str),
    /// The parts, from the bottom up. A part is a file with the directory of its modules, or one module below such a
    /// file. It may import itself and what stands before it.
    parts: &'static [&'static str],
}

const CONTAINERD: Building = Building {
    place: ("switchyard-containerd", "backends/containerd/src"),
    parts: CONTAINERD_PARTS,
};

const GATEWAY: Building = Building {
    place: ("switchyard-core", "gateway/core/src/gateway"),
    parts: GATEWAY_PARTS,
};

const CONTAINERD_PARTS: &[&str] = &[
    "base",
    "client",
    "record",
    "cleanup",
    "context",
    "live",
    "cgroups",
    "shims",
    "blockers",
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

const GATEWAY_PARTS: &[&str] = &[
    "limits",
    "callers",
    "start_limiter",
    "op",
    "context",
    "access",
    "claims",
    "devices",
    "image",
    "volume",
    "exec",
    "task",
    "sandbox",
    "parts",
    "scope",
];

impl Building {
    /// The part that a file belongs to; `None` for a file outside of the directory.
    fn part_of(&self, file: &Path) -> Option<&'static str> {
        let file = file.strip_prefix(repository().join(self.place.1)).ok()?;
        let names: Vec<_> = file
            .iter()
            .map(|name| name.to_string_lossy().replace(".rs", ""))
            .collect();
        let path = names.join("/");
        let is_in = |part: &&&str| path == **part || path.starts_with(&format!("{part}/"));
        let longest = self
            .parts
            .iter()
            .filter(is_in)
            .max_by_key(|part| part.len());
        Some(
            longest
                .copied()
                .unwrap_or_else(|| panic!("{path} belongs to no part: add one to its list")),
        )
    }

    /// The imports of a part by one below it.
    fn upward(&self, imports: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> BTreeSet<String> {
        let floor = |part: &str| self.parts.iter().position(|known| *known == part);
        let name = |file: &Path| {
            file.strip_prefix(repository())
                .unwrap_or(file)
                .display()
                .to_string()
        };
        let mut wrong = BTreeSet::new();
        for (from, targets) in imports {
            for to in targets {
                let (Some(importer), Some(imported)) = (self.part_of(from), self.part_of(to))
                else {
                    continue;
                };
                if floor(importer) < floor(imported) {
                    let files = format!("{} imports {}", name(from), name(to));
                    wrong.insert(format!("{importer} may not import {imported}: {files}"));
                }
            }
        }
        wrong
    }

    #[track_caller]
    fn check(&self, least: usize) {
        let imports = imports(&library(self.place.0));
        let files = imports
            .keys()
            .filter(|file| self.part_of(file).is_some())
            .count();
        assert!(
            files > least,
            "these are too few files with imports: {files}"
        );
        let wrong: Vec<String> = self.upward(&imports).into_iter().collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// The imports of this building that go up, of one file that imports one other.
    fn upward_of(&self, from: &str, to: &str) -> BTreeSet<String> {
        let file = |name: &str| repository().join(self.place.1).join(name);
        self.upward(&BTreeMap::from([(file(from), BTreeSet::from([file(to)]))]))
    }
}

#[test]
fn parts_of_the_containerd_backend_import_only_those_below_them() {
    CONTAINERD.check(100);
}

#[test]
fn components_of_the_gateway_import_only_those_below_them() {
    GATEWAY.check(25);
}

#[test]
fn import_of_a_part_above_is_found() {
    for (building, above, below) in [
        (CONTAINERD, "sandbox.rs", "cgroups/busy.rs"),
        (CONTAINERD, "task/exit.rs", "task/entry.rs"),
        (CONTAINERD, "task/entry.rs", "task/cgroups/oom.rs"),
        (CONTAINERD, "task/attach/unread.rs", "task/start.rs"),
        (CONTAINERD, "backend/parts.rs", "recover.rs"),
        (GATEWAY, "sandbox/scoped.rs", "task/stop.rs"),
        (GATEWAY, "devices/bind.rs", "claims.rs"),
    ] {
        assert_eq!(
            building.upward_of(above, below),
            BTreeSet::new(),
            "{above} {below}"
        );
        assert_eq!(building.upward_of(below, above).len(), 1, "{below} {above}");
    }
    assert!(
        CONTAINERD
            .upward_of("shims.rs", "shims/bundle.rs")
            .is_empty(),
        "files of one part"
    );
}
