//! The pages about running containers: their metrics, and the counters that `switchyard top` shows. Requests that
//! come within seconds share one reading of the node, and the text of metrics is written while it is sent.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use futures::stream;
use parking_lot::Mutex;
use serde::Deserialize;
use switchyard_container_metrics::Chunks;
use switchyard_core::id::Owner;
use switchyard_core::{Error, Result};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{ListenerPages, Reach, json, owner_named, status_of, text};
use crate::config::ContainerMetrics;
use crate::metrics::CONTENT_TYPE as METRICS_TYPE;
use crate::status::{ContainerReading, ContainersView, StatusSource};
use crate::wiring;

const PATH: &str = "/metrics/containers";

/// For how long a reading is served, from its beginning; and how long it may take, so that there is never a
/// second one at the same time.
const READING_AGE: Duration = Duration::from_secs(5);

/// The latest reading of the node, which clones share.
#[derive(Clone, Default)]
pub(super) struct LatestReading(Arc<Mutex<Option<Reading>>>);

/// A reading that may be under way.
struct Reading {
    begun: Instant,
    result: Shared<BoxFuture<'static, Result<Arc<ContainerReading>>>>,
    /// Continues it if nobody waits for it.
    going_on: Option<AbortOnDropHandle<()>>,
}

/// Whose containers are asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ContainersQuery {
    owner: Option<String>,
}

/// Whether the page is served on listeners of this reach.
pub(super) const fn is_served(exposure: ContainerMetrics, reach: Reach) -> bool {
    match (exposure, reach) {
        (ContainerMetrics::Off, _) | (ContainerMetrics::Local, Reach::Network) => false,
        (ContainerMetrics::Local, Reach::Local) | (ContainerMetrics::Network, _) => true,
    }
}

pub(super) fn routes() -> Router<ListenerPages> {
    Router::new().route(PATH, get(containers))
}

/// The routes of the unix socket alone.
pub(super) fn local_routes() -> Router<ListenerPages> {
    Router::new().route("/v1/containers", get(usage))
}

async fn usage(
    State(pages): State<ListenerPages>,
    query: std::result::Result<Query<ContainersQuery>, QueryRejection>,
) -> Response {
    let owner = match query.map_err(|error| error.body_text()).and_then(|Query(query)| query.checked()) {
        Ok(owner) => owner,
        Err(why) => return text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    };
    match pages.admin.containers.get(&*pages.admin.source).await {
        Ok(reading) => json(&ContainersView::of(&reading, owner, wiring::names)),
        Err(error) => {
            text(status_of(error.kind()), format!("the containers cannot be read: {}\n", error.report()))
        }
    }
}

async fn containers(
    State(pages): State<ListenerPages>,
    query: std::result::Result<Query<ContainersQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let owner = match query.map_err(|error| error.body_text()).and_then(|Query(query)| query.checked()) {
        Ok(owner) => owner,
        Err(why) => return text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    };
    match pages.admin.containers.get(&*pages.admin.source).await {
        Ok(reading) => page(reading.figures.chunks(owner), accepts_gzip(&headers)),
        Err(error) => {
            let why = format!("the metrics of containers cannot be read: {}\n", error.report());
            tracing::warn!(error = error.report(), "the metrics of containers cannot be read");
            // Reasons may contain paths.
            let why = if pages.reach == Reach::Local { why } else { format!("{}\n", super::WITHHELD) };
            text(status_of(error.kind()), why)
        }
    }
}

/// The answer with this text, which is written as the client reads it.
fn page(chunks: Chunks, is_gzip: bool) -> Response {
    let body = if is_gzip {
        Body::from_stream(stream::iter(Gzip::new(chunks).map(Ok::<_, Infallible>)))
    } else {
        Body::from_stream(stream::iter(chunks.map(Ok::<_, Infallible>)))
    };
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(METRICS_TYPE)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (VARY, HeaderValue::from_static("accept-encoding")),
    ];
    let mut answer = (StatusCode::OK, headers, body).into_response();
    if is_gzip {
        answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    answer
}

/// Whether the client names gzip as an encoding that it accepts.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = parameters.trim().strip_prefix("q=").map(|weight| weight.parse::<f32>());
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_none_or(|q| q.is_ok_and(|q| q > 0.0))
    })
}

/// Text as a gzip file, in parts.
struct Gzip {
    chunks: Chunks,
    /// `None` once the end was written.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

// === impl ContainersQuery ===

impl ContainersQuery {
    fn checked(self) -> std::result::Result<Option<Owner>, String> {
        self.owner.as_deref().map(owner_named).transpose()
    }
}

// === impl LatestReading ===

impl LatestReading {
    /// A reading that began within [`READING_AGE`]. It can be dropped at any time; others wait
    /// for the same reading.
    ///
    /// # Errors
    /// As the source does; `DeadlineExceeded`. A failure is not kept for later scrapes.
    async fn get(&self, source: &dyn StatusSource) -> Result<Arc<ContainerReading>> {
        let reading = self.current(source);
        reading.await
    }

    /// The same within a time; `None` if it takes longer. The reading goes on then, for whoever asks next.
    pub(super) async fn get_within(
        &self,
        source: &dyn StatusSource,
        limit: Duration,
    ) -> Option<Result<Arc<ContainerReading>>> {
        let reading = self.current(source);
        if let Ok(result) = timeout(limit, reading.clone()).await {
            return Some(result);
        }
        let going_on = AbortOnDropHandle::new(tokio::spawn(async move { drop(reading.await) }));
        if let Some(latest) = &mut *self.0.lock() {
            latest.going_on = Some(going_on);
        }
        None
    }

    fn current(
        &self,
        source: &dyn StatusSource,
    ) -> Shared<BoxFuture<'static, Result<Arc<ContainerReading>>>> {
        let mut latest = self.0.lock();
        if let Some(reading) = &*latest
            && reading.begun.elapsed() < READING_AGE
            && !matches!(reading.result.peek(), Some(Err(_)))
        {
            return reading.result.clone();
        }
        let read = timeout(READING_AGE, source.read_containers());
        let result = async {
            match read.await {
                Ok(reading) => reading.map(Arc::new),
                Err(_) => Err(Error::deadline(format!(
                    "the containers were not read within {READING_AGE:?}: try again"
                ))),
            }
        };
        let result = result.boxed().shared();
        *latest = Some(Reading { begun: Instant::now(), result: result.clone(), going_on: None });
        result
    }
}

// === impl Gzip ===

impl Gzip {
    fn new(chunks: Chunks) -> Self {
        // Higher levels cost several times the processor time for a few percent.
        Self { chunks, encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())) }
    }
}

impl Iterator for Gzip {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        const WRITES: &str = "a vector takes all that is written";
        let encoder = self.encoder.as_mut()?;
        while encoder.get_ref().is_empty() {
            let Some(chunk) = self.chunks.next() else {
                let encoder = self.encoder.take()?;
                return Some(encoder.finish().expect(WRITES).into());
            };
            encoder.write_all(chunk.as_bytes()).expect(WRITES);
        }
        Some(std::mem::take(encoder.get_mut()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposure_decides_which_listeners_serve_the_page() {
        for (exposure, local, network) in [
            (ContainerMetrics::Off, false, false),
            (ContainerMetrics::Local, true, false),
            (ContainerMetrics::Network, true, true),
        ] {
            let served = [Reach::Local, Reach::Network].map(|reach| is_served(exposure, reach));
            assert_eq!(served, [local, network], "{exposure:?}");
        }
    }

    #[test]
    fn gzip_is_used_for_clients_that_ask_for_it() {
        for (value, expected) in [
            ("", false),
            ("identity", false),
            ("gzip", true),
            ("br;q=1.0, GZIP ; q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=0.000, *", false),
            ("gzip;q=much", false),
            ("xgzip", false),
        ] {
            let headers = [(ACCEPT_ENCODING, HeaderValue::from_static(value))].into_iter().collect();
            assert_eq!(accepts_gzip(&headers), expected, "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn owner_of_another_name_is_refused() {
        let of = |name: &str| ContainersQuery { owner: Some(name.to_owned()) }.checked();
        assert_eq!(ContainersQuery::default().checked(), Ok(None));
        for owner in Owner::ALL {
            assert_eq!(of(owner.as_str()), Ok(Some(owner)));
        }
        for name in ["", "Nomad", "root"] {
            assert!(of(name).unwrap_err().contains("is no owner"), "{name}");
        }
    }
}
