//! The figures, as a table for people and as JSON for programs.

use std::fmt::Write;
use std::fs;
use std::io::IsTerminal;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::daemon::binary;

use crate::Failure;
use crate::breakdown::{Calls, Scrape};
use crate::memory::{Memory, Resident};
use crate::pods::{Pair, Times};
use crate::stand::Stand;

/// A row of the table of pods: its name, and how it is computed.
type Row = (&'static str, fn(&Times) -> Duration);

/// The rows of pods.
const ROWS: [Row; 8] = [
    ("RunPodSandbox", |times| times.run),
    ("CreateContainer", |times| times.create),
    ("StartContainer", |times| times.start),
    ("= pod up", |times| times.run + times.create + times.start),
    ("StopPodSandbox", |times| times.stop),
    ("RemovePodSandbox", |times| times.remove),
    ("after the answer", |times| times.gone.saturating_sub(times.stop + times.remove)),
    ("= pod gone", |times| times.gone),
];

/// A row of the table of memory.
type Process = (&'static str, fn(&Memory) -> Resident);

/// The rows of memory.
const PROCESSES: [Process; 4] = [
    ("daemon", |memory| memory.daemon),
    ("logkeeper", |memory| memory.logkeeper),
    ("= Switchyard", |memory| memory.daemon + memory.logkeeper),
    ("containerd, for both", |memory| memory.containerd),
];

/// Everything that was measured.
#[derive(Debug)]
pub(crate) struct Report {
    names: Pair<&'static str>,
    machine: Vec<String>,
    pods: Vec<Pair<Times>>,
    pulls: Vec<Pair<Duration>>,
    pull_size: (usize, usize),
    memory: Vec<(&'static str, Memory)>,
    breakdown: Vec<(&'static str, Scrape, u32)>,
    leftovers: Vec<String>,
}

/// Percentiles of one side, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Spread {
    p50: f64,
    p90: f64,
}

/// Shows how far a series is, on a terminal.
pub(crate) fn progress(what: &str, done: u32, all: u32) {
    if std::io::stderr().is_terminal() {
        let end = if done == all { "\n" } else { "" };
        eprint!("\r{what}: {done}/{all}{end}");
    }
}

// === impl Report ===

impl Report {
    /// An empty report of what runs on this stand.
    pub(crate) fn new(stand: &Stand) -> Result<Self, Failure> {
        let names = Pair { theirs: stand.theirs.name, ours: stand.ours.name };
        Ok(Self {
            names,
            machine: machine()?,
            pods: Vec::new(),
            pulls: Vec::new(),
            pull_size: (0, 0),
            memory: Vec::new(),
            breakdown: Vec::new(),
            leftovers: Vec::new(),
        })
    }

    /// Adds a pod of each side.
    pub(crate) fn pods(&mut self, times: Pair<Times>) {
        self.pods.push(times);
    }

    /// Says how large pulled images are: layers, and MiB of each.
    pub(crate) fn pull_size(&mut self, layers: usize, mib: usize) {
        self.pull_size = (layers, mib);
    }

    /// Adds a pull of each side.
    pub(crate) fn pulls(&mut self, times: Pair<Duration>) {
        self.pulls.push(times);
    }

    /// Adds a look at the memory.
    pub(crate) fn memory(&mut self, when: &'static str, memory: Memory) {
        self.memory.push((when, memory));
    }

    /// Adds where the time of our pods or pulls went: `what` they are, and how many there were.
    pub(crate) fn breakdown(&mut self, what: &'static str, calls: Scrape, count: u32) {
        self.breakdown.push((what, calls, count));
    }

    /// Adds what was left behind at the end.
    pub(crate) fn leftovers(&mut self, findings: Vec<String>) {
        self.leftovers = findings;
    }

    /// The report for people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("a string takes every write");
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        for line in &self.machine {
            writeln!(text, "{line}")?;
        }
        let Pair { theirs, ours } = self.names;
        writeln!(text, "\n{:<22}{theirs:^20}{ours:^20}{:>8}", "milliseconds", "ratio")?;
        writeln!(text, "{:<22}{:>10}{:>10}{:>10}{:>10}", "", "p50", "p90", "p50", "p90")?;
        for (name, of) in ROWS {
            if name == "StopPodSandbox" {
                writeln!(text)?;
            }
            let theirs: Vec<f64> = self.pods.iter().map(|pair| milliseconds(of(&pair.theirs))).collect();
            let ours: Vec<f64> = self.pods.iter().map(|pair| milliseconds(of(&pair.ours))).collect();
            row(text, name, &theirs, &ours)?;
        }
        if !self.pulls.is_empty() {
            let (layers, mib) = self.pull_size;
            let theirs: Vec<f64> = self.pulls.iter().map(|pair| milliseconds(pair.theirs)).collect();
            let ours: Vec<f64> = self.pulls.iter().map(|pair| milliseconds(pair.ours)).collect();
            writeln!(text)?;
            row(text, &format!("pull of {layers} x {mib} MiB"), &theirs, &ours)?;
        }
        writeln!(
            text,
            "\n{} pods and {} pulls of each side, in turns, who comes first alternating. The ratio is the median of\n\
             ours/theirs over the pairs. A pod is gone when its shims and processes, mounts, pinned namespaces, control\n\
             groups, network interface, address, files, runc's notes, and containerd's records of its containers and\n\
             snapshots are gone; 'after the answer' is how long that took beyond the answer of RemovePodSandbox.",
            self.pods.len(),
            self.pulls.len()
        )?;
        self.write_memory(text)?;
        for (what, calls, count) in &self.breakdown {
            write_breakdown(text, what, calls, f64::from(*count))?;
        }
        if !self.breakdown.is_empty() {
            writeln!(
                text,
                "\nMeans. Calls overlap, so sums are more than the time that passes; a call that waits (Wait) counts its\n\
                 waiting. bridge runs host-local, which counts in both."
            )?;
        }
        if self.leftovers.is_empty() {
            return writeln!(text, "\nNothing was left behind by either side.");
        }
        writeln!(text, "\nLeft behind, of both sides together:")?;
        self.leftovers.iter().try_for_each(|finding| writeln!(text, "  {finding}"))
    }

    fn write_memory(&self, text: &mut String) -> std::fmt::Result {
        write!(text, "\n{:<22}", "MiB")?;
        for (when, _) in &self.memory {
            write!(text, "{when:^20}")?;
        }
        write!(text, "\n{:<22}", "")?;
        for _ in &self.memory {
            write!(text, "{:>10}{:>10}", "RSS", "PSS")?;
        }
        writeln!(text)?;
        for (name, of) in PROCESSES {
            write!(text, "{name:<22}")?;
            for (_, memory) in &self.memory {
                let resident = of(memory);
                write!(text, "{:>10.1}{:>10.1}", mebibytes(resident.rss), mebibytes(resident.pss))?;
            }
            writeln!(text)?;
        }
        Ok(())
    }

    /// The report for programs: every sample in milliseconds, memory in bytes.
    pub(crate) fn json(&self) -> Value {
        let sides = |of: &dyn Fn(&Pair<Times>) -> (Duration, Duration)| {
            let (theirs, ours): (Vec<_>, Vec<_>) = self
                .pods
                .iter()
                .map(|pair| {
                    let (theirs, ours) = of(pair);
                    (milliseconds(theirs), milliseconds(ours))
                })
                .unzip();
            series(&theirs, &ours)
        };
        let pods: serde_json::Map<String, Value> = ROWS
            .iter()
            .map(|(name, of)| {
                (name.trim_start_matches("= ").to_owned(), sides(&|pair| (of(&pair.theirs), of(&pair.ours))))
            })
            .collect();
        let theirs: Vec<_> = self.pulls.iter().map(|pair| milliseconds(pair.theirs)).collect();
        let ours: Vec<_> = self.pulls.iter().map(|pair| milliseconds(pair.ours)).collect();
        let resident = |memory: Resident| json!({ "rss": memory.rss, "pss": memory.pss });
        let memory: serde_json::Map<String, Value> = self
            .memory
            .iter()
            .map(|(when, memory)| {
                let value = json!({
                    "daemon": resident(memory.daemon), "logkeeper": resident(memory.logkeeper),
                    "sum": resident(memory.daemon + memory.logkeeper), "containerd": resident(memory.containerd),
                });
                ((*when).to_owned(), value)
            })
            .collect();
        let (layers, mib) = self.pull_size;
        json!({
            "machine": self.machine, "pods": pods, "memory": memory, "left_behind": self.leftovers,
            "pull": if self.pulls.is_empty() { Value::Null } else { series(&theirs, &ours) },
            "pull_layers": layers, "pull_layer_mib": mib,
        })
    }
}

/// Writes a row: p50 and p90 of each side, and the ratio.
pub(crate) fn row(text: &mut String, name: &str, theirs: &[f64], ours: &[f64]) -> std::fmt::Result {
    let (spread, our_spread) = (Spread::of(theirs), Spread::of(ours));
    write!(text, "{name:<22}{:>10.1}{:>10.1}", spread.p50, spread.p90)?;
    write!(text, "{:>10.1}{:>10.1}", our_spread.p50, our_spread.p90)?;
    // A ratio of two times that are next to nothing says nothing.
    if spread.p50 < 0.5 || our_spread.p50 < 0.05 {
        writeln!(text, "{:>8}", "-")
    } else {
        writeln!(text, "{:>8.2}", ratio(theirs, ours))
    }
}

/// The samples of both sides, and what is computed from them.
pub(crate) fn series(theirs: &[f64], ours: &[f64]) -> Value {
    let side = |samples: &[f64]| {
        let spread = Spread::of(samples);
        json!({ "p50": spread.p50, "p90": spread.p90, "samples": samples })
    };
    json!({ "theirs": side(theirs), "ours": side(ours), "ratio": ratio(theirs, ours) })
}

fn write_breakdown(text: &mut String, what: &str, calls: &Scrape, count: f64) -> std::fmt::Result {
    for (title, calls) in [
        ("CRI calls, as the daemon counts them", &calls.daemon),
        ("our calls of containerd, as it counts them", &calls.containerd),
        ("programs run for us", &calls.our_programs),
        ("programs run for the CRI plugin", &calls.their_programs),
    ] {
        if calls.is_empty() {
            continue;
        }
        let (per, total) = (format!("per {what}"), format!("ms per {what}"));
        writeln!(text, "\n{title:<44}{per:>9}{:>10}{total:>12}", "ms each")?;
        let mut rows: Vec<(&String, &Calls)> = calls.iter().collect();
        rows.sort_by(|(_, left), (_, right)| right.seconds.total_cmp(&left.seconds));
        for (name, calls) in rows {
            let (times, each) = (calls.count / count, calls.seconds / calls.count);
            let total = calls.seconds / count;
            writeln!(text, "{name:<44}{times:>9.1}{:>10.2}{:>12.2}", each * 1e3, total * 1e3)?;
        }
    }
    Ok(())
}

/// What the figures depend on: processor, kernel, and versions.
fn machine() -> Result<Vec<String>, Failure> {
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let version = |program: &str, word: usize| -> Result<String, Failure> {
        let output = Command::new(program).arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().unwrap_or_default().split_whitespace().nth(word).unwrap_or("?").to_owned())
    };
    let ours = binary();
    let load = fs::read_to_string("/proc/loadavg")?;
    Ok(vec![
        format!(
            "{count} x {}, Linux {}, load average {}",
            model.map_or("?", |(_, model)| model),
            kernel.trim(),
            load.split(' ').next().unwrap_or("?")
        ),
        format!("containerd {}, runc {}", version("containerd", 2)?, version("runc", 2)?),
        format!("{}, {} MiB", ours.display(), fs::metadata(&ours)?.len() >> 20),
    ])
}

// === impl Spread ===

impl Spread {
    fn of(samples: &[f64]) -> Self {
        Self { p50: quantile(samples, 0.5), p90: quantile(samples, 0.9) }
    }
}

/// The median of ours/theirs over the pairs.
fn ratio(theirs: &[f64], ours: &[f64]) -> f64 {
    let ratios: Vec<f64> = theirs.iter().zip(ours).map(|(theirs, ours)| ours / theirs.max(1e-6)).collect();
    quantile(&ratios, 0.5)
}

/// The quantile by linear interpolation between the two nearest samples; 0 without samples.
fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(steps) = sorted.len().checked_sub(1) else { return 0.0 };
    let mut place = share * f64::from(u32::try_from(steps).unwrap_or(u32::MAX));
    for pair in sorted.windows(2) {
        if place <= 1.0 {
            return pair[0] + (pair[1] - pair[0]) * place;
        }
        place -= 1.0;
    }
    sorted[steps]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn mebibytes(bytes: u64) -> f64 {
    // Kilobytes fit in 32 bits up to 4 TiB.
    f64::from(u32::try_from(bytes / 1024).unwrap_or(u32::MAX)) / 1024.0
}
