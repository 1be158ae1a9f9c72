//! Texts of strangers, as they are repeated in errors and logs.

/// The beginning of a text: at most so many characters.
///
/// A limit in bytes is [`str::floor_char_boundary`]'s.
#[must_use]
pub fn beginning(text: &str, max_chars: usize) -> &str {
    text.char_indices()
        .nth(max_chars)
        .map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_characters_are_kept() {
        for (text, max, expected) in [
            ("", 3, ""),
            ("äöü", 3, "äöü"),
            ("äöü", 2, "äö"),
            ("abc", 0, ""),
        ] {
            assert_eq!(beginning(text, max), expected);
        }
    }
}
