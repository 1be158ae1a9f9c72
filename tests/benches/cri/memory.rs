//! The resident memory of the processes under comparison.

use std::fs;

use crate::failure::Failure;
use crate::test_bed::TestBed;

/// The memory of one process, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resident {
    /// All pages that it has mapped and that are in memory.
    pub(crate) rss: u64,
    /// The same, with pages that several processes share divided among them.
    pub(crate) pss: u64,
    /// The part of the first that is of no file, such as what was allocated.
    pub(crate) anonymous: u64,
}

/// The memory of all of them at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Our daemon.
    pub(crate) daemon: Resident,
    /// Our logkeeper.
    pub(crate) logkeeper: Resident,
    /// Containerd: its CRI plugin, and the core services that both sides use.
    pub(crate) containerd: Resident,
}

impl Memory {
    /// Looks now.
    pub(crate) fn of(stand: &TestBed) -> Result<Self, Failure> {
        Ok(Self {
            daemon: Resident::of(u32::try_from(stand.daemon.pid())?)?,
            logkeeper: Resident::of(Self::logkeeper_of(stand)?)?,
            containerd: Resident::of(stand.containerd.pid())?,
        })
    }

    /// The id of the logkeeper's process.
    pub(crate) fn logkeeper_of(stand: &TestBed) -> Result<u32, Failure> {
        let pid = stand
            .root
            .managed("logkeeper")
            .ok_or("the daemon has not written down its logkeeper")?;
        Ok(pid.as_raw().try_into()?)
    }
}

impl Resident {
    /// The first in MiB.
    pub(crate) fn rss_mib(self) -> f64 {
        mebibytes(self.rss)
    }

    /// The second in MiB.
    pub(crate) fn pss_mib(self) -> f64 {
        mebibytes(self.pss)
    }

    /// The anonymous memory in MiB.
    pub(crate) fn anonymous_mib(self) -> f64 {
        mebibytes(self.anonymous)
    }

    /// What was added since an earlier look, or nothing where there is less now.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            rss: self.rss.saturating_sub(before.rss),
            pss: self.pss.saturating_sub(before.pss),
            anonymous: self.anonymous.saturating_sub(before.anonymous),
        }
    }

    /// That of the process of this id.
    pub(crate) fn of(pid: u32) -> Result<Self, Failure> {
        let file = format!("/proc/{pid}/smaps_rollup");
        let text =
            fs::read_to_string(&file).map_err(|error| format!("cannot read {file}: {error}"))?;
        let field = |name: &str| -> Result<u64, Failure> {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let line = line.ok_or_else(|| format!("{file} has no {name}"))?;
            let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
            Ok(kilobytes * 1024)
        };
        Ok(Self {
            rss: field("Rss")?,
            pss: field("Pss")?,
            anonymous: field("Anonymous")?,
        })
    }
}

impl std::ops::Add for Resident {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            rss: self.rss + other.rss,
            pss: self.pss + other.pss,
            anonymous: self.anonymous + other.anonymous,
        }
    }
}

fn mebibytes(bytes: u64) -> f64 {
    // Kilobytes fit in 32 bits up to 4 TiB.
    f64::from(u32::try_from(bytes / 1024).unwrap_or(u32::MAX)) / 1024.0
}
