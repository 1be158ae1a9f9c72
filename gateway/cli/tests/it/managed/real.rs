//! A real containerd and a real logkeeper as managed programs.

use super::*;

/// Directories of a daemon under test. When it is dropped, it kills the processes in its pid files.
struct ManagedProcesses {
    config: Config,
    _dir: TempDir,
}

impl ManagedProcesses {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.paths.state = dir.path().join("state");
        config.paths.run = dir.path().join("run");
        for path in [&config.paths.state, &config.paths.run] {
            fs::create_dir(path).unwrap();
        }
        Self { config, _dir: dir }
    }

    fn pid_files(&self) -> [PathBuf; 2] {
        ["containerd/containerd.pid", "logkeeper/logkeeper.pid"]
            .map(|file| self.config.paths.run.join(file))
    }
}

impl Drop for ManagedProcesses {
    fn drop(&mut self) {
        for process in self
            .pid_files()
            .iter()
            .filter_map(|file| read_pid_file(file).ok().flatten())
        {
            drop(Killed(process));
        }
    }
}

/// The program is started, adopted by the next supervisor, restarted after its death by each of them, and
/// left running.
async fn full_lifecycle(program: impl Fn() -> Program) {
    let mut first = Supervisor::start(program());
    let (started, adopted) = first.up(None).await;
    assert!(!adopted);
    assert_eq!(first.restarts.failures.get(), 0, "the first start is none");
    first.stop().await;
    assert!(started.is_alive(), "it must outlive its supervisor");

    let mut second = Supervisor::start(program());
    assert_eq!(second.up(None).await, (started, true));
    assert_eq!(second.restarts.failures.get(), 0, "nor is an adoption");
    kill(Pid::from_raw(started.pid), Signal::SIGKILL).unwrap();
    let (again, adopted) = second.up(Some(started)).await;
    assert!(!adopted);
    kill(Pid::from_raw(again.pid), Signal::SIGKILL).unwrap();
    let (last, _) = second.up(Some(again)).await;
    assert_eq!(second.restarts.failures.get(), 2);
    second.stop().await;
    assert!(last.is_alive());
}

#[tokio::test]
async fn real_containerd_is_started_adopted_restarted_and_left_running() {
    assert!(
        Path::new("/usr/bin/containerd").exists(),
        "containerd is missing: apt-get install containerd"
    );
    let node = ManagedProcesses::new();
    Box::pin(full_lifecycle(|| {
        managed::containerd::program(&node.config, &exe())
    }))
    .await;
    let generated =
        fs::read_to_string(node.config.paths.state.join("containerd/config.toml")).unwrap();
    assert!(
        generated.contains("io.containerd.grpc.v1.cri"),
        "{generated}"
    );
    let log =
        fs::read_to_string(node.config.paths.state.join("containerd/containerd.log")).unwrap();
    assert!(log.contains("containerd successfully booted"), "{log}");
}

#[tokio::test]
async fn logkeeper_is_started_adopted_restarted_and_left_running() {
    let node = ManagedProcesses::new();
    Box::pin(full_lifecycle(|| {
        managed::logkeeper::program(&node.config, &exe())
    }))
    .await;
    let state = managed::logkeeper::probe_state(&node.config.logkeeper_socket()).await;
    assert!(matches!(state, State::Up { .. }), "{state:?}");
}
