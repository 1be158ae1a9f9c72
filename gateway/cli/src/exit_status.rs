//! The exit statuses of commands that fail, by which systemd and monitors distinguish faults: those of sysexits.h.
//! Whoever starts a process again need not look at them: the cause of each may be gone by then.

use switchyard_config::ConfigError;
use switchyard_daemon::detach::{ALREADY_RUNNING, DetachError};
use switchyard_daemon::serve::Outlook;
use switchyard_logkeeper::Error as LogkeeperError;

use super::error::CliError;

/// A fault that lasts until somebody changes something, such as an invalid configuration (EX_CONFIG).
const PERMANENT: u8 = 78;

/// A fault that may end by itself, such as an address that another process uses (EX_TEMPFAIL).
const PASSING: u8 = 75;

/// Any other.
const FAILED: u8 = 1;

/// The exit status of a command that ended with this error. Pure.
pub(super) fn of(error: &CliError) -> u8 {
    let outlook = match error {
        CliError::Detach(DetachError::AlreadyRunning { .. }) => return ALREADY_RUNNING,
        CliError::Config(ConfigError::Read { source, .. }) => match Outlook::of_io(source) {
            Outlook::Unknown => Outlook::Permanent,
            outlook @ (Outlook::Permanent | Outlook::Passing) => outlook,
        },
        CliError::Config(_)
        | CliError::Settle(_)
        | CliError::Set(_)
        | CliError::Start(_)
        | CliError::UnitFile { .. } => Outlook::Permanent,
        CliError::Serve(error) => error.outlook(),
        CliError::Logkeeper(error) => of_logkeeper(error),
        CliError::Unit(_)
        | CliError::Telemetry(_)
        | CliError::Inherited(_)
        | CliError::Runtime(_)
        | CliError::Exe(_)
        | CliError::Detach(_)
        | CliError::Daemon(_)
        | CliError::Recover(_)
        | CliError::Exec(_)
        | CliError::Logs(_)
        | CliError::Cri(_)
        | CliError::Network(_)
        | CliError::Nomad(_)
        | CliError::Package(_)
        | CliError::Bundle(_)
        | CliError::Output(_) => Outlook::Unknown,
    };
    match outlook {
        Outlook::Permanent => PERMANENT,
        Outlook::Passing => PASSING,
        Outlook::Unknown => FAILED,
    }
}

fn of_logkeeper(error: &LogkeeperError) -> Outlook {
    match error {
        LogkeeperError::File { source, .. } => Outlook::of_io(source),
        LogkeeperError::StateInUse(_)
        | LogkeeperError::SocketInUse(_)
        | LogkeeperError::Unavailable { .. }
        | LogkeeperError::Deadline { .. } => Outlook::Passing,
        LogkeeperError::UnfitStateDir { .. } => Outlook::Permanent,
        LogkeeperError::Process(_)
        | LogkeeperError::Refused { .. }
        | LogkeeperError::Encoding { .. } => Outlook::Unknown,
    }
}

/// Returns whether a process with this exit status ends so again until somebody changes something. Pure.
pub(super) fn is_permanent(status: i32) -> bool {
    status == i32::from(PERMANENT)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::sources::MalformedSet;

    #[test]
    fn what_lasts_has_another_status_than_what_passes() {
        let read = |kind: io::ErrorKind| {
            CliError::Config(ConfigError::Read {
                path: "/etc/switchyard/config.toml".into(),
                source: kind.into(),
            })
        };
        let listen = |kind: io::ErrorKind| {
            CliError::Serve(switchyard_daemon::serve::ServeError::Admin {
                address: "127.0.0.1:1".parse().unwrap(),
                source: kind.into(),
            })
        };
        for (error, expected) in [
            (read(io::ErrorKind::NotFound), 78),
            (read(io::ErrorKind::TimedOut), 75),
            (CliError::Set(MalformedSet("x".into())), 78),
            (listen(io::ErrorKind::AddrInUse), 75),
            (listen(io::ErrorKind::Other), 1),
            (
                CliError::Logkeeper(LogkeeperError::StateInUse("/x".into())),
                75,
            ),
            (CliError::Output(io::ErrorKind::StorageFull.into()), 1),
        ] {
            assert_eq!(of(&error), expected, "{error}");
        }
        assert!(is_permanent(78) && !is_permanent(75) && !is_permanent(0));
    }
}
