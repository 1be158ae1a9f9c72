//! The parts of the daemon with their conditions.

/// A part of the daemon, or a process it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its name, one word.
    pub name: &'static str,
    /// True if the node is not ready without it.
    pub needed: bool,
    /// Its condition.
    pub condition: Condition,
}

/// The condition of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It works; with a description.
    Up(String),
    /// It does not work; with the reason.
    Down(String),
}

impl Part {
    /// A part without which the node is not ready.
    #[must_use]
    pub const fn needed(name: &'static str, condition: Condition) -> Self {
        Self {
            name,
            needed: true,
            condition,
        }
    }

    /// A part that the node can be ready without.
    #[must_use]
    pub const fn optional(name: &'static str, condition: Condition) -> Self {
        Self {
            name,
            needed: false,
            condition,
        }
    }

    /// Returns whether it works.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self.condition, Condition::Up(_))
    }

    /// Returns whether the node is not ready because of it.
    #[must_use]
    pub const fn blocks_readiness(&self) -> bool {
        self.needed && !self.is_up()
    }

    /// The description, or the reason why it does not work.
    #[must_use]
    pub fn detail(&self) -> &str {
        match &self.condition {
            Condition::Up(detail) | Condition::Down(detail) => detail,
        }
    }
}
