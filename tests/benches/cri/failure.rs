//! Why a measurement failed.

/// Why a measurement was given up.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
