//! A place in the history, where a page begins.

use std::fmt;
use std::str::FromStr;

/// A place between two records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// The number of the segment.
    pub(super) segment: u64,
    /// The byte in it.
    pub(super) offset: u64,
}

/// The text is no place in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is no place in the history: give it as a former page had it")]
pub struct PlaceError;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.segment, self.offset)
    }
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let (segment, offset) = text.split_once('-').ok_or(PlaceError)?;
        Ok(Self {
            segment: segment.parse().map_err(|_| PlaceError)?,
            offset: offset.parse().map_err(|_| PlaceError)?,
        })
    }
}
