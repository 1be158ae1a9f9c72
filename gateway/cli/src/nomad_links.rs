//! Links in the plugin directories of Nomad agents that lead to this program.
//!
//! An agent does not start while a link in its plugin_dir leads nowhere. So installed links are on record, and what
//! removes the program removes the links before.
//!
//! ```text
//! <state>/nomad-plugins            the directories of `install`, a path on each line; lines are only appended
//! <state>/nomad-plugins.removed    the links that the removal of the package took away, until they are put back
//! ```
//!
//! Each line of the record is appended by one write, so that of two installations at a time none is lost. A directory
//! stays on record when its links are removed: a look at it finds none then.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use switchyard_linux::files::{self, Durable, if_present, sync_dir};

/// The record of the directories, at a fixed place: it is needed when the configuration is invalid, too.
pub(super) const RECORD: &str = "/var/lib/switchyard/nomad-plugins";

/// The package's own links, which come and go with the program, below the prefix of its `bin`.
const OF_PACKAGE: &str = "lib/switchyard";

/// A link to this program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct PluginLink {
    /// Its place.
    pub(super) path: PathBuf,
    /// Its content.
    target: PathBuf,
}

/// The links in several directories.
#[derive(Debug, Default)]
pub(super) struct FoundLinks {
    /// Those that lead to this program.
    pub(super) links: BTreeSet<PluginLink>,
    /// Reasons why there may be others.
    pub(super) unseen: Vec<LinkError>,
}

/// The result of [`put_back`].
#[derive(Debug, Default)]
pub(super) struct LinksBack {
    /// The links that were made.
    pub(super) made: Vec<PathBuf>,
    /// Reasons why other links could not be made.
    pub(super) failed: Vec<LinkError>,
}

/// Reason why links were not made, found or removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("cannot find this program's own file")]
    Exe(#[source] io::Error),
    #[error("{} exists and is not a link: remove it first", .0.display())]
    InTheWay(PathBuf),
    #[error("cannot make {}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error(
        "cannot write down in {} that plugins are in {}, so none is installed there",
        record.display(),
        dir.display()
    )]
    Record {
        record: PathBuf,
        dir: PathBuf,
        source: io::Error,
    },
    #[error("cannot look for links to this program in {}", dir.display())]
    Look { dir: PathBuf, source: io::Error },
    #[error("cannot find out where Nomad agents look for plugins: {0}")]
    Agents(String),
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot add the links to {}, so they are not put back by the next installation", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot write {}, so the next installation tries the links that are back again too", path.display())]
    Shorten { path: PathBuf, source: io::Error },
    #[error("cannot remove {}: remove it before the next start of its Nomad agent, which fails with it", path.display())]
    Remove { path: PathBuf, source: io::Error },
    #[error("the links are back, but cannot remove {}", path.display())]
    Forget { path: PathBuf, source: io::Error },
}

/// Creates a link with each of these names in a directory, by an atomic rename that replaces an existing link, and
/// returns their paths. The directory is on record before. Idempotent.
pub(super) fn install(
    dir: &Path,
    names: &[&str],
    record: &Path,
) -> Result<Vec<PathBuf>, LinkError> {
    let program = program()?;
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| LinkError::Make { path, source }
    };
    fs::create_dir_all(dir).map_err(fail(dir))?;
    // The record is read in another working directory.
    let dir = fs::canonicalize(dir).map_err(fail(dir))?;
    for name in names {
        let path = dir.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_symlink()) {
            return Err(LinkError::InTheWay(path));
        }
    }
    remember(&dir, record)?;
    let mut made = Vec::new();
    for name in names {
        let path = dir.join(name);
        // The name has the pid because another install may run at the same time.
        let new = dir.join(format!(".{name}.{}", std::process::id()));
        let linked = symlink(&program, &new).and_then(|()| files::rename(&new, &path, Durable::No));
        linked.map_err(fail(&path))?;
        made.push(path);
    }
    Ok(made)
}

/// The directories on record. What a power cut has torn is no path, or that of nothing.
pub(super) fn recorded(record: &Path) -> Result<BTreeSet<PathBuf>, LinkError> {
    let text = if_present(fs::read(record)).map_err(|source| LinkError::Read {
        path: record.to_owned(),
        source,
    })?;
    let text = text.unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines
        .map(|line| PathBuf::from(OsStr::from_bytes(line)))
        .filter(|dir| dir.is_absolute())
        .collect())
}

/// Finds the links to this program in these directories, whatever their names are, except those of the package.
/// Directories that do not exist have none.
pub(super) fn find(dirs: &BTreeSet<PathBuf>) -> Result<FoundLinks, LinkError> {
    let program = program()?;
    let mut found = FoundLinks::default();
    for dir in dirs {
        match links_in(dir, &program) {
            Ok(links) => found.links.extend(links),
            Err(source) => found.unseen.push(LinkError::Look {
                dir: dir.clone(),
                source,
            }),
        }
    }
    Ok(found)
}

/// Finds the links to this program in the directories on record, and in those where the agents of this node look.
pub(super) fn find_all(record: &Path) -> Result<FoundLinks, LinkError> {
    let mut unseen = Vec::new();
    let mut dirs = recorded(record).unwrap_or_else(|error| {
        unseen.push(error);
        BTreeSet::new()
    });
    let of_agents = switchyard_doctor::nomad_plugin_dirs();
    dirs.extend(of_agents.dirs);
    unseen.extend(of_agents.unknown.into_iter().map(LinkError::Agents));
    let mut found = find(&dirs)?;
    found.unseen.extend(unseen);
    Ok(found)
}

/// Removes a link. Durable: a power cut would bring it back beside a program that is gone.
pub(super) fn remove(link: &PluginLink) -> Result<(), LinkError> {
    let removed = fs::remove_file(&link.path).and_then(|()| sync_dir(files::parent(&link.path)));
    let removed = if_present(removed);
    removed.map(drop).map_err(|source| LinkError::Remove {
        path: link.path.clone(),
        source,
    })
}

/// Removes links after it has written them into a file, from which [`put_back`] makes them again, and returns what could
/// not be done. A link whose file could not be written is removed as well: without it an agent starts.
pub(super) fn take_away(links: &BTreeSet<PluginLink>, removed: &Path) -> Vec<LinkError> {
    if links.is_empty() {
        return Vec::new();
    }
    let mut failed: Vec<_> = add_removed(links, removed).err().into_iter().collect();
    failed.extend(links.iter().filter_map(|link| remove(link).err()));
    failed
}

/// Makes the links again that [`take_away`] has removed, as far as their directories exist and they lead to this
/// program. Nothing is replaced. The file keeps those that cannot be made, and is removed without any. Idempotent.
pub(super) fn put_back(removed: &Path) -> Result<LinksBack, LinkError> {
    let links = read_removed(removed).map_err(|source| LinkError::Read {
        path: removed.to_owned(),
        source,
    })?;
    let program = program()?;
    let mut back = LinksBack::default();
    let mut left = BTreeSet::new();
    // A link may lead to the program by way of another one, which is put back after it.
    loop {
        let before = back.made.len();
        left.clear();
        back.failed.clear();
        for link in &links {
            match link.make(&program) {
                Ok(true) => back.made.push(link.path.clone()),
                Ok(false) => {}
                Err(error) => {
                    left.insert(link.clone());
                    back.failed.push(error);
                }
            }
        }
        if back.made.len() == before {
            break;
        }
    }
    let path = removed.to_owned();
    let kept = if left.is_empty() {
        let forgotten = if_present(fs::remove_file(removed));
        forgotten
            .map(drop)
            .map_err(|source| LinkError::Forget { path, source })
    } else {
        note_removed(&left, removed).map_err(|source| LinkError::Shorten { path, source })
    };
    back.failed.extend(kept.err());
    Ok(back)
}

// === impl PluginLink ===

impl PluginLink {
    /// Makes the link, and returns whether it did: not if it would not lead to this program, its directory is gone with its
    /// agent, or something is in its place.
    fn make(&self, program: &Path) -> Result<bool, LinkError> {
        let file = fs::canonicalize(files::parent(&self.path).join(&self.target));
        if !file.is_ok_and(|file| file == program) {
            return Ok(false);
        }
        // Before it is forgotten that it was removed, which may be on another disk.
        let made = symlink(&self.target, &self.path);
        match made.and_then(|()| sync_dir(files::parent(&self.path))) {
            Ok(()) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
                ) =>
            {
                Ok(false)
            }
            Err(source) => Err(LinkError::Make {
                path: self.path.clone(),
                source,
            }),
        }
    }
}

/// The file of this program, without links.
fn program() -> Result<PathBuf, LinkError> {
    std::env::current_exe()
        .and_then(fs::canonicalize)
        .map_err(LinkError::Exe)
}

/// Appends a directory to the record, unless it is there. Durable.
fn remember(dir: &Path, record: &Path) -> Result<(), LinkError> {
    if recorded(record)?.contains(dir) {
        return Ok(());
    }
    let append = || -> io::Result<()> {
        let path = dir.as_os_str().as_bytes();
        if path.contains(&b'\n') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a path with a line break",
            ));
        }
        let parent = files::parent(record);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?;
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(record)?;
        // A power cut may have torn the line before.
        file.write_all(&[b"\n".as_slice(), path, b"\n"].concat())?;
        file.sync_all()?;
        sync_dir(parent)
    };
    append().map_err(|source| LinkError::Record {
        record: record.to_owned(),
        dir: dir.to_owned(),
        source,
    })
}

/// Returns whether links in a directory were installed with the program. Pure.
fn is_of_package(dir: &Path, program: &Path) -> bool {
    let prefix = program.parent().and_then(Path::parent);
    prefix.is_some_and(|prefix| dir.starts_with(prefix.join(OF_PACKAGE)))
}

fn links_in(dir: &Path, program: &Path) -> io::Result<Vec<PluginLink>> {
    let Some(dir) = if_present(fs::canonicalize(dir))? else {
        return Ok(Vec::new());
    };
    if is_of_package(&dir, program) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir)? {
        let path = entry?.path();
        if let Ok(target) = fs::read_link(&path)
            && fs::canonicalize(&path).is_ok_and(|file| file == program)
        {
            found.push(PluginLink { path, target });
        }
    }
    Ok(found)
}

/// Adds links to the file of those that were removed. One that cannot be read stays as it is.
fn add_removed(links: &BTreeSet<PluginLink>, removed: &Path) -> Result<(), LinkError> {
    let add = || -> io::Result<()> {
        // A removal that failed at a later step has written some already.
        let mut all = read_removed(removed)?;
        all.extend(links.iter().cloned());
        note_removed(&all, removed)
    };
    add().map_err(|source| LinkError::Write {
        path: removed.to_owned(),
        source,
    })
}

/// Replaces the file of the links that were removed. Durable.
fn note_removed(links: &BTreeSet<PluginLink>, removed: &Path) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(links)?;
    text.push(b'\n');
    files::replace(removed, &text, 0o600, Durable::Yes, || {})?;
    Ok(())
}

/// The links that were removed; none without the file.
fn read_removed(removed: &Path) -> io::Result<BTreeSet<PluginLink>> {
    let text = if_present(fs::read(removed))?;
    let links = text.map(|text| serde_json::from_slice(&text)).transpose()?;
    Ok(links.unwrap_or_default())
}

#[cfg(test)]
mod tests;
