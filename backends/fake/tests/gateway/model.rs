//! Random sequences of operations, compared with a model that consists of two maps.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use switchyard_contract::specs;
use switchyard_core::ErrorKind;
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_fake::BUSYBOX;

use crate::node::{ENDLESS, FakeNode};

const OWNERS: [Owner; 2] = [Owner::Kubernetes, Owner::Nomad];

/// An owner and one of few names, so that names collide.
type Key = (usize, u8);

#[derive(Debug, Clone)]
enum Step {
    CreateSandbox(Key, u8),
    StopSandbox(Key),
    RemoveSandbox(Key),
    CreateTask(Key, u8, u8),
    StartTask(Key),
    StopTask(Key),
    RemoveTask(Key),
    Exit(Key, i32),
    Kill,
}

#[derive(Debug)]
struct ModelSandbox {
    id: SandboxId,
    record: u8,
    ready: bool,
}

#[derive(Debug)]
struct ModelTask {
    id: TaskId,
    home: Key,
    record: u8,
    state: &'static str,
    /// True if the start was refused by the gateway and never reached the backend.
    untouched: bool,
}

#[derive(Debug, Default)]
struct Model {
    sandboxes: BTreeMap<Key, ModelSandbox>,
    tasks: BTreeMap<Key, ModelTask>,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || (0..OWNERS.len(), 0..3_u8);
    prop_oneof![
        4 => (key(), 0..2_u8).prop_map(|(key, record)| Step::CreateSandbox(key, record)),
        1 => key().prop_map(Step::StopSandbox),
        1 => key().prop_map(Step::RemoveSandbox),
        4 => (key(), 0..3_u8, 0..2_u8).prop_map(|(key, home, record)| Step::CreateTask(key, home, record)),
        4 => key().prop_map(Step::StartTask),
        2 => key().prop_map(Step::StopTask),
        2 => key().prop_map(Step::RemoveTask),
        2 => (key(), 0..256).prop_map(|(key, code)| Step::Exit(key, code)),
        1 => Just(Step::Kill),
    ]
}

// === impl Model ===

impl Model {
    fn sandbox_id(&self, key: Key) -> String {
        self.sandboxes
            .get(&key)
            .map_or_else(SandboxId::random, |sandbox| sandbox.id)
            .to_string()
    }

    fn task_id(&self, key: Key) -> String {
        self.tasks
            .get(&key)
            .map_or_else(TaskId::random, |task| task.id)
            .to_string()
    }

    /// The expected result of creating a sandbox.
    fn create_sandbox(&self, key: Key, record: u8) -> Option<ErrorKind> {
        let held = self.sandboxes.get(&key)?;
        (!held.ready || held.record != record).then_some(ErrorKind::AlreadyExists)
    }

    /// The expected result of creating a task.
    fn create_task(&self, key: Key, home: Key, record: u8) -> Option<ErrorKind> {
        let Some(sandbox) = self.sandboxes.get(&home) else {
            return Some(ErrorKind::NotFound);
        };
        match self.tasks.get(&key) {
            Some(held) => {
                (held.home != home || held.record != record).then_some(ErrorKind::AlreadyExists)
            }
            None => (!sandbox.ready).then_some(ErrorKind::FailedPrecondition),
        }
    }

    fn start_task(&mut self, key: Key) -> Option<ErrorKind> {
        let Some(task) = self.tasks.get_mut(&key) else {
            return Some(ErrorKind::NotFound);
        };
        if task.state != "created" {
            return Some(ErrorKind::FailedPrecondition);
        }
        if !self.sandboxes[&task.home].ready {
            return Some(ErrorKind::FailedPrecondition);
        }
        task.state = "running";
        task.untouched = false;
        None
    }

    fn stop_sandbox(&mut self, key: Key) {
        if let Some(sandbox) = self.sandboxes.get_mut(&key) {
            sandbox.ready = false;
            for task in self
                .tasks
                .values_mut()
                .filter(|task| task.home == key && task.state == "running")
            {
                task.state = "exited";
            }
        }
    }
}

// === the system under test ===

async fn take(node: &FakeNode, model: &mut Model, step: Step) {
    let scope = |key: Key| node.gateway.scope(OWNERS[key.0]);
    match step {
        Step::CreateSandbox(key, record) => create_sandbox(node, model, key, record).await,
        Step::StopSandbox(key) => {
            scope(key)
                .sandboxes()
                .stop(&model.sandbox_id(key))
                .await
                .unwrap();
            model.stop_sandbox(key);
        }
        Step::RemoveSandbox(key) => {
            scope(key)
                .sandboxes()
                .remove(&model.sandbox_id(key))
                .await
                .unwrap();
            model.sandboxes.remove(&key);
            model.tasks.retain(|_, task| task.home != key);
        }
        Step::CreateTask(key, home, record) => {
            create_task(node, model, key, (key.0, home), record).await
        }
        Step::StartTask(key) => {
            let started = scope(key).tasks().start(&model.task_id(key)).await;
            assert_eq!(
                started.err().map(|error| error.kind()),
                model.start_task(key)
            );
        }
        Step::StopTask(key) => {
            scope(key)
                .tasks()
                .stop(&model.task_id(key), Duration::from_secs(9))
                .await
                .unwrap();
            if let Some(task) = model
                .tasks
                .get_mut(&key)
                .filter(|task| task.state == "running")
            {
                task.state = "exited";
            }
        }
        Step::RemoveTask(key) => {
            scope(key)
                .tasks()
                .remove(&model.task_id(key))
                .await
                .unwrap();
            model.tasks.remove(&key);
        }
        Step::Exit(key, code) => {
            if let Some(task) = model
                .tasks
                .get_mut(&key)
                .filter(|task| task.state == "running")
            {
                task.state = "exited";
                node.fake.exit(task.id, code).unwrap();
                assert_eq!(
                    scope(key)
                        .tasks()
                        .wait(&task.id.to_string())
                        .await
                        .unwrap()
                        .code,
                    code
                );
            }
        }
        Step::Kill => unreachable!("the caller does it"),
    }
}

async fn create_sandbox(node: &FakeNode, model: &mut Model, key: Key, record: u8) {
    let owner = OWNERS[key.0];
    let mut spec = specs::sandbox(owner, &key.1.to_string());
    spec.meta.record = vec![record];
    let made = node.gateway.scope(owner).sandboxes().create(spec).await;
    assert_eq!(
        made.as_ref().err().map(|error| error.kind()),
        model.create_sandbox(key, record)
    );
    if let Ok(made) = made {
        let new = ModelSandbox {
            id: made.id,
            record,
            ready: true,
        };
        assert_eq!(model.sandboxes.entry(key).or_insert(new).id, made.id);
    }
}

async fn create_task(node: &FakeNode, model: &mut Model, key: Key, home: Key, record: u8) {
    let owner = OWNERS[key.0];
    let mut spec = specs::task(owner, &key.1.to_string(), BUSYBOX, ENDLESS);
    spec.meta.record = vec![record];
    let made = node
        .gateway
        .scope(owner)
        .tasks()
        .create(&model.sandbox_id(home), spec)
        .await;
    assert_eq!(
        made.as_ref().err().map(|error| error.kind()),
        model.create_task(key, home, record)
    );
    if let Ok(made) = made {
        let new = ModelTask {
            id: made.id,
            home,
            record,
            state: "created",
            untouched: true,
        };
        assert_eq!(model.tasks.entry(key).or_insert(new).id, made.id);
    }
}

fn compare(node: &FakeNode, model: &Model) {
    for (number, owner) in OWNERS.into_iter().enumerate() {
        let scope = node.gateway.scope(owner);
        let found: BTreeMap<_, _> = scope
            .sandboxes()
            .list()
            .unwrap()
            .iter()
            .map(|sandbox| (sandbox.id, sandbox.state.is_ready()))
            .collect();
        let own = model.sandboxes.iter().filter(|(key, _)| key.0 == number);
        assert_eq!(
            found,
            own.map(|(_, sandbox)| (sandbox.id, sandbox.ready))
                .collect()
        );
        let found: BTreeMap<_, _> = scope
            .tasks()
            .list()
            .unwrap()
            .iter()
            .map(|task| (task.id, task.state.as_str()))
            .collect();
        let own = model.tasks.iter().filter(|(key, _)| key.0 == number);
        assert_eq!(found, own.map(|(_, task)| (task.id, task.state)).collect());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gateway_matches_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut node = FakeNode::new().await;
let mut model = Model::default();
            for step in steps {
                if matches!(step, Step::Kill) {
                    node = node.killed().await;
                    // A failure that only the gateway knew of is lost with it.
                    for task in model.tasks.values_mut().filter(|task| task.untouched) {
                        task.state = "created";
                    }
                } else {
                    take(&node, &mut model, step).await;
                }
                compare(&node, &model);
            }
            node.agrees().await;
        });
    }
}
