//! The hosts that could not serve a request, and which of their errors is told when none could.

use crate::error::{CertificateRefused, UnexpectedStatus};
use crate::{Error, Host};

/// The most telling error of the hosts that were asked before the last one.
#[derive(Debug, Default)]
pub(super) struct SkippedHosts(Option<(Weight, Error)>);

/// Measure of how much an error tells of why an image cannot be had, least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// The host was not reached, or did not go on.
    Silence,
    /// A mirror does not have it, which need not have everything.
    Absence,
    /// The host refuses, fails, or is not the one that it should be: somebody has to do something about it.
    Answer,
    /// The registry itself does not have it.
    Verdict,
}

impl SkippedHosts {
    /// Logs the error of a host that is not the last one, and keeps it unless an earlier one tells as much.
    pub(super) fn add(&mut self, host: &Host, error: Error) {
        tracing::warn!(host = %host.authority(), %error, cause = cause(&error), "mirror could not serve, asking the next host");
        let weight = weigh(&error, host.is_registry);
        if self.0.as_ref().is_none_or(|(kept, _)| weight > *kept) {
            self.0 = Some((weight, error));
        }
    }

    /// The error to tell after the last host could not serve either, which stands for the registry. That the registry
    /// does not have it is the answer. Else the first error is told, as a node behind a mirror often cannot reach the
    /// registry at all.
    pub(super) fn told(self, last: Error) -> Error {
        let Some((weight, first)) = self.0 else {
            return last;
        };
        if weigh(&last, true) > weight {
            return last;
        }
        tracing::warn!(error = %last, cause = cause(&last), "the last host could not serve either");
        first
    }
}

fn weigh(error: &Error, is_registry: bool) -> Weight {
    match error {
        Error::Unavailable { source, .. }
            if source.is::<UnexpectedStatus>() || source.is::<CertificateRefused>() =>
        {
            Weight::Answer
        }
        Error::Unavailable { .. } => Weight::Silence,
        Error::NotFound { .. } if is_registry => Weight::Verdict,
        Error::NotFound { .. } => Weight::Absence,
        Error::InvalidReference(_)
        | Error::InvalidConfig { .. }
        | Error::Unauthorized { .. }
        | Error::Denied { .. }
        | Error::RateLimited { .. }
        | Error::Protocol { .. }
        | Error::DigestMismatch { .. }
        | Error::SizeMismatch { .. }
        | Error::TooLarge { .. }
        | Error::UnsupportedMediaType { .. }
        | Error::NoMatchingPlatform { .. } => Weight::Answer,
    }
}

fn cause(error: &Error) -> String {
    std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Idle;

    fn unavailable(host: &str, source: crate::BoxError) -> Error {
        Error::Unavailable {
            what: "it".to_owned(),
            host: host.to_owned(),
            source,
        }
    }

    fn fails(host: &str) -> Error {
        let source = UnexpectedStatus {
            status: 500,
            detail: String::new(),
            retry_after: None,
        };
        unavailable(host, source.into())
    }

    fn untrusted(host: &str) -> Error {
        let source = CertificateRefused {
            reason: "unknown".to_owned(),
            source: "x".into(),
        };
        unavailable(host, source.into())
    }

    fn unreachable(host: &str) -> Error {
        unavailable(
            host,
            std::io::Error::from(std::io::ErrorKind::HostUnreachable).into(),
        )
    }

    fn silent(host: &str) -> Error {
        let waited = std::time::Duration::from_secs(1);
        unavailable(host, Idle { waited }.into())
    }

    fn absent(host: &str) -> Error {
        Error::NotFound {
            what: "it".to_owned(),
            host: host.to_owned(),
        }
    }

    fn denied(host: &str) -> Error {
        Error::Denied {
            what: "it".to_owned(),
            host: host.to_owned(),
            reason: String::new(),
        }
    }

    fn wants_credentials(host: &str) -> Error {
        Error::Unauthorized {
            what: "it".to_owned(),
            host: host.to_owned(),
            reason: String::new(),
            given: false,
        }
    }

    /// The errors of hosts in the order in which they were asked, and the number of the one that is told.
    #[test]
    fn first_error_is_told_unless_a_later_one_says_more() {
        type Make = fn(&str) -> Error;
        let cases: &[(&[Make], usize)] = &[
            (&[fails, unreachable], 0),
            (&[untrusted, unreachable], 0),
            (&[wants_credentials, unreachable], 0),
            (&[denied, silent], 0),
            (&[denied, fails, unreachable], 0),
            (&[absent, unreachable], 0),
            (&[unreachable, silent], 0),
            (&[unreachable, denied, silent], 1),
            (&[absent, fails, unreachable], 1),
            (&[absent, wants_credentials], 1),
            (&[unreachable, denied], 1),
            (&[fails, wants_credentials], 0),
            // The registry itself has the last word on what it has.
            (&[fails, absent], 1),
            (&[untrusted, denied, absent], 2),
            (&[absent], 0),
        ];
        let reference = "registry.example/app:v1".parse().unwrap();
        let registry = Host::registry(&reference).unwrap();
        let mirror = Host {
            is_registry: false,
            ..registry.clone()
        };
        for (makes, told) in cases {
            let mut errors: Vec<Error> = makes
                .iter()
                .enumerate()
                .map(|(number, make)| make(&format!("host-{number}")))
                .collect();
            let last = errors.pop().unwrap();
            let mut skipped = SkippedHosts::default();
            for error in errors {
                skipped.add(&mirror, error);
            }
            let text = skipped.told(last).to_string();
            assert!(text.contains(&format!("host-{told}")), "{text}: not {told}");
        }
        // A hosts.toml that lists the registry as a host, with its authority, and asks it once more without.
        let lasts: [Make; 3] = [untrusted, wants_credentials, unreachable];
        for last in lasts {
            let mut skipped = SkippedHosts::default();
            skipped.add(&mirror, fails("host-0"));
            skipped.add(&registry, absent("host-1"));
            let text = skipped.told(last("host-2")).to_string();
            assert!(text.contains("host-1"), "{text}");
        }
    }
}
