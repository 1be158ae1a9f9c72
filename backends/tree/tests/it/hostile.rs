//! Trees that are made to crash or mislead programs that walk them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
use switchyard_tree::{Budget, Cancel, Error, copy, open, remove};

use crate::{chain, snapshot};

/// Deeper than a recursion within the stack could go (52 bytes for each level), and than the process may have descriptors. The kernel takes
/// a time that grows with the square of the depth: 56 s for 30,000 levels.
const DEEP: usize = 5_000;
/// The environment variable that marks the process with few descriptors.
const FEW: &str = "SWITCHYARD_TREE_FEW_DESCRIPTORS";

/// Runs a test once more, in a process that may open few descriptors; `true` in that process.
fn with_few_descriptors(test: &str) -> bool {
    if std::env::var_os(FEW).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("what a test makes can be used");
    let script = "ulimit -n 96 && exec \"$0\" --exact \"$1\"";
    let run = Command::new("sh")
        .args(["-c", script])
        .arg(program)
        .arg(test)
        .env(FEW, "1")
        .output()
        .expect("what a test makes can be used");
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && output.contains("1 passed"),
        "{output} {}",
        String::from_utf8_lossy(&run.stderr)
    );
    false
}

/// Runs `work` on a thread with a stack too small for a recursion.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(work)
        .expect("what a test makes can be used")
        .join()
        .expect("what a test makes can be used");
}

#[test]
fn very_deep_tree_is_copied_and_removed_with_few_descriptors() {
    if !with_few_descriptors("hostile::very_deep_tree_is_copied_and_removed_with_few_descriptors") {
        return;
    }
    on_a_small_stack(|| {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        let to = dir.path().join("to");
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        let deepest = chain(&from, DEEP);
        let flags = OFlags::CREATE | OFlags::WRONLY;
        openat(&deepest, "last", flags, Mode::from_raw_mode(0o600)).unwrap();
        let mut budget = Budget::new(1 << 40, 1 << 30);
        copy(
            open(&from).unwrap(),
            open(&to).unwrap(),
            &mut budget,
            &Cancel::default(),
        )
        .unwrap();

        let mut below = open(&to).unwrap();
        for _ in 0..DEEP {
            below = openat(
                &below,
                "d",
                OFlags::RDONLY | OFlags::DIRECTORY,
                Mode::empty(),
            )
            .unwrap();
        }
        statat(&below, "last", AtFlags::empty()).unwrap();
        for tree in [&from, &to] {
            remove(tree, &Cancel::default()).unwrap();
            assert!(!tree.exists());
        }
    });
}

#[test]
fn many_deep_chains_are_copied_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let to = dir.path().join("to");
    fs::create_dir(&to).unwrap();
    for number in 0..60 {
        let top = from.join(format!("wide-{number}"));
        fs::create_dir_all(&top).unwrap();
        let mut path = top;
        for level in 0..number {
            fs::write(path.join("file"), format!("{number} {level}")).unwrap();
            path.push("d");
            fs::create_dir(&path).unwrap();
            fs::create_dir(path.join("empty")).unwrap();
        }
        fs::write(from.join(format!("file-{number}")), "x").unwrap();
    }
    let mut budget = Budget::new(1 << 40, 1 << 30);
    copy(
        open(&from).unwrap(),
        open(&to).unwrap(),
        &mut budget,
        &Cancel::default(),
    )
    .unwrap();
    assert_eq!(snapshot(&to), snapshot(&from));
    remove(&to, &Cancel::default()).unwrap();
    assert!(!to.exists() && from.join("wide-59/d/d/file").exists());
}

/// Changes a tree as fast as it can: creates, moves and removes directories, and replaces them by symlinks.
fn disturb(tree: &Path, outside: &Path, stop: &AtomicBool) {
    let mut number = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let one = tree.join(format!("{}", number % 7));
        let other = tree.join(format!("{}", number % 5));
        // Each of these may fail, since the tree is being removed.
        let _ = fs::create_dir_all(one.join("a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t"));
        let _ = fs::write(one.join("a/b/c/file"), "x");
        let _ = fs::rename(one.join("a/b/c"), other.join("moved"));
        let _ = fs::rename(one.join("a/b"), tree.join("up"));
        let _ = fs::rename(tree.join("up"), one.join("a/down"));
        let _ = symlink(outside, one.join("a/b"));
        let _ = symlink(outside, tree.join("up"));
    }
}

#[test]
fn concurrently_changed_tree_is_removed_or_reported_without_escaping() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    let outside = dir.path().join("outside");
    fs::create_dir_all(outside.join("kept/below")).unwrap();
    fs::write(outside.join("kept/below/file"), "kept").unwrap();
    fs::create_dir(&tree).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| disturb(&tree, &outside, &stop));
        }
        for _ in 0..20 {
            match remove(&tree, &Cancel::default()) {
                Ok(()) | Err(Error::Changing) => {}
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{error}: {error:?}");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    remove(&tree, &Cancel::default()).unwrap();
    assert!(!tree.exists());
    // The disturbing thread itself creates entries there through the symlinks, but none of them with this
    // name.
    assert_eq!(
        fs::read_to_string(outside.join("kept/below/file")).unwrap(),
        "kept"
    );
}

#[test]
fn mounts_in_a_tree_are_neither_emptied_nor_copied() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    let kept = dir.path().join("kept");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "kept").unwrap();
    for point in ["bind", "other"] {
        fs::create_dir_all(tree.join(point).join("below")).unwrap();
    }
    // The mounts are in a mount namespace of this thread, and end with it.
    let at = tree.clone();
    let of = kept.clone();
    let seen = thread::spawn(move || {
        let none = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        // A directory of the same file system, and another file system.
        mount(Some(&of), &at.join("bind"), none, MsFlags::MS_BIND, none).unwrap();
        mount(
            Some("tmpfs"),
            &at.join("other"),
            Some("tmpfs"),
            MsFlags::empty(),
            none,
        )
        .unwrap();
        fs::write(at.join("other/file"), "kept").unwrap();
        let to = at.with_file_name("to");
        fs::create_dir(&to).unwrap();
        let mut budget = Budget::new(1 << 30, 1 << 20);
        let copied = copy(
            open(&at).unwrap(),
            open(&to).unwrap(),
            &mut budget,
            &Cancel::default(),
        );
        let removed = remove(&at, &Cancel::default());
        (
            copied.unwrap_err(),
            removed.unwrap_err(),
            at.join("other/file").exists(),
            at.join("bind/file").exists(),
        )
    });
    let (copied, removed, other, bind) = seen.join().unwrap();
    assert!(matches!(copied, Error::Mounted(_)), "{copied}");
    assert!(matches!(removed, Error::Mounted(_)), "{removed}");
    assert!(other && bind && kept.join("file").exists());
    remove(&tree, &Cancel::default()).unwrap();
    assert!(!tree.exists() && kept.join("file").exists());
}
