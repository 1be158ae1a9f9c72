//! The logkeeper of `logkeeper.mode = "managed"`: this binary with another command.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_config::Config;
use switchyard_linux::process::ProcessId;
use switchyard_linux::report;
use switchyard_logkeeper::Client;
use switchyard_logkeeper::protocol::Welcome;

use super::{Program, State, Timeouts, make_dir};

/// The timeout of one probe.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// The longest pause before a start; it is short because busy containers block while no logkeeper runs.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The managed logkeeper as a program to supervise; `exe` is our own binary.
#[must_use]
pub fn program(config: &Config, exe: &Path) -> Program {
    let run = config.paths.run.join("logkeeper");
    let socket = config.logkeeper_socket();
    let state = config.logkeeper_state();
    let dirs = [run.clone(), state.clone()];
    let mut command = vec![
        exe.display().to_string(),
        "logkeeper".into(),
        "--socket".into(),
        socket.display().to_string(),
        "--state-dir".into(),
        state.display().to_string(),
    ];
    if !config.logkeeper.sandbox {
        command.push("--no-sandbox".into());
    }
    Program {
        name: "logkeeper",
        exe: exe.to_owned(),
        command,
        pid_file: run.join("logkeeper.pid"),
        log: config.paths.state.join("logkeeper.log"),
        prepare: Arc::new(move || dirs.iter().try_for_each(|dir| make_dir(dir, 0o700))),
        is_configuration_current: Arc::new(|| None),
        probe: Arc::new(move || Box::pin(probe(socket.clone()))),
        timeouts: Timeouts {
            retry_max: RETRY_MAX,
            ..Timeouts::of(&config.managed)
        },
    }
}

/// Probes the logkeeper.
///
/// # Errors
/// Why it does not answer.
pub async fn probe(socket: PathBuf) -> Result<String, String> {
    let welcome = Client::with_limit(socket, PROBE_LIMIT)
        .hello()
        .await
        .map_err(|error| report(&error))?;
    Ok(description(&welcome))
}

/// Returns the description of a logkeeper.
fn description(welcome: &Welcome) -> String {
    match welcome.build.as_str() {
        "" => format!("logkeeper protocol {}", welcome.version),
        build => format!("logkeeper {build} protocol {}", welcome.version),
    }
}

/// Probes a logkeeper that is managed externally.
pub async fn probe_state(socket: &Path) -> State {
    let client = Client::with_limit(socket, PROBE_LIMIT);
    match client.hello().await {
        Ok(welcome) => {
            let version = description(&welcome);
            match i32::try_from(welcome.pid).ok().and_then(ProcessId::of) {
                Some(process) => State::Up {
                    process,
                    adopted: true,
                    version,
                    is_configuration_current: None,
                },
                None => State::Down(format!(
                    "the process {} that answers is not on this node",
                    welcome.pid
                )),
            }
        }
        Err(error) => State::Down(report(&error)),
    }
}
