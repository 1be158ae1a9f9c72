//! Suggests the known key that is most similar to a mistyped one.

/// The candidate most similar to `word`, if at most a third of its letters differ.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= word.len().max(candidate.len()).div_ceil(3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Counts the letters to insert, remove, replace or swap with their neighbour to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn typo_suggests_the_nearest_key() {
        let keys = ["snapshotter", "namespace", "binary", "mode"];
        assert_eq!(nearest("snapshoter", keys), Some("snapshotter"));
        assert_eq!(nearest("Namepsace", keys), Some("namespace"));
        assert_eq!(nearest("mdoe", keys), Some("mode"));
        assert_eq!(nearest("plugins", keys), None);
    }

    proptest! {
        #[test]
        fn edit_distance_is_symmetric_and_zero_only_for_equals(a in "[a-d]{0,6}", b in "[a-d]{0,6}") {
            prop_assert_eq!(distance(&a, &b), distance(&b, &a));
            prop_assert_eq!(distance(&a, &b) == 0, a == b);
        }
    }
}
