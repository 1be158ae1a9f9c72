//! The files with which listeners and clients prove who they are: certificates, authorities of clients, and
//! the bearer token. They are read at the start, by a reload, and when a file changes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use switchyard_config::Config;
use switchyard_operator::admin::{BearerToken, Token, TokenError};
use switchyard_tls::{Certificate, NewCertificate, TlsConfig, TlsError};

/// The certificates and tokens that the listeners present and demand.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) streaming: Option<Certificate>,
    pub(crate) metrics: MetricsCredentials,
}

/// The certificate and token of the metrics listener; empty for plain HTTP without a token. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct MetricsCredentials {
    pub(crate) certificate: Option<Certificate>,
    pub(crate) token: Option<BearerToken>,
}

/// Credentials that were read from the files and are not in force yet.
#[derive(Debug)]
pub(crate) struct NewCredentials {
    streaming: Option<NewCertificate>,
    certificate: Option<NewCertificate>,
    token: Option<Token>,
}

/// The reason why files are unusable.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The certificate of the streaming server.
    #[error("cannot serve exec, attach and port-forward: see [cri.streaming] of the configuration")]
    Streaming(#[source] TlsError),
    /// The certificate of the metrics listener, or the authorities of its clients.
    #[error(
        "cannot serve metrics: see admin.metrics_tls_certificate, admin.metrics_tls_key and admin.metrics_client_ca"
    )]
    Metrics(#[source] TlsError),
    /// The token of the metrics listener.
    #[error("cannot serve metrics: see admin.metrics_bearer_token_file")]
    Token(#[source] TokenError),
}

/// Version of a file's content: device, inode, size, mode and owner, and the time of the last change in
/// nanoseconds.
type Stamp = [i128; 6];

/// The stamps of all files at one time; `None` for a file that cannot be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamps(Vec<Option<Stamp>>);

// === impl Credentials ===

impl Credentials {
    /// Puts what was read in force. What was not configured when the daemon started, stays so.
    pub(crate) fn replace(&self, new: NewCredentials) {
        let NewCredentials {
            streaming,
            certificate,
            token,
        } = new;
        for (present, new) in [
            (&self.streaming, streaming),
            (&self.metrics.certificate, certificate),
        ] {
            if let Some((present, new)) = present.as_ref().zip(new) {
                present.replace(new);
            }
        }
        if let Some((present, new)) = self.metrics.token.as_ref().zip(token) {
            present.replace(new);
        }
    }
}

// === impl MetricsCredentials ===

impl MetricsCredentials {
    /// Reads the files of the metrics listener for the first time. Blocks on the file system.
    pub(crate) fn read(config: &Config) -> Result<Self, CredentialError> {
        let certificate = read_metrics_certificate(config)?.map(Certificate::new);
        let token = read_token(config)?.map(BearerToken::new);
        Ok(Self { certificate, token })
    }
}

// === impl NewCredentials ===

impl NewCredentials {
    /// Reads all files. Blocks on the file system.
    pub(crate) fn read(config: &Config) -> Result<Self, CredentialError> {
        Ok(Self {
            streaming: read_streaming_certificate(config)?,
            certificate: read_metrics_certificate(config)?,
            token: read_token(config)?,
        })
    }
}

/// Reads all files that a daemon with this configuration reads when it starts; returns the faults of each. Blocks on the
/// file system.
pub(crate) fn faults(config: &Config) -> Vec<CredentialError> {
    [
        read_streaming_certificate(config).err(),
        read_metrics_certificate(config).err(),
        read_token(config).err(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The files of the streaming server; `None` without them, or without that server.
fn streaming_tls(config: &Config) -> Option<TlsConfig> {
    config
        .cri
        .enabled
        .then(|| config.cri.streaming.tls())
        .flatten()
}

fn read_streaming_certificate(config: &Config) -> Result<Option<NewCertificate>, CredentialError> {
    streaming_tls(config)
        .map(|tls| tls.read())
        .transpose()
        .map_err(CredentialError::Streaming)
}

fn read_metrics_certificate(config: &Config) -> Result<Option<NewCertificate>, CredentialError> {
    config
        .admin
        .metrics_tls()
        .map(|tls| tls.read())
        .transpose()
        .map_err(CredentialError::Metrics)
}

fn read_token(config: &Config) -> Result<Option<Token>, CredentialError> {
    let file = config.admin.metrics_bearer_token_file.as_deref();
    file.map(Token::read)
        .transpose()
        .map_err(CredentialError::Token)
}

// === impl Stamps ===

impl Stamps {
    /// The stamps of the files that a configuration names. Blocks on the file system.
    pub(crate) fn of(config: &Config) -> Self {
        let mut stamps = Vec::new();
        for tls in [streaming_tls(config), config.admin.metrics_tls()]
            .iter()
            .flatten()
        {
            stamps.extend(tls.files().map(stamp));
        }
        stamps.extend(config.admin.metrics_bearer_token_file.as_deref().map(stamp));
        Self(stamps)
    }
}

fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(file).ok()?;
    let changed = i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec());
    Some([
        metadata.dev().into(),
        metadata.ino().into(),
        metadata.size().into(),
        metadata.mode().into(),
        metadata.uid().into(),
        changed,
    ])
}
