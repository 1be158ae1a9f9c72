//! Copying a tree.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, chown, symlink};
use std::path::Path;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, lsetxattr, makedev, mknodat};
use switchyard_tree::{Budget, Cancel, CopyReport, Error, copy, copy_durably, open, open_below};

use crate::{build, makes, snapshot};

fn copy_all(from: &Path, to: &Path, budget: &mut Budget) -> Result<CopyReport, Error> {
    fs::create_dir(to).expect("what a test makes can be used");
    copy(
        open(from).expect("what a test makes can be used"),
        open(to).expect("what a test makes can be used"),
        budget,
        &Cancel::default(),
    )
}

fn plenty() -> Budget {
    Budget::new(1 << 40, 1 << 40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn copy_equals_the_source_tree(tree in makes()) {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
let to = dir.path().join("to");
        build(&from, &tree);
        prop_assert_eq!(copy_all(&from, &to, &mut plenty()).unwrap(), CopyReport::default());
        prop_assert_eq!(snapshot(&to), snapshot(&from));
    }
}

#[test]
fn durable_copy_syncs_each_of_its_files_and_directories() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let to = dir.path().join("to");
    fs::create_dir_all(from.join("sub/empty")).unwrap();
    // More files than are kept open.
    for number in 0..150 {
        fs::write(from.join("sub").join(number.to_string()), "text").unwrap();
    }
    symlink("sub/0", from.join("link")).unwrap();
    fs::create_dir(&to).unwrap();
    let copied = copy_durably(
        open(&from).unwrap(),
        open(&to).unwrap(),
        &mut plenty(),
        &Cancel::default(),
    )
    .unwrap();
    assert_eq!(
        copied,
        CopyReport {
            refused_attributes: 0,
            synced: 150 + 3
        }
    );
    assert_eq!(snapshot(&to), snapshot(&from));
}

#[test]
fn owners_xattrs_devices_and_hard_links_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let to = dir.path().join("to");
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("file"), "text").unwrap();
    chown(from.join("file"), Some(1000), Some(33)).unwrap();
    symlink("nowhere", from.join("link")).unwrap();
    // The names of the file are in different directories, so that the first to be copied may be any of them.
    fs::hard_link(from.join("file"), from.join("sub/name")).unwrap();
    fs::hard_link(from.join("file"), from.join(".links")).unwrap();
    let null = makedev(1, 3);
    mknodat(
        CWD,
        from.join("null"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        null,
    )
    .unwrap();
    mknodat(
        CWD,
        from.join("fifo"),
        FileType::Fifo,
        Mode::from_raw_mode(0o620),
        0,
    )
    .unwrap();
    // cap_net_bind_service, as setcap writes it.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let set = [
        ("file", "security.capability", &capability[..]),
        ("file", "user.note", b"of a file"),
        ("sub", "user.note", b"of a directory"),
        ("link", "trusted.note", b"of a link"),
        ("null", "trusted.note", b"of a device"),
    ];
    for (path, name, value) in set {
        lsetxattr(from.join(path), name, value, XattrFlags::empty()).unwrap();
    }
    lsetxattr(
        from.join("sub"),
        "trusted.overlay.opaque",
        b"y",
        XattrFlags::empty(),
    )
    .unwrap();
    assert_eq!(
        copy_all(&from, &to, &mut plenty()).unwrap(),
        CopyReport::default()
    );
    assert_eq!(snapshot(&to), snapshot(&from));
    let get = |path: &str, name: &str| {
        let mut value = vec![0; 100];
        let length = lgetxattr(to.join(path), name, &mut value[..])?;
        value.truncate(length);
        Ok::<_, rustix::io::Errno>(value)
    };
    for (path, name, value) in set {
        assert_eq!(get(path, name).unwrap(), value, "{path}: {name}");
    }
    assert!(
        get("sub", "trusted.overlay.opaque").is_err(),
        "it is the overlay's own"
    );
    assert_eq!(fs::metadata(to.join("file")).unwrap().nlink(), 3);
}

#[test]
fn sparse_files_stay_sparse() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let to = dir.path().join("to");
    fs::create_dir(&from).unwrap();
    let file = File::create(from.join("sparse")).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(b"middle", 3 << 30).unwrap();
    file.set_len(8 << 30).unwrap();
    copy_all(&from, &to, &mut Budget::new(64 << 20, 10)).unwrap();
    let data = fs::metadata(to.join("sparse")).unwrap();
    assert_eq!(data.len(), 8 << 30);
    assert!(data.blocks() * 512 < 1 << 20, "{} blocks", data.blocks());
    let copied = File::open(to.join("sparse")).unwrap();
    let mut read = [0; 6];
    copied.read_exact_at(&mut read, 3 << 30).unwrap();
    assert_eq!(&read, b"middle");
}

#[test]
fn copy_beyond_its_limit_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    for number in 0..10 {
        fs::write(from.join(number.to_string()), [1; 5000]).unwrap();
    }
    let refused = copy_all(&from, &dir.path().join("a"), &mut Budget::new(1 << 30, 9)).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::TooLarge {
                unit: "inodes",
                most: 9
            }
        ),
        "{refused}"
    );
    let refused =
        copy_all(&from, &dir.path().join("b"), &mut Budget::new(75_000, 100)).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::TooLarge {
                unit: "bytes",
                most: 75_000
            }
        ),
        "{refused}"
    );
    assert!(refused.is_full());
    copy_all(
        &from,
        &dir.path().join("c"),
        &mut Budget::new(10 * 8192, 10),
    )
    .unwrap();
}

#[test]
fn cancelled_copy_stops() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let to = dir.path().join("to");
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::create_dir(&to).unwrap();
    let cancel = Cancel::default();
    cancel.cancel();
    let stopped = copy(
        open(&from).unwrap(),
        open(&to).unwrap(),
        &mut plenty(),
        &cancel,
    );
    assert!(matches!(stopped, Err(Error::Cancelled)));
    assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
}

#[test]
fn copy_does_not_follow_links_to_other_directories() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("image/data")).unwrap();
    fs::create_dir(dir.path().join("secret")).unwrap();
    symlink("../secret", dir.path().join("image/link")).unwrap();
    fs::write(dir.path().join("image/file"), "x").unwrap();
    let image = open(&dir.path().join("image")).unwrap();
    assert!(open_below(&image, Path::new("/data/.")).unwrap().is_some());
    for none in ["/link", "/none", "/file", "/file/below", "/link/.."] {
        let found = open_below(&image, Path::new(none));
        assert!(
            matches!(found, Ok(None)) || none.ends_with(".."),
            "{none}: {found:?}"
        );
    }
    assert!(open_below(&image, Path::new("/../secret")).is_err());
}
