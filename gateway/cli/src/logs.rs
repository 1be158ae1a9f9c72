//! `switchyard logs`: the output of a task of any owner. The daemon locates the log; this process reads it.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use http::StatusCode;
use jiff::Timestamp;
use switchyard_logkeeper::format::Stream;
use switchyard_logkeeper::reader::{LogLocation, LogQuery, LogReader, ReadError, ReadWaiter};
use switchyard_operator::task_logs;
use switchyard_operator_api::TaskLogView;
use tokio::sync::watch;
use tokio::time::sleep;

use super::daemon::{DaemonError, Target, ask};
use super::local_time;
use super::log_output::{LogPrinter, PrintError};
use super::watch::AGAIN;

/// The shortest and the longest pause before a follower looks for new output.
const PAUSES: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(200)];

/// Time for a Nomad agent to write the last output of a task that has ended.
const AGENT_WRITES: Duration = Duration::from_millis(500);

/// The log, and which part of it.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    #[command(flatten)]
    target: Target,
    /// Continue with what is written later, until the task has ended.
    #[arg(long, short)]
    follow: bool,
    /// Only so many lines at the end; of a Nomad task, of each stream.
    #[arg(long, short = 'n', value_name = "LINES")]
    tail: Option<u64>,
    /// Only what is not older: a time of the day such as 03:00, the last one, or a day such as 2026-11-26, both of the
    /// node's time zone; a time such as 2026-11-26T10:00:00Z; or how long ago, such as 10m.
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<SystemTime>,
    /// Print the time of each line before it.
    #[arg(long, short)]
    timestamps: bool,
    /// Only one stream.
    #[arg(long, value_name = "STREAM")]
    stream: Option<StreamArg>,
    /// The beginning of the task's id, or its name as `switchyard ps` shows it; of several of one owner with this
    /// name, the newest.
    task: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StreamArg {
    Stdout,
    Stderr,
}

/// Reason why a log cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogsError {
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error("task {task} has no log: {reason}")]
    None { task: String, reason: String },
    #[error(
        "the log of task {0} is plain text without times, as Nomad agents write it: leave out --since and --timestamps"
    )]
    NoTimes(String),
    #[error("task {task} has no log file: {hint}")]
    Absent {
        task: String,
        hint: &'static str,
        #[source]
        source: ReadError,
    },
    #[error(transparent)]
    Print(#[from] PrintError),
}

/// A time as the history takes it.
fn since(text: &str) -> Result<SystemTime, String> {
    let time = local_time::parse(text)?;
    Ok(time
        .last_before(Timestamp::now(), &local_time::zone())
        .into())
}

/// Prints the log of a task; exit status 1 if parts of it cannot be read.
pub(super) async fn logs(args: &LogsArgs) -> Result<ExitCode, LogsError> {
    let view = find(&args.target, &args.task).await?;
    let task = format!("{} ({})", view.display_name, view.id);
    let reason = |reason| LogsError::None {
        task: task.clone(),
        reason,
    };
    let location = task_logs::location(view.log.clone()).map_err(reason)?;
    let is_plain = matches!(location, LogLocation::Plain { .. });
    if is_plain && (args.since.is_some() || args.timestamps) {
        return Err(LogsError::NoTimes(task));
    }
    let stream = args.stream.map(|stream| match stream {
        StreamArg::Stdout => Stream::Stdout,
        StreamArg::Stderr => Stream::Stderr,
    });
    let query = LogQuery {
        tail: args.tail,
        since: args.since,
        stream,
        follow: args.follow,
    };
    // Who ends this process ends the reader as well.
    let waiter = ReadWaiter::default();
    let mut reader = LogReader::open(&location, &query, &waiter.interest())
        .map_err(|error| not_opened(error, &task, is_plain))?;
    let mut printer = LogPrinter::new(args.target.output, args.timestamps);
    let printed = if args.follow {
        follow(&args.target, view, &mut reader, &mut printer, is_plain).await
    } else {
        if view.is_complete {
            reader.end();
        }
        printer.drain(&mut reader).await.map(drop)
    };
    match printed {
        Ok(()) if printer.is_complete() => Ok(ExitCode::SUCCESS),
        Ok(()) => Ok(ExitCode::FAILURE),
        Err(error) if error.is_closed_output() => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error.into()),
    }
}

/// The error for a log that cannot be opened.
fn not_opened(source: ReadError, task: &str, is_plain: bool) -> LogsError {
    if !matches!(source, ReadError::Absent(_)) {
        return PrintError::from(source).into();
    }
    let hint = if is_plain {
        "it has written nothing yet, its job or its agent collects no logs, or the agent has removed them"
    } else {
        "it was not started yet, or its log was removed"
    };
    LogsError::Absent {
        task: task.to_owned(),
        hint,
        source,
    }
}

/// Returns the location of a task's log.
async fn find(target: &Target, name: &str) -> Result<TaskLogView, DaemonError> {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("name", name);
    match ask(target, &format!("/v1/tasks/log?{}", query.finish())).await {
        Err(DaemonError::Refused {
            path: _,
            status: StatusCode::NOT_FOUND | StatusCode::CONFLICT | StatusCode::BAD_REQUEST,
            text,
        }) if !text.is_empty() => Err(DaemonError::Message(text)),
        other => other,
    }
}

/// Prints what is written until the task has ended. While the daemon does not answer, the log is still followed.
async fn follow(
    target: &Target,
    view: TaskLogView,
    reader: &mut LogReader,
    printer: &mut LogPrinter,
    is_plain: bool,
) -> Result<(), PrintError> {
    let (ended, mut end) = watch::channel(view.is_complete);
    let asking = async {
        while !*ended.borrow() {
            sleep(AGAIN).await;
            match find(target, &view.id).await {
                Ok(TaskLogView {
                    is_complete: false, ..
                }) => {}
                // A task that is not known any more was removed.
                Ok(_) | Err(DaemonError::Message(_)) => drop(ended.send(true)),
                // It may be restarting.
                Err(_) => {}
            }
        }
        std::future::pending::<()>().await;
    };
    let printing = async {
        let [shortest, longest] = PAUSES;
        let mut pause = shortest;
        loop {
            // Queried first: what is read below has everything that was written by then.
            let is_over = *end.borrow();
            if is_over {
                if is_plain {
                    sleep(AGENT_WRITES).await;
                }
                reader.end();
            }
            let has_printed = printer.drain(reader).await?;
            if is_over {
                return Ok(());
            }
            pause = if has_printed {
                shortest
            } else {
                (pause * 2).min(longest)
            };
            tokio::select! {
                () = sleep(pause) => {}
                // The channel exists as long as this.
                _ = end.changed() => {}
            }
        }
    };
    tokio::select! {
        printed = printing => printed,
        () = asking => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_time_or_how_long_ago() {
        let at = since("1970-01-01T00:01:00Z").unwrap();
        assert_eq!(at, SystemTime::UNIX_EPOCH + Duration::from_secs(60));
        let begun = SystemTime::now();
        let ago = since("10m").unwrap() + Duration::from_secs(600);
        assert!(
            (begun..begun + Duration::from_secs(60)).contains(&ago),
            "{ago:?}"
        );
        let of_day = since("03:00").unwrap();
        assert!(of_day <= SystemTime::now() && of_day > begun - Duration::from_secs(2 * 24 * 3600));
        for text in ["", "-10m", "yesterday"] {
            assert!(since(text).is_err(), "{text}");
        }
    }
}
