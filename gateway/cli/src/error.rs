//! The errors of commands.

use std::io;
use std::path::PathBuf;

use switchyard_config::{ConfigError, SettleError};
use switchyard_daemon::detach::DetachError;
use switchyard_daemon::serve::ServeError;
use switchyard_daemon::start_check::StartFaults;
use switchyard_telemetry as telemetry;

use crate::sources::MalformedSet;
use crate::{cri, daemon, exec, logs, network, nomad, package};

/// Reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Settle(#[from] SettleError),
    #[error(transparent)]
    Set(#[from] MalformedSet),
    #[error(transparent)]
    Telemetry(#[from] telemetry::TelemetryError),
    #[error(
        "cannot reset umask, signal mask and ignored signals, which are those of whoever started this"
    )]
    Inherited(#[source] io::Error),
    #[error("cannot start the daemon's threads")]
    Runtime(#[source] io::Error),
    #[error("cannot find this program's own file")]
    Exe(#[source] io::Error),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Start(#[from] StartFaults),
    #[error(
        "{0} is no unit that systemd has loaded, or systemd does not answer: see `systemctl status {0}`"
    )]
    Unit(String),
    #[error("{unit} names the environment file {}, which cannot be read: create it, or put a dash before its name", file.display())]
    UnitFile { unit: String, file: PathBuf },
    #[error(transparent)]
    Logkeeper(#[from] switchyard_logkeeper::Error),
    #[error(transparent)]
    Detach(DetachError),
    #[error(transparent)]
    Daemon(#[from] daemon::DaemonError),
    #[error("the containers are not taken back")]
    Recover(#[from] switchyard_core::Error),
    #[error(transparent)]
    Exec(#[from] exec::ExecError),
    #[error(transparent)]
    Logs(#[from] logs::LogsError),
    #[error(transparent)]
    Cri(#[from] cri::CriError),
    #[error(transparent)]
    Network(#[from] network::NetworkError),
    #[error(transparent)]
    Nomad(#[from] nomad::NomadError),
    #[error(transparent)]
    Package(#[from] package::PackageError),
    #[error(transparent)]
    Bundle(#[from] switchyard_doctor::bundle::BundleError),
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}
