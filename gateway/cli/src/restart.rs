//! `switchyard restart`: puts an upgraded containerd or logkeeper in place while containers run.

use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::{Method, StatusCode};
use switchyard_operator_api::RestartReport;

use super::daemon::{self, DaemonError, Target};
use super::progress::waiting;
use crate::output::{Format, print, print_json};

/// Advice after the end of the daemon during a restart.
const CUT_OFF: &str = "the process may be the former or the next one, and one that does not run is started by the next \
                       daemon or the service manager; containers continue; run the command again";

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
    let body = judged(waiting(what, Some((socket, "restart_process")), asked).await)?;
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

/// The answer to the request for a restart, or the error for people.
fn judged(answer: Result<Bytes, DaemonError>) -> Result<Bytes, DaemonError> {
    match answer {
        // The text says by itself what was not done, and why.
        Err(DaemonError::Refused { status, text, .. }) if status != StatusCode::NOT_FOUND => {
            Err(DaemonError::Restart(text))
        }
        Err(DaemonError::Ended {
            path,
            advice: _,
            source,
        }) => Err(DaemonError::Ended {
            path,
            advice: CUT_OFF,
            source,
        }),
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::tests::EndingDaemon;

    #[tokio::test]
    async fn end_of_the_daemon_during_a_restart_is_named_with_what_becomes_of_it() {
        let daemon = EndingDaemon::new();
        let args = RestartArgs {
            part: RestartedPart::Logkeeper,
            target: Target {
                socket: daemon.socket(),
                output: Format::Text,
            },
        };
        let (restarted, ()) = tokio::join!(restart(&args), daemon.end());
        assert_eq!(
            restarted.unwrap_err().to_string(),
            format!("the daemon ended before it had answered /v1/restart/logkeeper: {CUT_OFF}")
        );
    }
}
