//! Lists that clients send, in warnings. They can have any length, and so can each name: a warning shows the first few, cut.

use switchyard_linux::beginning;

/// Maximum number of names of a list that are shown.
const NAMES: usize = 3;

/// Maximum number of characters of each.
const NAME: usize = 80;

/// The first of these names, quoted, and how many more there are; empty if there are none.
#[must_use]
pub fn first_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let cut = |name: &str| format!("{:?}", beginning(name, NAME));
    let shown = names
        .by_ref()
        .take(NAMES)
        .map(cut)
        .collect::<Vec<_>>()
        .join(", ");
    match names.count() {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_names_are_shown_and_long_ones_cut() {
        assert_eq!(first_names([]), "");
        assert_eq!(first_names(["b", "a"]), "\"b\", \"a\"");
        let many: Vec<String> = (100..1100).map(|number| number.to_string()).collect();
        assert_eq!(
            first_names(many.iter().map(String::as_str)),
            "\"100\", \"101\", \"102\" and 997 more"
        );
        assert_eq!(first_names([&*"ä".repeat(1000)]).chars().count(), NAME + 2);
    }
}
