//! Labelling a tree. The label is an attribute that every kernel stores for root, so that no node with SELinux is needed.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use proptest::prelude::*;
use rustix::fs::{
    CWD, FileType, Mode, OFlags, XattrFlags, lgetxattr, lsetxattr, makedev, mknodat, openat,
};
use switchyard_tree::{Cancel, Error, Label, RelabelReport, relabel};

use crate::{build, makes, snapshot};

const ATTRIBUTE: &str = "trusted.label";
const LABEL: Label<'static> = Label::of(ATTRIBUTE, "system_u:object_r:container_file_t:s0:c1,c2");

fn label_all(top: &Path, cancel: &Cancel) -> Result<RelabelReport, Error> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = openat(CWD, top, flags, Mode::empty()).expect("what a test makes can be used");
    relabel(top, LABEL, cancel)
}

fn changed(changed: u64) -> RelabelReport {
    RelabelReport {
        changed,
        unsupported: 0,
    }
}

/// The label of a file or symlink; empty if it has none.
fn label_of(path: &Path) -> String {
    let mut value = vec![0; 100];
    let length = lgetxattr(path, ATTRIBUTE, &mut value[..]).unwrap_or_default();
    value.truncate(length);
    String::from_utf8(value).expect("a test has written it")
}

/// Runs `work` on a thread in a mount namespace of its own, which ends with it.
fn with_own_mounts<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let run = move || {
            let none = None::<&str>;
            unshare(CloneFlags::CLONE_NEWNS).expect("tests run as root");
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
                .expect("tests run as root");
            work()
        };
        scope.spawn(run).join().expect("the thread has not failed")
    })
}

fn mount_new(kind: &str, at: &Path, flags: MsFlags) {
    mount(Some(kind), at, Some(kind), flags, None::<&str>).expect("tests run as root");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_entry_gets_the_label_and_nothing_else_changes(tree in makes()) {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        build(&top, &tree);
        let before = snapshot(&top);
        label_all(&top, &Cancel::default()).unwrap();
        prop_assert_eq!(&snapshot(&top), &before);
        for path in before.keys() {
            prop_assert_eq!(label_of(&top.join(path)), "system_u:object_r:container_file_t:s0:c1,c2");
        }
        prop_assert_eq!(label_all(&top, &Cancel::default()).unwrap(), changed(0));
    }
}

#[test]
fn each_kind_of_file_gets_the_label_itself() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::write(&outside, "x").unwrap();
    let make = |name: &str| {
        let path = dir.path().join(name);
        let special = |kind, device| {
            mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), device).unwrap();
        };
        match name {
            "file" => fs::write(&path, "x").unwrap(),
            "directory" => fs::create_dir(&path).unwrap(),
            "link" => symlink(&outside, &path).unwrap(),
            "link to nothing" => symlink("/nowhere/at/all", &path).unwrap(),
            "fifo" => special(FileType::Fifo, 0),
            "socket" => special(FileType::Socket, 0),
            _ => special(FileType::CharacterDevice, makedev(1, 3)),
        }
        path
    };
    for name in [
        "file",
        "directory",
        "link",
        "link to nothing",
        "fifo",
        "socket",
        "device",
    ] {
        let path = make(name);
        for expected in [1, 0] {
            let done = label_all(&path, &Cancel::default()).unwrap();
            assert_eq!(done, changed(expected), "{name}");
        }
        assert!(!label_of(&path).is_empty(), "{name}");
    }
    assert_eq!(label_of(&outside), "");
}

#[test]
fn files_with_the_label_are_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    let set = |name: &str, value: &[u8]| {
        lsetxattr(dir.path().join(name), ATTRIBUTE, value, XattrFlags::empty()).unwrap();
    };
    // As the kernel returns it, with its end; another one; and one that is longer.
    set("a", b"system_u:object_r:container_file_t:s0:c1,c2\0");
    set("b", b"system_u:object_r:container_file_t:s0");
    set("c", b"system_u:object_r:container_file_t:s0:c1,c2,c3");
    let done = label_all(dir.path(), &Cancel::default()).unwrap();
    assert_eq!(done, changed(3), "the directory itself, b and c");
}

#[test]
fn a_walk_that_was_ended_is_continued_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    // Deeper than descriptors are kept open.
    let mut deepest = dir.path().to_path_buf();
    for level in 0..40 {
        deepest.push(format!("d{level}"));
        fs::create_dir(&deepest).unwrap();
        fs::write(deepest.with_file_name(format!("beside-{level}")), "x").unwrap();
    }
    let most = [5, 25, 60];
    for entries in most {
        let ended = label_all(dir.path(), &Cancel::default().after(entries)).unwrap_err();
        assert!(matches!(ended, Error::Cancelled), "{ended}");
    }
    let last = label_all(dir.path(), &Cancel::default()).unwrap();
    assert!(last.changed > 0 && last.changed < 81, "{last:?}");
    assert!(!label_of(&deepest).is_empty() && !label_of(&dir.path().join("beside-0")).is_empty());
    assert_eq!(
        label_all(dir.path(), &Cancel::default()).unwrap(),
        changed(0)
    );
}

#[test]
fn what_is_mounted_in_a_tree_keeps_its_labels() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    let kept = dir.path().join("kept");
    fs::create_dir_all(top.join("bind")).unwrap();
    fs::create_dir(top.join("other")).unwrap();
    fs::write(top.join("file"), "x").unwrap();
    fs::write(&kept, "kept").unwrap();
    let labels = with_own_mounts(|| {
        let none = None::<&str>;
        mount(
            Some(dir.path()),
            &top.join("bind"),
            none,
            MsFlags::MS_BIND,
            none,
        )
        .unwrap();
        mount(Some(&kept), &top.join("file"), none, MsFlags::MS_BIND, none).unwrap();
        mount_new("tmpfs", &top.join("other"), MsFlags::empty());
        fs::write(top.join("other/file"), "x").unwrap();
        let done = label_all(&top, &Cancel::default()).unwrap();
        (
            done,
            label_of(&top.join("bind")),
            label_of(&top.join("other")),
        )
    });
    assert_eq!(labels, (changed(1), String::new(), String::new()));
    assert_eq!(
        (label_of(&kept), label_of(dir.path())),
        (String::new(), String::new())
    );
}

#[test]
fn file_systems_that_store_no_label_or_are_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    with_own_mounts(|| {
        mount_new("ramfs", at, MsFlags::empty());
        fs::write(at.join("file"), "x").unwrap();
        let done = label_all(at, &Cancel::default()).unwrap();
        let unsupported = RelabelReport {
            changed: 0,
            unsupported: 1,
        };
        assert_eq!(done, unsupported, "the rest of it is not looked at");

        mount_new("tmpfs", at, MsFlags::empty());
        fs::write(at.join("file"), "x").unwrap();
        label_all(at, &Cancel::default()).unwrap();
        make_read_only(at);
        let done = label_all(at, &Cancel::default()).unwrap();
        assert_eq!(done, changed(0), "a label that is there is not written");

        let other = Label::of(ATTRIBUTE, "another");
        let top = openat(CWD, at, OFlags::PATH, Mode::empty()).unwrap();
        let refused = relabel(top, other, &Cancel::default()).unwrap_err();
        let Error::Io { source, .. } = &refused else {
            panic!("{refused}");
        };
        assert_eq!(source.kind(), io::ErrorKind::ReadOnlyFilesystem);
    });
}

/// Makes the mount at `at` read-only.
fn make_read_only(at: &Path) {
    let none = None::<&str>;
    mount(
        none,
        at,
        none,
        MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY,
        none,
    )
    .expect("tests run as root");
}

#[test]
fn nothing_outside_gets_the_label_while_directories_and_links_change_places() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    let outside = dir.path().join("outside");
    fs::create_dir_all(outside.join("below")).unwrap();
    fs::write(outside.join("below/file"), "x").unwrap();
    fs::create_dir_all(top.join("place/below")).unwrap();
    let spare: PathBuf = dir.path().join("spare");
    symlink(&outside, &spare).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let held = dir.path().join("held");
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::rename(top.join("place"), &held);
                let _ = fs::rename(&spare, top.join("place"));
                let _ = fs::rename(top.join("place"), &spare);
                let _ = fs::rename(&held, top.join("place"));
            }
        });
        for _ in 0..300 {
            match label_all(&top, &Cancel::default()) {
                Ok(_) | Err(Error::Changing) => {}
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{error}: {error:?}");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for path in ["", "below", "below/file"] {
        assert_eq!(label_of(&outside.join(path)), "", "{path}");
    }
}
