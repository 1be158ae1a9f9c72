//! Durations of the wire.

use std::time::Duration;

use prost_types::Duration as WireDuration;
use switchyard_core::{Error, Result};

/// A duration, if there is one.
///
/// # Errors
/// `InvalidArgument`, naming the field, if it is negative or malformed.
pub(super) fn optional(field: &str, wire: Option<&WireDuration>) -> Result<Option<Duration>> {
    let Some(WireDuration { seconds, nanos }) = wire else {
        return Ok(None);
    };
    let wrong = || Error::invalid(field, format!("{seconds} s and {nanos} ns are no duration"));
    let seconds = u64::try_from(*seconds).map_err(|_| wrong())?;
    let nanos = u32::try_from(*nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000)
        .ok_or_else(wrong)?;
    Ok(Some(Duration::new(seconds, nanos)))
}

/// A duration; 0 is for none.
///
/// # Errors
/// Those of [`optional`].
pub(super) fn positive(field: &str, wire: Option<&WireDuration>) -> Result<Option<Duration>> {
    Ok(optional(field, wire)?.filter(|duration| !duration.is_zero()))
}
