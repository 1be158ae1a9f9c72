//! The use of processors and memory by running tasks: the difference of two readings, which another client may have caused.
//! A task that is in the latest reading alone is shown with its average since its start.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use switchyard_core::state::TaskState;
use switchyard_operator_api::text::size;

use super::text;
use crate::container_metrics::{ContainerReading, TaskUsage};

/// Minimum time between two readings, so that their difference means something.
const APART: Duration = Duration::from_secs(2);

/// The latest reading and one before it. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct UsageHistory(Arc<Mutex<LatestSamples>>);

#[derive(Debug, Default)]
struct LatestSamples {
    before: Samples,
    latest: Samples,
}

/// The samples of one reading, by the id of their task.
#[derive(Debug, Clone, Default)]
struct Samples {
    at: Option<SystemTime>,
    tasks: Arc<HashMap<String, Sample>>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    started_at: Option<SystemTime>,
    cpu: Option<(SystemTime, u64)>,
    memory_bytes: Option<u64>,
}

/// The usage of the tasks as of one reading.
#[derive(Debug, Default)]
pub(crate) struct NodeUsage {
    before: Samples,
    latest: Samples,
}

/// The usage of a task, in words; `—` for unknown values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskUse {
    pub(super) cpu: String,
    pub(super) memory: String,
}

// === impl UsageHistory ===

impl UsageHistory {
    /// Keeps a reading, unless it is kept already.
    pub(crate) fn keep(&self, reading: &ContainerReading) {
        let mut kept = self.0.lock();
        if kept.latest.at == Some(reading.at) {
            return;
        }
        if kept.latest.at.is_some_and(|latest| latest > reading.at) {
            // The clock was set back: times of earlier readings say nothing of this one.
            *kept = LatestSamples::default();
        }
        let tasks = reading
            .tasks
            .iter()
            .map(|usage| (usage.task.id.to_string(), Sample::of(usage)));
        let samples = Samples {
            at: Some(reading.at),
            tasks: Arc::new(tasks.collect()),
        };
        let before = std::mem::replace(&mut kept.latest, samples);
        let apart = before
            .at
            .and_then(|before| reading.at.duration_since(before).ok());
        if apart.is_some_and(|apart| apart >= APART) {
            kept.before = before;
        }
    }

    /// The usage of the tasks as of the latest reading.
    pub(crate) fn latest(&self) -> NodeUsage {
        let kept = self.0.lock();
        NodeUsage {
            before: kept.before.clone(),
            latest: kept.latest.clone(),
        }
    }
}

// === impl NodeUsage ===

impl NodeUsage {
    /// The meaning of the figures, as a sentence.
    pub(super) fn caption(&self, now: SystemTime) -> String {
        let since = |at: SystemTime| now.duration_since(at).unwrap_or_default().as_secs_f64();
        let Some(at) = self.latest.at else {
            return "What tasks use is being read: load the page again.".to_owned();
        };
        let age = text::seconds(since(at));
        let apart = self
            .before
            .at
            .and_then(|before| at.duration_since(before).ok());
        match apart {
            Some(apart) => format!(
                "Read {age} ago. Processor time is the share of one processor, over {} or since a task's start.",
                text::seconds(apart.as_secs_f64())
            ),
            None => format!(
                "Read {age} ago. Processor time is the share of one processor since a task's start; load the page again for the present."
            ),
        }
    }

    /// The usage of a task; nothing if it does not run.
    pub(super) fn of(&self, task: &str) -> TaskUse {
        let sample = self.latest.tasks.get(task);
        let unknown = || "—".to_owned();
        let cpu = sample.and_then(|sample| sample.processors(self.before.tasks.get(task)));
        let memory = sample.and_then(|sample| sample.memory_bytes).map(size);
        TaskUse {
            cpu: cpu.unwrap_or_else(unknown),
            memory: memory.unwrap_or_else(unknown),
        }
    }
}

// === impl Sample ===

impl Sample {
    fn of(usage: &TaskUsage) -> Self {
        let started_at = match &usage.task.state {
            TaskState::Running { started_at, .. } | TaskState::Stopping { started_at, .. } => {
                Some(*started_at)
            }
            TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Exited { .. }
            | TaskState::Removing { .. } => None,
        };
        Self {
            started_at,
            cpu: usage.cpu,
            memory_bytes: usage.memory_bytes,
        }
    }

    fn processors(&self, before: Option<&Self>) -> Option<String> {
        let (at, used) = self.cpu?;
        // A counter below its former value belongs to another cgroup: the task was started again.
        let before = before
            .and_then(|before| before.cpu)
            .filter(|(begin, then)| *begin < at && *then <= used);
        let (begin, then) = before.or_else(|| self.started_at.map(|start| (start, 0)))?;
        let over = at.duration_since(begin).ok()?;
        Some(text::share(used - then, over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn samples(seconds: u64, cpu_ms: u64) -> Samples {
        let cpu = Some((at(seconds), cpu_ms * 1_000_000));
        let sample = Sample {
            started_at: Some(at(100)),
            cpu,
            memory_bytes: Some(3 << 20),
        };
        Samples {
            at: Some(at(seconds)),
            tasks: Arc::new(HashMap::from([("a".to_owned(), sample)])),
        }
    }

    #[test]
    fn share_is_the_difference_of_readings_or_the_average_since_the_start() {
        let usage = NodeUsage {
            before: samples(110, 1_000),
            latest: samples(120, 3_500),
        };
        assert_eq!(
            usage.of("a"),
            TaskUse {
                cpu: "25.0 %".into(),
                memory: "3.0 MiB".into()
            }
        );
        assert!(
            usage.caption(at(123)).starts_with("Read 3.0s ago. "),
            "{}",
            usage.caption(at(123))
        );
        let first = NodeUsage {
            before: Samples::default(),
            latest: samples(120, 3_500),
        };
        assert_eq!(first.of("a").cpu, "17.5 %");
        assert!(
            first
                .caption(at(120))
                .contains("since a task's start; load")
        );
    }

    #[test]
    fn counter_that_began_anew_counts_from_the_start() {
        let usage = NodeUsage {
            before: samples(110, 9_000),
            latest: samples(120, 2_000),
        };
        assert_eq!(usage.of("a").cpu, "10.0 %");
    }

    #[test]
    fn reading_after_the_clock_was_set_back_is_kept() {
        let history = UsageHistory::default();
        *history.0.lock() = LatestSamples {
            before: samples(110, 1_000),
            latest: samples(120, 3_500),
        };
        let reading = ContainerReading {
            at: at(50),
            figures: Arc::default(),
            tasks: Vec::new(),
            traffic: Vec::new(),
            failures: std::collections::BTreeMap::new(),
        };
        history.keep(&reading);
        let kept = history.latest();
        assert_eq!((kept.latest.at, kept.before.at), (Some(at(50)), None));
    }

    #[test]
    fn what_was_not_read_is_not_shown_as_zero() {
        let usage = NodeUsage::default();
        assert_eq!(
            usage.of("a"),
            TaskUse {
                cpu: "—".into(),
                memory: "—".into()
            }
        );
        assert!(usage.caption(at(1)).contains("being read"));
    }
}
