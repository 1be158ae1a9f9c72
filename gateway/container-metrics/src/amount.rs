//! The value of a sample, in the unit in which it was read.

use std::fmt;

/// A measured value. It is kept as it was read, because CRI reports whole numbers and Prometheus decimals: a
/// floating-point number of seconds would lose nanoseconds after a hundred days of processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// A number of bytes, events or the like, or whole seconds.
    Count(u64),
    /// A time in nanoseconds, reported in seconds.
    Nanoseconds(u64),
    /// A time in microseconds, reported in seconds.
    Microseconds(u64),
}

impl Amount {
    /// The value as a whole number; of a time, the seconds that have passed completely.
    #[must_use]
    pub const fn whole(self) -> u64 {
        let (value, per_unit) = self.parts();
        value / per_unit
    }

    /// The value as read, and how many of it are one of the reported unit.
    const fn parts(self) -> (u64, u64) {
        match self {
            Self::Count(count) => (count, 1),
            Self::Nanoseconds(ns) => (ns, 1_000_000_000),
            Self::Microseconds(us) => (us, 1_000_000),
        }
    }
}

/// The exact value as a decimal number, of a time in seconds.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, per_unit) = self.parts();
        let whole = value / per_unit;
        let mut rest = value % per_unit;
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let mut digits = per_unit.ilog10() as usize;
        while rest.is_multiple_of(10) {
            rest /= 10;
            digits -= 1;
        }
        write!(f, "{whole}.{rest:0digits$}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_reported_in_seconds() {
        for (amount, whole, text) in [
            (Amount::Count(0), 0, "0"),
            (Amount::Count(u64::MAX), u64::MAX, "18446744073709551615"),
            (Amount::Nanoseconds(3_999_999_999), 3, "3.999999999"),
            (Amount::Nanoseconds(1_050_000_000), 1, "1.05"),
            (Amount::Nanoseconds(7_000_000_000), 7, "7"),
            (Amount::Nanoseconds(1), 0, "0.000000001"),
            (Amount::Microseconds(2_000_001), 2, "2.000001"),
            // Floating-point numbers would round it up to a whole second.
            (
                Amount::Nanoseconds(9_007_199_254_999_999_999),
                9_007_199_254,
                "9007199254.999999999",
            ),
        ] {
            assert_eq!((amount.whole(), amount.to_string().as_str()), (whole, text));
        }
    }

    proptest! {
        #[test]
        fn text_is_the_value_read(ns in any::<u64>()) {
            let text = Amount::Nanoseconds(ns).to_string();
            let (whole, rest) = text.split_once('.').unwrap_or((&text, "0"));
            let rest: u64 = format!("{rest:0<9}").parse().unwrap();
            prop_assert_eq!(u128::from(ns), whole.parse::<u128>().unwrap() * 1_000_000_000 + u128::from(rest));
        }
    }
}
