//! Since when what a killed daemon had asked is waited for, over the kills of those that wait: a file for each container.
//!
//! Were each daemon to wait anew, a node on which daemons die faster than their patience ends would never settle anything.

use std::io::ErrorKind as Fault;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use switchyard_core::Result;
use switchyard_steps::{Step, reach};

use crate::backend::Inner;
use crate::text::{io_error, make_dir};

/// A moment of one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark<'a> {
    boot: &'a str,
    /// What the monotonic clock showed.
    clock: Duration,
}

impl Inner {
    /// Since when it is waited for what a predecessor asked about a container: since now, if nobody waited before.
    pub(super) async fn waited_since(&self, id: &str) -> Result<Instant> {
        let now = Mark { boot: &self.boot, clock: clock() };
        let path = self.layout.waits().join(id);
        let written = match tokio::fs::read_to_string(&path).await {
            Ok(text) => text,
            Err(fault) if fault.kind() == Fault::NotFound => String::new(),
            Err(fault) => return Err(io_error("read", &path, fault)),
        };
        let waited = match Mark::parse(&written).and_then(|first| now.after(first)) {
            Some(waited) => waited,
            None => {
                make_dir(&self.layout.waits()).await?;
                tokio::fs::write(&path, now.text()).await.map_err(|fault| io_error("write", &path, fault))?;
                reach(Step::WaitNoted);
                Duration::ZERO
            }
        };
        let now = Instant::now();
        Ok(now.checked_sub(waited).unwrap_or(now))
    }

    /// What a predecessor asked about a container is known to have settled. Idempotent.
    pub(super) async fn wait_is_over(&self, id: &str) -> Result<()> {
        let path = self.layout.waits().join(id);
        match tokio::fs::remove_file(&path).await {
            Err(fault) if fault.kind() != Fault::NotFound => Err(io_error("remove", &path, fault)),
            Ok(()) | Err(_) => {
                reach(Step::WaitOver);
                Ok(())
            }
        }
    }

    /// Ends the waits for containers that nobody waits for any more, as after a reboot.
    pub(super) async fn end_old_waits(&self) -> Result<()> {
        let dir = self.layout.waits();
        let mut files = match tokio::fs::read_dir(&dir).await {
            Ok(files) => files,
            Err(fault) if fault.kind() == Fault::NotFound => return Ok(()),
            Err(fault) => return Err(io_error("list", &dir, fault)),
        };
        while let Some(file) = files.next_entry().await.map_err(|fault| io_error("list", &dir, fault))? {
            let name = file.file_name();
            if !name.to_str().is_some_and(|id| self.inherited().contains(id)) {
                let path = file.path();
                tokio::fs::remove_file(&path).await.map_err(|fault| io_error("remove", &path, fault))?;
            }
        }
        Ok(())
    }
}

impl<'a> Mark<'a> {
    fn text(&self) -> String {
        format!("{} {}", self.boot, self.clock.as_millis())
    }

    /// Reads a mark; `None` if it was never finished.
    fn parse(text: &'a str) -> Option<Self> {
        let (boot, clock) = text.split_once(' ')?;
        Some(Self { boot, clock: Duration::from_millis(clock.parse().ok()?) })
    }

    /// How long this is after an earlier one; `None` if that was in another boot, or cannot have been.
    fn after(&self, first: Mark<'_>) -> Option<Duration> {
        (self.boot == first.boot).then(|| self.clock.checked_sub(first.clock)).flatten()
    }
}

/// What the monotonic clock shows: all processes of one boot see the same.
fn clock() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).expect("the monotonic clock counts from zero");
    Duration::from_secs(part(now.tv_sec)) + Duration::from_nanos(part(now.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(boot: &str, milliseconds: u64) -> Mark<'_> {
        Mark { boot, clock: Duration::from_millis(milliseconds) }
    }

    #[test]
    fn a_wait_counts_from_its_first_mark_of_the_same_boot() {
        let text = mark("a", 1_000).text();
        let first = Mark::parse(&text).expect("it is whole");
        assert_eq!(first, mark("a", 1_000));
        assert_eq!(mark("a", 3_500).after(first), Some(Duration::from_millis(2_500)));
        assert_eq!(mark("b", 3_500).after(first), None);
        assert_eq!(mark("a", 999).after(first), None);
    }

    #[test]
    fn a_mark_that_a_kill_cut_short_is_none() {
        assert_eq!(Mark::parse(""), None);
        assert_eq!(Mark::parse("a"), None);
        assert_eq!(Mark::parse("a x"), None);
    }

    #[test]
    fn the_clock_goes_on() {
        let before = clock();
        assert!(clock() >= before && before > Duration::ZERO);
    }
}
