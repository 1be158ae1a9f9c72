//! The gRPC status of an error. Frontends whose clients act on other codes choose those in their own `status.rs`.

use switchyard_core::{Error, ErrorKind};
use tonic::{Code, Status};

/// The status with the code of the error's kind, and its message with all causes, in at most
/// [`STATUS_TEXT_MAX`](switchyard_core::STATUS_TEXT_MAX) bytes.
#[must_use]
pub fn status(error: &Error) -> Status {
    Status::new(code_of(error.kind()), error.status_text())
}

/// The code that has the name of the kind.
#[must_use]
pub const fn code_of(kind: ErrorKind) -> Code {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_carries_the_whole_chain_of_causes() {
        let error =
            Error::exhausted("slot tpu-1 is held by nomad").context("allocate acme.com/tpu");
        let status = status(&error);
        assert_eq!(
            status.message(),
            "allocate acme.com/tpu: slot tpu-1 is held by nomad"
        );
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
}
