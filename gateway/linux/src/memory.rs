//! The memory of a process, as the kernel adds it up.

use std::collections::BTreeMap;

/// The sums in the content of `/proc/<pid>/smaps_rollup` (proc(5)) in bytes, by the kernel's names, such as `Rss`.
#[must_use]
pub fn of_rollup(text: &str) -> BTreeMap<String, u64> {
    let sum = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let kilobytes = value.trim().strip_suffix(" kB")?;
        let bytes = kilobytes.trim().parse::<u64>().ok()?.checked_mul(1024)?;
        Some((name.to_owned(), bytes))
    };
    text.lines().filter_map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_as_the_kernel_writes_them() {
        let text = "55d0-7ffc ---p 00000000 00:00 0                          [rollup]\n\
                    Rss:               35840 kB\nPss_Dirty:             4 kB\nTHPeligible:           0\n";
        let sums: Vec<_> = of_rollup(text).into_iter().collect();
        let expected = [("Pss_Dirty", 4 << 10), ("Rss", 35_840 << 10)];
        assert_eq!(sums, expected.map(|(name, bytes)| (name.to_owned(), bytes)));
        let own = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        assert!(of_rollup(&own)["Rss"] > 0, "{own}");
    }
}
