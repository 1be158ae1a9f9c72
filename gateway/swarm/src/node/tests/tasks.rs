//! A leave that fails while tasks are being removed: what becomes of them, and of those that are assigned after it.

use parking_lot::Mutex;
use switchyard_core::image::{Credentials, PullRequest};
use switchyard_core::reload::Reloadable;
use switchyard_fake::{BUSYBOX, Method};
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::*;
use crate::life::State;
use crate::sample_tasks::{container, task, task_id};
use crate::session::assignments::Change;
use crate::task_context::TaskExecutorSettings;
use crate::task_executor::TaskExecutor;

/// Makes executors that run tasks on a fake backend, and keeps them.
struct TaskMaker {
    gateway: Gateway,
    dir: PathBuf,
    made: Mutex<Vec<(TaskExecutor, Arc<Reports>)>>,
}

impl MakeExecutor for TaskMaker {
    fn make(&self, reports: Arc<Reports>) -> Arc<dyn Executor> {
        let settings = TaskExecutorSettings {
            log_dir: self.dir.join("logs"),
            files_dir: self.dir.join("files"),
            port_range: 61_000..=61_003,
            pull_timeout: Duration::from_secs(60),
            logkeeper: None,
            allowed_devices: Reloadable::default(),
            device_kinds: Reloadable::default(),
            waiting: WaitingServices::default(),
        };
        let facts = watch::Sender::new(NodeFacts::default()).subscribe();
        let scope = self.gateway.scope(Owner::Swarm);
        let executor = TaskExecutor::new(scope, settings, facts, Arc::clone(&reports));
        self.made.lock().push((executor.clone(), reports));
        Arc::new(executor)
    }
}

impl TaskMaker {
    /// A manager assigns the task, which it knows in this state, in that one. Goes to the executor that was made last.
    async fn assign(&self, known: State, wanted: State) {
        let status = swarm::TaskStatus {
            state: known.to_wire().into(),
            ..Default::default()
        };
        let args = vec!["serve".to_owned()];
        let task = swarm::Task {
            desired_state: wanted.to_wire().into(),
            status: Some(status),
            ..task(
                1,
                swarm::ContainerSpec {
                    args,
                    ..container()
                },
            )
        };
        let executor = self.made.lock().last().unwrap().0.clone();
        executor
            .apply(Changes {
                is_complete: true,
                list: vec![Change::Task(Arc::new(task))],
            })
            .await;
    }

    /// Waits until the task is reported in this state or beyond.
    async fn reported(&self, state: State) -> swarm::TaskStatus {
        let reports = Arc::clone(&self.made.lock().last().unwrap().1);
        let reached = async {
            loop {
                let latest = reports.latest(&task_id(1));
                if let Some(status) =
                    latest.filter(|status| State::from_wire(status.state) >= state)
                {
                    return status;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, reached)
            .await
            .expect("the task does not get there")
    }
}

#[tokio::test(start_paused = true)]
async fn task_that_is_assigned_after_a_failed_leave_waits_for_its_removal() {
    let test = ActorTest::new();
    test.store_membership();
    let fake = Fake::with_busybox();
    let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
    gateway.recover().await.unwrap();
    let dir = test.dir.path().join("tasks");
    let maker = Arc::new(TaskMaker {
        gateway: gateway.clone(),
        dir,
        made: Mutex::default(),
    });
    let (node, _running) = test.start_with(&gateway, Arc::clone(&maker) as _);
    let is_member = |phase: &NodePhase| matches!(phase, NodePhase::Member(_));
    wait_until(&node, "it is a member", is_member).await;
    maker.assign(State::Assigned, State::Ready).await;
    maker.reported(State::Ready).await;

    // Its network cannot be released for as long as the leave waits.
    let hold = fake.hold(Method::StopSandbox);
    let leaving = tokio::spawn({
        let node = node.clone();
        async move { node.leave().await }
    });
    hold.arrived(1).await;
    let failed = leaving.await.unwrap();
    assert!(matches!(failed, Err(Error::TasksLeft { .. })), "{failed:?}");
    wait_until(&node, "it is a member", is_member).await;

    // A manager does not know of the leave, and continues the task.
    maker.assign(State::Ready, State::Running).await;
    sleep(Duration::from_secs(60)).await;
    // The removal fails once more, and succeeds at its next try.
    fake.fail_next(
        Method::StopSandbox,
        switchyard_core::Error::internal("a plugin fails"),
    );
    hold.release();
    let status = maker.reported(State::Running).await;
    assert_eq!(State::from_wire(status.state), State::Running, "{status:?}");
    sleep(Duration::from_secs(600)).await;
    let status = maker.reported(State::Running).await;
    assert_eq!(
        State::from_wire(status.state),
        State::Running,
        "it was removed: {status:?}"
    );
    let scope = gateway.scope(Owner::Swarm);
    let object = scope
        .tasks()
        .named(&task_id(1))
        .unwrap()
        .expect("nobody has removed it");
    assert!(fake.runs(object.id));
    assert_eq!(
        maker.made.lock().len(),
        1,
        "there is one executor at a time"
    );
    node.leave().await.unwrap();
    assert_eq!(fake.remaining_objects(), Vec::<String>::new());
    assert_eq!(fake.breaches(), Vec::<String>::new());
    assert_eq!(names(&test.path()), ["departure.json"]);
    let images = gateway.images().store().list().await.unwrap();
    assert_eq!(images, [], "the image of its task goes with it");
}

#[tokio::test(start_paused = true)]
async fn membership_is_forgotten_before_the_images_are_removed() {
    let test = ActorTest::new();
    test.store_membership();
    let fake = Fake::with_busybox();
    let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
    gateway.recover().await.unwrap();
    let request = PullRequest {
        reference: BUSYBOX.to_owned(),
        credentials: Credentials::Anonymous,
        handler: String::new(),
        owner: Owner::Swarm,
    };
    let scope = gateway.scope(Owner::Swarm);
    scope.images().pull(&request).await.unwrap();
    let (node, _running) = test.start_with(&gateway, Arc::clone(&test.maker) as _);
    let is_member = |phase: &NodePhase| matches!(phase, NodePhase::Member(_));
    wait_until(&node, "it is a member", is_member).await;

    let hold = fake.hold(Method::RemoveImage);
    let leaving = tokio::spawn({
        let node = node.clone();
        async move { node.leave().await }
    });
    hold.arrived(1).await;
    // A kill now would not bring the node and its tasks back.
    assert_eq!(names(&test.path()), ["departure.json"]);
    hold.release();
    leaving.await.unwrap().unwrap();
    let images = gateway.images().store().list().await.unwrap();
    assert_eq!(images, []);
}
