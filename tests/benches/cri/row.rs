//! One row of the report: the samples of both sides, their goal, and whether it is reached.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::pair::Pair;

/// A measurement of both sides, with its goal.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Its name in the report; a leading `= ` marks the sum of the rows before it.
    pub(crate) name: String,
    /// Milliseconds, unless said otherwise.
    pub(crate) unit: &'static str,
    /// Samples of containerd's CRI plugin; none if it has nothing that could be compared.
    pub(crate) theirs: Vec<f64>,
    /// Samples of Switchyard.
    pub(crate) ours: Vec<f64>,
    /// The goal.
    pub(crate) goal: Option<Goal>,
    /// The known bound, for the reader of a goal that is missed.
    pub(crate) bound: &'static str,
}

/// The goal of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// Ours is at most this part of theirs.
    RatioAtMost(f64),
    /// Ours is at least this many times theirs.
    RatioAtLeast(f64),
    /// Our value is at most this, in the row's unit, independent of the other side.
    OursAtMost(f64),
    /// Ours is at most so much more than theirs, in the row's unit.
    MoreAtMost(f64),
}

/// Percentiles of one side, in the row's unit.
#[derive(Clone, Copy, Debug)]
struct Spread {
    p50: f64,
    p90: f64,
}

// === impl Row ===

impl Row {
    /// A row of times, in milliseconds.
    pub(crate) fn times(name: &str, samples: impl IntoIterator<Item = Pair<Duration>>) -> Self {
        let (theirs, ours) = samples
            .into_iter()
            .map(|pair| (milliseconds(pair.theirs), milliseconds(pair.ours)))
            .unzip();
        Self {
            name: name.to_owned(),
            unit: "ms",
            theirs,
            ours,
            goal: None,
            bound: "",
        }
    }

    /// A row of anything else.
    pub(crate) fn numbers(
        name: &str,
        unit: &'static str,
        samples: impl IntoIterator<Item = Pair<f64>>,
    ) -> Self {
        let (theirs, ours) = samples
            .into_iter()
            .map(|pair| (pair.theirs, pair.ours))
            .unzip();
        Self {
            name: name.to_owned(),
            unit,
            theirs,
            ours,
            goal: None,
            bound: "",
        }
    }

    /// A row of what only Switchyard has.
    pub(crate) fn ours(
        name: &str,
        unit: &'static str,
        ours: impl IntoIterator<Item = f64>,
    ) -> Self {
        let ours = ours.into_iter().collect();
        Self {
            name: name.to_owned(),
            unit,
            theirs: Vec::new(),
            ours,
            goal: None,
            bound: "",
        }
    }

    /// The row with a goal.
    pub(crate) fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// The row with what bounds it.
    pub(crate) fn bound(mut self, bound: &'static str) -> Self {
        self.bound = bound;
        self
    }

    /// The median of ours/theirs over the samples that belong together; nothing if there is nothing to
    /// compare, or if it would be a ratio of two values that are next to nothing.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let floor = if self.unit == "ms" { 0.1 } else { 0.0 };
        let theirs = quantile(&self.theirs, 0.5);
        let ours = quantile(&self.ours, 0.5);
        if theirs <= floor || ours <= floor / 10.0 {
            return None;
        }
        let ratios: Vec<f64> = self
            .theirs
            .iter()
            .zip(&self.ours)
            .map(|(theirs, ours)| ours / theirs.max(1e-6))
            .collect();
        Some(quantile(&ratios, 0.5))
    }

    /// The median of ours - theirs over the samples that belong together.
    fn more(&self) -> f64 {
        let more: Vec<f64> = self
            .theirs
            .iter()
            .zip(&self.ours)
            .map(|(theirs, ours)| ours - theirs)
            .collect();
        quantile(&more, 0.5)
    }

    /// Returns whether the goal is reached; nothing if there is none, or nothing was measured.
    pub(crate) fn reached(&self) -> Option<bool> {
        match self.goal? {
            Goal::RatioAtMost(most) => Some(self.ratio()? <= most),
            Goal::RatioAtLeast(least) => Some(self.ratio()? >= least),
            Goal::OursAtMost(most) if !self.ours.is_empty() => {
                Some(quantile(&self.ours, 0.5) <= most)
            }
            Goal::MoreAtMost(most) if !self.ours.is_empty() => Some(self.more() <= most),
            Goal::OursAtMost(_) | Goal::MoreAtMost(_) => None,
        }
    }

    /// The heads of the columns that [`Row`]'s `Display` writes.
    pub(crate) fn head(title: &str, names: Pair<&str>) -> String {
        let Pair { theirs, ours } = names;
        format!(
            "{title:<42}{theirs:^20}{ours:^20}\n{:<42}{:>10}{:>10}{:>10}{:>10}{:>8}  goal",
            "", "p50", "p90", "p50", "p90", "ratio"
        )
    }

    /// The row for programs: every sample.
    pub(crate) fn json(&self) -> Value {
        let side = |samples: &[f64]| {
            let spread = Spread::of(samples);
            json!({ "p50": spread.p50, "p90": spread.p90, "samples": samples })
        };
        json!({
            "unit": self.unit, "theirs": side(&self.theirs), "ours": side(&self.ours), "ratio": self.ratio(),
            "goal": self.goal.map(|goal| goal.to_string()), "reached": self.reached(),
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.unit == "ms" {
            String::new()
        } else {
            format!(", {}", self.unit)
        };
        write!(f, "{:<42}", format!("{}{unit}", self.name))?;
        for samples in [&self.theirs, &self.ours] {
            let spread = Spread::of(samples);
            if samples.is_empty() {
                write!(f, "{:>10}{:>10}", "-", "-")?;
            } else if spread.p50 < 1.0 {
                write!(f, "{:>10.2}{:>10.2}", spread.p50, spread.p90)?;
            } else {
                write!(f, "{:>10.1}{:>10.1}", spread.p50, spread.p90)?;
            }
        }
        let ratio = self
            .ratio()
            .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        write!(f, "{ratio:>8}")?;
        match (self.goal, self.reached()) {
            (Some(goal @ Goal::MoreAtMost(_)), Some(reached)) => {
                write!(
                    f,
                    "  {goal}: {:.2}, {}",
                    self.more(),
                    if reached { "reached" } else { "MISSED" }
                )
            }
            (Some(goal), Some(true)) => write!(f, "  {goal}: reached"),
            (Some(goal), Some(false)) => write!(f, "  {goal}: MISSED"),
            (Some(goal), None) => write!(f, "  {goal}: not measured"),
            (None, _) => Ok(()),
        }
    }
}

// === impl Goal ===

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtMost(most) => write!(f, "<= {most:.2}"),
            Self::RatioAtLeast(least) => write!(f, ">= {least:.2}"),
            Self::OursAtMost(most) => write!(f, "ours <= {most}"),
            Self::MoreAtMost(most) => write!(f, "<= {most} more"),
        }
    }
}

// === impl Spread ===

impl Spread {
    fn of(samples: &[f64]) -> Self {
        Self {
            p50: quantile(samples, 0.5),
            p90: quantile(samples, 0.9),
        }
    }
}

/// The quantile by linear interpolation between the two nearest samples; 0 without samples.
pub(crate) fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(steps) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let mut place = share * f64::from(u32::try_from(steps).unwrap_or(u32::MAX));
    for pair in sorted.windows(2) {
        if place <= 1.0 {
            return pair[0] + (pair[1] - pair[0]) * place;
        }
        place -= 1.0;
    }
    sorted[steps]
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
