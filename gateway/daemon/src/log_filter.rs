//! What a level of the log means.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};

/// Why a level of the log is none.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// A word that is no level. A filter would take it for the name of a module, and leave everything else out.
    #[error("{0:?} is no level: error, warn, info, debug, trace, off, or filters by module as MODULE=LEVEL")]
    Word(String),
    /// A filter is malformed.
    #[error("{level:?} is neither a level nor filters by module")]
    Filter {
        /// All that was given.
        level: String,
        /// What is wrong with it.
        source: ParseError,
    },
}

/// The target of the lines of the audit log, and the filter that lets them pass.
const AUDIT: &str = "audit";
const AUDIT_LINES: &str = "audit=info";

/// The filter that a level means: a level, or filters by module. Lines of the audit log pass whatever it is, unless a
/// filter names their target: they are records of the node, and not reports on how the daemon is.
///
/// # Errors
/// [`LevelError`].
pub fn parse_level(level: &str) -> Result<EnvFilter, LevelError> {
    let filters = || level.split(',').map(str::trim).filter(|filter| !filter.is_empty());
    // What has a span or a field in it is for those who know filters.
    let is_wrong = |word: &&str| !word.contains(['=', '[']) && word.parse::<LevelFilter>().is_err();
    if let Some(word) = filters().find(is_wrong) {
        return Err(LevelError::Word(word.to_owned()));
    }
    let refused = |source| LevelError::Filter { level: level.to_owned(), source };
    let filter = EnvFilter::try_new(level).map_err(refused)?;
    if filters().any(|filter| filter.split(['=', '[']).next() == Some(AUDIT)) {
        return Ok(filter);
    }
    Ok(filter.add_directive(AUDIT_LINES.parse().map_err(refused)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_audit_log_pass_at_every_level_unless_a_filter_names_them() {
        let shown = |level: &str| parse_level(level).unwrap().to_string();
        assert_eq!(shown("off"), "audit=info,off");
        assert_eq!(shown("warn,audit=off"), "audit=off,warn");
        assert_eq!(shown("INFO,switchyard_cri=debug"), "switchyard_cri=debug,audit=info,info");
    }
}
