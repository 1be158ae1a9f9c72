//! Checks of a container's log: numbered lines, none missing, doubled or torn.

use crate::node::log_content;

/// Progress of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogProgress {
    /// The number of the last line.
    pub(super) last: u64,
    /// The number that the container's final line names, if the container wrote one.
    pub(super) end: Option<u64>,
}

/// Parses a log. An unfinished line at its end is ignored.
///
/// # Errors
/// The first line that is missing, doubled or torn.
pub(super) fn read(text: &str) -> Result<LogProgress, String> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut read = LogProgress { last: 0, end: None };
    for line in whole.lines() {
        let fault = || format!("after line {} comes {line:?}", read.last);
        let mut words = line.split(' ');
        let stamp = words.next();
        let stream = words.next();
        let tag = words.next();
        let formed = stamp.is_some_and(|stamp| stamp.len() > 20 && stamp.starts_with("20"))
            && stream == Some("stdout")
            && tag == Some("F");
        if !formed || read.end.is_some() {
            return Err(fault());
        }
        let content = log_content(line);
        if let Some(number) = content.strip_prefix("end ") {
            read.end = Some(number.parse().map_err(|_| fault())?);
        } else if content.parse() == Ok(read.last + 1) {
            read.last += 1;
        } else {
            return Err(fault());
        }
    }
    Ok(read)
}
