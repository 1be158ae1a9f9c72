//! Tests of the files of tasks, on the tmpfs for shared memory that each Linux has.

use std::sync::Arc;

use nix::unistd::getegid;
use switchyard_core::ErrorKind;

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
    let files = SecretFiles::new(place.path().join("a/files"));
    let paths = files.write("t1", &[file(b"one", 0o444), file(b"", 0o4711)]).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(fs::read(&paths[0]).unwrap(), b"one");
    assert_eq!((mode(&paths[0]), mode(&paths[1])), (0o444, 0o4711));
    assert_eq!(mode(paths[0].parent().unwrap()), 0o700);
    assert_eq!(mode(&place.path().join("a/files")), 0o700);
    // Another try.
    let again = files.write("t1", &[file(b"two", 0o400)]).unwrap();
    assert_eq!((fs::read(&again[0]).unwrap(), paths[1].exists()), (b"two".to_vec(), false));
    files.remove("t1").unwrap();
    files.remove("t1").unwrap();
    assert_eq!(fs::read_dir(place.path().join("a/files")).unwrap().count(), 0);
    files.close().unwrap();
    files.close().unwrap();
    assert!(!place.path().join("a/files").exists());
}

#[test]
fn only_files_of_running_tasks_are_retained() {
    let place = place();
    let files = SecretFiles::new(place.path().join("files"));
    files.retain(|_| false).unwrap();
    for task in ["t1", "t2"] {
        files.write(task, &[file(b"x", 0o400)]).unwrap();
    }
    files.retain(|task| task == "t2").unwrap();
    let left: Vec<_> = fs::read_dir(place.path().join("files")).unwrap().flatten().collect();
    assert_eq!(left.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(), ["t2"]);
}

#[test]
fn directory_that_others_can_read_is_refused() {
    let place = place();
    let dir = place.path().join("files");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let error = SecretFiles::new(dir.clone()).write("t1", &[file(b"x", 0o400)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}

#[test]
fn directory_on_a_disk_is_refused() {
    // /proc is no tmpfs on any node.
    let error = check_private(Path::new("/proc")).unwrap_err();
    assert!(error.report().contains("is not on a tmpfs"), "{}", error.report());
}

#[test]
fn id_cannot_lead_out_of_the_directory() {
    let place = place();
    let files = SecretFiles::new(place.path().join("files"));
    for id in ["", ".", "..", "a/b", "../x", "t\0"] {
        assert!(files.write(id, &[file(b"x", 0o400)]).is_err(), "{id:?}");
        assert!(files.remove(id).is_err(), "{id:?}");
    }
}
