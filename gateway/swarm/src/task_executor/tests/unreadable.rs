//! Tasks that the gateway has and cannot read: whatever their manager knows and wants, they are left as they are.

use switchyard_core::backend::{HeldClaims, ObjectFacts, Unreadable, UnreadableKind};

use super::*;

impl TestNode {
    /// The sandbox of a task and the task, as a daemon finds them that cannot read them.
    fn unreadable(&self, number: usize) -> [Unreadable; 2] {
        let name = task_id(number);
        let scope = self.gateway.scope(Owner::Swarm);
        let sandbox = scope.sandboxes().named(&name).unwrap().unwrap().id;
        let objects = [
            (sandbox.to_string(), UnreadableKind::Sandbox),
            (self.object(number).to_string(), UnreadableKind::Task),
        ];
        objects.map(|(id, kind)| Unreadable {
            id,
            kind,
            owner: Some(Owner::Swarm),
            name: name.clone(),
            sandbox: (kind == UnreadableKind::Task).then_some(sandbox),
            reason: "of version 9".to_owned(),
            claims: HeldClaims {
                is_complete: true,
                ..HeldClaims::default()
            },
            facts: ObjectFacts::default(),
        })
    }

    /// Writes a file as a secret of a task is.
    fn write_file(&self, number: usize) {
        let dir = self.place.path().join("files").join(task_id(number));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("0"), "secret").unwrap();
    }

    /// Waits until this holds.
    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        let waited = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within(waited).await;
    }
}

#[tokio::test]
async fn task_that_cannot_be_read_is_left_as_it_is_and_taken_up_when_it_can() {
    let node = TestNode::new().await;
    let mut unreadable = Vec::new();
    for number in [1, 2, 3] {
        node.assign(running(number, &[])).await;
        node.reported(number, State::Running).await;
        node.write_file(number);
        unreadable.extend(node.unreadable(number));
    }
    let objects = [1, 2, 3].map(|number| node.object(number));
    node.fake.set_unreadable(unreadable);
    let node = node.killed().await;
    let listed = |tasks: &[swarm::Task]| -> Vec<Change> {
        let tasks = tasks.iter().cloned();
        tasks.map(|task| Change::Task(Arc::new(task))).collect()
    };
    let runs = known(running(1, &[]), State::Running);
    let stops = known(wanted(running(2, &[]), State::Shutdown), State::Running);
    let ended = known(wanted(running(3, &[]), State::Shutdown), State::Failed);
    let other = running(4, &[]);
    // Each session begins with a complete list.
    for _ in 0..3 {
        let all = [runs.clone(), stops.clone(), ended.clone(), other.clone()];
        node.apply(true, listed(&all)).await;
    }
    node.reported(4, State::Running).await;
    assert_eq!(node.executor.assigned.workers.len(), 4);
    let other = known(other, State::Running);
    // Its manager forgets one.
    let rest = [runs, stops, other];
    node.apply(true, listed(&rest)).await;
    node.until(|node| node.executor.assigned.tasks.lock().len() == 3)
        .await;
    assert!(objects.iter().all(|object| node.fake.runs(*object)));
    assert_eq!(
        [1, 2, 3].map(|number| node.status(number)),
        [None, None, None]
    );
    assert_eq!((node.files(), node.fake.count(Method::StartTask)), (3, 1));

    node.fake.set_unreadable(Vec::new());
    let node = node.killed().await;
    node.apply(true, listed(&rest)).await;
    node.reported(2, State::Shutdown).await;
    node.until(|node| !node.fake.tasks().contains(&objects[2]))
        .await;
    assert_eq!(node.object(1), objects[0]);
    assert!(node.fake.runs(objects[0]));
    assert_eq!(node.fake.count(Method::StartTask), 0);
    node.fake.exit(objects[0], 3).unwrap();
    let status = node.reported(1, State::Failed).await;
    assert_eq!(status.err, "task: non-zero exit (3)");
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}
