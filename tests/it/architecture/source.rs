//! Our crates as syntax trees.

use std::path::Path;

use switchyard_source::Module;

use super::metadata;

/// A library or program of ours without its tests.
pub(super) struct Source {
    /// The package, and the name of the target if it is another.
    pub(super) name: String,
    /// The root module.
    pub(super) root: Module,
}

/// The libraries and programs of the workspace.
pub(super) fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    for package in metadata().ours() {
        let dir = package
            .manifest
            .parent()
            .expect("a manifest lies in a directory");
        for target in [
            "src/lib.rs",
            "src/main.rs",
            "it/main.rs",
            "guest/main.rs",
            "benches/cri/main.rs",
        ] {
            let path = dir.join(target);
            if path.exists() {
                let name = if target == "src/lib.rs" {
                    package.name.clone()
                } else {
                    format!("{} {target}", package.name)
                };
                let root = read(&path);
                sources.push(Source { name, root });
            }
        }
    }
    assert!(
        sources.len() > 20,
        "these are too few crates: {}",
        sources.len()
    );
    sources
}

/// The root module of the library of the package `name`.
pub(super) fn library(name: &str) -> Module {
    let package = metadata().ours().find(|package| package.name == name);
    let manifest = &package
        .expect("the crate is a member of the workspace")
        .manifest;
    read(&manifest.with_file_name("src/lib.rs"))
}

/// The module in `path` with all below it.
fn read(path: &Path) -> Module {
    let root = Module::read(path)
        .unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error)));
    for (_, module) in root.all() {
        assert!(
            module.absent.is_empty(),
            "{}: no {:?}",
            module.file.display(),
            module.absent
        );
    }
    root
}
