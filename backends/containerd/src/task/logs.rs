//! The log of a task, as described to the logkeeper.

use std::time::Duration;

use switchyard_core::{Error, ErrorKind, Result};
use switchyard_logkeeper as logkeeper;

use super::TaskEntry;
use crate::base::fs::io_error;
use crate::record::OutputRecord;

/// Returns the log that the logkeeper has to open for a task; `None` if it does not read the task's output.
pub(crate) fn log_spec(entry: &TaskEntry) -> Option<logkeeper::LogSpec> {
    let record = entry.record();
    let log = match &record.output {
        OutputRecord::Log(path) => Some(path.clone()),
        OutputRecord::Live => None,
        OutputRecord::Discard | OutputRecord::Fifos { .. } => return None,
    };
    Some(logkeeper::LogSpec {
        id: entry.id.to_string(),
        stdout: Some(entry.dirs.stdout()),
        stderr: (!record.tty).then(|| entry.dirs.stderr()),
        log,
        tty: record.tty,
        max_line: logkeeper::format::DEFAULT_MAX_LINE,
    })
}

/// Holds a task's output FIFOs open, so that the kernel keeps their content while the logkeeper is down.
pub(crate) fn open_output_fifos(entry: &TaskEntry, spec: &logkeeper::LogSpec) -> Result<()> {
    let hold = logkeeper::FifoHold::open(spec)
        .map_err(|fault| io_error("open the FIFOs in", &entry.dirs.run, fault))?;
    entry.hold_output(hold);
    Ok(())
}

/// Has the logkeeper end the log of a task that is removed. If the file system of the log hangs, the rest of the output
/// is given up: the task could not be removed for as long as it hangs otherwise. Idempotent.
///
/// # Errors
/// Those of [`logkeeper::Client::finish`].
pub(crate) async fn end_log(
    keeper: &logkeeper::Client,
    id: &str,
) -> std::result::Result<(), logkeeper::Error> {
    let Err(error) = keeper.finish(id, Duration::ZERO).await else {
        return Ok(());
    };
    if error
        .fault()
        .is_none_or(|fault| fault.kind != logkeeper::protocol::FaultKind::Busy)
    {
        return Err(error);
    }
    match keeper.abandon(id).await {
        Ok(logkeeper::protocol::Finished {
            lines: _,
            bytes: _,
            dropped_lines,
            dropped_bytes,
        }) => {
            tracing::warn!(task = id, %error, dropped_lines, dropped_bytes, "the file system of a log hangs: its task is removed without the rest of its output");
            Ok(())
        }
        // It answers again, or the logkeeper is shutting down or of an earlier version. The caller tries again.
        Err(refused) => {
            tracing::debug!(task = id, error = %refused, "the log of a task cannot be given up");
            Err(error)
        }
    }
}

/// The error for the gateway that corresponds to one of the logkeeper.
pub(crate) fn from_logkeeper(error: logkeeper::Error) -> Error {
    let kind = match &error {
        logkeeper::Error::Refused { fault, .. } => match fault.kind {
            logkeeper::protocol::FaultKind::InvalidArgument => ErrorKind::InvalidArgument,
            logkeeper::protocol::FaultKind::NotFound => ErrorKind::NotFound,
            logkeeper::protocol::FaultKind::Busy => ErrorKind::Unavailable,
            logkeeper::protocol::FaultKind::Conflict
            | logkeeper::protocol::FaultKind::Io
            | logkeeper::protocol::FaultKind::Unsupported
            | logkeeper::protocol::FaultKind::Other => {
                crate::base::error::exhausted_or(ErrorKind::Internal, &error)
            }
        },
        logkeeper::Error::Deadline { .. } | logkeeper::Error::Unavailable { .. } => {
            ErrorKind::Unavailable
        }
        logkeeper::Error::File { .. }
        | logkeeper::Error::StateInUse(_)
        | logkeeper::Error::SocketInUse(_)
        | logkeeper::Error::UnfitStateDir { .. }
        | logkeeper::Error::Process(_)
        | logkeeper::Error::Encoding { .. } => ErrorKind::Internal,
    };
    Error::new(kind, "logkeeper").with_source(error)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use switchyard_logkeeper::protocol::FaultKind;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::UnixListener;

    use super::*;

    const DONE: &str = r#"{"ok":{"lines":1,"bytes":2,"dropped_lines":3,"dropped_bytes":4}}"#;
    const BUSY: &str = r#"{"error":{"kind":"busy","message":"the file system hangs"}}"#;
    const FAILED: &str = r#"{"error":{"kind":"io","message":"no"}}"#;
    /// The answer of a logkeeper that does not know the request.
    const UNKNOWN: &str = r#"{"error":{"kind":"invalid_argument","message":"not a request"}}"#;

    /// Ends a log at a logkeeper that gives these answers; the result, and what it was asked for.
    async fn check(
        finish: &'static str,
        abandon: &'static str,
    ) -> (Option<FaultKind>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&asked);
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (reader, mut writer) = stream.into_split();
            let mut lines = BufReader::new(reader).lines();
            while let Some(line) = lines.next_line().await.unwrap() {
                let (op, answer) = [
                    ("hello", r#"{"ok":{"version":1,"pid":7}}"#),
                    ("finish", finish),
                    ("abandon", abandon),
                ]
                .into_iter()
                .find(|(op, _)| line.contains(op))
                .unwrap();
                told.lock().push(op.to_owned());
                writer
                    .write_all(format!("{answer}\n").as_bytes())
                    .await
                    .unwrap();
            }
        });
        let ended = end_log(&logkeeper::Client::new(socket), "c1").await;
        serving.abort();
        let asked = asked.lock().split_off(1);
        (ended.err().map(|error| error.fault().unwrap().kind), asked)
    }

    #[tokio::test]
    async fn log_of_a_removed_task_is_given_up_only_when_its_end_would_be_waited_for() {
        assert_eq!(check(DONE, FAILED).await, (None, vec!["finish".to_owned()]));
        assert_eq!(
            check(FAILED, DONE).await,
            (Some(FaultKind::Io), vec!["finish".to_owned()])
        );
        let both = vec!["finish".to_owned(), "abandon".to_owned()];
        assert_eq!(check(BUSY, DONE).await, (None, both.clone()));
        for refused in [BUSY, UNKNOWN] {
            assert_eq!(
                check(BUSY, refused).await,
                (Some(FaultKind::Busy), both.clone())
            );
        }
    }
}
