//! `switchyard status`.

use std::cell::Cell;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use switchyard_linux::services::NodeService;
use switchyard_operator_api::programs::ProgramView;
use switchyard_operator_api::text::{age, printable};
use switchyard_operator_api::{
    ConfigView, FeatureView, LimitView, OperationView, PullView, RefusedReloadView, StatusReport,
    TroubleView,
};

use super::daemon::{DaemonError, ask};
use super::settings;
use super::watch::WatchArgs;
use crate::output::{Format, print, print_json, table};

mod wait;

use wait::{Wait, Waited};

/// The daemon, the output format, and how much is shown.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    watch: WatchArgs,
    /// Show the operations in flight too: what they work on or wait for, since when, and the processes that hold up those
    /// that take long; and the facts that `crictl info` shows.
    #[arg(long, short)]
    verbose: bool,
    /// Wait until the node is ready, for this time at most, as in ready=60s; then show it. A daemon that restarts
    /// meanwhile is waited for. Exit status 1 if the time is up.
    #[arg(long, value_name = "ready=TIME", value_parser = wait::parse, conflicts_with = "watch")]
    wait: Option<Wait>,
}

/// Shows the parts and the counts of objects; exit status 1 if the daemon is not ready.
pub(super) async fn status(
    StatusArgs {
        watch,
        verbose,
        wait,
    }: &StatusArgs,
) -> Result<ExitCode, DaemonError> {
    let is_ready = Cell::new(true);
    let asked = async || {
        let report: StatusReport = ask(&watch.target, "/statusz").await?;
        let operations = if *verbose {
            Some(ask(&watch.target, "/v1/operations?blockers=true").await?)
        } else {
            None
        };
        is_ready.set(report.ready);
        Ok(WholeStatus { report, operations })
    };
    if let Some(wait) = wait {
        let show = |status: &WholeStatus| match watch.target.output {
            Format::Json => print_json(status),
            Format::Text => print(shown(status, Timestamp::now())),
        };
        return match wait
            .until_ready(asked, |status| status.report.ready)
            .await?
        {
            Waited::Ready(status) => {
                show(&status)?;
                Ok(ExitCode::SUCCESS)
            }
            Waited::TimeUp(status) => {
                show(&status)?;
                Err(wait.not_ready(&status.report))
            }
        };
    }
    watch
        .show(asked, |status| shown(status, Timestamp::now()))
        .await?;
    Ok(if watch.is_watch() || is_ready.get() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
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
                (false, false) => "failed (the node stays ready)",
            };
            [part.name.clone(), state.to_owned(), part.detail.clone()]
        })
        .collect();
    let counts: Vec<_> = [("sandboxes", &report.sandboxes), ("tasks", &report.tasks)]
        .into_iter()
        .flat_map(|(kind, counts)| counts.iter().map(move |count| (kind, count)))
        .map(|(kind, count)| {
            [
                kind.to_owned(),
                count.owner.clone(),
                count.state.clone(),
                count.count.to_string(),
            ]
        })
        .collect();
    let images = report
        .images
        .map_or_else(|| "unknown".to_owned(), |images| images.to_string());
    let process = report
        .pid
        .map_or_else(|| "running".to_owned(), |pid| format!("process {pid}"));
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
    text.push_str(&limits(report));
    text.push_str(&missing_features(report));
    text.push_str(&advisories(report));
    text.push_str(&troubles(report));
    text.push_str(&former_programs(report));
    text.push_str(&configuration(report));
    if let Some(operations) = operations {
        text.push_str(&in_flight(operations));
        text.push_str(&facts(report));
    }
    text
}

/// The limits of the node by use; empty if they are not known.
fn limits(report: &StatusReport) -> String {
    if report.limits.is_empty() {
        return String::new();
    }
    let shown = report.limits.iter().map(|limit| {
        let LimitView { name, used, most } = limit;
        format!("{name} {} % ({used} of {most})", limit.percent())
    });
    let shown: Vec<_> = shown.collect();
    format!("limits in use: {}\n", shown.join(", "))
}

/// The table of what the kernel and the node do not offer to the daemon; empty if nothing is missing.
fn missing_features(report: &StatusReport) -> String {
    let rows: Vec<_> = report
        .features
        .iter()
        .filter_map(|FeatureView { name, fault }| Some([name.clone(), fault.clone()?]))
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("\n{}", table(["MISSING FEATURE", "REASON"], &rows))
}

/// The table of versions with known vulnerabilities; empty if there are none.
fn advisories(report: &StatusReport) -> String {
    if report.advisories.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = report
        .advisories
        .iter()
        .map(|advisory| {
            [
                advisory.program.clone(),
                advisory.version.clone(),
                advisory.ids.join(" "),
            ]
        })
        .collect();
    let table = table(
        [
            "PROGRAM",
            "VERSION",
            "KNOWN VULNERABILITIES, BY THE VERSION ALONE",
        ],
        &rows,
    );
    format!(
        "\n{table}If your distribution has fixed a version without changing its number, list it in advisories.ignore.\n"
    )
}

/// The table of objects in a condition that the daemon cannot end; empty if there are none.
fn troubles(report: &StatusReport) -> String {
    if report.troubles.is_empty() {
        return String::new();
    }
    let row = |trouble: &TroubleView| {
        let TroubleView { kind, count, .. } = trouble;
        [kind.clone(), count.to_string(), trouble.listed()]
    };
    let rows: Vec<_> = report.troubles.iter().map(row).collect();
    format!("\n{}", table(["TROUBLE", "COUNT", "OBJECTS"], &rows))
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
pub(super) fn in_flight(operations: &[OperationView]) -> String {
    if operations.is_empty() {
        return "\nNo operation is in flight.\n".to_owned();
    }
    let rows: Vec<_> = operations
        .iter()
        .map(|operation| {
            let steps = operation.steps.iter();
            let mut steps: Vec<_> = steps
                .map(|step| format!("{} ({:.1} s)", step.step, step.seconds))
                .collect();
            steps.extend(operation.pull.as_ref().map(PullView::summary));
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
    let mut text = format!(
        "\n{}",
        table(
            ["AGE", "OWNER", "OPERATION", "OBJECT", "STEPS", "CALLER"],
            &rows
        )
    );
    for operation in operations {
        let OperationView {
            operation: kind,
            subject,
            blockers,
            ..
        } = operation;
        for blocker in blockers {
            let line = printable(&format!("{kind} {subject} is held up: {blocker}"));
            text.push_str(&format!("\n{line}\n"));
        }
    }
    text
}

/// The table of the backend's facts; empty if none is known.
fn facts(report: &StatusReport) -> String {
    if report.facts.is_empty() {
        return String::new();
    }
    let facts = report.facts.iter();
    let rows: Vec<_> = facts
        .map(|(name, value)| [name.clone(), value.clone()])
        .collect();
    format!("\n{}", table(["FACT", "VALUE"], &rows))
}

/// The processes that are not as installed; empty if all are.
fn former_programs(report: &StatusReport) -> String {
    let mut text = String::new();
    for program in &report.programs {
        let ProgramView {
            part, pid, path, ..
        } = program;
        let of_daemon = NodeService::named("switchyard", Path::exists);
        let of_daemon = of_daemon.map(|service| service.command("restart").join(" "));
        let command = program.restart_command(of_daemon);
        if program.replaced {
            text.push_str(&format!(
                "\n{part} (process {pid}) still runs a former {path}: `{command}` replaces it while containers run.\n"
            ));
        } else if program.has_former_configuration() {
            text.push_str(&format!(
                "\n{part} (process {pid}) has read a former configuration: `{command}` puts the present one in force while containers run.\n"
            ));
        }
    }
    text
}

/// The parts of the configuration files that are not in force; empty if all are.
fn configuration(report: &StatusReport) -> String {
    let Some(ConfigView {
        pending,
        refused,
        loaded_at,
        ignored,
    }) = &report.config
    else {
        return String::new();
    };
    let mut text = String::new();
    if let Some(RefusedReloadView { at, why }) = refused {
        text.push_str(&format!(
            "\nThe configuration of {loaded_at} is in force. A reload was refused at {at}: {why}\n"
        ));
    }
    if !ignored.is_empty() {
        text.push_str("\nThe daemon ignored what it does not know of its configuration:\n");
        for unknown in ignored {
            text.push_str(&format!("  {unknown}\n"));
        }
    }
    if !pending.is_empty() {
        text.push_str("\nChanges of the configuration that are not in force yet:\n");
        text.push_str(&settings::changes(pending, true));
    }
    text
}
