//! The error of a measurement.

/// The reason why a measurement was given up.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
