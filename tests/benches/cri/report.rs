//! The figures, as a table for people and as JSON for programs.

use std::fmt::Write;
use std::fs;
use std::io::IsTerminal;
use std::process::Command;

use serde_json::{Map, Value, json};
use switchyard_tests::daemon::binary;

use crate::breakdown::{CallTotals, Scrape};
use crate::failure::Failure;
use crate::memory::{Memory, Resident};
use crate::pair::Pair;
use crate::row::Row;
use crate::test_bed::TestBed;

/// A column of the table of memory.
type MemoryColumn = (&'static str, fn(&Memory) -> Resident);

/// The columns of memory.
const PROCESSES: [MemoryColumn; 4] = [
    ("daemon", |memory| memory.daemon),
    ("logkeeper", |memory| memory.logkeeper),
    ("= Switchyard", |memory| memory.daemon + memory.logkeeper),
    ("containerd", |memory| memory.containerd),
];

/// Everything that was measured.
#[derive(Debug)]
pub(crate) struct Report {
    names: Pair<&'static str>,
    machine: Vec<String>,
    sections: Vec<Section>,
    memory: Vec<(String, Memory)>,
    breakdown: Vec<(&'static str, Scrape, u32)>,
    leftovers: Vec<String>,
}

/// Rows that belong together.
#[derive(Debug)]
struct Section {
    title: &'static str,
    names: Pair<&'static str>,
    rows: Vec<Row>,
    note: String,
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
    pub(crate) fn new(stand: &TestBed) -> Result<Self, Failure> {
        let names = Pair {
            theirs: stand.theirs.name,
            ours: stand.ours.name,
        };
        Ok(Self {
            names,
            machine: machine()?,
            sections: Vec::new(),
            memory: Vec::new(),
            breakdown: Vec::new(),
            leftovers: Vec::new(),
        })
    }

    /// Adds rows that belong together, and a note on how they were taken. The note ends each line itself.
    pub(crate) fn section(&mut self, title: &'static str, rows: Vec<Row>, note: String) {
        self.section_between(title, self.names, rows, note);
    }

    /// The same for sides that are called otherwise.
    pub(crate) fn section_between(
        &mut self,
        title: &'static str,
        names: Pair<&'static str>,
        rows: Vec<Row>,
        note: String,
    ) {
        self.sections.push(Section {
            title,
            names,
            rows,
            note,
        });
    }

    /// Adds a measurement of the memory.
    pub(crate) fn memory(&mut self, when: &str, memory: Memory) {
        self.memory.push((when.to_owned(), memory));
    }

    /// Adds where the time of our pods, pulls or commands went: `what` they are, and how many there were.
    pub(crate) fn breakdown(&mut self, what: &'static str, calls: Scrape, count: u32) {
        self.breakdown.push((what, calls, count));
    }

    /// Adds what was left behind at the end.
    pub(crate) fn leftovers(&mut self, findings: &[String]) {
        self.leftovers.extend_from_slice(findings);
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
        for section in &self.sections {
            writeln!(text, "\n{}", Row::head(section.title, section.names))?;
            for row in &section.rows {
                writeln!(text, "{}", row.to_string().trim_end())?;
            }
            write!(text, "{}", section.note)?;
        }
        writeln!(
            text,
            "\nMilliseconds, unless a row says otherwise. A ratio is the median of ours/theirs over the pairs of turns\n\
             that followed each other; who comes first alternates."
        )?;
        self.write_memory(text)?;
        for (what, calls, count) in &self.breakdown {
            write_breakdown(text, what, calls, f64::from(*count))?;
            let (title, parts) = match *what {
                "pod" => (
                    "where the start of our pods goes, each",
                    calls.pod_start(f64::from(*count)),
                ),
                "command" => ("where our ExecSync goes, each", calls.exec_sync()),
                "task" => (
                    "where our StartTask goes, each",
                    calls.task_start(f64::from(*count)),
                ),
                "bare task" => (
                    "where a bare start goes, each",
                    calls.bare_start(f64::from(*count)),
                ),
                _ => continue,
            };
            writeln!(text, "\n{title:<44}{:>12}", "ms")?;
            for (part, seconds) in parts {
                writeln!(text, "{part:<44}{:>12.2}", seconds * 1e3)?;
            }
        }
        if !self.breakdown.is_empty() {
            writeln!(
                text,
                "\nMeans. Calls overlap, so sums are more than the time that passes; a call that waits (Wait) counts its\n\
                 waiting. bridge runs host-local, which counts in both."
            )?;
        }
        self.write_goals(text)?;
        if self.leftovers.is_empty() {
            return writeln!(text, "\nNothing was left behind by either side.");
        }
        writeln!(text, "\nLeft behind, of both sides together:")?;
        self.leftovers
            .iter()
            .try_for_each(|finding| writeln!(text, "  {finding}"))
    }

    fn write_memory(&self, text: &mut String) -> std::fmt::Result {
        write!(text, "\n{:<42}", "memory, MiB")?;
        for (name, _) in PROCESSES {
            write!(text, "{name:^16}")?;
        }
        write!(text, "\n{:<42}", "")?;
        for _ in PROCESSES {
            write!(text, "{:>8}{:>8}", "RSS", "PSS")?;
        }
        writeln!(text)?;
        for (when, memory) in &self.memory {
            write!(text, "{when:<42}")?;
            for (_, of) in PROCESSES {
                let resident = of(memory);
                write!(
                    text,
                    "{:>8.1}{:>8.1}",
                    resident.rss_mib(),
                    resident.pss_mib()
                )?;
            }
            writeln!(text)?;
        }
        Ok(())
    }

    /// Says once more which goals were missed, and what bounds them: that is what the reader must not
    /// overlook.
    fn write_goals(&self, text: &mut String) -> std::fmt::Result {
        let rows = || self.sections.iter().flat_map(|section| &section.rows);
        let all = rows().filter(|row| row.reached().is_some()).count();
        let missed: Vec<&Row> = rows().filter(|row| row.reached() == Some(false)).collect();
        writeln!(
            text,
            "\n{} of {all} goals were reached.",
            all - missed.len()
        )?;
        for row in missed {
            writeln!(text, "  missed: {}", row.to_string().trim_end())?;
            row.bound
                .lines()
                .try_for_each(|line| writeln!(text, "          {line}"))?;
        }
        Ok(())
    }

    /// The report for programs: every sample in the unit of its row, memory in bytes.
    pub(crate) fn json(&self) -> Value {
        let resident = |memory: Resident| json!({ "rss": memory.rss, "pss": memory.pss });
        let memory: Map<String, Value> = self
            .memory
            .iter()
            .map(|(when, memory)| {
                let value = json!({
                    "daemon": resident(memory.daemon), "logkeeper": resident(memory.logkeeper),
                    "sum": resident(memory.daemon + memory.logkeeper), "containerd": resident(memory.containerd),
                });
                (when.clone(), value)
            })
            .collect();
        let sections: Map<String, Value> = self
            .sections
            .iter()
            .map(|section| {
                let rows: Map<String, Value> = section
                    .rows
                    .iter()
                    .map(|row| (row.name.trim_start_matches("= ").to_owned(), row.json()))
                    .collect();
                (section.title.to_owned(), Value::Object(rows))
            })
            .collect();
        json!({ "machine": self.machine, "rows": sections, "memory": memory, "left_behind": self.leftovers })
    }
}

fn write_breakdown(text: &mut String, what: &str, calls: &Scrape, count: f64) -> std::fmt::Result {
    for (title, calls) in [
        ("calls, as the daemon counts them", &calls.daemon),
        (
            "our calls of containerd, as it counts them",
            &calls.containerd,
        ),
        ("programs run for us", &calls.our_programs),
        ("programs run for the CRI plugin", &calls.their_programs),
    ] {
        if calls.is_empty() {
            continue;
        }
        let per = format!("per {what}");
        let total = format!("ms per {what}");
        writeln!(text, "\n{title:<44}{per:>9}{:>10}{total:>12}", "ms each")?;
        let mut rows: Vec<(&String, &CallTotals)> = calls.iter().collect();
        rows.sort_by(|(_, left), (_, right)| right.seconds.total_cmp(&left.seconds));
        for (name, calls) in rows {
            let times = calls.count / count;
            let each = calls.seconds / calls.count;
            let total = calls.seconds / count;
            writeln!(
                text,
                "{name:<44}{times:>9.1}{:>10.2}{:>12.2}",
                each * 1e3,
                total * 1e3
            )?;
        }
    }
    Ok(())
}

/// Describes the environment of the figures: processor, kernel, and versions.
fn machine() -> Result<Vec<String>, Failure> {
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let count = cpus
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let version = |program: &str, word: usize| -> Result<String, Failure> {
        let output = Command::new(program).arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .nth(word)
            .unwrap_or("?")
            .to_owned())
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
        format!(
            "containerd {}, runc {}, crun {}",
            version("containerd", 2)?,
            version("runc", 2)?,
            version("crun", 2)?
        ),
        format!(
            "{}, {} MiB",
            ours.display(),
            fs::metadata(&ours)?.len() >> 20
        ),
    ])
}
