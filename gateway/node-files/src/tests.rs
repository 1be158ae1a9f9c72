//! Files that are read, and files that are refused without waiting.

use std::os::unix::fs::symlink;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[test]
fn regular_file_is_read_up_to_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "12345").unwrap();
    assert_eq!(read(&file, 5).unwrap(), b"12345");
    let error = read(&file, 4).unwrap_err();
    assert!(matches!(error, ReadError::TooLarge { max: 4 }), "{error}");
    assert_eq!(error.to_string(), "it is longer than 4 bytes");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::FileTooLarge);
    // A file without a size of its own.
    assert!(
        !read(Path::new("/proc/self/cmdline"), 1 << 20)
            .unwrap()
            .is_empty()
    );
    assert!(matches!(
        read(Path::new("/proc/self/cmdline"), 1),
        Err(ReadError::TooLarge { max: 1 })
    ));
}

#[test]
fn what_is_no_regular_file_is_refused_without_waiting_and_named() {
    let dir = tempfile::tempdir().unwrap();
    // Without a writer, an ordinary open would wait for ever.
    fifo(&dir.path().join("fifo"));
    symlink("fifo", dir.path().join("link-to-fifo")).unwrap();
    symlink("/dev/zero", dir.path().join("endless")).unwrap();
    for (name, found) in [
        ("fifo", "a FIFO"),
        ("link-to-fifo", "a FIFO"),
        ("endless", "a character device"),
        (".", "a directory"),
    ] {
        let error = read(&dir.path().join(name), 5).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("it is no regular file but {found}"),
            "{name}"
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn missing_file_is_told_from_one_that_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = read(&dir.path().join("missing"), 5).unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    assert!(!read(dir.path(), 5).unwrap_err().is_not_found());
}

#[test]
fn links_are_followed_unless_it_is_not_wanted() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "text").unwrap();
    let link = dir.path().join("link");
    symlink("file", &link).unwrap();
    assert_eq!(read_text(&link, 4).unwrap(), "text");
    let error = io::Error::from(RegularFile::open_no_link(&link).unwrap_err());
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::LOOP.raw_os_error())
    );
    fs::write(dir.path().join("file"), [0xff]).unwrap();
    assert!(matches!(read_text(&link, 4), Err(ReadError::NotText)));
}

#[test]
fn open_file_stays_the_one_that_was_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "first").unwrap();
    let opened = RegularFile::open(&path).unwrap();
    assert_eq!(opened.metadata().len(), 5);
    fs::remove_file(&path).unwrap();
    fifo(&path);
    assert_eq!(opened.read(5).unwrap(), b"first");
}

#[test]
fn directory_is_listed_in_order_up_to_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b", "c", "a"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    let expected: Vec<_> = ["a", "b", "c"].map(|name| dir.path().join(name)).into();
    assert_eq!(list(dir.path(), 3).unwrap(), expected);
    let error = list(dir.path(), 2).unwrap_err();
    assert_eq!(error.to_string(), "it has more than 2 entries");
    assert!(
        list(&dir.path().join("missing"), 2)
            .unwrap_err()
            .is_not_found()
    );
}
