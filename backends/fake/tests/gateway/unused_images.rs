//! Images that an owner holds and does not use, and what keeps those that it has given up.

use std::sync::Arc;

use switchyard_contract::{refused, specs};
use switchyard_core::ErrorKind;
use switchyard_core::gateway::Scope;
use switchyard_core::id::Owner;
use switchyard_core::image::{Credentials, ImageKeepers, PullRequest};
use switchyard_core::object::Task;
use switchyard_fake::{Fake, FakeImage, Method};

use crate::node::{ENDLESS, FakeNode};

/// An image that is held and used in some way.
struct Case {
    image: &'static str,
    pinned: bool,
    holders: &'static [Owner],
    users: &'static [Owner],
    /// True if it is one of those that Swarm holds and does not use.
    is_unused: bool,
    /// Keepers of it beside Swarm.
    others: ImageKeepers,
}

fn case(
    image: &'static str,
    holders: &'static [Owner],
    users: &'static [Owner],
    is_unused: bool,
) -> Case {
    Case {
        image,
        pinned: false,
        holders,
        users,
        is_unused,
        others: ImageKeepers::default(),
    }
}

fn cases() -> Vec<Case> {
    let kept = |holders: &[Owner], users: &[Owner]| ImageKeepers {
        holders: holders.to_vec(),
        users: users.to_vec(),
    };
    vec![
        case("registry.test/held:1", &[Owner::Swarm], &[], true),
        case(
            "registry.test/used:1",
            &[Owner::Swarm],
            &[Owner::Swarm],
            false,
        ),
        Case {
            pinned: true,
            ..case("registry.test/pinned:1", &[Owner::Swarm], &[], false)
        },
        Case {
            others: kept(&[Owner::Nomad], &[]),
            ..case(
                "registry.test/shared:1",
                &[Owner::Swarm, Owner::Nomad],
                &[],
                true,
            )
        },
        Case {
            others: kept(&[], &[Owner::Kubernetes]),
            ..case(
                "registry.test/borrowed:1",
                &[Owner::Swarm],
                &[Owner::Kubernetes],
                true,
            )
        },
        Case {
            others: kept(&[Owner::Nomad], &[Owner::Nomad]),
            ..case(
                "registry.test/others:1",
                &[Owner::Nomad],
                &[Owner::Nomad],
                false,
            )
        },
    ]
}

async fn pull(scope: &Scope, image: &str) {
    let request = PullRequest {
        reference: image.to_owned(),
        credentials: Credentials::Anonymous,
        handler: String::new(),
        owner: scope.owner(),
    };
    scope.images().pull(&request).await.unwrap();
}

/// A task of this owner that is created from this image.
async fn task(scope: &Scope, image: &str) -> Arc<Task> {
    let sandbox = scope
        .sandboxes()
        .create(specs::sandbox(scope.owner(), image))
        .await
        .unwrap();
    let spec = specs::task(scope.owner(), image, image, ENDLESS);
    let created = scope.tasks().create(&sandbox.id.to_string(), spec).await;
    created.unwrap()
}

/// A node with the images of all cases.
async fn node() -> FakeNode {
    let fake = cases()
        .into_iter()
        .fold(Fake::with_busybox(), |fake, case| {
            let image = FakeImage {
                pinned: case.pinned,
                ..FakeImage::default()
            };
            fake.with_image(case.image, image)
        });
    let node = FakeNode::over(fake).await;
    for case in cases() {
        for owner in case.holders {
            pull(&node.gateway.scope(*owner), case.image).await;
        }
        for owner in case.users {
            task(&node.gateway.scope(*owner), case.image).await;
        }
    }
    node
}

async fn unused(scope: &Scope) -> Vec<String> {
    let images = scope.images().unused().await.unwrap();
    images
        .into_iter()
        .flat_map(|image| image.repo_tags)
        .collect()
}

#[tokio::test]
async fn unused_images_are_those_that_an_owner_holds_and_no_task_of_it_uses() {
    let node = node().await;
    let swarm = node.gateway.scope(Owner::Swarm);
    let listed = unused(&swarm).await;
    for case in cases() {
        let image = case.image;
        assert_eq!(
            listed.iter().any(|name| name == image),
            case.is_unused,
            "{image}"
        );
        let others = swarm.images().other_keepers(image).await.unwrap();
        assert_eq!(others, case.others, "{image}");
        let removed = swarm.images().remove_unused(image).await;
        if case.users.contains(&Owner::Swarm) {
            assert_eq!(refused(removed), ErrorKind::FailedPrecondition, "{image}");
            assert!(swarm.images().find(image).await.unwrap().is_some());
            continue;
        }
        removed.unwrap();
        let stays = swarm.images().find(image).await.unwrap();
        assert_eq!(stays.is_some(), !case.others.is_empty(), "{image}");
        assert!(stays.is_none_or(|image| !image.holders.contains_key(&Owner::Swarm)));
    }
    assert_eq!(unused(&swarm).await, Vec::<String>::new());
    node.is_sound();
}

#[tokio::test]
async fn image_from_which_its_owner_creates_a_task_is_not_unused() {
    let node = node().await;
    let swarm = node.gateway.scope(Owner::Swarm);
    let by_id = "registry.test/shared:1";
    let id = swarm.images().find(by_id).await.unwrap().unwrap().id;
    // As Swarm asks for images, and as Nomad and kubelets do.
    for (image, reference) in [
        ("registry.test/held:1", "registry.test/held:1"),
        (by_id, id.as_str()),
    ] {
        let held = node.fake.hold(Method::CreateTask);
        let created = task(&swarm, reference);
        let tried = async {
            held.arrived(1).await;
            assert!(!unused(&swarm).await.iter().any(|name| name == image));
            let nomad = node.gateway.scope(Owner::Nomad);
            let keepers = nomad.images().other_keepers(image).await.unwrap();
            assert_eq!(keepers.users, [Owner::Swarm]);
            // Under another name than that of the task.
            let id = swarm.images().find(image).await.unwrap().unwrap().id;
            for name in [image, id.as_str()] {
                let removed = swarm.images().remove_unused(name).await;
                assert_eq!(refused(removed), ErrorKind::FailedPrecondition);
            }
            held.release();
        };
        let (_, ()) = tokio::join!(created, tried);
    }
    node.is_sound();
}

#[test]
fn keepers_are_named_in_words() {
    let of = |holders: &[Owner], users: &[Owner]| {
        ImageKeepers {
            holders: holders.to_vec(),
            users: users.to_vec(),
        }
        .to_string()
    };
    let (nomad, swarm, host) = (Owner::Nomad, Owner::Swarm, Owner::Host);
    for (keepers, expected) in [
        (of(&[], &[]), ""),
        (of(&[nomad], &[]), "held by nomad"),
        (of(&[], &[swarm]), "used by tasks of swarm"),
        (
            of(&[nomad, host], &[nomad]),
            "held by nomad and host, used by tasks of nomad",
        ),
    ] {
        assert_eq!(keepers, expected);
    }
}
