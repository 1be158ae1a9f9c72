//! Resources that a frontend's caller brings, as a Nomad agent does: its cgroups, FIFOs and namespaces; and
//! the gateway's own network.

use std::sync::Arc;

use switchyard_containerd::config::BridgeDriverChoice;
use switchyard_contract::{Fixture, clear, specs};
use switchyard_core::Result;
use switchyard_core::backend::{Backend, ExecPlace, Recovered, Withdrawal};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::{Credentials, PullRequest};
use switchyard_core::object::SandboxDetails;
use switchyard_core::spec::{Link, PodNetwork, SandboxNetwork, SandboxSpec, TaskSpec};
use switchyard_core::state::Exit;
use switchyard_core::stream::Source;
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::host::random_name;
use switchyard_tests::scratch::Scratch;
use tokio::io::AsyncReadExt;

/// Tests of what holds whoever attaches sandboxes to the gateway's own bridge, with one driver: names, and the functions that do them.
macro_rules! tests_with_driver {
    ($driver:ident: $($name:ident => $body:ident),* $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            $body(switchyard_containerd::config::BridgeDriverChoice::$driver).await;
        })*
    };
}

mod bind_mounts;
mod bridge;
mod cgroups;
mod fifos;
mod namespaces;
mod native_bridge;
mod pins;

/// A backend with an image, and shortcuts to create objects in it.
struct CallerFixture {
    fixture: BackendFixture,
    backend: Arc<dyn Backend>,
    /// The directory for FIFOs of the caller: files in the root would count as leaks.
    fifo_dir: Scratch,
}

impl CallerFixture {
    async fn new() -> Self {
        Self::with_fixture(tokio::task::block_in_place(BackendFixture::new)).await
    }

    /// With this driver of the gateway's own bridge.
    async fn with_driver(driver: BridgeDriverChoice) -> Self {
        let fixture =
            || BackendFixture::with(|settings| settings.network.bridge.driver = Some(driver));
        Self::with_fixture(tokio::task::block_in_place(fixture)).await
    }

    async fn with_fixture(world: BackendFixture) -> Self {
        let backend = world.backend();
        backend
            .recover()
            .await
            .expect("a fresh world can be recovered");
        let request = PullRequest {
            reference: world.image(),
            credentials: Credentials::Anonymous,
            handler: String::new(),
            owner: Owner::Host,
        };
        backend
            .images()
            .pull(&request)
            .await
            .expect("the image can be pulled");
        let pipes = Scratch::new();
        Self {
            fixture: world,
            backend,
            fifo_dir: pipes,
        }
    }

    /// Replaces the backend with a new one, as after a kill of the daemon.
    async fn reopen(&mut self) -> Recovered {
        self.backend = self.fixture.reopen().await;
        self.backend.recover().await.expect("it recovers")
    }

    /// The request for a sandbox, with a name of its own, as those of an owner have: of several with one name a recovery keeps one.
    fn sandbox_spec(&self) -> SandboxSpec {
        self.fixture
            .sandbox_spec(&format!("sandbox-{}", random_name()))
    }

    async fn try_sandbox(
        &self,
        change: impl FnOnce(&mut SandboxSpec),
    ) -> Result<(SandboxId, SandboxDetails)> {
        let mut spec = self.sandbox_spec();
        change(&mut spec);
        let id = SandboxId::random();
        Ok((id, self.backend.create_sandbox(id, &spec).await?))
    }

    async fn sandbox(&self, change: impl FnOnce(&mut SandboxSpec)) -> (SandboxId, SandboxDetails) {
        self.try_sandbox(change)
            .await
            .unwrap_or_else(|error| panic!("no sandbox: {}", error.report()))
    }

    /// A sandbox with the host's network, which is created fastest.
    async fn plain(&self) -> SandboxId {
        self.sandbox(|spec| spec.network = SandboxNetwork::Host)
            .await
            .0
    }

    async fn try_task(
        &self,
        sandbox: SandboxId,
        script: &str,
        change: impl FnOnce(&mut TaskSpec),
    ) -> Result<TaskId> {
        // An owner gives each name to one task.
        let name = format!("task-{}", random_name());
        let mut spec = self.fixture.task_spec(&name, &["sh", "-c", script]);
        change(&mut spec);
        let id = TaskId::random();
        self.backend.create_task(id, sandbox, &spec).await?;
        self.backend.start_task(id, &Withdrawal::default()).await?;
        Ok(id)
    }

    async fn task(
        &self,
        sandbox: SandboxId,
        script: &str,
        change: impl FnOnce(&mut TaskSpec),
    ) -> TaskId {
        let started = self.try_task(sandbox, script, change).await;
        started.unwrap_or_else(|error| panic!("no task: {}", error.report()))
    }

    async fn end(&self, id: TaskId) -> Exit {
        self.backend
            .wait_task(id)
            .await
            .expect("its end is reported")
    }

    /// The output of a shell in a task, without its last newline.
    async fn shell_output(&self, task: TaskId, script: &str) -> String {
        let mut process = self
            .backend
            .exec(
                task,
                &specs::exec(&["sh", "-c", script]),
                ExecPlace::uncounted(),
            )
            .await
            .expect("a shell runs");
        let mut text = String::new();
        let mut stdout: Source = process.stdout.take().expect("it has an output");
        stdout
            .read_to_string(&mut text)
            .await
            .expect("it can be read");
        process.control.wait().await.expect("it ends");
        process.control.delete().await.expect("it can be forgotten");
        text.trim_end().to_owned()
    }

    /// Removes everything; nothing may be left.
    async fn close(self) {
        let Self {
            fixture,
            backend,
            fifo_dir,
        } = self;
        // It would keep the rules of its sandboxes while the next one removes them.
        drop((backend, fifo_dir));
        clear(&fixture).await;
    }
}

/// A network of the gateway's own.
fn bridged(change: impl FnOnce(&mut PodNetwork)) -> SandboxNetwork {
    let mut network = PodNetwork {
        link: Link::Bridge,
        ..PodNetwork::default()
    };
    change(&mut network);
    SandboxNetwork::Pod(network)
}
