//! Kills the daemon, the logkeeper, containerd and shims at random moments while clients are at work; run by
//! `tests/chaos`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its output is what this program is for"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use switchyard_tests::chaos::{Drivers, Settings, run};
use switchyard_tests::host::random_bytes;

/// Kills the daemon, the logkeeper, containerd and shims at random moments while clients are at work.
#[derive(Debug, Parser)]
#[command(bin_name = "tests/chaos")]
struct Args {
    /// Number of kills
    #[arg(long, value_name = "N", default_value_t = 100)]
    kills: u32,
    /// Repeats the order of kills and the clients' choices of another run; random by default
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Clients that work concurrently
    #[arg(long, value_name = "N", default_value_t = 4)]
    clients: u32,
    /// Who attaches the pods to their bridge
    #[arg(long, value_enum, default_value_t)]
    driver: Drivers,
    /// With a containerd that is not the daemon's own
    #[arg(long)]
    external: bool,
    /// The longest pause between two kills, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1500)]
    pause: u64,
    /// Copies the logs of the daemon, containerd and the logkeeper here
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// More configuration of the daemon, as TOML
    #[arg(long, value_name = "TOML", default_value = "")]
    config: String,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let Args {
        kills,
        seed,
        clients,
        driver,
        external,
        pause,
        logs,
        config,
        bench: _,
    } = Args::parse();
    let seed = seed.unwrap_or_else(|| u64::from(u32::from_be_bytes(random_bytes())));
    let settings = Settings {
        kills,
        external,
        seed,
        clients,
        drivers: driver,
        pauses_ms: (50, pause),
        config,
        logs,
    };
    eprintln!("seed {seed}");
    let outcome = run(settings);
    print!("{outcome}");
    if outcome.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
