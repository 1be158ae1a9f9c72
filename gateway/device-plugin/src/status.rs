//! The one place that chooses gRPC status codes. Kubelets ignore the code and print the message in the status
//! of the pod.

use switchyard_core::{Error, ErrorKind};
use tonic::{Code, Status};

/// Converts an error to the status that is sent to the kubelet.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_carries_the_whole_chain_of_causes() {
        let error = Error::exhausted("slot tpu-1 is held by nomad").context("allocate acme.com/tpu");
        let status = status(&error);
        assert_eq!(status.message(), "allocate acme.com/tpu: slot tpu-1 is held by nomad");
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
}
