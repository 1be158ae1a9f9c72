//! Removing a tree.

use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use switchyard_tree::{Cancel, Error, empty, open, remove};

use crate::{build, makes};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn removal_matches_the_standard_library(tree in makes()) {
        let dir = tempfile::tempdir().unwrap();
        let [ours, theirs, other] = ["ours", "theirs", "other"].map(|name| dir.path().join(name));
        for root in [&ours, &theirs, &other] {
            build(root, &tree);
        }
        let before = crate::snapshot(&other);
        fs::remove_dir_all(&theirs).unwrap();
        remove(&ours, &Cancel::default()).unwrap();
        prop_assert!(!ours.exists() && !theirs.exists());
        prop_assert_eq!(crate::snapshot(&other), before);
        // Removing it again succeeds.
        remove(&ours, &Cancel::default()).unwrap();
    }
}

#[test]
fn symlink_is_removed_but_not_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "x").unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    for link in ["tree/absolute", "top"] {
        symlink(&kept, dir.path().join(link)).unwrap();
    }
    symlink("../kept", dir.path().join("tree/relative")).unwrap();
    for path in ["tree", "top"] {
        remove(&dir.path().join(path), &Cancel::default()).unwrap();
        assert!(dir.path().join(path).symlink_metadata().is_err());
    }
    assert!(kept.join("file").exists());
}

#[test]
fn file_is_removed_and_path_below_a_file_is_already_gone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    remove(&file, &Cancel::default()).unwrap();
    assert!(!file.exists());
    remove(&dir.path().join("none/at/all"), &Cancel::default()).unwrap();
}

#[test]
fn directory_is_emptied_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
    fs::write(dir.path().join("a/file"), "x").unwrap();
    for _ in 0..2 {
        empty(open(dir.path()).unwrap(), &Cancel::default()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn removal_stops_at_its_entry_limit_and_can_be_continued() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    (0..100).for_each(|file| fs::write(tree.join(file.to_string()), "").unwrap());
    let cancel = Cancel::default();
    for _ in 0..2 {
        let before = fs::read_dir(&tree).unwrap().count();
        assert!(matches!(
            remove(&tree, &cancel.after(30)),
            Err(Error::Cancelled)
        ));
        let removed = before - fs::read_dir(&tree).unwrap().count();
        assert!((20..=30).contains(&removed), "{removed}");
    }
    let clone = cancel.after(1000);
    cancel.cancel();
    assert!(
        matches!(remove(&tree, &clone), Err(Error::Cancelled)),
        "it is the same flag"
    );
    remove(&tree, &Cancel::default().after(1000)).unwrap();
    assert!(!tree.exists());
}

#[test]
fn cancelled_removal_can_be_continued() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    let cancel = Cancel::default();
    cancel.cancel();
    assert!(matches!(remove(&tree, &cancel), Err(Error::Cancelled)));
    assert!(tree.join("file").exists());
    remove(&tree, &Cancel::default()).unwrap();
    assert!(!tree.exists());
}
