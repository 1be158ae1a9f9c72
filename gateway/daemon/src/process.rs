//! Names a process for good: a process id alone may come to mean another process.

use std::fmt;
use std::fs;
use std::str::FromStr;

/// A process, by its id and when it began; ids are used again, pairs are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId {
    /// The process id.
    pub pid: i32,
    /// When it began, in clock ticks since boot.
    pub started: u64,
}

/// A text that names no process.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} names no process: expected its id and its start time")]
pub struct ParseProcessIdError(String);

impl ProcessId {
    /// The process that has this id now, unless it has ended (a zombie has).
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields = stat_fields(&stat);
        // Fields 3 and 22 of proc(5): state and start time.
        let ended = matches!(*fields.first()?, "Z" | "X" | "x");
        let started = fields.get(19)?.parse().ok()?;
        (!ended).then_some(Self { pid, started })
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

impl FromStr for ProcessId {
    type Err = ParseProcessIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseProcessIdError(text.to_owned());
        let (pid, started) = text.trim().split_once(' ').ok_or_else(fail)?;
        match (pid.parse(), started.parse()) {
            (Ok(pid), Ok(started)) if pid > 0 => Ok(Self { pid, started }),
            _ => Err(fail()),
        }
    }
}

/// The fields of a `stat` line of proc(5), from the third on: the second, the name, may itself hold spaces and brackets.
pub(crate) fn stat_fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_ends_even_if_nobody_reaped_it() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let id = ProcessId::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(id.is_alive());
        assert_eq!(id.to_string().parse::<ProcessId>().unwrap(), id);
        let before = ProcessId { started: id.started.wrapping_sub(1), ..id };
        assert!(!before.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!id.is_alive());
    }

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        assert_eq!(stat_fields("7 (a) b (c)) S 1 2"), ["S", "1", "2"]);
    }
}
