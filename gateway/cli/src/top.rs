//! `switchyard top`: what running tasks of all owners use, from the difference of two readings.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use switchyard_operator_api::text::{short, size};
use switchyard_operator_api::{ContainersView, TaskUsageView};
use tokio::time::sleep;

use super::daemon::{DaemonError, Target, ask};
use super::watch::{OWNERS, Outage, passes};
use crate::output::{Format, announce_json, draw, has_screen, print, print_json, table};

/// The time between two readings. The daemon serves one reading for 5 s, so that a later one is never the same.
const INTERVAL: Duration = Duration::from_millis(5100);

/// The placeholder of what was not measured.
const NOTHING: &str = "-";

/// Selection of the tasks, and the interval of the readings.
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    target: Target,
    /// Show one table, of two readings 5 s apart, and end; as text to anything but a terminal, this is always so.
    #[arg(long)]
    once: bool,
    /// Only what belongs to one owner: kubernetes, nomad, swarm or host.
    #[arg(long, value_name = "OWNER", value_parser = OWNERS)]
    owner: Option<String>,
    /// The order of the tasks: who uses most comes first.
    #[arg(long, value_enum, default_value_t)]
    sort: SortKey,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum SortKey {
    #[default]
    Cpu,
    Memory,
    Io,
    Pids,
}

/// Usage of the tasks between two readings.
#[derive(Debug, Serialize)]
struct TopView {
    /// The time between the readings; absent in the first table.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    tasks: Vec<TopTask>,
}

/// Usage of one task. Values that were not measured, or cannot be compared, are absent.
#[derive(Debug, Default, Serialize)]
struct TopTask {
    id: String,
    owner: String,
    display_name: String,
    /// Share of one processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_limit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    written_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pids: Option<u64>,
    /// Rate of its sandbox, which its tasks share.
    #[serde(skip_serializing_if = "Option::is_none")]
    received_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_bytes_per_second: Option<f64>,
}

/// Shows the table, repeatedly unless one is requested, or nobody looks at the text. It survives a restart of the daemon.
pub(super) async fn top(args: &TopArgs) -> Result<(), DaemonError> {
    let path = match &args.owner {
        Some(owner) => format!("/v1/containers?owner={owner}"),
        None => "/v1/containers".to_owned(),
    };
    let is_text = args.target.output == Format::Text;
    let once = args.once || is_text && !has_screen();
    let mut before: ContainersView = ask(&args.target, &path).await?;
    if !once && is_text {
        draw(&shown(&compare(None, &before, args.sort)))?;
    }
    let mut outage = Outage::default();
    loop {
        sleep(INTERVAL).await;
        let now: ContainersView = match ask(&args.target, &path).await {
            Ok(now) => now,
            Err(error) if !once && passes(&error) => {
                outage.wait(&error).await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        outage = Outage::default();
        let view = compare(Some(&before), &now, args.sort);
        if once {
            match args.target.output {
                Format::Json => print_json(&view)?,
                Format::Text => print(shown(&view))?,
            }
            return Ok(());
        }
        let printed = match args.target.output {
            Format::Json => announce_json(&view),
            Format::Text => draw(&shown(&view)),
        };
        match printed {
            Ok(()) => {}
            // As in `switchyard top | head -1`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        before = now;
    }
}

/// Computes the usage of tasks between two readings. Pure.
fn compare(before: Option<&ContainersView>, now: &ContainersView, sort: SortKey) -> TopView {
    let known: HashMap<&str, &TaskUsageView> = before
        .iter()
        .flat_map(|before| &before.tasks)
        .map(|task| (task.id.as_str(), task))
        .collect();
    let seconds = before.map(|before| seconds_between(before.at_unix_ns, now.at_unix_ns));
    let of = |task: &TaskUsageView| used(known.get(task.id.as_str()).copied(), seconds, task);
    let mut tasks: Vec<TopTask> = now.tasks.iter().map(of).collect();
    // The order is by owner and name among equals.
    tasks.sort_by(|a, b| sort.of(b).total_cmp(&sort.of(a)));
    TopView { seconds, tasks }
}

fn used(before: Option<&TaskUsageView>, seconds: Option<f64>, now: &TaskUsageView) -> TopTask {
    let rate = |counter: fn(&TaskUsageView) -> Option<u64>| {
        // A counter below its former value belongs to another cgroup, and gives no rate.
        let grown = counter(now)?.checked_sub(counter(before?)?)?;
        seconds
            .filter(|seconds| *seconds > 0.0)
            .map(|seconds| as_number(grown) / seconds)
    };
    let cpu_percent = before.and_then(|before| {
        let spent = as_number(now.cpu_ns?.checked_sub(before.cpu_ns?)?) / 1e9;
        let seconds = seconds_between(before.cpu_at_unix_ns?, now.cpu_at_unix_ns?);
        (seconds > 0.0).then(|| spent / seconds * 100.0)
    });
    TopTask {
        id: now.id.clone(),
        owner: now.owner.clone(),
        display_name: now.display_name.clone(),
        cpu_percent,
        memory_bytes: now.memory_bytes,
        memory_limit_bytes: now.memory_limit_bytes,
        read_bytes_per_second: rate(|task| task.read_bytes),
        written_bytes_per_second: rate(|task| task.written_bytes),
        pids: now.pids,
        received_bytes_per_second: rate(|task| task.network.as_ref().map(|net| net.received_bytes)),
        sent_bytes_per_second: rate(|task| task.network.as_ref().map(|net| net.sent_bytes)),
    }
}

fn seconds_between(before_ns: u64, now_ns: u64) -> f64 {
    as_number(now_ns.saturating_sub(before_ns)) / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "it is shown with three digits")]
const fn as_number(count: u64) -> f64 {
    count as f64
}

fn shown(view: &TopView) -> String {
    let rows: Vec<_> = view.tasks.iter().map(row).collect();
    let count = match view.tasks.len() {
        1 => "1 task".to_owned(),
        count => format!("{count} tasks"),
    };
    let over = view
        .seconds
        .map(|seconds| format!(", over {seconds:.1} s"))
        .unwrap_or_default();
    let headings = [
        "TASK",
        "OWNER",
        "CPU",
        "MEMORY",
        "LIMIT",
        "READ/S",
        "WRITTEN/S",
        "PIDS",
        "RECEIVED/S",
        "SENT/S",
        "NAME",
    ];
    format!("{count}{over}\n{}", table(headings, &rows))
}

fn row(task: &TopTask) -> [String; 11] {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| NOTHING.to_owned(), size);
    let rate =
        |rate: Option<f64>| rate.map_or_else(|| NOTHING.to_owned(), |rate| size(whole(rate)));
    [
        short(&task.id),
        task.owner.clone(),
        task.cpu_percent
            .map_or_else(|| NOTHING.to_owned(), |percent| format!("{percent:.1}%")),
        bytes(task.memory_bytes),
        bytes(task.memory_limit_bytes),
        rate(task.read_bytes_per_second),
        rate(task.written_bytes_per_second),
        task.pids
            .map_or_else(|| NOTHING.to_owned(), |pids| pids.to_string()),
        rate(task.received_bytes_per_second),
        rate(task.sent_bytes_per_second),
        task.display_name.clone(),
    ]
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and rates are not negative"
)]
const fn whole(rate: f64) -> u64 {
    rate as u64
}

// === impl SortKey ===

impl SortKey {
    /// A task's usage of it; unmeasured usage comes last.
    fn of(self, task: &TopTask) -> f64 {
        let amount = match self {
            Self::Cpu => task.cpu_percent,
            Self::Memory => task.memory_bytes.map(as_number),
            Self::Io => match (task.read_bytes_per_second, task.written_bytes_per_second) {
                (None, None) => None,
                (read, written) => Some(read.unwrap_or_default() + written.unwrap_or_default()),
            },
            Self::Pids => task.pids.map(as_number),
        };
        amount.unwrap_or(-1.0)
    }
}

#[cfg(test)]
mod tests {
    use switchyard_operator_api::SandboxTrafficView;

    use super::*;

    fn task(id: &str, at_s: u64, cpu_ms: u64, read: u64) -> TaskUsageView {
        TaskUsageView {
            id: id.to_owned(),
            owner: "nomad".into(),
            display_name: format!("shop/{id}"),
            cpu_at_unix_ns: Some(at_s * 1_000_000_000),
            cpu_ns: Some(cpu_ms * 1_000_000),
            memory_bytes: Some(3 << 20),
            memory_limit_bytes: None,
            read_bytes: Some(read),
            written_bytes: Some(0),
            pids: Some(2),
            network: Some(SandboxTrafficView {
                sandbox: "s".into(),
                received_bytes: read / 2,
                sent_bytes: read * 2,
            }),
        }
    }

    fn reading(at_s: u64, tasks: Vec<TaskUsageView>) -> ContainersView {
        ContainersView {
            at_unix_ns: at_s * 1_000_000_000,
            tasks,
        }
    }

    #[test]
    fn shares_and_rates_are_differences_of_two_readings() {
        let before = reading(
            10,
            vec![
                task("a", 10, 1000, 0),
                task("b", 10, 0, 0),
                task("gone", 10, 0, 0),
            ],
        );
        let now = reading(
            15,
            vec![
                task("a", 14, 2000, 0),
                task("b", 15, 5000, 10_240),
                task("new", 15, 9, 0),
            ],
        );
        let view = compare(Some(&before), &now, SortKey::Cpu);
        assert_eq!(view.seconds, Some(5.0));
        let shares: Vec<_> = view
            .tasks
            .iter()
            .map(|task| (task.id.as_str(), task.cpu_percent))
            .collect();
        assert_eq!(
            shares,
            [("b", Some(100.0)), ("a", Some(25.0)), ("new", None)]
        );
        let text = shown(&view);
        let words: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").map(str::trim).collect())
            .collect();
        let row = |at: usize| {
            words[at]
                .iter()
                .filter(|word| !word.is_empty())
                .copied()
                .collect::<Vec<_>>()
        };
        assert!(
            text.starts_with("3 tasks, over 5.0 s\nTASK  OWNER  CPU     MEMORY "),
            "{text}"
        );
        let expected = [
            "b", "nomad", "100.0%", "3.0 MiB", "-", "2.0 KiB", "0 B", "2", "1.0 KiB", "4.0 KiB",
            "shop/b",
        ];
        assert_eq!(row(2), expected);
        assert_eq!(
            row(4),
            [
                "new", "nomad", "-", "3.0 MiB", "-", "-", "-", "2", "-", "-", "shop/new"
            ]
        );
        let first = compare(None, &now, SortKey::Pids);
        assert!(
            first
                .tasks
                .iter()
                .all(|task| task.cpu_percent.is_none() && task.pids == Some(2))
        );
    }

    #[test]
    fn counters_that_began_anew_and_equal_times_give_no_share() {
        let before = reading(10, vec![task("a", 10, 5000, 100), task("b", 10, 0, 0)]);
        let now = reading(10, vec![task("a", 11, 10, 5), task("b", 10, 100, 0)]);
        let view = compare(Some(&before), &now, SortKey::Io);
        assert!(view.tasks.iter().all(|task| task.cpu_percent.is_none()));
        assert!(
            view.tasks
                .iter()
                .all(|task| task.read_bytes_per_second.is_none())
        );
    }

    #[test]
    fn who_uses_most_comes_first() {
        let before = reading(10, vec![task("a", 10, 0, 0), task("b", 10, 0, 0)]);
        let mut now = reading(20, vec![task("a", 20, 10, 0), task("b", 20, 5, 100)]);
        now.tasks[1].memory_bytes = Some(9 << 20);
        now.tasks[0].pids = Some(7);
        let first = |sort| compare(Some(&before), &now, sort).tasks[0].id.clone();
        assert_eq!(
            [SortKey::Cpu, SortKey::Memory, SortKey::Io, SortKey::Pids].map(first),
            ["a", "b", "b", "a"]
        );
    }
}
