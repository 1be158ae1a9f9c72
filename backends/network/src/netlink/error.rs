//! Reasons why something could not be done by netlink.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

/// Failure of a call of [`crate::netlink`].
#[derive(Debug, Error)]
pub enum NetlinkError {
    /// The kernel has refused a request. Requests before and after it in the same batch may have been carried out.
    #[error("cannot {doing}{}", said(text.as_deref()))]
    Refused {
        /// Action that was requested.
        doing: String,
        /// Text of the kernel beside the number, where it gives one.
        text: Option<String>,
        /// The reason.
        source: Errno,
    },
    /// The socket has failed. Requests that were sent may have been carried out.
    #[error("cannot {doing}")]
    Socket {
        /// Action that was requested.
        doing: String,
        /// The reason.
        source: io::Error,
    },
    /// The kernel has not answered in time. Requests that were sent may have been carried out.
    #[error("cannot {doing}: the kernel has not answered within {seconds} s")]
    Timeout {
        /// Action that was requested.
        doing: String,
        /// Time that was waited for it.
        seconds: u64,
    },
    /// The kernel's answer cannot be understood.
    #[error("cannot {doing}: the kernel's answer is not understood: {reason}")]
    Malformed {
        /// Action that was requested.
        doing: String,
        /// Description of what is wrong with it.
        reason: &'static str,
    },
    /// Data that was to be read has changed in each attempt to read it.
    #[error("cannot {doing}: it changed during each of {tries} attempts; try again")]
    Unsteady {
        /// Action that was requested.
        doing: String,
        /// Number of attempts.
        tries: u32,
    },
    /// A request is longer than netlink allows. Nothing was sent.
    #[error("cannot {doing}: the request is too long for netlink")]
    TooLong {
        /// Action that was requested.
        doing: String,
    },
    /// There are more requests than the kernel's answers have room for. Nothing was sent.
    #[error(
        "{requests} requests to the kernel at once are too many: at most {most} can be answered"
    )]
    TooMany {
        /// Number of requests.
        requests: usize,
        /// Limit of requests.
        most: usize,
    },
    /// Events were lost, because they were not read in time: what they told must be looked at.
    #[error("events of the kernel were lost: they came faster than they were read")]
    EventsLost,
    /// A name is none of a network device.
    #[error(
        "{name:?} is no name of a network device: it has 1 to 15 letters, digits and signs, without blanks, /, : and %, and is not all or default"
    )]
    LinkName {
        /// The name.
        name: String,
    },
    /// An address or a length of a prefix is impossible.
    #[error("cannot use {value}: {reason}")]
    Value {
        /// Value that was given.
        value: String,
        /// Description of what is wrong with it.
        reason: &'static str,
    },
    /// A network namespace could not be opened or entered.
    #[error("cannot {doing} {}", path.display())]
    Namespace {
        /// Action that was requested.
        doing: &'static str,
        /// The file of the namespace.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The thread that worked in a namespace has panicked.
    #[error("the thread for the network namespace {} panicked", path.display())]
    ThreadLost {
        /// The file of the namespace.
        path: PathBuf,
    },
    /// A kernel parameter could not be read or written.
    #[error("cannot {doing} the kernel parameter {}", path.display())]
    Parameter {
        /// Action that was requested: to read, or to set it to a value.
        doing: String,
        /// Its file, in the namespace of the thread.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

// === impl NetlinkError ===

impl NetlinkError {
    /// The number by which the kernel has refused a request.
    #[must_use]
    pub const fn refusal(&self) -> Option<Errno> {
        if let Self::Refused { source, .. } = self {
            Some(*source)
        } else {
            None
        }
    }
}

fn said(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(": {text}"))
}
