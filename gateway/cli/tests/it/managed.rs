//! Managed processes: small programs for the corner cases, and the real containerd and logkeeper for their
//! whole life.

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::poll;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_config::Config;
use switchyard_daemon::detach::read_pid_file;
use switchyard_daemon::managed::restart::{self, Restarter};
use switchyard_daemon::managed::{self, Program, State, Timeouts};
use switchyard_linux::process::ProcessId;
use switchyard_operator::control::RestartableProcess as _;
use switchyard_operator::metrics::{Metrics, ProcessRestarts};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Killed, exe, soon, switchyard, wait_until};

mod real;

/// A running supervisor.
struct Supervisor {
    state: watch::Receiver<State>,
    restarts: ProcessRestarts,
    restarter: Restarter,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Supervisor {
    fn start(program: Program) -> Self {
        let (sender, state) = watch::channel(State::Starting);
        let stop = CancellationToken::new();
        let restarts = Metrics::new().unwrap().restarts(program.name);
        let (restarter, requests) = restart::supervised(program.name, state.clone());
        let supervised =
            managed::supervise(program, sender, requests, restarts.clone(), stop.clone());
        let task = tokio::spawn(supervised);
        Self {
            state,
            restarts,
            restarter,
            stop,
            task,
        }
    }

    /// Waits for a serving process other than `not`.
    async fn up(&mut self, not: Option<ProcessId>) -> (ProcessId, bool) {
        let up =
            |state: &State| matches!(state, State::Up { process, .. } if Some(*process) != not);
        match soon("the process to serve", self.state.wait_for(up))
            .await
            .unwrap()
            .clone()
        {
            State::Up {
                process, adopted, ..
            } => (process, adopted),
            State::Starting | State::Hanging { .. } | State::Down(_) => {
                unreachable!("the condition says that it is up")
            }
        }
    }

    async fn down(&mut self) -> String {
        let down = |state: &State| matches!(state, State::Down(_));
        match soon("the process to be down", self.state.wait_for(down))
            .await
            .unwrap()
            .clone()
        {
            State::Down(why) => why,
            State::Starting | State::Up { .. } | State::Hanging { .. } => {
                unreachable!("the condition says that it is down")
            }
        }
    }

    /// Waits for a process that runs and does not answer.
    async fn hanging(&mut self) -> ProcessId {
        let hangs = |state: &State| matches!(state, State::Hanging { .. });
        match soon("the process to hang", self.state.wait_for(hangs))
            .await
            .unwrap()
            .clone()
        {
            State::Hanging { process, .. } => process,
            State::Starting | State::Up { .. } | State::Down(_) => {
                unreachable!("the condition says that it hangs")
            }
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        soon("the supervisor to end", self.task).await.unwrap();
    }
}

fn shell(dir: &TempDir, script: &str) -> Program {
    let path = |name: &str| dir.path().join(name);
    let answers = path("answers");
    Program {
        name: "program",
        exe: exe(),
        command: vec!["/bin/sh".into(), "-c".into(), script.into()],
        pid_file: path("program.pid"),
        log: path("program.log"),
        prepare: Arc::new(|| Ok(())),
        is_configuration_current: Arc::new(|| None),
        probe: Arc::new(move || {
            let answers = answers.clone();
            Box::pin(async move {
                if answers.exists() {
                    Ok("program 1".into())
                } else {
                    Err("no file".into())
                }
            })
        }),
        timeouts: Timeouts {
            watch: Duration::from_millis(10),
            ..Timeouts::default()
        },
    }
}

#[tokio::test]
async fn failing_program_is_restarted_and_its_last_output_reported() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let script = format!(
        "echo started >> {}; echo no luck >&2; exit 7",
        starts.display()
    );
    let mut supervisor = Supervisor::start(shell(&dir, &script));
    assert_eq!(
        supervisor.down().await,
        "ended with exit status: 7: no luck"
    );
    tokio::task::spawn_blocking(move || {
        wait_until("it is started again", || {
            fs::read_to_string(&starts).is_ok_and(|text| text.lines().count() >= 3)
        });
    })
    .await
    .unwrap();
    supervisor.stop().await;
}

#[tokio::test]
async fn requested_restart_runs_the_program_that_is_installed_now() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("answers"), "").unwrap();
    let installed = dir.path().join("installed");
    let script = format!("cat {0} >> {0}.seen; exec sleep 1000", installed.display());
    let seen = installed.with_extension("seen");
    fs::write(&installed, "old\n").unwrap();
    let mut program = shell(&dir, &script);
    // A failed start would be tried again only after this.
    program.timeouts.retry_min = Duration::from_secs(3600);
    program.timeouts.retry_max = program.timeouts.retry_min;
    let mut supervisor = Supervisor::start(program.clone());
    let (first, _) = supervisor.up(None).await;
    // The process may be up before it executes the program, and writes its pid file.
    wait_content(&seen, "old\n").await;
    fs::write(&installed, "new\n").unwrap();
    let done = soon("the restart", supervisor.restarter.restart())
        .await
        .unwrap();
    assert_eq!(done.before, Some(first.pid));
    assert!(!first.is_alive());
    let (second, adopted) = supervisor.up(Some(first)).await;
    assert_eq!((done.after, adopted), (second.pid, false));
    wait_content(&seen, "old\nnew\n").await;
    let counted = &supervisor.restarts;
    assert_eq!((counted.requests.get(), counted.failures.get()), (1, 0));
    supervisor.stop().await;
    // So does the next daemon, to a process that it has adopted.
    let mut next = Supervisor::start(program);
    assert_eq!(next.up(None).await, (second, true));
    let done = soon("the restart", next.restarter.restart()).await.unwrap();
    let _third = Killed(ProcessId::of(done.after).unwrap());
    assert_eq!(done.before, Some(second.pid));
    wait_content(&seen, "old\nnew\nnew\n").await;
    let restarter = next.restarter.clone();
    next.stop().await;
    assert!(
        restarter.restart().await.is_err(),
        "nobody would restart it"
    );
}

#[tokio::test]
async fn restart_of_a_process_that_is_being_adopted_is_answered_by_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    let answers = dir.path().join("answers");
    fs::write(&answers, "").unwrap();
    let begun = dir.path().join("begun");
    let program = shell(
        &dir,
        &format!("echo begun > {}; exec sleep 1000", begun.display()),
    );
    let mut first = Supervisor::start(program.clone());
    let (adopted, _) = first.up(None).await;
    // The process may be up before it executes the program, and writes its pid file.
    wait_content(&begun, "begun\n").await;
    first.stop().await;
    // The next daemon has not reached it yet when it is asked for a restart.
    fs::remove_file(&answers).unwrap();
    let mut next = Supervisor::start(program);
    let restarter = next.restarter.clone();
    let mut restart = pin!(restarter.restart());
    assert!(poll!(&mut restart).is_pending());
    fs::write(&answers, "").unwrap();
    let done = soon("the restart", restart).await.unwrap();
    let _successor = Killed(ProcessId::of(done.after).unwrap());
    assert_eq!(done.before, Some(adopted.pid));
    assert_ne!(done.after, adopted.pid);
    assert!(!adopted.is_alive());
    let (serving, is_adopted) = next.up(None).await;
    assert_eq!(
        (serving.pid, is_adopted),
        (done.after, false),
        "it is not restarted once more"
    );
    next.stop().await;
    assert!(serving.is_alive());
}

/// Waits until a file has this content.
async fn wait_content(file: &Path, content: &'static str) {
    let file = file.to_owned();
    let waited = tokio::task::spawn_blocking(move || {
        wait_until("the file has the content", || {
            fs::read_to_string(&file).is_ok_and(|text| text == content)
        });
    });
    waited.await.unwrap();
}

#[tokio::test]
async fn process_that_no_pid_file_names_any_more_is_ended_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("answers"), "").unwrap();
    let begun = dir.path().join("begun");
    let script = format!(
        "trap '' TERM; echo begun >> {}; while :; do sleep 0.1; done",
        begun.display()
    );
    let mut program = shell(&dir, &script);
    program.timeouts.end = Duration::from_millis(300);
    let mut supervisor = Supervisor::start(program.clone());
    let (first, _) = supervisor.up(None).await;
    let _first = Killed(first);
    // The process may be up before it writes its pid file and executes the program.
    wait_content(&begun, "begun\n").await;
    supervisor.stop().await;
    fs::remove_file(&program.pid_file).unwrap();

    let mut next = Supervisor::start(program.clone());
    let (second, adopted) = next.up(None).await;
    let _second = Killed(second);
    assert!(!adopted && second != first && !first.is_alive());
    wait_content(&begun, "begun\nbegun\n").await;
    next.stop().await;
    let mut last = Supervisor::start(program);
    assert_eq!(last.up(None).await, (second, true));
    last.stop().await;
}

#[tokio::test]
async fn process_whose_pid_file_cannot_be_read_is_left_alone_until_it_can_be() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("answers"), "").unwrap();
    let begun = dir.path().join("begun");
    let script = format!(
        "echo begun >> {}; while :; do sleep 0.1; done",
        begun.display()
    );
    let program = shell(&dir, &script);
    let mut supervisor = Supervisor::start(program.clone());
    let (process, _) = supervisor.up(None).await;
    let _process = Killed(process);
    // The process may be up before it writes its pid file and executes the program.
    wait_content(&begun, "begun\n").await;
    supervisor.stop().await;
    // As on a disk that fails, there is something that cannot be read.
    let kept = dir.path().join("kept");
    fs::rename(&program.pid_file, &kept).unwrap();
    fs::create_dir(&program.pid_file).unwrap();

    let mut next = Supervisor::start(program.clone());
    let why = next.down().await;
    assert!(
        why.contains(&format!("{} cannot be read", program.pid_file.display())),
        "{why}"
    );
    assert!(process.is_alive());
    fs::remove_dir(&program.pid_file).unwrap();
    fs::rename(&kept, &program.pid_file).unwrap();
    assert_eq!(next.up(None).await, (process, true));
    assert_eq!(fs::read_to_string(&begun).unwrap(), "begun\n");
    next.stop().await;
}

#[tokio::test]
async fn long_log_of_a_running_program_is_rotated() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("answers"), "").unwrap();
    let script = "head -c 17000000 /dev/zero; while :; do echo goes on; sleep 0.01; done";
    let mut program = shell(&dir, script);
    program.timeouts.log = Duration::from_millis(10);
    let log = program.log.clone();
    let old = program.log.with_extension("log.1");
    let mut supervisor = Supervisor::start(program);
    let (process, _) = supervisor.up(None).await;
    let _process = Killed(process);
    tokio::task::spawn_blocking(move || {
        wait_until("it is put aside and continues", || {
            fs::metadata(&old).is_ok_and(|old| old.len() >= 16 << 20)
                && fs::read_to_string(&log).is_ok_and(|text| text.starts_with("goes on\n"))
        });
    })
    .await
    .unwrap();
    supervisor.stop().await;
}

#[tokio::test]
async fn missing_managed_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let program = Program {
        command: vec!["no-such-program".into()],
        ..shell(&dir, "")
    };
    let mut supervisor = Supervisor::start(program);
    let why = supervisor.down().await;
    assert!(
        why.contains("cannot execute \"no-such-program\": is it installed?"),
        "{why}"
    );
    supervisor.stop().await;
}

#[tokio::test]
async fn program_that_never_responds_is_killed_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let deaf = dir.path().join("deaf");
    let script = format!(
        "trap '' TERM; echo $$ >> {}; while :; do sleep 0.1; done",
        deaf.display()
    );
    let mut program = shell(&dir, &script);
    program.timeouts.answer = Duration::from_secs(1);
    program.timeouts.retry_max = program.timeouts.retry_min;
    program.timeouts.end = Duration::from_millis(300);
    let mut supervisor = Supervisor::start(program);
    let why = supervisor.down().await;
    assert_eq!(why, "did not answer within 1s: no file");
    // On a busy machine the first processes may end before they execute the program, which ignores SIGTERM.
    let first = tokio::task::spawn_blocking(move || {
        let pid = || {
            Some(Pid::from_raw(
                fs::read_to_string(&deaf)
                    .ok()?
                    .lines()
                    .next()?
                    .parse()
                    .ok()?,
            ))
        };
        wait_until("it is deaf", || pid().is_some());
        let first = pid().unwrap();
        wait_until("it is ended by force", || kill(first, None).is_err());
        first
    })
    .await
    .unwrap();
    fs::write(dir.path().join("answers"), "").unwrap();
    let (second, _) = supervisor.up(None).await;
    let _second = Killed(second);
    assert_ne!(second.pid, first.as_raw());
    supervisor.stop().await;
    assert!(second.is_alive());
}

#[tokio::test]
async fn hung_program_is_reported_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let answers = dir.path().join("answers");
    fs::write(&answers, "").unwrap();
    let mut program = shell(&dir, &format!("exec sleep 1000 # {}", dir.path().display()));
    program.timeouts.probe_interval = Duration::from_millis(20);
    program.timeouts.hang = None;
    let mut supervisor = Supervisor::start(program);
    let (process, _) = supervisor.up(None).await;
    let _process = Killed(process);
    fs::remove_file(&answers).unwrap();
    assert_eq!(supervisor.hanging().await, process);
    fs::write(&answers, "").unwrap();
    assert_eq!(supervisor.up(None).await.0, process);
    supervisor.stop().await;
    assert!(process.is_alive());
}

#[tokio::test]
async fn program_hung_past_its_limit_is_killed_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let answers = dir.path().join("answers");
    fs::write(&answers, "").unwrap();
    // A command of this directory's own: one that another test runs as well would be taken for a predecessor's.
    let script = format!(
        "trap '' TERM; while :; do sleep 0.1; done; : {}",
        dir.path().display()
    );
    let mut program = shell(&dir, &script);
    program.timeouts.probe_interval = Duration::from_millis(20);
    program.timeouts.hang = Some(Duration::from_millis(100));
    let mut supervisor = Supervisor::start(program);
    let (first, _) = supervisor.up(None).await;
    let _first = Killed(first);
    fs::remove_file(&answers).unwrap();
    let why = supervisor.down().await;
    assert_eq!(why, "ran and did not answer for 100ms: no file");
    fs::write(&answers, "").unwrap();
    let (second, _) = supervisor.up(Some(first)).await;
    let _second = Killed(second);
    assert!(!first.is_alive());
    supervisor.stop().await;
}

#[test]
fn concurrent_starters_start_one_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let pid_file = path("p.pid");
    let log = path("p.log");
    let args = [
        "detach",
        "--pid-file",
        &pid_file,
        "--log",
        &log,
        "--",
        "sleep",
        "1000",
    ];
    let mut first = std::process::Command::new(exe())
        .args(args)
        .spawn()
        .unwrap();
    wait_until("the first is the program", || {
        let comm = fs::read_to_string(format!("/proc/{}/comm", first.id())).unwrap_or_default();
        comm == "sleep\n"
    });
    let process = read_pid_file(Path::new(&pid_file)).unwrap().unwrap();
    assert_eq!(u32::try_from(process.pid).unwrap(), first.id());
    let second = switchyard(&args);
    assert_eq!(
        second.status.code(),
        Some(3),
        "{}",
        String::from_utf8_lossy(&second.stderr)
    );
    assert_eq!(read_pid_file(Path::new(&pid_file)).unwrap(), Some(process));
    first.kill().unwrap();
    first.wait().unwrap();
}
