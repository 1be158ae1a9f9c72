//! The values of limits, checked where they come in: a value of one of these types is one that the kernel
//! accepts, so that nobody has to check it again.
//!
//! A value says nothing about another one. [`Resources::check_memory`](super::Resources::check_memory) finds
//! limits that contradict each other.

use std::fmt;
use std::ops::RangeInclusive;

use super::CpuSet;
use crate::error::Error;

/// The weight of a task's processors relative to that of other tasks on the same node: 2 to 262144, in the
/// numbers of cgroup v1, where 1024 is the default.
///
/// Runtimes convert it to `cpu.weight` on cgroup v2. It takes effect only while processors are scarce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuShares(u64);

/// The processor time of a task in each [`CpuPeriod`]: at least 1000 µs, or unlimited. It may be longer than
/// the period on a node with several processors.
///
/// The kernel stops all threads of a task that has used up its quota until the period ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuQuota(Ceiling);

/// The period after which a [`CpuQuota`] is available again: 1000 to 1000000 µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuPeriod(u64);

/// The processors or the NUMA nodes that a task may use, in the kernel's list format: `0-2,7`; at least one.
///
/// The text is passed on as it was given. Whether the node has these processors is checked by the kernel when
/// the task is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList {
    text: String,
    set: CpuSet,
}

/// A limit of memory, or of the sum of memory and swap: at least one byte, or unlimited.
///
/// Where a hard limit is reached, the kernel first reclaims memory of the task and then kills a process of
/// it. A reservation is the amount above which it reclaims first when the node runs out of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryLimit(Ceiling);

/// Readiness of the kernel to move memory of a task to swap instead of dropping cached files: 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Swappiness(u64);

/// The number of processes and threads that a task may have: at least 1, or unlimited. Beyond it, `fork` and
/// `clone` fail with `EAGAIN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PidsLimit(Ceiling);

/// Adjustment of the score by which the kernel selects a process to kill when memory runs out: -1000, never
/// this one, to 1000, this one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct OomScoreAdj(i32);

/// The reason why the kernel would not accept a value. The caller adds the name of the field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidLimit(String);

impl InvalidLimit {
    /// With this reason.
    pub(super) const fn new(why: String) -> Self {
        Self(why)
    }
}

/// A positive amount, or none. Unlimited is above every amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ceiling {
    At(i64),
    Unlimited,
}

/// `value`, if it is in `range`.
fn within<T>(value: i128, unit: &str, range: &RangeInclusive<T>) -> Result<T, InvalidLimit>
where
    T: TryFrom<i128> + PartialOrd + fmt::Display,
{
    T::try_from(value)
        .ok()
        .filter(|value| range.contains(value))
        .ok_or_else(|| {
            InvalidLimit(format!(
                "{value}{unit} is not between {} and {}",
                range.start(),
                range.end()
            ))
        })
}

// === impl CpuShares ===

impl CpuShares {
    /// The lowest weight.
    pub const LEAST: Self = Self(2);
    /// The highest weight.
    pub const MOST: Self = Self(262_144);

    /// These shares, or the nearest that are possible: the kernel too accepts any number and adjusts it.
    #[must_use]
    pub const fn clamped(shares: u64) -> Self {
        if shares < Self::LEAST.0 {
            Self::LEAST
        } else if shares > Self::MOST.0 {
            Self::MOST
        } else {
            Self(shares)
        }
    }

    /// The number of shares.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for CpuShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl CpuQuota ===

impl CpuQuota {
    /// No limit.
    pub const UNLIMITED: Self = Self(Ceiling::Unlimited);

    /// The shortest quota that the kernel accepts, in µs.
    const SHORTEST_US: i64 = 1_000;

    /// A quota in µs; every negative number is for no limit.
    ///
    /// # Errors
    /// If it is shorter than 1000 µs.
    pub fn new(us: i64) -> Result<Self, InvalidLimit> {
        match us {
            ..0 => Ok(Self::UNLIMITED),
            Self::SHORTEST_US.. => Ok(Self(Ceiling::At(us))),
            _ => Err(InvalidLimit(format!(
                "{us} µs is below {}, the least the kernel takes",
                Self::SHORTEST_US
            ))),
        }
    }

    /// A quota in µs; the shortest possible one if this is shorter.
    #[must_use]
    pub fn at_least(us: i64) -> Self {
        Self(Ceiling::At(us.max(Self::SHORTEST_US)))
    }

    /// The quota in µs; `None` is unlimited.
    #[must_use]
    pub const fn get(self) -> Option<u64> {
        self.0.get()
    }

    /// The quota in µs; -1 is unlimited.
    #[must_use]
    pub const fn signed(self) -> i64 {
        self.0.signed()
    }
}

impl fmt::Display for CpuQuota {
    /// -1 is unlimited.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.signed().fmt(f)
    }
}

// === impl CpuPeriod ===

impl CpuPeriod {
    /// The kernel's default: 100 ms.
    pub const DEFAULT: Self = Self(100_000);

    /// A period in µs.
    ///
    /// # Errors
    /// If it is not between 1000 and 1000000.
    pub fn new(us: impl Into<i128>) -> Result<Self, InvalidLimit> {
        within(us.into(), " µs", &(1_000..=1_000_000)).map(Self)
    }

    /// The period in µs.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for CpuPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl CpuList ===

impl CpuList {
    /// A list such as `0-2,7`.
    ///
    /// # Errors
    /// If it is empty, or not a list of numbers and ranges.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidLimit> {
        let text = text.into();
        match text.parse::<CpuSet>() {
            Ok(set) if !set.is_empty() => Ok(Self { text, set }),
            Ok(_) | Err(_) => Err(InvalidLimit(format!(
                "{text:?} is not a list such as \"0-3,8\""
            ))),
        }
    }

    /// The list as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The processors in it; never empty.
    #[must_use]
    pub const fn set(&self) -> &CpuSet {
        &self.set
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// === impl MemoryLimit ===

impl MemoryLimit {
    /// No limit.
    pub const UNLIMITED: Self = Self(Ceiling::Unlimited);

    /// A limit in bytes; -1 is for no limit.
    ///
    /// # Errors
    /// If it is 0, or another negative number.
    pub fn new(bytes: i64) -> Result<Self, InvalidLimit> {
        match bytes {
            1.. => Ok(Self(Ceiling::At(bytes))),
            -1 => Ok(Self::UNLIMITED),
            0 => Err(InvalidLimit(
                "0 is not a limit; -1 is for no limit".to_owned(),
            )),
            ..-1 => Err(InvalidLimit(format!(
                "{bytes} is negative; -1 is for no limit"
            ))),
        }
    }

    /// Checks that this limit of the sum of memory and swap is possible beside that of memory alone, which it
    /// includes.
    ///
    /// # Errors
    /// If it is below that of memory.
    pub fn check_includes(self, memory: Self) -> Result<(), InvalidLimit> {
        if self < memory {
            let why = "it is the sum of memory and swap";
            return Err(InvalidLimit(format!(
                "{self} is less than the memory limit of {memory}: {why}"
            )));
        }
        Ok(())
    }

    /// The limit in bytes; `None` is unlimited.
    #[must_use]
    pub const fn get(self) -> Option<u64> {
        self.0.get()
    }

    /// The limit in bytes; -1 is unlimited.
    #[must_use]
    pub const fn signed(self) -> i64 {
        self.0.signed()
    }
}

impl fmt::Display for MemoryLimit {
    /// -1 is unlimited.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.signed().fmt(f)
    }
}

// === impl Swappiness ===

impl Swappiness {
    /// A swappiness in percent.
    ///
    /// # Errors
    /// If it is not between 0 and 100.
    pub fn new(percent: impl Into<i128>) -> Result<Self, InvalidLimit> {
        within(percent.into(), "", &(0..=100)).map(Self)
    }

    /// The swappiness in percent.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Swappiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl PidsLimit ===

impl PidsLimit {
    /// No limit.
    pub const UNLIMITED: Self = Self(Ceiling::Unlimited);

    /// A number of processes and threads; -1 is for no limit.
    ///
    /// # Errors
    /// If it is 0, or another negative number.
    pub fn new(processes: i64) -> Result<Self, InvalidLimit> {
        match processes {
            1.. => Ok(Self(Ceiling::At(processes))),
            -1 => Ok(Self::UNLIMITED),
            ..-1 | 0 => {
                let why = "is neither a number of processes nor -1 for no limit";
                Err(InvalidLimit(format!("{processes} {why}")))
            }
        }
    }

    /// The number of processes and threads; `None` is unlimited.
    #[must_use]
    pub const fn get(self) -> Option<u64> {
        self.0.get()
    }

    /// The number of processes and threads; -1 is unlimited.
    #[must_use]
    pub const fn signed(self) -> i64 {
        self.0.signed()
    }
}

impl fmt::Display for PidsLimit {
    /// -1 is unlimited.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.signed().fmt(f)
    }
}

// === impl OomScoreAdj ===

impl OomScoreAdj {
    /// An adjustment of the score.
    ///
    /// # Errors
    /// If it is not between -1000 and 1000.
    pub fn new(score: impl Into<i128>) -> Result<Self, InvalidLimit> {
        within(score.into(), "", &(-1000..=1000)).map(Self)
    }

    /// The adjustment.
    #[must_use]
    pub const fn get(self) -> i32 {
        self.0
    }
}

impl fmt::Display for OomScoreAdj {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl InvalidLimit ===

impl InvalidLimit {
    /// The `InvalidArgument` error for this field, as the caller spells it.
    #[must_use]
    pub fn in_field(self, field: impl fmt::Display) -> Error {
        Error::invalid(field, self)
    }
}

impl fmt::Display for InvalidLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidLimit {}

// === impl Ceiling ===

impl Ceiling {
    const fn get(self) -> Option<u64> {
        match self {
            Self::At(amount) => Some(amount.unsigned_abs()),
            Self::Unlimited => None,
        }
    }

    /// As cgroup v1, the OCI runtime spec and CRI write it: -1 is unlimited.
    const fn signed(self) -> i64 {
        match self {
            Self::At(amount) => amount,
            Self::Unlimited => -1,
        }
    }
}

#[cfg(test)]
mod tests;
