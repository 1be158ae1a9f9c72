//! The admin socket of a command that was given none.
//!
//! A daemon that a unit has started has written it down. So a command finds it although the configuration is invalid,
//! cannot be read by this user, or has got another `paths.run` since the daemon's start.

use std::path::PathBuf;

use switchyard_config as config;
use switchyard_config::{PathsConfig, Sources};
use switchyard_daemon::daemon_record::DaemonRecord;
use switchyard_daemon::service_manager;

/// The socket of the daemon of this node, or of the one that these sources configure if they name a file.
pub(super) fn find(sources: &Sources) -> PathBuf {
    let record = recorded();
    let is_running = record.as_ref().is_some_and(DaemonRecord::is_of_running);
    let configured = || {
        let loaded = config::load_for_start(sources).ok()?;
        Some(loaded.effective.config.paths.admin_socket())
    };
    choose(
        record.map(|record| record.admin_socket),
        is_running && sources.file.is_none(),
        configured,
    )
}

/// The record of the daemon of this unit, or of the unit of the package. One that cannot be read counts as none: the
/// configuration is asked instead.
pub(super) fn recorded() -> Option<DaemonRecord> {
    let dirs = [
        service_manager::runtime_dir(),
        Some(PathsConfig::default().run),
    ];
    dirs.into_iter()
        .flatten()
        .find_map(|dir| DaemonRecord::read(&dir).ok().flatten())
}

/// Chooses between the recorded socket, first or else last, the configured one and the default. Pure.
fn choose(
    recorded: Option<PathBuf>,
    is_recorded_first: bool,
    configured: impl FnOnce() -> Option<PathBuf>,
) -> PathBuf {
    match recorded {
        Some(recorded) if is_recorded_first => recorded,
        recorded => configured()
            .or(recorded)
            .unwrap_or_else(|| PathsConfig::default().admin_socket()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(recorded: Option<&str>, is_first: bool, configured: Option<&str>, expected: &str) {
        let chosen = choose(recorded.map(PathBuf::from), is_first, || {
            configured.map(PathBuf::from)
        });
        assert_eq!(chosen, PathBuf::from(expected));
    }

    #[test]
    fn socket_is_that_of_the_running_daemon_or_configured_or_that_of_the_last_daemon() {
        check(Some("/recorded"), true, Some("/configured"), "/recorded");
        check(Some("/recorded"), true, None, "/recorded");
        check(Some("/recorded"), false, Some("/configured"), "/configured");
        check(Some("/recorded"), false, None, "/recorded");
        check(None, false, Some("/configured"), "/configured");
        check(None, false, None, "/run/switchyard/admin.sock");
    }
}
