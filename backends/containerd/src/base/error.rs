//! Converts containerd's errors to the gateway's. This is the only place that interprets its codes and
//! messages.

use std::error::Error as StdError;
use std::time::Duration;

use switchyard_cni as cni;
use switchyard_core::{Error, ErrorKind, Reason};
use switchyard_namespaces as namespaces;
use tonic::{Code, Status};

mod network;

pub(crate) use network::from_network;

/// The error for a status of containerd. `what` names the operation and its object.
pub(crate) fn from_status(what: &str, status: Status) -> Error {
    Error::new(kind_of(&status), format!("containerd: {what}"))
        .with_source(Cause(status.message().to_owned()))
        .with_reason(reason_of(&status))
}

fn reason_of(status: &Status) -> Reason {
    if status.code() == Code::Unavailable && status.message().contains("locked") {
        Reason::Locked
    } else if is_shim_gone(status.message()) {
        Reason::ShimExited
    } else {
        Reason::Runtime
    }
}

/// The error for a call that containerd did not answer in time.
pub(crate) fn timed_out(what: &str, limit: Duration) -> Error {
    Error::deadline(format!(
        "containerd did not answer within {limit:?}: {what}"
    ))
}

/// Returns whether a call failed because containerd did not answer, so that the error says nothing about the
/// state of the object.
pub(crate) fn is_unanswered(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::DeadlineExceeded | ErrorKind::Cancelled
    )
}

fn kind_of(status: &Status) -> ErrorKind {
    match status.code() {
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::AlreadyExists,
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::InvalidArgument,
        Code::FailedPrecondition | Code::Aborted => ErrorKind::FailedPrecondition,
        Code::Unavailable => ErrorKind::Unavailable,
        Code::ResourceExhausted => ErrorKind::ResourceExhausted,
        Code::Unauthenticated | Code::PermissionDenied => ErrorKind::Unauthenticated,
        Code::DeadlineExceeded => ErrorKind::DeadlineExceeded,
        Code::Cancelled => connection_lost_or(status, ErrorKind::Cancelled),
        Code::Unimplemented => ErrorKind::Unimplemented,
        Code::Unknown | Code::Internal => {
            connection_lost_or(status, kind_by_text(status.message()))
        }
        Code::Ok | Code::DataLoss => ErrorKind::Internal,
    }
}

/// A call that was in flight when the connection broke ends as `Unknown` or `Cancelled` with one of tonic's
/// own messages.
fn connection_lost_or(status: &Status, otherwise: ErrorKind) -> ErrorKind {
    let text = status.message();
    if text.contains("transport error")
        || text.contains("connection closed")
        || text.contains("h2 protocol error")
    {
        ErrorKind::Unavailable
    } else {
        otherwise
    }
}

/// The shim and the OCI runtime give messages instead of codes. Each message here has been observed.
fn kind_by_text(text: &str) -> ErrorKind {
    const GONE: [&str; 6] = [
        "process already finished",
        "no such process",
        "container not running",
        "ttrpc: closed",
        "process does not exist",
        // containerd 1.7, for a record that is missing in its sandbox store.
        "bucket not found",
    ];
    // The third is runc's, for a working directory that the user may not enter; the last is crun's, for a program that does not exist.
    const WRONG: [&str; 4] = [
        "executable file not found",
        "exec: \"",
        "set in config.json failed",
        "executable file `",
    ];
    // A path of the container's spec leads through a file: a mount of a file over a directory or the reverse,
    // or a working directory. The spellings are runc's and crun's.
    let crosses_file = text.contains("OCI runtime create failed")
        && ["not a directory", "Not a directory"]
            .iter()
            .any(|part| text.contains(part));
    if text.contains("unknown command checkpoint") {
        // crun built without criu.
        ErrorKind::Unimplemented
    } else if GONE.iter().any(|part| text.contains(part)) {
        ErrorKind::NotFound
    } else if mentions_exhaustion(text) {
        ErrorKind::ResourceExhausted
    } else if text.contains("cannot delete a running process") || text.contains("is not stopped") {
        ErrorKind::FailedPrecondition
    } else if crosses_file || WRONG.iter().any(|part| text.contains(part)) {
        ErrorKind::InvalidArgument
    } else {
        ErrorKind::Internal
    }
}

/// Returns whether a task was not created because the shim that it was to share had exited, or exited just
/// then. Nothing of the task exists, and containerd has cleaned up after the shim: the next try starts a new
/// one.
fn is_shim_gone(text: &str) -> bool {
    let away = [
        "connect: no such file or directory",
        "connect: connection refused",
    ];
    (text.contains("failed to start shim") && away.iter().any(|part| text.contains(part)))
        || text.contains("failed to create shim task: ttrpc: closed")
}

/// The message of containerd's status.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Cause(String);

/// `ResourceExhausted` if a message in the error's chain of causes says that a limit of the node is reached, else
/// `otherwise`. Plugins, shims and our own helper processes report that only in their messages.
pub(crate) fn exhausted_or(otherwise: ErrorKind, error: &(dyn StdError + 'static)) -> ErrorKind {
    if any_cause(error, mentions_exhaustion) {
        ErrorKind::ResourceExhausted
    } else {
        otherwise
    }
}

/// Returns whether a message reports that a limit of the node is reached: a full disk, in bytes or inodes, an exhausted
/// quota, too many open files, of a process or of all, or a bridge with all ports that it can have.
pub(crate) fn mentions_exhaustion(text: &str) -> bool {
    const FULL: [&str; 4] = [
        "no space left on device",
        "disk quota exceeded",
        "too many open files",
        "exchange full",
    ];
    let text = text.to_lowercase();
    FULL.iter().any(|part| text.contains(part))
}

/// Returns whether a message in the error's chain of causes reports a disk that cannot be written although it
/// has space: its file system is read-only, as Linux makes it after a fault, or the device fails. containerd
/// and our own file operations use the words of the C library.
pub(crate) fn mentions_failed_disk(error: &(dyn StdError + 'static)) -> bool {
    const FAILED: [&str; 2] = ["read-only file system", "input/output error"];
    any_cause(error, |text| {
        let text = text.to_lowercase();
        FAILED.iter().any(|part| text.contains(part))
    })
}

/// Returns whether the message of an error, or of one of its causes, satisfies `is_such`.
fn any_cause(error: &(dyn StdError + 'static), is_such: impl Fn(&str) -> bool) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        if is_such(&cause.to_string()) {
            return true;
        }
        next = cause.source();
    }
    false
}

/// Converts an error of the namespaces crate: `InvalidArgument` for an invalid request, `ResourceExhausted`
/// for a limit of the node, else `Internal`.
pub(crate) fn from_namespaces(error: namespaces::Error) -> Error {
    let kind = if error.is_invalid_request() {
        ErrorKind::InvalidArgument
    } else {
        exhausted_or(ErrorKind::Internal, &error)
    };
    Error::new(kind, "sandbox").with_source(error)
}

/// The text of an error of a plugin that took too long.
const LATE_PLUGIN: &str = "network (network.plugin_timeout_seconds limits each plugin, which takes longer the more ports are published)";

/// Converts an error of the CNI crate: `Unavailable` if others may mend it meanwhile, `ResourceExhausted` for a limit of
/// the node, else `Internal`.
pub(crate) fn from_cni(error: cni::Error) -> Error {
    let kind = if error.is_not_configured() || error.is_unusable_directory() || error.is_retryable()
    {
        ErrorKind::Unavailable
    } else {
        exhausted_or(ErrorKind::Internal, &error)
    };
    let text = if error.is_late() {
        LATE_PLUGIN
    } else {
        "network"
    };
    Error::new(kind, text).with_source(error)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn codes_and_the_few_known_texts_have_a_kind() {
        let cases = [
            (
                Code::NotFound,
                "container \"x\": not found",
                ErrorKind::NotFound,
            ),
            (Code::Unknown, "transport error", ErrorKind::Unavailable),
            (
                Code::Cancelled,
                "h2 protocol error: http2 error",
                ErrorKind::Unavailable,
            ),
            (
                Code::Unknown,
                "process already finished",
                ErrorKind::NotFound,
            ),
            (
                Code::Unknown,
                "failed to delete sandbox \"x\": bucket not found",
                ErrorKind::NotFound,
            ),
            (
                Code::Unknown,
                "write /var/lib/x: no space left on device",
                ErrorKind::ResourceExhausted,
            ),
            (
                Code::Unknown,
                "cannot delete a running process: unknown",
                ErrorKind::FailedPrecondition,
            ),
            (
                Code::Unknown,
                "failed to create shim task: OCI runtime create failed: exec: \"nope\": executable file not found in $PATH",
                ErrorKind::InvalidArgument,
            ),
            (
                Code::Unknown,
                "OCI runtime exec failed: executable file `nope` not found in $PATH: No such file or directory: unknown",
                ErrorKind::InvalidArgument,
            ),
            (
                Code::Unknown,
                "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: \
                 error during container init: mkdir /etc/passwd: not a directory: unknown",
                ErrorKind::InvalidArgument,
            ),
            (
                Code::Unknown,
                "mkdir /var/lib/containerd/x: not a directory: unknown",
                ErrorKind::Internal,
            ),
            (
                Code::Unknown,
                "something nobody has seen",
                ErrorKind::Internal,
            ),
        ];
        for (code, text, kind) in cases {
            assert_eq!(
                from_status("do it", Status::new(code, text)).kind(),
                kind,
                "{text}"
            );
        }
    }

    #[test]
    fn a_plugin_that_is_late_names_the_key_of_its_limit() {
        let late = |verb| cni::Error::Deadline {
            plugin: "portmap".to_owned(),
            verb,
            after: Duration::from_secs(60),
        };
        let refused = || cni::Error::Refused {
            plugin: "portmap".to_owned(),
            verb: cni::Verb::Add,
            code: 7,
            msg: "no".to_owned(),
            details: String::new(),
        };
        let add = |source, undo: Option<cni::Error>| cni::Error::Add {
            container_id: "x".to_owned(),
            network: "bridge".to_owned(),
            source: Box::new(source),
            undo: undo.map(Box::new),
        };
        let undo = cni::Error::UndoDeadline {
            container_id: "x".to_owned(),
            network: "bridge".to_owned(),
            after: Duration::from_secs(60),
        };
        for (error, is_late) in [
            (add(late(cni::Verb::Add), None), true),
            (late(cni::Verb::Del), true),
            (late(cni::Verb::Check), true),
            (undo, true),
            (add(refused(), Some(late(cni::Verb::Del))), true),
            (add(refused(), None), false),
            (refused(), false),
        ] {
            let report = from_cni(error).report();
            let named = report.contains("network.plugin_timeout_seconds");
            assert_eq!(named, is_late, "{report}");
        }
    }

    #[test]
    fn what_is_not_answered_says_nothing_of_the_object() {
        let unanswered = |code| is_unanswered(&from_status("do it", Status::new(code, "so")));
        assert!(is_unanswered(&timed_out("do it", Duration::from_secs(1))));
        for code in [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled] {
            assert!(unanswered(code), "{code:?}");
        }
        for code in [
            Code::NotFound,
            Code::InvalidArgument,
            Code::ResourceExhausted,
            Code::Internal,
        ] {
            assert!(!unanswered(code), "{code:?}");
        }
    }

    #[test]
    fn a_shim_that_ended_is_told_from_one_that_cannot_start() {
        let ended = |text: &str| {
            from_status("create task 1", Status::unknown(text)).reason() == Some(Reason::ShimExited)
        };
        // The messages of containerd 1.6, and of 1.7 and later.
        assert!(ended(
            "failed to start shim: start failed: dial unix /run/containerd/s/ab: connect: no such file or directory"
        ));
        assert!(ended(
            "failed to start shim: start failed: failed to create TTRPC connection: dial unix /run/containerd/s/ab: connect: connection refused"
        ));
        assert!(ended("failed to create shim task: ttrpc: closed: unknown"));
        assert!(!ended(
            "failed to start shim: mkdir /run/x: no such file or directory"
        ));
        assert!(!ended(
            "failed to create shim task: OCI runtime create failed: connect: connection refused"
        ));
    }

    #[test]
    fn the_report_names_the_request_and_the_cause() {
        let error = from_status("start task 1", Status::not_found("task 1: not found"));
        assert_eq!(
            error.report(),
            "containerd: start task 1: task 1: not found"
        );
    }

    #[test]
    fn a_full_disk_is_told_apart_however_deep_it_is_told() {
        let deep = Error::internal("plugin")
            .with_source(Error::internal("write").with_source(io::Error::from_raw_os_error(28)));
        assert_eq!(
            exhausted_or(ErrorKind::Internal, &deep),
            ErrorKind::ResourceExhausted
        );
        // EDQUOT, ENFILE, EMFILE, and EXFULL as the plugin `bridge` passes it on.
        for number in [122, 23, 24, 54] {
            let limit = io::Error::from_raw_os_error(number);
            assert_eq!(
                exhausted_or(ErrorKind::Internal, &limit),
                ErrorKind::ResourceExhausted,
                "{limit}"
            );
        }
        let other = io::Error::from_raw_os_error(13);
        assert_eq!(
            exhausted_or(ErrorKind::Unavailable, &other),
            ErrorKind::Unavailable
        );
    }
}
