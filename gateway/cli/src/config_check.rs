//! `switchyard config check`: of files alone, which needs no node, or of all that the daemon of this node's unit will use.

use std::path::PathBuf;

use clap::Args;
use switchyard_config::{
    self as config, Config, ConfigError, DEFAULT_FILE, Loaded, SettleError, Sources,
};
use switchyard_daemon::start_check::{self, StartFault};
use switchyard_doctor::{LoadedUnit, LocalNode, UNIT};
use switchyard_linux::report;

use super::config_files;
use super::error::CliError;
use crate::output::{print, print_error};
use crate::sources::{MalformedSet, ServeArgs};

/// The checked configuration.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The file; /etc/switchyard/config.toml if that exists. Its drop-ins are checked with it.
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The file, given as for `serve`.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Accept what a start of the daemon accepts: unknown keys and values are warnings, save those of security.
    #[arg(long)]
    start: bool,
    /// Check what the daemon of this systemd unit uses at its next start: the variables and the arguments of the
    /// unit too, and groups, certificates, keys and tokens on this node.
    #[arg(
        long,
        value_name = "UNIT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = UNIT,
        conflicts_with_all = ["file", "config"]
    )]
    unit: Option<String>,
}

/// The configuration with which the daemon of a unit starts next.
#[derive(Debug)]
pub(super) struct NextStart {
    pub(super) loaded: Loaded,
    /// Reason why its arguments are not known, so that they were not checked.
    unknown_arguments: Option<String>,
}

/// Checks the configuration, and prints the files that were read.
pub(super) fn check(args: &CheckArgs) -> Result<(), CliError> {
    let loaded = match &args.unit {
        Some(name) => {
            let unit = LoadedUnit::read(&LocalNode::default(), name)
                .filter(LoadedUnit::is_loaded)
                .ok_or_else(|| CliError::Unit(name.clone()))?;
            let next = if args.start {
                NextStart::check(&unit)?
            } else {
                NextStart::check_strictly(&unit)?
            };
            next.warn()?;
            next.loaded
        }
        None => {
            let sources = Sources {
                file: args.file.clone().or_else(|| args.config.clone()),
                ..Sources::default()
            };
            if args.start {
                config::load_for_start(&sources)?
            } else {
                config::load(&sources)?
            }
        }
    };
    let read: Vec<_> = loaded
        .files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    config_files::warn(&loaded)?;
    match read.as_slice() {
        [] => print(format!(
            "{DEFAULT_FILE} does not exist: the defaults are in effect\n"
        ))?,
        read => print(format!("{}: ok\n", read.join(", ")))?,
    }
    Ok(())
}

/// Checks the configuration with the defaults of the networks of this node, as the next start does. Root alone may read what says them.
/// What is loaded stays unsettled: that says whether anybody has configured anything ([`NextStart::is_as_shipped`]).
///
/// # Errors
/// [`SettleError`]: the daemon would not start.
fn settle(loaded: &Loaded) -> Result<(), SettleError> {
    match loaded.effective.clone().settle_here() {
        Err(SettleError::Defaults(error)) if error.is_denied() => Ok(()),
        settled => settled,
    }
}

/// The texts of the faults of a start, but for groups and features of the kernel, of which the doctor has findings of their own.
pub(super) fn other_faults(config: &Config, environment: &[(String, String)]) -> Vec<String> {
    let Err(faults) = start_check::check(config, environment) else {
        return Vec::new();
    };
    faults
        .all()
        .iter()
        .filter(|fault| !matches!(fault, StartFault::NoGroup { .. } | StartFault::Host(_)))
        .map(|fault| report(fault))
        .collect()
}

// === impl NextStart ===

impl NextStart {
    /// Loads and checks all that the next daemon of a unit reads, as that daemon does.
    ///
    /// # Errors
    /// The daemon would not start.
    pub(super) fn check(unit: &LoadedUnit) -> Result<Self, CliError> {
        Self::check_with(unit, config::load_for_start)
    }

    /// Does the same, and refuses what a start ignores and a reload refuses.
    ///
    /// # Errors
    /// The daemon would not start, or would ignore a part of its configuration.
    pub(super) fn check_strictly(unit: &LoadedUnit) -> Result<Self, CliError> {
        Self::check_with(unit, config::load)
    }

    fn check_with(
        unit: &LoadedUnit,
        load: impl FnOnce(&Sources) -> Result<Loaded, ConfigError>,
    ) -> Result<Self, CliError> {
        if unit.is_broken() {
            return Err(CliError::Unit(unit.name.clone()));
        }
        if let Some(file) = &unit.missing_file {
            return Err(CliError::UnitFile {
                unit: unit.name.clone(),
                file: file.clone(),
            });
        }
        let sources = Self::sources(unit)?;
        let loaded = load(&sources)?;
        settle(&loaded)?;
        start_check::check(&loaded.effective.config, &sources.env)?;
        let is_understood = ServeArgs::of_words(&unit.arguments).is_some();
        let unknown_arguments = (!is_understood).then(|| {
            format!(
                "the command of {} is not understood, so that its flags were not checked: {}",
                unit.name,
                unit.arguments.join(" ")
            )
        });
        Ok(Self {
            loaded,
            unknown_arguments,
        })
    }

    /// The variables and the arguments of the next process of a unit, the latter as far as they are understood. Pure.
    pub(super) fn sources(unit: &LoadedUnit) -> Result<Sources, MalformedSet> {
        let env = unit.environment.clone();
        match ServeArgs::of_words(&unit.arguments) {
            Some(arguments) => arguments.within(env),
            // Words with blanks cannot be recognised in what systemctl shows.
            None => Ok(Sources {
                env,
                ..Sources::default()
            }),
        }
    }

    /// Prints what was not checked.
    pub(super) fn warn(&self) -> Result<(), CliError> {
        if let Some(warning) = &self.unknown_arguments {
            print_error(format!("switchyard: warning: {warning}\n"))?;
        }
        Ok(())
    }

    /// Returns whether nobody has configured anything: a package without its drop-ins. Pure.
    pub(super) fn is_as_shipped(&self) -> bool {
        let defaults = Config::default();
        let mut config = self.loaded.effective.config.clone();
        // The unit of the package sets it.
        config.logkeeper.mode = defaults.logkeeper.mode;
        config == defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(arguments: &[&str], environment: &[(&str, &str)]) -> LoadedUnit {
        LoadedUnit {
            name: "test.service".into(),
            load_state: "loaded".into(),
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..LoadedUnit::default()
        }
    }

    /// The verdict on a unit with this file as its configuration.
    fn verdict(text: &str, environment: &[(&str, &str)]) -> Result<NextStart, CliError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        let words = ["switchyard", "serve", "--config", file.to_str().unwrap()];
        NextStart::check(&unit(&words, environment))
    }

    #[track_caller]
    fn refused(text: &str, environment: &[(&str, &str)], part: &str) {
        let error = verdict(text, environment).unwrap_err();
        assert!(report(&error).contains(part), "{}", report(&error));
    }

    #[test]
    fn strict_check_refuses_what_a_start_ignores() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, "version = 1\n").unwrap();
        let words = ["switchyard", "serve", "--config", file.to_str().unwrap()];
        let unit = unit(&words, &[("SWITCHYARD_EXEC__LATER", "1")]);
        assert_eq!(NextStart::check(&unit).unwrap().loaded.ignored.len(), 1);
        let error = NextStart::check_strictly(&unit).unwrap_err();
        let text = report(&error);
        assert!(text.contains("SWITCHYARD_EXEC__LATER"), "{text}");
    }

    #[test]
    fn variables_of_the_unit_and_files_on_the_node_count() {
        let valid = "version = 1\n";
        let mode = ("SWITCHYARD_LOGKEEPER__MODE", "external");
        assert!(verdict(valid, &[mode]).unwrap().is_as_shipped());
        let level = ("SWITCHYARD_LOG__LEVEL", "debug");
        assert!(!verdict(valid, &[mode, level]).unwrap().is_as_shipped());
        refused(
            valid,
            &[("SWITCHYARD_ADMIN__NO_SUCH", "1")],
            "SWITCHYARD_ADMIN__NO_SUCH",
        );
        refused(
            valid,
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "x")],
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        );
        refused(
            "version = 1\n[nomad]\nsocket_group = \"no-such-group\"\n",
            &[],
            "nomad.socket_group: group \"no-such-group\"",
        );
    }

    #[test]
    fn start_that_would_end_for_want_of_the_node_s_defaults_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let record = config::network_defaults_file(state.path());
        let text = |keys: &str| {
            let state = state.path();
            format!("version = 1\n[paths]\nstate = {state:?}\n{keys}")
        };
        // Nothing is decided here.
        assert!(verdict(&text(""), &[]).is_ok());
        assert!(!record.exists());
        std::fs::write(&record, "nonsense").unwrap();
        refused(&text(""), &[], "network-defaults.toml");
        assert!(verdict(&text("[network.bridge]\ndriver = \"cni\"\n"), &[]).is_ok());
        let former = config::encode_network_defaults(config::NetworkDefaults::Cni);
        std::fs::write(&record, former).unwrap();
        let isolated = text("[network]\nisolation = \"bridge\"\n");
        refused(&isolated, &[], "config.toml:5: network.isolation");
    }

    #[test]
    fn file_that_systemd_cannot_read_is_a_fault_and_an_unknown_command_a_warning() {
        let missing = LoadedUnit {
            missing_file: Some("/none/environment".into()),
            ..unit(&["switchyard", "serve"], &[])
        };
        let error = NextStart::check(&missing).unwrap_err();
        assert!(error.to_string().contains("/none/environment"), "{error}");
        let broken = LoadedUnit {
            load_state: "bad-setting".into(),
            ..LoadedUnit::default()
        };
        assert!(NextStart::check(&broken).is_err());
        let other = unit(
            &["/usr/local/bin/start"],
            &[("SWITCHYARD_LOG__LEVEL", "x y")],
        );
        // The variables are checked all the same.
        assert!(NextStart::check(&other).is_err());
    }
}
