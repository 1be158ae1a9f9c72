//! The features of the fake that tests rely on: its control functions, and that it notices violations by the
//! gateway.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::pin::pin;

use futures::poll;
use switchyard_contract::specs;
use switchyard_core::backend::{
    Backend, BackendStatus, Condition, SandboxBackend, TaskBackend, Withdrawal,
};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::{Credentials, ImageStore, PullRequest};
use switchyard_core::spec::{
    CpuShares, Resources, SandboxNetwork, SandboxSpec, Signal, TaskUpdate,
};
use switchyard_core::state::TaskState;
use switchyard_core::{Error, ErrorKind};
use switchyard_fake::{BUSYBOX, Fake, FakeImage, Method};

fn request(reference: &str, credentials: Credentials) -> PullRequest {
    PullRequest {
        reference: reference.into(),
        credentials,
        handler: String::new(),
        owner: Owner::Host,
    }
}

fn sandbox_spec() -> SandboxSpec {
    specs::sandbox(Owner::Host, "pod")
}

/// A recovered fake with a sandbox and a created task.
async fn with_task(command: &[&str]) -> (Fake, SandboxId, TaskId) {
    let fake = Fake::with_busybox();
    fake.recover().await.unwrap();
    fake.pull(&request(BUSYBOX, Credentials::Anonymous))
        .await
        .unwrap();
    let sandbox = SandboxId::random();
    let task = TaskId::random();
    fake.create_sandbox(sandbox, &sandbox_spec()).await.unwrap();
    fake.create_task(
        task,
        sandbox,
        &specs::task(Owner::Host, "task", BUSYBOX, command),
    )
    .await
    .unwrap();
    (fake, sandbox, task)
}

#[tokio::test]
async fn pull_requires_the_image_credentials() {
    let secret = Credentials::Basic {
        username: "me".into(),
        password: "open".into(),
    };
    let image = FakeImage {
        credentials: secret.clone(),
        ..FakeImage::default()
    };
    let fake = Fake::new().with_image("registry.test/private:1", image);
    let wrong = Credentials::Basic {
        username: "me".into(),
        password: "shut".into(),
    };
    for credentials in [Credentials::Anonymous, wrong] {
        let refused = fake
            .pull(&request("registry.test/private:1", credentials))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unauthenticated);
    }
    assert_eq!(fake.list().await.unwrap(), []);
    fake.pull(&request("registry.test/private:1", secret))
        .await
        .unwrap();
    assert_eq!(fake.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn concurrent_pulls_share_a_download_while_one_remains() {
    let fake = Fake::with_busybox();
    let hold = fake.hold(Method::Pull);
    let wanted = request(BUSYBOX, Credentials::Anonymous);
    let other = request(BUSYBOX, Credentials::RegistryToken("t".into()));
    {
        let mut gone = pin!(fake.pull(&wanted));
        assert!(poll!(&mut gone).is_pending());
        let mut stays = pin!(fake.pull(&wanted));
        let mut with_token = pin!(fake.pull(&other));
        assert!(poll!(&mut stays).is_pending() && poll!(&mut with_token).is_pending());
        assert_eq!(fake.count(Method::Pull), 2);
    }
    // All callers are gone, and the downloads with them.
    hold.release();
    assert_eq!(fake.list().await.unwrap(), []);
    fake.pull(&wanted).await.unwrap();
    assert_eq!(fake.count(Method::Pull), 3);
}

#[tokio::test]
async fn equal_content_is_one_image_and_tags_can_move() {
    let image = |content: &str| FakeImage {
        content: content.into(),
        ..FakeImage::default()
    };
    let fake = Fake::new()
        .with_image("app:1", image("old"))
        .with_image("app:latest", image("old"));
    let pull = async |fake: &Fake, name: &str| {
        fake.pull(&request(name, Credentials::Anonymous))
            .await
            .unwrap()
    };
    assert_eq!(pull(&fake, "app:1").await, pull(&fake, "app").await);
    let [only] = &fake.list().await.unwrap()[..] else {
        panic!("there is one image")
    };
    assert_eq!(
        only.repo_tags,
        ["docker.io/library/app:1", "docker.io/library/app:latest"]
    );
    let fake = fake.with_image("app:latest", image("new"));
    pull(&fake, "app").await;
    assert_eq!(
        fake.get("app:1").await.unwrap().unwrap().repo_tags,
        ["docker.io/library/app:1"]
    );
    assert_ne!(
        fake.get("app").await.unwrap(),
        fake.get("app:1").await.unwrap()
    );
}

#[tokio::test]
async fn addresses_and_pids_are_sequential() {
    let fake = Fake::new();
    fake.recover().await.unwrap();
    for last in 1..4_u8 {
        let details = fake
            .create_sandbox(SandboxId::random(), &sandbox_spec())
            .await
            .unwrap();
        assert_eq!(details.ips, [std::net::IpAddr::from([10, 0, 0, last])]);
    }
    let host = SandboxSpec {
        network: SandboxNetwork::Host,
        ..sandbox_spec()
    };
    let details = fake
        .create_sandbox(SandboxId::random(), &host)
        .await
        .unwrap();
    assert_eq!((details.ips.len(), details.netns), (0, None));
}

#[tokio::test]
async fn injected_failure_has_no_effect_except_a_recorded_start() {
    let (fake, sandbox, task) = with_task(&["serve"]).await;
    for method in [Method::StopSandbox, Method::StartTask] {
        fake.fail_next(method, Error::unavailable("by order"));
    }
    assert_eq!(
        fake.stop_sandbox(sandbox).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(
        fake.start_task(task, &Withdrawal::default())
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Unavailable
    );
    let found = fake.recover().await.unwrap();
    assert!(found.sandboxes[0].state.is_ready());
    assert!(matches!(
        found.tasks[0].state,
        TaskState::Exited {
            started_at: None,
            ..
        }
    ));
    fake.stop_sandbox(sandbox).await.unwrap();
}

#[tokio::test]
async fn signals_and_calls_are_recorded() {
    let (fake, _, task) = with_task(&["ignore-term"]).await;
    fake.start_task(task, &Withdrawal::default()).await.unwrap();
    for signal in [Signal::TERM, Signal::KILL] {
        assert!(fake.runs(task));
        fake.signal_task(task, signal).await.unwrap();
    }
    assert!(!fake.runs(task));
    assert_eq!(fake.signals(task), [Signal::TERM, Signal::KILL]);
    let last = fake.calls().pop().unwrap();
    assert_eq!(
        (last.method, last.object),
        (Method::SignalTask, task.to_string())
    );
    assert!(fake.exit(task, 0).is_err());
}

#[tokio::test]
async fn contract_violations_of_the_gateway_are_detected() {
    let fake = Fake::new();
    let id = SandboxId::random();
    fake.stop_sandbox(id).await.unwrap();
    fake.recover().await.unwrap();
    let hold = fake.hold(Method::RemoveSandbox);
    {
        let mut dropped = pin!(fake.remove_sandbox(id));
        assert!(poll!(&mut dropped).is_pending());
        fake.stop_sandbox(id).await.unwrap();
    }
    hold.release();
    let breaches = fake.breaches();
    assert_eq!(breaches.len(), 3, "{breaches:?}");
    for (breach, word) in breaches
        .iter()
        .zip(["before recover", "under way", "dropped"])
    {
        assert!(breach.contains(word), "{breach}");
    }
}

#[tokio::test]
async fn calls_of_a_killed_daemon_neither_return_nor_take_effect() {
    let (fake, _, task) = with_task(&["serve"]).await;
    fake.start_task(task, &Withdrawal::default()).await.unwrap();
    let hold = fake.hold(Method::UpdateTask);
    let limits = TaskUpdate::from(&Resources {
        cpu_shares: Some(CpuShares::clamped(9)),
        ..Resources::default()
    });
    let mut update = pin!(fake.update_task(task, &limits));
    let mut wait = pin!(fake.wait_task(task));
    assert!(poll!(&mut update).is_pending() && poll!(&mut wait).is_pending());
    let next = fake.reopen();
    hold.release();
    next.recover().await.unwrap();
    next.exit(task, 1).unwrap();
    assert_eq!(next.wait_task(task).await.unwrap().code, 1);
    assert!(poll!(&mut update).is_pending() && poll!(&mut wait).is_pending());
    assert_eq!(
        next.recover().await.unwrap().tasks[0].details.resources,
        Resources::default()
    );
    assert!(next.breaches().is_empty());
}

#[tokio::test]
async fn status_is_set_by_the_test() {
    let fake = Fake::new();
    let away = Condition::False {
        reason: "NoConfig".into(),
        message: "write one".into(),
    };
    let status = BackendStatus {
        network: away,
        ..fake.status()
    };
    fake.set_status(status.clone());
    assert_eq!(fake.reopen().status(), status);
}
