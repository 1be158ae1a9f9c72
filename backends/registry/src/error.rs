//! The errors of a pull, distinguished by what a caller can do about them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use switchyard_core::image::InvalidReference;

use crate::Digest;

/// A cause of any type, kept as the source of an [`Error`].
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The shortest limit for a connection after which the host is not tried again.
const LONG_CONNECT: Duration = Duration::from_secs(10);

/// Reason why an image could not be pulled. No variant ever holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name of the image cannot be used. Retrying is pointless.
    #[error(transparent)]
    InvalidReference(#[from] InvalidReference),
    /// A file of the host configuration cannot be used. An operator has to correct it.
    #[error("registry configuration {}{}: {reason}", file.display(), KeySuffix(key))]
    InvalidConfig {
        /// The file that is wrong.
        file: PathBuf,
        /// The key inside the file, when one is to blame.
        key: Option<String>,
        /// The fault, and the accepted form.
        reason: String,
        /// The error of the parser or the file system.
        #[source]
        source: Option<BoxError>,
    },
    /// The registry does not have it.
    #[error("{what} was not found on {host}")]
    NotFound {
        /// The requested object.
        what: String,
        /// The host that was asked.
        host: String,
    },
    /// The registry requires credentials, or refused those that were sent.
    #[error("{}", Unauthorized { what, host, reason, given: *given })]
    Unauthorized {
        /// The requested object.
        what: String,
        /// The host that refused: the registry or its token service.
        host: String,
        /// The message of the server.
        reason: String,
        /// True if credentials were given for this host.
        given: bool,
    },
    /// The registry denies access to an authenticated user.
    #[error("{host} denied access to {what}: {reason}")]
    Denied {
        /// The requested object.
        what: String,
        /// The host that refused.
        host: String,
        /// The message of the server.
        reason: String,
    },
    /// The host cannot be reached or is failing: DNS, connection, TLS, time-out or a 5xx answer. May work
    /// later.
    #[error("{host} is unavailable for {what}")]
    Unavailable {
        /// The requested object.
        what: String,
        /// The host that could not serve it.
        host: String,
        /// The failure itself.
        #[source]
        source: BoxError,
    },
    /// The host limits the rate of requests (429).
    #[error("{host} limits the rate of requests; {what} has to wait: {reason}")]
    RateLimited {
        /// The requested object.
        what: String,
        /// The host that limits requests.
        host: String,
        /// The message of the server.
        reason: String,
        /// The wait that the host requested, if it did.
        retry_after: Option<Duration>,
    },
    /// The server sent something that the specification does not allow.
    #[error("{what}: {reason}")]
    Protocol {
        /// The requested object.
        what: String,
        /// The violation in the answer, with the host where it is known.
        reason: String,
        /// The parser's error, if there was one.
        #[source]
        source: Option<BoxError>,
    },
    /// The received bytes do not have the requested digest.
    #[error("{what} has digest {actual} instead of {expected}")]
    DigestMismatch {
        /// The requested object.
        what: String,
        /// The digest in the reference, the descriptor or the header.
        expected: Digest,
        /// The digest of what arrived.
        actual: Digest,
    },
    /// More or fewer bytes arrived than the descriptor says.
    #[error("{what} has {actual} bytes instead of {expected}")]
    SizeMismatch {
        /// The requested object.
        what: String,
        /// Bytes by the descriptor.
        expected: u64,
        /// Bytes that the server announced or sent; reading stops at the first one too many.
        actual: u64,
    },
    /// A document or an image exceeds a limit of this client.
    #[error("{what} has {size}, more than the limit of {limit}{}", KeyInBrackets(*key))]
    TooLarge {
        /// The requested object.
        what: String,
        /// Its size as far as it is known: a number with its unit.
        size: String,
        /// The limit, in the same unit.
        limit: u64,
        /// The key of the configuration that sets the limit, if there is one.
        key: Option<&'static str>,
    },
    /// The image is of a kind that cannot be run here.
    #[error("{what} has the media type {media_type:?}, {reason}")]
    UnsupportedMediaType {
        /// The manifest, config or layer.
        what: String,
        /// Its media type.
        media_type: String,
        /// Reason of the refusal, and the cure, to be read after the media type.
        reason: &'static str,
    },
    /// The index has no entry for this machine.
    #[error("{what} has no image for {wanted}; it has: {available}")]
    NoMatchingPlatform {
        /// The index.
        what: String,
        /// The platform that was wanted.
        wanted: String,
        /// The platforms that the index offers.
        available: String,
    },
}

/// A response that means a temporary failure, as the source of [`Error::Unavailable`].
#[derive(Debug, thiserror::Error)]
#[error("the server answered {status}: {detail}")]
pub(crate) struct UnexpectedStatus {
    pub(crate) status: u16,
    pub(crate) detail: String,
    /// The wait that the server requested.
    pub(crate) retry_after: Option<Duration>,
}

/// A certificate that one side does not accept, as the source of [`Error::Unavailable`]. Asking again changes nothing.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct CertificateRefused {
    /// Description of whose certificate it is, and of the files that are to be looked at.
    pub(crate) reason: String,
    pub(crate) source: BoxError,
}

/// A server that sends nothing for too long, as the source of [`Error::Unavailable`].
#[derive(Debug, thiserror::Error)]
#[error("nothing was received for {} ms", waited.as_millis())]
pub(crate) struct Idle {
    pub(crate) waited: Duration,
}

/// A body that did not end in time, as the source of [`Error::Unavailable`].
#[derive(Debug, thiserror::Error)]
#[error("its body did not end within {} s", limit.as_secs())]
pub(crate) struct Slow {
    pub(crate) limit: Duration,
}

/// The message of a parser, as the source of an error. Parsers quote the document, so it is escaped.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(String);

/// The longest untrusted text in an error, in characters.
pub(crate) const SHOWN_LIMIT: usize = 300;

/// An untrusted text, made safe for logs and terminals: truncated, and with control characters and those that
/// reverse or break lines escaped.
pub(crate) fn shown(text: &str) -> String {
    let invisible = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let mut shown = String::new();
    let mut length = 0;
    for c in text.chars() {
        let escaped = if invisible(c) {
            c.escape_unicode().to_string()
        } else {
            c.to_string()
        };
        length += escaped.chars().count();
        if length > SHOWN_LIMIT {
            break;
        }
        shown.push_str(&escaped);
    }
    shown
}

/// Formats [`Error::Unauthorized`].
struct Unauthorized<'a> {
    what: &'a str,
    host: &'a str,
    reason: &'a str,
    given: bool,
}

/// Formats the key of a limit, if there is one.
struct KeyInBrackets(Option<&'static str>);

/// Formats a key after the name of its file, if there is one.
struct KeySuffix<'a>(&'a Option<String>);

// === impl Error ===

impl Error {
    /// Returns whether the same request to the same host may succeed soon.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { source, .. } => !source.is::<CertificateRefused>(),
            Self::RateLimited { .. } => true,
            Self::InvalidReference(_)
            | Self::InvalidConfig { .. }
            | Self::NotFound { .. }
            | Self::Unauthorized { .. }
            | Self::Denied { .. }
            | Self::Protocol { .. }
            | Self::DigestMismatch { .. }
            | Self::SizeMismatch { .. }
            | Self::TooLarge { .. }
            | Self::UnsupportedMediaType { .. }
            | Self::NoMatchingPlatform { .. } => false,
        }
    }

    /// Returns whether no connection was made within this limit for one, which is a long one. Another attempt would take as long,
    /// and most hosts that do not answer for so long do not answer soon. Within a short limit one lost packet suffices.
    #[must_use]
    pub(crate) fn is_long_connect(&self, limit: Duration) -> bool {
        let Self::Unavailable { source, .. } = self else {
            return false;
        };
        let is_connect_limit = source
            .downcast_ref::<reqwest::Error>()
            .is_some_and(|error| error.is_connect() && error.is_timeout());
        is_connect_limit && limit >= LONG_CONNECT
    }

    pub(crate) fn protocol(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Protocol {
            what: what.into(),
            reason: reason.into(),
            source: None,
        }
    }
}

// === impl Malformed ===

impl Malformed {
    pub(crate) fn boxed(error: &serde_json::Error) -> BoxError {
        Self(shown(&error.to_string())).into()
    }
}

// === impl Unauthorized ===

impl fmt::Display for Unauthorized<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            host,
            reason,
            given,
        } = self;
        if *given {
            write!(
                f,
                "{host} refused the credentials for {what}: {reason}; check user name, password or token"
            )
        } else {
            write!(
                f,
                "{host} wants credentials for {what}, and none were given for it: {reason}; check the name, or give credentials"
            )
        }
    }
}

// === impl KeyInBrackets ===

impl fmt::Display for KeyInBrackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(key) => write!(f, " ({key})"),
            None => Ok(()),
        }
    }
}

// === impl KeySuffix ===

impl fmt::Display for KeySuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(key) => write!(f, ": key {key:?}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use reqwest::dns::{Name, Resolve, Resolving};

    use super::*;

    #[test]
    fn remote_text_is_truncated_and_escaped() {
        assert_eq!(shown("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\u{a}b");
        assert_eq!(shown("\u{202e}x"), "\\u{202e}x");
        assert_eq!(shown(&"x".repeat(1000)).len(), SHOWN_LIMIT);
        assert!(shown(&"\u{0}".repeat(1000)).len() <= SHOWN_LIMIT);
        assert_eq!(shown(&"\u{e9}".repeat(1000)).chars().count(), SHOWN_LIMIT);
    }

    /// Resolves the name `silent.example` never, and all others to nothing.
    #[derive(Debug)]
    struct Names;

    impl Resolve for Names {
        fn resolve(&self, name: Name) -> Resolving {
            let is_silent = name.as_str() == "silent.example";
            Box::pin(async move {
                if is_silent {
                    std::future::pending::<()>().await;
                }
                Err(BoxError::from("no such name"))
            })
        }
    }

    /// The clock stands still while anything else can happen.
    #[tokio::test(start_paused = true)]
    async fn only_a_connection_that_took_a_long_limit_is_not_repeated() {
        // The provider of cryptography may have been chosen by another test.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .no_proxy()
            .dns_resolver(std::sync::Arc::new(Names))
            .connect_timeout(Duration::from_secs(30))
            .build()
            .expect("a client");
        let unavailable = |source: BoxError| Error::Unavailable {
            what: "pay/api:7".to_owned(),
            host: "registry.example".to_owned(),
            source,
        };
        for (name, expected) in [("silent.example", true), ("unknown.example", false)] {
            let url = format!("http://{name}/");
            let error = client.get(&url).send().await.expect_err("nobody answers");
            let error = unavailable(error.into());
            for (seconds, is_long) in [(30, true), (10, true), (9, false), (1, false)] {
                assert_eq!(
                    error.is_long_connect(Duration::from_secs(seconds)),
                    expected && is_long,
                    "{name}, {seconds} s"
                );
            }
        }
        let idle = Idle {
            waited: Duration::from_secs(60),
        };
        let limit = Duration::from_secs(30);
        assert!(!unavailable(idle.into()).is_long_connect(limit));
        assert!(!Error::protocol("pay/api:7", "no").is_long_connect(limit));
    }

    #[test]
    fn missing_credentials_are_not_called_refused() {
        let text = |given| {
            let error = Error::Unauthorized {
                what: "pay/api:7".to_owned(),
                host: "registry.example".to_owned(),
                reason: "no".to_owned(),
                given,
            };
            error.to_string()
        };
        let refused = text(true);
        assert!(
            refused.contains("registry.example refused the credentials for pay/api:7: no"),
            "{refused}"
        );
        let missing = text(false);
        assert!(
            missing.contains("none were given for it: no") && !missing.contains("refused"),
            "{missing}"
        );
    }
}
