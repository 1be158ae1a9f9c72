//! Wait records: the start of the wait for a predecessor call, in a file for each container, so that the wait
//! continues when the waiting daemon is killed.
//!
//! If each daemon restarted the wait, a node on which daemons die faster than the timeouts of the wait would
//! never get to the end of one.

use std::io::ErrorKind as Fault;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use rustix::time::{ClockId, clock_gettime};
use switchyard_core::Result;
use switchyard_crash_points::{CrashPoint, reach};

use crate::base::fs::{blocking, create_private_dir, io_error};
use crate::cleanup::{Cleanup, upgrade};
use crate::predecessor_calls::PredecessorCalls;

/// Since when a predecessor call has been waited for, by all daemons that have waited for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PredecessorWait {
    /// Time at which the first of these daemons began to wait.
    pub(crate) began: Instant,
    /// Since when none of them has seen a process or a sign of activity, where bundles cannot be seen.
    pub(crate) quiet: Option<Instant>,
}

/// The same as it is written to the file: times of the monotonic clock, which are valid in one boot only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WaitRecord<'a> {
    boot: &'a str,
    began: Duration,
    quiet: Option<Duration>,
}

impl PredecessorCalls {
    /// Loads the wait for the predecessor call about a container, or begins one now and saves it.
    ///
    /// # Errors
    /// A record is there and cannot be read.
    pub(crate) async fn load_or_begin_wait(&self, id: &str) -> Result<PredecessorWait> {
        let clock = monotonic_now();
        let now = Instant::now();
        let path = self.context.layout.waits().join(id);
        let written = match tokio::fs::read_to_string(&path).await {
            Ok(text) => text,
            Err(fault) if fault.kind() == Fault::NotFound => String::new(),
            Err(fault) => return Err(io_error("read", &path, fault)),
        };
        if let Some(wait) = WaitRecord::parse(&written)
            .and_then(|record| record.to_wait(&self.context.boot, clock, now))
        {
            return Ok(wait);
        }
        let wait = PredecessorWait {
            began: now,
            quiet: None,
        };
        self.save_wait(id, wait).await;
        Ok(wait)
    }

    /// Saves a wait, if that is possible. The removal of a container waits too, and a full disk must not
    /// prevent it; without a record the next daemon restarts the wait.
    pub(crate) async fn save_wait(&self, id: &str, wait: PredecessorWait) {
        if let Err(error) = self.write_wait(id, wait).await {
            tracing::warn!(
                object = id,
                error = error.report(),
                "cannot record the wait for a predecessor's call: it restarts if this daemon ends"
            );
        }
    }

    async fn write_wait(&self, id: &str, wait: PredecessorWait) -> Result<()> {
        let path = self.context.layout.waits().join(id);
        let text = WaitRecord::from_wait(wait, &self.context.boot, monotonic_now()).text();
        create_private_dir(&self.context.layout.waits()).await?;
        // Not replaced by a rename: a record that was cut off is ignored, and the wait begins again.
        tokio::fs::write(&path, text)
            .await
            .map_err(|fault| io_error("write", &path, fault))?;
        reach(CrashPoint::WaitNoted);
        Ok(())
    }

    /// Removes the wait record of a container, whose predecessor call has finished. Idempotent.
    pub(crate) async fn remove_wait(&self, id: &str) -> Result<()> {
        self.remove_record(id).await?;
        reach(CrashPoint::WaitOver);
        Ok(())
    }

    async fn remove_record(&self, id: &str) -> Result<()> {
        let path = self.context.layout.waits().join(id);
        match tokio::fs::remove_file(&path).await {
            Err(fault) if fault.kind() != Fault::NotFound => Err(io_error("remove", &path, fault)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes the wait records of containers without a predecessor call, as there are after a reboot. Returns those
    /// that cannot be removed now.
    pub(crate) async fn remove_stale_waits(self: &Arc<Self>) -> Vec<StaleWaitCleanup> {
        let dir = self.context.layout.waits();
        let listed = blocking(move || file_names(&dir)).await.unwrap_or_else(|error| {
            let error = error.report();
            tracing::warn!(
                error,
                "cannot list the records of waits for predecessors: trying again at the next start"
            );
            Vec::new()
        });
        let mut refused = Vec::new();
        for id in listed {
            let cleanup = StaleWaitCleanup {
                calls: Arc::downgrade(self),
                id,
            };
            if let Err(error) = cleanup.run().await {
                let error = error.report();
                tracing::warn!(
                    error,
                    "cannot remove the record of a wait for a predecessor: trying again while requests are served"
                );
                refused.push(cleanup);
            }
        }
        refused
    }
}

/// The names of the files in a directory; none if it does not exist. Names that are no text are left out. Blocks.
fn file_names(dir: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Err(fault) if fault.kind() == Fault::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>()),
    };
    let entries = entries.map_err(|fault| io_error("list", dir, fault))?;
    Ok(entries
        .into_iter()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect())
}

/// Removes the record of a wait for a predecessor call that is not there.
#[derive(Debug)]
pub(crate) struct StaleWaitCleanup {
    calls: Weak<PredecessorCalls>,
    id: String,
}

impl Cleanup for StaleWaitCleanup {
    fn description(&self) -> String {
        format!("record of a wait about {}", self.id)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let calls = upgrade(&self.calls)?;
            // A call about the same id may have been found since: its record is in use.
            if calls.shims.predecessor_calls.contains(&self.id) {
                return Ok(());
            }
            calls.remove_record(&self.id).await
        })
    }
}

impl<'a> WaitRecord<'a> {
    /// The record of a wait. `clock`: the current time of the monotonic clock.
    fn from_wait(wait: PredecessorWait, boot: &'a str, clock: Duration) -> Self {
        let when = |moment: Instant| clock.saturating_sub(moment.elapsed());
        Self {
            boot,
            began: when(wait.began),
            quiet: wait.quiet.map(when),
        }
    }

    fn text(&self) -> String {
        let quiet = self
            .quiet
            .map(|quiet| format!(" {}", quiet.as_millis()))
            .unwrap_or_default();
        format!("{} {}{quiet}", self.boot, self.began.as_millis())
    }

    /// Parses a record; `None` if writing it was cut off.
    fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.split(' ');
        let boot = words.next()?;
        let began = words.next()?;
        let moment = |word: &str| word.parse().ok().map(Duration::from_millis);
        Some(Self {
            boot,
            began: moment(began)?,
            quiet: words.next().and_then(moment),
        })
    }

    /// The wait that was recorded; `None` if it was recorded in another boot, or begins in the future.
    /// `clock` and `now` are the same moment.
    fn to_wait(self, boot: &str, clock: Duration, now: Instant) -> Option<PredecessorWait> {
        let when = |moment: Duration| now.checked_sub(clock.checked_sub(moment)?);
        let began = (self.boot == boot).then(|| when(self.began)).flatten()?;
        Some(PredecessorWait {
            began,
            quiet: self.quiet.and_then(when),
        })
    }
}

/// The time of the monotonic clock, which is the same for all processes of one boot.
fn monotonic_now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).expect("the monotonic clock counts from zero");
    Duration::from_secs(part(now.tv_sec)) + Duration::from_nanos(part(now.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(boot: &str, began: u64, quiet: Option<u64>) -> WaitRecord<'_> {
        WaitRecord {
            boot,
            began: Duration::from_millis(began),
            quiet: quiet.map(Duration::from_millis),
        }
    }

    #[test]
    fn a_wait_counts_from_its_first_mark_of_the_same_boot() {
        let now = Instant::now();
        let check =
            |mark: WaitRecord<'_>, boot: &str, clock: u64, expected: Option<(u64, Option<u64>)>| {
                let text = mark.text();
                let read = WaitRecord::parse(&text).expect("it is whole");
                assert_eq!(read, mark);
                let lasted = |moment: Instant| {
                    u64::try_from((now - moment).as_millis()).expect("it is short")
                };
                let wait = read.to_wait(boot, Duration::from_millis(clock), now);
                assert_eq!(
                    wait.map(|wait| (lasted(wait.began), wait.quiet.map(lasted))),
                    expected,
                    "{text}"
                );
            };
        check(mark("a", 1_000, None), "a", 3_500, Some((2_500, None)));
        check(
            mark("a", 1_000, Some(1_500)),
            "a",
            3_500,
            Some((2_500, Some(2_000))),
        );
        check(
            mark("a", 1_000, Some(4_000)),
            "a",
            3_500,
            Some((2_500, None)),
        );
        check(mark("a", 1_000, None), "b", 3_500, None);
        check(mark("a", 1_000, None), "a", 999, None);
    }

    #[test]
    fn marks_of_the_first_version_are_read_and_written() {
        for (golden, expected) in [
            ("5d0b9f3c 1000", mark("5d0b9f3c", 1_000, None)),
            ("5d0b9f3c 1000 1500", mark("5d0b9f3c", 1_000, Some(1_500))),
        ] {
            assert_eq!(WaitRecord::parse(golden), Some(expected));
            assert_eq!(expected.text(), golden);
        }
    }

    #[test]
    fn a_mark_that_a_kill_cut_short_is_none() {
        assert_eq!(WaitRecord::parse(""), None);
        assert_eq!(WaitRecord::parse("a"), None);
        assert_eq!(WaitRecord::parse("a x"), None);
        assert_eq!(WaitRecord::parse("a 5 "), Some(mark("a", 5, None)));
    }

    #[test]
    fn the_clock_goes_on() {
        let before = monotonic_now();
        assert!(monotonic_now() >= before && before > Duration::ZERO);
    }
}
