//! Division of the slow tests into eight *shards*, of which a run of the tests takes one, beside all that is
//! quick.
//!
//! [`SLOW`] lists the slow items, each with its shard. Lists of kill points ([`KILL_LISTS`]) are in every
//! shard: each takes every eighth point of them. The program in `tests/runner` decides which shard a run
//! takes, and passes it to the integration tests in two variables: [`SHARD_VARIABLE`], and [`WHOLE_VARIABLE`]
//! for lists whose source was changed lately. Without the variables, as when a developer runs one test, all
//! points are taken.

mod plan;
mod roots;
mod table;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;

pub use plan::{ALLOWANCE, Extent, Plan};
pub use roots::{LEFT_OUT, RootTests, WHOLE_SUITE};
pub use table::{EVERY_RUN, KILL_LISTS, KNOWN_FAILURES, ROOT_PARTS, SLOW};

use crate::versions::OtherVersion;

/// Number of shards.
pub const SHARDS: u8 = 8;

/// The variable with the shard of the integration tests: a number from 0 to 7.
pub const SHARD_VARIABLE: &str = "SWITCHYARD_SHARD";

/// The variable that names the sources, separated by colons, whose lists of kill points are taken whole.
pub const WHOLE_VARIABLE: &str = "SWITCHYARD_WHOLE";

/// One of the eight parts of what is slow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard(u8);

impl Shard {
    /// The shard with this number; `None` from 8 on.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < SHARDS {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The shard of a commit: its hash modulo 8; `None` if this is no hash.
    #[must_use]
    pub fn of_commit(hash: &str) -> Option<Self> {
        // 16 is a multiple of 8, so the last digit decides.
        let digit = hash.chars().last().and_then(|digit| digit.to_digit(16))?;
        Self::new(u8::try_from(digit % u32::from(SHARDS)).ok()?)
    }

    /// Its number, from 0.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SHARDS).map(Self)
    }

    /// Returns whether it takes the point with this index of a list.
    #[must_use]
    pub fn takes(self, index: usize) -> bool {
        index % usize::from(SHARDS) == usize::from(self.0)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Something slow, which one shard of eight runs.
#[derive(Debug, Clone, Copy)]
pub struct Slow {
    /// The item.
    pub what: What,
    /// The number of its shard.
    pub shard: u8,
    /// Its duration in seconds on two processors: beside three others for a test, alone for the rest.
    pub seconds: u16,
}

impl Slow {
    /// Returns whether this shard runs it.
    #[must_use]
    pub const fn is_in(&self, shard: Shard) -> bool {
        self.shard == shard.0
    }

    /// By how many seconds it lengthens a run: four tests run at a time.
    #[must_use]
    pub fn lengthens(&self) -> f32 {
        let seconds = f32::from(self.seconds);
        if matches!(self.what, What::Test(_)) {
            seconds / 4.0
        } else {
            seconds
        }
    }
}

/// Something slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A test of `tests/it`, by its name.
    Test(&'static str),
    /// A fact of the guest, by its module in `tests/guest` and its name.
    Fact(&'static str, &'static str),
    /// A test of `tests/it` that the guest runs too, by its name.
    Smoke(&'static str),
    /// A power cut of the guest and a restart of it, each followed by a boot.
    PowerCut,
    /// A boot of the guest with SELinux, and its facts.
    Selinux,
    /// The tests of one of [`ROOT_PARTS`], in a Debian of another suite.
    Root(Suite, RootPart),
    /// The documentation of all crates.
    Documentation,
    /// The construction of the program of another version, and the tests and the fact of the guest that need it.
    Version(OtherVersion),
}

/// A suite of Debian that is not the one of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    /// Debian 13: containerd 1.7, runc 1.1.15.
    Trixie,
    /// The development version: containerd 2.x and the current runc.
    Sid,
}

impl Suite {
    /// Its name, as the archive has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }
}

/// A part of the tests that other suites of Debian run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RootPart {
    /// The first.
    First,
    /// The second.
    Second,
}

impl RootPart {
    /// The modules of `tests/it` that it consists of.
    #[must_use]
    pub const fn modules(self) -> &'static [&'static str] {
        match self {
            Self::First => ROOT_PARTS[0],
            Self::Second => ROOT_PARTS[1],
        }
    }

    /// Returns whether a test of `tests/it` belongs to it.
    #[must_use]
    pub fn has(self, test: &str) -> bool {
        self.modules().iter().any(|module| is_in(module, test))
    }
}

/// Returns whether a test of `tests/it` is in this module, or in one below it.
fn is_in(module: &str, test: &str) -> bool {
    test.strip_prefix(module)
        .is_some_and(|rest| rest.starts_with("::"))
}

/// A test that fails in a suite of Debian that is not the one of the machine.
#[derive(Debug, Clone, Copy)]
pub struct KnownFailure {
    /// The suite.
    pub suite: Suite,
    /// The test.
    pub test: &'static str,
    /// Its output, and the cause.
    pub output: &'static str,
}

impl What {
    /// The source file that decides what this does, from the root of the repository; `None` if it is not one file.
    #[must_use]
    pub fn file(self) -> Option<String> {
        match self {
            Self::Test(name) | Self::Smoke(name) => Some(file_of_test(name)),
            Self::Fact(module, _) => Some(format!("tests/guest/{module}.rs")),
            Self::PowerCut => Some("tests/guest/after_boot.rs".to_owned()),
            Self::Selinux => Some("tests/guest/selinux.rs".to_owned()),
            Self::Root(..) | Self::Documentation | Self::Version(_) => None,
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Test(name) => f.write_str(name),
            Self::Fact(_, name) => write!(f, "guest: {name}"),
            Self::Smoke(name) => write!(f, "guest: {name}"),
            Self::PowerCut => f.write_str("guest: a power cut and a restart"),
            Self::Selinux => f.write_str("guest: a boot with SELinux"),
            Self::Root(suite, part) => write!(f, "{}: {}", suite.name(), part.modules().join(", ")),
            Self::Documentation => f.write_str("documentation"),
            Self::Version(version) => {
                write!(f, "the {} version: {}…", version.name(), version.tests())?;
                match version.fact() {
                    Some(fact) => write!(f, ", guest: {fact}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// The source file of a test of `tests/it`, from the root of the repository: its modules are the path.
#[must_use]
pub fn file_of_test(name: &str) -> String {
    let module = name.rsplit_once("::").map_or(name, |(module, _)| module);
    format!("tests/it/{}.rs", module.replace("::", "/"))
}

/// The points of lists that a run takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Points {
    /// All, without one.
    shard: Option<Shard>,
    /// The sources whose lists are taken whole.
    whole: BTreeSet<String>,
}

impl Points {
    /// Parses the two variables.
    ///
    /// # Panics
    /// If the shard is invalid.
    fn parse(shard: Option<&str>, whole: Option<&str>) -> Self {
        let shard = shard.map(|text| {
            text.parse().ok().and_then(Shard::new).unwrap_or_else(|| {
                panic!(
                    "{SHARD_VARIABLE} is {text:?}, which is no number from 0 to {}",
                    SHARDS - 1
                )
            })
        });
        let whole = whole
            .unwrap_or_default()
            .split(':')
            .filter(|file| !file.is_empty())
            .map(str::to_owned);
        Self {
            shard,
            whole: whole.collect(),
        }
    }

    fn of_this_run() -> &'static Self {
        static POINTS: OnceLock<Points> = OnceLock::new();
        POINTS.get_or_init(|| {
            let variable = |name| std::env::var(name).ok();
            Self::parse(
                variable(SHARD_VARIABLE).as_deref(),
                variable(WHOLE_VARIABLE).as_deref(),
            )
        })
    }

    fn take(&self, file: &str, index: usize) -> bool {
        self.shard.is_none_or(|shard| shard.takes(index)) || self.whole.contains(file)
    }
}

/// Those points of a list that this run takes: each eighth by index where [`SHARD_VARIABLE`] names a shard, else all. Each point
/// comes with the source file of the list that it is in, from the root of the repository.
///
/// # Panics
/// When [`SHARD_VARIABLE`] is set to what is no shard.
pub fn points_of_this_run<T>(points: impl IntoIterator<Item = (&'static str, T)>) -> Vec<T> {
    let wanted = Points::of_this_run();
    let indexed = points.into_iter().enumerate();
    indexed
        .filter(|(index, (file, _))| wanted.take(file, *index))
        .map(|(_, (_, point))| point)
        .collect()
}

/// Returns whether this run takes each point of each list.
///
/// # Panics
/// If [`SHARD_VARIABLE`] is set to an invalid shard.
#[must_use]
pub fn takes_all_points() -> bool {
    Points::of_this_run().shard.is_none()
}

/// Those of a list of kill points that this run takes, for a list in the source file of the caller. See [`points_of_this_run`].
///
/// # Panics
/// When [`SHARD_VARIABLE`] is set to what is no shard.
#[track_caller]
pub fn own_points_of_this_run<T>(points: impl IntoIterator<Item = T>) -> Vec<T> {
    let file = std::panic::Location::caller().file();
    points_of_this_run(points.into_iter().map(|point| (file, point)))
}
