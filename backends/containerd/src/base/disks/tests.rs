//! Tests of what is found out about disks.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::mpsc;

use nix::errno::Errno;
use switchyard_core::blocking_pool::LIMIT;

use super::*;
use crate::base::error::from_status;
use crate::base::fs::io_error;

const PLENTY: DiskState = DiskState {
    free: FreeSpace {
        bytes: 1 << 30,
        unreserved: 1 << 30,
        inodes: 1 << 20,
    },
    written: None,
    is_read_only: false,
};

fn condition(reason: &str, message: &str) -> Condition {
    Condition::False {
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

#[test]
fn a_disk_is_full_without_bytes_or_without_inodes() {
    let plenty = PLENTY.free;
    assert_eq!(plenty.shortage(), None);
    assert_eq!(
        FreeSpace {
            bytes: 4096,
            ..plenty
        }
        .shortage(),
        Some("bytes")
    );
    assert_eq!(
        FreeSpace {
            inodes: 3,
            ..plenty
        }
        .shortage(),
        Some("inodes")
    );
    assert_eq!(
        FreeSpace {
            bytes: 0,
            inodes: 0,
            ..plenty
        }
        .shortage(),
        Some("bytes and inodes")
    );
    let kept_for_root = FreeSpace {
        unreserved: 4096,
        ..plenty
    };
    assert_eq!(
        kept_for_root.shortage(),
        Some("bytes besides those that are kept for root")
    );
    let of_root = DiskState {
        free: kept_for_root,
        ..PLENTY
    };
    assert_eq!(of_root.for_root().free.shortage(), None);
}

#[test]
fn a_disk_that_cannot_be_written_is_told_from_what_cannot_be_written_anywhere() {
    let status = |text: &str| from_status("update container 1", tonic::Status::unknown(text));
    let file = |errno: Errno| io_error("write", Path::new("/x"), errno.into());
    let unwritable = [
        status("write /var/lib/containerd/meta.db: no space left on device: unknown"),
        status("write /var/lib/containerd/meta.db: read-only file system: unknown"),
        status("fdatasync /var/lib/containerd/meta.db: input/output error"),
        from_status(
            "update container 1",
            tonic::Status::resource_exhausted("full"),
        ),
        file(Errno::ENOSPC),
        file(Errno::EDQUOT),
        file(Errno::EROFS),
        file(Errno::EIO),
        Error::internal("a sandbox").with_source(file(Errno::EROFS)),
    ];
    for error in unwritable {
        assert!(is_unwritable(&error), "{}", error.report());
        assert!(tolerate_unwritable_disk(Err(error), "it is not written").is_ok());
    }
    let others = [
        status("label value too long"),
        status("transport error"),
        from_status(
            "update container 1",
            tonic::Status::not_found("container 1"),
        ),
        from_status("update container 1", tonic::Status::unavailable("down")),
        file(Errno::EACCES),
    ];
    for error in others {
        assert!(!is_unwritable(&error), "{}", error.report());
        assert!(tolerate_unwritable_disk(Err(error), "it is not written").is_err());
    }
}

#[test]
fn full_disk_is_reported_until_there_is_space_and_leaves_the_runtime_ready() {
    let disks = Disks::default();
    assert_eq!(disks.condition(), Condition::True);
    disks.update(Checked::Fault(DiskFault::Full("full".into())));
    assert_eq!(disks.condition(), condition("DiskFull", "full"));
    assert_eq!(disks.runtime_condition(), Condition::True);
    disks.update(Checked::Unknown);
    assert_eq!(
        disks.condition(),
        condition("DiskFull", "full"),
        "a check that shows nothing mends nothing"
    );
    disks.update(Checked::Fine);
    assert_eq!(disks.condition(), Condition::True);
}

#[test]
fn read_only_and_failing_disks_are_reported_as_such_and_by_the_runtime() {
    let dir = Path::new("/state");
    for (state, reason, text) in [
        (
            Ok(Some(DiskState {
                is_read_only: true,
                ..PLENTY
            })),
            "DiskReadOnly",
            "/state is read-only",
        ),
        (
            Err(io::Error::from_raw_os_error(5)),
            "DiskFails",
            "/state fails: Input/output error",
        ),
    ] {
        let disks = Disks::default();
        disks.update(Checked::of(dir, state));
        let found = disks.condition();
        assert!(
            matches!(&found, Condition::False { reason: told, message } if told == reason && message.contains(text)),
            "{found:?}"
        );
        assert_eq!(disks.runtime_condition(), found);
    }
    assert_eq!(DiskFault::of(dir, Ok(Some(PLENTY))), None);
    assert_eq!(DiskFault::of(dir, Ok(None)), None);
}

#[test]
fn disk_that_refuses_a_write_for_lack_of_space_is_full_whatever_it_counts_as_free() {
    let dir = tempfile::tempdir().unwrap();
    let checked = || Checked::of(dir.path(), write_and_look(dir.path()).map(Some));
    assert_eq!(checked(), Checked::Fine);
    fs::remove_file(dir.path().join("write-test")).unwrap();
    symlink("/dev/full", dir.path().join("write-test")).unwrap();
    let found = checked();
    assert!(
        matches!(&found, Checked::Fault(DiskFault::Full(why)) if why.contains("is refused")),
        "{found:?}"
    );
    let disks = Disks::default();
    disks.update(found);
    assert!(
        disks.have_fault(),
        "it is written to again at the next look"
    );
}

#[tokio::test]
async fn unexplained_error_on_a_full_disk_is_one_of_the_disk() {
    let failed =
        || Error::internal("exec in task 1").with_source(Error::internal("exit status 255"));
    let fault = |state| move || DiskFault::of(Path::new("/run"), state);
    let full = move || {
        fault(Ok(Some(DiskState {
            free: FreeSpace {
                bytes: 0,
                ..PLENTY.free
            },
            ..PLENTY
        })))
    };
    let error = explained(failed(), full()).await;
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    let expected =
        "no space left on device: almost no bytes left for /run: exec in task 1: exit status 255";
    assert_eq!(error.report(), expected);
    for other in [Ok(Some(PLENTY)), Err(io::Error::from_raw_os_error(5))] {
        assert_eq!(
            explained(failed(), fault(other)).await.kind(),
            ErrorKind::Internal
        );
    }
    // One whose cause is known keeps its kind, and waits for no disk.
    let (looked, looks) = mpsc::channel();
    let look = move || {
        looked.send(()).unwrap();
        full()()
    };
    let known = explained(Error::invalid("command", "it is missing"), look).await;
    assert_eq!(known.kind(), ErrorKind::InvalidArgument);
    assert!(looks.recv().is_err(), "the disk was looked at");
}

#[tokio::test]
async fn error_is_not_held_up_by_a_disk_that_hangs() {
    let (answers, answer) = mpsc::channel::<()>();
    let hangs = move || {
        // It returns once the sender is dropped.
        let _ = answer.recv();
        None
    };
    let error = timeout(
        EXPLANATION_LIMIT * 10,
        explained(Error::internal("exec in task 1"), hangs),
    )
    .await;
    assert_eq!(error.unwrap().kind(), ErrorKind::Internal);
    drop(answers);
}

#[test]
fn file_systems_are_looked_at() {
    assert!(look(Path::new("/")).is_ok());
    assert!(look(Path::new("/no/such/directory")).is_err());
}

#[tokio::test]
async fn disk_that_hangs_is_reported_beside_those_that_answer_and_takes_one_thread() {
    let pool = BlockingPool::new(2, Duration::from_millis(50));
    let dirs: Vec<PathBuf> = vec!["/hangs".into(), "/full".into()];
    let (answers, answer) = mpsc::channel::<()>();
    let answer = std::sync::Arc::new(Mutex::new(answer));
    let look = move |dir: &Path| {
        if dir == Path::new("/hangs") {
            // It returns once the sender is dropped.
            let _ = answer.lock().recv();
            return Ok(Some(PLENTY));
        }
        Ok(Some(DiskState {
            free: FreeSpace {
                bytes: 0,
                ..PLENTY.free
            },
            ..PLENTY
        }))
    };
    for _ in 0..3 {
        let (found, _) = check(&pool, &dirs, look.clone()).await;
        let message = "the file system of /hangs does not answer".to_owned();
        assert_eq!(
            found,
            Checked::Fault(DiskFault::Unusable {
                reason: "DiskHangs",
                message
            })
        );
    }
    drop(answers);
    loop {
        match check(&pool, &dirs, look.clone()).await.0 {
            Checked::Fault(DiskFault::Full(why)) => {
                break assert!(why.ends_with("almost no bytes left for /full"), "{why}");
            }
            // The thread returns soon.
            Checked::Fault(DiskFault::Unusable { .. }) => tokio::task::yield_now().await,
            Checked::Fine | Checked::Unknown => panic!("the disk that is full was not looked at"),
        }
    }
}

#[tokio::test]
async fn space_is_known_of_the_disks_that_answer() {
    let pool = BlockingPool::new(2, LIMIT);
    let dirs: Vec<PathBuf> = vec!["/".into(), "/no/such".into()];
    let (_, spaces) = check(&pool, &dirs, |dir| look(dir).map(Some)).await;
    let points: Vec<_> = spaces
        .iter()
        .map(|space| space.as_ref().map(|space| space.mount_point.as_path()))
        .collect();
    assert_eq!(points, [Some(Path::new("/")), None]);
}
