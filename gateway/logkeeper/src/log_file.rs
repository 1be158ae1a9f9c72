//! Opens the file of a log. Errors name the log, and what is in its place.

use std::fs::{DirBuilder, File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

/// A failed call, with the log that it was for.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} log {path}: {source}")]
struct CallError {
    action: &'static str,
    path: String,
    source: io::Error,
}

/// Opens a log for appending, and creates its directories. Anything but a regular file is refused without
/// blocking. A symbolic link as its last component is not followed: otherwise, whoever can write to the
/// directory could make root write to any file.
///
/// # Errors
/// `InvalidInput` if what is at the path is no regular file, or what is above it is no directory; otherwise of the kind of
/// the call that failed ([`errno`]).
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(parent);
        made.map_err(|error| match obstacle(parent) {
            Some(what) => unusable(path, &format!("{what}, not a directory")),
            None => call_error("create the directory of", path, error),
        })?;
    }
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(flags.bits())
        .open(path);
    let found = match &opened {
        Ok(file) => Some(
            file.metadata()
                .map_err(|error| call_error("look at", path, error))?,
        ),
        Err(_) => path.symlink_metadata().ok(),
    };
    let kind = found
        .map(|metadata| metadata.file_type())
        .filter(|kind| !kind.is_file());
    match (opened, kind) {
        (_, Some(kind)) if kind.is_symlink() => Err(unusable(
            path,
            "it is a symbolic link, which is never followed for a log",
        )),
        (_, Some(kind)) => Err(unusable(
            path,
            &format!("it is {}, not a regular file", name(kind)),
        )),
        (Ok(file), None) => Ok(file),
        (Err(error), None) => Err(call_error("open", path, error)),
    }
}

/// The operating system's code for the call that failed, if one did.
pub(crate) fn errno(error: &io::Error) -> Option<i32> {
    let of_call = || {
        error
            .get_ref()?
            .downcast_ref::<CallError>()?
            .source
            .raw_os_error()
    };
    error.raw_os_error().or_else(of_call)
}

/// Describes the file in the place of a directory that cannot be created, if there is one.
fn obstacle(dir: &Path) -> Option<String> {
    for place in dir.ancestors() {
        match place.metadata() {
            Ok(found) if found.is_dir() => return None,
            Ok(found) => {
                return Some(format!(
                    "{} is {}",
                    place.display(),
                    name(found.file_type())
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && place.is_symlink() => {
                return Some(format!("{} is a symbolic link to nothing", place.display()));
            }
            Err(_) => {}
        }
    }
    None
}

/// A type of files, in a sentence.
fn name(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else {
        "a file"
    }
}

fn unusable(path: &Path, why: &str) -> io::Error {
    let path = path.display();
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("log {path} cannot be written: {why}"),
    )
}

fn call_error(action: &'static str, path: &Path, source: io::Error) -> io::Error {
    io::Error::new(
        source.kind(),
        CallError {
            action,
            path: path.display().to_string(),
            source,
        },
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use nix::errno::Errno;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// The text of the refusal of a log after the path.
    #[track_caller]
    fn refused(path: &Path) -> String {
        let error = open(path).unwrap_err();
        assert_eq!(
            (error.kind(), errno(&error)),
            (io::ErrorKind::InvalidInput, None),
            "{error}"
        );
        let text = error.to_string();
        text.strip_prefix(&format!("log {} cannot be written: ", path.display()))
            .expect(&text)
            .to_owned()
    }

    #[test]
    fn what_is_no_regular_file_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        assert_eq!(refused(&at("fifo")), "it is a FIFO, not a regular file");
        // One that has a reader can be opened.
        let _reader = OpenOptions::new()
            .read(true)
            .write(true)
            .open(at("fifo"))
            .unwrap();
        assert_eq!(refused(&at("fifo")), "it is a FIFO, not a regular file");
        let _listener = UnixListener::bind(at("socket")).unwrap();
        assert_eq!(refused(&at("socket")), "it is a socket, not a regular file");
        fs::create_dir(at("directory")).unwrap();
        assert_eq!(
            refused(&at("directory")),
            "it is a directory, not a regular file"
        );
        assert_eq!(
            refused(Path::new("/dev/null")),
            "it is a device, not a regular file"
        );
        symlink(at("absent"), at("link")).unwrap();
        assert_eq!(
            refused(&at("link")),
            "it is a symbolic link, which is never followed for a log"
        );
        assert!(!at("absent").exists());
    }

    #[test]
    fn what_is_no_directory_above_a_log_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        fs::write(at("file"), "").unwrap();
        for log in ["file/0.log", "file/app/0.log"] {
            let expected = format!("{} is a file, not a directory", at("file").display());
            assert_eq!(refused(&at(log)), expected);
        }
        symlink(at("absent"), at("link")).unwrap();
        let expected = format!(
            "{} is a symbolic link to nothing, not a directory",
            at("link").display()
        );
        assert_eq!(refused(&at("link/0.log")), expected);
    }

    #[test]
    fn failed_call_names_the_log_and_keeps_its_code() {
        let long = Path::new("/tmp").join("x".repeat(300));
        let error = open(&long).unwrap_err();
        assert_eq!(errno(&error), Some(Errno::ENAMETOOLONG as i32));
        assert!(
            error
                .to_string()
                .starts_with(&format!("cannot open log {}: ", long.display())),
            "{error}"
        );
        assert_eq!(errno(&io::Error::from_raw_os_error(28)), Some(28));
        assert_eq!(errno(&io::ErrorKind::WriteZero.into()), None);
    }
}
