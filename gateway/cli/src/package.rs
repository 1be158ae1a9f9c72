//! `switchyard package`: the decisions of the maintainer scripts of the Debian package; the rpm takes some of them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::error::CliError;

mod error;
mod installation;
mod judge;
mod networks;
mod removal;

pub(super) use error::PackageError;
pub(super) use removal::configurations;

/// The state directory of the package, where its scripts look, whatever the configuration says.
const STATE: &str = "/var/lib/switchyard";

/// The steps of the package's scripts.
#[derive(Debug, Subcommand)]
pub(super) enum PackageCommand {
    /// Check what the next daemon reads, and note which parts work, before the daemon is started or restarted.
    Before,
    /// Judge the node after that.
    After {
        /// Another version was configured here before: a node without a configuration of its own has to work too.
        #[arg(long)]
        upgrade: bool,
    },
    /// Look whether a sandbox has a network that no earlier version ends; exit status 3 if there is one, or may be.
    Networks,
    /// Prepare the removal of this program: write down where the daemon works, and remove the links of Nomad agents.
    Leave {
        /// The state directory of the package.
        #[arg(long, value_name = "DIR", default_value = STATE)]
        dir: PathBuf,
    },
    /// Put the links back that a removal has taken away.
    Return {
        /// The state directory of the package.
        #[arg(long, value_name = "DIR", default_value = STATE)]
        dir: PathBuf,
    },
}

/// Carries out a step; its exit status says whether the script may continue.
pub(super) fn run(command: PackageCommand) -> Result<ExitCode, CliError> {
    match command {
        PackageCommand::Before => return installation::before(),
        PackageCommand::After { upgrade } => return installation::after(upgrade),
        PackageCommand::Networks => return networks::networks(),
        PackageCommand::Leave { dir } => removal::leave(&dir)?,
        PackageCommand::Return { dir } => removal::put_back(&dir)?,
    }
    Ok(ExitCode::SUCCESS)
}
