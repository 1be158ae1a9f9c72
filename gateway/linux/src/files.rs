//! Replacement and renaming of files.
//!
//! A reader of a file that [`replace`] has written sees the whole old content or the whole new one, also
//! after a kill at any line. Each call says whether that holds after a power cut, too: [`Durable`].

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The part of a change that is on the disk when the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// All of it: the content before the name, and the name. If the directory is new, its own name is up to the caller: see
    /// [`sync_dir`].
    Yes,
    /// The content before the name. After a power cut there is the old file or the new one, each as a whole.
    Content,
    /// Nothing. After a power cut the file may be empty or the old one: its readers accept that, or there are none after
    /// a boot.
    No,
}

/// Reason why a file was not replaced.
#[derive(Debug)]
pub struct ReplaceError {
    /// The failed operation, as a verb phrase.
    pub doing: &'static str,
    /// The file of the failed call.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// Replaces a file by one with these contents and permission bits, whatever the umask is. Tasks and processes that have the
/// old file open or mounted keep it. Idempotent. Blocks.
///
/// The contents are written to a draft beside the file first: its path with `.new` at the end, which no two callers may
/// write at the same time. A kill leaves at most that draft, which the next call removes. `drafted` is called between the
/// draft and its rename.
///
/// # Errors
/// [`ReplaceError`]; the draft is removed and the file is unchanged then, unless only its directory could not be synced.
pub fn replace(
    path: &Path,
    contents: &[u8],
    mode: u32,
    durable: Durable,
    drafted: impl FnOnce(),
) -> Result<File, ReplaceError> {
    replace_with(path, contents, mode, durable, File::sync_all, drafted)
}

/// As [`replace`], with the function that syncs the draft.
fn replace_with(
    path: &Path,
    contents: &[u8],
    mode: u32,
    durable: Durable,
    sync: impl FnOnce(&File) -> io::Result<()>,
    drafted: impl FnOnce(),
) -> Result<File, ReplaceError> {
    let draft = draft_of(path);
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| ReplaceError {
            doing,
            path,
            source,
        }
    };
    if_present(fs::remove_file(&draft)).map_err(failed("remove", &draft))?;
    let file = write_draft(&draft, contents, mode, durable, sync)
        // It may have a part of a secret, and it would take an inode of a full disk.
        .inspect_err(|_| drop(fs::remove_file(&draft)))
        .map_err(failed("write", &draft))?;
    drafted();
    fs::rename(&draft, path)
        .inspect_err(|_| drop(fs::remove_file(&draft)))
        .map_err(failed("replace", path))?;
    if durable == Durable::Yes {
        let dir = parent(path);
        sync_dir(dir).map_err(failed("sync", dir))?;
    }
    Ok(file)
}

fn write_draft(
    draft: &Path,
    contents: &[u8],
    mode: u32,
    durable: Durable,
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<File> {
    let mut file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(mode)
        .open(draft)?;
    file.write_all(contents)?;
    // The umask may have cleared bits.
    file.set_permissions(Permissions::from_mode(mode))?;
    match durable {
        // Before it has its name: some file systems (XFS) write the name to disk before the contents.
        Durable::Yes | Durable::Content => sync(&file)?,
        Durable::No => {}
    }
    Ok(file)
}

/// The path at which [`replace`] writes the contents of a file before it gets its name.
#[must_use]
pub fn draft_of(path: &Path) -> PathBuf {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    draft.into()
}

/// Gives a file or a directory another name on the same file system, and replaces what has it. Blocks.
///
/// With [`Durable::Content`] the directory that is renamed, or the file, is synced before; with [`Durable::Yes`] also the
/// directory of the new name.
///
/// # Errors
/// Those of rename(2) and fsync(2); after one of the latter the name may have changed.
pub fn rename(from: &Path, to: &Path, durable: Durable) -> io::Result<()> {
    if durable != Durable::No {
        File::open(from)?.sync_all()?;
    }
    fs::rename(from, to)?;
    if durable == Durable::Yes {
        sync_dir(parent(to))?;
    }
    Ok(())
}

/// Writes the names in a directory to disk. Blocks.
///
/// # Errors
/// Those of open(2) and fsync(2).
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The directory of a path; `.` for a bare name, and `/` for itself.
#[must_use]
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// The result of a call on something that need not exist: `None` if it does not.
///
/// # Errors
/// All others than `NotFound`.
pub fn if_present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

// === impl ReplaceError ===

impl std::fmt::Display for ReplaceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot {} {}", self.doing, self.path.display())
    }
}

impl std::error::Error for ReplaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<ReplaceError> for io::Error {
    /// The cause, of its kind, for callers that name the file themselves.
    fn from(error: ReplaceError) -> Self {
        error.source
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn file_is_replaced_as_a_whole_and_its_former_one_stays_for_who_has_it_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("name.toml");
        let mut seen = Vec::new();
        for (text, durable) in [
            ("one", Durable::No),
            ("two", Durable::Content),
            ("three", Durable::Yes),
        ] {
            let former = File::open(&path).ok();
            let drafted =
                || seen.push(fs::read_to_string(dir.path().join("name.toml.new")).unwrap());
            replace(&path, text.as_bytes(), 0o640, durable, drafted).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(mode_of(&path), 0o640);
            assert!(former.is_none_or(|former| former.metadata().unwrap().nlink() == 0));
            assert!(!draft_of(&path).exists());
        }
        assert_eq!(seen, ["one", "two", "three"]);
    }

    #[test]
    fn durable_file_has_its_name_only_once_it_is_synced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ranges");
        let write = |text: &[u8], durable, sync: &dyn Fn(&File) -> io::Result<()>| {
            replace_with(&path, text, 0o600, durable, sync, || {}).map(drop)
        };
        write(b"one", Durable::No, &|_| panic!("it is not asked for")).unwrap();
        for durable in [Durable::Content, Durable::Yes] {
            let synced = |file: &File| {
                assert_eq!(
                    fs::read(&path)?.len(),
                    3,
                    "a power cut here leaves the old file"
                );
                assert_eq!(file.metadata()?.len(), 5);
                Ok(())
            };
            write(b"three", durable, &synced).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"three");
            let full = |_: &File| Err(io::ErrorKind::StorageFull.into());
            let failed = write(b"four", durable, &full).unwrap_err();
            assert_eq!(
                (failed.doing, failed.source.kind()),
                ("write", io::ErrorKind::StorageFull)
            );
            assert_eq!(fs::read(&path).unwrap(), b"three");
            assert!(!draft_of(&path).exists());
            write(b"one", Durable::No, &|_| Ok(())).unwrap();
        }
    }

    #[test]
    fn returned_file_can_be_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut file = replace(&path, b"a", 0o600, Durable::No, || {}).unwrap();
        file.write_all(b"b").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"ab");
    }

    #[test]
    fn draft_that_a_kill_has_left_is_removed_also_if_it_is_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("name");
        let other = dir.path().join("other");
        fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, draft_of(&path)).unwrap();
        replace(&path, b"new", 0o600, Durable::No, || {}).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read(&other).unwrap(), b"other");
    }

    #[test]
    fn failure_leaves_the_file_and_no_draft_and_names_what_failed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("name");
        fs::create_dir(&path).unwrap();
        let error = replace(&path, b"new", 0o600, Durable::Yes, || {}).unwrap_err();
        assert_eq!((error.doing, &error.path), ("replace", &path));
        assert!(path.is_dir() && !draft_of(&path).exists());
        let missing = dir.path().join("none/name");
        let error = replace(&missing, b"new", 0o600, Durable::No, || {}).unwrap_err();
        assert_eq!(error.doing, "write");
        assert_eq!(
            error.to_string(),
            format!("cannot write {}", draft_of(&missing).display())
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn directories_and_files_are_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("a")).unwrap();
        fs::write(at("f"), "f").unwrap();
        rename(&at("a"), &at("b"), Durable::Yes).unwrap();
        rename(&at("f"), &at("b/f"), Durable::Content).unwrap();
        assert_eq!(fs::read(at("b/f")).unwrap(), b"f");
        let gone = rename(&at("a"), &at("c"), Durable::No);
        assert!(matches!(if_present(gone), Ok(None)));
        assert_eq!(
            if_present(rename(&at("b/f"), &at("b/f/g"), Durable::No))
                .unwrap_err()
                .kind(),
            io::ErrorKind::NotADirectory
        );
    }

    #[test]
    fn every_path_has_a_directory() {
        for (path, dir) in [
            ("/a/b", "/a"),
            ("/a", "/"),
            ("/", "/"),
            ("a", "."),
            ("a/b", "a"),
        ] {
            assert_eq!(parent(Path::new(path)), Path::new(dir), "{path}");
        }
    }
}
