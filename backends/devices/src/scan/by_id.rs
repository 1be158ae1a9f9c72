//! The udev links to device nodes, which have stable names.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::nodes;
use crate::roots::Number;

/// The directories of the links, below the device root.
const DIRS: [&str; 3] = ["serial/by-id", "v4l/by-id", "disk/by-id"];
/// The most links of a directory that are read.
const LINKS_MAX: usize = 4096;

/// The names of links, by the device number of their targets.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<Number, String>);

// === impl Links ===

impl Links {
    /// Reads the links. Of several links to one device, the first in lexical order counts.
    pub(super) fn read(dev: &Path) -> Self {
        let mut links: BTreeMap<Number, String> = BTreeMap::new();
        for dir in DIRS {
            let entries = fs::read_dir(dev.join(dir))
                .into_iter()
                .flatten()
                .flatten()
                .take(LINKS_MAX);
            for entry in entries {
                let (Ok(name), Ok(number)) = (
                    entry.file_name().into_string(),
                    nodes::number(&entry.path()),
                ) else {
                    continue;
                };
                match links.get_mut(&number) {
                    Some(known) if *known <= name => {}
                    Some(known) => *known = name,
                    None => drop(links.insert(number, name)),
                }
            }
        }
        Self(links)
    }

    pub(super) fn name(&self, number: Number) -> Option<&str> {
        self.0.get(&number).map(String::as_str)
    }
}
