//! Makes incidents on a private node; run by `tests/drill`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its output is what this program is for"
)]

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::process::ExitCode;
use std::{fs, thread};

use clap::Parser;
use serde_json::Value;
use switchyard_tests::drill::incident::{ListedIncident, Place};
use switchyard_tests::drill::list::{INCIDENTS, find};
use switchyard_tests::drill::row::Row;
use switchyard_tests::drill::{hold, measure, title};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Makes an incident on a private node, and prints what the node says of it.
#[derive(Debug, Parser)]
#[command(bin_name = "tests/drill")]
struct Args {
    /// Numbers of incidents, from 1 to 24
    #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..=24), required_unless_present_any = ["list", "all"])]
    numbers: Vec<u8>,
    /// Leaves the incident standing, and prints what a user reports and how to reach the node
    #[arg(long, conflicts_with_all = ["list", "all", "json"])]
    hold: bool,
    /// Lists the incidents as users report them
    #[arg(long, conflicts_with_all = ["numbers", "all", "json"])]
    list: bool,
    /// Makes every incident that this machine can make, one after the other
    #[arg(long, conflicts_with = "numbers")]
    all: bool,
    /// Also writes the rows to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Args {
        numbers,
        hold,
        list,
        all,
        json,
    } = Args::parse();
    if list {
        for ListedIncident { number, .. } in INCIDENTS {
            println!("{number:2}  {}", title(number));
        }
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<ListedIncident> = if all {
        INCIDENTS.into()
    } else {
        numbers.into_iter().filter_map(find).collect()
    };
    if hold {
        return hold_one(&chosen);
    }
    print_rows(&chosen, json)
}

/// Leaves the only incident standing.
fn hold_one(incidents: &[ListedIncident]) -> ExitCode {
    let [incident] = incidents else {
        eprintln!("one incident can be left standing at a time");
        return ExitCode::FAILURE;
    };
    // From here on signals end it in order.
    let end = End::new();
    let held = hold(incident, move |text| {
        print!("{text}");
        end.wait();
    });
    match held {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{} is not made here: {why}", incident.number);
            ExitCode::FAILURE
        }
    }
}

/// Makes incidents and prints a row for each.
fn print_rows(incidents: &[ListedIncident], json: Option<PathBuf>) -> ExitCode {
    println!("{}", Row::HEADINGS.join("\t"));
    let mut rows = Vec::new();
    for incident in incidents {
        let row = measure(incident);
        println!("{}", row.tsv());
        rows.push(row);
    }
    if let Some(file) = json {
        let text = Value::from_iter(rows.iter().map(Row::json));
        if let Err(error) = fs::write(&file, format!("{text:#}\n")) {
            eprintln!("{} cannot be written: {error}", file.display());
            return ExitCode::FAILURE;
        }
    }
    let is_seen = |(incident, row): (&ListedIncident, &Row)| {
        matches!(incident.place, Place::Elsewhere(_)) || row.is_seen
    };
    if incidents.iter().zip(&rows).all(is_seen) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The wish to end, by a line on standard input, SIGINT or SIGTERM.
struct End(oneshot::Receiver<()>);

impl End {
    /// Listens from now on.
    fn new() -> Self {
        let (line, entered) = oneshot::channel();
        let (sender, receiver) = oneshot::channel();
        thread::spawn(move || {
            let mut text = String::new();
            let read = io::stdin().lock().read_line(&mut text);
            // The end of the input, as under a service manager, is no wish to end.
            if read.is_ok_and(|length| length > 0) {
                // The receiver may have ended by a signal.
                let _ = line.send(());
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let listening = {
            let _entered = runtime.enter();
            [SignalKind::interrupt(), SignalKind::terminate()]
                .map(|kind| signal(kind).expect("a signal can be listened for"))
        };
        thread::spawn(move || {
            let [mut interrupt, mut terminate] = listening;
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    Ok(()) = entered => {}
                }
            });
            // Whoever waits may have ended already.
            let _ = sender.send(());
        });
        Self(receiver)
    }

    /// Waits for it.
    fn wait(self) {
        // The sender does not end without sending.
        let _ = self.0.blocking_recv();
    }
}
