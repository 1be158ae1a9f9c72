//! No owner sees or changes the objects of another; ids are found by prefix; nothing is served before
//! recovery.

use std::collections::BTreeMap;
use std::time::Duration;

use switchyard_contract::refused;
use switchyard_contract::specs;
use switchyard_core::backend::Backend;
use switchyard_core::id::{Owner, TaskId};
use switchyard_core::image::{Credentials, PullRequest};
use switchyard_core::spec::{Resources, Signal};
use switchyard_core::{Error, ErrorKind};
use switchyard_fake::{BUSYBOX, Fake, FakeImage, Method};

use crate::node::{ENDLESS, FakeNode, sandbox_spec, task_spec};

#[tokio::test]
async fn owners_cannot_see_or_change_each_others_objects() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let sandbox = task.sandbox.to_string();
    let id = task.id.to_string();
    let nomad = node.gateway.scope(Owner::Nomad);
    let mut events = nomad.subscribe();
    assert!(
        nomad.sandboxes().list().unwrap().is_empty() && nomad.tasks().list().unwrap().is_empty()
    );
    assert_eq!(
        refused(nomad.sandboxes().find(&sandbox)),
        ErrorKind::NotFound
    );
    assert_eq!(
        refused(nomad.sandboxes().by_id(task.sandbox)),
        ErrorKind::NotFound
    );
    assert_eq!(refused(nomad.tasks().find(&id)), ErrorKind::NotFound);
    assert_eq!(refused(nomad.tasks().find(&id[..20])), ErrorKind::NotFound);
    assert_eq!(refused(nomad.tasks().wait(&id).await), ErrorKind::NotFound);
    assert_eq!(refused(nomad.tasks().start(&id).await), ErrorKind::NotFound);
    assert_eq!(
        refused(nomad.tasks().signal(&id, Signal::KILL).await),
        ErrorKind::NotFound
    );
    assert_eq!(
        refused(nomad.tasks().reopen_log(&id).await),
        ErrorKind::NotFound
    );
    assert_eq!(
        refused(nomad.tasks().update(&id, &Resources::default()).await),
        ErrorKind::NotFound
    );
    assert_eq!(
        refused(nomad.commands().exec(&id, &specs::exec(&["true"])).await),
        ErrorKind::NotFound
    );
    // Nothing says of what exists that it does not.
    for error in [
        nomad.tasks().find(&id).unwrap_err(),
        nomad.tasks().find(&id[..20]).unwrap_err(),
        nomad.tasks().find("").unwrap_err(),
        nomad.sandboxes().find(&sandbox).unwrap_err(),
        nomad.sandboxes().find(&sandbox[..20]).unwrap_err(),
    ] {
        let text = error.report();
        assert!(text.starts_with("nomad has no "), "{text}");
        assert!(!text.contains("exist"), "{text}");
    }
    let squatter = specs::task(Owner::Nomad, "squatter", BUSYBOX, ENDLESS);
    assert_eq!(
        refused(nomad.tasks().create(&sandbox, squatter).await),
        ErrorKind::NotFound
    );
    // Stopping and removing an invisible task succeeds, without an effect.
    nomad.tasks().stop(&id, Duration::ZERO).await.unwrap();
    nomad.tasks().remove(&id).await.unwrap();
    nomad.sandboxes().stop(&sandbox).await.unwrap();
    nomad.sandboxes().remove(&sandbox).await.unwrap();
    assert!(node.fake.runs(task.id) && node.fake.signals(task.id).is_empty());
    node.scope.tasks().stop(&id, Duration::ZERO).await.unwrap();
    // Names are per owner; the first event of an owner is its own.
    let own = nomad
        .sandboxes()
        .create(specs::sandbox(Owner::Nomad, "pod"))
        .await
        .unwrap();
    assert_eq!(
        events.next().await.unwrap().map(|event| event.owner),
        Some(Owner::Nomad)
    );
    assert_ne!(own.id, task.sandbox);
    node.agrees().await;
}

#[tokio::test]
async fn image_content_is_visible_only_with_access() {
    let private = "registry.test/private:1";
    let credentials = Credentials::Basic {
        username: "me".into(),
        password: "open".into(),
    };
    let image = FakeImage {
        credentials: credentials.clone(),
        ..FakeImage::default()
    };
    let node = FakeNode::over(Fake::with_busybox().with_image(private, image)).await;
    let request = PullRequest {
        reference: private.into(),
        credentials,
        handler: String::new(),
        owner: Owner::Kubernetes,
    };
    let id = node.scope.images().pull(&request).await.unwrap();
    assert!(
        node.scope
            .images()
            .config(&id)
            .await
            .unwrap()
            .contains("linux")
    );
    let nomad = node.gateway.scope(Owner::Nomad);
    assert_eq!(
        refused(nomad.images().config(&id).await),
        ErrorKind::NotFound
    );
    // Also not after its holder has released it, while the other uses it.
    node.fake
        .images()
        .remove(private, Owner::Kubernetes, &|_, _| Ok(true))
        .await
        .unwrap();
    for scope in [&nomad, &node.scope] {
        assert_eq!(
            refused(scope.images().config(&id).await),
            ErrorKind::NotFound
        );
    }
}

/// A node on which Kubernetes alone holds busybox.
async fn with_own_busybox() -> FakeNode {
    let node = FakeNode::over(Fake::with_busybox()).await;
    let pull = PullRequest {
        reference: BUSYBOX.into(),
        credentials: Credentials::Anonymous,
        handler: String::new(),
        owner: Owner::Kubernetes,
    };
    node.scope.images().pull(&pull).await.unwrap();
    node
}

#[tokio::test]
async fn image_from_which_another_owner_creates_a_task_is_kept() {
    let node = with_own_busybox().await;
    let nomad = node.gateway.scope(Owner::Nomad);
    let sandbox = nomad
        .sandboxes()
        .create(specs::sandbox(Owner::Nomad, "pod"))
        .await
        .unwrap()
        .id
        .to_string();
    for name in ["before it is looked up", "before it is in the table"] {
        let held = match name {
            "before it is looked up" => node.fake.hold(Method::CreateTask),
            _ => node.fake.hold_answer(Method::CreateTask),
        };
        let task = nomad
            .tasks()
            .create(&sandbox, specs::task(Owner::Nomad, name, BUSYBOX, ENDLESS));
        let removed = async {
            held.arrived(1).await;
            // Under another spelling than that of the task's reference.
            node.scope.images().remove("busybox").await.unwrap();
            held.release();
        };
        let (task, ()) = tokio::join!(task, removed);
        task.unwrap_or_else(|error| panic!("{name}: {}", error.report()));
        assert!(
            nomad.images().find(BUSYBOX).await.unwrap().is_some(),
            "{name}"
        );
    }
    // Its own tasks do not keep an image for an owner.
    nomad.images().remove(BUSYBOX).await.unwrap();
    assert_eq!(nomad.images().find(BUSYBOX).await.unwrap(), None);
    node.is_sound();
}

#[tokio::test]
async fn image_removal_goes_on_without_its_caller() {
    let node = with_own_busybox().await;
    let held = node.fake.hold(Method::RemoveImage);
    let mut removal = Box::pin(node.scope.images().remove(BUSYBOX));
    assert!(futures::poll!(&mut removal).is_pending());
    held.arrived(1).await;
    drop(removal);
    held.release();
    let gone = async {
        while node.scope.images().find(BUSYBOX).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone)
        .await
        .expect("it is removed");
    node.is_sound();
}

#[tokio::test]
async fn spec_of_another_owner_is_an_internal_error() {
    let node = FakeNode::new().await;
    let nomad = node.gateway.scope(Owner::Nomad);
    assert_eq!(
        refused(nomad.sandboxes().create(sandbox_spec("pod")).await),
        ErrorKind::Internal
    );
    let sandbox = node.sandbox().await.id.to_string();
    let task = specs::task(Owner::Nomad, "task", BUSYBOX, ENDLESS);
    assert_eq!(
        refused(node.scope.tasks().create(&sandbox, task).await),
        ErrorKind::Internal
    );
    assert_eq!(node.fake.count(Method::CreateTask), 0);
}

#[tokio::test]
async fn id_is_found_by_unique_prefix() {
    let node = FakeNode::new().await;
    let mut by_digit: BTreeMap<char, Vec<String>> = BTreeMap::new();
    // Of 17 ids, two begin with the same digit.
    for n in 0..17 {
        let id = node
            .scope
            .sandboxes()
            .create(sandbox_spec(&n.to_string()))
            .await
            .unwrap()
            .id
            .to_string();
        by_digit
            .entry(id.chars().next().unwrap())
            .or_default()
            .push(id);
    }
    for (digit, ids) in &by_digit {
        let found = node.scope.sandboxes().find(&digit.to_string());
        match ids.as_slice() {
            [only] => assert_eq!(found.unwrap().id.to_string(), *only),
            _ => assert_eq!(refused(found), ErrorKind::InvalidArgument),
        }
        for id in ids {
            assert_eq!(
                node.scope
                    .sandboxes()
                    .find(&id[..40])
                    .unwrap()
                    .id
                    .to_string(),
                *id
            );
        }
    }
    for text in [
        "",
        "no id",
        &"f".repeat(64),
        &"f".repeat(65),
        &"G".repeat(64),
    ] {
        assert_eq!(
            refused(node.scope.sandboxes().find(text)),
            ErrorKind::NotFound,
            "{text:?}"
        );
        assert_eq!(
            refused(node.scope.tasks().find(text)),
            ErrorKind::NotFound,
            "{text:?}"
        );
        node.scope.sandboxes().stop(text).await.unwrap();
        node.scope.tasks().remove(text).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_served_before_recovery() {
    let node = FakeNode::unrecovered(Fake::with_busybox());
    let scope = &node.scope;
    let id = TaskId::random().to_string();
    let away = ErrorKind::Unavailable;
    assert!(!node.gateway.is_recovered() && !scope.is_recovered());
    assert_eq!(
        refused(scope.sandboxes().create(sandbox_spec("pod")).await),
        away
    );
    assert_eq!(
        refused(scope.tasks().create(&id, task_spec("task", ENDLESS)).await),
        away
    );
    assert_eq!(refused(scope.sandboxes().list()), away);
    assert_eq!(refused(scope.tasks().list()), away);
    assert_eq!(refused(scope.images().list().await), away);
    assert_eq!(refused(scope.sandboxes().find(&id)), away);
    assert_eq!(refused(scope.tasks().start(&id).await), away);
    assert_eq!(refused(scope.tasks().wait(&id).await), away);
    // Not even success is returned: a caller that believed it would forget the object.
    assert_eq!(refused(scope.tasks().stop(&id, Duration::ZERO).await), away);
    assert_eq!(refused(scope.tasks().remove(&id).await), away);
    assert_eq!(refused(scope.sandboxes().stop(&id).await), away);
    assert_eq!(refused(scope.sandboxes().remove(&id).await), away);
    assert_eq!(refused(scope.tasks().stats(&[]).await), away);
    assert_eq!(scope.handlers().len(), 1);
    assert!(node.fake.calls().is_empty());

    node.fake
        .fail_next(Method::Recover, Error::unavailable("containerd is away"));
    assert_eq!(refused(node.gateway.recover().await), away);
    assert_eq!(refused(scope.sandboxes().list()), away);
    node.gateway.recover().await.unwrap();
    assert!(scope.sandboxes().list().unwrap().is_empty());
    node.is_sound();
}

#[tokio::test(start_paused = true)]
async fn network_has_a_user_for_as_long_as_an_orchestrator_asks_for_it() {
    let node = FakeNode::new().await;
    assert!(!node.gateway.has_network_user());
    drop(node.gateway.fresh_status().await);
    assert!(!node.gateway.has_network_user(), "an operator is none");
    drop(node.scope.fresh_status().await);
    assert!(node.gateway.has_network_user());
    tokio::time::advance(Duration::from_secs(600)).await;
    assert!(!node.gateway.has_network_user(), "the kubelet is gone");
}
