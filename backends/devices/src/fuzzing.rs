//! Properties that hold for any configuration of devices. Called only by fuzz targets and tests.

use std::path::Path;

use serde::Deserialize;
use switchyard_core::id::Owner;

use crate::assemble::{Candidate, assemble};
use crate::combine::{Matches, combine};
use crate::config::Group;
use crate::identity;
use crate::scan::without_devices;

/// `[[groups]]`, as in `[devices]`.
#[derive(Deserialize)]
struct Document {
    groups: Vec<Group>,
}

/// Decodes bytes as a configuration of devices. Accepted values are within their limits, and devices that are
/// named after them have valid, unique ids.
///
/// # Panics
/// If a property does not hold.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(Document { groups }) = toml::from_str(text) else {
        return;
    };
    if let Err(error) = Group::check(&groups) {
        assert_eq!(
            error.kind(),
            switchyard_core::ErrorKind::InvalidArgument,
            "{error}"
        );
        return;
    }
    let mut found = Vec::new();
    for group in &groups {
        assert!((1..=1000).contains(&group.shares), "{group:?}");
        assert!(
            group
                .quota
                .keys()
                .all(|owner| Owner::parse(owner).is_some()),
            "{group:?}"
        );
        assert!(
            group.resource.is_empty() || group.resource.contains('/'),
            "{group:?}"
        );
        let mut candidates = Vec::new();
        for entry in &group.paths {
            let matches = entry.members().iter().map(|wanted| {
                assert!(wanted.path.starts_with('/'), "{wanted:?}");
                let paths = vec![
                    wanted.path.clone().into(),
                    format!("{}0", wanted.path).into(),
                ];
                Matches {
                    paths,
                    limit: usize::from(wanted.limit),
                    optional: wanted.optional,
                }
            });
            let matches: Vec<Matches> = matches.collect();
            for device in combine(&matches) {
                assert_eq!(device.len(), matches.len());
                let path = device
                    .into_iter()
                    .flatten()
                    .next()
                    .expect("a device has a node");
                let known_by = identity::path(path, Path::new("/dev"));
                candidates.push(Candidate {
                    known_by,
                    ..Candidate::default()
                });
            }
        }
        found.push((without_devices(group), candidates));
    }
    let inventory = assemble(found);
    let mut ids = std::collections::BTreeSet::new();
    for device in inventory.groups.iter().flat_map(|group| &group.devices) {
        assert!(identity::is_id(&device.id), "{device:?}");
        assert!(ids.insert(&device.id), "{device:?}");
    }
}
