//! Our crates as syntax trees.

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
                let root = Module::read(&path).unwrap_or_else(|error| {
                    panic!("{error}: {:?}", std::error::Error::source(&error))
                });
                for (_, module) in root.all() {
                    assert!(
                        module.absent.is_empty(),
                        "{}: no {:?}",
                        module.file.display(),
                        module.absent
                    );
                }
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
