//! The only error type between frontends, the gateway and a backend.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use switchyard_linux::WorkLost;

/// The class of an error; every protocol can express these classes.
///
/// The set is closed on purpose: each frontend's `status.rs` matches it exhaustively.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The named object does not exist.
    NotFound,
    /// The name is taken by an object with another configuration.
    AlreadyExists,
    /// The request can never succeed as it stands.
    InvalidArgument,
    /// The object is in the wrong state for this request.
    FailedPrecondition,
    /// A required component cannot be reached; a retry may succeed.
    Unavailable,
    /// A limit of the node is reached: space, ports, memory, devices.
    ResourceExhausted,
    /// Credentials are missing or refused.
    Unauthenticated,
    /// The operation did not finish in time.
    DeadlineExceeded,
    /// The caller went away or cancelled the operation.
    Cancelled,
    /// This node does not support the request.
    Unimplemented,
    /// Anything else; always a bug or a fault of the node that needs attention.
    Internal,
}

impl ErrorKind {
    /// The name of the class in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::InvalidArgument => "invalid_argument",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unavailable => "unavailable",
            Self::ResourceExhausted => "resource_exhausted",
            Self::Unauthenticated => "unauthenticated",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Cancelled => "cancelled",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
        }
    }

    /// Returns whether the fault is the node's, and not the request's or a registry's.
    #[must_use]
    pub const fn is_of_node(self) -> bool {
        matches!(
            self,
            Self::Unavailable | Self::ResourceExhausted | Self::DeadlineExceeded | Self::Internal
        )
    }
}

/// The reason for an error, where code acts on more than its class or a protocol has a code of its own for
/// it.
///
/// The set is closed, so that no flow depends on the text of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The image of a volume cannot be resolved, viewed or mounted.
    ImageVolume,
    /// Mounts cannot be recursively read-only on this node or with this runtime.
    RecursiveReadonlyMount,
    /// The runtime below the backend, such as containerd, answered with this error.
    Runtime,
    /// The registry of an image cannot be reached, is failing or limits requests; a retry may succeed.
    RegistryUnavailable,
    /// Another writer holds the lock of what was to be written; a retry may succeed.
    Locked,
    /// The shim that was to be called has exited; nothing was done.
    ShimExited,
    /// A start was refused before anything was done: it can be requested again.
    NotBegun,
    /// A command in a task was started, and did not exit in the time that its caller allowed.
    CommandTimeout,
    /// The daemon ends before the outcome of an earlier operation on the object is known: the next daemon finds it, and
    /// the same request can be made there.
    DaemonEnds,
}

/// The part of a specification that an error is about. Backends and the core do not know how a client has spelled it:
/// its frontend names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecPart {
    /// The runtime handler of a sandbox.
    Handler,
    /// The user of a task.
    User,
    /// The supplementary group at this index of those by name.
    Group(usize),
    /// The mount at this index.
    Mount(usize),
    /// The device node at this index.
    Device(usize),
    /// The device at this index of those by CDI name.
    CdiDevice(usize),
    /// The system call filter.
    Seccomp,
    /// The AppArmor profile.
    AppArmor,
    /// The SELinux label.
    Selinux,
}

/// The longest status text, in bytes. It is sent as a header, where one byte takes up to three, and a second
/// time where the protocol has details. Clients treat a connection with headers above 16 KiB as broken (8 KiB
/// by default in gRPC's C core).
pub const STATUS_TEXT_MAX: usize = 2048;

/// The result of every operation of the gateway.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error with its class, a message that names the object, and its cause.
///
/// It is `Clone` because all callers that share one operation get its result.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    reason: Option<Reason>,
    part: Option<SpecPart>,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident),* $(,)?) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(ErrorKind::$kind, message)
        })*
    };
}

impl Error {
    /// An error of `kind`; the message is lower case, has no full stop and names the object.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            reason: None,
            part: None,
            message: message.into(),
            source: None,
        }
    }

    constructors! {
        /// [`ErrorKind::NotFound`].
        not_found => NotFound,
        /// [`ErrorKind::AlreadyExists`].
        already_exists => AlreadyExists,
        /// [`ErrorKind::FailedPrecondition`].
        failed_precondition => FailedPrecondition,
        /// [`ErrorKind::Unavailable`].
        unavailable => Unavailable,
        /// [`ErrorKind::ResourceExhausted`].
        exhausted => ResourceExhausted,
        /// [`ErrorKind::DeadlineExceeded`].
        deadline => DeadlineExceeded,
        /// [`ErrorKind::Cancelled`].
        cancelled => Cancelled,
        /// [`ErrorKind::Unimplemented`].
        unimplemented => Unimplemented,
        /// [`ErrorKind::Internal`].
        internal => Internal,
    }

    /// [`ErrorKind::InvalidArgument`]: `field` is the path of the offending field as the caller spells it.
    #[must_use]
    pub fn invalid(field: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::new(ErrorKind::InvalidArgument, format!("{field}: {why}"))
    }

    /// Attaches the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Sets what the error is about; replaces a reason that was set before.
    #[must_use]
    pub const fn with_reason(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Sets the part of the specification that the error is about, unless a more precise one is set already.
    #[must_use]
    pub const fn about(mut self, part: SpecPart) -> Self {
        if self.part.is_none() {
            self.part = Some(part);
        }
        self
    }

    /// Adds what was being done when `self` happened; keeps the kind, the reason and the part, and `self`
    /// becomes the cause.
    #[must_use]
    pub fn context(self, doing: impl Into<String>) -> Self {
        Self {
            kind: self.kind,
            reason: self.reason,
            part: self.part,
            message: doing.into(),
            source: Some(Arc::new(self)),
        }
    }

    /// The class of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the reason for the error; `None` if only its class is known.
    #[must_use]
    pub const fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// Returns the part of the specification that the error is about; `None` if it is about no single one.
    #[must_use]
    pub const fn part(&self) -> Option<SpecPart> {
        self.part
    }

    /// The message and those of all causes, joined by `: `, for a response or a log line.
    #[must_use]
    pub fn report(&self) -> String {
        switchyard_linux::report(self)
    }

    /// [`Error::report`] for a status: at most [`STATUS_TEXT_MAX`] bytes. A longer report is cut in the
    /// middle: its beginning names the object and its end gives the reason.
    #[must_use]
    pub fn status_text(&self) -> String {
        self.text_within(STATUS_TEXT_MAX)
    }

    /// [`Error::report`] in at most `max` bytes, cut as [`Error::status_text`] is.
    pub(crate) fn text_within(&self, max: usize) -> String {
        const CUT: &str = " … ";
        let text = self.report();
        if text.len() <= max {
            return text;
        }
        let end_len = max / 4;
        let begin = text.floor_char_boundary(max.saturating_sub(end_len + CUT.len()));
        let end = text.ceil_char_boundary(text.len() - end_len);
        format!("{}{CUT}{}", &text[..begin], &text[end..])
    }
}

impl From<WorkLost> for Error {
    fn from(lost: WorkLost) -> Self {
        Self::internal(lost.to_string()).with_source(lost)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.kind, self.report())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_keeps_the_reason() {
        let error = Error::unavailable("x")
            .with_reason(Reason::Locked)
            .context("y");
        assert_eq!(error.reason(), Some(Reason::Locked));
        assert_eq!(Error::unavailable("x").reason(), None);
    }

    #[test]
    fn context_keeps_the_part_that_was_named_first() {
        let error = Error::invalid("x", "y")
            .about(SpecPart::Group(2))
            .context("z")
            .about(SpecPart::User);
        assert_eq!(error.part(), Some(SpecPart::Group(2)));
        assert_eq!(Error::unavailable("x").part(), None);
    }

    #[test]
    fn context_keeps_the_kind_and_the_report_names_every_cause() {
        let error = Error::not_found("snapshot abc")
            .context("start task 1")
            .context("start pod");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.to_string(), "start pod");
        assert_eq!(error.report(), "start pod: start task 1: snapshot abc");
    }

    #[test]
    fn text_too_long_for_a_header_is_cut_at_a_character_boundary() {
        let error = Error::not_found("no such file")
            .context("ü".repeat(100_000))
            .context("name");
        let text = error.status_text();
        assert!(
            text.starts_with("name: ü") && text.ends_with("ü: no such file"),
            "{text}"
        );
        assert!(
            text.len() <= STATUS_TEXT_MAX && text.contains("ü … ü"),
            "{text}"
        );
        let short = Error::not_found("x".repeat(STATUS_TEXT_MAX));
        assert_eq!(short.status_text(), short.report());
    }
}
