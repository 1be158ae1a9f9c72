//! Settings that a reload of the configuration replaces while the daemon runs.

use std::sync::Arc;

use parking_lot::RwLock;

/// A value that a reload of the configuration may replace at any time. Clones share the value.
///
/// Whoever needs a consistent view for the duration of an operation calls [`Reloadable::get`] once and keeps
/// the answer; whoever calls it twice may see two values.
#[derive(Debug, Default)]
pub struct Reloadable<T> {
    value: Arc<RwLock<Arc<T>>>,
}

impl<T> Clone for Reloadable<T> {
    fn clone(&self) -> Self {
        Self {
            value: Arc::clone(&self.value),
        }
    }
}

impl<T> From<T> for Reloadable<T> {
    fn from(value: T) -> Self {
        Self {
            value: Arc::new(RwLock::new(Arc::new(value))),
        }
    }
}

impl<T> Reloadable<T> {
    /// The value in force.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.value.read())
    }

    /// Replaces the value for all clones.
    pub fn set(&self, value: T) {
        let value = Arc::new(value);
        *self.value.write() = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_see_a_new_value_and_an_operation_keeps_the_one_it_began_with() {
        let settings = Reloadable::from(1);
        let clone = settings.clone();
        let begun_with = clone.get();
        settings.set(2);
        assert_eq!((*begun_with, *clone.get()), (1, 2));
    }
}
