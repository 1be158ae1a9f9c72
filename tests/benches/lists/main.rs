//! Measures whether lists in requests cost in proportion to their length: the processor time of a request with a list, from
//! its bytes to the spec of a container, against that of one with a list ten times as long. Which lists are measured, which
//! are not and why is in `docs/benchmark.md`.
//!
//! Processor time is no count of operations. There is no counter that would be exact and cheap: a virtual machine has none
//! for instructions, a debugger's single steps are 26,000 a second, and a comparison allocates nothing, so counting allocations
//! would not show it. So the bound is ten, as the input, and about 60 % more for noise; a list that is compared with itself
//! exceeds it several times.

#![expect(
    clippy::print_stdout,
    reason = "its output is what this program is for"
)]

mod agents;
#[path = "../cri/failure.rs"]
mod failure;
mod host;
mod kubelets;
mod lists;
mod managers;
#[path = "../cri/pair.rs"]
#[expect(dead_code, reason = "here both sides are measured in one process")]
mod pair;
#[path = "../cri/row.rs"]
#[expect(dead_code, reason = "the other benchmark has further kinds of rows")]
mod row;

use std::process::ExitCode;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::failure::Failure;
use crate::lists::{List, ONE_TO};
use crate::pair::Pair;
use crate::row::{Goal, Row};

/// Maximum factor of the cost for ten times the input: ten, and about 60 % more for sorting, look-ups, caches
/// and noise.
const AT_MOST: f64 = 16.0;

/// Number of measurements of each list.
const ROUNDS: u32 = 9;

fn main() -> ExitCode {
    let mut missed = 0;
    println!(
        "{}",
        Row::head(
            "lists in requests",
            Pair {
                theirs: "one length",
                ours: "ten times"
            }
        )
    );
    for list in lists::all() {
        match measured(&list) {
            Ok(row) => {
                println!("{row}");
                missed += u32::from(row.reached() != Some(true));
            }
            Err(error) => {
                println!("{}: {error}", list.name);
                missed += 1;
            }
        }
    }
    println!(
        "{missed} lists cost more than {AT_MOST} times as much for ten times the length, or are refused"
    );
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn measured(list: &List) -> Result<Row, Failure> {
    let List {
        name,
        length,
        request,
        convert,
    } = list;
    let [none, short, long] = [0, *length, *length * ONE_TO].map(request);
    // The first of each is not counted.
    let mut costs = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        for (costs, request) in costs.iter_mut().zip([&none, &short, &long]) {
            let cost = cost(request, *convert)?;
            if round > 0 {
                costs.push(cost);
            }
        }
    }
    // What a request costs without the list would hide what the list costs.
    let [none, short, long] = costs;
    let none = none.into_iter().fold(f64::INFINITY, f64::min);
    let sample = |(short, long): (f64, f64)| Pair {
        theirs: (short - none).max(1.0),
        ours: long - none,
    };
    let samples = short.into_iter().zip(long).map(sample);
    let name = format!("{name} x {length}");
    Ok(Row::numbers(&name, "µs", samples).goal(Goal::RatioAtMost(AT_MOST)))
}

/// The processor time of this thread for a request, in microseconds.
fn cost(request: &[u8], convert: fn(&[u8]) -> switchyard_core::Result<()>) -> Result<f64, Failure> {
    let spent = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    let begin = spent()?;
    convert(request)?;
    Ok((spent()? - begin).as_secs_f64() * 1e6)
}
