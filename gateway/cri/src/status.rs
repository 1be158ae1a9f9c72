//! The one place that chooses gRPC status codes: the kind of an error becomes the code, its report the
//! message.
//!
//! Kubelets act on NotFound, DeadlineExceeded, Unimplemented and Unavailable; the other codes are for people.
//! An internal error is `Unknown`, as Go servers answer by default.

use switchyard_core::{Error, ErrorKind};
use tonic::{Code, Status};

/// Converts an error to the status that is sent to a CRI client.
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
        ErrorKind::Internal => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_carries_the_whole_cause_chain() {
        let status = status(&Error::not_found("snapshot abc").context("start task 1"));
        assert_eq!((status.code(), status.message()), (Code::NotFound, "start task 1: snapshot abc"));
    }

    #[test]
    fn internal_error_maps_to_unknown() {
        assert_eq!(status(&Error::internal("x")).code(), Code::Unknown);
    }
}
