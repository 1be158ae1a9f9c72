//! The only place that chooses gRPC status codes, and with them what an agent may retry.
//!
//! An agent evaluates two things: a detail that marks the error as recoverable, and the codes `Unavailable`
//! and `Cancelled`, which it takes for the end of the plugin. So a temporary error is `FailedPrecondition`
//! with that detail, also if a component of the daemon is unavailable, and `Unavailable` is used only for a
//! gateway that shuts down. All other codes are for people.

use prost::Message;
use prost_types::Any;
use switchyard_core::{Error, ErrorKind, Reason};
use switchyard_proto::google::rpc;
use switchyard_proto::nomad::shared::structs::RecoverableError;
use tonic::{Code, Status};

/// The type name of an agent's recoverable error on the wire.
const RECOVERABLE: &str =
    "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError";

/// The text with which drivers report an unknown task.
pub(crate) const UNKNOWN_TASK: &str = "task not found for given id";

/// The status for `error`.
pub(crate) fn status(error: &Error) -> Status {
    let text = error.status_text();
    if error.reason() == Some(Reason::DaemonEnds) {
        return Status::unavailable(text);
    }
    match code(error.kind()) {
        Some(code) => Status::new(code, text),
        None => {
            let details = details(&text);
            Status::with_details(Code::FailedPrecondition, text, details.into())
        }
    }
}

/// Returns whether the call of this status would fail again.
pub(crate) fn is_permanent(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::NotFound | Code::InvalidArgument | Code::Unimplemented
    )
}

/// The status of calls that are cut off by a shutdown of the gateway.
pub(crate) fn shutting_down() -> Status {
    Status::unavailable("the gateway is shutting down; its tasks continue to run")
}

/// The error for an unknown task id.
pub(crate) fn unknown_task(id: &str) -> Error {
    Error::not_found(format!("{UNKNOWN_TASK}: {id:?}"))
}

/// The code of a permanent error; `None` for a temporary one.
const fn code(kind: ErrorKind) -> Option<Code> {
    match kind {
        ErrorKind::NotFound => Some(Code::NotFound),
        ErrorKind::InvalidArgument => Some(Code::InvalidArgument),
        ErrorKind::Unimplemented => Some(Code::Unimplemented),
        ErrorKind::AlreadyExists
        | ErrorKind::FailedPrecondition
        | ErrorKind::Unavailable
        | ErrorKind::ResourceExhausted
        | ErrorKind::Unauthenticated
        | ErrorKind::DeadlineExceeded
        | ErrorKind::Cancelled
        | ErrorKind::Internal => None,
    }
}

/// A `google.rpc.Status` with the detail for recoverable errors.
fn details(text: &str) -> Vec<u8> {
    let recoverable = RecoverableError { recoverable: true };
    let detail = Any {
        type_url: RECOVERABLE.to_owned(),
        value: recoverable.encode_to_vec(),
    };
    let code = Code::FailedPrecondition.into();
    rpc::Status {
        code,
        message: text.to_owned(),
        details: vec![detail],
    }
    .encode_to_vec()
}

#[cfg(test)]
mod tests {
    use switchyard_core::STATUS_TEXT_MAX;

    use super::*;

    #[test]
    fn recoverable_error_carries_the_nomad_detail() {
        let status = status(&Error::unavailable("away"));
        assert_eq!(
            (status.code(), status.message()),
            (Code::FailedPrecondition, "away")
        );
        let mut expected = vec![0x08, 9, 0x12, 4];
        expected.extend(b"away");
        expected.extend([0x1a, 81, 0x0a, 75]);
        expected
            .extend(b"type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError");
        expected.extend([0x12, 2, 0x08, 1]);
        assert_eq!(status.details(), expected);
    }

    #[test]
    fn unrecoverable_error_carries_no_detail() {
        for error in [
            Error::not_found("x"),
            Error::invalid("x", "y"),
            Error::unimplemented("x"),
        ] {
            let status = status(&error);
            assert!(status.details().is_empty() && is_permanent(&status));
            assert_ne!(status.code(), Code::FailedPrecondition);
        }
    }

    #[test]
    fn no_error_code_is_mistaken_for_plugin_shutdown() {
        for error in [
            Error::unavailable("x"),
            Error::cancelled("x"),
            Error::deadline("x"),
        ] {
            let status = status(&error);
            assert!(!matches!(
                status.code(),
                Code::Unavailable | Code::Cancelled
            ));
            assert!(!is_permanent(&status));
        }
        assert_eq!(shutting_down().code(), Code::Unavailable);
    }

    #[test]
    fn call_that_the_end_of_the_daemon_cuts_off_ends_as_plugin_shutdown() {
        let error = Error::unavailable("x").with_reason(Reason::DaemonEnds);
        let status = status(&error.context("start task 1"));
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.details().is_empty() && !is_permanent(&status));
    }

    #[test]
    fn too_long_text_is_cut_in_status_details() {
        let status = status(&Error::unavailable("ü".repeat(100_000)));
        assert!(status.message().len() <= STATUS_TEXT_MAX);
        assert!(status.details().len() < STATUS_TEXT_MAX + 200);
    }

    #[test]
    fn status_carries_the_whole_cause_chain() {
        let error = Error::not_found("snapshot abc").context("start task 1");
        assert_eq!(status(&error).message(), "start task 1: snapshot abc");
    }
}
