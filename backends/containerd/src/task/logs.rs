//! The log of a task, as the logkeeper is told of it.

use switchyard_core::{Error, ErrorKind, Result};
use switchyard_logkeeper as logkeeper;

use super::TaskEntry;
use crate::base::fs::io_error;
use crate::record::OutputRecord;

/// What the logkeeper has to open for a task; `None` if it does not read the task's output.
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

/// The error for the gateway that corresponds to one of the logkeeper.
pub(crate) fn from_logkeeper(error: logkeeper::Error) -> Error {
    let kind = match &error {
        logkeeper::Error::Refused { fault, .. } => match fault.kind {
            logkeeper::protocol::FaultKind::InvalidArgument => ErrorKind::InvalidArgument,
            logkeeper::protocol::FaultKind::NotFound => ErrorKind::NotFound,
            logkeeper::protocol::FaultKind::Busy => ErrorKind::Unavailable,
            logkeeper::protocol::FaultKind::Conflict
            | logkeeper::protocol::FaultKind::Io
            | logkeeper::protocol::FaultKind::Unsupported => {
                crate::base::error::disk_full_or(ErrorKind::Internal, &error)
            }
        },
        logkeeper::Error::Deadline { .. } | logkeeper::Error::Unavailable { .. } => ErrorKind::Unavailable,
        logkeeper::Error::File { .. }
        | logkeeper::Error::StateInUse(_)
        | logkeeper::Error::SocketInUse(_)
        | logkeeper::Error::UnfitStateDir { .. }
        | logkeeper::Error::Process(_)
        | logkeeper::Error::Encoding { .. } => ErrorKind::Internal,
    };
    Error::new(kind, "logkeeper").with_source(error)
}
