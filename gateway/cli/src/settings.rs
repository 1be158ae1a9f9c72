//! `switchyard config reload`, `config dump --running` and `switchyard log level`: the settings of the running
//! daemon.

use std::time::Duration;

use clap::{Args, Subcommand};
use http::{Method, StatusCode};
use switchyard_operator_api::text::parse_duration;
use switchyard_operator_api::{Change, LevelView, Overridden, ReloadReport};

use super::daemon::{self, DaemonError, Socket, Target};
use super::progress::waiting;
use crate::output::{Format, print, print_json, table};

/// The commands below `switchyard log`.
#[derive(Debug, Subcommand)]
pub(super) enum LogCommand {
    /// Show the level of the daemon's log, or set another one for a time.
    Level(LevelArgs),
}

/// A level, and for how long it is in force.
#[derive(Debug, Args)]
pub(super) struct LevelArgs {
    #[command(flatten)]
    target: Target,
    /// A level (error, warn, info, debug, trace), or filters such as "info,switchyard_cri=debug".
    level: Option<String>,
    /// After this time the configured level is in force again, at the latest after 7 days.
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = parse_duration)]
    time: Duration,
    /// Put the configured level in force at once.
    #[arg(long, conflicts_with = "level")]
    reset: bool,
}

/// Makes the daemon read its configuration again, and shows what that changed.
pub(super) async fn reload(target: &Target) -> Result<(), DaemonError> {
    let socket = &target.socket;
    let asked = daemon::send(socket, Method::POST, "/v1/config/reload");
    let operation = Some((socket, "reload_config"));
    let body = match waiting("the daemon reloads its configuration", operation, asked).await {
        // The text says by itself what was not done, and why.
        Err(DaemonError::Refused {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            text,
            ..
        }) => {
            return Err(DaemonError::Reload(text));
        }
        answer => answer?,
    };
    let done: ReloadReport = daemon::parse("/v1/config/reload", &body)?;
    match target.output {
        Format::Json => print_json(&done)?,
        Format::Text => print(reloaded(&done))?,
    }
    Ok(())
}

/// The text of a reload that took effect.
fn reloaded(done: &ReloadReport) -> String {
    let mut text = match done.files.as_slice() {
        [] => "reloaded the defaults: there is no configuration file\n".to_owned(),
        files => format!("reloaded {}\n", files.join(", ")),
    };
    if done.applied.is_empty() && done.pending.is_empty() {
        text.push_str("nothing has changed\n");
    }
    if !done.applied.is_empty() {
        text.push_str("\nin force now:\n");
        text.push_str(&changes(&done.applied, false));
    }
    if !done.pending.is_empty() {
        text.push_str("\nnot in force yet:\n");
        text.push_str(&changes(&done.pending, true));
    }
    if !done.overridden.is_empty() {
        text.push_str("\nwithout effect, because the daemon was started with another value:\n");
        let rows: Vec<_> = done
            .overridden
            .iter()
            .map(|Overridden { key, location, by }| [key.clone(), location.clone(), by.clone()])
            .collect();
        text.push_str(&table(["KEY", "SET IN", "OVERRIDDEN BY"], &rows));
    }
    for warning in &done.warnings {
        text.push_str(&format!("\nwarning: {warning}\n"));
    }
    text
}

/// A table of changes.
pub(super) fn changes(changes: &[Change], is_pending: bool) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "…".to_owned());
    let rows: Vec<_> = changes
        .iter()
        .map(|change| {
            let shown = match (&change.before, &change.after) {
                (None, None) => "changed".to_owned(),
                (before, after) => format!("{} -> {}", value(before), value(after)),
            };
            let effect = if is_pending {
                change.effect.to_string()
            } else {
                String::new()
            };
            [change.key.clone(), shown, change.location.clone(), effect]
        })
        .collect();
    table(
        [
            "KEY",
            "VALUE",
            "SET IN",
            if is_pending { "NOTE" } else { "" },
        ],
        &rows,
    )
}

/// Shows the configuration that is in force.
pub(super) async fn running(socket: &Socket, origin: bool) -> Result<(), DaemonError> {
    let path = if origin {
        "/v1/config?origin"
    } else {
        "/v1/config"
    };
    let body = daemon::send(socket, Method::GET, path).await?;
    print(body)?;
    Ok(())
}

/// Shows or sets the level of the daemon's log.
pub(super) async fn log(command: &LogCommand) -> Result<(), DaemonError> {
    let LogCommand::Level(LevelArgs {
        target,
        level,
        time,
        reset,
    }) = command;
    let (method, path) = match (level, reset) {
        (Some(level), _) => {
            let query = url::form_urlencoded::Serializer::new(String::new())
                .append_pair("level", level)
                .append_pair("for", &time.as_secs().to_string())
                .finish();
            (Method::PUT, format!("/v1/log/level?{query}"))
        }
        (None, true) => (Method::DELETE, "/v1/log/level".to_owned()),
        (None, false) => (Method::GET, "/v1/log/level".to_owned()),
    };
    let body = daemon::send(&target.socket, method, &path).await?;
    let view: LevelView = daemon::parse(&path, &body)?;
    match target.output {
        Format::Json => print_json(&view)?,
        Format::Text => print(match &view.until {
            Some(until) => format!("{} until {until}, then {}\n", view.level, view.configured),
            None => format!("{}\n", view.level),
        })?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use switchyard_operator_api::Effect;

    use super::*;

    #[test]
    fn a_reload_shows_what_is_in_force_and_what_waits() {
        let change = |key: &str, effect| Change {
            key: key.to_owned(),
            effect,
            location: "/etc/switchyard/config.toml:7".to_owned(),
            before: Some("15".to_owned()),
            after: Some("30".to_owned()),
        };
        let done = ReloadReport {
            files: vec!["/etc/switchyard/config.toml".to_owned()],
            applied: vec![change("cri.exec_drain_seconds", Effect::Reload)],
            pending: vec![change("admin.max_connections", Effect::Restart)],
            overridden: vec![Overridden {
                key: "log.level".to_owned(),
                location: "/etc/switchyard/config.toml:3".to_owned(),
                by: "flag --log-level".to_owned(),
            }],
            warnings: Vec::new(),
        };
        let text = reloaded(&done);
        for part in [
            "in force now:",
            "15 -> 30",
            "not in force yet:",
            "a restart of the daemon",
            "--log-level",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(reloaded(&ReloadReport::default()).contains("nothing has changed"));
    }
}
