//! Measures pods, pulls, lists and memory side by side with containerd's own CRI plugin, on the same
//! containerd.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its output is what this program is for"
)]

mod afterwards;
mod args;
mod big;
mod breakdown;
mod bridge_driver;
mod bridges;
mod c_program;
mod crowd;
mod crun;
mod devices;
mod failure;
mod far;
mod footprint;
mod load;
mod logs;
mod memory;
mod network;
mod pair;
mod pause;
mod pods;
mod processor;
mod pulls;
mod report;
mod requests;
mod row;
mod scale;
mod side;
mod storm;
mod streams;
mod swarm;
mod tasks;
mod test_bed;
mod timed;
mod upgrade;
mod usage;

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Args, Part};
use crate::breakdown::Scrape;
use crate::crun::Crun;
use crate::devices::device_bench::DeviceBench;
use crate::failure::Failure;
use crate::logs::Logs;
use crate::memory::Memory;
use crate::pods::PodRound;
use crate::report::Report;
use crate::row::{Goal, Row};
use crate::test_bed::TestBed;

fn main() -> ExitCode {
    let args = Args::parse().sized();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime
        .expect("a runtime can be made")
        .block_on(until_told_to_stop(&args))
    {
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
        _ = terminate.recv() => Err("asked to stop".into()),
    }
}

async fn measure(args: &Args) -> Result<(), Failure> {
    // Dropped behind the daemon.
    let _bridge = bridges::OurPodBridge;
    let mut stand = TestBed::start(args.breakdown, &args.daemon_settings()).await?;
    let mut report = Report::new(&stand)?;
    // What was measured before something failed is worth its time.
    let mut result = measure_parts(args, &mut stand, &mut report).await;
    if result.is_ok() && args.wants(Part::Upgrade) && args.restarts > 0 {
        result = upgrade::measure(args.restarts, &mut report).await;
    }
    if result.is_ok() && args.names(Part::Big) {
        result = big::measure(&mut stand, args.big_size(), &mut report).await;
    }
    if result.is_ok() && args.names(Part::Scale) {
        result = Box::pin(scale::measure(&mut stand, &args.scale_size(), &mut report)).await;
    }
    if result.is_ok() && args.afterwards > 0 {
        let watched = Duration::from_secs(60 * args.afterwards);
        result = afterwards::measure(&stand, watched, &mut report).await;
    }
    report.leftovers(&stand.leftovers());

    println!("{}", report.table());
    if let Some(file) = &args.json {
        fs::write(file, format!("{:#}\n", report.json()))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    result
}

async fn measure_parts(
    args: &Args,
    stand: &mut TestBed,
    report: &mut Report,
) -> Result<(), Failure> {
    let fresh = Memory::of(stand)?;
    report.memory("after the start", fresh);
    let row = Row::ours(
        "daemon and logkeeper, without pods",
        "MiB",
        [(fresh.daemon + fresh.logkeeper).rss_mib()],
    );
    let mut memory = vec![row.goal(Goal::OursAtMost(30.0))];

    pods::round(stand, 0, PodRound::First).await?;
    if args.wants(Part::Pods) {
        measure_pods(args, stand, report).await?;
    }
    if args.wants(Part::Pulls) && args.pulls > 0 {
        measure_small_pulls(args, stand, report).await?;
    }
    if args.wants(Part::Image) && args.image_pulls > 0 {
        measure_large_pulls(args, stand, report).await?;
    }
    if args.wants(Part::Far) && args.far_pulls > 0 {
        far::measure(stand, args.far_size(), report).await?;
    }
    if args.wants(Part::Logs) && args.logs > 0 {
        measure_logs(args, stand, report).await?;
    }
    if args.wants(Part::Streams) {
        measure_streams(args, stand, report).await?;
    }
    if args.wants(Part::Burst) || args.wants(Part::Rate) {
        measure_load(args, stand, report).await?;
    }
    let worked = Memory::of(stand)?;
    let row = Row::ours(
        "the same after the work above",
        "MiB",
        [(worked.daemon + worked.logkeeper).rss_mib()],
    );
    memory.push(row.goal(Goal::OursAtMost(30.0)));
    if args.wants(Part::Crowd) {
        memory.extend(crowd::measure(stand, args.crowd_size(), report).await?);
    }
    report.section("resident memory", memory, String::new());
    if args.wants(Part::Usage) {
        let containers = usize::try_from(args.usage_containers)?;
        usage::measure(
            stand,
            usage::UsageSize {
                containers,
                calls: args.usage_calls,
            },
            report,
        )
        .await?;
    }
    if args.wants(Part::Crun) {
        measure_crun(args, stand, report).await?;
    }
    if args.wants(Part::Tasks) {
        tasks::measure(stand, args.tasks_size(), report).await?;
    }
    if args.wants(Part::Network) {
        network::measure(stand, args.attachments, report)?;
    }
    if args.wants(Part::Swarm) {
        swarm::measure(args.swarm_size(), report).await?;
    }
    if args.wants(Part::Devices) || args.wants(Part::Storm) {
        measure_devices(args, stand, report).await?;
    }
    Ok(())
}

async fn measure_streams(
    args: &Args,
    stand: &mut TestBed,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut samples = streams::measure(stand, args.commands, args.transfers).await?;
    if let Some(calls) = samples.calls.take() {
        // Each round runs one whose output is in the answer, and one whose output is streamed.
        report.breakdown("command", calls, 2 * args.commands);
    }
    let (rows, note) = samples.rows();
    report.section("commands and ports", rows, note);
    Ok(())
}

/// Pulls of an image with few small layers.
async fn measure_small_pulls(
    args: &Args,
    stand: &mut TestBed,
    report: &mut Report,
) -> Result<(), Failure> {
    let size = pulls::PullsSize {
        layers: args.layers,
        bytes: args.layer_mib << 20,
        files: 1,
    };
    let name = format!("pull of {} x {} MiB", args.layers, args.layer_mib);
    let names = ("small pulls", name.as_str());
    measure_pulls(stand, report, names, args.pulls, size, None).await
}

/// Pulls of an image with few large layers. Before 2.2 containerd applies one layer after the other.
async fn measure_large_pulls(
    args: &Args,
    stand: &mut TestBed,
    report: &mut Report,
) -> Result<(), Failure> {
    let size = pulls::PullsSize {
        layers: args.image_layers,
        bytes: args.image_mb * 1_000_000 / args.image_layers,
        files: 1,
    };
    let name = format!(
        "pull of {} MB in {} layers",
        args.image_mb, args.image_layers
    );
    let version = stand.theirs.version().await?;
    let mut numbers = version
        .trim_start_matches('v')
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    let later = (numbers.next(), numbers.next()) >= (Some(2), Some(2));
    let goal = Some(Goal::RatioAtMost(if later { 0.7 } else { 1.0 }));
    measure_pulls(
        stand,
        report,
        ("large pulls", &name),
        args.image_pulls,
        size,
        goal,
    )
    .await
}

async fn measure_devices(
    args: &Args,
    stand: &mut TestBed,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut fixture = DeviceBench::start(stand).await?;
    if args.wants(Part::Devices) {
        let size = devices::DevicesSize {
            batches: args.leases,
            changes: args.device_changes,
            starts: args.device_starts,
            warm_up: args.warm_up,
        };
        devices::measure(stand, &mut fixture, size, report).await?;
    }
    if args.wants(Part::Storm) {
        let size = storm::StormSize {
            rounds: args.storms,
            containers: args.storm,
        };
        storm::measure(stand, &fixture, size, report).await?;
    }
    Ok(())
}

async fn measure_pods(
    args: &Args,
    stand: &mut TestBed,
    report: &mut Report,
) -> Result<(), Failure> {
    for round in 0..args.warm_up {
        pods::round(stand, 1 + round, PodRound::Later).await?;
    }
    let warm = if args.breakdown {
        Some(Scrape::take(stand)?)
    } else {
        None
    };
    let mut samples = Vec::new();
    for round in 0..args.iterations {
        samples.push(pods::round(stand, 1 + args.warm_up + round, PodRound::Later).await?);
        report::progress("pods", round + 1, args.iterations);
    }
    if let Some(warm) = warm {
        report.breakdown("pod", Scrape::take(stand)?.since(&warm), args.iterations);
    }
    let (rows, note) = pods::rows(&samples, args.has_pods_on_bridge());
    report.section("one pod after the other", rows, note);
    report.memory("after the pods", Memory::of(stand)?);
    Ok(())
}

async fn measure_logs(
    args: &Args,
    stand: &mut TestBed,
    report: &mut Report,
) -> Result<(), Failure> {
    let source = logs::Source::make(args.log_mb)?;
    // The first of each side is not counted.
    Logs::new(&source).round(stand, &source, 0).await?;
    let mut logs = Logs::new(&source);
    for round in 1..=args.logs {
        logs.round(stand, &source, round).await?;
        report::progress("logs", round, args.logs);
    }
    let (rows, note) = logs.rows();
    report.section("logs", rows, note);
    Ok(())
}

async fn measure_crun(
    args: &Args,
    stand: &mut TestBed,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut crun = Crun::start(stand).await?;
    for round in 0..args.warm_up {
        crun.round(stand, round).await?;
    }
    let mut samples = Vec::new();
    for round in 0..args.crun_pods {
        samples.push(crun.round(stand, args.warm_up + round).await?);
        report::progress("pods with crun", round + 1, args.crun_pods);
    }
    let note = format!(
        "{} pods of each side, all privileged. Ours run with crun, without limits and on control groups v2 without\n\
         controllers, by a second daemon in a mount namespace of its own; theirs with runc and limits, as above.\n",
        samples.len()
    );
    report.section("crun against runc", crun::rows(&samples), note);
    report.leftovers(&crun.leftovers()?);
    Ok(())
}

async fn measure_load(
    args: &Args,
    stand: &mut TestBed,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut note = String::new();
    if args.wants(Part::Burst) {
        let mut bursts = Vec::new();
        for round in 0..args.bursts {
            bursts.push(load::burst(stand, round, args.burst_pods).await?);
            report::progress("bursts", round + 1, args.bursts);
        }
        rows.extend(load::burst_rows(&bursts, args.burst_pods));
        note.push_str(&format!(
            "{} bursts of each side, each call as soon as the one before was answered.\n",
            args.bursts
        ));
    }
    if args.wants(Part::Rate) {
        let turns = load::rate(stand, Duration::from_secs(args.rate_seconds), args.clients).await?;
        note.push_str(&format!(
            "Pods per second over {} s of each side, in {} turns.\n",
            args.rate_seconds,
            turns.len()
        ));
        rows.push(load::rate_row(turns, args.clients));
    }
    report.section("many pods", rows, note);
    report.memory("after many pods", Memory::of(stand)?);
    Ok(())
}

async fn measure_pulls(
    stand: &mut TestBed,
    report: &mut Report,
    (title, name): (&'static str, &str),
    count: u32,
    size: pulls::PullsSize,
    goal: Option<Goal>,
) -> Result<(), Failure> {
    // The first of each side is not counted.
    let _ = pulls::round(stand, 0, size).await?;
    let warm = if stand.timed.is_some() {
        Some(Scrape::take(stand)?)
    } else {
        None
    };
    let mut samples = Vec::new();
    for round in 1..=count {
        samples.push(pulls::round(stand, round, size).await?);
        report::progress(title, round, count);
    }
    if let Some(warm) = warm {
        report.breakdown("pull", Scrape::take(stand)?.since(&warm), count);
    }
    let note = format!(
        "{count} pulls of each side, of random bytes in gzip, from a registry on loopback.\n"
    );
    report.section(title, pulls::rows(name, &samples, goal), note);
    report.memory(&format!("after the {title}"), Memory::of(stand)?);
    Ok(())
}
