//! Checks of devices and of files of the Container Device Interface.

use std::path::Path;

use switchyard_linux::files::if_present;

use super::codes::orchestrators::{CDI, EMPTY_GROUP, UNHEALTHY_DEVICE};
use super::facts::Facts;
use super::finding::Finding;
use super::text::{first_of, yaml_value};
use super::view::FILE_MAX;

/// Maximum number of files of a directory that are read.
const FILES_MAX: usize = 256;

/// Maximum number of devices that a finding names.
const NAMED_MAX: usize = 5;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(empty_groups(facts));
    found.extend(unhealthy(facts));
    for dir in &facts.config.devices.cdi_spec_dirs {
        found.extend(spec_dir(facts, dir));
    }
    found
}

/// Configured groups in which the daemon has found no device.
fn empty_groups(facts: &Facts) -> Vec<Finding> {
    let Some(devices) = &facts.devices else {
        return Vec::new();
    };
    let empty = facts.config.devices.groups.iter().filter(|group| {
        let name = (&group.vendor, &group.kind, &group.name);
        // A group that was added to the files is not known before the reload.
        let shown = devices
            .groups
            .iter()
            .find(|shown| (&shown.vendor, &shown.kind, &shown.name) == name);
        shown.is_some_and(|shown| shown.capacity == 0)
    });
    empty
        .map(|group| {
            Finding::new(&EMPTY_GROUP, format!("group {}", group.full_name()))
                .command("switchyard devices")
        })
        .collect()
}

fn unhealthy(facts: &Facts) -> Option<Finding> {
    let devices = facts.devices.as_ref()?;
    let slots = devices.slots.iter().filter(|slot| !slot.healthy);
    let mut named: Vec<String> = slots
        .map(|slot| format!("{} ({})", slot.device, slot.reason))
        .collect();
    named.dedup();
    (!named.is_empty()).then(|| {
        Finding::new(&UNHEALTHY_DEVICE, first_of(&named, NAMED_MAX)).command("switchyard devices")
    })
}

fn spec_dir(facts: &Facts, dir: &Path) -> Vec<Finding> {
    let names = match if_present(facts.view.list(dir)) {
        Ok(names) => names.unwrap_or_default(),
        Err(error) => return vec![Finding::new(&CDI, format!("{}: {error}", dir.display()))],
    };
    let files = names.iter().map(|name| dir.join(name)).take(FILES_MAX);
    let wrong = files.filter_map(|file| {
        let why = spec_fault(facts, &file)?;
        Some(Finding::new(&CDI, format!("{}: {why}", file.display())))
    });
    wrong.collect()
}

/// The fault of a file, as far as its syntax shows one.
fn spec_fault(facts: &Facts, file: &Path) -> Option<String> {
    let extension = file.extension()?.to_str()?;
    if extension != "json" && extension != "yaml" {
        return None;
    }
    let bytes = match facts.view.read(file, FILE_MAX) {
        Ok(bytes) => bytes,
        Err(error) => return Some(error.to_string()),
    };
    let text = String::from_utf8_lossy(&bytes);
    if extension == "json" || text.trim_start().starts_with('{') {
        return match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(value) if value.get("kind").is_some_and(serde_json::Value::is_string) => None,
            Ok(_) => Some("it has no kind".to_owned()),
            Err(error) => Some(format!("it is not JSON: {error}")),
        };
    }
    yaml_value(&text, "kind")
        .is_none()
        .then(|| "it has no kind".to_owned())
}
