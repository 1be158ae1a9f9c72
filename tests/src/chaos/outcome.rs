//! The outcome of a run: counts, durations and violations.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::Settings;
use super::expected_state::Victim;

/// The most violations that are recorded.
const MAX_VIOLATIONS: usize = 200;
/// The most answers and kills that are recorded. A violation is reported with those that preceded it.
const MAX_HISTORY: usize = 20_000;

/// The outcome of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The settings that repeat the run.
    pub settings: Settings,
    /// The duration of the run with its cleanup.
    pub took: Duration,
    /// Time from the last removal until the leak scan found nothing; `None` if it always found something.
    pub clean_after: Option<Duration>,
    /// Kills by victim.
    pub kills: BTreeMap<Victim, u32>,
    /// Answered calls by name.
    pub calls: BTreeMap<String, u32>,
    /// Calls that got no answer and were repeated.
    pub unanswered: u32,
    /// Calls that the daemon refused because it was starting.
    pub refused_starting: u32,
    /// Calls that the daemon refused because containerd or the logkeeper was down.
    pub refused_away: u32,
    /// Starts that failed because containerd or a shim was killed meanwhile.
    pub failed_starts: u32,
    /// The time from each kill of the daemon until it answered with correct lists, without those of
    /// `serving_both`.
    pub serving: Vec<Duration>,
    /// The same for kills at most three seconds after a kill of containerd, which may still have been
    /// restarting.
    pub serving_both: Vec<Duration>,
    /// Containers whose log is incomplete at its end for an excused reason.
    pub early_logs: BTreeMap<Excuse, BTreeSet<String>>,
    /// Ids of the bundles that an external containerd has left by itself.
    pub left_bundles: BTreeSet<String>,
    /// The violations.
    pub violations: Vec<String>,
}

/// The reason why the log of a container may lack the last lines that the container wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Excuse {
    /// Its shim, or the shim of its pod, was killed.
    Shim,
    /// The daemon and the logkeeper were killed within five seconds of each other, near the container's exit
    /// or after it.
    DaemonAndLogkeeper,
}

/// Collector of the observations of a run's threads.
#[derive(Debug)]
pub(super) struct RunRecorder {
    began: Instant,
    outcome: Mutex<Outcome>,
    history: Mutex<VecDeque<HistoryEntry>>,
}

/// One observation.
#[derive(Debug)]
struct HistoryEntry {
    at: Duration,
    /// The object that it concerns; `None` for all objects.
    object: Option<String>,
    what: String,
}

impl RunRecorder {
    pub(super) fn new(settings: Settings) -> Self {
        let outcome = Outcome {
            settings,
            took: Duration::ZERO,
            clean_after: None,
            kills: BTreeMap::new(),
            calls: BTreeMap::new(),
            unanswered: 0,
            refused_starting: 0,
            refused_away: 0,
            failed_starts: 0,
            serving: Vec::new(),
            serving_both: Vec::new(),
            early_logs: BTreeMap::new(),
            left_bundles: BTreeSet::new(),
            violations: Vec::new(),
        };
        Self {
            began: Instant::now(),
            outcome: Mutex::new(outcome),
            history: Mutex::default(),
        }
    }

    fn history(&self) -> MutexGuard<'_, VecDeque<HistoryEntry>> {
        self.history.lock()
    }

    /// Records an observation of one object, or of all.
    pub(super) fn record(&self, object: Option<&str>, what: String) {
        let mut past = self.history();
        if past.len() == MAX_HISTORY {
            past.pop_front();
        }
        past.push_back(HistoryEntry {
            at: self.began.elapsed(),
            object: object.map(str::to_owned),
            what,
        });
    }

    /// The observations of an object, and the general ones since the object was first seen.
    pub(super) fn history_of(&self, object: &str) -> Vec<String> {
        let past = self.history();
        past.iter()
            .skip_while(|moment| moment.object.as_deref() != Some(object))
            .filter(|moment| moment.object.as_deref().is_none_or(|of| of == object))
            .map(|moment| format!("at {:.3} s: {}", moment.at.as_secs_f64(), moment.what))
            .collect()
    }

    pub(super) fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock()
    }

    /// Records a violation.
    pub(super) fn violation(&self, what: impl fmt::Display) {
        let at = self.began.elapsed().as_secs_f64();
        let mut outcome = self.outcome();
        if outcome.violations.len() < MAX_VIOLATIONS {
            outcome.violations.push(format!("at {at:.3} s: {what}"));
        }
    }

    pub(super) fn finish(self) -> Outcome {
        let mut outcome = self.outcome.into_inner();
        outcome.took = self.began.elapsed();
        outcome
    }
}

impl Outcome {
    /// Returns whether a containerd that the daemon does not manage was killed, which may leave bundles by itself.
    pub(super) fn may_leave_bundles(&self) -> bool {
        self.settings.external && self.kills.contains_key(&Victim::Containerd)
    }

    /// The command that repeats the run.
    #[must_use]
    pub fn command(&self) -> String {
        let Settings {
            kills,
            seed,
            clients,
            external,
            drivers,
            ..
        } = &self.settings;
        let external = if *external { " --external" } else { "" };
        format!(
            "tests/chaos --kills {kills} --seed {seed} --clients {clients} --driver {drivers}{external}"
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.command())?;
        let kills: Vec<_> = self
            .kills
            .iter()
            .map(|(victim, count)| format!("{victim:?} {count}"))
            .collect();
        writeln!(
            f,
            "{} kills in {:.0} s: {}",
            self.kills.values().sum::<u32>(),
            self.took.as_secs_f64(),
            kills.join(", ")
        )?;
        let calls: Vec<_> = self
            .calls
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        writeln!(f, "answered: {}", calls.join(", "))?;
        writeln!(
            f,
            "unanswered and repeated {}; refused while starting {}; refused without containerd or logkeeper {}; starts that failed under a kill {}",
            self.unanswered, self.refused_starting, self.refused_away, self.failed_starts
        )?;
        writeln!(
            f,
            "serving again after a kill of the daemon, containerd there: {}",
            times(&self.serving)
        )?;
        writeln!(
            f,
            "the same at most 3 s after a kill of containerd: {}",
            times(&self.serving_both)
        )?;
        let all = [self.serving.as_slice(), &self.serving_both].concat();
        writeln!(f, "after all kills of the daemon: {}", times(&all))?;
        let early = |excuse| self.early_logs.get(&excuse).map_or(0, BTreeSet::len);
        writeln!(
            f,
            "logs without their end: {} with a killed shim, {} with daemon and logkeeper killed within 5 s of each other",
            early(Excuse::Shim),
            early(Excuse::DaemonAndLogkeeper)
        )?;
        match self.clean_after {
            Some(after) => writeln!(
                f,
                "clean {:.2} s after the last removal",
                after.as_secs_f64()
            )?,
            None => writeln!(f, "never clean")?,
        }
        if !self.left_bundles.is_empty() {
            let ids: Vec<_> = self.left_bundles.iter().map(String::as_str).collect();
            writeln!(f, "bundles that containerd left: {}", ids.join(", "))?;
        }
        writeln!(f, "violations: {}", self.violations.len())?;
        self.violations
            .iter()
            .try_for_each(|violation| writeln!(f, "  {violation}"))
    }
}

fn times(samples: &[Duration]) -> String {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let Some(longest) = sorted.last() else {
        return "no sample".to_owned();
    };
    // The nearest-rank percentile.
    let rank = |percent: usize| {
        sorted[(sorted.len() * percent).div_ceil(100).saturating_sub(1)].as_millis()
    };
    format!(
        "p50 {} ms, p99 {} ms, longest {} ms of {}",
        rank(50),
        rank(99),
        longest.as_millis(),
        sorted.len()
    )
}
