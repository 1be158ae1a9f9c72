//! `switchyard swarm`: this node as a worker of a Docker swarm.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use http::{Method, StatusCode};
use serde_json::json;
use switchyard_operator_api::text::printable;
use switchyard_operator_api::{DepartureView, SwarmView};
use tokio::time::{Instant, sleep};

use super::daemon::{self, DaemonError, Target};
use super::progress::waiting;
use super::watch::passes;
use crate::output::{Format, print, print_error, print_json};

/// The largest file with a token that is read: several times the longest token.
const TOKEN_MAX: u64 = 4096;

/// Interval and duration of the questions to the daemon whether a join or leave has ended.
const PAUSE: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(300);

/// The permission bits of others to read a file.
const OTHERS_READ: u32 = 0o004;

#[derive(Debug, Subcommand)]
pub(super) enum SwarmCommand {
    /// Join a swarm as a worker.
    Join(JoinArgs),
    /// Show the node's part in its swarm. Exit status 1 if something has to be mended.
    Status(Target),
    /// End and remove the tasks of the swarm on this node, and leave it. The swarm is not notified: run
    /// `docker node rm NODE` on a manager afterwards.
    Leave(Target),
}

#[derive(Debug, Args)]
pub(super) struct JoinArgs {
    /// The file with the worker token, as `docker swarm join-token --quiet worker` prints it on a manager; `-` is
    /// standard input.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Availability for tasks of the swarm: later `docker node update --availability` changes it.
    #[arg(long, value_enum, default_value_t)]
    availability: AvailabilityArg,
    /// Managers, each as HOST or HOST:PORT; the port is 2377 by default. The first that answers is joined.
    #[arg(required = true, value_name = "MANAGER")]
    managers: Vec<String>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum AvailabilityArg {
    #[default]
    Active,
    Pause,
    Drain,
}

pub(super) async fn swarm(command: &SwarmCommand) -> Result<ExitCode, DaemonError> {
    match command {
        SwarmCommand::Join(args) => join(args).await.map(|()| ExitCode::SUCCESS),
        SwarmCommand::Status(target) => status(target).await,
        SwarmCommand::Leave(target) => leave(target).await.map(|()| ExitCode::SUCCESS),
    }
}

async fn join(
    JoinArgs {
        token_file,
        availability,
        managers,
        target,
    }: &JoinArgs,
) -> Result<(), DaemonError> {
    let token = read_token(token_file)?;
    let availability = match availability {
        AvailabilityArg::Active => "active",
        AvailabilityArg::Pause => "pause",
        AvailabilityArg::Drain => "drain",
    };
    let body = json!({ "token": token, "managers": managers, "availability": availability });
    let joining = async {
        let begun = daemon::post(&target.socket, "/v1/swarm/join", &body).await;
        ended(target, begun, "joining").await
    };
    let joined = waiting(
        "the swarm is joined",
        Some((&target.socket, "join_swarm")),
        joining,
    )
    .await?;
    if joined.state != "member" {
        return Err(DaemonError::Message(explanation(
            &joined,
            "this node has not joined the swarm",
        )));
    }
    match target.output {
        Format::Json => print_json(&joined)?,
        Format::Text => print(format!(
            "this node is {} of the swarm {}\n",
            joined.node.unwrap_or_default(),
            joined.cluster.unwrap_or_default()
        ))?,
    }
    Ok(())
}

async fn leave(target: &Target) -> Result<(), DaemonError> {
    let leaving = async {
        let begun = daemon::request(&target.socket, Method::DELETE, "/v1/swarm").await;
        ended(target, begun, "leaving").await
    };
    let left = waiting(
        "the swarm is left",
        Some((&target.socket, "leave_swarm")),
        leaving,
    )
    .await?;
    if left.state != "not_joined" {
        return Err(DaemonError::Message(explanation(
            &left,
            "this node has not left the swarm",
        )));
    }
    match target.output {
        Format::Json => print_json(&left)?,
        Format::Text => {
            let node = left
                .departure
                .map(|departure| departure.node)
                .filter(|node| !node.is_empty());
            let advice = node.map(|node| {
                format!(
                    "; run `docker node rm {node}` on a manager, once it shows the node as down"
                )
            });
            print(format!(
                "this node has left the swarm{}\n",
                advice.unwrap_or_default()
            ))?;
        }
    }
    Ok(())
}

/// Returns the node's state after the join or leave that `begun` answers. Until then, it is `during`.
async fn ended(
    target: &Target,
    begun: Result<(StatusCode, bytes::Bytes), DaemonError>,
    during: &str,
) -> Result<SwarmView, DaemonError> {
    let (status, body) = match begun {
        // The text says by itself what is wrong.
        Err(DaemonError::Refused { status, text, .. }) if status != StatusCode::NOT_FOUND => {
            return Err(DaemonError::Message(text));
        }
        begun => begun?,
    };
    let mut view: SwarmView = daemon::parse("/v1/swarm", &body)?;
    let deadline = Instant::now() + LIMIT;
    if status == StatusCode::ACCEPTED {
        while view.state == during {
            if Instant::now() >= deadline {
                let text = format!(
                    "the daemon is still {during}; `switchyard swarm status` shows how far it is"
                );
                return Err(DaemonError::Message(text));
            }
            sleep(PAUSE).await;
            match daemon::ask(target, "/v1/swarm").await {
                Ok(now) => view = now,
                // The next daemon continues the join or leave.
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(view)
}

fn explanation(view: &SwarmView, otherwise: &str) -> String {
    if view.problems.is_empty() {
        otherwise.to_owned()
    } else {
        view.problems.join("; ")
    }
}

async fn status(target: &Target) -> Result<ExitCode, DaemonError> {
    let view: SwarmView = match daemon::ask(target, "/v1/swarm").await {
        Err(DaemonError::Refused {
            status: StatusCode::CONFLICT,
            text,
            ..
        }) => {
            return Err(DaemonError::Message(text));
        }
        answer => answer?,
    };
    match target.output {
        Format::Json => print_json(&view)?,
        Format::Text => print(shown(&view))?,
    }
    Ok(if view.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn shown(view: &SwarmView) -> String {
    let words = view.state.replace('_', " ");
    let mut lines = vec![("state", format!("{words} since {}", view.since))];
    lines.extend(
        view.cluster
            .iter()
            .map(|cluster| ("swarm", cluster.clone())),
    );
    lines.extend(view.node.iter().map(|node| ("node", node.clone())));
    if let Some(since) = &view.session_since {
        let session = view.manager.as_ref().map_or_else(
            || format!("none since {since}"),
            |manager| format!("with {manager} since {since}"),
        );
        lines.push(("session", session));
    }
    lines.extend(
        view.certificate_ends
            .iter()
            .map(|end| ("certificate", format!("valid until {end}"))),
    );
    if let Some(DepartureView {
        cluster,
        node,
        cause,
    }) = &view.departure
    {
        let ids = if cluster.is_empty() {
            String::new()
        } else {
            format!(", as node {node} of {cluster}")
        };
        let what = match cause.as_str() {
            "removed" => "was removed from a swarm",
            _ => "has left a swarm",
        };
        lines.push(("before", format!("{what}{ids}")));
    }
    lines.extend(view.waiting.iter().map(|service| {
        let words = service.in_words();
        ("service", format!("{words} (since {})", service.since))
    }));
    lines.extend(
        view.problems
            .iter()
            .map(|problem| ("problem", problem.clone())),
    );
    lines
        .into_iter()
        .map(|(name, value)| format!("{name:<13}{}\n", printable(&value)))
        .collect()
}

/// Reads the token, and warns if others can read it too.
fn read_token(path: &Path) -> Result<String, DaemonError> {
    let is_stdin = path == Path::new("-");
    let place = if is_stdin {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    };
    let failed = |fault: io::Error| {
        DaemonError::Message(format!("cannot read the join token from {place}: {fault}"))
    };
    let mut token = String::new();
    if is_stdin {
        io::stdin()
            .lock()
            .take(TOKEN_MAX + 1)
            .read_to_string(&mut token)
            .map_err(failed)?;
    } else {
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_file() && metadata.mode() & OTHERS_READ != 0 {
            print_error(format!(
                "switchyard: warning: every user can read the join token in {place}: chmod 0600 it\n"
            ))?;
        }
        file.take(TOKEN_MAX + 1)
            .read_to_string(&mut token)
            .map_err(failed)?;
    }
    if token.len() as u64 > TOKEN_MAX {
        let text = format!("{place} has more than {TOKEN_MAX} bytes, and no join token has");
        return Err(DaemonError::Message(text));
    }
    if token.trim().is_empty() {
        return Err(DaemonError::Message(format!(
            "{place} is empty: the join token is expected there"
        )));
    }
    Ok(token.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn status_shows_the_membership_and_each_problem_on_one_line() {
        let mut view = SwarmView {
            state: "member".to_owned(),
            since: "2026-01-01T00:00:00.000Z".to_owned(),
            cluster: Some("c".to_owned()),
            node: Some("n".to_owned()),
            session_since: Some("2026-01-02T00:00:00.000Z".to_owned()),
            certificate_ends: Some("2026-04-01T00:00:00.000Z".to_owned()),
            problems: vec!["no\u{1b}[2J answer".to_owned()],
            ..SwarmView::default()
        };
        let expected = "state        member since 2026-01-01T00:00:00.000Z\n\
                        swarm        c\n\
                        node         n\n\
                        session      none since 2026-01-02T00:00:00.000Z\n\
                        certificate  valid until 2026-04-01T00:00:00.000Z\n\
                        problem      no [2J answer\n";
        assert_eq!(shown(&view), expected);
        view.manager = Some("m:2377".to_owned());
        assert!(shown(&view).contains("with m:2377 since"));
        let departure = DepartureView {
            cluster: "c".into(),
            node: "n".into(),
            cause: "removed".into(),
        };
        let left = SwarmView {
            state: "not_joined".into(),
            departure: Some(departure),
            ..SwarmView::default()
        };
        assert!(
            shown(&left).contains("before       was removed from a swarm, as node n of c"),
            "{}",
            shown(&left)
        );
    }

    #[test]
    fn token_is_read_within_bounds_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let refusal = || read_token(&path).unwrap_err().to_string();
        assert!(refusal().contains("cannot read the join token from"));
        fs::write(&path, " \n").unwrap();
        assert!(refusal().contains("is empty"));
        fs::write(&path, "x".repeat(4097)).unwrap();
        let text = refusal();
        assert!(text.contains("4096") && !text.contains("xx"), "{text}");
        fs::write(&path, b"SWMTKN\xff").unwrap();
        assert!(!refusal().contains("SWMTKN"));
        fs::write(&path, "SWMTKN-1\n").unwrap();
        assert_eq!(read_token(&path).unwrap(), "SWMTKN-1");
    }
}
