//! Processes that a predecessor started and that its pid file does not name any more, because somebody has
//! deleted that: they are found by their command line. They cannot be adopted, since their sockets were deleted
//! too, and beside them no new process can be started: they hold the locks of its files, or read the same FIFOs.

use std::fs;

use nix::sys::signal::Signal;
use switchyard_linux::process::ProcessId;
use switchyard_linux::{WorkLost, blocking, report};

use super::{Program, Running, terminate};

/// The processes of the node's own root that run exactly the program's command. It contains a path of this gateway's
/// own (containerd's configuration, the logkeeper's socket), so that no other gateway runs it.
///
/// # Errors
/// If the search panics.
pub(super) async fn running(program: &Program) -> Result<Vec<ProcessId>, String> {
    let command = program.command.clone();
    let found = blocking("the search for processes of a predecessor", move || {
        let all = switchyard_linux::process::all()
            .into_iter()
            .filter(|stat| !stat.ended)
            .map(|stat| stat.id);
        Ok::<_, WorkLost>(
            all.filter(|process| is_running(*process, &command))
                .collect(),
        )
    });
    found.await.map_err(|lost| report(&lost))
}

/// Ends such a process. The logkeeper writes what it has read to the logs then, as far as that ends in a newline; what
/// it has not read is lost with the FIFOs, which nobody else has open once their containers have ended.
///
/// # Errors
/// If it does not end.
pub(super) async fn end(program: &Program, process: ProcessId) -> Result<(), String> {
    tracing::warn!(
        program = program.name,
        pid = process.pid,
        pid_file = %program.pid_file.display(),
        "a predecessor's process runs and no pid file names it, as after a loss of the run directory's files: it is ended and another one started"
    );
    let mut running = Running {
        process,
        child: None,
    };
    terminate(program, &mut running, &[Signal::SIGTERM, Signal::SIGKILL]).await;
    if process.is_alive() {
        return Err(format!(
            "process {}, which a predecessor has started, does not end",
            process.pid
        ));
    }
    Ok(())
}

fn is_running(process: ProcessId, command: &[String]) -> bool {
    switchyard_linux::process::is_own_root(process.pid)
        && fs::read(format!("/proc/{}/cmdline", process.pid)).is_ok_and(|found| is_command(&found, command))
        // Checked last: if the pid still belongs to the same process, so did the command line.
        && process.is_alive()
}

/// Returns whether a `/proc/<pid>/cmdline` is this command. Pure.
fn is_command(cmdline: &[u8], command: &[String]) -> bool {
    let Some(words) = cmdline.strip_suffix(&[0]) else {
        return false;
    };
    words
        .split(|byte| *byte == 0)
        .eq(command.iter().map(String::as_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_told_from_another_by_each_word() {
        let command = ["containerd", "--config", "/s/config.toml"].map(str::to_owned);
        assert!(is_command(
            b"containerd\0--config\0/s/config.toml\0",
            &command
        ));
        for other in [
            &b"containerd\0--config\0/s/config.toml"[..],
            b"containerd\0--config\0/s/config.toml\0--log-level\0debug\0",
            b"containerd\0--config\0/other/config.toml\0",
            b"/usr/bin/containerd\0--config\0/s/config.toml\0",
            b"containerd --config /s/config.toml\0",
            b"containerd\0--config\0",
            b"",
        ] {
            assert!(
                !is_command(other, &command),
                "{}",
                String::from_utf8_lossy(other)
            );
        }
        assert!(is_command(b"a\0\0", &["a".to_owned(), String::new()]));
    }
}
