//! `switchyard config check` and `config migrate`: the files of the configuration, without a daemon.

use std::io;
use std::path::PathBuf;

use clap::Args;
use switchyard_config as config;
use switchyard_config::{DEFAULT_FILE, Loaded, Migrated, Sources};

use super::error::CliError;
use crate::output::{print, print_error};

/// The file to check.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The file; /etc/switchyard/config.toml if that exists.
    #[arg(conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The file, given as for `serve`.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check as a start of the daemon does, which ignores unknown keys and values, save those of security. Each of them
    /// is a warning then.
    #[arg(long)]
    start: bool,
}

/// The file to rewrite.
#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    /// The file, which may be a drop-in.
    #[arg(default_value = DEFAULT_FILE)]
    file: PathBuf,
}

/// Checks the files.
pub(super) fn check(args: CheckArgs) -> Result<(), CliError> {
    let CheckArgs {
        file,
        config,
        start,
    } = args;
    let sources = Sources {
        file: file.or(config),
        ..Sources::default()
    };
    let loaded = if start {
        config::load_for_start(&sources)?
    } else {
        config::load(&sources)?
    };
    warn(&loaded)?;
    let read: Vec<_> = loaded
        .files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    match read.as_slice() {
        [] => print(format!(
            "{DEFAULT_FILE} does not exist: the defaults are in effect\n"
        ))?,
        read => print(format!("{}: ok\n", read.join(", ")))?,
    }
    Ok(())
}

/// Prints the warnings about a configuration.
pub(super) fn warn(loaded: &Loaded) -> io::Result<()> {
    loaded
        .warnings
        .iter()
        .chain(&loaded.ignored)
        .try_for_each(|warning| print_error(format!("switchyard: warning: {warning}\n")))
}

/// Prints the content of a file for this version, and on standard error what is changed in it.
pub(super) fn migrate(args: &MigrateArgs) -> Result<(), CliError> {
    let Migrated { text, changes } = config::migrate(&args.file)?;
    for change in changes {
        print_error(format!("switchyard: {change}\n"))?;
    }
    print(text)?;
    Ok(())
}
