//! Checks `Cargo.lock` against `deny.toml`: licences, one version of each crate, banned crates, sources.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

use super::files::files;
use super::licences::is_allowed;
use super::{metadata, rules};

#[test]
fn every_licence_is_allowed() {
    let rules = rules();
    let allowed: BTreeSet<&str> = entries(&rules, "licenses", "allow")
        .filter_map(Value::as_str)
        .collect();
    let wrong: Vec<_> = metadata()
        .used()
        .filter(|package| !is_allowed(&package.licence, &allowed))
        .map(|package| {
            format!(
                "{} {}: {:?}",
                package.name, package.version, package.licence
            )
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "licences that deny.toml does not allow:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn duplicate_crate_versions_have_a_reason() {
    let rules = rules();
    let skipped: BTreeSet<&str> = entries(&rules, "bans", "skip")
        .filter_map(|entry| entry.get("crate")?.as_str())
        .collect();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut unused = skipped.clone();
    for package in metadata().used() {
        // `name@1` stands for 1.x, `name@0.2` for 0.2.x.
        let exact = format!("{}@{}.", package.name, package.version);
        let skip = skipped
            .iter()
            .find(|skip| exact.starts_with(&format!("{skip}.")));
        if let Some(skip) = skip {
            unused.remove(skip);
        } else {
            versions
                .entry(&package.name)
                .or_default()
                .insert(&package.version);
        }
    }
    let twice: Vec<_> = versions
        .iter()
        .filter(|(_, versions)| versions.len() > 1)
        .collect();
    assert!(
        twice.is_empty(),
        "in more than one version (see bans.skip in deny.toml): {twice:#?}"
    );
    assert!(
        unused.is_empty(),
        "bans.skip in deny.toml names what is not in use: {unused:?}"
    );
}

#[test]
fn every_exception_has_a_reason() {
    let rules = rules();
    for list in ["skip", "deny"] {
        for entry in entries(&rules, "bans", list) {
            let reason = entry
                .get("reason")
                .and_then(Value::as_str)
                .unwrap_or_default();
            assert!(
                !reason.is_empty(),
                "bans.{list} in deny.toml: {entry} has no reason"
            );
        }
    }
}

#[test]
fn banned_crates_have_only_allowed_dependents() {
    let rules = rules();
    let banned: BTreeMap<&str, Vec<&str>> = entries(&rules, "bans", "deny")
        .map(|entry| {
            let wrappers = entry.get("wrappers").and_then(Value::as_array);
            let wrappers = wrappers
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            (
                entry
                    .get("crate")
                    .and_then(Value::as_str)
                    .expect("an entry of bans.deny names a crate"),
                wrappers,
            )
        })
        .collect();
    let metadata = metadata();
    let mut wrong = Vec::new();
    for (id, dependencies) in &metadata.graph {
        let user = &metadata.packages[id];
        for dependency in dependencies {
            let used = &metadata.packages[dependency].name;
            if banned
                .get(used.as_str())
                .is_some_and(|wrappers| !wrappers.contains(&user.name.as_str()))
            {
                wrong.push(format!("{} {} uses {used}", user.name, user.version));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "banned by deny.toml:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_dependency_comes_from_the_registry() {
    let rules = rules();
    let registries: BTreeSet<String> = entries(&rules, "sources", "allow-registry")
        .filter_map(Value::as_str)
        .map(|url| format!("registry+{url}"))
        .collect();
    assert!(!registries.is_empty(), "deny.toml allows no registry");
    for (id, package) in &metadata().packages {
        match &package.source {
            Some(source) => assert!(registries.contains(source), "{id} comes from {source}"),
            None => assert!(
                metadata().members.contains(id),
                "{id} is a path outside of the workspace"
            ),
        }
    }
}

#[test]
fn only_tests_of_versions_ask_for_the_formats_of_a_later_version() {
    let mut wrong = Vec::new();
    for path in files(&["Cargo.toml", "build", "quickstart"]) {
        // A manifest may only pass the feature on.
        let is_manifest = path.ends_with("Cargo.toml");
        let is_asking = |line: &&str| {
            let is_passed_on = line.starts_with("newer = [") || line.starts_with('#');
            line.contains("newer") && (is_manifest || line.contains("--features")) && !is_passed_on
        };
        let text = std::fs::read_to_string(&path).expect("it can be read");
        let asking = text.lines().filter(is_asking);
        wrong.extend(asking.map(|line| format!("{}: {line}", path.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The entries of a list in `deny.toml`.
fn entries<'a>(
    rules: &'a toml::Table,
    section: &str,
    list: &str,
) -> impl Iterator<Item = &'a Value> {
    rules[section][list]
        .as_array()
        .expect("deny.toml has this list")
        .iter()
}
