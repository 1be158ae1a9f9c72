//! Tests of the files of tasks, on the tmpfs for shared memory that each Linux has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nix::unistd::getegid;
use switchyard_core::ErrorKind;

use super::mount_model::MountModel;
use super::*;

fn file(content: &[u8], mode: u32) -> TaskFile {
    TaskFile {
        destination: "/run/secrets/x".into(),
        content: Arc::from(content),
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        mode,
    }
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

#[test]
fn files_have_their_content_and_mode_and_go_with_the_task() {
    let place = place();
    let (files, model) = MountModel::files(place.path().join("a/files"));
    let paths = files
        .write("t1", &[file(b"one", 0o444), file(b"", 0o4711)])
        .unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(fs::read(&paths[0]).unwrap(), b"one");
    assert_eq!((mode(&paths[0]), mode(&paths[1])), (0o444, 0o4711));
    assert_eq!(mode(paths[0].parent().unwrap()), 0o700);
    assert_eq!(mode(&place.path().join("a/files")), 0o700);
    // Another try.
    let again = files.write("t1", &[file(b"two", 0o400)]).unwrap();
    assert_eq!(
        (fs::read(&again[0]).unwrap(), paths[1].exists()),
        (b"two".to_vec(), false)
    );
    files.remove("t1").unwrap();
    files.remove("t1").unwrap();
    assert_eq!(
        fs::read_dir(place.path().join("a/files")).unwrap().count(),
        0
    );
    assert_eq!(*model.mounted.lock(), 1);
    files.close(|_| false).unwrap();
    files.close(|_| false).unwrap();
    assert!(!place.path().join("a/files").exists());
    assert_eq!(*model.mounted.lock(), 0);
}

#[test]
fn sixteen_tasks_that_start_at_once_make_one_mount() {
    let place = place();
    let (files, model) = MountModel::files(place.path().join("files"));
    let held = model.hold();
    let begun = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..16 {
            let (files, begun) = (&files, &begun);
            scope.spawn(move || {
                begun.fetch_add(1, Ordering::SeqCst);
                files
                    .write(&format!("t{number}"), &[file(b"x", 0o400)])
                    .unwrap()
            });
        }
        held.begun();
        while begun.load(Ordering::SeqCst) < 16 {
            thread::yield_now();
        }
        assert!(files.turn.is_locked(), "the others wait for whoever mounts");
        drop(held);
    });
    assert_eq!(*model.mounted.lock(), 1);
    assert_eq!(
        fs::read_dir(place.path().join("files")).unwrap().count(),
        16
    );
    // An earlier version could stack some.
    *model.mounted.lock() = 3;
    files.close(|_| false).unwrap();
    assert_eq!(
        (*model.mounted.lock(), place.path().join("files").exists()),
        (0, false)
    );
}

#[test]
fn directory_is_closed_only_when_no_task_that_runs_has_files() {
    let place = place();
    let (files, model) = MountModel::files(place.path().join("files"));
    for task in ["t1", "t2"] {
        files.write(task, &[file(b"x", 0o400)]).unwrap();
    }
    files.close(|task| task == "t2").unwrap();
    let left: Vec<_> = fs::read_dir(place.path().join("files"))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(
        left.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(),
        ["t2"]
    );
    assert_eq!(*model.mounted.lock(), 1);
}

/// A daemon of before has used the run directory's own tmpfs.
#[test]
fn nothing_is_mounted_over_files_that_are_there() {
    let place = place();
    let dir = place.path().join("files");
    DirBuilder::new().mode(0o700).create(&dir).unwrap();
    fs::create_dir(dir.join("t1")).unwrap();
    let (files, model) = MountModel::files(dir);
    files.write("t2", &[file(b"x", 0o400)]).unwrap();
    assert_eq!(*model.mounted.lock(), 0);
    for task in ["t1", "t2"] {
        files.remove(task).unwrap();
    }
    files.write("t3", &[file(b"x", 0o400)]).unwrap();
    assert_eq!(*model.mounted.lock(), 1);
}

#[test]
fn only_files_of_running_tasks_are_retained() {
    let place = place();
    let (files, _) = MountModel::files(place.path().join("files"));
    files.retain(|_| false).unwrap();
    for task in ["t1", "t2"] {
        files.write(task, &[file(b"x", 0o400)]).unwrap();
    }
    files.retain(|task| task == "t2").unwrap();
    let left: Vec<_> = fs::read_dir(place.path().join("files"))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(
        left.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(),
        ["t2"]
    );
}

#[test]
fn directory_that_others_can_read_is_refused() {
    let place = place();
    let dir = place.path().join("files");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let error = MountModel::files(dir.clone())
        .0
        .write("t1", &[file(b"x", 0o400)])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}

#[test]
fn directory_on_a_disk_is_refused() {
    // /proc is no tmpfs on any node.
    let error = check_private(Path::new("/proc")).unwrap_err();
    assert!(
        error.report().contains("is not on a tmpfs"),
        "{}",
        error.report()
    );
}

#[test]
fn id_cannot_lead_out_of_the_directory() {
    let place = place();
    let (files, _) = MountModel::files(place.path().join("files"));
    for id in ["", ".", "..", "a/b", "../x", "t\0"] {
        assert!(files.write(id, &[file(b"x", 0o400)]).is_err(), "{id:?}");
        assert!(files.remove(id).is_err(), "{id:?}");
    }
}
