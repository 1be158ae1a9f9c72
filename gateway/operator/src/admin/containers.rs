//! The pages about running containers: their metrics, and the counters that `switchyard top` shows. Requests that
//! come within seconds share one reading of the node, and the text of metrics is written while it is sent.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::Arc;

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
use futures::stream;
use serde::Deserialize;
use switchyard_core::Error;
use switchyard_core::id::Owner;

use super::answers::{json, owner_named, refused, status_of, text};
use super::pages::{ListenerPages, Reach, WITHHELD};
use crate::container_metrics::ContainerReading;
use crate::metrics::CONTENT_TYPE as METRICS_TYPE;

const PATH: &str = "/metrics/containers";

/// The family that says of which owners the page has samples.
const SUCCESS: &str = "switchyard_container_scrape_success";

/// The owner whose containers are requested.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ContainersQuery {
    owner: Option<String>,
}

/// The page of metrics, or why this listener does not serve it.
pub(super) fn routes(is_served: bool) -> Router<ListenerPages> {
    let route = if is_served {
        get(containers)
    } else {
        let why =
            "this listener does not serve the metrics of containers: see admin.container_metrics\n";
        get(async move || text(StatusCode::NOT_FOUND, why.into()))
    };
    Router::new().route(PATH, route)
}

/// The routes of the unix socket alone.
pub(super) fn local_routes() -> Router<ListenerPages> {
    Router::new().route("/v1/containers", get(usage))
}

async fn usage(
    State(pages): State<ListenerPages>,
    query: Result<Query<ContainersQuery>, QueryRejection>,
) -> Response {
    let owner = match query
        .map_err(|error| error.body_text())
        .and_then(|Query(query)| query.checked())
    {
        Ok(owner) => owner,
        Err(why) => return refused(&why),
    };
    let reading = pages.admin.containers.get(&pages.admin.node).await;
    match reading.and_then(|reading| complete(reading, owner)) {
        Ok(reading) => {
            let owners = &pages.admin.history.owners;
            json(&reading.view(owner, |sandbox, task| owners.names(sandbox, task)))
        }
        Err(error) => text(
            status_of(error.kind()),
            format!("the containers cannot be read: {}\n", error.report()),
        ),
    }
}

async fn containers(
    State(pages): State<ListenerPages>,
    query: Result<Query<ContainersQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let owner = match query
        .map_err(|error| error.body_text())
        .and_then(|Query(query)| query.checked())
    {
        Ok(owner) => owner,
        Err(why) => return refused(&why),
    };
    let readings = &pages.admin.containers;
    let reading = readings.get(&pages.admin.node).await;
    let reading = reading.and_then(|reading| match owner {
        Some(_) => complete(reading, owner),
        None => Ok(reading),
    });
    match reading {
        Ok(reading) => {
            readings.note(None, true);
            for (owner, error) in reading.results(owner) {
                let is_new = readings.note(Some(owner), error.is_none());
                if let Some(error) = error
                    && is_new
                {
                    tracing::warn!(
                        owner = owner.as_str(),
                        error = error.report(),
                        "the metrics of an owner's containers cannot be read"
                    );
                }
            }
            let chunks = reading.figures.chunks(owner);
            let text = std::iter::once(success(&reading, owner)).chain(chunks);
            page(text, accepts_gzip(&headers))
        }
        Err(error) => {
            let why = format!(
                "the metrics of containers cannot be read: {}\n",
                error.report()
            );
            if readings.note(owner, false) {
                tracing::warn!(
                    error = error.report(),
                    "the metrics of containers cannot be read"
                );
            }
            // Reasons may contain paths.
            let why = if pages.reach == Reach::Local {
                why
            } else {
                format!("{}\n", WITHHELD)
            };
            text(status_of(error.kind()), why)
        }
    }
}

/// The reading, if it has the containers of all these owners.
///
/// # Errors
/// The first reason why the containers of one could not be read.
fn complete(
    reading: Arc<ContainerReading>,
    owner: Option<Owner>,
) -> Result<Arc<ContainerReading>, Error> {
    let failure = reading.results(owner).find_map(|(_, error)| error.cloned());
    failure.map_or(Ok(reading), Err)
}

/// The samples of [`SUCCESS`].
fn success(reading: &ContainerReading, owner: Option<Owner>) -> String {
    let mut text = format!(
        "# HELP {SUCCESS} Whether the containers of an owner could be read.\n# TYPE {SUCCESS} gauge\n"
    );
    for (of, error) in reading.results(owner) {
        let is_read = u8::from(error.is_none());
        text.push_str(&format!("{SUCCESS}{{owner=\"{of}\"}} {is_read}\n"));
    }
    text
}

/// The answer with this text, which is written as the client reads it.
fn page(chunks: impl Iterator<Item = String> + Send + 'static, is_gzip: bool) -> Response {
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
        answer
            .headers_mut()
            .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    answer
}

/// Returns whether the client names gzip as an encoding that it accepts.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = parameters
            .trim()
            .strip_prefix("q=")
            .map(|weight| weight.parse::<f32>());
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_none_or(|q| q.is_ok_and(|q| q > 0.0))
    })
}

/// Text as a gzip file, in parts.
struct Gzip<C> {
    chunks: C,
    /// `None` once the end was written.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

// === impl ContainersQuery ===

impl ContainersQuery {
    fn checked(self) -> Result<Option<Owner>, String> {
        self.owner.as_deref().map(owner_named).transpose()
    }
}

// === impl Gzip ===

impl<C: Iterator<Item = String>> Gzip<C> {
    fn new(chunks: C) -> Self {
        // Higher levels cost several times the processor time for a few percent.
        Self {
            chunks,
            encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())),
        }
    }
}

impl<C: Iterator<Item = String>> Iterator for Gzip<C> {
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
            let headers = [(ACCEPT_ENCODING, HeaderValue::from_static(value))]
                .into_iter()
                .collect();
            assert_eq!(accepts_gzip(&headers), expected, "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn owner_of_another_name_is_refused() {
        let of = |name: &str| {
            ContainersQuery {
                owner: Some(name.to_owned()),
            }
            .checked()
        };
        assert_eq!(ContainersQuery::default().checked(), Ok(None));
        for owner in Owner::ALL {
            assert_eq!(of(owner.as_str()), Ok(Some(owner)));
        }
        for name in ["", "Nomad", "root"] {
            assert!(of(name).unwrap_err().contains("is no owner"), "{name}");
        }
    }
}
