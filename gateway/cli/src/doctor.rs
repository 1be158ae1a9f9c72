//! `switchyard doctor`: what is wrong with this node, or will be.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use switchyard_config::Sources;
use switchyard_doctor::{
    self as doctor, DoctorReport, DoctorRequest, Finding, LocalNode, Severity,
};
use switchyard_operator_api::text::printable;

use super::error::CliError;
use super::{admin_socket, config_check};
use crate::output::{Format, print, print_json};

/// Sources of the checks, and the output format.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The configuration file; that of the running daemon, or /etc/switchyard/config.toml.
    #[arg(long, short, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The daemon's admin socket; that of the running daemon, or else the configured one.
    #[arg(long, value_name = "PATH", env = "SWITCHYARD_ADMIN_SOCKET")]
    socket: Option<PathBuf>,
    /// Text or JSON.
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

/// Prints the findings; exit status 1 if one is worse than a note.
pub(super) fn doctor(args: &DoctorArgs, sources: Sources) -> Result<ExitCode, CliError> {
    let socket = args
        .socket
        .clone()
        .unwrap_or_else(|| admin_socket::find(&sources));
    let request = DoctorRequest {
        socket: Some(socket),
        sources,
    };
    let node = LocalNode::with_start_check(Some(config_check::other_faults));
    let report = doctor::run(Arc::new(node), request);
    match args.output {
        Format::Text => print(text(&report))?,
        Format::Json => print_json(&report)?,
    }
    Ok(if report.healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn text(report: &DoctorReport) -> String {
    let mut text = String::new();
    for Finding {
        code,
        severity,
        title,
        found,
        consequence,
        cure,
        command,
    } in &report.findings
    {
        text.push_str(&format!("{} {code}: {title}\n", severity.as_str()));
        for (name, value) in [
            ("found", Some(found)),
            ("effect", Some(consequence)),
            ("cure", Some(cure)),
            ("run", command.as_ref()),
        ] {
            text.extend(value.map(|value| format!("  {name:<6}  {}\n", printable(value))));
        }
        text.push('\n');
    }
    let count = |severity: Severity| {
        report
            .findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let counts = [Severity::Error, Severity::Warning, Severity::Note].map(|severity| {
        match count(severity) {
            1 => format!("1 {}", severity.as_str()),
            count => format!("{count} {}s", severity.as_str()),
        }
    });
    let daemon = if report.daemon {
        "the daemon answers"
    } else {
        "the daemon does not answer"
    };
    text.push_str(&format!("{}; {daemon}\n", counts.join(", ")));
    text
}
