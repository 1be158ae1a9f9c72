//! The section `log` of the configuration.

use serde::Deserialize;

/// Level and format of the log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// A level, or directives such as `info,switchyard_cri=debug`.
    pub level: String,
    /// The form of a line.
    pub format: LogFormat,
    /// Without effect: a key as a later version could have it.
    #[cfg(feature = "newer")]
    pub colour: bool,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    #[cfg_attr(feature = "newer", serde(alias = "plain"))]
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: "info".into(),
            format: LogFormat::Auto,
            #[cfg(feature = "newer")]
            colour: false,
        }
    }
}
