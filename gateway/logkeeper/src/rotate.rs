//! Rotates the log of a container, for owners that have nobody else to do so: its file gets the name of a rotated
//! one, and the logkeeper has to be asked to reopen the log ([`Client::reopen`](crate::Client::reopen)).
//!
//! The names are those that kubelets give, `NAME.20060102-150405`, which [`reader`](crate::reader) puts into their
//! order by the time in them. So they grow even if the clock is set back.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{self, Durable, if_present};

use crate::reader::rotation::rotation_time;

/// Format of the time of a rotation in a name.
const TIME: &str = "%Y%m%d-%H%M%S";

/// The rotated files of one log, in a directory that only root writes to.
#[derive(Debug)]
pub struct RotatedFiles {
    log: PathBuf,
    /// Their names, the oldest one first.
    names: Vec<OsString>,
}

// === impl RotatedFiles ===

impl RotatedFiles {
    /// The rotated files of the log at this path.
    ///
    /// # Errors
    /// Its directory cannot be read; `InvalidInput` if the path has none.
    pub fn of(log: &Path) -> io::Result<Self> {
        let (Some(dir), Some(name)) = (log.parent(), log.file_name()) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is no path of a file in a directory",
            ));
        };
        let mut names = Vec::new();
        for entry in dir.read_dir()? {
            let found = entry?.file_name();
            if rotation_time(found.as_bytes(), name).is_some() {
                names.push(found);
            }
        }
        names.sort();
        Ok(Self {
            log: log.to_owned(),
            names,
        })
    }

    /// Number of rotated files.
    #[must_use]
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Makes the log's file the newest of the rotated ones. Until the logkeeper has reopened the log, that is
    /// the file that it writes.
    ///
    /// # Errors
    /// The file cannot be renamed: `NotFound` if there is none.
    pub fn set_aside(&mut self, now: SystemTime) -> io::Result<()> {
        let name = self.next_name(now)?;
        files::rename(&self.log, &self.log.with_file_name(&name), Durable::No)?;
        reach(CrashPoint::LogSetAside);
        self.names.push(name);
        Ok(())
    }

    /// Removes the oldest files, until so many are left. None of the removed ones may be written any more:
    /// until the log is reopened, the newest one is.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_beyond(&mut self, kept: usize) -> io::Result<()> {
        let beyond = self.names.len().saturating_sub(kept);
        for name in self.names.drain(..beyond) {
            if_present(fs::remove_file(self.log.with_file_name(&name)))?;
            reach(CrashPoint::RotatedLogRemoved);
        }
        Ok(())
    }

    /// The name of the file that is rotated now: it follows those of all others.
    fn next_name(&self, now: SystemTime) -> io::Result<OsString> {
        let name = self.log.file_name().unwrap_or_default();
        let no_time = |fault: jiff::Error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("no rotation can follow: {fault}"),
            )
        };
        let now = Timestamp::try_from(now)
            .map_err(no_time)?
            .to_zoned(TimeZone::UTC)
            .datetime();
        let last = self
            .names
            .last()
            .and_then(|last| rotation_time(last.as_bytes(), name));
        let time = match last {
            Some((time, _)) => {
                let last = DateTime::strptime(TIME, time);
                let next = last
                    .and_then(|last| last.checked_add(1.second()))
                    .map_err(no_time)?;
                now.max(next)
            }
            None => now,
        };
        let mut named = name.to_owned();
        named.push(format!(".{}", time.strftime(TIME)));
        Ok(named)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn names(log: &Path) -> Vec<String> {
        let files = RotatedFiles::of(log).unwrap();
        files
            .names
            .iter()
            .map(|name| name.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn names_grow_also_within_a_second_and_when_the_clock_is_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("output.log");
        let now = UNIX_EPOCH + Duration::from_secs(1_767_225_599);
        for (number, time) in [now, now, now - Duration::from_secs(9000)]
            .into_iter()
            .enumerate()
        {
            fs::write(&log, number.to_string()).unwrap();
            RotatedFiles::of(&log).unwrap().set_aside(time).unwrap();
        }
        fs::write(dir.path().join("output.log.1"), "not a rotated file").unwrap();
        let expected = ["20251231-235959", "20260101-000000", "20260101-000001"];
        let expected: Vec<String> = expected
            .iter()
            .map(|time| format!("output.log.{time}"))
            .collect();
        assert_eq!(names(&log), expected);
        for (number, name) in expected.iter().enumerate() {
            assert_eq!(
                fs::read_to_string(dir.path().join(name)).unwrap(),
                number.to_string()
            );
        }
    }

    #[test]
    fn oldest_files_are_removed_first_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("output.log");
        for time in ["20260101-000000.gz", "20260101-000001", "20260101-000002"] {
            fs::write(dir.path().join(format!("output.log.{time}")), "").unwrap();
        }
        fs::write(dir.path().join("other.log.20260101-000000"), "").unwrap();
        let mut files = RotatedFiles::of(&log).unwrap();
        files.remove_beyond(3).unwrap();
        assert_eq!(files.count(), 3);
        files.remove_beyond(1).unwrap();
        assert_eq!(names(&log), ["output.log.20260101-000002"]);
        files.remove_beyond(0).unwrap();
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn file_that_is_not_there_and_a_time_that_is_none_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("output.log");
        let error = RotatedFiles::of(&log)
            .unwrap()
            .set_aside(SystemTime::now())
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        fs::write(dir.path().join("output.log.99999999-999999"), "").unwrap();
        fs::write(&log, "kept").unwrap();
        let error = RotatedFiles::of(&log)
            .unwrap()
            .set_aside(SystemTime::now())
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(fs::read_to_string(&log).unwrap(), "kept");
    }
}
