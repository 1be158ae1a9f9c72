//! Changes the OOM score of a running task's processes. Runtimes do not do that, so it is written to `/proc`
//! here.

use std::sync::Arc;

use serde_json::Value;
use switchyard_core::Result;
use switchyard_core::spec::OomScoreAdj;

use crate::base::fs::blocking;
use crate::task::TaskEntry;
use crate::task::cgroups::TaskCgroups;

/// A change of the OOM score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rescore {
    pub(crate) from: i32,
    pub(crate) to: i32,
}

// === impl Rescore ===

impl Rescore {
    /// The change from the score in a stored spec, or from that of process `pid` if the spec has none; `None`
    /// if nothing has to be changed.
    pub(crate) fn plan(spec: &Value, pid: Option<u32>, to: Option<i32>) -> Option<Self> {
        let stored = spec.pointer("/process/oomScoreAdj").and_then(Value::as_i64);
        let from = match stored {
            Some(score) => i32::try_from(score).ok()?,
            None => score_of(pid?)?,
        };
        to.filter(|to| *to != from).map(|to| Self { from, to })
    }

    pub(crate) fn to_text(self) -> String {
        format!("{} {}", self.from, self.to)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (from, to) = text.trim().split_once(' ')?;
        Some(Self {
            from: from.parse().ok()?,
            to: to.parse().ok()?,
        })
    }

    /// The change that leads to the score on record: this one, or its reverse.
    pub(crate) fn toward_record(self, on_record: Option<i32>) -> Self {
        if on_record == Some(self.to) {
            self
        } else {
            Self {
                from: self.to,
                to: self.from,
            }
        }
    }
}

/// The OOM score of a process; `None` if it has exited.
fn score_of(pid: u32) -> Option<i32> {
    std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

impl TaskCgroups {
    /// Gives the processes of a task that have the score `from` the score `to`. Those that set their own
    /// score keep it. Idempotent.
    pub(crate) async fn rescore(&self, entry: &TaskEntry, change: Rescore) -> Result<()> {
        let Some(group) = entry.record().group() else {
            return Ok(());
        };
        let cgroups = Arc::clone(&self.reader);
        let Rescore { from, to } = change;
        blocking(move || cgroups.rescore(&group, from, to).map_err(Into::into)).await
    }

    /// Gives a new process in a task the score that the task has by now: the runtime knows only the one from
    /// its creation.
    pub(crate) async fn rescore_new_processes(&self, entry: &TaskEntry) -> Result<()> {
        let (made, wanted) = {
            let record = entry.record();
            (
                record.made_score,
                record.resources.oom_score_adj().map(OomScoreAdj::get),
            )
        };
        let Some(to) = wanted else { return Ok(()) };
        if let Some(from) = made {
            self.rescore(entry, Rescore { from, to }).await?;
        }
        if made.unwrap_or(to) == 0 {
            self.rescore_spared(entry, to).await
        } else {
            Ok(())
        }
    }

    /// Gives a task's new main process the score 0, if that is wanted and the runtime has left it with a
    /// negative score, that of a shim which the OOM killer is to spare.
    pub(crate) async fn rescore_main(&self, entry: &TaskEntry, pid: u32) -> Result<()> {
        let wanted = entry.record().resources.oom_score_adj();
        match score_of(pid).filter(|_| wanted == Some(OomScoreAdj::default())) {
            Some(from) if from < 0 => self.rescore(entry, Rescore { from, to: 0 }).await,
            Some(_) | None => Ok(()),
        }
    }

    /// Gives the score `to` to those processes of a task that have the score of its shim, if that is negative
    /// because the OOM killer is to spare the shim: crun before 1.9 ignores a score of 0.
    async fn rescore_spared(&self, entry: &TaskEntry, to: i32) -> Result<()> {
        let shim = entry.shim_pid().and_then(|pid| u32::try_from(pid).ok());
        match shim.and_then(score_of) {
            Some(from) if from < 0 => self.rescore(entry, Rescore { from, to }).await,
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_begins_with_what_is_stored_and_is_none_if_that_is_wanted() {
        let spec = json!({ "process": { "oomScoreAdj": 500 } });
        assert_eq!(
            Rescore::plan(&spec, None, Some(700)),
            Some(Rescore { from: 500, to: 700 })
        );
        assert_eq!(Rescore::plan(&spec, None, Some(500)), None);
        assert_eq!(Rescore::plan(&spec, None, None), None);
        let own = std::process::id();
        let change =
            Rescore::plan(&json!({}), Some(own), Some(1000)).expect("this process has a score");
        assert_eq!((Some(change.from), change.to), (score_of(own), 1000));
    }

    #[test]
    fn whoever_finds_a_mark_goes_to_what_is_on_record() {
        let change = Rescore { from: 500, to: -7 };
        // As the first version writes it.
        assert_eq!(change.to_text(), "500 -7");
        let read = Rescore::parse("500 -7");
        assert_eq!(read, Some(change));
        assert_eq!(change.toward_record(Some(-7)), change);
        assert_eq!(
            change.toward_record(Some(500)),
            Rescore { from: -7, to: 500 }
        );
        assert_eq!(Rescore::parse(""), None);
    }
}
