//! Paths that match patterns, limited in number.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::{DEVICES_MAX, Scan, Search};
use crate::config::{Group, PathMatch};

/// The most directories that are watched for new files.
const WATCHED_MAX: usize = 256;

impl Scan<'_> {
    /// The paths that match, in ascending order; a path without wildcards matches itself, whether it exists
    /// or not.
    pub(super) fn matching(&mut self, wanted: &PathMatch) -> Vec<PathBuf> {
        let path = Path::new(&wanted.path);
        if !wanted.is_pattern() {
            let is_left_out = wanted.optional && !path.exists();
            return if is_left_out {
                Vec::new()
            } else {
                vec![path.to_owned()]
            };
        }
        // The pattern was checked. Unreadable directories contain no matches, and no pattern matches a name
        // that is not UTF-8, which the protocols could not represent.
        let Ok(found) = glob::glob(&wanted.path) else {
            return Vec::new();
        };
        let mut paths: Vec<PathBuf> = found.flatten().take(DEVICES_MAX + 1).collect();
        if paths.len() > DEVICES_MAX {
            let most = DEVICES_MAX;
            self.notes.insert(format!(
                "{} matches more than {most} paths: the others are left out",
                wanted.path
            ));
            paths.truncate(DEVICES_MAX);
        }
        paths
    }
}

/// The directories in which a new file could be a device or a CDI spec file; if one does not exist, its
/// nearest existing parent. The flag selects whether rewritten files count as well.
pub(crate) fn watched(search: &Search) -> BTreeSet<(PathBuf, bool)> {
    let mut dirs = BTreeSet::new();
    let patterns = search
        .groups
        .iter()
        .flat_map(|group| &group.paths)
        .flat_map(|entry| entry.members());
    for wanted in patterns {
        for dir in dirs_of(&wanted.path) {
            dirs.insert((dir, false));
        }
    }
    if search
        .groups
        .iter()
        .any(|group: &Group| !group.cdi.is_empty())
    {
        dirs.extend(search.cdi_spec_dirs.iter().map(|dir| (dir.clone(), true)));
    }
    let near = dirs
        .into_iter()
        .filter_map(|(dir, rewritten)| Some((nearest(&dir)?, rewritten)));
    near.take(WATCHED_MAX).collect()
}

/// The directories that a pattern searches: the fixed part, and the matches of each further component but the
/// last.
fn dirs_of(pattern: &str) -> Vec<PathBuf> {
    let parts: Vec<Component<'_>> = Path::new(pattern).components().collect();
    let differs =
        |part: &Component<'_>| part.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    let fixed = parts.iter().position(differs).unwrap_or(parts.len());
    let parent = parts.len().saturating_sub(1);
    let mut dirs: Vec<PathBuf> = vec![parts[..fixed.min(parent)].iter().collect()];
    for end in fixed + 1..=parent {
        // Matches of `**` are found by scans alone.
        if parts[fixed..end]
            .iter()
            .any(|part| part.as_os_str() == "**")
        {
            break;
        }
        let part: PathBuf = parts[..end].iter().collect();
        let found = part.to_str().and_then(|part| glob::glob(part).ok());
        dirs.extend(
            found
                .into_iter()
                .flatten()
                .flatten()
                .take(WATCHED_MAX)
                .filter(|path| path.is_dir()),
        );
    }
    dirs
}

fn nearest(dir: &Path) -> Option<PathBuf> {
    dir.ancestors().find(|dir| dir.is_dir()).map(Path::to_owned)
}
