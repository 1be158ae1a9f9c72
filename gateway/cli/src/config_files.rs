//! `switchyard config migrate`, the warnings about the files of a configuration, and what it is on this node.

use std::io;
use std::path::PathBuf;

use clap::Args;
use switchyard_config as config;
use switchyard_config::{DEFAULT_FILE, Effective, Loaded, Migrated, SettleError};
use switchyard_linux::report;

use super::error::CliError;
use crate::output::{print, print_error};

/// The file to rewrite.
#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    /// The file, which may be a drop-in.
    #[arg(default_value = DEFAULT_FILE)]
    file: PathBuf,
}

/// Prints the warnings about a configuration.
pub(super) fn warn(loaded: &Loaded) -> io::Result<()> {
    loaded
        .warnings
        .iter()
        .chain(&loaded.ignored)
        .try_for_each(|warning| print_error(format!("switchyard: warning: {warning}\n")))
}

/// Sets the keys that are not set to what they are on this node; where that is not known, says so and leaves them out.
///
/// # Errors
/// The configuration is invalid on this node.
pub(super) fn settle(effective: &mut Effective) -> Result<(), CliError> {
    match effective.settle_here() {
        Ok(()) => {}
        Err(SettleError::Config(error)) => return Err(error.into()),
        Err(SettleError::Defaults(error)) => {
            print_error(format!("switchyard: warning: {}\n", report(&error)))?;
        }
    }
    Ok(())
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
