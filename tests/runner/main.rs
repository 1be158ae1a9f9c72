//! The program that `tests/run` starts after the build: the tests, and one shard of eight of the slow items.
//!
//! Three lanes run side by side, as the integration tests leave a part of the processors idle: the
//! integration tests; the tests of the crates, then the benchmark and the documentation; and the construction
//! of the roots of other suites of Debian and of the programs of other versions. The tests with those programs,
//! the guest and the tests in those roots come afterwards, one after the other: where everything is asked for, in one root
//! the integration tests as a whole. Everything is run, also after something has failed.
#![expect(
    clippy::print_stdout,
    reason = "what it prints is what a person or a CI job reads"
)]

mod artifacts;
mod history;
mod lanes;
mod output;
mod program;
mod summary;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use switchyard_tests::shards::{Extent, Plan, SHARDS, Shard};

use artifacts::Artifacts;
use lanes::Lanes;
use summary::Summary;

/// Runs the tests that a build has made.
#[derive(Debug, Parser)]
struct Arguments {
    /// Output of `cargo build --message-format=json` for the whole workspace.
    #[arg(long)]
    built: PathBuf,
    /// Everything.
    #[arg(long, conflicts_with = "shard")]
    all: bool,
    /// This shard instead of that of the commit.
    #[arg(long, env = "SHARD", value_parser = clap::value_parser!(u8).range(0..8))]
    shard: Option<u8>,
    /// The directory for what is printed: a file for each program, and `summary`.
    #[arg(long)]
    logs: PathBuf,
    /// Only tests whose name contains one of these words, and nothing but tests.
    words: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let root = std::env::current_dir().expect("the directory that this is run in exists");
    let text = std::fs::read_to_string(&arguments.built).expect("the build has written it");
    let artifacts = Artifacts::parse(&root, &text);
    std::fs::create_dir_all(&arguments.logs).expect("the repository can be written");
    let lanes = Lanes {
        artifacts: &artifacts,
        root: &root,
        logs: &arguments.logs,
        built: &arguments.built,
    };
    let mut summary = Summary::default();
    if !arguments.words.is_empty() {
        lanes.named(&arguments.words, &mut summary);
        return summary.finish(&arguments.logs);
    }
    let plan = Plan::new(&extent(&arguments, &root, &mut summary));
    // Without the program of a version the run has failed already.
    let built = lanes.tests(&plan, &mut summary);
    lanes.versions(&built, &mut summary);
    lanes.guest(&plan, &built, &mut summary);
    lanes.roots(&plan, &built, &mut summary);
    summary.left_out(&plan);
    summary.finish(&arguments.logs)
}

fn extent(arguments: &Arguments, root: &Path, summary: &mut Summary) -> Extent {
    if arguments.all {
        summary.say("All shards.".to_owned());
        return Extent::All;
    }
    let (shard, why) = match arguments.shard {
        Some(number) => {
            let shard = Shard::new(number).expect("the range of the argument is that of shards");
            (shard, "as asked for".to_owned())
        }
        None => history::shard(root),
    };
    summary.say(format!("Shard {shard} of {SHARDS}, {why}."));
    let changes = history::changes(root);
    if !changes.sweeps.is_empty() {
        summary.say(format!(
            "These commits change too many files of tests to add all of them: {}.",
            changes.sweeps.join(", ")
        ));
    }
    Extent::Shard {
        shard,
        changed: changes.files,
    }
}
