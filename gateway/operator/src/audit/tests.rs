//! The audit log with real files and a socket in place of the journal's.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::SystemTime;

use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::operation::{Caller, OperationId, Outcome, Subject};

use super::*;

fn config(to: AuditTarget, file: PathBuf) -> AuditConfig {
    AuditConfig {
        to,
        file,
        exec_sync: false,
    }
}

fn ended<'a>(kind: OperationKind, subject: &'a Subject, caller: &'a Caller) -> EndedOperation<'a> {
    EndedOperation {
        id: OperationId::default(),
        trace: None,
        kind,
        owner: Some(Owner::Nomad),
        subject,
        caller: Some(caller),
        began_at: SystemTime::UNIX_EPOCH,
        took: Duration::from_millis(1500),
        outcome: Outcome::Succeeded,
    }
}

fn caller() -> Caller {
    Caller {
        listener: "nomad",
        uid: Some(0),
        pid: Some(7),
    }
}

fn lines(path: &Path) -> Vec<AuditLine> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn line_has_the_operation_and_its_caller() {
    let subject = Subject {
        sandbox: Some(SandboxId::from_bytes([1; 32])),
        ..Subject::argument("sh\n\"x")
    };
    let caller = caller();
    let mut operation = ended(OperationKind::Exec, &subject, &caller);
    let error = switchyard_core::Error::not_found("x".repeat(2000));
    operation.outcome = Outcome::Failed(&error);
    let json = AuditLine::of(&operation, &Owners::default()).to_json();
    assert!(!json.contains('\n'), "{json}");
    let AuditLine {
        at,
        operation,
        operation_id,
        owner,
        sandbox,
        argument,
        listener,
        uid,
        pid,
        result,
        error,
        seconds,
        ..
    } = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (at.as_str(), operation.as_str()),
        ("1970-01-01T00:00:00.000Z", "exec")
    );
    assert_eq!(operation_id.as_deref(), Some("00000000000-0"));
    assert_eq!(
        (owner.as_deref(), sandbox),
        (Some("nomad"), Some("01".repeat(32)))
    );
    assert_eq!(
        (argument.as_deref(), listener.as_deref()),
        (Some("sh\n\"x"), Some("nomad"))
    );
    assert_eq!((uid, pid, result.as_str()), (Some(0), Some(7), "not_found"));
    assert_eq!(error.unwrap().len(), 512);
    assert!((seconds - 1.5).abs() < 1e-9);
}

#[test]
fn exit_has_a_line_with_its_cause_and_who_asked_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let log = AuditLog::start(&config(AuditTarget::File, path.clone()), Owners::default());
    let exit = ExitView {
        code: 137,
        cause: "stopped".to_owned(),
        ran_ms: Some(1500),
        operation_id: Some("692a0f31-7".to_owned()),
        listener: Some("cri".to_owned()),
        pid: Some(812),
        ..ExitView::default()
    };
    let event = EventView {
        at: "2026-11-29T03:12:04.551Z".to_owned(),
        owner: "kubernetes".to_owned(),
        event: "task_exited".to_owned(),
        detail: "code 137".to_owned(),
        names: [("pod".to_owned(), "web".to_owned())].into(),
        ..EventView::default()
    };
    log.record_exit(&event, &exit);
    log.flush();
    let [line] = lines(&path).try_into().unwrap();
    assert_eq!(line.at, event.at);
    assert_eq!(line.operation, "task_exited");
    assert_eq!((line.code, line.result.as_str()), (Some(137), "stopped"));
    assert_eq!(
        (line.listener, line.pid),
        (Some("cri".to_owned()), Some(812))
    );
    assert_eq!(line.names["pod"], "web");
    assert_eq!(line.operation_id.as_deref(), Some("692a0f31-7"));
    assert!((line.seconds - 1.5).abs() < 1e-9);
}

#[test]
fn file_is_continued_under_its_name_after_a_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/audit.log");
    let log = AuditLog::start(&config(AuditTarget::File, path.clone()), Owners::default());
    let subject = Subject::argument("busybox");
    log.record(&ended(OperationKind::PullImage, &subject, &caller()));
    log.flush();
    let rotated = path.with_extension("1");
    fs::rename(&path, &rotated).unwrap();
    // A rotation may make the next file.
    fs::write(&path, "").unwrap();
    log.record(&ended(OperationKind::RemoveImage, &subject, &caller()));
    log.flush();
    assert_eq!(lines(&rotated).len(), 1);
    let [only] = lines(&path).try_into().unwrap();
    assert_eq!(only.operation, "remove_image");
    for _ in 0..2 {
        fs::remove_file(&path).unwrap();
        log.record(&ended(OperationKind::StopTask, &subject, &caller()));
        log.flush();
        assert_eq!(lines(&path).len(), 1, "a missing file is made again");
    }
    // A link is never followed, also not in the place of a file that was open.
    let elsewhere = dir.path().join("elsewhere");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    log.record(&ended(OperationKind::StopTask, &subject, &caller()));
    log.flush();
    assert!(!elsewhere.exists());
    assert_eq!(
        log.counts(),
        Some(AuditCounts {
            written: 4,
            lost: 1
        })
    );
}

#[test]
fn commands_of_probes_are_recorded_only_if_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let silent = config(AuditTarget::File, path.clone());
    let log = AuditLog::start(&silent, Owners::default());
    let subject = Subject::default();
    log.record(&ended(OperationKind::ExecSync, &subject, &caller()));
    log.reconfigure(&AuditConfig {
        exec_sync: true,
        ..silent
    });
    log.record(&ended(OperationKind::ExecSync, &subject, &caller()));
    log.flush();
    assert_eq!(lines(&path).len(), 1);
}

#[test]
fn file_that_cannot_be_written_loses_and_counts_lines_until_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    fs::create_dir(&path).unwrap();
    let log = AuditLog::start(&config(AuditTarget::File, path.clone()), Owners::default());
    let subject = Subject::default();
    log.record(&ended(OperationKind::StartTask, &subject, &caller()));
    log.flush();
    assert_eq!(
        log.counts(),
        Some(AuditCounts {
            written: 0,
            lost: 1
        })
    );
    fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
    log.record(&ended(OperationKind::StartTask, &subject, &caller()));
    log.flush();
    assert_eq!(
        log.counts(),
        Some(AuditCounts {
            written: 0,
            lost: 2
        })
    );
    fs::remove_file(&path).unwrap();
    log.record(&ended(OperationKind::StartTask, &subject, &caller()));
    log.flush();
    assert_eq!(
        log.counts(),
        Some(AuditCounts {
            written: 1,
            lost: 2
        })
    );
}

#[test]
fn line_after_a_torn_one_begins_on_a_line_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    fs::write(&path, "{\"at\":\"1970-01").unwrap();
    let log = AuditLog::start(&config(AuditTarget::File, path.clone()), Owners::default());
    for _ in 0..2 {
        log.record(&ended(
            OperationKind::StopTask,
            &Subject::default(),
            &caller(),
        ));
    }
    log.flush();
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines[0], lines.len()), ("{\"at\":\"1970-01", 3));
    assert!(
        lines[1..]
            .iter()
            .all(|line| serde_json::from_str::<AuditLine>(line).is_ok()),
        "{text}"
    );
}

#[test]
fn journal_gets_each_line_with_the_identifier() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("journal");
    let receive = |journal: &UnixDatagram| {
        let mut entry = [0; 4096];
        let length = journal.recv(&mut entry).unwrap();
        String::from_utf8_lossy(&entry[..length]).into_owned()
    };
    let journal = UnixDatagram::bind(&socket).unwrap();
    let log = AuditLog::start_at(
        &config(AuditTarget::Journal, PathBuf::new()),
        Owners::default(),
        &socket,
    );
    let subject = Subject::default();
    log.record(&ended(OperationKind::StopTask, &subject, &caller()));
    let entry = receive(&journal);
    assert!(
        entry.starts_with("PRIORITY=6\nSYSLOG_IDENTIFIER=switchyard-audit\nMESSAGE={\"at\":"),
        "{entry}"
    );
    // As in the daemon's log, so that one filter finds both.
    assert!(
        entry.contains("\nSWITCHYARD_OPERATION=stop_task\nSWITCHYARD_OPERATION_ID=00000000000-0\n"),
        "{entry}"
    );
    // The journal is restarted.
    drop(journal);
    fs::remove_file(&socket).unwrap();
    let journal = UnixDatagram::bind(&socket).unwrap();
    log.record(&ended(OperationKind::StopTask, &subject, &caller()));
    assert!(receive(&journal).contains("\"operation\":\"stop_task\""));
}

#[test]
fn nothing_is_recorded_if_the_log_is_off_and_a_node_without_a_journal_uses_the_daemons_log() {
    let dir = tempfile::tempdir().unwrap();
    let off = AuditLog::start(
        &config(AuditTarget::Off, dir.path().join("audit.log")),
        Owners::default(),
    );
    off.record(&ended(
        OperationKind::StopTask,
        &Subject::default(),
        &caller(),
    ));
    off.flush();
    assert_eq!(off.counts(), None);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let log = AuditLog::start_at(
        &config(AuditTarget::Journal, PathBuf::new()),
        Owners::default(),
        &dir.path().join("none"),
    );
    log.record(&ended(
        OperationKind::StopTask,
        &Subject::default(),
        &caller(),
    ));
    log.flush();
    assert_eq!(
        log.counts(),
        Some(AuditCounts {
            written: 1,
            lost: 0
        })
    );
}
