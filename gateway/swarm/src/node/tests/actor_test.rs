//! An actor without a manager, and an executor that counts what it is asked for.

use super::*;

/// Runs no tasks, and counts how often they are to be removed.
#[derive(Debug, Default)]
pub(super) struct CountingMaker {
    pub(super) fails: Arc<AtomicBool>,
    pub(super) removals: Arc<AtomicU32>,
    pub(super) made: AtomicU32,
}

pub(super) struct CountingExecutor {
    pub(super) facts: watch::Sender<NodeFacts>,
    pub(super) fails: Arc<AtomicBool>,
    pub(super) removals: Arc<AtomicU32>,
}

impl MakeExecutor for CountingMaker {
    fn make(&self, _: Arc<Reports>) -> Arc<dyn Executor> {
        self.made.fetch_add(1, Ordering::Relaxed);
        Arc::new(CountingExecutor {
            facts: watch::Sender::new(NodeFacts::default()),
            fails: Arc::clone(&self.fails),
            removals: Arc::clone(&self.removals),
        })
    }
}

#[async_trait]
impl Executor for CountingExecutor {
    fn serve(&self, _: &MemberName) {}

    fn facts(&self) -> watch::Receiver<NodeFacts> {
        self.facts.subscribe()
    }

    async fn recover(&self) {}

    async fn apply(&self, _: Changes) {}

    async fn remove_all(&self) -> switchyard_core::Result<()> {
        self.removals.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) {
            return Err(switchyard_core::Error::unavailable(
                "containerd does not answer",
            ));
        }
        Ok(())
    }
}

/// A node with a directory, and the actor when it runs.
pub(super) struct ActorTest {
    pub(super) dir: tempfile::TempDir,
    pub(super) maker: Arc<CountingMaker>,
    pub(super) operations: Operations,
    pub(super) file: Option<JoinByFile>,
}

impl ActorTest {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let maker = Arc::<CountingMaker>::default();
        Self {
            dir,
            maker,
            operations: Operations::default(),
            file: None,
        }
    }

    /// With a token file, which the configuration names.
    pub(super) fn with_token_file(content: &str) -> Self {
        let mut test = Self::new();
        let token_file = test.dir.path().join("token");
        let managers = vec![NOBODY.to_owned()];
        test.file = Some(JoinByFile {
            token_file,
            managers,
            availability: Availability::Active,
        });
        test.write_token(content);
        test
    }

    pub(super) fn write_token(&self, content: &str) {
        let path = self.dir.path().join("token");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("swarm")
    }

    pub(super) fn store(&self) -> Store {
        Store::new(self.path())
    }

    /// The node is a member of the cluster `c`, as `n`.
    pub(super) fn store_membership(&self) -> Identity {
        let authority = TestAuthority::new(self.dir.path(), "a");
        let key = NodeKey::generate().unwrap();
        let request = key.certificate_request().unwrap();
        let chain =
            NodeChain::from_pem(&authority.issue(&request, "c", "swarm-worker", "n")).unwrap();
        let now = SystemTime::now() + Duration::from_secs(60);
        let identity = Identity::new(
            RootBundle::from_pem(&authority.root()).unwrap(),
            chain,
            key,
            now,
        )
        .unwrap();
        let peer = Peer {
            node: String::new(),
            address: NOBODY.to_owned(),
        };
        self.store().save_managers(&Managers::of([peer])).unwrap();
        self.store().save_joined(&identity).unwrap();
        identity
    }

    pub(super) async fn start(&self) -> (SwarmNode, JoinHandle<()>) {
        let backend = Arc::new(Fake::new());
        let gateway = Gateway::new(backend, Limits::default());
        gateway.recover().await.unwrap();
        self.start_with(&gateway, Arc::clone(&self.maker) as _)
    }

    pub(super) fn start_with(
        &self,
        gateway: &Gateway,
        maker: Arc<dyn MakeExecutor>,
    ) -> (SwarmNode, JoinHandle<()>) {
        let parts = NodeParts {
            dir: self.path(),
            join_by_file: self.file.clone(),
            scope: gateway.scope(Owner::Swarm),
            operations: self.operations.clone(),
            maker,
            image_retention: Reloadable::default(),
            waiting: WaitingServices::default(),
        };
        let (node, actor) = SwarmNode::new(parts);
        (node, tokio::spawn(actor.run()))
    }
}
