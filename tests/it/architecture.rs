//! Enforces the rules of `ARCHITECTURE.md` and `CONTRIBUTING.md`: which crate may depend on which crates and
//! libraries, which parts import which, what documents name, and what source files are bound to.

mod circles;
mod dependencies;
mod documents;
mod files;
mod floors;
mod glossary;
mod idioms;
mod layers;
mod licences;
mod locks;
mod log_fields;
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "only some kinds of items and patterns matter"
)]
mod reading;
mod rules;
mod source;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// The workspace as `cargo metadata` describes it, for this machine's platform.
struct Metadata {
    packages: BTreeMap<String, Package>,
    /// The ids of our own crates.
    members: BTreeSet<String>,
    /// The resolved graph: package id to the ids it depends on, dev-dependencies of members included.
    graph: BTreeMap<String, Vec<String>>,
}

struct Package {
    name: String,
    version: String,
    licence: String,
    source: Option<String>,
    manifest: PathBuf,
    /// The dependencies of its manifest: name and kind (`normal`, `build`, `dev`).
    requested: Vec<(String, String)>,
}

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the repository")
}

fn metadata() -> &'static Metadata {
    static METADATA: OnceLock<Metadata> = OnceLock::new();
    METADATA.get_or_init(|| {
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let output = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--format-version",
                "1",
                "--locked",
                "--filter-platform",
                &platform,
            ])
            .current_dir(repository())
            .output()
            .expect("cargo ran this test, so it is there");
        assert!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        parse(&serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON"))
    })
}

/// The rules for dependencies.
fn rules() -> toml::Table {
    let path = repository().join("deny.toml");
    std::fs::read_to_string(path)
        .expect("deny.toml is there")
        .parse()
        .expect("deny.toml is TOML")
}

fn parse(value: &Value) -> Metadata {
    let packages = list(&value["packages"])
        .iter()
        .map(|package| (text(&package["id"]), Package::parse(package)));
    let graph = list(&value["resolve"]["nodes"]).iter().map(|node| {
        (
            text(&node["id"]),
            list(&node["deps"])
                .iter()
                .map(|dependency| text(&dependency["pkg"]))
                .collect(),
        )
    });
    Metadata {
        packages: packages.collect(),
        members: list(&value["workspace_members"]).iter().map(text).collect(),
        graph: graph.collect(),
    }
}

impl Package {
    fn parse(value: &Value) -> Self {
        let requested = list(&value["dependencies"]).iter().map(|dependency| {
            (
                text(&dependency["name"]),
                dependency["kind"].as_str().unwrap_or("normal").to_owned(),
            )
        });
        Self {
            name: text(&value["name"]),
            version: text(&value["version"]),
            licence: value["license"].as_str().unwrap_or_default().to_owned(),
            source: value["source"].as_str().map(str::to_owned),
            manifest: PathBuf::from(text(&value["manifest_path"])),
            requested: requested.collect(),
        }
    }
}

impl Metadata {
    /// Our own crates.
    fn ours(&self) -> impl Iterator<Item = &Package> {
        self.members.iter().map(|id| &self.packages[id])
    }

    /// The packages that are built on this platform.
    fn used(&self) -> impl Iterator<Item = &Package> {
        self.graph.keys().map(|id| &self.packages[id])
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("cargo metadata has this list")
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .expect("cargo metadata has this text")
        .to_owned()
}
