//! The status page on the admin address, and the links that open it.
//!
//! Any user of the node can reach the address, so without a session the page has what the other pages there have: health
//! and counts. Root gets a link from the unix socket (`POST /v1/page`), which a browser can open once. That begins a session,
//! whose cookie no script and no other origin can use.

use std::time::Duration;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::header::{
    ALLOW, CONTENT_SECURITY_POLICY, LOCATION, REFERRER_POLICY, REFRESH, SET_COOKIE, X_FRAME_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;
use switchyard_core::Error;
use switchyard_core::id::{ID_LEN, Owner};
use switchyard_core::operation::{Caller, OperationKind, Subject};
use switchyard_operator_api::{Disclosure, InspectionView};
use tokio::time::timeout;

use super::answers::{json, owner_named, respond, status_of, text};
use super::host;
use super::pages::{COUNT_LIMIT, ListenerPages, Reach};
use crate::container_metrics::ContainerReading;
use crate::control::SwarmControl;
use crate::page::{self, LogTail, NodeFacts, NodeQuery, ObjectFacts, StatusPage, TICKET_TIME};
use crate::task_logs;

/// Time for which a page waits for the usage of tasks; after that it is rendered without.
const USAGE_WAIT: Duration = Duration::from_millis(50);

/// Numbers of events and of refused requests that a page lists.
const EVENTS: usize = 30;
const REFUSED: usize = 20;

/// The events that are among the refused requests.
const REFUSALS: [&str; 4] = ["refused", "conflict", "task_rejected", "task_waits"];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

/// Content security policy: a page may load its own style sheet.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The part of the node's work that is requested.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HomeQuery {
    owner: Option<String>,
    page: Option<usize>,
    refresh: Option<u64>,
}

/// Query parameters of an object's page.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ObjectQuery {
    refresh: Option<u64>,
}

/// The ticket of a link.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnterQuery {
    ticket: String,
}

/// True for a request of a session.
struct IsOpen(bool);

/// The pages for browsers.
pub(super) fn routes(page: &StatusPage) -> Router<ListenerPages> {
    Router::new()
        .route("/", get(home))
        .route("/sandboxes/{id}", get(sandbox))
        .route("/tasks/{id}", get(task))
        // A HEAD request uses no ticket up.
        .route("/enter", get(enter).head(async || only_get()))
        .route("/leave", post(leave))
        .route(
            "/style.css",
            get(async || respond(StatusCode::OK, CSS, page::STYLE.into())),
        )
        .route_layer(from_fn_with_state(page.clone(), guarded))
}

/// The route of the unix socket.
pub(super) fn local_routes() -> Router<ListenerPages> {
    Router::new().route("/v1/page", post(link))
}

/// Serves a request that names a host of this node, and adds what keeps the answer to itself.
async fn guarded(State(page): State<StatusPage>, request: Request, next: Next) -> Response {
    if let Some((status, why)) = host::page_refusal(page.hosts(), &request) {
        return text(status, why);
    }
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    answer
}

/// Makes a link that opens the page once.
async fn link(State(pages): State<ListenerPages>) -> Response {
    let page = pages.admin.page.clone();
    let operations = &pages.admin.history.operations;
    let subject = Subject::default();
    let operation = operations.begin(OperationKind::OpenPage, None, Caller::current(), subject);
    let absent = || Error::unavailable("the admin address is not served yet: try again");
    match operation
        .run(async move { page.link()?.ok_or_else(absent) })
        .await
    {
        Ok(link) => json(&link),
        Err(error) => text(status_of(error.kind()), format!("{}\n", error.report())),
    }
}

/// Begins a session with the ticket of a link.
async fn enter(
    State(pages): State<ListenerPages>,
    query: Result<Query<EnterQuery>, QueryRejection>,
) -> Response {
    let ticket = query
        .map(|Query(EnterQuery { ticket })| ticket)
        .unwrap_or_default();
    match pages.admin.page.enter(&ticket) {
        Ok(Some(cookie)) => entered(&cookie),
        Ok(None) => {
            let why = format!(
                "A link opens the page once, within {} seconds. This one was used before, or is too old.",
                TICKET_TIME.as_secs()
            );
            message(
                StatusCode::FORBIDDEN,
                "The link is not valid",
                &why,
                NEW_LINK,
            )
        }
        Err(error) => failed(&error),
    }
}

/// Ends the session.
async fn leave(State(pages): State<ListenerPages>, headers: HeaderMap) -> Response {
    to_home(pages.admin.page.leave(&headers).as_deref())
}

async fn home(
    State(pages): State<ListenerPages>,
    IsOpen(is_open): IsOpen,
    query: Result<Query<HomeQuery>, QueryRejection>,
) -> Response {
    if !is_open {
        return html(
            StatusCode::OK,
            page::outside(&pages.admin.report(Reach::Network).await),
        );
    }
    let query = match query
        .map_err(|error| error.body_text())
        .and_then(|Query(query)| query.checked())
    {
        Ok(query) => query,
        Err(why) => {
            return message(
                StatusCode::BAD_REQUEST,
                "The address is malformed",
                &why,
                "",
            );
        }
    };
    let (report, ()) = tokio::join!(pages.admin.report(Reach::Local), read_usage(&pages));
    let node = &pages.admin.node;
    let history = &pages.admin.history;
    let facts = NodeFacts {
        node: pages.admin.page.node().to_owned(),
        report,
        objects: node.objects(),
        usage: pages.admin.page.usage().latest(),
        devices: node.named_devices(),
        events: history.events.latest(EVENTS, |_| true),
        refused: history
            .events
            .latest(REFUSED, |event| REFUSALS.contains(&event.event.as_str())),
        operations: history.in_flight().collect(),
        swarm: node.swarm().map(SwarmControl::view),
    };
    html(StatusCode::OK, page::node(&facts, &query))
}

async fn sandbox(
    State(pages): State<ListenerPages>,
    IsOpen(is_open): IsOpen,
    Path(id): Path<String>,
    query: Result<Query<ObjectQuery>, QueryRejection>,
) -> Response {
    object(&pages, is_open, "sandbox", id, query).await
}

async fn task(
    State(pages): State<ListenerPages>,
    IsOpen(is_open): IsOpen,
    Path(id): Path<String>,
    query: Result<Query<ObjectQuery>, QueryRejection>,
) -> Response {
    object(&pages, is_open, "task", id, query).await
}

/// The page of a sandbox or task. Without a session it is the same whether there is one.
async fn object(
    pages: &ListenerPages,
    is_open: bool,
    kind: &'static str,
    id: String,
    query: Result<Query<ObjectQuery>, QueryRejection>,
) -> Response {
    if !is_open {
        let why = "Sandboxes and tasks are shown in a session only.";
        return message(StatusCode::FORBIDDEN, "Not signed in", why, NEW_LINK);
    }
    let Query(ObjectQuery { refresh }) = match query {
        Ok(query) => query,
        Err(error) => {
            return message(
                StatusCode::BAD_REQUEST,
                "The address is malformed",
                &error.body_text(),
                "",
            );
        }
    };
    let is_id = id.len() == ID_LEN
        && id
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let found = if is_id {
        inspected(pages, kind, &id).await
    } else {
        Ok(None)
    };
    match found {
        Ok(Some(found)) => html(
            StatusCode::OK,
            page::object(&facts(pages, found).await, refresh),
        ),
        Ok(None) => {
            let why = format!("There is no {kind} with this id, or not any more.");
            message(StatusCode::NOT_FOUND, "Not found", &why, "")
        }
        Err(error) => failed(&error),
    }
}

/// The object of this kind with this id.
async fn inspected(
    pages: &ListenerPages,
    kind: &str,
    id: &str,
) -> Result<Option<InspectionView>, Error> {
    match pages.admin.node.inspect(id, Disclosure::Names).await {
        Ok(found) => Ok((found.kind == kind && found.id == id).then_some(found)),
        Err(error) if error.kind() == switchyard_core::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Collects the facts that belong to an object.
async fn facts(pages: &ListenerPages, object: InspectionView) -> ObjectFacts {
    let id = Some(object.id.clone());
    let is_task = object.kind == "task";
    let log = async {
        if is_task {
            Some(log_tail(pages, &object.id).await)
        } else {
            None
        }
    };
    let (log, ()) = tokio::join!(log, read_usage(pages));
    let mut tasks = if is_task {
        Vec::new()
    } else {
        pages.admin.node.objects().tasks
    };
    tasks.retain(|task| task.sandbox == object.id);
    let history = &pages.admin.history;
    ObjectFacts {
        node: pages.admin.page.node().to_owned(),
        tasks,
        usage: pages.admin.page.usage().latest(),
        events: history
            .events
            .latest(EVENTS, |event| event.task == id || event.sandbox == id),
        operations: history
            .in_flight()
            .filter(|operation| operation.task == id || operation.sandbox == id)
            .take(EVENTS)
            .collect(),
        log,
        object,
    }
}

async fn log_tail(pages: &ListenerPages, task: &str) -> LogTail {
    match timeout(COUNT_LIMIT, pages.admin.node.task_log(task)).await {
        Ok(Ok(view)) => match Owner::parse(&view.owner) {
            Some(owner) => {
                pages
                    .admin
                    .page
                    .logs()
                    .tail(owner, task, task_logs::location(view.log))
                    .await
            }
            None => LogTail::without_lines(format!(
                "The log is not known: nobody is called {}.",
                view.owner
            )),
        },
        Ok(Err(error)) => {
            LogTail::without_lines(format!("The log is not known: {}.", error.report()))
        }
        Err(_) => LogTail::without_lines(format!("The log was not found within {COUNT_LIMIT:?}.")),
    }
}

/// Reads what the tasks use: for this page if that is soon done, and else for the next one.
async fn read_usage(pages: &ListenerPages) {
    let page = pages.admin.page.clone();
    let keep = move |reading: &ContainerReading| page.usage().keep(reading);
    pages
        .admin
        .containers
        .pass_to(&pages.admin.node, USAGE_WAIT, keep)
        .await;
}

const NEW_LINK: &str = "Run `switchyard page` as root on this node for a new link.";

/// A page.
fn html(status: StatusCode, page: askama::Result<String>) -> Response {
    match page {
        Ok(page) => respond(status, HTML, page.into_bytes()),
        Err(error) => {
            tracing::error!(%error, "a page cannot be rendered");
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the page cannot be rendered; the log says why\n".into(),
            )
        }
    }
}

fn message(status: StatusCode, title: &str, why: &str, hint: &str) -> Response {
    html(status, page::message(title, why, hint))
}

fn failed(error: &Error) -> Response {
    message(
        status_of(error.kind()),
        "The page cannot be shown",
        &error.report(),
        "",
    )
}

fn only_get() -> Response {
    let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, String::new());
    refusal
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET"));
    refusal
}

/// Begins a session in a browser with this cookie, and leads it to the page of the node.
///
/// A redirection would not do: a browser that has come from a page of another site, as after a click on the link in a chat, would not
/// send a cookie with `SameSite=Strict` to where it is redirected. It sends it from this page on.
fn entered(cookie: &str) -> Response {
    let mut answer = message(
        StatusCode::OK,
        "You are signed in",
        "The status page opens by itself.",
        "",
    );
    answer
        .headers_mut()
        .insert(REFRESH, HeaderValue::from_static("0; url=/"));
    answer
        .headers_mut()
        .insert(SET_COOKIE, cookie_value(cookie));
    answer
}

/// Leads a browser to the page of the node, with this cookie if there is one.
fn to_home(cookie: Option<&str>) -> Response {
    let mut answer = text(StatusCode::SEE_OTHER, String::new());
    answer
        .headers_mut()
        .insert(LOCATION, HeaderValue::from_static("/"));
    answer
        .headers_mut()
        .extend(cookie.map(|cookie| (SET_COOKIE, cookie_value(cookie))));
    answer
}

fn cookie_value(cookie: &str) -> HeaderValue {
    HeaderValue::try_from(cookie).expect("cookies are of hexadecimal digits")
}

impl FromRequestParts<ListenerPages> for IsOpen {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        pages: &ListenerPages,
    ) -> Result<Self, Self::Rejection> {
        Ok(Self(pages.admin.page.is_open(&parts.headers)))
    }
}

// === impl HomeQuery ===

impl HomeQuery {
    fn checked(self) -> Result<NodeQuery, String> {
        let owner: Option<Owner> = self.owner.as_deref().map(owner_named).transpose()?;
        Ok(NodeQuery {
            owner,
            page: self.page.unwrap_or(1),
            refresh: self.refresh,
        })
    }
}
