//! Log lines that are written once while a trouble lasts.

use std::collections::BTreeSet;

/// The texts that are logged already while a trouble lasts: each is logged once, however they take turns.
#[derive(Debug)]
pub struct LoggedTexts {
    texts: BTreeSet<String>,
    most: usize,
}

impl LoggedTexts {
    /// Without texts; at most as many are logged while the trouble lasts.
    #[must_use]
    pub const fn at_most(most: usize) -> Self {
        Self {
            texts: BTreeSet::new(),
            most,
        }
    }

    /// Returns whether a text is to be logged, and notes that it is.
    pub fn is_new(&mut self, text: &str) -> bool {
        if self.texts.contains(text) || self.is_full() {
            return false;
        }
        self.texts.insert(text.to_owned())
    }

    /// Forgets a text, whose trouble is over.
    pub fn forget(&mut self, text: &str) {
        self.texts.remove(text);
    }

    /// Forgets all texts: the trouble is over.
    pub fn clear(&mut self) {
        self.texts.clear();
    }

    /// Returns whether nothing is logged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Returns whether no further text is logged.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.texts.len() >= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_take_turns_are_logged_once_each_until_the_trouble_is_over() {
        let mut logged = LoggedTexts::at_most(3);
        let texts = ["late", "refused", "late", "refused", "a", "b", "c"];
        let new = texts.map(|text| logged.is_new(text));
        assert_eq!(new, [true, true, false, false, true, false, false]);
        assert!(logged.is_full());
        logged.forget("late");
        assert!(logged.is_new("late") && !logged.is_new("refused"));
        logged.clear();
        assert!(logged.is_empty() && logged.is_new("refused"));
    }
}
