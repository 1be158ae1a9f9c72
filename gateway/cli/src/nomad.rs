//! `switchyard nomad-plugin`: the plugins that Nomad agents start, and their installation into a plugin_dir.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use switchyard_config::{PathsConfig, nomad_socket};
use switchyard_linux::report;
use switchyard_nomad::launcher::{
    self, COOKIE, End, HandshakeError, Launch, LaunchError, Role, SocketEnv,
};
use switchyard_operator_api::VERSION;
use switchyard_telemetry::{TelemetryError, hclog};

use crate::nomad_links::{self, LinkError, RECORD};
use crate::output::{announce, print};

/// The plugins, by the names of their files in a plugin_dir.
const FILES: [(&str, Role); 2] = [
    ("switchyard", Role::Driver),
    ("switchyard-device", Role::Device),
];

/// The plugins of Nomad agents.
#[derive(Debug, Subcommand)]
pub(super) enum NomadPlugin {
    /// Run as the task driver of the agent that starts this process.
    Driver(LaunchArgs),
    /// Run as the device plugin of the agent that starts this process.
    Device(LaunchArgs),
    /// Install both plugins into an agent's plugin_dir, as links to this program.
    Install {
        /// The agent's plugin_dir.
        dir: PathBuf,
        #[command(flatten)]
        record: RecordArgs,
    },
    /// Remove all links to this program from agents' plugin_dirs.
    Uninstall {
        /// The plugin_dirs; those of all installations and of the agents of this node if none is given.
        dirs: Vec<PathBuf>,
        #[command(flatten)]
        record: RecordArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    /// The file in which the directories of installations are written down.
    #[arg(
        long = "record",
        value_name = "FILE",
        env = "SWITCHYARD_NOMAD_PLUGINS",
        default_value = RECORD
    )]
    file: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct LaunchArgs {
    /// The name of the plugin in jobs and in the agent's configuration. Default: switchyard, or
    /// switchyard-device.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The daemon's socket for agents. Default: nomad.sock in its default run directory.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Log level of messages to the agent, or filters such as "info,switchyard_nomad=debug".
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

/// Reason why a plugin did not run, or was not installed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NomadError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("{0:?} is not a valid plugin name: use letters, digits, `-` and `_`, at most 64")]
    Name(String),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("cannot start the plugin's thread")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Links(#[from] LinkError),
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// The arguments of this process, with the command inserted if there is none: `nomad-plugin device` if the
/// program has the device plugin's name, `nomad-plugin driver` if a Nomad agent started it (`cookie`).
pub(super) fn as_started(args: Vec<OsString>, cookie: Option<&OsStr>) -> Vec<OsString> {
    let mut args = args.into_iter();
    let Some(program) = args.next() else {
        return Vec::new();
    };
    let rest: Vec<OsString> = args.collect();
    let file = Path::new(&program).file_name();
    let is_device = file == Some(OsStr::new(FILES[1].0));
    let names_no_command = rest
        .first()
        .is_none_or(|first| first.as_encoded_bytes().starts_with(b"-"));
    let command: &[&str] = match (is_device, cookie.is_some() && names_no_command) {
        (true, _) if names_no_command => &["nomad-plugin", "device"],
        (false, true) => &["nomad-plugin", "driver"],
        (true | false, _) => &[],
    };
    std::iter::once(program)
        .chain(command.iter().map(OsString::from))
        .chain(rest)
        .collect()
}

/// Returns whether a Nomad agent started this process.
pub(super) fn is_started_by_agent() -> bool {
    std::env::var_os(COOKIE.0).is_some()
}

pub(super) fn run(command: NomadPlugin) -> Result<(), NomadError> {
    match command {
        NomadPlugin::Driver(args) => launch(Role::Driver, args),
        NomadPlugin::Device(args) => launch(Role::Device, args),
        NomadPlugin::Install { dir, record } => install(&dir, &record.file),
        NomadPlugin::Uninstall { dirs, record } => uninstall(dirs, &record.file),
    }
}

fn launch(role: Role, args: LaunchArgs) -> Result<(), NomadError> {
    launcher::check_cookie(std::env::var_os(COOKIE.0).as_deref())?;
    if let Some(name) = args.name.as_ref().filter(|name| !is_name(name)) {
        return Err(NomadError::Name(name.clone()));
    }
    hclog::init(&args.log_level)?;
    let launch = Launch {
        role,
        name: args.name,
        daemon: args
            .socket
            .unwrap_or_else(|| nomad_socket(&PathsConfig::default().run)),
        version: VERSION,
        socket_env: SocketEnv::from_env(),
    };
    // One thread: the launcher only forwards calls.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(NomadError::Runtime)?;
    let end = runtime.block_on(launcher::run(launch, announce));
    // Open calls are aborted by the end of this process, as an agent expects.
    runtime.shutdown_background();
    match end? {
        End::Requested | End::DaemonGone | End::Signal => Ok(()),
    }
}

fn is_name(name: &str) -> bool {
    let letters = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    letters && (1..=64).contains(&name.len())
}

fn install(dir: &Path, record: &Path) -> Result<(), NomadError> {
    let made = nomad_links::install(dir, &FILES.map(|(file, _)| file), record)?;
    let mut text = String::new();
    for ((file, role), path) in FILES.iter().zip(&made) {
        text.push_str(&format!(
            "{}: the {}; name it in the agent's configuration: plugin \"{file}\" {{}}\n",
            path.display(),
            what(*role)
        ));
    }
    print(text)?;
    Ok(())
}

/// Removes the links, until one cannot be removed.
fn uninstall(dirs: Vec<PathBuf>, record: &Path) -> Result<(), NomadError> {
    let found = if dirs.is_empty() {
        nomad_links::find_all(record)?
    } else {
        nomad_links::find(&dirs.into_iter().collect())?
    };
    for link in &found.links {
        nomad_links::remove(link)?;
        print(format!("removed {}\n", link.path.display()))?;
    }
    if let Some(error) = found.unseen.into_iter().next() {
        return Err(error.into());
    }
    print(if found.links.is_empty() {
        "no link leads to this program\n"
    } else {
        "remove the plugins' blocks from the configuration of the agents too, and restart them\n"
    })?;
    Ok(())
}

const fn what(role: Role) -> &'static str {
    match role {
        Role::Driver => "task driver",
        Role::Device => "device plugin",
    }
}

/// Reports an error to the agent in hclog's format, if an agent started this process; returns whether one
/// did.
pub(super) fn report_error(error: &dyn std::error::Error) -> bool {
    let agents = is_started_by_agent();
    if agents {
        hclog::log_error(&report(error));
    }
    agents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(args: &[&str], agent: bool, expected: &[&str]) {
        let args = args.iter().map(OsString::from).collect();
        let cookie = agent.then_some(OsStr::new("x"));
        assert_eq!(
            as_started(args, cookie),
            expected.iter().map(OsString::from).collect::<Vec<_>>()
        );
    }

    #[test]
    fn plugin_kind_follows_from_the_program_name() {
        check(
            &["/p/switchyard"],
            true,
            &["/p/switchyard", "nomad-plugin", "driver"],
        );
        check(
            &["/p/docker", "--name", "docker"],
            true,
            &["/p/docker", "nomad-plugin", "driver", "--name", "docker"],
        );
        check(
            &["/p/switchyard-device", "--socket", "/s"],
            true,
            &[
                "/p/switchyard-device",
                "nomad-plugin",
                "device",
                "--socket",
                "/s",
            ],
        );
        check(
            &["/p/switchyard-device"],
            false,
            &["/p/switchyard-device", "nomad-plugin", "device"],
        );
        check(
            &["x", "nomad-plugin", "device"],
            true,
            &["x", "nomad-plugin", "device"],
        );
    }

    #[test]
    fn other_invocations_are_the_command_line() {
        check(&["switchyard", "ps"], false, &["switchyard", "ps"]);
        check(&["switchyard", "ps"], true, &["switchyard", "ps"]);
        check(&["switchyard", "--help"], false, &["switchyard", "--help"]);
        check(&[], false, &[]);
    }

    #[test]
    fn plugin_names_are_validated() {
        assert!(is_name("docker") && is_name("my-driver_2"));
        assert!(!is_name("") && !is_name("a b") && !is_name(&"x".repeat(65)));
    }
}
