//! The text of an error with its causes.

use std::error::Error;

/// The message of an error and those of all its causes, joined by `: `, for a log line or an answer.
///
/// Some libraries repeat a cause at the end of their own message; such a cause is not repeated.
#[must_use]
pub fn report(error: &(dyn Error + '_)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    /// An error with this message and this cause.
    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Self>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn causes_follow_each_other_and_are_not_repeated() {
        let layers = |texts: &[&'static str]| {
            let mut error = None;
            for text in texts.iter().rev() {
                error = Some(Box::new(Layer(text, error)));
            }
            report(&*error.expect("there is one"))
        };
        assert_eq!(layers(&["read a"]), "read a");
        assert_eq!(
            layers(&["read a", "open", "no such file"]),
            "read a: open: no such file"
        );
        assert_eq!(
            layers(&["read a: no such file", "no such file"]),
            "read a: no such file"
        );
    }
}
