//! The samples of one reading of the node, and their text.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use switchyard_core::id::Owner;
use switchyard_core::object::Task;
use switchyard_core::stats::{InterfaceStats, TaskMetrics};

use crate::amount::Amount;
use crate::text::{write_header, write_label};
use crate::{Metric, sheet};

/// Size of a chunk of text, in bytes, after which the next one begins.
const CHUNK: usize = 32 << 10;

/// An object to which samples belong: a task, or a sandbox without its tasks.
#[derive(Debug, Clone)]
pub struct Subject {
    owner: Owner,
    /// The labels of all its samples, as text.
    labels: String,
}

/// The samples of one reading, by metric.
#[derive(Debug, Default)]
pub struct Figures {
    subjects: Vec<Subject>,
    /// By the place of the metric in [`Metric::ALL`].
    families: Vec<Vec<Sample>>,
}

#[derive(Debug)]
struct Sample {
    /// The place of the object among the subjects.
    subject: u32,
    /// The metric's own labels as text; empty if it has none.
    labels: Box<str>,
    amount: Amount,
}

/// The text of figures, in chunks of some 32 KiB. It keeps the figures, but no more text than one chunk.
#[derive(Debug)]
pub struct Chunks {
    figures: Arc<Figures>,
    owner: Option<Owner>,
    /// The next metric, by its place, and its next sample.
    next: (usize, usize),
    /// True if the header of the next metric is written.
    is_described: bool,
}

// === impl Subject ===

impl Subject {
    /// An object of an owner with the labels of its samples, in their order; empty values are written too, because
    /// queries recognise the samples of a sandbox by the empty name of the container.
    #[must_use]
    pub fn new<'a, 'b>(
        owner: Owner,
        id: &str,
        labels: impl IntoIterator<Item = (&'a str, &'b str)>,
    ) -> Self {
        let mut text = String::new();
        write_label(&mut text, "owner", owner.as_str());
        write_label(&mut text, "id", id);
        for (name, value) in labels {
            write_label(&mut text, name, value);
        }
        text.shrink_to_fit();
        Self {
            owner,
            labels: text,
        }
    }
}

// === impl Figures ===

impl Figures {
    /// Adds the samples of a running task, read at `now`.
    pub fn add_task(
        &mut self,
        subject: Subject,
        task: &Task,
        metrics: &TaskMetrics,
        now: SystemTime,
    ) {
        let place = self.begin(subject);
        sheet::of_task(task, metrics, now, |metric, labels, amount| {
            self.push(place, metric, labels, amount)
        });
    }

    /// Adds the samples of a sandbox.
    pub fn add_sandbox(&mut self, subject: Subject, interfaces: &[InterfaceStats]) {
        let place = self.begin(subject);
        sheet::of_sandbox(interfaces, |metric, labels, amount| {
            self.push(place, metric, labels, amount)
        });
    }

    /// The text of all samples of an owner, or of all owners: all samples of a metric follow its description, as
    /// Prometheus demands.
    #[must_use]
    pub fn chunks(self: &Arc<Self>, owner: Option<Owner>) -> Chunks {
        Chunks {
            figures: Arc::clone(self),
            owner,
            next: (0, 0),
            is_described: false,
        }
    }

    fn begin(&mut self, subject: Subject) -> u32 {
        self.families.resize_with(Metric::ALL.len(), Vec::new);
        self.subjects.push(subject);
        u32::try_from(self.subjects.len() - 1).expect("a node has fewer objects")
    }

    fn push(&mut self, subject: u32, metric: Metric, values: &[&str], amount: Amount) {
        let mut labels = String::new();
        for (name, value) in metric.labels().iter().zip(values) {
            write_label(&mut labels, name, value);
        }
        self.families[metric.index()].push(Sample {
            subject,
            labels: labels.into(),
            amount,
        });
    }

    fn subject(&self, sample: &Sample) -> &Subject {
        // Every sample was pushed after its subject.
        &self.subjects[sample.subject as usize]
    }
}

// === impl Chunks ===

impl Iterator for Chunks {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        // The last line may begin shortly before the end of a chunk.
        let mut out = String::with_capacity(CHUNK + 1024);
        let (mut family, mut place) = self.next;
        while out.len() < CHUNK
            && let Some(samples) = self.figures.families.get(family)
        {
            let Some(sample) = samples.get(place) else {
                (family, place) = (family + 1, 0);
                self.is_described = false;
                continue;
            };
            place += 1;
            let subject = self.figures.subject(sample);
            if self.owner.is_some_and(|owner| owner != subject.owner) {
                continue;
            }
            let metric = Metric::ALL[family];
            if !self.is_described {
                write_header(&mut out, metric);
                self.is_described = true;
            }
            write_sample(&mut out, metric, subject, sample);
        }
        self.next = (family, place);
        (!out.is_empty()).then_some(out)
    }
}

fn write_sample(out: &mut String, metric: Metric, subject: &Subject, sample: &Sample) {
    out.push_str(metric.name());
    out.push('{');
    out.push_str(&subject.labels);
    if !sample.labels.is_empty() {
        out.push(',');
        out.push_str(&sample.labels);
    }
    writeln!(out, "}} {}", sample.amount).expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests;
