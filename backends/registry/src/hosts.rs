//! The hosts that an image may be pulled from: containerd's `certs.d` directories, read again for each pull.
//!
//! Below each configured root there may be a directory per registry (`host_port_`, `host:port` or `host`) or
//! one named `_default` for all others. The first root that has one of them is used. In it, `hosts.toml`
//! lists mirrors in the order they are tried; the registry itself (or `server`) comes last. Without a
//! `hosts.toml`, certificates in Docker's layout (`*.crt`, `*.cert` with `*.key`) are used for the registry
//! itself.

pub(crate) mod file;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::HeaderMap;
use switchyard_core::image::{ImageReference, InvalidReference, ReferenceField};
use switchyard_node_files::{list, read, read_text};
use url::Url;

use crate::{Error, Result};

/// The largest `hosts.toml`, in bytes.
const MAX_HOSTS_TOML: u64 = 1 << 20;
/// The largest file with certificates or a key, in bytes: bundles of all public authorities have a quarter of
/// a MiB.
const MAX_PEM: u64 = 4 << 20;
/// The most entries of a directory with certificates.
const MAX_ENTRIES: usize = 1000;

/// The operations that a host may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Content by digest.
    pub pull: bool,
    /// Resolving tags.
    pub resolve: bool,
    /// Storing content; kept for completeness, this client never pushes.
    pub push: bool,
}

/// One place that may serve an image.
#[derive(Debug, Clone)]
pub struct Host {
    /// The root of the API, without a slash at the end: `https://mirror.example/v2`.
    pub(crate) base: Url,
    /// Use of plain HTTP if the server does not speak TLS.
    pub(crate) plain_http: PlainHttp,
    /// The operations that it may be used for.
    pub(crate) capabilities: Capabilities,
    /// Certificates, and how to check the server's.
    pub(crate) tls: Tls,
    /// Sent with each request to this host, and nowhere else.
    pub(crate) headers: HeaderMap,
    /// Time for a connection to be made; the client's default if None.
    pub(crate) dial_timeout: Option<Duration>,
    /// A proxy for this host, instead of the one of the environment.
    pub(crate) proxy: Option<Url>,
    /// Sent as `ns` to mirrors, so that one mirror can serve several registries.
    pub(crate) namespace: Option<String>,
    /// True if this is the registry of the reference, so that its credentials may be sent.
    pub(crate) is_registry: bool,
}

/// Condition on which plain HTTP may be used although the base URL has the scheme `https`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlainHttp {
    /// Never.
    Never,
    /// If the server answers the TLS handshake in plain text (an `http://` host that has TLS settings).
    IfServerIsPlain,
    /// If the TLS connection fails in any way (loopback, which cannot be eavesdropped on from the network).
    IfTlsFails,
}

/// A PEM file and its contents, so that a changed file leads to new connections.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pem {
    pub(crate) file: PathBuf,
    pub(crate) content: Vec<u8>,
}

/// A client certificate with its key, which may be in the same file.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClientPair {
    pub(crate) certificate: Pem,
    pub(crate) key: Option<Pem>,
}

/// The TLS settings of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tls {
    pub(crate) authorities: Vec<Pem>,
    /// The certificates of which one is presented, by what the server accepts.
    pub(crate) clients: Vec<ClientPair>,
    /// `None` if the configuration does not set it.
    pub(crate) skip_verify: Option<bool>,
}

/// The hosts for `reference`, in the order they are tried. Reads files, so it blocks.
///
/// # Errors
/// [`Error::InvalidConfig`] that names the file and the key.
pub(crate) fn load(roots: &[PathBuf], reference: &ImageReference) -> Result<Vec<Host>> {
    let mut hosts = match find_directory(roots, reference.registry())? {
        Some(directory) => load_directory(&directory, reference)?,
        None => vec![Host::registry(reference)?],
    };
    for host in &mut hosts {
        host.is_registry |= host.names().iter().any(|name| reference.is_served_by(name));
        host.namespace = (!host.is_registry).then(|| reference.registry().to_owned());
    }
    Ok(hosts)
}

fn find_directory(roots: &[PathBuf], registry: &str) -> Result<Option<PathBuf>> {
    let mut names = vec![registry.to_owned(), "_default".to_owned()];
    // The bracket is part of an IPv6 address without a port.
    if let Some((host, port)) = registry
        .rsplit_once(':')
        .filter(|(_, port)| !port.ends_with(']'))
    {
        names.insert(0, format!("{host}_{port}_"));
    }
    for path in roots
        .iter()
        .flat_map(|root| names.iter().map(move |name| root.join(name)))
    {
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => return Ok(Some(path)),
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => return Err(unreadable(&path, error)),
        }
    }
    Ok(None)
}

fn load_directory(directory: &Path, reference: &ImageReference) -> Result<Vec<Host>> {
    let file = directory.join("hosts.toml");
    match read_text(&file, MAX_HOSTS_TOML) {
        Ok(text) if !text.trim().is_empty() => file::parse(&file, &text, reference),
        Ok(_) => load_certificates(directory, reference),
        Err(error) if error.is_not_found() => load_certificates(directory, reference),
        Err(error) => Err(unreadable(&file, error)),
    }
}

/// Docker's layout: every `*.crt` is an authority, `name.cert` and `name.key` are a client pair.
fn load_certificates(directory: &Path, reference: &ImageReference) -> Result<Vec<Host>> {
    let files = list(directory, MAX_ENTRIES).map_err(|error| unreadable(directory, error))?;
    let mut host = Host::registry(reference)?;
    for file in &files {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("crt") => host.tls.authorities.push(Pem::read(file.clone(), None)?),
            Some("cert") => {
                // Without a key beside it, its own is in the same file.
                let key = file.with_extension("key");
                let is_beside = files.contains(&key);
                let key = is_beside.then(|| Pem::read(key, None)).transpose()?;
                let certificate = Pem::read(file.clone(), None)?;
                host.tls.clients.push(ClientPair { certificate, key });
            }
            Some("key") if !files.contains(&file.with_extension("cert")) => {
                tracing::warn!(file = %file.display(), "a key without a certificate beside it (.cert) is ignored");
            }
            Some(_) | None => {}
        }
    }
    Ok(vec![host])
}

/// Returns whether a URL's host is a loopback address or name.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let name = url.host_str().unwrap_or_default();
    let address = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    name == "localhost"
        || name.ends_with(".localhost")
        || address.is_ok_and(|address| address.is_loopback())
}

fn unreadable(file: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidConfig {
        file: file.to_owned(),
        key: None,
        reason: "cannot be read".to_owned(),
        source: Some(Box::new(error)),
    }
}

fn invalid(file: &Path, key: Option<String>, reason: impl Into<String>) -> Error {
    Error::InvalidConfig {
        file: file.to_owned(),
        key,
        reason: reason.into(),
        source: None,
    }
}

// === impl Capabilities ===

impl Capabilities {
    /// Everything, the default of a host.
    pub const ALL: Self = Self {
        pull: true,
        resolve: true,
        push: true,
    };
}

// === impl Host ===

impl Host {
    /// The registry of `reference` itself, without configuration. On loopback, with a port that is not a
    /// default one, TLS is tried first and plain HTTP if that fails, and certificates are not verified, as in
    /// containerd.
    pub(crate) fn registry(reference: &ImageReference) -> Result<Self> {
        let authority = reference.resolve_host();
        let parse = |scheme: &str| {
            Url::parse(&format!("{scheme}://{authority}/v2")).map_err(|_| InvalidReference {
                reference: reference.to_string(),
                field: ReferenceField::Registry,
                reason: "cannot be the host of a URL",
            })
        };
        let mut host = Self {
            base: parse("https")?,
            plain_http: PlainHttp::Never,
            capabilities: Capabilities::ALL,
            tls: Tls::default(),
            headers: HeaderMap::new(),
            dial_timeout: None,
            proxy: None,
            namespace: None,
            is_registry: true,
        };
        if host.is_loopback() {
            match host.base.port() {
                // The default port of HTTPS.
                None => host.tls.skip_verify = Some(true),
                Some(80) => host.base = parse("http")?,
                Some(_) => {
                    host.tls.skip_verify = Some(true);
                    host.plain_http = PlainHttp::IfTlsFails;
                }
            }
        }
        Ok(host)
    }

    /// `host[:port]`, the name of this host in messages.
    #[must_use]
    pub fn authority(&self) -> String {
        self.base.authority().to_owned()
    }

    /// Its names: a URL omits the default port of its scheme, which may be written all the same.
    fn names(&self) -> [String; 2] {
        let authority = self.authority();
        let port = self.base.port_or_known_default().unwrap_or(0);
        let with_port = format!("{authority}:{port}");
        [authority, with_port]
    }

    /// Returns whether `name` (`host[:port]`) is this host.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let names = self.names();
        names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// The operations that this host may be used for.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Returns whether it is this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        is_loopback(&self.base)
    }

    /// The URL of a path below the API's root: `url("library/busybox/manifests/latest")`.
    pub(crate) fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!(
            "{}/{path}",
            self.base.path().trim_end_matches('/')
        ));
        if let Some(namespace) = &self.namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        url
    }
}

// === impl Pem ===

impl Pem {
    /// # Errors
    /// [`Error::InvalidConfig`] that names `from` (the configuration and its key) or else the file.
    fn read(file: PathBuf, from: Option<(&Path, &str)>) -> Result<Self> {
        match read(&file, MAX_PEM) {
            Ok(content) => Ok(Self { file, content }),
            Err(error) => Err(match from {
                None => unreadable(&file, error),
                Some((config, key)) => Error::InvalidConfig {
                    file: config.to_owned(),
                    key: Some(key.to_owned()),
                    reason: format!("names {}, which cannot be read", file.display()),
                    source: Some(Box::new(error)),
                },
            }),
        }
    }
}

// === impl ClientPair ===

impl std::fmt::Debug for ClientPair {
    /// The key stays out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientPair")
            .field("certificate", &self.certificate.file)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
