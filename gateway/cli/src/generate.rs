//! `switchyard man` and `switchyard completion`: manual pages and completions, generated from the command line's
//! own definition, so that they list exactly what this binary accepts.

use std::io;
use std::path::PathBuf;

use clap::{Args, Command, ValueEnum};

use crate::output::print;

/// Treatment of the manual pages.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Write the pages of all commands into this directory, instead of printing that of `switchyard` itself.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// The shells that have completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the manual page, or writes all pages.
///
/// # Errors
/// The output, or a file, cannot be written.
pub(super) fn man(command: Command, args: &ManArgs) -> io::Result<()> {
    if let Some(dir) = &args.dir {
        return clap_mangen::generate_to(command, dir);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    print(page)
}

/// Prints the completions for a shell.
///
/// # Errors
/// The output cannot be written.
pub(super) fn completion(mut command: Command, shell: Shell) -> io::Result<()> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    // The generator panics if it cannot write, which a vector never fails to.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "switchyard", &mut script);
    print(script)
}
