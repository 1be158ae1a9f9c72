//! Interpretation of a log level.

use tracing_subscriber::filter::{LevelFilter, Targets};

/// Reason why a text is no log level.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// A word that is no level. A filter would take it for the name of a module, and leave everything else out.
    #[error(
        "{0:?} is no level: error, warn, info, debug, trace, off, or filters by module as MODULE=LEVEL"
    )]
    Word(String),
    /// A filter whose module is no path, or whose level is none.
    #[error(
        "{filter:?} is no filter: write MODULE=LEVEL, with one of error, warn, info, debug, trace and off"
    )]
    Filter {
        /// The filter.
        filter: String,
    },
}

/// The target of the lines of the audit log.
const AUDIT: &str = "audit";

/// The filter that a level means: a level, or filters by module. Lines of the audit log pass whatever it is, unless a
/// filter names their target: they are records of the node, and not reports on how the daemon is.
///
/// # Errors
/// [`LevelError`].
pub fn parse_level(level: &str) -> Result<Targets, LevelError> {
    let mut targets = Targets::new().with_target(AUDIT, LevelFilter::INFO);
    let mut filters = level
        .split(',')
        .map(str::trim)
        .filter(|filter| !filter.is_empty())
        .peekable();
    if filters.peek().is_none() {
        targets = targets.with_default(LevelFilter::ERROR);
    }
    for filter in filters {
        targets = match filter.split_once('=') {
            Some((module, level)) => {
                let refused = || LevelError::Filter {
                    filter: filter.to_owned(),
                };
                let level: LevelFilter = level.trim().parse().map_err(|_| refused())?;
                targets.with_target(module_path(module.trim()).ok_or_else(refused)?, level)
            }
            None => targets.with_default(
                filter
                    .parse::<LevelFilter>()
                    .map_err(|_| LevelError::Word(filter.to_owned()))?,
            ),
        };
    }
    Ok(targets)
}

/// The text, if it can be the path of a module or another target of log lines.
fn module_path(text: &str) -> Option<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':' | '.');
    (!text.is_empty() && text.chars().all(is_part)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_audit_log_pass_at_every_level_unless_a_filter_names_them() {
        let shown = |level: &str| parse_level(level).unwrap().to_string();
        assert_eq!(shown("off"), "audit=info,off");
        assert_eq!(shown("warn,audit=off"), "audit=off,warn");
        assert_eq!(
            shown("INFO,switchyard_cri=debug"),
            "switchyard_cri=debug,audit=info,info"
        );
    }

    #[test]
    fn filters_may_have_blanks_and_empty_parts_between_them() {
        let shown = |level: &str| parse_level(level).unwrap().to_string();
        assert_eq!(
            shown(" warn , switchyard_cri = trace ,"),
            "switchyard_cri=trace,audit=info,warn"
        );
        assert_eq!(shown(""), "audit=info,error");
        assert_eq!(
            shown("switchyard_cri::pod=debug"),
            "switchyard_cri::pod=debug,audit=info"
        );
    }

    #[test]
    fn what_is_neither_a_level_nor_a_filter_is_refused_with_its_text() {
        for (level, refused) in [
            ("loud", r#""loud" is no level: error"#),
            (
                "info,switchyard_cri",
                r#""switchyard_cri" is no level: error"#,
            ),
            (
                "switchyard_cri=loud",
                r#""switchyard_cri=loud" is no filter"#,
            ),
            (
                "info,[span{a=b}]=debug",
                r#""[span{a=b}]=debug" is no filter"#,
            ),
            ("=debug", r#""=debug" is no filter"#),
            ("a=b=debug", r#""a=b=debug" is no filter"#),
        ] {
            let error = parse_level(level).unwrap_err().to_string();
            assert!(error.starts_with(refused), "{level}: {error}");
        }
    }
}
