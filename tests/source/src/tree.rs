//! The files of a source tree: Rust without tests and generated code, the roots of its crates, and its documents.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::Item;

use crate::module::{candidates, parse, submodules};
use crate::{Error, is_for_tests};

/// Directories that are no part of a program: tests, build output, and the code of others or of generators.
const SKIPPED_DIRECTORIES: [&str; 11] = [
    "benches",
    "examples",
    "fuzz",
    "gen",
    "generated",
    "node_modules",
    "target",
    "test",
    "testdata",
    "tests",
    "vendor",
];

/// Number of lines at the beginning of a file that may declare it as generated.
const HEADER: usize = 5;

/// The files of a source tree.
#[derive(Debug)]
pub struct Tree {
    /// Its Rust files, without tests and without generated code, in order.
    pub sources: Vec<PathBuf>,
    /// Those of them that are the root of a library or program.
    pub roots: Vec<PathBuf>,
    /// Its Markdown files, in order.
    pub documents: Vec<PathBuf>,
}

impl Tree {
    /// Finds the files of the tree below this directory.
    ///
    /// # Errors
    /// A directory or file cannot be read, or a Rust file cannot be parsed.
    pub fn read(root: &Path) -> Result<Self, Error> {
        let mut tree = Self {
            sources: Vec::new(),
            roots: Vec::new(),
            documents: Vec::new(),
        };
        tree.walk(root, true)?;
        let mut tests = BTreeSet::new();
        for source in &tree.sources {
            tests.extend(test_modules(source)?);
        }
        tree.sources
            .retain(|source| !tests.iter().any(|test| source.starts_with(test)));
        tree.sources.sort();
        tree.documents.sort();
        tree.roots = tree
            .sources
            .iter()
            .filter(|source| is_root(source))
            .cloned()
            .collect();
        Ok(tree)
    }

    /// Walks a directory; documents count in each, Rust files only where programs are.
    fn walk(&mut self, directory: &Path, has_programs: bool) -> Result<(), Error> {
        let fail = |source| Error::Read {
            path: directory.to_owned(),
            source,
        };
        for entry in fs::read_dir(directory).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().map_err(fail)?.is_dir() {
                if name != "target"
                    && name != "node_modules"
                    && name != "vendor"
                    && !name.starts_with('.')
                {
                    self.walk(
                        &path,
                        has_programs && !SKIPPED_DIRECTORIES.contains(&name.as_str()),
                    )?;
                }
            } else if name.ends_with(".md") {
                self.documents.push(path);
            } else if name.ends_with(".rs")
                && has_programs
                && name != "tests.rs"
                && !is_generated(&path)?
            {
                self.sources.push(path);
            }
        }
        Ok(())
    }
}

/// Returns whether cargo takes this file for the root of a library or program without an entry in the
/// manifest.
fn is_root(source: &Path) -> bool {
    let is_in = |name: &str| source.parent().is_some_and(|parent| parent.ends_with(name));
    let is_named = source
        .file_name()
        .is_some_and(|name| name == "lib.rs" || name == "main.rs");
    (is_named && is_in("src")) || is_in("src/bin")
}

fn is_generated(path: &Path) -> Result<bool, Error> {
    let text = fs::read(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    let text = String::from_utf8_lossy(&text);
    Ok(text
        .lines()
        .take(HEADER)
        .any(|line| line.contains("@generated") || line.contains("automatically generated")))
}

/// The files and directories of the modules that a file declares for tests alone.
fn test_modules(source: &Path) -> Result<Vec<PathBuf>, Error> {
    let is_folder = source
        .file_name()
        .is_some_and(|name| name == "lib.rs" || name == "main.rs");
    let below = match source.parent() {
        Some(parent) if is_folder => parent.to_owned(),
        _ => submodules(source),
    };
    let mut found = Vec::new();
    for item in parse(source)?.items {
        if let Item::Mod(module) = item
            && module.content.is_none()
            && is_for_tests(&module.attrs)
        {
            found.extend(candidates(source, &below, &module));
            found.push(below.join(module.ident.to_string()));
        }
    }
    Ok(found)
}
