//! Texts of the status page. What orchestrators, images and containers have written is shown on one line, bounded, and
//! without characters that are invisible or change the order of others; the templates escape it for HTML.

use std::time::Duration;

use switchyard_operator_api::text::is_invisible;

/// The longest name, in characters.
pub(super) const NAME_MAX: usize = 200;

/// The longest reason or other sentence, in characters.
pub(super) const SENTENCE_MAX: usize = 600;

/// Text on one line, of at most so many characters.
pub(super) fn shown(text: &str, max: usize) -> String {
    let mut line: String = text
        .chars()
        .take(max)
        .map(|c| if is_unfit(c) { '\u{fffd}' } else { c })
        .collect();
    if text.chars().nth(max).is_some() {
        line.push('…');
    }
    line
}

/// A name.
pub(super) fn name(text: &str) -> String {
    shown(text, NAME_MAX)
}

/// A reason, or another sentence.
pub(super) fn sentence(text: &str) -> String {
    shown(text, SENTENCE_MAX)
}

/// Returns whether a character is a control character, invisible, or changes the direction of text.
fn is_unfit(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// A state or the like, in words.
pub(super) fn words(word: &str) -> String {
    name(&word.replace('_', " "))
}

/// A part of one processor.
pub(super) fn share(nanoseconds: u64, over: Duration) -> String {
    let over = over.as_nanos();
    if over == 0 {
        return "—".to_owned();
    }
    let tenths = u128::from(nanoseconds).saturating_mul(1000) / over;
    match tenths {
        0 if nanoseconds > 0 => "<0.1 %".to_owned(),
        0..1000 => format!("{}.{} %", tenths / 10, tenths % 10),
        _ => format!("{} %", tenths / 10),
    }
}

/// A duration, of an operation or the like.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        ..10.0 => format!("{seconds:.1}s"),
        ..120.0 => format!("{seconds:.0}s"),
        ..7_200.0 => format!("{:.0}m", seconds / 60.0),
        _ => format!("{:.0}h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_text_stays_on_one_line_and_in_order() {
        assert_eq!(
            shown("a\u{202e}b\nc\u{200b}\u{1b}[31m", 20),
            "a\u{fffd}b\u{fffd}c\u{fffd}\u{fffd}[31m"
        );
        assert_eq!(shown("shop/web-ä 日本", 20), "shop/web-ä 日本");
        assert_eq!(shown("abcd", 3), "abc…");
        assert_eq!(shown("abc", 3), "abc");
    }

    proptest! {
        #[test]
        fn text_is_bounded_whatever_it_is(text in "\\PC*|.*", max in 0_usize..50) {
            let line = shown(&text, max);
            prop_assert!(line.chars().count() <= max + 1);
            prop_assert!(!line.chars().any(is_unfit));
        }
    }

    #[test]
    fn amounts_are_readable() {
        let second = Duration::from_secs(1);
        for (nanoseconds, expected) in [
            (0, "0.0 %"),
            (100, "<0.1 %"),
            (123_400_000, "12.3 %"),
            (2_500_000_000, "250 %"),
            (u64::MAX, "1844674407370 %"),
        ] {
            assert_eq!(share(nanoseconds, second), expected);
        }
        assert_eq!(share(1, Duration::ZERO), "—");
        for (time, expected) in [
            (0.04, "0.0s"),
            (9.4, "9.4s"),
            (61.0, "61s"),
            (180.0, "3m"),
            (9000.0, "2h"),
        ] {
            assert_eq!(seconds(time), expected);
        }
        assert_eq!(words("task_started"), "task started");
    }
}
