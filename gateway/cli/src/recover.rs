//! `switchyard recover`: gives a gateway back the name that it has lost, and with it its containers.

use std::path::PathBuf;

use clap::Args;
use switchyard_config as config;
use switchyard_config::{Config, Sources};
use switchyard_core::{Error, Result};
use switchyard_daemon::wiring;

use super::admin_socket;
use super::error::CliError;
use crate::output::print;

/// The name to take.
#[derive(Debug, Args)]
pub(super) struct RecoverArgs {
    /// Instance name of the containers, as `switchyard status` shows it; with another they stay unmanaged.
    #[arg(long, value_name = "NAME")]
    instance: String,
    /// The configuration file of the daemon; that of the running daemon, or /etc/switchyard/config.toml if that exists.
    #[arg(long, short, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The daemon's admin socket; that of the running daemon, or else the configured one.
    #[arg(long, value_name = "PATH", env = "SWITCHYARD_ADMIN_SOCKET")]
    socket: Option<PathBuf>,
}

/// Returns the configuration in force in the running daemon, whatever its files hold now: the name must not be stored
/// in the state directory of another one, which would keep it. While none runs, returns that of `given`.
///
/// # Errors
/// The daemon at the socket has another file than the one that is given; or none runs, and `given` is invalid.
pub(super) fn configuration(
    args: &RecoverArgs,
    given: &Sources,
) -> std::result::Result<Config, CliError> {
    let socket = args
        .socket
        .clone()
        .unwrap_or_else(|| admin_socket::find(given));
    let sources = switchyard_doctor::sources_of_running(given, &socket)?;
    match switchyard_doctor::config_in_force(&socket) {
        Some(config) => Ok(config),
        None => Ok(config::load_for_start(&sources)?.effective.config),
    }
}

/// Stores the name. A daemon that runs takes it with its next attempt to recover.
pub(super) fn recover(args: &RecoverArgs, config: &Config) -> Result<()> {
    wiring::recover_as(config, &args.instance)?;
    let text = format!(
        "this gateway is called {} from now on; a running daemon continues within seconds: see `switchyard status`\n",
        args.instance
    );
    print(text)
        .map_err(|fault| Error::internal("the name is stored; print this").with_source(fault))
}
