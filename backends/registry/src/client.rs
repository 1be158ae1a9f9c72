//! The client: made once, it opens pulls that share its connections and tokens.

mod blob;
mod pull;
mod range_use;
mod request;
mod skipped;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use blob::MAX_RANGES;
pub use blob::{Blob, RangeConfig};
pub use pull::{Image, Pull, Resolved};
use switchyard_core::image::ImageReference;
use switchyard_linux::{WorkLost, blocking};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::auth::Authorizer;
use crate::error::UnexpectedStatus;
use crate::hosts::Host;
use crate::transport::Transport;
use crate::{Credentials, Error, Limits, Result, hosts};

/// The longest pause between two attempts when the server does not name one.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Time for the configuration of the hosts to be read.
const HOSTS_LIMIT: Duration = Duration::from_secs(10);

/// Settings of a [`Client`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The `certs.d` directories, in search order.
    pub hosts_dirs: Vec<PathBuf>,
    /// Time for a connection to be made, unless `dial_timeout` of a host says otherwise.
    pub connect_timeout: Duration,
    /// Time for which a server may send nothing, both before its response and within a body.
    pub idle_timeout: Duration,
    /// Number of retries of a request to the last host, or of an interrupted body. The count of a body starts
    /// again after at least 1 MiB of progress since its last failure.
    pub retries: u32,
    /// The pause before the first retry; it doubles each time, up to ten seconds.
    pub retry_pause: Duration,
    /// The longest pause that a server may ask for (`Retry-After`).
    pub max_retry_after: Duration,
    /// True if a host that is accessed with TLS may redirect requests for content with a known digest to
    /// plain HTTP. Hosts that may be accessed without TLS always may.
    pub http_redirects: bool,
    /// Hosts under another name that get the credentials of a registry: the registry, by the name of the host
    /// (`host[:port]`).
    pub credentials_of: BTreeMap<String, String>,
    /// Settings for downloads of large blobs in ranges.
    pub ranges: RangeConfig,
    /// The limits of an image.
    pub limits: Limits,
}

/// A registry client. Clones share connections, tokens and limits; keep one per process.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Config,
    transport: Transport,
    authorizer: Authorizer,
    /// The permit for the one thread that reads the configuration of hosts: a file system that hangs blocks no other.
    hosts_thread: Arc<Semaphore>,
    /// The permits for the ranges that are downloaded ahead, of all blobs.
    range_permits: Arc<Semaphore>,
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            hosts_dirs: Vec::new(),
            connect_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            retries: 5,
            retry_pause: Duration::from_millis(250),
            max_retry_after: Duration::from_secs(30),
            http_redirects: false,
            credentials_of: BTreeMap::new(),
            ranges: RangeConfig::default(),
            limits: Limits::default(),
        }
    }
}

impl Config {
    /// Returns whether a host gets the credentials for an image.
    fn sends_credentials(&self, host: &Host, reference: &ImageReference) -> bool {
        let is_named = |(name, registry): (&String, &String)| {
            host.is_called(name) && reference.is_served_by(registry)
        };
        host.is_registry || self.credentials_of.iter().any(is_named)
    }

    /// The pause before the attempt that follows `failures` (1 or more) failures, of which `error` is the
    /// last.
    fn pause(&self, failures: u32, error: &Error) -> Duration {
        let doubled = self
            .retry_pause
            .saturating_mul(2u32.saturating_pow(failures.saturating_sub(1)));
        let backoff = doubled.min(MAX_BACKOFF.max(self.retry_pause));
        let asked = if let Error::RateLimited { retry_after, .. } = error {
            *retry_after
        } else {
            let cause = std::error::Error::source(error)
                .and_then(|cause| cause.downcast_ref::<UnexpectedStatus>());
            cause.and_then(|status| status.retry_after)
        };
        backoff.max(asked.unwrap_or_default().min(self.max_retry_after))
    }
}

// === impl Client ===

impl Client {
    /// Makes a client. Nothing is read or connected until the first pull. If the process has not chosen a
    /// cryptography provider for TLS, it becomes ring.
    #[must_use]
    pub fn new(config: Config) -> Self {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // An error means that another thread has installed a provider meanwhile, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let transport = Transport::new(
            config.connect_timeout,
            config.idle_timeout,
            config.http_redirects,
        );
        let hosts_thread = Arc::new(Semaphore::new(1));
        Self {
            shared: Arc::new(Shared {
                config,
                transport,
                authorizer: Authorizer::default(),
                hosts_thread,
                range_permits: Arc::new(Semaphore::new(MAX_RANGES)),
            }),
        }
    }

    /// The configuration that the client was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Opens a pull: reads the configuration of the hosts that may serve `reference`. Nothing is connected
    /// yet.
    ///
    /// The credentials are for the registry that the reference names. Mirrors under another name get
    /// anonymous requests, unless [`Config::credentials_of`] names them, and so do the targets of redirects.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`]; [`Error::Unavailable`] if the configuration cannot be read in time. Cancel-safe.
    pub async fn open(&self, reference: &ImageReference, credentials: Credentials) -> Result<Pull> {
        let hosts = self.hosts(reference).await?;
        Ok(Pull::new(
            Arc::clone(&self.shared),
            reference.clone(),
            credentials,
            hosts,
        ))
    }

    /// Reads the configuration of the hosts that may serve an image, in the order in which they are tried. Cancel-safe:
    /// a read that has begun goes on, and the next one waits for it.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`]; [`Error::Unavailable`] if the file system does not answer in time.
    async fn hosts(&self, reference: &ImageReference) -> Result<Vec<Host>> {
        let roots = self.shared.config.hosts_dirs.clone();
        let name = reference.clone();
        let thread = Arc::clone(&self.shared.hosts_thread);
        let loading = async {
            // A hung file system blocks one thread, which keeps the permit, and not one more for each pull.
            let permit = thread.acquire_owned().await;
            let load = move || {
                let _until_it_returns = permit;
                Ok::<_, WorkLost>(hosts::load(&roots, &name))
            };
            blocking("the search for a registry's configuration", load).await
        };
        let unavailable = |host: String, source| Error::Unavailable {
            what: reference.to_string(),
            host,
            source,
        };
        match timeout(HOSTS_LIMIT, loading).await {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(lost)) => Err(unavailable("this process".to_owned(), lost.into())),
            Err(_) => {
                let dirs = self
                    .shared
                    .config
                    .hosts_dirs
                    .iter()
                    .map(|dir| dir.display().to_string());
                let dirs = dirs.collect::<Vec<_>>().join(" and ");
                let why =
                    format!("it was not read within {HOSTS_LIMIT:?}: does a file system hang?");
                Err(unavailable(
                    format!("the registry configuration in {dirs}"),
                    why.into(),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock stands still: nothing here waits for real time.
    #[tokio::test(start_paused = true)]
    async fn configuration_that_hangs_costs_one_thread_and_fails_the_pull_in_time() {
        let dir = PathBuf::from("/etc/of/registries");
        let client = Client::new(Config {
            hosts_dirs: vec![dir],
            ..Config::default()
        });
        let name: ImageReference = "registry.example/image".parse().unwrap();
        // As the thread of a pull that reads there.
        let hung = Arc::clone(&client.shared.hosts_thread)
            .acquire_owned()
            .await
            .unwrap();
        let late = client
            .open(&name, Credentials::Anonymous)
            .await
            .unwrap_err();
        let Error::Unavailable { host, source, .. } = &late else {
            panic!("{late:?}")
        };
        assert_eq!(host, "the registry configuration in /etc/of/registries");
        assert!(
            source.to_string().contains("does a file system hang?"),
            "{source}"
        );
        drop(hung);
        client.open(&name, Credentials::Anonymous).await.unwrap();
    }

    #[test]
    fn backoff_doubles_to_a_cap_and_honours_retry_after() {
        let config = Config::default();
        let not_found = Error::NotFound {
            what: "it".into(),
            host: "h".into(),
        };
        let pauses: Vec<_> = (1..=8)
            .map(|n| config.pause(n, &not_found).as_millis())
            .collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(config.pause(u32::MAX, &not_found), MAX_BACKOFF);
        let limited = |seconds| Error::RateLimited {
            what: "it".into(),
            host: "h".into(),
            reason: "slowly".into(),
            retry_after: Some(Duration::from_secs(seconds)),
        };
        assert_eq!(config.pause(1, &limited(3)), Duration::from_secs(3));
        assert_eq!(config.pause(1, &limited(3600)), config.max_retry_after);
    }
}
