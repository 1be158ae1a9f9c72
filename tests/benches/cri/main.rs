//! Measures pods, pulls and memory side by side with containerd's own CRI plugin, on one and the same containerd.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is what this program is for")]

mod breakdown;
mod footprint;
mod logs;
mod memory;
mod pause;
mod pods;
mod pulls;
mod report;
mod side;
mod stand;
mod timed;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::breakdown::Scrape;
use crate::logs::Logs;
use crate::memory::Memory;
use crate::pods::Turn;
use crate::report::Report;
use crate::stand::Stand;

/// Why a measurement was given up.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures pods, pulls and memory of Switchyard and of containerd's own CRI plugin, in turns, on the same containerd.
#[derive(Debug, Parser)]
#[command(bin_name = "tests/bench")]
struct Args {
    /// Pods of each side that are measured
    #[arg(default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Pods of each side before the first that is measured, beside one that shows that logs work
    #[arg(long, value_name = "N", default_value_t = 3)]
    warm_up: u32,
    /// Pulls of each side; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 8)]
    pulls: u32,
    /// Layers of a pulled image
    #[arg(long, value_name = "N", default_value_t = 5)]
    layers: usize,
    /// Size of each layer in MiB; random bytes, which do not compress
    #[arg(long, value_name = "MIB", default_value_t = 4)]
    layer_mib: usize,
    /// Logs of each side; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 6)]
    logs: u32,
    /// Size of what a container prints, in MB
    #[arg(long, value_name = "MB", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    log_mb: u32,
    /// Also writes every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also shows where the time of our pods and pulls goes, as containerd and the daemon count it
    #[arg(long)]
    breakdown: bool,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.expect("a runtime can be made").block_on(until_told_to_stop(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the benchmark failed: {error}");
            let mut cause = error.source();
            while let Some(source) = cause {
                eprintln!("  because: {source}");
                cause = source.source();
            }
            ExitCode::FAILURE
        }
    }
}

/// Measures until done or interrupted: either way everything is dropped, and with that cleaned up.
async fn until_told_to_stop(args: &Args) -> Result<(), Failure> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = measure(args) => result,
        _ = interrupt.recv() => Err("interrupted".into()),
        _ = terminate.recv() => Err("told to stop".into()),
    }
}

async fn measure(args: &Args) -> Result<(), Failure> {
    let mut stand = Stand::start(args.breakdown).await?;
    let mut report = Report::new(&stand)?;
    report.memory("after the start", Memory::of(&stand)?);

    pods::round(&mut stand, 0, Turn::First).await?;
    for round in 0..args.warm_up {
        pods::round(&mut stand, 1 + round, Turn::Later).await?;
    }
    let warm = if args.breakdown { Some(Scrape::take(&stand)?) } else { None };
    for round in 0..args.iterations {
        report.pods(pods::round(&mut stand, 1 + args.warm_up + round, Turn::Later).await?);
        report::progress("pods", round + 1, args.iterations);
    }
    if let Some(warm) = warm {
        report.breakdown("pod", Scrape::take(&stand)?.since(&warm), args.iterations);
    }
    report.memory("after the pods", Memory::of(&stand)?);

    if args.pulls > 0 {
        report.pull_size(args.layers, args.layer_mib);
        // The first of each side is not counted.
        let _ = pulls::round(&mut stand, 0, args.layers, args.layer_mib).await?;
        let warm = if args.breakdown { Some(Scrape::take(&stand)?) } else { None };
        for round in 1..=args.pulls {
            report.pulls(pulls::round(&mut stand, round, args.layers, args.layer_mib).await?);
            report::progress("pulls", round, args.pulls);
        }
        if let Some(warm) = warm {
            report.breakdown("pull", Scrape::take(&stand)?.since(&warm), args.pulls);
        }
        report.memory("after the pulls", Memory::of(&stand)?);
    }
    let logs = if args.logs > 0 { Some(measure_logs(&mut stand, args).await?) } else { None };
    report.leftovers(stand.leftovers());

    println!("{}", report.table());
    if let Some(logs) = &logs {
        println!("{}", logs.table());
    }
    if let Some(file) = &args.json {
        let mut json = report.json();
        json["logs"] = logs.map_or(serde_json::Value::Null, |logs| logs.json());
        fs::write(file, format!("{json:#}\n"))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}

async fn measure_logs(stand: &mut Stand, args: &Args) -> Result<Logs, Failure> {
    let source = logs::Source::make(args.log_mb)?;
    // The first of each side is not counted.
    Logs::new(&source).round(stand, &source, 0).await?;
    let mut logs = Logs::new(&source);
    for round in 1..=args.logs {
        logs.round(stand, &source, round).await?;
        report::progress("logs", round, args.logs);
    }
    Ok(logs)
}
