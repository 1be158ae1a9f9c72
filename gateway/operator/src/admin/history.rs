//! The pages about what happens: operations in flight, the inside of the daemon, events, and those on record.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::response::Response;
use axum::routing::get;
use jiff::Timestamp;
use serde::Deserialize;
use switchyard_operator_api::OperationView;

use super::answers::{failed, json, owner_named, refused};
use super::pages::ListenerPages;
use crate::events::{EventFilter, Place};

/// The longest time for which a request for events can wait, in seconds: shorter than a page may take.
const WAIT_MAX: u64 = 25;

/// The longest name of a run of the daemon.
const RUN_MAX: usize = 64;

/// The longest name of an object in a request, in bytes.
const NAME_MAX: usize = 512;

pub(super) fn routes() -> Router<ListenerPages> {
    Router::new()
        .route("/v1/operations", get(operations))
        .route("/v1/debug", get(debug))
        .route("/v1/events", get(events))
        .route("/v1/history", get(history))
}

/// The operations that are requested.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OperationQuery {
    /// True if the processes that hold up operations are looked for.
    blockers: bool,
}

async fn operations(
    State(pages): State<ListenerPages>,
    query: Result<Query<OperationQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let Query(OperationQuery { blockers }) = match query {
        Ok(query) => query,
        Err(error) => return refused(&error.body_text()),
    };
    let history = &pages.admin.history;
    let operations = history.operations.in_flight();
    let mut held_up = if blockers {
        pages.admin.node.blockers(&operations).await
    } else {
        BTreeMap::new()
    };
    let views = operations.into_iter().map(|operation| {
        let blockers = held_up.remove(&operation.number).unwrap_or_default();
        OperationView {
            blockers,
            ..history.view(operation)
        }
    });
    json(&views.collect::<Vec<_>>())
}

async fn debug(State(pages): State<ListenerPages>) -> Response {
    let operations = pages.admin.history.in_flight().collect();
    json(&pages.admin.node.debug(operations).await)
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
        Err(why) => return refused(&why),
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

/// The events on record that are requested.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HistoryQuery {
    name: Option<String>,
    owner: Option<String>,
    since: Option<String>,
    until: Option<String>,
    from: Option<String>,
}

async fn history(
    State(pages): State<ListenerPages>,
    query: Result<Query<HistoryQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let query = query
        .map_err(|error| error.body_text())
        .and_then(|Query(query)| query.checked());
    let (from, filter) = match query {
        Ok(checked) => checked,
        Err(why) => return refused(&why),
    };
    match pages.admin.history.events.history(from, filter).await {
        Ok(page) => json(&page),
        Err(error) => failed(&error),
    }
}

impl HistoryQuery {
    fn checked(self) -> Result<(Place, EventFilter), String> {
        let Self {
            name,
            owner,
            since,
            until,
            from,
        } = self;
        if name.as_ref().is_some_and(|name| name.len() > NAME_MAX) {
            return Err(format!("the name has more than {NAME_MAX} bytes"));
        }
        let time = |word: &str, time: Option<String>| {
            let parsed = time.map(|time| time.parse::<Timestamp>()).transpose();
            parsed.map_err(|_| format!("{word} is no time: write it as 2026-11-26T10:00:00Z"))
        };
        let from = from.map(|from| from.parse::<Place>()).transpose();
        let filter = EventFilter {
            name,
            owner: owner.as_deref().map(owner_named).transpose()?,
            since: time("since", since)?,
            until: time("until", until)?,
        };
        Ok((
            from.map_err(|error| error.to_string())?.unwrap_or_default(),
            filter,
        ))
    }
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

    #[test]
    fn history_is_asked_for_by_times_owners_and_places() {
        let query = |since: &str, owner: &str, from: &str| HistoryQuery {
            since: Some(since.to_owned()),
            owner: Some(owner.to_owned()),
            from: Some(from.to_owned()),
            ..HistoryQuery::default()
        };
        let time = "2026-11-29T03:00:00Z";
        let (from, filter) = query(time, "nomad", "7-4096").checked().unwrap();
        assert_eq!(from.to_string(), "7-4096");
        assert_eq!(filter.since.unwrap().to_string(), time);
        for (query, word) in [
            (query("03:00", "nomad", "7-4096"), "since"),
            (query(time, "root", "7-4096"), "no owner"),
            (query(time, "nomad", "7"), "no place"),
            (query(time, "nomad", "-1-5"), "no place"),
        ] {
            let why = query.checked().unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        let long = HistoryQuery {
            name: Some("x".repeat(513)),
            ..HistoryQuery::default()
        };
        assert!(long.checked().is_err());
        assert!(HistoryQuery::default().checked().is_ok());
    }
}
