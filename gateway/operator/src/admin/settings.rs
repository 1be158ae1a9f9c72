//! The pages for the configuration and the level of the log, on the unix socket only.

use std::collections::HashMap;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use switchyard_core::operation::{Caller, OperationKind, Subject};
use switchyard_linux::report;

use super::answers::{TEXT, json, refused, respond, text};
use super::pages::ListenerPages;

/// The longest time for which a level of the log can be set: longer is a matter for the configuration.
const LEVEL_TIME_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The longest filter of the log, in bytes.
const LEVEL_MAX: usize = 1024;

pub(super) fn routes() -> Router<ListenerPages> {
    Router::new()
        .route("/v1/config", get(config))
        .route("/v1/config/reload", post(reload))
        .route(
            "/v1/log/level",
            get(level).put(set_level).delete(reset_level),
        )
}

async fn config(
    State(pages): State<ListenerPages>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let text = pages.admin.config.dump(query.contains_key("origin"));
    respond(StatusCode::OK, TEXT, text.into_bytes())
}

async fn reload(State(pages): State<ListenerPages>) -> Response {
    match pages.admin.config.reload().await {
        Ok(done) => json(&*done),
        Err(error) => {
            let status = if error.is_refusal {
                StatusCode::UNPROCESSABLE_ENTITY
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            };
            text(status, format!("{}\n", error.text))
        }
    }
}

async fn level(State(pages): State<ListenerPages>) -> Response {
    json(&pages.admin.log_level.view())
}

async fn set_level(
    State(pages): State<ListenerPages>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let set = requested(&query).and_then(|(level, time)| {
        let set = pages.admin.log_level.set_temporary(level, time);
        set.map(|()| (level, time)).map_err(|error| report(&error))
    });
    match set {
        Ok((level, time)) => {
            tracing::info!(level, ?time, "the log level was set for a time");
            record_level(&pages, &format!("{level} for {} s", time.as_secs())).await;
            json(&pages.admin.log_level.view())
        }
        Err(why) => refused(&why),
    }
}

async fn reset_level(State(pages): State<ListenerPages>) -> Response {
    pages.admin.log_level.reset();
    tracing::info!("the configured log level is in force");
    record_level(&pages, "as configured").await;
    json(&pages.admin.log_level.view())
}

/// Records a change of the log level, which takes no time, as an operation.
async fn record_level(pages: &ListenerPages, level: &str) {
    let operations = &pages.admin.history.operations;
    let subject = Subject::argument(level);
    let operation = operations.begin(OperationKind::SetLogLevel, None, Caller::current(), subject);
    // It has succeeded already.
    let _ = operation.run(async { Ok(()) }).await;
}

/// The level that is requested, and for how long.
fn requested(query: &HashMap<String, String>) -> Result<(&str, Duration), String> {
    let level = query.get("level").ok_or("level is missing")?;
    if level.len() > LEVEL_MAX {
        return Err(format!(
            "level has {} bytes, but {LEVEL_MAX} are allowed",
            level.len()
        ));
    }
    let seconds = query
        .get("for")
        .ok_or("for, a number of seconds, is missing")?;
    let most = LEVEL_TIME_MAX.as_secs();
    match seconds.parse() {
        Ok(seconds) if (1..=most).contains(&seconds) => Ok((level, Duration::from_secs(seconds))),
        Ok(_) | Err(_) => Err(format!(
            "for is {seconds:?}, but it must be a number of seconds from 1 to {most}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_needs_a_bounded_time_and_length() {
        let ask = |level: &str, seconds: &str| {
            let query = HashMap::from([
                ("level".into(), level.into()),
                ("for".into(), seconds.into()),
            ]);
            requested(&query).map(|(level, time)| (level.to_owned(), time.as_secs()))
        };
        assert_eq!(ask("debug", "600"), Ok(("debug".to_owned(), 600)));
        assert_eq!(ask("debug", "604800").unwrap().1, 604_800);
        for seconds in ["0", "604801", "-1", "1.5", "", "18446744073709551616"] {
            assert!(
                ask("debug", seconds).unwrap_err().starts_with("for is"),
                "{seconds}"
            );
        }
        assert!(
            ask(&"x".repeat(1025), "1")
                .unwrap_err()
                .contains("1025 bytes")
        );
        assert_eq!(
            requested(&HashMap::new()),
            Err("level is missing".to_owned())
        );
    }
}
