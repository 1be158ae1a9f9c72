//! Sets of processors in the kernel's list format.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The maximum number of ranges of a set: every other processor of the largest supported kernel needs fewer.
const RANGES_MAX: usize = 4096;

/// A set of processor numbers, for example `0-3,8`. Its memory is proportional to its text, not to the number
/// of processors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuSet {
    /// First and last of each range, in ascending order; ranges neither overlap nor touch.
    ranges: Vec<(u32, u32)>,
}

// === impl CpuSet ===

impl CpuSet {
    /// The number of processors.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ranges
            .iter()
            .map(|(first, last)| u64::from(last - first) + 1)
            .sum()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The processors that are in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.ranges.iter().chain(&other.ranges).copied().collect()
    }

    /// The processors that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut mine = self.ranges.iter().peekable();
        let mut theirs = other.ranges.iter().peekable();
        let mut ranges = Vec::new();
        while let (Some((first, last)), Some((from, to))) = (mine.peek(), theirs.peek()) {
            if first.max(from) <= last.min(to) {
                ranges.push((*first.max(from), *last.min(to)));
            }
            if last <= to {
                mine.next();
            } else {
                theirs.next();
            }
        }
        Self { ranges }
    }

    /// Returns whether all its processors are in `other`.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.intersection(other) == *self
    }
}

impl FromIterator<(u32, u32)> for CpuSet {
    /// The processors of these inclusive ranges, in any order.
    fn from_iter<I: IntoIterator<Item = (u32, u32)>>(ranges: I) -> Self {
        let mut sorted: Vec<(u32, u32)> = ranges
            .into_iter()
            .filter(|(first, last)| first <= last)
            .collect();
        sorted.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match joined.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                Some(_) | None => joined.push((first, last)),
            }
        }
        Self { ranges: joined }
    }
}

impl FromStr for CpuSet {
    type Err = Error;

    /// Parses the kernel's list format: numbers and ranges separated by commas. A blank text is the empty
    /// set.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid("processors", format!("{text:?} {why}"));
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let number = |part: &str| {
            let digits = part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse::<u32>().ok().filter(|_| digits)
        };
        let mut ranges = Vec::new();
        for part in text.split(',') {
            if ranges.len() == RANGES_MAX {
                return Err(wrong("has too many parts"));
            }
            let (first, last) = part
                .trim()
                .split_once('-')
                .unwrap_or((part.trim(), part.trim()));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => ranges.push((first, last)),
                _ => return Err(wrong("is not a list such as \"0-3,8\"")),
            }
        }
        Ok(ranges.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn cpu_list_is_formatted_with_ranges() {
        let check = |text: &str, expected: &str, count: u64| {
            assert_eq!(
                (set(text).to_string().as_str(), set(text).count()),
                (expected, count),
                "{text:?}"
            );
        };
        check("", "", 0);
        check(" \n", "", 0);
        check("0-3,8\n", "0-3,8", 5);
        check("3,2,1", "1-3", 3);
        check("0-4294967295", "0-4294967295", 1 << 32);
        check("4294967295,0-4294967294", "0-4294967295", 1 << 32);
    }

    #[test]
    fn malformed_cpu_list_is_rejected() {
        let many = vec!["1"; RANGES_MAX + 1].join(",");
        for text in [
            "a",
            "1,",
            "3-1",
            "-1",
            "+1",
            "1-",
            "4294967296",
            "1--2",
            "0x1",
            many.as_str(),
        ] {
            text.parse::<CpuSet>().unwrap_err();
        }
    }

    fn numbers() -> impl Strategy<Value = BTreeSet<u32>> {
        proptest::collection::btree_set(0..40_u32, 0..20)
    }

    proptest! {
            #[test]
            fn cpu_set_operations_match_number_sets(one in numbers(), other in numbers()) {
                let of = |numbers: &BTreeSet<u32>| numbers.iter().map(|number| (*number, *number)).collect::<CpuSet>();
                let mine = of(&one);
    let theirs = of(&other);
                prop_assert_eq!(mine.union(&theirs), of(&(&one | &other)));
                prop_assert_eq!(mine.intersection(&theirs), of(&(&one & &other)));
                prop_assert_eq!(mine.is_subset(&theirs), one.is_subset(&other));
                prop_assert_eq!(mine.is_empty(), one.is_empty());
                prop_assert_eq!(mine.count(), one.len() as u64);
                prop_assert_eq!(set(&mine.to_string()), mine);
            }
        }
}
