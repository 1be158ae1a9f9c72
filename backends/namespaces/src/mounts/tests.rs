//! Mounts below a directory, and unmounting, on the real kernel.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use super::*;
use crate::testing::in_private_mounts;

fn tmpfs(at: &Path) {
    fs::create_dir_all(at).unwrap();
    mount(
        Some("tmpfs"),
        at,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=64k"),
    )
    .unwrap();
}

fn bind(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    mount(
        Some(from),
        to,
        None::<&Path>,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        None::<&Path>,
    )
    .unwrap();
}

fn bind_file(from: &Path, to: &Path) {
    mount(
        Some(from),
        to,
        None::<&Path>,
        MsFlags::MS_BIND,
        None::<&Path>,
    )
    .unwrap();
}

fn change(at: &Path, flags: MsFlags) {
    mount(None::<&Path>, at, None::<&Path>, flags, None::<&Path>).unwrap();
}

#[test]
fn mount_points_with_escaped_names_are_found() {
    in_private_mounts(|temp| {
        let odd = temp.join(OsStr::from_bytes(b"a b\tc\nd\\e#\xff"));
        tmpfs(&odd);
        tmpfs(&odd.join("in"));
        tmpfs(&temp.join("a"));
        assert_eq!(
            mount_points_under(&odd).unwrap(),
            [odd.clone(), odd.join("in")]
        );
        assert_eq!(mount_points_under(temp).unwrap().len(), 3);
        assert!(
            mount_points_under(&temp.join("missing/deep"))
                .unwrap()
                .is_empty()
        );
    });
}

#[test]
fn unmount_tree_removes_all_and_is_idempotent() {
    in_private_mounts(|temp| {
        let dir = temp.join("tree");
        for sub in ["", "x", "x/y", "x/y", "z", ""] {
            tmpfs(&dir.join(sub));
        }
        tmpfs(&temp.join("tree-neighbour"));
        unmount_tree(&dir).unwrap();
        assert!(mount_points_under(&dir).unwrap().is_empty());
        assert_eq!(
            mount_points_under(temp).unwrap(),
            [temp.join("tree-neighbour")]
        );
        unmount_tree(&dir).unwrap();
        unmount_tree(&temp.join("missing/deep")).unwrap();
    });
}

/// Mounts something below a directory; what is returned is in use until it is dropped.
type Mounting = fn(&Path) -> Option<fs::File>;

/// Cases of mounts, and whether the directory is idle and found by a walk.
const MOUNTINGS: [(&str, Mounting, bool); 11] = [
    ("nothing", |_| None, true),
    (
        "a directory that is missing",
        |dir| {
            fs::remove_dir(dir).unwrap();
            None
        },
        true,
    ),
    (
        "the directory itself",
        |dir| {
            tmpfs(dir);
            None
        },
        true,
    ),
    (
        "several below it",
        |dir| {
            tmpfs(&dir.join("a"));
            tmpfs(&dir.join("b/c/d"));
            None
        },
        true,
    ),
    (
        "stacked on each other",
        |dir| {
            tmpfs(&dir.join("a"));
            tmpfs(&dir.join("a"));
            None
        },
        true,
    ),
    (
        "a file on a file",
        |dir| {
            fs::write(dir.join("a"), "").unwrap();
            fs::write(dir.join("b"), "").unwrap();
            bind_file(&dir.join("a"), &dir.join("b"));
            None
        },
        true,
    ),
    (
        "beside a link to a mount",
        |dir| {
            std::os::unix::fs::symlink("/proc", dir.join("link")).unwrap();
            tmpfs(&dir.join("a"));
            None
        },
        true,
    ),
    (
        "below another mount",
        |dir| {
            tmpfs(&dir.join("a"));
            tmpfs(&dir.join("a/b"));
            None
        },
        false,
    ),
    (
        "in use",
        |dir| {
            tmpfs(&dir.join("a"));
            Some(fs::File::create(dir.join("a/file")).unwrap())
        },
        false,
    ),
    (
        "among very many files",
        |dir| {
            (0..1000).for_each(|file| fs::write(dir.join(file.to_string()), "").unwrap());
            tmpfs(&dir.join("a"));
            None
        },
        false,
    ),
    (
        "in a deep directory",
        |dir| {
            tmpfs(&dir.join("a/".repeat(40)));
            None
        },
        false,
    ),
];

#[test]
fn what_is_idle_is_unmounted_without_the_table_and_what_is_busy_with_it() {
    in_private_mounts(|temp| {
        for (what, mounting, idle) in MOUNTINGS {
            let dir = temp.join("tree");
            fs::create_dir(&dir).unwrap();
            let in_use = mounting(&dir);
            assert_eq!(unmount_idle(&dir), idle, "{what}");
            unmount_tree(&dir).unwrap();
            assert!(mount_points_under(&dir).unwrap().is_empty(), "{what}");
            drop(in_use);
            let _ = fs::remove_dir_all(&dir);
        }
    });
}

#[test]
fn mount_points_are_told_from_what_is_on_the_same_file_system() {
    in_private_mounts(|temp| {
        let [mounted, bound, plain] = ["mounted", "bound", "plain"].map(|name| temp.join(name));
        tmpfs(&mounted);
        fs::create_dir_all(mounted.join("dir")).unwrap();
        fs::create_dir_all(&plain).unwrap();
        bind(&plain, &bound);
        std::os::unix::fs::symlink(&mounted, temp.join("link")).unwrap();
        fs::write(temp.join("file"), "").unwrap();
        for (path, expected) in [
            (mounted.clone(), true),
            (bound, true),
            (plain, false),
            (mounted.join("dir"), false),
            (temp.join("link"), false),
            (temp.join("file"), false),
            (temp.join("missing"), false),
        ] {
            assert_eq!(outermost::is_mount_point(&path), Some(expected), "{path:?}");
            assert_eq!(is_mount_point(&path).unwrap(), expected, "{path:?}");
        }
        // Only the table tells it of the root.
        assert_eq!(outermost::is_mount_point(Path::new("/")), None);
    });
}

#[test]
fn unmount_tree_does_not_follow_a_symlink() {
    in_private_mounts(|temp| {
        let target = temp.join("target");
        tmpfs(&target);
        let link = temp.join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        unmount_tree(&link).unwrap();
        detach(&link).unwrap();
        assert_eq!(mount_points_under(&target).unwrap(), [target]);
    });
}

#[test]
fn unmounting_a_shared_bind_keeps_its_source() {
    in_private_mounts(|temp| {
        let source = temp.join("source");
        let sandbox = temp.join("sandbox");
        tmpfs(&source);
        change(&source, MsFlags::MS_SHARED);
        tmpfs(&source.join("disk"));
        fs::write(source.join("disk/data"), "x").unwrap();
        bind(&source, &sandbox.join("volume"));
        assert!(sandbox.join("volume/disk/data").exists());

        unmount_tree(&sandbox).unwrap();
        assert!(mount_points_under(&sandbox).unwrap().is_empty());
        assert!(
            source.join("disk/data").exists(),
            "the disk must stay mounted where the host has it"
        );
    });
}

#[test]
fn held_source_is_mounted_although_its_path_was_replaced() {
    in_private_mounts(|temp| {
        let root = temp.join("root");
        let outside = temp.join("outside");
        let shown = temp.join("shown");
        for dir in [root.join("a/dir"), outside.join("dir"), shown.clone()] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(root.join("a/dir/ours"), "").unwrap();
        fs::write(root.join("a/file"), "ours").unwrap();
        fs::write(outside.join("file"), "theirs").unwrap();
        let dir = PathHandle::open_beneath(&root, Path::new("a/dir")).unwrap();
        let file = PathHandle::open_beneath(&root, Path::new("a/file")).unwrap();
        let all = PathHandle::open_beneath(&root, Path::new("")).unwrap();
        fs::rename(root.join("a"), root.join("b")).unwrap();
        std::os::unix::fs::symlink(&outside, root.join("a")).unwrap();
        dir.bind_mount_at(&shown.join("dir"), false).unwrap();
        file.bind_mount_at(&shown.join("file"), false).unwrap();
        all.bind_mount_at(&shown.join("all"), false).unwrap();
        assert!(shown.join("dir/ours").exists());
        assert_eq!(fs::read_to_string(shown.join("file")).unwrap(), "ours");
        assert!(shown.join("all/b/dir/ours").exists());
        unmount_tree(&shown).unwrap();
        assert!(mount_points_under(&shown).unwrap().is_empty());
        // A symlink that exists already is not followed either.
        let error = PathHandle::open_beneath(&root, Path::new("a/file")).unwrap_err();
        assert!(
            matches!(&error, Error::File { source, .. } if source.raw_os_error() == Some(libc::ELOOP)),
            "{error:?}"
        );
        for out in ["../outside", "/etc", "b/../../outside"] {
            assert!(
                matches!(
                    PathHandle::open_beneath(&root, Path::new(out)),
                    Err(Error::Invalid { .. })
                ),
                "{out}"
            );
        }
    });
}

#[test]
fn held_mount_propagation_follows_its_source() {
    in_private_mounts(|temp| {
        for shared in [false, true] {
            let source = temp.join(format!("source-{shared}"));
            let shown = temp.join(format!("shown-{shared}"));
            tmpfs(&source);
            change(&source, MsFlags::MS_SHARED);
            tmpfs(&source.join("before"));
            fs::create_dir_all(source.join("after")).unwrap();
            fs::create_dir_all(source.join("inside")).unwrap();
            fs::create_dir_all(&shown).unwrap();
            fs::write(source.join("before/disk"), "").unwrap();
            PathHandle::open_beneath(&source, Path::new(""))
                .unwrap()
                .bind_mount_at(&shown.join("0"), shared)
                .unwrap();
            assert!(shown.join("0/before/disk").exists());
            tmpfs(&source.join("after"));
            tmpfs(&shown.join("0/inside"));
            let mounts = mount_points_under(temp).unwrap();
            assert!(
                mounts.contains(&shown.join("0/after")),
                "it follows its source"
            );
            assert_eq!(mounts.contains(&source.join("inside")), shared);
            unmount_tree(&shown).unwrap();
            let left = mount_points_under(&source).unwrap();
            assert!(
                left.contains(&source.join("before")) && left.contains(&source.join("after")),
                "{left:?}"
            );
        }
    });
}
