//! An in-memory backend, for tests of the gateway and of frontends.
//!
//! It fulfils the contract of [`Backend`](switchyard_core::backend::Backend), and checks that the gateway
//! fulfils its own part: calls that the gateway must not make are recorded as [breaches](Fake::breaches). It
//! has no snapshots or namespaces. Pids, addresses and digests are the same in every run; times are those of
//! the system clock.
//!
//! # Commands
//! A minimal shell runs them: `true`, `false`, `exit N`, `echo`, `cat`, `sleep N`, `head -c N /dev/zero`, and
//! `sh -c` with these, `trap 'exit N' SIG`, `trap '' SIG`, `while` (never ends), `&`, `wait`. `ignore-term`
//! runs until SIGKILL. Executables below `/no/such` do not exist. As the main process of a task, any other
//! command runs until it is killed by a signal or ended by [`Fake::exit`]; as an exec, it is refused.
//!
//! # Faults
//! [`Fake::fail_next`] makes a method fail, [`Fake::hold`] and [`Fake::hold_answer`] keep its calls in
//! flight, [`Fake::script_execs`] makes execs succeed or fail, and [`Fake::reopen`] returns the backend of the daemon that follows a killed one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::backend::{
    Backend as _, BackendStatus, Blocker, CgroupDriver, Condition, Handler, OccupiedPort,
    Unreadable,
};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::{Credentials, PullProgress, PullRequest};
use switchyard_core::spec::{DeviceNode, Signal, Subnet, TaskSpec};
use switchyard_core::state::{Exit, ExitCause};
use switchyard_core::{Error, Result};

mod attach;
mod backend;
mod digest;
mod exec;
mod image;
mod program;
mod session;
mod task_streams;
mod usage;
mod users;
mod world;

pub use attach::ECHO_PORT;
pub use exec::LeftOutput;
pub use image::FakeImage;
pub use session::{Call, Hold, Method};

use session::{Point, Session};
use world::{FakeState, exited};

/// The reference of the image in the registry of [`Fake::with_busybox`].
pub const BUSYBOX: &str = "docker.io/library/busybox:latest";

/// An in-memory backend. Clones are the same backend; [`Fake::reopen`] returns another one with the same
/// state.
#[derive(Clone)]
pub struct Fake {
    world: Arc<FakeState>,
    session: Arc<Session>,
    settings: Arc<Mutex<Settings>>,
}

struct Settings {
    status: BackendStatus,
    handlers: Vec<Handler>,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.world.lock();
        write!(
            f,
            "Fake({} sandboxes, {} tasks)",
            state.sandboxes.len(),
            state.tasks.len()
        )
    }
}

// --- construction ---

impl Fake {
    /// A healthy backend with the handler `runc`, nothing running and an empty registry.
    #[must_use]
    pub fn new() -> Self {
        let world = Arc::new(FakeState::default());
        let session = Arc::new(Session::new(Arc::clone(&world.breaches), Duration::ZERO));
        let settings = Settings {
            status: BackendStatus {
                runtime: Condition::True,
                contact_losses: 0,
                network: Condition::True,
                disk: Condition::True,
                snapshotters: Condition::True,
                version: concat!("fake ", env!("CARGO_PKG_VERSION")).into(),
                cgroup_driver: CgroupDriver::Cgroupfs,
                network_config: String::new(),
                bridge_address: None,
                facts: BTreeMap::new(),
                troubles: BTreeMap::new(),
                advisories: Vec::new(),
                disks: Vec::new(),
            },
            handlers: vec![Handler {
                name: "runc".into(),
                recursive_readonly_mounts: true,
                user_namespaces: false,
            }],
        };
        Self {
            world,
            session,
            settings: Arc::new(Mutex::new(settings)),
        }
    }

    /// A new backend whose registry has [`BUSYBOX`].
    #[must_use]
    pub fn with_busybox() -> Self {
        Self::new().with_image(
            BUSYBOX,
            FakeImage {
                command: vec!["sh".into()],
                ..FakeImage::default()
            },
        )
    }

    /// As [`Fake::with_busybox`], with the image pulled.
    pub async fn with_local_busybox() -> Self {
        let fake = Self::with_busybox();
        let request = PullRequest {
            reference: BUSYBOX.into(),
            credentials: Credentials::Anonymous,
            handler: String::new(),
            owner: Owner::Host,
        };
        fake.images()
            .pull(&request)
            .await
            .expect("the registry has it");
        fake
    }

    /// Adds an image to the registry; it must be pulled before a task can use it.
    ///
    /// # Panics
    /// If the reference is malformed.
    #[must_use]
    pub fn with_image(self, reference: &str, image: FakeImage) -> Self {
        self.world
            .lock()
            .images
            .publish(reference, image)
            .expect("a test names a well-formed reference");
        self
    }

    /// Sets the runtime handlers, the default one first.
    #[must_use]
    pub fn with_handlers(self, handlers: Vec<Handler>) -> Self {
        self.settings().handlers = handlers;
        self
    }

    /// The backend of the daemon that follows after `kill -9` of the one with this backend: it has the same
    /// state, and its own call log, faults and holds. Calls of the old backend that are in flight take no
    /// effect any more and never return.
    #[must_use]
    pub fn reopen(&self) -> Self {
        self.session.kill();
        self.world.lock().images.forget_downloads();
        self.another(self.session.latency())
    }

    /// A backend with the same state, each of whose calls waits this long, by the runtime's clock, before it
    /// takes effect.
    #[must_use]
    pub fn with_latency(self, latency: Duration) -> Self {
        self.another(latency)
    }

    fn another(&self, latency: Duration) -> Self {
        Self {
            world: Arc::clone(&self.world),
            session: Arc::new(Session::new(Arc::clone(&self.world.breaches), latency)),
            settings: Arc::clone(&self.settings),
        }
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock()
    }
}

// --- control ---

impl Fake {
    /// Sets the answer of [`Backend::status`](switchyard_core::backend::Backend::status).
    pub fn set_status(&self, status: BackendStatus) {
        self.settings().status = status;
    }

    /// Makes the next call of `method` fail with this error, without any effect other than what the contract
    /// requires (a failed start is recorded). Several faults are used one per call, in order.
    pub fn fail_next(&self, method: Method, error: Error) {
        self.session.fail_next(method, error);
    }

    /// Blocks calls of `method` before they take effect, until the [`Hold`] is dropped.
    #[must_use = "calls are held only as long as this lives"]
    pub fn hold(&self, method: Method) -> Hold {
        self.session.hold(method, Point::Entry, usize::MAX)
    }

    /// As [`Fake::hold`], for the next call of `method` alone.
    #[must_use = "the call is held only as long as this lives"]
    pub fn hold_next(&self, method: Method) -> Hold {
        self.session.hold(method, Point::Entry, 1)
    }

    /// Blocks calls of `method` after they have taken effect and before they return, until the [`Hold`] is
    /// dropped.
    #[must_use = "calls are held only as long as this lives"]
    pub fn hold_answer(&self, method: Method) -> Hold {
        self.session.hold(method, Point::Answer, usize::MAX)
    }

    /// The next execs that start exit at once with these codes, one each, whatever their commands are.
    pub fn script_execs(&self, codes: impl IntoIterator<Item = i32>) {
        self.world.lock().exec_codes.extend(codes);
    }

    /// While this is set, no exec ends when its client goes, as in a container whose shim hangs.
    pub fn set_execs_unended(&self, unended: bool) {
        let world = self.world.lock();
        if unended {
            world.unended.begin()
        } else {
            world.unended.end()
        }
    }

    /// Sets the fate of output that children of execs keep open, for execs that start from now on.
    pub fn set_left_output(&self, left: LeftOutput) {
        self.world.lock().left_output = left;
    }

    /// Sets what cannot be fulfilled in full of tasks that are created from now on.
    pub fn set_warnings(&self, warnings: Vec<String>) {
        self.world.lock().warnings = warnings;
    }

    /// Sets the reported progress of all pulls in flight.
    pub fn set_progress(&self, progress: PullProgress) {
        self.world.lock().images.progress = Some(progress);
    }

    /// Leaves a start of a created task behind, as a daemon does that is killed during it: the next one
    /// recovers it as unattended, until the call that [`Fake::hold`] of [`Method::ResolveStart`] holds says
    /// whether its program `runs`.
    pub fn leave_start_pending(&self, task: TaskId, runs: bool) {
        self.world.lock().pending_starts.insert(task, runs);
    }

    /// Sets the objects that recovery cannot read from now on; they need not be objects of this fake.
    pub fn set_unreadable(&self, unreadable: Vec<Unreadable>) {
        self.world.lock().unreadable = unreadable;
    }

    /// Sets the OCI runtime spec, as JSON, with which a task is inspected; it has none before.
    pub fn set_runtime_spec(&self, task: TaskId, spec: impl Into<String>) {
        if let Some(task) = self.world.lock().tasks.get_mut(&task) {
            task.runtime_spec = spec.into();
        }
    }

    /// Sets the processes that hold up a task.
    pub fn set_task_blockers(&self, task: TaskId, blockers: Vec<Blocker>) {
        if let Some(task) = self.world.lock().tasks.get_mut(&task) {
            task.blockers = blockers;
        }
    }

    /// Sets the programs that hold up pulls and sandboxes.
    pub fn set_runtime_blockers(&self, blockers: Vec<Blocker>) {
        self.world.lock().runtime_blockers = blockers;
    }

    /// Sets the ports of the node on which its programs listen.
    pub fn set_listeners(&self, listeners: Vec<OccupiedPort>) {
        self.world.lock().listeners = listeners;
    }

    /// Ends a running task with this exit code.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run.
    pub fn exit(&self, task: TaskId, code: i32) -> Result<()> {
        self.world.lock().end(task, exited(code))
    }

    /// Ends a running task as the kernel's OOM killer does.
    ///
    /// # Errors
    /// Those of [`Fake::exit`].
    pub fn oom_kill(&self, task: TaskId) -> Result<()> {
        let code = 128 + i32::from(Signal::KILL.number());
        let exit = Exit {
            code,
            finished_at: SystemTime::now(),
            cause: ExitCause::OomKilled,
        };
        self.world.lock().end(task, exit)
    }
}

// --- inspection ---

impl Fake {
    /// All calls so far, in the order of their start.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.session.calls()
    }

    /// Returns the number of calls of `method` that were started.
    #[must_use]
    pub fn count(&self, method: Method) -> usize {
        self.session
            .calls()
            .iter()
            .filter(|call| call.method == method)
            .count()
    }

    /// The signals sent to a task, in order.
    #[must_use]
    pub fn signals(&self, task: TaskId) -> Vec<Signal> {
        let object = task.to_string();
        self.session
            .calls()
            .into_iter()
            .filter(|call| call.object == object)
            .filter_map(|call| call.signal)
            .collect()
    }

    /// The gateway's violations of its part of the contract: concurrent changes of one object, calls before
    /// `recover`, and changes that were dropped before completion. Empty if there are none.
    #[must_use]
    pub fn breaches(&self) -> Vec<String> {
        self.world.breaches.lock().clone()
    }

    /// All sandboxes.
    #[must_use]
    pub fn sandboxes(&self) -> Vec<SandboxId> {
        self.world.lock().sandboxes.keys().copied().collect()
    }

    /// The sandboxes whose removal has begun.
    #[must_use]
    pub fn pending_removals(&self) -> Vec<SandboxId> {
        self.world.lock().pending_removals()
    }

    /// All tasks.
    #[must_use]
    pub fn tasks(&self) -> Vec<TaskId> {
        self.world.lock().tasks.keys().copied().collect()
    }

    /// Returns whether the main process of this task runs.
    #[must_use]
    pub fn runs(&self, task: TaskId) -> bool {
        self.world
            .lock()
            .tasks
            .get(&task)
            .is_some_and(|task| task.state.is_running())
    }

    /// The annotations of a task, including those that were added later; empty if it does not exist.
    #[must_use]
    pub fn annotations(&self, task: TaskId) -> BTreeMap<String, String> {
        self.world
            .lock()
            .tasks
            .get(&task)
            .map(|task| task.annotations.clone())
            .unwrap_or_default()
    }

    /// The device nodes that a task was created with; empty if it does not exist.
    #[must_use]
    pub fn devices(&self, task: TaskId) -> Vec<DeviceNode> {
        self.spec(task).map(|spec| spec.devices).unwrap_or_default()
    }

    /// The spec that a task was created with; `None` if it does not exist.
    #[must_use]
    pub fn spec(&self, task: TaskId) -> Option<TaskSpec> {
        self.world
            .lock()
            .tasks
            .get(&task)
            .map(|task| task.spec.clone())
    }

    /// The address ranges that an owner has set last.
    #[must_use]
    pub fn ranges(&self, owner: Owner) -> Vec<Subnet> {
        self.world
            .lock()
            .ranges
            .get(&owner)
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the number of execs that run in all tasks.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.world.lock().processes.load(Ordering::SeqCst)
    }

    /// Descriptions of all objects other than images.
    #[must_use]
    pub fn remaining_objects(&self) -> Vec<String> {
        let state = self.world.lock();
        let sandboxes = state.sandboxes.keys().map(|id| format!("sandbox {id}"));
        let tasks = state.tasks.keys().map(|id| format!("task {id}"));
        sandboxes.chain(tasks).collect()
    }
}
