//! Queries to the daemon over its admin socket, and `switchyard status`.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use switchyard_operator_api::programs::ProgramView;
use switchyard_operator_api::text::age;
use switchyard_operator_api::{ConfigView, OperationView, RefusedReloadView, StatusReport};
use switchyard_socket::channel::{self, RequestError};

use super::watch::WatchArgs;
use crate::output::{Format, table};

/// How long the daemon may take to answer: longer than any request may take there.
const LIMIT: Duration = Duration::from_secs(35);

/// The daemon.
#[derive(Debug, Args)]
pub(super) struct Socket {
    /// The daemon's admin socket.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "SWITCHYARD_ADMIN_SOCKET",
        default_value = "/run/switchyard/admin.sock"
    )]
    socket: PathBuf,
}

/// The daemon, and the output format.
#[derive(Debug, Args)]
pub(super) struct Target {
    #[command(flatten)]
    pub(super) socket: Socket,
    /// Text or JSON.
    #[arg(long, short, global = true, value_enum, default_value_t)]
    pub(super) output: Format,
}

/// The daemon, the output format, and how much is shown.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    watch: WatchArgs,
    /// Show the operations in flight too: what they work on or wait for, and since when.
    #[arg(long, short)]
    verbose: bool,
}

/// Why the daemon's answer cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum DaemonError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the daemon did not answer {0} within {LIMIT:?}")]
    Deadline(String),
    #[error("{0}")]
    Reload(String),
    #[error("{0}")]
    Restart(String),
    /// The daemon's own words, which say what is wrong.
    #[error("{0}")]
    Told(String),
    #[error("{0}")]
    Forbidden(String),
    #[error("the daemon answered {path} with {status}: {text}")]
    Refused { path: String, status: StatusCode, text: String },
    #[error("cannot parse the daemon's answer to {path}: is the daemon of the same version?")]
    Answer {
        path: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// Shows the parts and the counts of objects; exit status 1 if the daemon is not ready.
pub(super) async fn status(StatusArgs { watch, verbose }: &StatusArgs) -> Result<ExitCode, DaemonError> {
    let is_ready = Cell::new(true);
    let asked = async || {
        let report: StatusReport = ask(&watch.target, "/statusz").await?;
        let operations = if *verbose { Some(ask(&watch.target, "/v1/operations").await?) } else { None };
        is_ready.set(report.ready);
        Ok(WholeStatus { report, operations })
    };
    watch.show(asked, |status| shown(status, Timestamp::now())).await?;
    Ok(if watch.is_watch() || is_ready.get() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shown(WholeStatus { report, operations }: &WholeStatus, now: Timestamp) -> String {
    let ready = if report.ready { "ready" } else { "not ready" };
    let parts: Vec<_> = report
        .parts
        .iter()
        .map(|part| {
            let state = match (part.up, part.needed) {
                (true, _) => "ok",
                (false, true) => "failed",
                (false, false) => "failed (not needed)",
            };
            [part.name.clone(), state.to_owned(), part.detail.clone()]
        })
        .collect();
    let counts: Vec<_> = [("sandboxes", &report.sandboxes), ("tasks", &report.tasks)]
        .into_iter()
        .flat_map(|(kind, counts)| counts.iter().map(move |count| (kind, count)))
        .map(|(kind, count)| {
            [kind.to_owned(), count.owner.clone(), count.state.clone(), count.count.to_string()]
        })
        .collect();
    let images = report.images.map_or_else(|| "unknown".to_owned(), |images| images.to_string());
    let process = report.pid.map_or_else(|| "running".to_owned(), |pid| format!("process {pid}"));
    let started = &report.started_at;
    let mut text = format!(
        "switchyard {} is {ready}, {process} since {started} ({})\n\n",
        report.version,
        age(started, now)
    );
    text.push_str(&table(["PART", "STATE", "DETAIL"], &parts));
    text.push('\n');
    if !counts.is_empty() {
        text.push_str(&table(["KIND", "OWNER", "STATE", "COUNT"], &counts));
    }
    text.push_str(&format!("images: {images}\n"));
    text.push_str(&advisories(report));
    text.push_str(&replaced_programs(report));
    text.push_str(&configuration(report));
    if let Some(operations) = operations {
        text.push_str(&in_flight(operations));
    }
    text
}

/// The table of versions with known vulnerabilities; empty if there are none.
fn advisories(report: &StatusReport) -> String {
    if report.advisories.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = report
        .advisories
        .iter()
        .map(|advisory| [advisory.program.clone(), advisory.version.clone(), advisory.ids.join(" ")])
        .collect();
    let table = table(["PROGRAM", "VERSION", "KNOWN VULNERABILITIES, BY THE VERSION ALONE"], &rows);
    format!(
        "\n{table}If your distribution has fixed a version without changing its number, list it in advisories.ignore.\n"
    )
}

/// The status with the operations in flight, if they are asked for.
#[derive(Debug, Serialize)]
struct WholeStatus {
    #[serde(flatten)]
    report: StatusReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<Vec<OperationView>>,
}

/// The table of operations in flight.
fn in_flight(operations: &[OperationView]) -> String {
    if operations.is_empty() {
        return "\nNo operation is in flight.\n".to_owned();
    }
    let rows: Vec<_> = operations
        .iter()
        .map(|operation| {
            let steps = operation.steps.iter();
            let steps: Vec<_> = steps.map(|step| format!("{} ({:.1} s)", step.step, step.seconds)).collect();
            [
                format!("{:.1} s", operation.seconds),
                operation.owner.clone(),
                operation.operation.clone(),
                operation.subject.clone(),
                steps.join(", "),
                operation.caller.clone(),
            ]
        })
        .collect();
    format!("\n{}", table(["AGE", "OWNER", "OPERATION", "OBJECT", "STEPS", "CALLER"], &rows))
}

/// The processes that go on with a former program; empty if none does.
fn replaced_programs(report: &StatusReport) -> String {
    let mut text = String::new();
    for ProgramView { part, pid, path, .. } in report.programs.iter().filter(|program| program.replaced) {
        let command = match part.as_str() {
            "daemon" => "systemctl restart switchyard".to_owned(),
            part => format!("switchyard restart {part}"),
        };
        text.push_str(&format!(
            "\n{part} (process {pid}) goes on with a former {path}: `{command}` replaces it while containers run.\n"
        ));
    }
    text
}

/// What of the configuration files is not in force; empty if they are wholly.
fn configuration(report: &StatusReport) -> String {
    let Some(ConfigView { pending, refused, loaded_at }) = &report.config else { return String::new() };
    let mut text = String::new();
    if let Some(RefusedReloadView { at, why }) = refused {
        text.push_str(&format!(
            "\nThe configuration of {loaded_at} is in force. A reload was refused at {at}: {why}\n"
        ));
    }
    if !pending.is_empty() {
        text.push_str("\nChanges of the configuration that are not in force yet:\n");
        text.push_str(&super::settings::changes(pending, true));
    }
    text
}

/// The content of a page of the daemon.
pub(super) async fn ask<T: DeserializeOwned>(target: &Target, path: &str) -> Result<T, DaemonError> {
    ask_socket(&target.socket, path).await
}

/// The content of a page of the daemon at a socket.
pub(super) async fn ask_socket<T: DeserializeOwned>(socket: &Socket, path: &str) -> Result<T, DaemonError> {
    let body = send(socket, Method::GET, path).await?;
    parse(path, &body)
}

/// Parses the content of a page.
pub(super) fn parse<T: DeserializeOwned>(path: &str, body: &[u8]) -> Result<T, DaemonError> {
    serde_json::from_slice(body).map_err(|source| DaemonError::Answer { path: path.to_owned(), source })
}

/// Sends a request to the daemon and returns the body; any status but success is an error.
pub(super) async fn send(socket: &Socket, method: Method, path: &str) -> Result<Bytes, DaemonError> {
    Ok(request(socket, method, path).await?.1)
}

/// Posts JSON to the daemon, and returns the status and the body; any status but success is an error.
pub(super) async fn post(
    socket: &Socket,
    path: &str,
    body: &impl Serialize,
) -> Result<(StatusCode, Bytes), DaemonError> {
    let body = serde_json::to_vec(body).map_err(io::Error::from)?;
    exchange(path, channel::post_json(&socket.socket, path, body.into())).await
}

/// Sends a request without a body, and returns the status and the body; any status but success is an error.
pub(super) async fn request(
    socket: &Socket,
    method: Method,
    path: &str,
) -> Result<(StatusCode, Bytes), DaemonError> {
    exchange(path, channel::request(&socket.socket, method, path)).await
}

async fn exchange(
    path: &str,
    sent: impl Future<Output = Result<(StatusCode, Bytes), RequestError>>,
) -> Result<(StatusCode, Bytes), DaemonError> {
    let answer = tokio::time::timeout(LIMIT, sent).await;
    let (status, body) = answer.map_err(|_| DaemonError::Deadline(path.to_owned()))??;
    if !status.is_success() {
        let text = String::from_utf8_lossy(&body).trim().to_owned();
        if status == StatusCode::FORBIDDEN {
            return Err(DaemonError::Forbidden(text));
        }
        return Err(DaemonError::Refused { path: path.to_owned(), status, text });
    }
    Ok((status, body))
}
