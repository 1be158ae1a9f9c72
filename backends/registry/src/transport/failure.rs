//! Reasons why a request got no response, by the errors of the HTTP and TLS libraries.

use std::error::Error as _;
use std::time::Duration;

use rustls::AlertDescription as Alert;
use url::Url;

use super::{guard, refused};
use crate::error::{CertificateRefused, Idle, shown};
use crate::hosts::{Pem, PlainHttp, Tls};
use crate::{BoxError, Error};

/// A request without a response.
pub(super) enum Failure {
    Request(reqwest::Error),
    Idle,
}

/// Whoever does not accept the other's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refuser {
    Node,
    Server,
}

// === impl Failure ===

impl Failure {
    /// Returns whether the request may be repeated without TLS after this failure.
    pub(super) fn may_be_plain(&self, plain_http: PlainHttp) -> bool {
        match (self, plain_http) {
            (Self::Request(error), PlainHttp::IfTlsFails) => {
                error.is_connect() || is_plain_answer(error)
            }
            (Self::Request(error), PlainHttp::IfServerIsPlain) => is_plain_answer(error),
            (Self::Request(_), PlainHttp::Never) | (Self::Idle, _) => false,
        }
    }

    /// The error of a request to `url` for `what`, which was sent with the settings `tls`.
    pub(super) fn into_error(
        self,
        (url, what): (&Url, &str),
        tls: &Tls,
        idle_timeout: Duration,
    ) -> Error {
        let source: BoxError = match self {
            Self::Idle => Idle {
                waited: idle_timeout,
            }
            .into(),
            Self::Request(error) => {
                if let Some(refusal) = guard::refusal(&error) {
                    return refused(what, refusal);
                }
                match tls_error(&error).and_then(refuser) {
                    None => error.into(),
                    Some(refuser) => CertificateRefused {
                        reason: reason(refuser, tls),
                        source: error.into(),
                    }
                    .into(),
                }
            }
        };
        Error::Unavailable {
            what: what.to_owned(),
            host: shown(url.authority()),
            source,
        }
    }
}

/// Says who refuses which certificate, and which files are to be looked at.
fn reason(refuser: Refuser, tls: &Tls) -> String {
    let files = |pems: &[&Pem], between: &str| {
        let names = pems.iter().map(|pem| pem.file.display().to_string());
        names.collect::<Vec<_>>().join(between)
    };
    match refuser {
        Refuser::Node => {
            let own: Vec<&Pem> = tls.authorities.iter().collect();
            let and = if own.is_empty() { "" } else { " and " };
            format!(
                "its certificate is not accepted by the authorities of this node's trust store{and}{}",
                files(&own, " and ")
            )
        }
        Refuser::Server if tls.clients.is_empty() => {
            "it wants a client certificate, and hosts.toml has none for it".to_owned()
        }
        Refuser::Server => {
            let own: Vec<&Pem> = tls.clients.iter().map(|pair| &pair.certificate).collect();
            let own = files(&own, " or ");
            format!("it does not accept the client certificate in {own}")
        }
    }
}

/// Whoever has refused the other's certificate, if that is what an error of TLS is about.
fn refuser(error: &rustls::Error) -> Option<Refuser> {
    use rustls::Error as E;
    if matches!(error, E::InvalidCertificate(_) | E::NoCertificatesPresented) {
        return Some(Refuser::Node);
    }
    let E::AlertReceived(alert) = error else {
        return None;
    };
    let is_about_ours = matches!(
        alert,
        Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired
    );
    is_about_ours.then_some(Refuser::Server)
}

/// Returns whether the TLS handshake failed because the server does not speak TLS.
fn is_plain_answer(error: &reqwest::Error) -> bool {
    matches!(tls_error(error), Some(rustls::Error::InvalidMessage(_)))
}

/// The error of TLS that a request failed with.
fn tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An I/O error hides what it wraps from `source`.
        let wrapped = error.downcast_ref().and_then(std::io::Error::get_ref);
        cause = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use rustls::{CertificateError, Error as E};

    use super::*;

    #[test]
    fn certificates_are_told_from_other_faults_of_tls() {
        for (error, expected) in [
            (
                E::InvalidCertificate(CertificateError::UnknownIssuer),
                Some(Refuser::Node),
            ),
            (
                E::InvalidCertificate(CertificateError::Expired),
                Some(Refuser::Node),
            ),
            (
                E::InvalidCertificate(CertificateError::NotValidForName),
                Some(Refuser::Node),
            ),
            (E::NoCertificatesPresented, Some(Refuser::Node)),
            (E::AlertReceived(Alert::UnknownCA), Some(Refuser::Server)),
            (
                E::AlertReceived(Alert::CertificateRequired),
                Some(Refuser::Server),
            ),
            (
                E::AlertReceived(Alert::BadCertificate),
                Some(Refuser::Server),
            ),
            (E::AlertReceived(Alert::HandshakeFailure), None),
            (E::AlertReceived(Alert::InternalError), None),
            (E::DecryptError, None),
        ] {
            assert_eq!(refuser(&error), expected, "{error}");
        }
    }
}
