//! `switchyard events`: the latest events, and those to come.

use std::io;

use clap::Args;
use http::Method;
use switchyard_operator_api::text::short;
use switchyard_operator_api::{EventPage, EventView};

use super::daemon::{DaemonError, Target, parse, send};
use super::watch::{OWNERS, Outage, passes};
use crate::output::{Format, announce, print_error, table};

/// Time for which the daemon waits for an event before it answers, in seconds.
const WAIT: u64 = 20;

#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    #[command(flatten)]
    target: Target,
    /// Show events as they happen, until interrupted.
    #[arg(long, short)]
    follow: bool,
    /// Only those of one owner: kubernetes, nomad, swarm or host.
    #[arg(long, value_name = "OWNER", value_parser = OWNERS)]
    owner: Option<String>,
}

/// Shows the events that the daemon has kept, in pages, and with `--follow` those to come, also of the daemon
/// after a restart.
pub(super) async fn events(args: &EventsArgs) -> Result<(), DaemonError> {
    let mut known: Option<(String, u64)> = None;
    let mut outage = Outage::default();
    loop {
        let wait = if args.follow && known.is_some() {
            WAIT
        } else {
            0
        };
        let path = path_of(known.as_ref(), args.owner.as_deref(), wait);
        let body = match send(&args.target.socket, Method::GET, &path).await {
            Ok(body) => body,
            Err(error) if args.follow && known.is_some() && passes(&error) => {
                outage.wait(&error).await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        outage = Outage::default();
        let EventPage {
            run,
            next,
            missed,
            is_restarted,
            events,
        } = parse(&path, &body)?;
        if is_restarted {
            print_error(
                "switchyard: the daemon was restarted: `switchyard history` has what happened before\n",
            )?;
        } else if missed > 0 {
            print_error(format!(
                "switchyard: {missed} events were lost: there were too many at once\n"
            ))?;
        }
        match announce(&shown(&events, args.target.output, known.is_none())?) {
            Ok(()) => {}
            // As in `switchyard events --follow | head -1`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if events.is_empty() && !args.follow {
            return Ok(());
        }
        known = Some((run, next));
    }
}

fn path_of(known: Option<&(String, u64)>, owner: Option<&str>, wait: u64) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("wait", &wait.to_string());
    if let Some((run, after)) = known {
        query
            .append_pair("run", run)
            .append_pair("after", &after.to_string());
    }
    if let Some(owner) = owner {
        query.append_pair("owner", owner);
    }
    format!("/v1/events?{}", query.finish())
}

/// The events as lines of JSON, or as rows of a table, of which only the first page has headings.
pub(super) fn shown(
    events: &[EventView],
    output: Format,
    with_headings: bool,
) -> io::Result<String> {
    match output {
        Format::Json => {
            let mut lines = String::new();
            for event in events {
                lines.push_str(&serde_json::to_string(event)?);
                lines.push('\n');
            }
            Ok(lines)
        }
        Format::Text => {
            let rows: Vec<_> = events.iter().map(row).collect();
            let text = table(["TIME", "OWNER", "EVENT", "OBJECT", "DETAIL"], &rows);
            let skipped = if with_headings {
                0
            } else {
                text.find('\n').map_or(0, |end| end + 1)
            };
            Ok(text[skipped..].to_owned())
        }
    }
}

fn row(event: &EventView) -> [String; 5] {
    let EventView {
        number: _,
        at,
        owner,
        event,
        sandbox,
        task,
        name,
        detail,
        names: _,
        exit: _,
    } = event;
    let id = task.as_ref().or(sandbox.as_ref()).map(|id| short(id));
    let object = match id {
        Some(id) if name.is_empty() => id,
        Some(id) => format!("{name} [{id}]"),
        None => name.clone(),
    };
    [
        at.clone(),
        owner.clone(),
        event.clone(),
        object,
        detail.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_has_what_is_known_in_escaped_form() {
        let known = ("7-2026 x&y".to_owned(), 5);
        let path = path_of(Some(&known), Some("nomad"), 20);
        assert_eq!(
            path,
            "/v1/events?wait=20&run=7-2026+x%26y&after=5&owner=nomad"
        );
    }
}
