//! The one place that chooses gRPC status codes: the kind of an error becomes the code, its report the
//! message.
//!
//! Kubelets act on NotFound, DeadlineExceeded, Unimplemented and Unavailable; the other codes are for people.
//! An internal error is `Unknown`, as Go servers answer by default.

use switchyard_core::{Error, ErrorKind, Reason};
use switchyard_rpc::code_of;
use tonic::{Code, Status};

/// Converts an error to the status that is sent to a CRI client.
pub(crate) fn status(error: &Error) -> Status {
    // As context, the word counts towards the longest status text.
    let text = match error.reason().and_then(kubelet_word) {
        Some(word) => error.clone().context(word).status_text(),
        None => error.status_text(),
    };
    Status::new(code(error.kind()), text)
}

/// The word that a status text begins with, by which kubelets recognize the reason of an error.
const fn kubelet_word(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::ImageVolume => Some("ImageVolumeMountFailed"),
        Reason::RecursiveReadonlyMount => Some("RROUnsupported"),
        Reason::RegistryUnavailable => Some("RegistryUnavailable"),
        Reason::Runtime
        | Reason::Locked
        | Reason::ShimExited
        | Reason::CommandTimeout
        | Reason::DaemonEnds
        | Reason::NotBegun => None,
    }
}

const fn code(kind: ErrorKind) -> Code {
    if matches!(kind, ErrorKind::Internal) {
        Code::Unknown
    } else {
        code_of(kind)
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::STATUS_TEXT_MAX;

    use super::*;

    #[test]
    fn status_carries_the_whole_cause_chain() {
        let status = status(&Error::not_found("snapshot abc").context("start task 1"));
        assert_eq!(
            (status.code(), status.message()),
            (Code::NotFound, "start task 1: snapshot abc")
        );
    }

    #[test]
    fn kubelets_find_their_word_at_the_beginning() {
        let error = Error::not_found("no such image")
            .with_reason(Reason::ImageVolume)
            .context("create task 1");
        assert_eq!(
            status(&error).message(),
            "ImageVolumeMountFailed: create task 1: no such image"
        );
        let error = Error::unimplemented("mounts[0]").with_reason(Reason::RecursiveReadonlyMount);
        assert_eq!(status(&error).message(), "RROUnsupported: mounts[0]");
        let error = Error::unavailable("connect")
            .with_reason(Reason::RegistryUnavailable)
            .context("pull a");
        assert_eq!(
            status(&error).message(),
            "RegistryUnavailable: pull a: connect"
        );
        for other in [Reason::Locked, Reason::Runtime] {
            assert_eq!(
                status(&Error::unavailable("x").with_reason(other)).message(),
                "x"
            );
        }
        let long =
            Error::not_found("x".repeat(2 * STATUS_TEXT_MAX)).with_reason(Reason::ImageVolume);
        let long = status(&long);
        assert!(long.message().starts_with("ImageVolumeMountFailed: x"));
        assert!(long.message().len() <= STATUS_TEXT_MAX);
    }

    #[test]
    fn internal_error_maps_to_unknown() {
        assert_eq!(status(&Error::internal("x")).code(), Code::Unknown);
    }
}
