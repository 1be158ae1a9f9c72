//! `switchyard debug`: the inside of the daemon for those who look for a fault of it; of one that does not answer, what the node
//! shows of its process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use switchyard_config::Sources;
use switchyard_doctor::outside::{self, ProcessLook};
use switchyard_doctor::{LocalNode, NodeView};
use switchyard_linux::services::status_command;
use switchyard_operator_api::text::{printable, size};
use switchyard_operator_api::{AsyncTasksView, DebugView};

use super::error::CliError;
use super::{admin_socket, status};
use crate::output::{Format, print, print_json, table};

/// The daemon, and how it is looked at.
#[derive(Debug, Args)]
pub(super) struct DebugArgs {
    /// The configuration file; that of the running daemon, or /etc/switchyard/config.toml.
    #[arg(long, short, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The daemon's admin socket; that of the running daemon, or else the configured one.
    #[arg(long, value_name = "PATH", env = "SWITCHYARD_ADMIN_SOCKET")]
    socket: Option<PathBuf>,
    /// Look at the process from outside too, although the daemon answers.
    #[arg(long)]
    outside: bool,
    /// Do not let eu-stack or gdb stop the process for a moment to read its stacks.
    #[arg(long)]
    no_stacks: bool,
    /// Text or JSON.
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

/// The daemon from inside and from outside.
#[derive(Debug, Default, Serialize)]
struct DebugReport {
    /// The daemon's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    inside: Option<DebugView>,
    /// Reason why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_answer: Option<String>,
    /// The process, if it was looked at and is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    outside: Option<ProcessLook>,
}

/// Shows the daemon; exit status 1 if it does not answer.
pub(super) fn debug(args: &DebugArgs, sources: Sources) -> Result<ExitCode, CliError> {
    let socket = args
        .socket
        .clone()
        .unwrap_or_else(|| admin_socket::find(&sources));
    let node: Arc<dyn NodeView> = Arc::new(LocalNode::default());
    let answer = node.ask(&socket, "/v1/debug").and_then(|body| {
        serde_json::from_slice::<DebugView>(&body)
            .map_err(|error| format!("the daemon's answer cannot be parsed: {error}"))
    });
    let mut report = DebugReport::default();
    match answer {
        Ok(inside) => report.inside = Some(inside),
        Err(why) => report.no_answer = Some(why),
    }
    if args.outside || report.inside.is_none() {
        let of_answer = report.inside.as_ref().map(|inside| inside.pid);
        let pid = of_answer.or_else(|| outside::daemon_at(&*node, &socket));
        // One of another version may answer without this page: it is not stopped unasked.
        let answers = report.inside.is_some() || node.ask(&socket, "/livez").is_ok();
        let with_stacks = !args.no_stacks && (args.outside || !answers);
        report.outside = pid.map(|pid| outside::look(&node, pid, with_stacks));
    }
    match args.output {
        Format::Text => print(text(&report))?,
        Format::Json => print_json(&report)?,
    }
    Ok(if report.inside.is_some() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn text(report: &DebugReport) -> String {
    let DebugReport {
        inside,
        no_answer,
        outside,
    } = report;
    let mut text = String::new();
    if let Some(inside) = inside {
        text.push_str(&text_of_inside(inside));
    }
    if let Some(why) = no_answer {
        text.push_str(&format!("the daemon does not answer: {}\n", printable(why)));
        if outside.is_none() {
            let command = status_command("switchyard");
            text.push_str(&format!("no process of it is found: `{command}`\n"));
        }
    }
    if let Some(outside) = outside {
        text.push_str(&text_of_outside(outside));
    }
    text
}

fn text_of_inside(inside: &DebugView) -> String {
    let DebugView {
        version,
        revision,
        pid,
        operations,
        locks,
        tasks,
        memory,
    } = inside;
    let mut text = format!("switchyard {version} ({revision}), process {pid}\n");
    text.push_str(&status::in_flight(operations));
    let rows: Vec<_> = locks
        .iter()
        .map(|lock| {
            [
                lock.lock.clone(),
                lock.key.clone(),
                lock.waiting.to_string(),
            ]
        })
        .collect();
    text.push('\n');
    if rows.is_empty() {
        text.push_str("No lock of an object is held.\n");
    } else {
        text.push_str(&table(["LOCK", "HELD FOR", "WAITING"], &rows));
    }
    let AsyncTasksView {
        alive,
        queued,
        tracked,
        busy_seconds,
    } = tasks;
    let tracked: Vec<_> = tracked
        .iter()
        .map(|(work, count)| format!("{work} {count}"))
        .collect();
    let busy: Vec<_> = busy_seconds
        .iter()
        .map(|seconds| format!("{seconds:.1} s"))
        .collect();
    text.push_str(&format!(
        "\nasynchronous tasks: {alive}, ready and waiting for a thread {queued}; {}\nbusy, by thread: {}\n",
        tracked.join(", "),
        busy.join(", ")
    ));
    text.push_str(&text_of_memory(memory));
    text
}

fn text_of_outside(outside: &ProcessLook) -> String {
    let ProcessLook {
        pid,
        threads,
        memory,
        stacks,
        missing,
    } = outside;
    let rows: Vec<_> = threads
        .iter()
        .map(|thread| {
            [
                thread.id.to_string(),
                printable(&thread.name),
                thread.state.clone(),
                thread.waits_in.clone(),
                thread.system_call.clone(),
            ]
        })
        .collect();
    let headings = ["THREAD", "NAME", "STATE", "WAITS IN", "SYSTEM CALL"];
    let mut text = format!("\nprocess {pid}, from outside\n{}", table(headings, &rows));
    text.push_str(&text_of_memory(memory));
    for why in missing {
        text.push_str(&format!("missing: {}\n", printable(why)));
    }
    if let Some(stacks) = stacks {
        let lines: Vec<_> = stacks.lines().map(printable).collect();
        text.push_str(&format!("\n{}\n", lines.join("\n")));
    }
    text
}

/// The sums that are not 0, on one line; empty if none is known.
fn text_of_memory(memory: &BTreeMap<String, u64>) -> String {
    let sums: Vec<_> = memory
        .iter()
        .filter(|(_, bytes)| **bytes > 0)
        .map(|(name, bytes)| format!("{name} {}", size(*bytes)))
        .collect();
    if sums.is_empty() {
        String::new()
    } else {
        format!("memory: {}\n", sums.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use switchyard_doctor::outside::ThreadLook;
    use switchyard_operator_api::LockView;

    use super::*;

    #[test]
    fn daemon_that_does_not_answer_is_shown_by_its_threads() {
        let report = DebugReport {
            no_answer: Some("it is late".to_owned()),
            outside: Some(ProcessLook {
                pid: 7,
                threads: vec![ThreadLook {
                    id: 8,
                    name: "tokio-rt-worker".to_owned(),
                    state: "D".to_owned(),
                    waits_in: "nfs_wait_bit_killable".to_owned(),
                    system_call: "137 0x1".to_owned(),
                }],
                memory: BTreeMap::from([("Rss".to_owned(), 1536), ("Swap".to_owned(), 0)]),
                stacks: None,
                missing: vec!["the stacks: no gdb".to_owned()],
            }),
            ..DebugReport::default()
        };
        let expected = "\
the daemon does not answer: it is late

process 7, from outside
THREAD  NAME             STATE  WAITS IN               SYSTEM CALL
8       tokio-rt-worker  D      nfs_wait_bit_killable  137 0x1
memory: Rss 1.5 KiB
missing: the stacks: no gdb
";
        assert_eq!(text(&report), expected);
    }

    #[test]
    fn daemon_that_answers_is_shown_with_its_locks() {
        let inside = DebugView {
            version: "1".to_owned(),
            revision: "abc".to_owned(),
            pid: 7,
            operations: Vec::new(),
            locks: vec![LockView {
                lock: "task_locks".to_owned(),
                key: "80be".to_owned(),
                waiting: 2,
            }],
            tasks: AsyncTasksView {
                alive: 40,
                queued: 1,
                tracked: BTreeMap::from([("watchers".to_owned(), 3)]),
                busy_seconds: vec![1.25],
            },
            memory: BTreeMap::from([("Rss".to_owned(), 2048)]),
        };
        let report = DebugReport {
            inside: Some(inside),
            ..DebugReport::default()
        };
        let text = text(&report);
        for part in [
            "switchyard 1 (abc), process 7\n",
            "No operation is in flight.\n",
            "task_locks  80be      2\n",
            "asynchronous tasks: 40, ready and waiting for a thread 1; watchers 3\n",
            "memory: Rss 2.0 KiB\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
