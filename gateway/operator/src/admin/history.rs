//! The pages about what happens: operations in flight, and events.

use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use serde::Deserialize;

use super::answers::{json, owner_named, text};
use super::pages::ListenerPages;

/// The longest time for which a request for events can wait, in seconds: shorter than a page may take.
const WAIT_MAX: u64 = 25;

/// The longest name of a run of the daemon.
const RUN_MAX: usize = 64;

pub(super) fn routes() -> Router<ListenerPages> {
    Router::new()
        .route("/v1/operations", get(operations))
        .route("/v1/events", get(events))
}

async fn operations(State(pages): State<ListenerPages>) -> Response {
    json(&pages.admin.history.in_flight().collect::<Vec<_>>())
}

/// The events that are requested.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EventQuery {
    run: Option<String>,
    after: Option<u64>,
    owner: Option<String>,
    wait: u64,
}

async fn events(
    State(pages): State<ListenerPages>,
    query: Result<Query<EventQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let query = match query
        .map_err(|error| error.body_text())
        .and_then(|Query(query)| query.checked())
    {
        Ok(query) => query,
        Err(why) => return text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    };
    let known = query.run.as_deref().zip(query.after);
    let wait = Duration::from_secs(query.wait);
    json(
        &pages
            .admin
            .history
            .events
            .after(known, query.owner.as_deref(), wait)
            .await,
    )
}

impl EventQuery {
    fn checked(self) -> Result<Self, String> {
        if self.wait > WAIT_MAX {
            return Err(format!(
                "wait is {} seconds, but at most {WAIT_MAX} are allowed",
                self.wait
            ));
        }
        self.owner.as_deref().map(owner_named).transpose()?;
        if self.run.is_some() != self.after.is_some()
            || self.run.as_ref().is_some_and(|run| run.len() > RUN_MAX)
        {
            return Err(
                "run and after belong together: give both as a former page had them".to_owned(),
            );
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_bounded_and_complete() {
        let refused = |query: EventQuery| query.checked().unwrap_err();
        assert!(
            refused(EventQuery {
                wait: 26,
                ..EventQuery::default()
            })
            .contains("at most 25")
        );
        assert!(
            refused(EventQuery {
                owner: Some("root".into()),
                ..EventQuery::default()
            })
            .contains("no owner")
        );
        assert!(
            refused(EventQuery {
                after: Some(1),
                ..EventQuery::default()
            })
            .contains("belong together")
        );
        let long = EventQuery {
            run: Some("x".repeat(65)),
            after: Some(1),
            ..EventQuery::default()
        };
        assert!(refused(long).contains("belong together"));
        let whole = EventQuery {
            run: Some("a".into()),
            after: Some(1),
            owner: Some("nomad".into()),
            wait: 25,
        };
        assert!(whole.checked().is_ok());
    }
}
