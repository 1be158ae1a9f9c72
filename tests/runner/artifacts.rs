//! The programs that a build has made, as cargo reports them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A program of tests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestProgram {
    /// The directory of its crate from the root of the repository, and the name of the target: `gateway/core: switchyard_core`.
    pub(crate) name: String,
    /// The directory of its crate, in which it is run.
    pub(crate) dir: PathBuf,
    /// The program.
    pub(crate) path: PathBuf,
}

impl TestProgram {
    /// The names of its tests.
    ///
    /// # Panics
    /// When it cannot be run.
    pub(crate) fn tests(&self) -> Vec<String> {
        let output = Command::new(&self.path).arg("--list").output();
        let output =
            output.unwrap_or_else(|error| panic!("cannot run {}: {error}", self.path.display()));
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(str::to_owned)
            .collect()
    }
}

/// The programs of a build of the whole workspace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Artifacts {
    /// The integration tests.
    pub(crate) it: TestProgram,
    /// The tests of the crates.
    pub(crate) units: Vec<TestProgram>,
    /// The benchmark.
    pub(crate) benchmark: TestProgram,
}

impl Artifacts {
    /// Reads what `cargo build --workspace --all-targets --message-format=json` wrote, of a repository with this root.
    ///
    /// # Panics
    /// When it does not have the integration tests and the benchmark.
    pub(crate) fn parse(root: &Path, text: &str) -> Self {
        let tests = root.join("tests");
        let mut units = BTreeSet::new();
        let (mut it, mut benchmark) = (None, None);
        for message in text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        {
            let Some((kind, program)) = program(root, &message) else {
                continue;
            };
            match kind {
                "test" if program.dir == tests && program.name.ends_with(": it") => {
                    it = Some(program)
                }
                "bench" if program.dir == tests && program.name.ends_with(": cri") => {
                    benchmark = Some(program)
                }
                "lib" | "bin" | "test" => {
                    units.insert(program);
                }
                _ => {}
            }
        }
        Self {
            it: it.expect("the build has the integration tests"),
            units: units.into_iter().collect(),
            benchmark: benchmark.expect("the build has the benchmark"),
        }
    }
}

/// The program that a message reports, if it is one of tests, with its kind.
fn program<'a>(root: &Path, message: &'a Value) -> Option<(&'a str, TestProgram)> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let dir = Path::new(message["manifest_path"].as_str()?)
        .parent()?
        .to_owned();
    let target = &message["target"];
    let crate_dir = dir.strip_prefix(root).unwrap_or(&dir).display();
    let name = format!("{crate_dir}: {}", target["name"].as_str()?);
    Some((target["kind"][0].as_str()?, TestProgram { name, dir, path }))
}
