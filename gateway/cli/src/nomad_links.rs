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

/// The package's own links, which come and go with the program.
const OF_PACKAGE: &str = "/usr/lib/switchyard";

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
    /// The directories that cannot be looked at.
    pub(super) unseen: Vec<LinkError>,
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
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}, so the links are not put back by the next installation", path.display())]
    Write { path: PathBuf, source: io::Error },
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

/// Removes a link.
pub(super) fn remove(link: &PluginLink) -> Result<(), LinkError> {
    let removed = if_present(fs::remove_file(&link.path));
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
    let mut failed: Vec<_> = note_removed(links, removed).err().into_iter().collect();
    failed.extend(links.iter().filter_map(|link| remove(link).err()));
    failed
}

/// Makes the links again that [`take_away`] has removed, as far as their directories exist and they lead to this
/// program, and returns their paths. Nothing is replaced. The file is removed at last. Idempotent.
pub(super) fn put_back(removed: &Path) -> Result<Vec<PathBuf>, LinkError> {
    let links = read_removed(removed)?;
    let program = program()?;
    let mut made = Vec::new();
    // A link may lead to the program by way of another one, which is put back after it.
    loop {
        let before = made.len();
        for link in &links {
            if link.make(&program)? {
                made.push(link.path.clone());
            }
        }
        if made.len() == before {
            break;
        }
    }
    if_present(fs::remove_file(removed)).map_err(|source| LinkError::Forget {
        path: removed.to_owned(),
        source,
    })?;
    Ok(made)
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
        match symlink(&self.target, &self.path) {
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

fn links_in(dir: &Path, program: &Path) -> io::Result<Vec<PluginLink>> {
    let Some(dir) = if_present(fs::canonicalize(dir))? else {
        return Ok(Vec::new());
    };
    if dir.starts_with(OF_PACKAGE) {
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

/// Adds links to the file of those that were removed. Durable.
fn note_removed(links: &BTreeSet<PluginLink>, removed: &Path) -> Result<(), LinkError> {
    let write = || -> io::Result<()> {
        // A removal that failed at a later step has written some already.
        let mut all = read_removed(removed).unwrap_or_default();
        all.extend(links.iter().cloned());
        let mut text = serde_json::to_vec_pretty(&all)?;
        text.push(b'\n');
        files::replace(removed, &text, 0o600, Durable::Yes, || {})?;
        Ok(())
    };
    write().map_err(|source| LinkError::Write {
        path: removed.to_owned(),
        source,
    })
}

/// The links that were removed; none without the file.
fn read_removed(removed: &Path) -> Result<BTreeSet<PluginLink>, LinkError> {
    let read = || -> io::Result<BTreeSet<PluginLink>> {
        let text = if_present(fs::read(removed))?;
        let links = text.map(|text| serde_json::from_slice(&text)).transpose()?;
        Ok(links.unwrap_or_default())
    };
    read().map_err(|source| LinkError::Read {
        path: removed.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of the plugins, as far as a test needs them.
    const NAMES: [&str; 2] = ["switchyard", "switchyard-device"];

    /// A node: directories of agents, and the files of the package's state.
    struct AgentDirs(tempfile::TempDir);

    impl AgentDirs {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            fs::canonicalize(self.0.path()).unwrap().join(name)
        }

        fn install(&self, dir: &str) -> Result<Vec<PathBuf>, LinkError> {
            install(&self.path(dir), &NAMES, &self.path("state/record"))
        }

        fn recorded(&self) -> BTreeSet<PathBuf> {
            recorded(&self.path("state/record")).unwrap()
        }

        /// The names in a directory.
        fn names(&self, dir: &str) -> BTreeSet<String> {
            let entries = fs::read_dir(self.path(dir)).unwrap();
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect()
        }

        /// Takes the links of these directories away, as the removal of the package does; what could not be done.
        fn leave(&self, dirs: &BTreeSet<PathBuf>) -> Vec<LinkError> {
            let found = find(dirs).unwrap();
            assert!(found.unseen.is_empty(), "{found:?}");
            take_away(&found.links, &self.path("state/removed"))
        }

        fn put_back(&self) -> Vec<PathBuf> {
            put_back(&self.path("state/removed")).unwrap()
        }
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().copied().map(str::to_owned).collect()
    }

    #[test]
    fn install_is_idempotent_and_overwrites_nothing_else() {
        let node = AgentDirs::new();
        for _ in 0..2 {
            let made = node.install("plugins").unwrap();
            assert_eq!(made, NAMES.map(|name| node.path("plugins").join(name)));
        }
        let exe = fs::canonicalize(std::env::current_exe().unwrap()).unwrap();
        for name in NAMES {
            assert_eq!(
                fs::canonicalize(node.path("plugins").join(name)).unwrap(),
                exe
            );
        }
        assert_eq!(node.names("plugins"), set(&NAMES));
        assert_eq!(node.recorded(), BTreeSet::from([node.path("plugins")]));
        let precious = node.path("plugins/switchyard");
        fs::remove_file(&precious).unwrap();
        fs::write(&precious, "precious").unwrap();
        let error = node.install("plugins").unwrap_err();
        assert!(matches!(error, LinkError::InTheWay(_)), "{error}");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    }

    #[test]
    fn nothing_is_installed_that_cannot_be_written_down() {
        let node = AgentDirs::new();
        fs::write(node.path("state"), "no directory").unwrap();
        assert!(node.install("plugins").is_err());
        assert!(node.names("plugins").is_empty());
        fs::remove_file(node.path("state")).unwrap();
        let broken = node.install("plug\nins").unwrap_err();
        assert!(broken.to_string().contains("none is installed"), "{broken}");
    }

    #[test]
    fn record_has_each_directory_once_also_after_a_torn_line() {
        let node = AgentDirs::new();
        node.install("one").unwrap();
        let record = node.path("state/record");
        let mut torn = fs::read(&record).unwrap();
        torn.extend(b"/torn/by/a/pow");
        fs::write(&record, torn).unwrap();
        node.install("two").unwrap();
        node.install("one").unwrap();
        let expected = [node.path("one"), node.path("two"), "/torn/by/a/pow".into()];
        assert_eq!(node.recorded(), BTreeSet::from(expected));
        let lines = fs::read_to_string(&record).unwrap();
        assert_eq!(lines.lines().filter(|line| !line.is_empty()).count(), 3);
        assert!(recorded(&node.path("none")).unwrap().is_empty());
    }

    #[test]
    fn links_to_this_program_are_taken_away_and_put_back_and_no_others() {
        let node = AgentDirs::new();
        node.install("one").unwrap();
        node.install("two").unwrap();
        let exe = std::env::current_exe().unwrap();
        // By hand, one by way of another link, as to what is in the package.
        symlink(&exe, node.path("one/docker")).unwrap();
        symlink("../two/switchyard", node.path("one/relative")).unwrap();
        symlink("/usr/bin/env", node.path("one/other")).unwrap();
        symlink("/none", node.path("one/dangling")).unwrap();
        fs::write(node.path("one/nomad-driver-podman"), "a program").unwrap();
        let all = node.names("one");

        let mut dirs = node.recorded();
        dirs.insert(node.path("none"));
        assert!(node.leave(&dirs).is_empty());
        let others = set(&["dangling", "nomad-driver-podman", "other"]);
        assert_eq!(node.names("one"), others);
        assert!(node.names("two").is_empty());
        // A second removal, after one that failed later, finds none, and forgets none.
        assert!(node.leave(&dirs).is_empty());
        assert_eq!(node.put_back().len(), 6);
        assert_eq!(node.names("one"), all);
        assert!(!node.path("state/removed").exists());
        assert!(node.put_back().is_empty());

        // What came there meanwhile stays.
        assert!(node.leave(&dirs).is_empty());
        fs::write(node.path("two/switchyard"), "another").unwrap();
        let made = node.put_back();
        assert_eq!(made.len(), 4, "{made:?}");
        assert_eq!(
            fs::read_to_string(node.path("two/switchyard")).unwrap(),
            "another"
        );
        // It led by way of that one.
        let missing: Vec<_> = all.difference(&node.names("one")).cloned().collect();
        assert_eq!(missing, ["relative"]);
    }

    #[test]
    fn links_are_removed_although_they_cannot_be_written_down() {
        let node = AgentDirs::new();
        node.install("plugins").unwrap();
        fs::create_dir(node.path("state/removed")).unwrap();
        let failed = node.leave(&node.recorded());
        assert!(
            matches!(failed.as_slice(), [LinkError::Write { .. }]),
            "{failed:?}"
        );
        assert!(node.names("plugins").is_empty());
    }

    #[test]
    fn directory_of_an_agent_that_is_gone_gets_no_link() {
        let node = AgentDirs::new();
        node.install("plugins").unwrap();
        assert!(node.leave(&node.recorded()).is_empty());
        fs::remove_dir(node.path("plugins")).unwrap();
        assert!(node.put_back().is_empty());
        assert!(!node.path("plugins").exists());
    }

    #[test]
    fn directory_that_cannot_be_looked_at_is_reported_and_the_others_are_searched() {
        let node = AgentDirs::new();
        node.install("plugins").unwrap();
        fs::write(node.path("file"), "").unwrap();
        let dirs = BTreeSet::from([node.path("file"), node.path("plugins")]);
        let found = find(&dirs).unwrap();
        assert_eq!((found.links.len(), found.unseen.len()), (2, 1), "{found:?}");
    }
}
