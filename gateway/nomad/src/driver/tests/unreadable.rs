//! Tests of tasks that exist and cannot be read: an agent takes them for running, and nothing is done with them.

use futures::stream;
use nomad::exec_task_streaming_request::Setup;
use switchyard_core::backend::{HeldClaims, ObjectFacts, Unreadable, UnreadableKind};
use switchyard_core::id::SandboxId;

use super::unfinished::LONG;
use super::*;

/// As often an agent tries to kill a task.
const KILLS: usize = 5;

impl DriverFixture {
    /// The sandbox of a task and the task, as a daemon finds them that cannot read them.
    pub(super) fn unreadable(&self, id: &str) -> [Unreadable; 2] {
        let task = self.driver.task(id).expect("it is there");
        let sandbox = task.sandbox;
        [
            held(&sandbox.to_string(), id, None),
            held(&task.id.to_string(), id, Some(sandbox)),
        ]
    }

    /// The daemon is killed, and its successor cannot read these objects.
    async fn replaced(self, unreadable: Vec<Unreadable>) -> Self {
        self.fake.set_unreadable(unreadable);
        self.restarted().await
    }
}

/// An object of this name: a task if it has a sandbox.
fn held(id: &str, name: &str, sandbox: Option<SandboxId>) -> Unreadable {
    let kind = match sandbox {
        Some(_) => UnreadableKind::Task,
        None => UnreadableKind::Sandbox,
    };
    Unreadable {
        id: id.to_owned(),
        kind,
        owner: Some(Owner::Nomad),
        name: name.to_owned(),
        sandbox,
        reason: "of version 9".to_owned(),
        claims: HeldClaims {
            is_complete: true,
            ..HeldClaims::default()
        },
        facts: ObjectFacts::default(),
    }
}

/// Fails unless neither an exit nor usage of the task is reported until the gateway ends.
async fn is_silent_until_the_end(fixture: &DriverFixture, id: &str) {
    let message = nomad::TaskStatsRequest {
        task_id: id.to_owned(),
        collection_interval: None,
    };
    let mut usage = fixture
        .driver
        .task_stats(call(message))
        .await
        .expect("it may run")
        .into_inner();
    let mut wait = Box::pin(fixture.wait(id));
    let answered = async {
        tokio::select! {
            waited = &mut wait => format!("{waited:?}"),
            used = usage.next() => format!("{used:?}"),
        }
    };
    tokio::time::timeout(LONG, answered)
        .await
        .expect_err("nothing is known of it");
    let (waited, used, ended) = tokio::join!(
        wait,
        usage.next(),
        fixture.gateway.shut_down(Duration::from_secs(5))
    );
    ended.expect("nothing is in flight");
    let waited = waited.expect_err("the gateway has ended");
    assert_eq!(waited.code(), Code::Unavailable, "{waited:?}");
    assert!(used.is_none(), "{used:?}");
}

#[tokio::test(start_paused = true)]
async fn task_that_cannot_be_read_is_answered_as_one_that_runs() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    fixture.start(&request).await.expect("it starts");
    let id = &request.id;
    let task = fixture.task(id);
    let unreadable = fixture.unreadable(id).to_vec();
    let fixture = fixture.replaced(unreadable).await;
    for _ in 0..2 {
        fixture.recover(&request).await.expect("it may run");
    }
    assert!(fixture.driver.references().knows_task(id));
    let answer = fixture.inspect(id).await.expect("it is known");
    let status = answer.task.expect("an agent looks at the task");
    assert_eq!(status.state(), nomad::TaskState::Running);
    assert_eq!((&status.id, status.name.as_str()), (id, "web"));
    assert!(
        status.result.is_some() && status.started_at.is_some() && status.completed_at.is_some(),
        "{status:?}"
    );
    let attributes = answer.driver.expect("the driver has some").attributes;
    assert_eq!(attributes["container_id"], task.to_string());
    assert_eq!(attributes["state"], "unreadable");
    is_silent_until_the_end(&fixture, id).await;

    let fixture = fixture.replaced(Vec::new()).await;
    fixture.recover(&request).await.expect("it runs");
    fixture.fake.exit(task, 4).expect("it runs");
    assert_eq!(code(&fixture.wait(id).await.expect("it ends")), 4);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_with_a_task_that_cannot_be_read() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    fixture.start(&request).await.expect("it starts");
    let id = request.id.as_str();
    let task = fixture.task(id);
    let unreadable = fixture.unreadable(id).to_vec();
    let fixture = fixture.replaced(unreadable).await;
    let tending = fixture.tended();
    let driver = &fixture.driver;
    let command = vec!["true".to_owned()];
    let signal = nomad::SignalTaskRequest {
        task_id: id.to_owned(),
        signal: "SIGHUP".to_owned(),
    };
    let exec = nomad::ExecTaskRequest {
        task_id: id.to_owned(),
        command: command.clone(),
        timeout: None,
    };
    let setup = nomad::ExecTaskStreamingRequest {
        setup: Some(Setup {
            task_id: id.to_owned(),
            command,
            tty: false,
        }),
        ..Default::default()
    };
    let metadata = call(()).metadata().clone();
    let next = fixture.request("00000002", &["serve"]);
    for _ in 0..KILLS {
        let setup = stream::iter([Ok(setup.clone())]);
        let answers = [
            fixture.stop(id, "", 0).await,
            fixture.destroy(id, false).await,
            fixture.destroy(id, true).await,
            driver.signal_task(call(signal.clone())).await.map(drop),
            driver.exec_task(call(exec.clone())).await.map(drop),
            driver.exec_streaming(&metadata, setup).await.map(drop),
            fixture.start(&request).await.map(drop),
            fixture.start(&next).await.map(drop),
        ];
        for answer in answers {
            let refused = answer.expect_err("it is held");
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
            let text = refused.message();
            assert!(
                text.contains("cannot read") && text.contains("docs/alerts.md"),
                "{text}"
            );
        }
    }
    tokio::time::sleep(LONG).await;
    fixture.recover(&request).await.expect("it may run");
    assert!(fixture.fake.runs(task) && fixture.fake.signals(task).is_empty());
    drop(tending);

    let fixture = fixture.replaced(Vec::new()).await;
    fixture.recover(&request).await.expect("it runs");
    assert_eq!(fixture.fake.tasks(), [task]);
    fixture.destroy(id, true).await.expect("it can be removed");
    assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn sandbox_of_a_task_that_cannot_be_read_is_none_of_a_failed_start() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    fixture.start(&request).await.expect("it starts");
    let id = &request.id;
    let task = fixture.task(id);
    let [_, unreadable] = fixture.unreadable(id);
    let fixture = fixture.replaced(vec![unreadable]).await;
    let _tending = fixture.tended();
    tokio::time::sleep(LONG).await;
    let is_to_go = fixture.driver.has_unfinished_removal(id);
    assert!(!is_to_go.expect("it has recovered"));
    fixture.recover(&request).await.expect("it may run");
    fixture.destroy(id, true).await.expect_err("it is held");
    let is_to_go = fixture.driver.has_unfinished_removal(id);
    assert!(!is_to_go.expect("it has recovered"));
    assert!(fixture.fake.runs(task));
}

#[tokio::test]
async fn only_a_task_whose_name_is_known_is_answered_as_one_that_runs() {
    for (is_known, expected) in [
        (true, Code::FailedPrecondition),
        // The object may be anything.
        (false, Code::NotFound),
    ] {
        let fixture = fixture().await;
        let request = fixture.request("00000001", &["serve"]);
        let name = if is_known { request.id.as_str() } else { "" };
        let sandbox = held(&"07".repeat(32), name, None);
        let fixture = fixture.replaced(vec![sandbox]).await;
        let refused = [
            fixture.recover(&request).await,
            fixture.wait(&request.id).await.map(drop),
            fixture.inspect(&request.id).await.map(drop),
        ];
        for answer in refused {
            let refused = answer.expect_err("there is no such task");
            assert_eq!(refused.code(), expected, "{refused:?}");
        }
    }
}
