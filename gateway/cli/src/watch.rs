//! Lists of the daemon, shown once or, with `--watch`, repeatedly.
//!
//! On a terminal a list is drawn over the one before, elsewhere printed below it: as text after an empty line, as JSON on
//! a line of its own. A watch survives a restart of the daemon, and ends when its output is closed.

use std::io;
use std::time::Duration;

use clap::Args;
use http::StatusCode;
use serde::Serialize;
use switchyard_linux::report;

use super::daemon::{DaemonError, Target};
use crate::output::{
    Format, announce, announce_json, draw, has_screen, print, print_error, print_json,
};

/// The owners, as filters name them.
pub(super) const OWNERS: [&str; 4] = ["kubernetes", "nomad", "swarm", "host"];

/// The longest interval of a watch, in seconds.
const INTERVAL_MAX: f64 = 3600.0;

/// The shortest interval of a watch, in seconds.
const INTERVAL_MIN: f64 = 0.1;

/// The pause before a daemon is asked again that did not answer.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// The daemon, the output format, and whether its list is shown again and again.
#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub(super) target: Target,
    /// Show it again and again, every so many seconds, until interrupted.
    #[arg(
        long,
        short,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = interval
    )]
    watch: Option<Duration>,
}

/// A list, and whose objects are in it.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    pub(super) watch: WatchArgs,
    /// Only what belongs to one owner: kubernetes, nomad, swarm or host.
    #[arg(long, value_name = "OWNER", value_parser = OWNERS)]
    owner: Option<String>,
}

/// Reports, once for each outage, that a command waits for the daemon to answer again.
#[derive(Debug, Default)]
pub(super) struct Outage {
    is_reported: bool,
}

/// An interval in seconds.
fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (INTERVAL_MIN..=INTERVAL_MAX).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        Ok(_) | Err(_) => Err(format!(
            "it must be a number of seconds from {INTERVAL_MIN} to {INTERVAL_MAX}"
        )),
    }
}

// === impl ListArgs ===

impl ListArgs {
    /// The path of a page, for the objects that are asked for.
    pub(super) fn path(&self, page: &str) -> String {
        match &self.owner {
            Some(owner) => format!("{page}?owner={owner}"),
            None => page.to_owned(),
        }
    }
}

// === impl WatchArgs ===

impl WatchArgs {
    /// Returns whether it is shown repeatedly.
    pub(super) const fn is_watch(&self) -> bool {
        self.watch.is_some()
    }

    /// Shows what `ask` returns, as JSON or as the text that `text` makes of it.
    ///
    /// # Errors
    /// Those of `ask`, for a watch only at first, or if they do not pass; the output cannot be written.
    pub(super) async fn show<T: Serialize>(
        &self,
        ask: impl AsyncFn() -> Result<T, DaemonError>,
        text: impl Fn(&T) -> String,
    ) -> Result<(), DaemonError> {
        let Some(interval) = self.watch else {
            let found = ask().await?;
            match self.target.output {
                Format::Json => print_json(&found)?,
                Format::Text => print(text(&found))?,
            }
            return Ok(());
        };
        let mut outage = Outage::default();
        let mut is_first = true;
        loop {
            match ask().await {
                Ok(found) => {
                    outage = Outage::default();
                    let shown = match (self.target.output, has_screen()) {
                        (Format::Json, _) => announce_json(&found),
                        (Format::Text, true) => draw(&text(&found)),
                        (Format::Text, false) if is_first => announce(&text(&found)),
                        (Format::Text, false) => announce(&format!("\n{}", text(&found))),
                    };
                    match shown {
                        Ok(()) => {}
                        // As in `switchyard ps --watch | head -1`.
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                        Err(error) => return Err(error.into()),
                    }
                    is_first = false;
                    tokio::time::sleep(interval).await;
                }
                Err(error) if !is_first && passes(&error) => outage.wait(&error).await?,
                Err(error) => return Err(error),
            }
        }
    }
}

// === impl Outage ===

impl Outage {
    /// Reports that the daemon did not answer, unless that was reported, and pauses before the next request.
    ///
    /// # Errors
    /// Standard error cannot be written.
    pub(super) async fn wait(&mut self, error: &DaemonError) -> io::Result<()> {
        if !std::mem::replace(&mut self.is_reported, true) {
            let why = if let DaemonError::Ended { path, .. } = error {
                format!("the daemon ended before it had answered {path}")
            } else {
                report(error)
            };
            print_error(format!("switchyard: {why}; waiting for the daemon\n"))?;
        }
        tokio::time::sleep(AGAIN).await;
        Ok(())
    }
}

/// Returns whether the daemon may answer later, as after a restart.
pub(super) fn passes(error: &DaemonError) -> bool {
    matches!(
        error,
        DaemonError::Request(_)
            | DaemonError::Deadline(_)
            | DaemonError::Away(_)
            | DaemonError::Ended { .. }
            | DaemonError::Refused {
                status: StatusCode::SERVICE_UNAVAILABLE,
                ..
            }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_a_bounded_number_of_seconds() {
        assert_eq!(interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "3601", "NaN", "inf", "soon", ""] {
            assert!(interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_an_outage_passes() {
        let refused = |status| DaemonError::Refused {
            path: "/".into(),
            status,
            text: String::new(),
        };
        assert!(passes(&DaemonError::Deadline("/".into())));
        assert!(passes(&refused(StatusCode::SERVICE_UNAVAILABLE)));
        assert!(!passes(&refused(StatusCode::NOT_FOUND)));
        assert!(!passes(&DaemonError::Forbidden(String::new())));
    }
}
