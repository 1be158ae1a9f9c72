//! The status page on the admin address, and the links that open it.
//!
//! Any user of the node can reach the address, so without a session the page has what the other pages there have: health
//! and counts. Root gets a link from the unix socket (`POST /v1/page`), which a browser can open once. That begins a session,
//! whose cookie no script and no other origin can use.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path as FilePath;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::header::{
    ALLOW, CONTENT_SECURITY_POLICY, COOKIE, LOCATION, REFERRER_POLICY, SET_COOKIE, X_FRAME_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use switchyard_core::Error;
use switchyard_core::id::{ID_LEN, Owner};
use switchyard_core::operation::{Caller, OperationKind, Subject};
use tokio::time::timeout;

use super::answers::{json, respond, status_of, text};
use super::{COUNT_LIMIT, ListenerPages, Reach, host, owner_named};
use crate::config::AdminConfig;
use crate::page::{
    self, LogTail, LogThreads, NodeFacts, NodeQuery, ObjectFacts, PageHosts, PageSecret, SESSION_TIME,
    Sessions, TICKET_TIME, UsageHistory,
};
use crate::status::{Disclosure, InspectionView, OperationView, PageLinkView};

/// How long a page waits for a reading of what tasks use, which goes on without it.
const USAGE_WAIT: Duration = Duration::from_millis(50);

/// How many events, and how many refused requests, a page lists.
const EVENTS: usize = 30;
const REFUSED: usize = 20;

/// How many cookies of the page's name are looked at.
const COOKIES: usize = 4;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

/// What the page may load: its own style sheet.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The status page of a daemon. Clones share it.
#[derive(Debug, Clone)]
pub struct StatusPage(Arc<PageState>);

#[derive(Debug)]
struct PageState {
    hosts: PageHosts,
    /// The name of the cookie: the browsers of people who have several nodes send the cookies of all of them to `localhost`.
    cookie: String,
    /// The name of the node.
    node: String,
    address: OnceLock<SocketAddr>,
    sessions: Mutex<Sessions>,
    usage: UsageHistory,
    logs: LogThreads,
}

/// Which part of the node's work is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HomeQuery {
    owner: Option<String>,
    page: Option<usize>,
    refresh: Option<u16>,
}

/// How a page of an object is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ObjectQuery {
    refresh: Option<u16>,
}

/// The ticket of a link.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnterQuery {
    ticket: String,
}

/// Whether a request is one of a session.
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
        .route("/style.css", get(async || respond(StatusCode::OK, CSS, page::STYLE.into())))
        .route_layer(from_fn_with_state(page.clone(), guarded))
}

/// The route of the unix socket.
pub(super) fn local_routes() -> Router<ListenerPages> {
    Router::new().route("/v1/page", post(link))
}

/// Serves a request that names a host of this node, and adds what keeps the answer to itself.
async fn guarded(State(page): State<StatusPage>, request: Request, next: Next) -> Response {
    if let Some((status, why)) = host::page_refusal(&page.0.hosts, &request) {
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
    let status_page = pages.admin.page.clone();
    let Some(address) = status_page.0.address.get().copied() else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "the admin address is not served yet\n".to_owned());
    };
    let operations = &pages.admin.history.operations;
    let operation = operations.begin(OperationKind::OpenPage, None, Caller::current(), Subject::default());
    let issued = operation.run(async move { status_page.0.sessions.lock().issue(Instant::now()) }).await;
    match issued {
        Ok(ticket) => json(&PageLinkView {
            url: format!("http://{}/enter?ticket={}", reachable(address), ticket.expose()),
            valid_seconds: TICKET_TIME.as_secs(),
            is_loopback: address.ip().to_canonical().is_loopback(),
        }),
        Err(error) => text(status_of(error.kind()), format!("{}\n", error.report())),
    }
}

/// An address by which the node itself reaches a listener.
fn reachable(listener: SocketAddr) -> SocketAddr {
    match listener.ip() {
        IpAddr::V4(address) if address.is_unspecified() => (Ipv4Addr::LOCALHOST, listener.port()).into(),
        IpAddr::V6(address) if address.is_unspecified() => (Ipv6Addr::LOCALHOST, listener.port()).into(),
        IpAddr::V4(_) | IpAddr::V6(_) => listener,
    }
}

/// Begins a session with the ticket of a link.
async fn enter(
    State(pages): State<ListenerPages>,
    query: Result<Query<EnterQuery>, QueryRejection>,
) -> Response {
    let status_page = &pages.admin.page;
    let ticket = query.map(|Query(EnterQuery { ticket })| ticket).unwrap_or_default();
    let begun = status_page.0.sessions.lock().begin(&ticket, Instant::now());
    match begun {
        Ok(Some(session)) => to_home(&status_page.cookie_of(&session)),
        Ok(None) => {
            let why = format!(
                "A link opens the page once, within {} seconds. This one was used before, or is too old.",
                TICKET_TIME.as_secs()
            );
            message(StatusCode::FORBIDDEN, "The link is not valid", &why, NEW_LINK)
        }
        Err(error) => failed(&error),
    }
}

/// Ends the session.
async fn leave(State(pages): State<ListenerPages>, headers: HeaderMap) -> Response {
    let status_page = &pages.admin.page;
    let now = Instant::now();
    for session in status_page.presented(&headers) {
        status_page.0.sessions.lock().end(session, now);
    }
    to_home(&format!("{}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0", status_page.0.cookie))
}

async fn home(
    State(pages): State<ListenerPages>,
    IsOpen(is_open): IsOpen,
    query: Result<Query<HomeQuery>, QueryRejection>,
) -> Response {
    if !is_open {
        return html(StatusCode::OK, page::outside(&pages.admin.report(Reach::Network).await));
    }
    let query = match query.map_err(|error| error.body_text()).and_then(|Query(query)| query.checked()) {
        Ok(query) => query,
        Err(why) => return message(StatusCode::BAD_REQUEST, "The address is malformed", &why, ""),
    };
    let (report, ()) = tokio::join!(pages.admin.report(Reach::Local), read_usage(&pages));
    let source = &pages.admin.source;
    let history = &pages.admin.history;
    let facts = NodeFacts {
        node: pages.admin.page.0.node.clone(),
        report,
        objects: source.objects(),
        usage: pages.admin.page.0.usage.latest(),
        devices: source.devices().with_display_names(|sandbox| source.display_name(sandbox)),
        events: history.events.latest(EVENTS, |_| true),
        refused: history.events.latest(REFUSED, |event| event.event == "refused"),
        operations: history.operations.in_flight().into_iter().map(OperationView::from).collect(),
        swarm: source.swarm().map(|swarm| swarm.status().into()),
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
            return message(StatusCode::BAD_REQUEST, "The address is malformed", &error.body_text(), "");
        }
    };
    let is_id = id.len() == ID_LEN && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let found = if is_id { inspected(pages, kind, &id).await } else { Ok(None) };
    match found {
        Ok(Some(found)) => html(StatusCode::OK, page::object(&facts(pages, found).await, refresh)),
        Ok(None) => {
            let why = format!("There is no {kind} with this id, or not any more.");
            message(StatusCode::NOT_FOUND, "Not found", &why, "")
        }
        Err(error) => failed(&error),
    }
}

/// The object of this kind with this id.
async fn inspected(pages: &ListenerPages, kind: &str, id: &str) -> Result<Option<InspectionView>, Error> {
    match pages.admin.source.inspect(id.to_owned(), Disclosure::Names).await {
        Ok(found) => Ok((found.kind == kind && found.id == id).then_some(found)),
        Err(error) if error.kind() == switchyard_core::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What belongs to an object.
async fn facts(pages: &ListenerPages, object: InspectionView) -> ObjectFacts {
    let id = Some(object.id.clone());
    let is_task = object.kind == "task";
    let log = async { if is_task { Some(log_tail(pages, &object.id).await) } else { None } };
    let (log, ()) = tokio::join!(log, read_usage(pages));
    let mut tasks = pages.admin.source.objects().tasks;
    tasks.retain(|task| !is_task && task.sandbox == object.id);
    let history = &pages.admin.history;
    let operations = history.operations.in_flight().into_iter().map(OperationView::from);
    ObjectFacts {
        node: pages.admin.page.0.node.clone(),
        tasks,
        usage: pages.admin.page.0.usage.latest(),
        events: history.events.latest(EVENTS, |event| event.task == id || event.sandbox == id),
        operations: operations
            .filter(|operation| operation.task == id || operation.sandbox == id)
            .take(EVENTS)
            .collect(),
        log,
        object,
    }
}

async fn log_tail(pages: &ListenerPages, task: &str) -> LogTail {
    match timeout(COUNT_LIMIT, pages.admin.source.task_log(task)).await {
        Ok(Ok(view)) => pages.admin.page.0.logs.tail(task, view.log.location()).await,
        Ok(Err(error)) => LogTail::without_lines(format!("The log is not known: {}.", error.report())),
        Err(_) => LogTail::without_lines(format!("The log was not found within {COUNT_LIMIT:?}.")),
    }
}

/// Keeps what the tasks use, if that is read soon.
async fn read_usage(pages: &ListenerPages) {
    let read = pages.admin.containers.get_within(&*pages.admin.source, USAGE_WAIT).await;
    match read {
        Some(Ok(reading)) => pages.admin.page.0.usage.keep(&reading),
        Some(Err(error)) => {
            tracing::debug!(error = error.report(), "the page shows no usage: it cannot be read");
        }
        None => {}
    }
}

const NEW_LINK: &str = "Run `switchyard page` as root on this node for a new link.";

/// A page.
fn html(status: StatusCode, page: askama::Result<String>) -> Response {
    match page {
        Ok(page) => respond(status, HTML, page.into_bytes()),
        Err(error) => {
            tracing::error!(%error, "a page cannot be rendered");
            text(StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be rendered; the log says why\n".into())
        }
    }
}

fn message(status: StatusCode, title: &str, why: &str, hint: &str) -> Response {
    html(status, page::message(title, why, hint))
}

fn failed(error: &Error) -> Response {
    message(status_of(error.kind()), "The page cannot be shown", &error.report(), "")
}

fn only_get() -> Response {
    let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, String::new());
    refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    refusal
}

/// Leads a browser to the page of the node, with this cookie.
fn to_home(cookie: &str) -> Response {
    let mut answer = text(StatusCode::SEE_OTHER, String::new());
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/"));
    match HeaderValue::try_from(cookie) {
        Ok(cookie) => {
            answer.headers_mut().insert(SET_COOKIE, cookie);
        }
        Err(error) => tracing::error!(%error, "a cookie cannot be set"),
    }
    answer
}

// === impl StatusPage ===

impl StatusPage {
    /// The page of the daemon with these settings and this state directory.
    #[must_use]
    pub fn new(admin: &AdminConfig, state: &FilePath) -> Self {
        let node = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let digest = Sha256::digest(format!("{node}\0{}", state.display()));
        let digits: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Self(Arc::new(PageState {
            hosts: PageHosts::new(admin.listen, &admin.hosts),
            cookie: format!("switchyard-{digits}"),
            node,
            address: OnceLock::new(),
            sessions: Mutex::default(),
            usage: UsageHistory::default(),
            logs: LogThreads::default(),
        }))
    }

    /// Sets the address on which it is served, once.
    pub fn set_address(&self, address: SocketAddr) {
        // A daemon has one.
        let _ = self.0.address.set(address);
    }

    fn cookie_of(&self, session: &PageSecret) -> String {
        let seconds = SESSION_TIME.as_secs();
        let Self(state) = self;
        format!("{}={}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}", state.cookie, session.expose())
    }

    /// The values of the page's cookie in a request.
    fn presented<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
        let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(name, _)| *name == self.0.cookie).map(|(_, value)| value).take(COOKIES)
    }

    fn is_open(&self, headers: &HeaderMap) -> bool {
        let now = Instant::now();
        self.presented(headers).any(|session| self.0.sessions.lock().is_open(session, now))
    }
}

impl FromRequestParts<ListenerPages> for IsOpen {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, pages: &ListenerPages) -> Result<Self, Self::Rejection> {
        Ok(Self(pages.admin.page.is_open(&parts.headers)))
    }
}

// === impl HomeQuery ===

impl HomeQuery {
    fn checked(self) -> Result<NodeQuery, String> {
        let owner: Option<Owner> = self.owner.as_deref().map(owner_named).transpose()?;
        Ok(NodeQuery { owner, page: self.page.unwrap_or(1), refresh: self.refresh })
    }
}
