//! Runs a command within a time and a size of its output, and kills it beyond either.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::view::{CommandError, CommandOutput};

/// Amount of standard error that is kept, in bytes.
const STDERR_MAX: usize = 64 << 10;

/// The pause between two looks at a process that has closed its output.
const PAUSE: Duration = Duration::from_millis(5);

/// Time for which the end of a killed process is awaited.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// Runs a program in a process group of its own, with `PATH` as its whole environment; at most `max` bytes of
/// its output are kept.
///
/// # Errors
/// [`CommandError`]; any exit status is a result.
pub(crate) fn run(
    program: &Path,
    args: &[&str],
    path: &OsStr,
    limit: Duration,
    max: usize,
) -> Result<CommandOutput, CommandError> {
    let deadline = Instant::now() + limit;
    let mut command = Command::new(program);
    // No locale, because the output is parsed.
    command
        .args(args)
        .env_clear()
        .env("PATH", path)
        .env("LC_ALL", "C")
        .current_dir("/")
        .process_group(0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let name = program.display().to_string();
    let child = command.spawn().map_err(|source| CommandError::Start {
        program: name.clone(),
        source,
    })?;
    let mut group = ProcessGroup(child);
    let read = group.read(deadline, max);
    let (stdout, stderr, is_cut) = read.map_err(|source| CommandError::Start {
        program: name.clone(),
        source,
    })?;
    if is_cut {
        return Ok(CommandOutput {
            status: None,
            stdout,
            stderr,
            is_cut,
        });
    }
    match group.wait(deadline) {
        Some(status) => Ok(CommandOutput {
            status: status.code(),
            stdout,
            stderr,
            is_cut,
        }),
        None => Err(CommandError::Deadline(name)),
    }
}

/// A child with its descendants, which are killed when this is dropped.
struct ProcessGroup(Child);

impl ProcessGroup {
    /// Reads both outputs until their ends, until the deadline, or until there is too much.
    fn read(&mut self, deadline: Instant, max: usize) -> io::Result<(Vec<u8>, Vec<u8>, bool)> {
        let mut out = Output {
            pipe: self.0.stdout.take(),
            bytes: Vec::new(),
            max,
        };
        let mut err = Output {
            pipe: self.0.stderr.take(),
            bytes: Vec::new(),
            max: STDERR_MAX,
        };
        while out.pipe.is_some() || err.pipe.is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wait_readable(&out, &err, left)?;
            out.take()?;
            err.take()?;
            if out.bytes.len() > max {
                out.bytes.truncate(max);
                return Ok((out.bytes, err.bytes, true));
            }
        }
        err.bytes.truncate(STDERR_MAX);
        Ok((out.bytes, err.bytes, false))
    }

    fn wait(&mut self, deadline: Instant) -> Option<std::process::ExitStatus> {
        loop {
            // If its status cannot be read, it counts as a command that does not end.
            let ended = self.0.try_wait().ok()?;
            if ended.is_some() || Instant::now() >= deadline {
                return ended;
            }
            sleep(PAUSE);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The leader has not been waited for while it runs, so the group is its own.
        if matches!(self.0.try_wait(), Ok(None))
            && let Ok(pid) = i32::try_from(self.0.id())
        {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            // A process that the kernel does not let go is not awaited for long: this command ends soon.
            let _ = self.wait(Instant::now() + KILL_LIMIT);
        }
    }
}

/// One output of a process.
struct Output<P> {
    /// `None` after its end.
    pipe: Option<P>,
    bytes: Vec<u8>,
    max: usize,
}

impl<P: Read + AsFd> Output<P> {
    /// Takes what can be read without waiting.
    fn take(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let mut ready = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        // One that is interrupted has found nothing.
        match poll(&mut ready, PollTimeout::ZERO) {
            Ok(0) | Err(Errno::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut part = [0; 16 << 10];
        match pipe.read(&mut part)? {
            0 => self.pipe = None,
            // What is beyond the limit is read, so that the process is not held up, and thrown away.
            count if self.bytes.len() <= self.max => self.bytes.extend_from_slice(&part[..count]),
            _ => {}
        }
        Ok(())
    }
}

fn wait_readable<O: AsFd, E: AsFd>(
    out: &Output<O>,
    err: &Output<E>,
    limit: Duration,
) -> io::Result<()> {
    let fds = [
        out.pipe.as_ref().map(AsFd::as_fd),
        err.pipe.as_ref().map(AsFd::as_fd),
    ];
    let mut fds: Vec<_> = fds
        .into_iter()
        .flatten()
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    let millis = u16::try_from(limit.as_millis()).unwrap_or(u16::MAX).max(1);
    match poll(&mut fds, PollTimeout::from(millis)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration, max: usize) -> Result<CommandOutput, CommandError> {
        run(
            Path::new("/bin/sh"),
            &["-c", script],
            OsStr::new("/usr/bin:/bin"),
            limit,
            max,
        )
    }

    #[test]
    fn output_and_status_are_returned() {
        let done = sh(
            "echo out; echo err >&2; exit 3",
            Duration::from_secs(20),
            1000,
        )
        .unwrap();
        assert_eq!(
            (done.status, &done.stdout[..], &done.stderr[..]),
            (Some(3), &b"out\n"[..], &b"err\n"[..])
        );
        assert!(!done.is_cut);
    }

    #[test]
    fn environment_is_not_passed_on() {
        let done = sh(
            "env | cut -d= -f1 | sort | tr '\\n' ' '",
            Duration::from_secs(20),
            1000,
        )
        .unwrap();
        assert_eq!(String::from_utf8(done.stdout).unwrap(), "LC_ALL PATH PWD ");
    }

    #[test]
    fn endless_output_is_cut_and_its_writer_killed() {
        let done = sh(
            "while :; do echo 0123456789; done",
            Duration::from_secs(20),
            1000,
        )
        .unwrap();
        assert_eq!((done.is_cut, done.stdout.len()), (true, 1000));
        let done = sh(
            "while :; do echo 0123456789 >&2; done",
            Duration::from_millis(300),
            1000,
        );
        assert!(matches!(done, Err(CommandError::Deadline(_))), "{done:?}");
    }

    #[test]
    fn hanging_command_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!(
            "sleep 1000 & echo $! > {}; exec >&- 2>&-; wait",
            file.display()
        );
        let began = Instant::now();
        assert!(matches!(
            sh(&script, Duration::from_millis(500), 10),
            Err(CommandError::Deadline(_))
        ));
        assert!(began.elapsed() < Duration::from_secs(10));
        let pid: i32 = std::fs::read_to_string(&file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !state().is_empty() && !state().contains(") Z") {
            assert!(Instant::now() < deadline, "{}", state());
            sleep(PAUSE);
        }
    }

    #[test]
    fn missing_program_is_an_error() {
        let missing = run(
            Path::new("/no/such"),
            &[],
            OsStr::new(""),
            Duration::from_secs(1),
            1,
        );
        assert!(
            matches!(missing, Err(CommandError::Start { .. })),
            "{missing:?}"
        );
    }
}
