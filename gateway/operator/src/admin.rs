//! Admin HTTP: status pages, probes and metrics for operators, monitoring and the command line.
//!
//! | path | answers |
//! | --- | --- |
//! | `/`, `/sandboxes/{id}`, `/tasks/{id}` | the status page, for browsers; on TCP only. On the unix socket `/` is a list of pages |
//! | `/enter?ticket=…`, `POST /leave`, `/style.css` | begin and end a session of the status page; its style sheet; on TCP only |
//! | `/livez` | 200 as long as the daemon answers at all |
//! | `/readyz`, `/healthz` | 200 if all needed parts work, else 503 and the parts; `?verbose` lists them always |
//! | `/readyz/{part}` | the same for one part; 404 if there is none of that name |
//! | `/metrics` | Prometheus' text form |
//! | `/metrics/containers?owner=…` | the metrics of an owner's containers, or of all, in the same form; where `admin.container_metrics` has it |
//! | `/statusz` | [`StatusReport`](switchyard_operator_api::StatusReport) as JSON |
//! | `/v1/objects?owner=…` | the [`Objects`](switchyard_operator_api::Objects) of an owner, or of all, as JSON; on the unix socket only |
//! | `/v1/inspect?name=…&env=true` | an [`InspectionView`](switchyard_operator_api::InspectionView) as JSON, with `env` also what may be secret, for root alone; on the unix socket only |
//! | `/v1/images?owner=…` | [`ImageView`](switchyard_operator_api::ImageView)s as JSON; on the unix socket only |
//! | `/v1/images/unused?owner=…` | the same of the images that an owner holds and does not use; on the unix socket only |
//! | `DELETE /v1/images?owner=…&name=…` | releases an owner's hold on an image that it does not use, and removes the image unless others keep it: a [`RemovedImageView`](switchyard_operator_api::RemovedImageView) as JSON, or 202 if that takes long and continues; on the unix socket only |
//! | `/v1/images/leases` | [`ImageLeaseView`](switchyard_operator_api::ImageLeaseView)s as JSON: what keeps content without an image; on the unix socket only |
//! | `/v1/tasks/log?name=…` | a [`TaskLogView`](switchyard_operator_api::TaskLogView) as JSON: where the log of a task is; on the unix socket only |
//! | `POST /v1/exec` | runs a command in a task, as the JSON in the body says: 101, and then [frames](switchyard_operator_api::FrameKind); on the unix socket only |
//! | `/v1/containers?owner=…` | a [`ContainersView`](switchyard_operator_api::ContainersView) as JSON: counters of running tasks; on the unix socket only |
//! | `/v1/devices?owner=…` | a [`DevicesView`](switchyard_operator_api::DevicesView) as JSON; on the unix socket only |
//! | `DELETE /v1/devices/leases/{token}` | ends a lease that no sandbox uses, 204; on the unix socket only |
//! | `/v1/volumes?owner=…` | [`VolumeView`](switchyard_operator_api::VolumeView)s as JSON; on the unix socket only |
//! | `DELETE /v1/volumes/{owner}/{name}` | removes a named volume that no task has, 204; on the unix socket only |
//! | `/v1/swarm` | a [`SwarmView`](switchyard_operator_api::SwarmView) as JSON: the node's part in a Docker swarm; on the unix socket only |
//! | `POST /v1/swarm/join` | joins a swarm, as the JSON in the body says: the same, or 202 while it continues; on the unix socket only |
//! | `DELETE /v1/swarm` | leaves the swarm: the same; on the unix socket only |
//! | `POST /v1/page` | a [`PageLinkView`](switchyard_operator_api::PageLinkView) as JSON: a link that opens the status page once; on the unix socket only |
//! | `/v1/operations?blockers=true` | [`OperationView`](switchyard_operator_api::OperationView)s as JSON: what is in flight, with `blockers` also the processes that hold up what takes long; on the unix socket only |
//! | `/v1/debug` | a [`DebugView`](switchyard_operator_api::DebugView) as JSON: operations, locks that are held, tasks and memory of the daemon; on the unix socket only |
//! | `/v1/events?run=…&after=…&owner=…&wait=…` | an [`EventPage`](switchyard_operator_api::EventPage) as JSON: what happened after an event; if nothing has, waits for so many seconds; on the unix socket only |
//! | `/v1/history?name=…&owner=…&since=…&until=…&from=…` | a [`HistoryPage`](switchyard_operator_api::HistoryPage) as JSON: events on record, also of earlier daemons, from a place on; on the unix socket only |
//! | `/v1/config` | the configuration in force as TOML, with `?origin` the source of each value; on the unix socket only |
//! | `POST /v1/config/reload` | reloads the configuration: a [`ReloadReport`](switchyard_operator_api::ReloadReport) as JSON, or 422 with what is wrong; on the unix socket only |
//! | `POST /v1/restart/{part}` | restarts containerd or the logkeeper: a [`RestartReport`](switchyard_operator_api::RestartReport) as JSON; on the unix socket only |
//! | `/v1/log/level` | [`LevelView`](switchyard_operator_api::LevelView) as JSON; on the unix socket only |
//! | `PUT /v1/log/level?level=…&for=…` | sets a level for so many seconds; on the unix socket only |
//! | `DELETE /v1/log/level` | puts the configured level in force; on the unix socket only |
//!
//! It is served on a TCP address, loopback by default, and on `<run>/admin.sock`. The metrics listener, if
//! there is one, serves the first five lines and the list alone, to clients that show who they are. The
//! reason why a part fails, and process ids, are shown on the unix socket only, because reasons contain lines
//! of logs, paths and process ids. What a client of the unix socket may do is decided in `admin/access.rs`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

mod access;
mod answers;
mod containers;
mod exec;
mod history;
mod host;
mod logs;
mod objects;
mod page;
mod pages;
mod reading;
mod server;
mod settings;
mod swarm;
mod token;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{delete, get, post};
use switchyard_core::Error;
use switchyard_core::backend::{BackendStatus, Condition};
use switchyard_core::id::LeaseToken;
use switchyard_core::operation::{Caller, OperationKind, Subject};
use switchyard_linux::report;
use switchyard_operator_api::VERSION;

use crate::control::RestartError;
use crate::metrics::{CONTENT_TYPE as METRICS_TYPE, NodeCounts};
use crate::status::Part;

use answers::{failed, json, refused, respond, text};
use pages::{ListenerPages, detail};

pub use host::Hosts;
pub use pages::{AdminPages, Reach};
pub use server::{Limits, serve, serve_also, serve_tls};
pub use token::{BearerToken, Token, TokenError, TokenFault};

/// The pages of the unix socket alone.
const LOCAL_PAGES: &str = "/statusz
/v1/objects
/v1/inspect?name
/v1/images
/v1/images/unused?owner
/v1/images/leases
/v1/containers?owner
/v1/devices
/v1/volumes
/v1/swarm
/v1/operations?blockers
/v1/debug
/v1/events
/v1/history?name&owner&since&until
/v1/config?origin
/v1/log/level
";

/// The timeout for ending a lease.
const RELEASE_LIMIT: Duration = Duration::from_secs(15);

// === impl AdminPages ===

impl AdminPages {
    /// The pages for a listener.
    pub fn router(&self, reach: Reach) -> Router {
        let monitored = index_of_monitored(self.serves_containers(reach));
        let pages = format!("Switchyard {VERSION}\n{monitored}{LOCAL_PAGES}");
        let router = self.monitored(reach).route("/statusz", get(statusz));
        let router = match reach {
            Reach::Network => router.merge(page::routes(&self.page)),
            Reach::Local => router
                .route("/", get(async move || text(StatusCode::OK, pages)))
                .merge(page::local_routes())
                .route("/v1/restart/{part}", post(restart))
                .route("/v1/devices/leases/{token}", delete(release_lease))
                .merge(containers::local_routes())
                .merge(exec::routes())
                .merge(history::routes())
                .merge(logs::routes())
                .merge(objects::routes())
                .merge(settings::routes())
                .merge(swarm::routes(Arc::clone(&self.node)))
                .layer(from_fn(access::admit)),
        };
        router.with_state(ListenerPages {
            admin: self.clone(),
            reach,
        })
    }

    /// The pages for the metrics listener. With a token, requests that do not present it get no page.
    pub fn metrics_router(&self, token: Option<BearerToken>) -> Router {
        let containers = self.serves_containers(Reach::Network);
        let pages = format!("Switchyard\n{}", index_of_monitored(containers));
        let router = self
            .monitored(Reach::Network)
            .route("/", get(async move || text(StatusCode::OK, pages)))
            .fallback(async || text(StatusCode::NOT_FOUND, "there is no such page\n".into()))
            .with_state(ListenerPages {
                admin: self.clone(),
                reach: Reach::Network,
            });
        match token {
            None => router,
            // Around the whole router: paths that do not exist are no different from those that do.
            Some(token) => router.layer(from_fn_with_state(token, demand_token)),
        }
    }

    /// Metrics and health, which all listeners serve. Without the metrics of containers, which are configured,
    /// they contain no names of objects and, on the network, no reasons.
    fn monitored(&self, reach: Reach) -> Router<ListenerPages> {
        Router::new()
            .route("/livez", get(async || text(StatusCode::OK, "ok\n".into())))
            .route("/readyz", get(readyz))
            .route("/readyz/{part}", get(readyz_part))
            .route("/healthz", get(readyz))
            .route("/metrics", get(metrics))
            .merge(containers::routes(self.serves_containers(reach)))
    }
}

/// Serves a request that presents the token.
async fn demand_token(State(token): State<BearerToken>, request: Request, next: Next) -> Response {
    if token.is_presented(request.headers()) {
        return next.run(request).await;
    }
    let why = "the request does not present the bearer token of this node\n".to_owned();
    let mut refusal = text(StatusCode::UNAUTHORIZED, why);
    refusal
        .headers_mut()
        .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    refusal
}

async fn readyz(
    State(pages): State<ListenerPages>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    probe(
        "readyz",
        &pages.admin.node.parts().await,
        query.contains_key("verbose"),
        pages.reach,
    )
}

async fn readyz_part(
    State(pages): State<ListenerPages>,
    Path(name): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let part = pages
        .admin
        .node
        .parts()
        .await
        .into_iter()
        .find(|part| part.name == name);
    match part {
        // A part that is requested by name counts as needed.
        Some(part) => probe(
            &name,
            &[Part {
                needed: true,
                ..part
            }],
            query.contains_key("verbose"),
            pages.reach,
        ),
        None => text(
            StatusCode::NOT_FOUND,
            format!("there is no part {name:?}; /readyz?verbose lists them\n"),
        ),
    }
}

/// The answer of a probe, in the format of Kubernetes' own components.
fn probe(name: &str, parts: &[Part], verbose: bool, reach: Reach) -> Response {
    let ready = !parts.iter().any(Part::blocks_readiness);
    if ready && !verbose {
        return text(StatusCode::OK, "ok\n".into());
    }
    let mut body = String::new();
    for part in parts {
        let name = part.name;
        let detail = detail(part, reach);
        let line = match (part.is_up(), part.needed) {
            (true, _) if detail.is_empty() => format!("[+]{name} ok\n"),
            (true, _) => format!("[+]{name} ok: {detail}\n"),
            (false, true) => format!("[-]{name} failed: {detail}\n"),
            (false, false) => format!("[!]{name} failed, the node stays ready: {detail}\n"),
        };
        body.push_str(&line);
    }
    let verdict = if ready { "passed" } else { "failed" };
    writeln!(body, "{name} check {verdict}").expect("writing to a string cannot fail");
    text(
        if ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        },
        body,
    )
}

async fn metrics(State(ListenerPages { admin, reach: _ }): State<ListenerPages>) -> Response {
    let node = &admin.node;
    let logs = async {
        let logs = node.log_figures().await;
        let disks = node.log_disks(logs.as_ref()).await;
        (logs, disks)
    };
    // Each of them may wait for something that hangs: together they take as long as the slowest.
    let (images, parts, (logs, log_disks), programs, limits) = tokio::join!(
        admin.images(),
        node.parts(),
        logs,
        node.programs(),
        node.limits()
    );
    // One state of the backend for all that is of it.
    let BackendStatus {
        runtime,
        troubles,
        mut disks,
        ..
    } = node.status();
    disks.extend(log_disks);
    let counts = NodeCounts {
        sandboxes: admin.node.count_sandboxes(),
        tasks: admin.node.count_tasks(),
        images,
        unreadable: admin.node.count_unreadable(),
        unended: admin.node.count_unended(),
        reported: admin.node.figures(),
        devices: admin.node.devices(),
        parts,
        runtime_fault: match runtime {
            Condition::True => None,
            Condition::False { reason, message: _ } => Some(reason),
        },
        troubles,
        logs,
        disks,
        limits,
        features: node.features().clone(),
        reloads: Some(admin.config.counts()),
        operations: admin.history.operations.ages(),
        log: switchyard_telemetry::log_counts(),
        audit: admin.history.audit.counts(),
        history: admin.history.events.counts(),
        traces: admin.history.traces.as_ref().map(|traces| traces.counts()),
        programs,
    };
    match admin.metrics.render(&counts) {
        Ok(body) => respond(StatusCode::OK, METRICS_TYPE, body),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be encoded");
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "metrics cannot be encoded; the log says why\n".into(),
            )
        }
    }
}

async fn statusz(State(pages): State<ListenerPages>) -> Response {
    json(&pages.admin.report(pages.reach).await)
}

async fn release_lease(State(pages): State<ListenerPages>, Path(token): Path<String>) -> Response {
    let token: LeaseToken = match token.parse() {
        Ok(token) => token,
        Err(fault) => return refused(&fault.to_string()),
    };
    match tokio::time::timeout(RELEASE_LIMIT, pages.admin.node.release_lease(token)).await {
        Ok(Ok(())) => text(StatusCode::NO_CONTENT, String::new()),
        Ok(Err(error)) => failed(&error),
        Err(_) => text(
            StatusCode::GATEWAY_TIMEOUT,
            format!("the lease was not ended within {RELEASE_LIMIT:?}\n"),
        ),
    }
}

async fn restart(State(pages): State<ListenerPages>, Path(part): Path<String>) -> Response {
    let Some(process) = pages.admin.node.process(&part) else {
        let why = format!(
            "{part:?} cannot be restarted by itself: containerd can, if it is managed, and logkeeper\n"
        );
        return text(StatusCode::CONFLICT, why);
    };
    let operations = &pages.admin.history.operations;
    let subject = Subject::argument(&part);
    let operation = operations.begin(
        OperationKind::RestartProcess,
        None,
        Caller::current(),
        subject,
    );
    match operation
        .run_with(process.restart(), |error| Error::unavailable(report(error)))
        .await
    {
        Ok(done) => json(&done),
        Err(error) => {
            let status = match error {
                RestartError::External { .. } | RestartError::Absent(_) => StatusCode::CONFLICT,
                RestartError::Configuration { .. } => StatusCode::UNPROCESSABLE_ENTITY,
                RestartError::ServiceManager { .. } | RestartError::Refused { .. } => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
                RestartError::Deadline { .. } | RestartError::Listeners { .. } => {
                    StatusCode::GATEWAY_TIMEOUT
                }
                RestartError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            };
            text(status, format!("{}\n", report(&error)))
        }
    }
}

/// The lines of the list for the pages that all listeners serve.
fn index_of_monitored(containers: bool) -> String {
    let containers = if containers {
        "/metrics/containers?owner\n"
    } else {
        ""
    };
    format!("/livez\n/readyz?verbose\n/metrics\n{containers}")
}
