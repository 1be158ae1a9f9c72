//! The daemon in the process of a test, on directories of its own.

use switchyard_linux::host_features::HostFeatures;
use switchyard_logkeeper::StoreClient;

use super::*;

/// Directories and a configuration file. When it is dropped, it kills the logkeeper that the daemon left
/// running.
pub(super) struct ServedDaemon {
    pub(super) dir: TempDir,
}

impl ServedDaemon {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "version = 1\n\
             [paths]\nstate = \"{0}/state\"\nrun = \"{0}/run\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n\
             [containerd]\nmode = \"external\"\n",
            dir.path().display()
        );
        fs::write(dir.path().join("config.toml"), text).unwrap();
        Self { dir }
    }

    /// A node with more configuration.
    pub(super) fn with(extra: &str) -> Self {
        let node = Self::new();
        let file = node.path("config.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(file, format!("{text}{extra}\n")).unwrap();
        node
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub(super) fn load(&self) -> Loaded {
        load(&Sources {
            file: Some(self.path("config.toml").into()),
            ..Sources::default()
        })
        .unwrap()
    }

    pub(super) fn serve(&self, fake: &Fake) -> Daemon {
        self.serve_traced(fake, None)
    }

    pub(super) fn serve_traced(&self, fake: &Fake, traces: Option<TraceSettings>) -> Daemon {
        let shutdown = Shutdown::default();
        let loaded = self.load();
        let connect = over(fake);
        let ended = shutdown.clone();
        let task = tokio::spawn(async move {
            let mut locks = DirLocks::default();
            Box::pin(serve::run(
                loaded,
                connect,
                &exe(),
                log_level(),
                traces,
                ended,
                &mut locks,
            ))
            .await
        });
        Daemon { shutdown, task }
    }

    pub(super) async fn page(&self, path: &str) -> Option<(u16, String)> {
        let (status, body) = channel::get(Path::new(&self.path("run/admin.sock")), path)
            .await
            .ok()?;
        Some((status.as_u16(), String::from_utf8(body.to_vec()).unwrap()))
    }

    pub(super) async fn ready(&self) {
        let ready = async {
            while !matches!(self.page("/readyz").await, Some((200, _))) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        soon("the daemon to be ready", ready).await;
    }

    /// Waits until the logkeeper keeps the listeners of the daemon.
    pub(super) async fn listeners_are_stored(&self) {
        let socket = self.load().effective.config.logkeeper_socket();
        let stored = async {
            loop {
                if let Ok(Some(mut store)) = StoreClient::connect(&socket).await
                    && let Ok(entries) = store.list().await
                    && ["cri", "nomad", "admin"].iter().all(|name| {
                        entries
                            .iter()
                            .any(|entry| entry.claimed && entry.name == *name)
                    })
                {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        soon("the listeners to be stored", stored).await;
    }

    pub(super) async fn client(&self) -> RuntimeServiceClient<tonic::transport::Channel> {
        RuntimeServiceClient::new(
            channel::grpc(Path::new(&self.path("run/cri.sock")))
                .await
                .unwrap(),
        )
    }
}

impl Drop for ServedDaemon {
    fn drop(&mut self) {
        if let Ok(Some(process)) =
            read_pid_file(Path::new(&self.path("run/logkeeper/logkeeper.pid")))
        {
            drop(Killed(process));
        }
    }
}

pub(super) struct Daemon {
    pub(super) shutdown: Shutdown,
    pub(super) task: JoinHandle<Result<(), ServeError>>,
}

impl Daemon {
    pub(super) async fn stop(self) -> Result<(), ServeError> {
        self.shutdown.token().cancel();
        soon("the daemon to end", self.task).await.unwrap()
    }
}

/// The level of a log that the test does not look at.
fn log_level() -> LogLevel {
    LogLevel::new("info", |_| {})
}

/// Connects the daemon to this backend.
fn over(
    fake: &Fake,
) -> impl FnOnce(&Config, Arc<dyn BackendObserver>) -> switchyard_core::Result<ConnectedBackend>
+ Send
+ 'static {
    let backend = Arc::new(fake.clone());
    |_, _| {
        Ok(ConnectedBackend {
            backend,
            reconfigure: Box::new(|_| Ok(())),
            features: HostFeatures::default(),
        })
    }
}
