//! Each value is accepted exactly in its range, and is what was given.

use proptest::prelude::*;

use super::*;

/// The bounds of all ranges.
const BOUNDS: [i64; 11] = [
    -1000,
    -1,
    0,
    1,
    2,
    100,
    1_000,
    262_144,
    1_000_000,
    i64::MIN,
    i64::MAX,
];

/// Numbers at and around every bound, and any others.
fn number() -> impl Strategy<Value = i64> {
    let near = (prop::sample::select(&BOUNDS[..]), -1..=1_i64);
    prop_oneof![
        near.prop_map(|(bound, by)| bound.saturating_add(by)),
        any::<i64>()
    ]
}

proptest! {
    #[test]
    fn value_is_accepted_exactly_in_its_range(number in number()) {
        let accepted = |range: RangeInclusive<i64>| range.contains(&number).then_some(number);
        let period = CpuPeriod::new(number).ok().map(|period| i64::try_from(period.get()).unwrap());
        prop_assert_eq!(period, accepted(1_000..=1_000_000));
        let swappiness = Swappiness::new(number).ok().map(|percent| i64::try_from(percent.get()).unwrap());
        prop_assert_eq!(swappiness, accepted(0..=100));
        let score = OomScoreAdj::new(number).ok().map(|score| i64::from(score.get()));
        prop_assert_eq!(score, accepted(-1000..=1000));
    }

    #[test]
    fn limit_is_a_positive_amount_or_unlimited(number in number()) {
        let amount = u64::try_from(number).ok();
        let memory = MemoryLimit::new(number);
        prop_assert_eq!(memory.is_ok(), number == -1 || number > 0);
        if let Ok(memory) = memory {
            prop_assert_eq!((memory.signed(), memory.get()), (number, amount));
        }
        let pids = PidsLimit::new(number);
        prop_assert_eq!(pids.is_ok(), number == -1 || number > 0);
        if let Ok(pids) = pids {
            prop_assert_eq!((pids.signed(), pids.get()), (number, amount));
        }
        let quota = CpuQuota::new(number);
        prop_assert_eq!(quota.is_ok(), !(0..1_000).contains(&number));
        if let Ok(quota) = quota {
            prop_assert_eq!((quota.signed(), quota.get()), (number.max(-1), amount));
        }
    }

    #[test]
    fn adjusted_value_is_the_nearest_possible(number in number()) {
        prop_assert_eq!(CpuQuota::at_least(number).signed(), number.max(1_000));
        let shares = number.unsigned_abs();
        prop_assert_eq!(CpuShares::clamped(shares).get(), shares.clamp(2, 262_144));
    }

    #[test]
    fn unlimited_is_above_every_amount(one in 1..=i64::MAX, other in 1..=i64::MAX) {
        let limit = |bytes| MemoryLimit::new(bytes).unwrap();
        prop_assert!(limit(one) < MemoryLimit::UNLIMITED);
        prop_assert_eq!(limit(one).cmp(&limit(other)), one.cmp(&other));
        prop_assert_eq!(limit(one).check_includes(limit(other)).is_ok(), one >= other);
        prop_assert!(limit(one).check_includes(MemoryLimit::UNLIMITED).is_err());
        prop_assert!(MemoryLimit::UNLIMITED.check_includes(limit(one)).is_ok());
    }
}

#[test]
fn list_keeps_its_text_and_is_not_empty() {
    for text in ["0", "0-2,7", "3 , 5-5", " 1-2\n"] {
        let list = CpuList::new(text).unwrap();
        assert_eq!((list.as_str(), list.to_string().as_str()), (text, text));
        assert_eq!(list.set(), &text.parse().unwrap(), "{text:?}");
    }
    let wrong = [
        "",
        " ",
        ",",
        "one",
        "2-1",
        "-1",
        "+1",
        "0-",
        "0-1-2",
        "4294967296",
        "0\0",
        "0\n1",
    ];
    for text in wrong {
        let error = CpuList::new(text).unwrap_err().to_string();
        assert_eq!(error, format!("{text:?} is not a list such as \"0-3,8\""));
    }
}

#[test]
fn error_says_what_is_possible() {
    let check = |result: Result<(), InvalidLimit>, expected: &str| {
        assert_eq!(
            result.unwrap_err().in_field("limit").to_string(),
            format!("limit: {expected}")
        );
    };
    check(
        CpuPeriod::new(999).map(drop),
        "999 µs is not between 1000 and 1000000",
    );
    check(
        CpuPeriod::new(u64::MAX).map(drop),
        "18446744073709551615 µs is not between 1000 and 1000000",
    );
    check(
        CpuQuota::new(999).map(drop),
        "999 µs is below 1000, the least the kernel takes",
    );
    check(
        MemoryLimit::new(-2).map(drop),
        "-2 is negative; -1 is for no limit",
    );
    check(
        MemoryLimit::new(0).map(drop),
        "0 is not a limit; -1 is for no limit",
    );
    check(
        Swappiness::new(101).map(drop),
        "101 is not between 0 and 100",
    );
    check(
        PidsLimit::new(0).map(drop),
        "0 is neither a number of processes nor -1 for no limit",
    );
    check(
        OomScoreAdj::new(1001).map(drop),
        "1001 is not between -1000 and 1000",
    );
}
