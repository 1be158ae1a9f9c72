//! The anonymous memory of daemon and logkeeper behind all parts: what work took goes back to the kernel within a minute, and nothing grows
//! afterwards.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::memory::{Memory, Resident};
use crate::report::Report;
use crate::row::{Goal, Row};
use crate::test_bed::TestBed;

/// Time within which freed memory is back with the kernel.
const RETURN: Duration = Duration::from_secs(60);
/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(5);
/// The goal a minute behind the work, in MiB.
const MOST: f64 = 12.0;
/// How much more it may be later, in MiB.
const GROWTH: f64 = 3.0;

/// Waits for a minute, and then watches the memory for as long as is given, without any work.
pub(crate) async fn measure(
    stand: &TestBed,
    watched: Duration,
    report: &mut Report,
) -> Result<(), Failure> {
    sleep(RETURN).await;
    let memory = Memory::of(stand)?;
    report.memory("a minute after all parts", memory);
    let first = own(&memory).anonymous_mib();
    let mut highest = first;
    let end = Instant::now() + watched;
    while Instant::now() < end {
        sleep(INTERVAL).await;
        highest = highest.max(own(&Memory::of(stand)?).anonymous_mib());
    }
    let memory = Memory::of(stand)?;
    report.memory("after the rest", memory);
    let row = |name: &str, mib: f64, most: f64| {
        Row::ours(name, "MiB", [mib]).goal(Goal::OursAtMost(most))
    };
    let rows = vec![
        row("a minute after all parts", first, MOST),
        row("the highest afterwards", highest, first + GROWTH),
        row("at the end", own(&memory).anonymous_mib(), first + GROWTH),
    ];
    let note = format!(
        "Anonymous memory of daemon and logkeeper, from smaps_rollup; watched for {} min without work, each {} s.\n",
        watched.as_secs() / 60,
        INTERVAL.as_secs()
    );
    report.section("anonymous memory", rows, note);
    Ok(())
}

fn own(memory: &Memory) -> Resident {
    memory.daemon + memory.logkeeper
}
