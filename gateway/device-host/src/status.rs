//! The one place that chooses gRPC status codes. Plugins ignore the code and print the message.

use switchyard_core::{Error, ErrorKind};
use tonic::{Code, Status};

/// Converts an error to the status that is sent to a plugin.
pub(crate) fn status(error: &Error) -> Status {
    Status::new(code(error.kind()), error.status_text())
}

const fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::InvalidArgument => Code::InvalidArgument,
        ErrorKind::FailedPrecondition => Code::FailedPrecondition,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::ResourceExhausted => Code::ResourceExhausted,
        ErrorKind::Unauthenticated => Code::Unauthenticated,
        ErrorKind::DeadlineExceeded => Code::DeadlineExceeded,
        ErrorKind::Cancelled => Code::Cancelled,
        ErrorKind::Unimplemented => Code::Unimplemented,
        ErrorKind::Internal => Code::Internal,
    }
}
