//! `switchyard restart`: puts an upgraded containerd or logkeeper in place while containers run.

use clap::{Args, ValueEnum};
use http::{Method, StatusCode};
use switchyard_operator_api::RestartReport;

use super::daemon::{self, DaemonError, Target};
use super::progress::waiting;
use crate::output::{Format, print, print_json};

/// The part to restart.
#[derive(Debug, Args)]
pub(super) struct RestartArgs {
    /// The part.
    part: RestartedPart,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RestartedPart {
    Containerd,
    Logkeeper,
}

/// Restarts a part, and shows which process serves now.
pub(super) async fn restart(args: &RestartArgs) -> Result<(), DaemonError> {
    let (path, what) = match args.part {
        RestartedPart::Containerd => ("/v1/restart/containerd", "containerd restarts"),
        RestartedPart::Logkeeper => ("/v1/restart/logkeeper", "the logkeeper restarts"),
    };
    let socket = &args.target.socket;
    let asked = daemon::send(socket, Method::POST, path);
    let body = match waiting(what, Some((socket, "restart_process")), asked).await {
        // The text says by itself what was not done, and why.
        Err(DaemonError::Refused { status, text, .. }) if status != StatusCode::NOT_FOUND => {
            return Err(DaemonError::Restart(text));
        }
        answer => answer?,
    };
    let done: RestartReport = daemon::parse(path, &body)?;
    match args.target.output {
        Format::Json => print_json(&done)?,
        Format::Text => {
            let before = done
                .before
                .map_or_else(|| "none".to_owned(), |pid| format!("process {pid}"));
            print(format!(
                "{}: {before} before, process {} now; containers continued\n",
                done.part, done.after
            ))?;
        }
    }
    Ok(())
}
