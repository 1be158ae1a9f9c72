//! `switchyard logkeeper`: keeps the logs of containers, also while the configuration is invalid, since containers
//! wait for it.

use std::io;
use std::path::{Path, PathBuf};

use switchyard_config as config;
use switchyard_config::{Config, ConfigError, LogConfig};
use switchyard_daemon::daemon_record::{DaemonRecord, RecordedLogkeeper};
use switchyard_daemon::service_manager;
use switchyard_linux::report;
use switchyard_operator_api::VERSION;
use switchyard_telemetry as telemetry;
use switchyard_telemetry::LogWriting;

use super::error::CliError;
use super::memory;
use super::sources::SourceArgs;

/// Settings of the process.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    socket: PathBuf,
    state_dir: PathBuf,
    sandbox: bool,
    log: LogConfig,
}

/// The origin of its paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathOrigin {
    /// The arguments.
    Given,
    /// The configuration.
    Configuration,
    /// The record of the daemon that runs.
    RunningDaemon,
    /// The record of a daemon that has ended.
    LastDaemon,
    /// The defaults below the runtime directory of the unit.
    Defaults,
}

/// The settings of a logkeeper, and how they were chosen.
#[derive(Debug)]
struct Choice {
    settings: Settings,
    origin: PathOrigin,
    /// Reason why the configuration is not used, if that is invalid.
    refused: Option<ConfigError>,
}

/// Facts at the start of a logkeeper that was given no paths.
struct Known {
    config: Result<Config, ConfigError>,
    record: Option<DaemonRecord>,
    /// True if the daemon that wrote the record runs.
    is_daemon_running: bool,
    /// The runtime directory, if a logkeeper has served at its default place there since the boot.
    used_run: Option<PathBuf>,
}

/// Runs the logkeeper. With both paths given, it reads neither the configuration nor the record of the daemon.
pub(super) fn logkeeper(
    args: &SourceArgs,
    places: Option<(PathBuf, PathBuf)>,
    no_sandbox: bool,
) -> Result<(), CliError> {
    let run = service_manager::runtime_dir();
    let record = match (&places, &run) {
        (None, Some(run)) => DaemonRecord::read(run),
        (Some(_), _) | (None, None) => Ok(None),
    };
    let Choice {
        settings,
        origin,
        refused,
    } = match places {
        Some((socket, state_dir)) => Choice::given(socket, state_dir),
        None => {
            let config =
                config::load_for_start(&args.sources()?).map(|loaded| loaded.effective.config);
            let record = record.as_ref().ok().cloned().flatten();
            choose(Known::of(config, record, run))?
        }
    };
    // Its level stays: it has no configuration to reload. It confines itself afterwards.
    let _ = telemetry::init(&settings.log, LogWriting::AtOnce)?;
    warn(&settings, origin, refused.as_ref(), record.as_ref().err());
    memory::hide();
    let mut config = switchyard_logkeeper::Config::new(settings.socket, settings.state_dir);
    config.sandbox = settings.sandbox && !no_sandbox;
    config.build = VERSION.to_owned();
    Ok(switchyard_logkeeper::run(config, || {
        service_manager::ready_of_single_thread("Keeping logs");
        // Its thread begins with the rights that the process has kept.
        memory::give_back();
    })?)
}

/// Logs the sources that were not used.
fn warn(
    settings: &Settings,
    origin: PathOrigin,
    refused: Option<&ConfigError>,
    unreadable: Option<&io::Error>,
) {
    if let Some(error) = unreadable {
        tracing::warn!(%error, "what the daemon has written down about itself cannot be read");
    }
    if let Some(error) = refused {
        tracing::error!(
            error = report(error),
            socket = %settings.socket.display(),
            paths_of = origin.as_str(),
            "the configuration is invalid: the logkeeper serves with other settings, so that containers go on; correct the configuration"
        );
    }
}

/// Chooses the settings. The paths must be those of the daemon that runs, even if the configuration has been
/// changed since its start. Without it they are those of the configuration, with which the next daemon starts, and
/// if that is invalid, those at which containers write. Pure.
///
/// # Errors
/// The configuration is invalid, and no daemon has run since the boot, so that no container waits.
fn choose(known: Known) -> Result<Choice, ConfigError> {
    let Known {
        config,
        record,
        is_daemon_running,
        used_run,
    } = known;
    let origin = if is_daemon_running {
        PathOrigin::RunningDaemon
    } else {
        PathOrigin::LastDaemon
    };
    match (config, record) {
        (Ok(config), Some(record)) if is_daemon_running => Ok(Choice {
            settings: Settings {
                sandbox: config.logkeeper.sandbox,
                log: config.log,
                ..Settings::recorded(record.logkeeper)
            },
            origin,
            refused: None,
        }),
        (Ok(config), _) => Ok(Choice {
            settings: Settings::configured(config),
            origin: PathOrigin::Configuration,
            refused: None,
        }),
        (Err(error), Some(record)) => Ok(Choice {
            settings: Settings::recorded(record.logkeeper),
            origin,
            refused: Some(error),
        }),
        (Err(error), None) => match used_run {
            Some(run) => Ok(Choice {
                settings: Settings::configured(default_below(run)),
                origin: PathOrigin::Defaults,
                refused: Some(error),
            }),
            None => Err(error),
        },
    }
}

/// The default configuration with this run directory.
fn default_below(run: PathBuf) -> Config {
    let mut config = Config::default();
    config.paths.run = run;
    config
}

// === impl Settings ===

impl Settings {
    fn configured(config: Config) -> Self {
        Self {
            socket: config.logkeeper_socket(),
            state_dir: config.logkeeper_state(),
            sandbox: config.logkeeper.sandbox,
            log: config.log,
        }
    }

    fn recorded(record: RecordedLogkeeper) -> Self {
        let RecordedLogkeeper {
            socket,
            state_dir,
            sandbox,
        } = record;
        Self {
            socket,
            state_dir,
            sandbox,
            log: LogConfig::default(),
        }
    }
}

// === impl PathOrigin ===

impl PathOrigin {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Given => "the command line",
            Self::Configuration => "the configuration",
            Self::RunningDaemon => "the daemon that runs",
            Self::LastDaemon => "the last daemon",
            Self::Defaults => "the defaults",
        }
    }
}

// === impl Choice ===

impl Choice {
    fn given(socket: PathBuf, state_dir: PathBuf) -> Self {
        Self {
            settings: Settings {
                socket,
                state_dir,
                sandbox: true,
                log: LogConfig::default(),
            },
            origin: PathOrigin::Given,
            refused: None,
        }
    }
}

// === impl Known ===

impl Known {
    /// Adds facts about the record of the daemon and the runtime directory of the unit.
    fn of(
        config: Result<Config, ConfigError>,
        record: Option<DaemonRecord>,
        run: Option<PathBuf>,
    ) -> Self {
        // The directory is on a tmpfs.
        let is_used = |run: &Path| default_below(run.to_owned()).logkeeper_state().is_dir();
        Self {
            config,
            is_daemon_running: record.as_ref().is_some_and(DaemonRecord::is_of_running),
            record,
            used_run: run.filter(|run| is_used(run)),
        }
    }
}

#[cfg(test)]
mod tests {
    use switchyard_config::Sources;

    use super::*;

    /// The error of a configuration.
    fn invalid() -> ConfigError {
        config::load(&Sources {
            file: Some("/none/config.toml".into()),
            ..Sources::default()
        })
        .unwrap_err()
    }

    fn with_run(run: &str) -> Config {
        let mut config = default_below(run.into());
        config.log.level = "debug".into();
        config
    }

    /// The record of a daemon whose logkeeper does not confine itself.
    fn record(run: &str) -> Option<DaemonRecord> {
        let mut config = with_run(run);
        config.logkeeper.sandbox = false;
        Some(DaemonRecord::of(&config))
    }

    #[track_caller]
    fn check(known: Known, expected: Option<(&str, PathOrigin, bool, &str)>) {
        let is_valid = known.config.is_ok();
        let chosen = choose(known)
            .ok()
            .inspect(|choice| assert_eq!(choice.refused.is_none(), is_valid));
        let expected = expected.map(|(run, origin, sandbox, level)| {
            let mut config = default_below(run.into());
            config.logkeeper.sandbox = sandbox;
            config.log.level = level.into();
            (Settings::configured(config), origin)
        });
        assert_eq!(
            chosen.map(|choice| (choice.settings, choice.origin)),
            expected
        );
    }

    #[test]
    fn paths_are_those_of_the_daemon_that_runs_and_the_rest_is_configured() {
        for (config, sandbox, level) in [
            (Ok(with_run("/run/new")), true, "debug"),
            (Err(invalid()), false, "info"),
        ] {
            let known = Known {
                config,
                record: record("/run/daemon"),
                is_daemon_running: true,
                used_run: Some("/run/used".into()),
            };
            let origin = PathOrigin::RunningDaemon;
            check(known, Some(("/run/daemon", origin, sandbox, level)));
        }
    }

    #[test]
    fn without_a_daemon_the_configuration_counts_and_else_what_the_last_one_wrote_down() {
        for (record, used_run) in [
            (record("/run/last"), Some("/run/used".into())),
            (None, Some("/run/used".into())),
            (None, None),
        ] {
            let known = Known {
                config: Ok(with_run("/run/new")),
                record,
                is_daemon_running: false,
                used_run,
            };
            let origin = PathOrigin::Configuration;
            check(known, Some(("/run/new", origin, true, "debug")));
        }
        let known = Known {
            config: Err(invalid()),
            record: record("/run/last"),
            is_daemon_running: false,
            used_run: Some("/run/used".into()),
        };
        let origin = PathOrigin::LastDaemon;
        check(known, Some(("/run/last", origin, false, "info")));
    }

    #[test]
    fn defaults_serve_containers_of_a_daemon_without_a_record_and_nobody_else() {
        let known = |used_run| Known {
            config: Err(invalid()),
            record: None,
            is_daemon_running: false,
            used_run,
        };
        let origin = PathOrigin::Defaults;
        check(
            known(Some("/run/used".into())),
            Some(("/run/used", origin, true, "info")),
        );
        check(known(None), None);
    }

    #[test]
    fn runtime_directory_is_used_once_a_logkeeper_has_served_there() {
        let dir = tempfile::tempdir().unwrap();
        let used = || Known::of(Err(invalid()), None, Some(dir.path().to_owned())).used_run;
        assert_eq!(used(), None);
        std::fs::create_dir_all(dir.path().join("logkeeper/state")).unwrap();
        assert_eq!(used().as_deref(), Some(dir.path()));
    }
}
