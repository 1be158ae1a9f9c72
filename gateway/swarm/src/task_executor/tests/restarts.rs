//! The daemon is killed or stopped, and another one takes up the tasks.

use super::*;

fn complete(tasks: impl IntoIterator<Item = swarm::Task>) -> Vec<Change> {
    tasks
        .into_iter()
        .map(|task| Change::Task(Arc::new(task)))
        .collect()
}

#[tokio::test]
async fn running_task_stays_as_it_is_and_is_not_reported_anew() {
    let node = TestNode::new().await;
    node.assign(running(1, &[])).await;
    node.reported(1, State::Running).await;
    let object = node.object(1);
    let node = node.killed().await;
    node.apply(true, complete([known(running(1, &[]), State::Running)]))
        .await;
    // It is worked on: it can be stopped.
    tokio::task::yield_now().await;
    assert_eq!(node.object(1), object);
    assert!(node.fake.runs(object));
    assert_eq!(node.fake.count(Method::StartTask), 0);
    node.fake.exit(object, 3).unwrap();
    let status = node.reported(1, State::Failed).await;
    assert_eq!(status.err, "task: non-zero exit (3)");
    node.remove(1).await;
    node.is_empty().await;
}

#[tokio::test]
async fn exit_that_the_manager_does_not_know_is_reported() {
    let node = TestNode::new().await;
    for (number, code) in [(1, 0), (2, 7)] {
        node.assign(running(number, &[])).await;
        node.reported(number, State::Running).await;
        node.fake.exit(node.object(number), code).unwrap();
    }
    let node = node.killed().await;
    let tasks = [1, 2].map(|number| known(running(number, &[]), State::Running));
    node.apply(true, complete(tasks)).await;
    node.reported(1, State::Complete).await;
    assert_eq!(
        node.reported(2, State::Failed).await.err,
        "task: non-zero exit (7)"
    );
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test]
async fn end_that_the_manager_knows_is_reported_no_more() {
    let node = TestNode::new().await;
    node.assign(running(1, &["true"])).await;
    node.reported(1, State::Complete).await;
    node.assign(running(2, &[])).await;
    node.reported(2, State::Running).await;
    let runs = node.object(2);
    let node = node.killed().await;
    let ended = known(
        wanted(running(1, &["true"]), State::Complete),
        State::Complete,
    );
    // The manager has given it up, although it runs: it is not left running.
    let lost = known(wanted(running(2, &[]), State::Shutdown), State::Orphaned);
    node.apply(true, complete([ended, lost])).await;
    let stopped = async {
        while node.fake.runs(runs) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(stopped).await;
    assert_eq!((node.status(1), node.status(2)), (None, None));
    assert_eq!(node.fake.count(Method::StartTask), 0);
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test]
async fn task_without_an_object_is_begun_or_lost_and_never_run_again() {
    let node = TestNode::new().await;
    let tasks = [
        known(running(1, &[]), State::Assigned),
        known(running(2, &[]), State::Ready),
        known(running(3, &[]), State::Starting),
        known(running(4, &[]), State::Running),
        known(wanted(running(5, &[]), State::Shutdown), State::Running),
        known(wanted(running(6, &[]), State::Shutdown), State::Failed),
        known(wanted(running(7, &[]), State::Complete), State::Complete),
    ];
    node.apply(true, complete(tasks)).await;
    for number in [1, 2] {
        node.reported(number, State::Running).await;
    }
    for number in [3, 4] {
        assert_eq!(
            node.reported(number, State::Failed).await.err,
            "container lost"
        );
    }
    assert_eq!(node.reported(5, State::Shutdown).await.err, "");
    assert_eq!((node.status(6), node.status(7)), (None, None));
    assert_eq!(node.fake.count(Method::StartTask), 2);
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test]
async fn task_goes_on_from_each_point_at_which_the_daemon_was_killed() {
    for method in [
        Method::Pull,
        Method::CreateSandbox,
        Method::CreateTask,
        Method::StartTask,
    ] {
        for answered in [false, true] {
            let node = TestNode::new().await;
            let hold = if answered {
                node.fake.hold_answer(method)
            } else {
                node.fake.hold(method)
            };
            node.assign(running(1, &[])).await;
            within(hold.arrived(1)).await;
            let before = node
                .status(1)
                .map_or(State::Assigned, |status| State::from_wire(status.state));
            let node = node.killed().await;
            hold.release();
            node.apply(true, complete([known(running(1, &[]), before)]))
                .await;
            if before < State::Starting || answered {
                node.reported(1, State::Running).await;
            } else {
                // Started or not: it runs once at most.
                let status = node.reported_any(1).await;
                assert!(status >= State::Running, "{method:?} {status:?}");
            }
            assert_eq!(node.fake.tasks().len(), 1, "{method:?} {answered}");
            node.remove(1).await;
            node.is_empty().await;
        }
    }
}

/// Nobody waits for a start of a swarm's task, and no manager counts its instances.
#[tokio::test(start_paused = true)]
async fn start_that_takes_an_hour_and_a_restart_starts_no_second_instance() {
    for answered in [false, true] {
        let node = TestNode::new().await;
        let hold = if answered {
            node.fake.hold_answer(Method::StartTask)
        } else {
            node.fake.hold(Method::StartTask)
        };
        node.assign(running(1, &[])).await;
        within(hold.arrived(1)).await;
        // Sessions break, and their successors begin with everything; each manager knows what was reported until then.
        for state in [State::Assigned, State::Ready, State::Starting] {
            tokio::time::sleep(Duration::from_secs(1200)).await;
            node.apply(true, complete([known(running(1, &[]), state)]))
                .await;
        }
        assert_eq!(
            (
                node.fake.count(Method::StartTask),
                node.fake.count(Method::CreateTask)
            ),
            (1, 1)
        );
        let node = node.killed().await;
        drop(hold);
        let hold = node.fake.hold(Method::StartTask);
        for state in [State::Assigned, State::Starting, State::Ready] {
            node.apply(true, complete([known(running(1, &[]), state)]))
                .await;
            tokio::time::sleep(Duration::from_secs(1200)).await;
        }
        hold.release();
        let state = node.reported_any(1).await;
        assert_eq!(state, State::Running, "{answered}");
        // What was answered before the kill is not repeated.
        assert_eq!(node.fake.count(Method::StartTask), usize::from(!answered));
        assert_eq!(
            (node.fake.count(Method::CreateTask), node.fake.tasks().len()),
            (0, 1)
        );
        node.remove(1).await;
        node.is_empty().await;
    }
}

#[tokio::test]
async fn complete_lists_add_no_worker_for_a_task_whose_removal_takes_long() {
    let node = TestNode::new().await;
    for number in [1, 2] {
        node.assign(running(number, &[])).await;
        node.reported(number, State::Running).await;
    }
    // One of before the restart, and one of this session.
    let node = node.killed().await;
    let hold = node.fake.hold(Method::StopSandbox);
    node.apply(true, complete([known(running(1, &[]), State::Running)]))
        .await;
    node.remove(1).await;
    within(hold.arrived(2)).await;
    for _ in 0..10 {
        node.apply(true, Vec::new()).await;
    }
    assert_eq!(node.executor.assigned.workers.len(), 2);
    // One that is assigned again waits for the removal, and is removed like the other.
    node.apply(true, complete([known(running(1, &[]), State::Running)]))
        .await;
    for _ in 0..10 {
        node.apply(true, Vec::new()).await;
        assert_eq!(node.executor.assigned.workers.len(), 3);
    }
    hold.release();
    node.is_empty().await;
    assert!(node.executor.assigned.tasks.lock().is_empty());
}

#[tokio::test]
async fn secrets_that_a_complete_list_does_not_name_are_forgotten() {
    let node = TestNode::new().await;
    let secret = || Change::Secret(Arc::new(secret("s1", b"hunter2", false)));
    let config = || Change::Config(Arc::new(config("c1", b"x", false)));
    node.apply(false, vec![secret(), config()]).await;
    let known = || {
        let dependencies = node.executor.shared.dependencies.lock();
        (
            dependencies.secret("s1", "t").is_some(),
            dependencies.config("c1").is_some(),
        )
    };
    node.apply(true, vec![secret()]).await;
    assert_eq!(known(), (true, false));
    node.apply(true, vec![config()]).await;
    assert_eq!(known(), (false, true));
}

#[tokio::test]
async fn recovery_beside_workers_keeps_the_files_that_they_have_written() {
    let node = TestNode::new().await;
    let secrets = vec![secret_reference("s1", "db")];
    let with_secret = task(
        1,
        swarm::ContainerSpec {
            secrets,
            args: vec!["serve".into()],
            ..container()
        },
    );
    node.apply(
        false,
        vec![Change::Secret(Arc::new(secret("s1", b"hunter2", false)))],
    )
    .await;
    let hold = node.fake.hold(Method::CreateSandbox);
    node.assign(with_secret).await;
    within(hold.arrived(1)).await;
    assert_eq!(node.files(), 1);
    // The membership begins again, as after a leave that has failed.
    node.executor.recover().await;
    assert_eq!(node.files(), 1);
    hold.release();
    node.reported(1, State::Running).await;
    node.remove(1).await;
    node.is_empty().await;
}

#[tokio::test]
async fn secrets_of_tasks_that_do_not_run_go_with_the_next_start() {
    let node = TestNode::new().await;
    let with_secret = |number: usize| {
        let secrets = vec![secret_reference("s1", "db")];
        task(
            number,
            swarm::ContainerSpec {
                secrets,
                args: vec!["serve".into()],
                ..container()
            },
        )
    };
    node.apply(
        false,
        vec![Change::Secret(Arc::new(secret("s1", b"hunter2", false)))],
    )
    .await;
    for number in [1, 2] {
        node.assign(with_secret(number)).await;
        node.reported(number, State::Running).await;
    }
    // One ends while nobody looks.
    let object = node.object(2);
    let hold = node.fake.hold(Method::StopSandbox);
    node.fake.exit(object, 0).unwrap();
    within(hold.arrived(1)).await;
    assert_eq!(node.files(), 2);
    let node = node.killed().await;
    drop(hold);
    assert_eq!(node.files(), 1);
    node.apply(
        true,
        complete([1, 2].map(|number| known(with_secret(number), State::Running))),
    )
    .await;
    node.reported(2, State::Complete).await;
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test]
async fn complete_list_removes_what_it_does_not_name_of_its_own_cluster_alone() {
    let node = TestNode::new().await;
    for number in [1, 2] {
        node.assign(running(number, &[])).await;
        node.reported(number, State::Running).await;
    }
    let settings = node.executor.shared.settings.clone();
    let scope = node.gateway.scope(Owner::Swarm);
    let foreign = TaskExecutor::new(
        scope.clone(),
        settings,
        node.executor.facts(),
        Arc::default(),
    );
    foreign.serve(&member("cluster2"));
    foreign
        .apply(Changes {
            is_complete: false,
            list: vec![Change::Task(Arc::new(running(3, &[])))],
        })
        .await;
    let runs = async {
        while scope
            .tasks()
            .named(&task_id(3))
            .unwrap()
            .is_none_or(|task| !task.state.is_running())
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(runs).await;
    let node = node.killed().await;
    node.apply(true, complete([known(running(1, &[]), State::Running)]))
        .await;
    let gone = async {
        while node.fake.tasks().len() > 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(gone).await;
    assert!(node.fake.runs(node.object(1)) && node.fake.runs(node.object(3)));
}

#[tokio::test]
async fn daemon_that_ends_says_nothing() {
    let node = TestNode::new().await;
    node.assign(running(1, &[])).await;
    node.reported(1, State::Running).await;
    let before = node.status(1);
    let object = node.object(1);
    node.gateway
        .shut_down(Duration::from_secs(10))
        .await
        .unwrap();
    within(node.executor.idle()).await;
    assert!(node.fake.runs(object));
    tokio::task::yield_now().await;
    assert_eq!(node.status(1), before);
}

#[tokio::test]
async fn id_that_is_assigned_again_after_its_removal_is_not_run_a_second_time() {
    let node = TestNode::new().await;
    node.assign(running(1, &[])).await;
    node.reported(1, State::Running).await;
    let changes = vec![
        Change::TaskGone(task_id(1)),
        Change::Task(Arc::new(known(running(1, &[]), State::Running))),
    ];
    node.apply(false, changes).await;
    assert_eq!(node.reported(1, State::Failed).await.err, "container lost");
    assert_eq!(node.fake.count(Method::StartTask), 1);
    node.remove(1).await;
    node.is_empty().await;
}

impl TestNode {
    /// Waits until a task runs or has ended.
    async fn reported_any(&self, number: usize) -> State {
        let mut changes = self.statuses.clone();
        let reported = async {
            loop {
                let state = self
                    .status(number)
                    .map(|status| State::from_wire(status.state));
                if let Some(state) = state.filter(|state| *state >= State::Running) {
                    return state;
                }
                changes.changed().await.unwrap();
            }
        };
        within(reported).await
    }
}
