//! Owners of an image: rights that credentials prove, removals that take only the caller's own right, and
//! pinned images.

use std::sync::Arc;

use switchyard_contract::{Fixture, specs};
use switchyard_core::ErrorKind;
use switchyard_core::gateway::{Gateway, Limits, Scope};
use switchyard_core::id::Owner;
use switchyard_core::image::{Credentials, Image, ImageId, PullRequest, Right};
use switchyard_core::spec::{Mount, MountSource, SandboxSpec};
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::registry::Registry;
use switchyard_tests::registry_proxy::Access;

use crate::images::with_file;

mod cri;

/// Two owners on one node.
pub(super) struct TwoOwners {
    pub(super) kubernetes: Scope,
    pub(super) nomad: Scope,
}

impl TwoOwners {
    /// Both, after a start of the gateway over this backend.
    pub(super) async fn of(backend: Arc<dyn switchyard_core::backend::Backend>) -> Self {
        let gateway = Gateway::new(backend, Limits::default());
        gateway.recover().await.expect("it recovers");
        Self {
            kubernetes: gateway.scope(Owner::Kubernetes),
            nomad: gateway.scope(Owner::Nomad),
        }
    }
}

pub(super) fn request(owner: Owner, reference: &str, credentials: Credentials) -> PullRequest {
    PullRequest {
        reference: reference.to_owned(),
        credentials,
        handler: String::new(),
        owner,
    }
}

fn secret() -> Credentials {
    Credentials::Basic {
        username: "user".into(),
        password: "secret".into(),
    }
}

pub(super) async fn only(scope: &Scope) -> Image {
    let mut images = scope.images().list().await.expect("they can be listed");
    assert_eq!(images.len(), 1, "{images:#?}");
    images.remove(0)
}

/// Makes a task of the owner's; its id, or why not.
pub(super) async fn run(
    world: &BackendFixture,
    scope: &Scope,
    image: &str,
) -> switchyard_core::Result<String> {
    let owner = scope.owner();
    let mut spec: SandboxSpec = world.sandbox_spec("pod");
    spec.meta = specs::meta(owner, "pod");
    let sandbox = scope.sandboxes().create(spec).await?;
    let mut task = specs::task(owner, "task", image, &["true"]);
    task.meta = specs::meta(owner, "task");
    Ok(scope
        .tasks()
        .create(&sandbox.id.to_string(), task)
        .await?
        .id
        .to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn image_pulled_with_credentials_needs_own_credentials_of_others() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let access = Access::Basic {
        user: "user".into(),
        password: "secret".into(),
    };
    let registry = tokio::task::block_in_place(|| Registry::start_behind_proxy(access));
    registry.push("private/held:1", &with_file("held").build());
    let image = registry.reference("private/held:1");
    let TwoOwners { kubernetes, nomad } = TwoOwners::of(world.backend()).await;
    let id = kubernetes
        .images()
        .pull(&request(Owner::Kubernetes, &image, secret()))
        .await
        .expect("it may");

    assert_image_is_not_of(&world, &nomad, &image, &id).await;

    let again = nomad
        .images()
        .pull(&request(Owner::Nomad, &image, secret()))
        .await
        .expect("it may as well");
    assert_eq!(again, id);
    let task = run(&world, &nomad, &image)
        .await
        .expect("now it is its to use");

    // All of that outlives the daemon.
    let TwoOwners { kubernetes, nomad } = TwoOwners::of(world.reopen().await).await;
    let held = only(&nomad).await.holders;
    assert_eq!(
        held,
        [
            (Owner::Kubernetes, Right::Private),
            (Owner::Nomad, Right::Private)
        ]
        .into()
    );
    let seen = kubernetes
        .images()
        .find(&image)
        .await
        .expect("it is asked for")
        .expect("it holds it");
    assert!(seen.pinned, "another owner's task uses it");

    kubernetes
        .images()
        .remove(&image)
        .await
        .expect("it lets go");
    assert_eq!(
        kubernetes
            .images()
            .find(&image)
            .await
            .expect("it is asked for"),
        None,
        "its right went with it"
    );
    assert!(
        only(&kubernetes).await.pinned,
        "there is nothing for it to remove"
    );
    assert!(
        nomad
            .images()
            .find(&image)
            .await
            .expect("it is asked for")
            .is_some()
    );
    nomad
        .tasks()
        .remove(&task)
        .await
        .expect("it can be removed");
    nomad.images().remove(&image).await.expect("it lets go");
    assert_eq!(nomad.images().list().await.expect("they can be listed"), []);
}

/// The image is listed for all, and belongs to no other owner: neither by any name nor by its id.
async fn assert_image_is_not_of(world: &BackendFixture, nomad: &Scope, image: &str, id: &ImageId) {
    assert_eq!(only(nomad).await.id, *id);
    for name in [image, id.as_str()] {
        assert_eq!(
            nomad.images().find(name).await.expect("it is asked for"),
            None,
            "{name}"
        );
        let error = run(world, nomad, name)
            .await
            .expect_err("it is not its to use");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.report());
        assert!(
            error.report().contains("credentials that are not nomad's"),
            "{}",
            error.report()
        );
    }
    let wrong = Credentials::Basic {
        username: "user".into(),
        password: "guessed".into(),
    };
    for credentials in [Credentials::Anonymous, wrong] {
        let refused = nomad
            .images()
            .pull(&request(Owner::Nomad, image, credentials))
            .await;
        assert_eq!(
            refused.expect_err("the registry refuses").kind(),
            ErrorKind::Unauthenticated
        );
        assert_eq!(
            nomad.images().find(image).await.expect("it is asked for"),
            None
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn private_image_of_two_owners_is_never_open_and_goes_with_the_last() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let access = Access::Basic {
        user: "user".into(),
        password: "secret".into(),
    };
    let registry = tokio::task::block_in_place(|| Registry::start_behind_proxy(access));
    registry.push("private/raced:1", &with_file("raced").build());
    let image = registry.reference("private/raced:1");
    let gateway = Gateway::new(world.backend(), Limits::default());
    gateway.recover().await.expect("it recovers");
    let holders = [Owner::Kubernetes, Owner::Nomad].map(|owner| gateway.scope(owner));
    let stranger = gateway.scope(Owner::Swarm);
    for round in 0..8 {
        for holder in &holders {
            holder
                .images()
                .pull(&request(holder.owner(), &image, secret()))
                .await
                .expect("it may");
        }
        // Sixteen at once: removals by both, pulls by one of them in every other round.
        let changes = (0..16).map(|number| {
            let holder = holders[number % 2].clone();
            let image = image.clone();
            tokio::spawn(async move {
                if round % 2 == 1 && number % 4 == 2 {
                    holder
                        .images()
                        .pull(&request(holder.owner(), &image, secret()))
                        .await
                        .map(drop)
                } else {
                    holder.images().remove(&image).await
                }
            })
        });
        for change in changes.collect::<Vec<_>>() {
            change
                .await
                .expect("it does not panic")
                .expect("each succeeds");
            assert_eq!(
                stranger
                    .images()
                    .find(&image)
                    .await
                    .expect("it is asked for"),
                None,
                "round {round}"
            );
        }
        if round % 2 == 0 {
            assert_eq!(
                stranger.images().list().await.expect("they can be listed"),
                [],
                "round {round}"
            );
        }
        for holder in &holders {
            holder
                .images()
                .remove(&image)
                .await
                .expect("it can be removed");
        }
        assert_eq!(
            stranger.images().list().await.expect("they can be listed"),
            [],
            "round {round}"
        );
        assert_pull_is_kept_beside_a_removal(&holders, &image).await;
    }
}

/// A pull that has answered is there, whoever removes the image at the same time.
async fn assert_pull_is_kept_beside_a_removal([first, second]: &[Scope; 2], image: &str) {
    first
        .images()
        .pull(&request(first.owner(), image, secret()))
        .await
        .expect("it may");
    let again = request(second.owner(), image, secret());
    let (pulled, removed) =
        tokio::join!(second.images().pull(&again), first.images().remove(image));
    pulled.expect("it may");
    removed.expect("it can be removed");
    assert!(
        second
            .images()
            .find(image)
            .await
            .expect("it is asked for")
            .is_some()
    );
    second
        .images()
        .remove(image)
        .await
        .expect("it can be removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn public_image_is_shared_and_stays_while_in_use() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let image = world.image();
    let TwoOwners { kubernetes, nomad } = TwoOwners::of(world.backend()).await;
    kubernetes
        .images()
        .pull(&request(Owner::Kubernetes, &image, Credentials::Anonymous))
        .await
        .expect("everybody may");
    assert!(!only(&kubernetes).await.pinned);
    let task = run(&world, &nomad, &image)
        .await
        .expect("what is open to all is open to it");
    assert!(
        only(&kubernetes).await.pinned,
        "another owner's task uses it"
    );
    kubernetes
        .images()
        .remove(&image)
        .await
        .expect("it lets go");
    assert!(
        nomad
            .images()
            .find(&image)
            .await
            .expect("it is asked for")
            .is_some(),
        "it is in use"
    );
    nomad
        .tasks()
        .remove(&task)
        .await
        .expect("it can be removed");
    assert!(
        !only(&kubernetes).await.pinned,
        "nobody uses it, nobody holds it"
    );
    kubernetes
        .images()
        .remove(&image)
        .await
        .expect("it can be removed");
    assert_eq!(
        kubernetes
            .images()
            .list()
            .await
            .expect("they can be listed"),
        []
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn image_used_as_a_volume_by_another_task_is_pinned() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    world
        .registry()
        .push("held/volume:1", &with_file("shown").build());
    let image = world.image();
    let volume = world.registry().reference("held/volume:1");
    let TwoOwners { kubernetes, nomad } = TwoOwners::of(world.backend()).await;
    for image in [&image, &volume] {
        let pull = request(Owner::Kubernetes, image, Credentials::Anonymous);
        kubernetes
            .images()
            .pull(&pull)
            .await
            .expect("everybody may");
    }
    let sandbox = SandboxSpec {
        meta: specs::meta(Owner::Nomad, "pod"),
        ..world.sandbox_spec("pod")
    };
    let sandbox = nomad
        .sandboxes()
        .create(sandbox)
        .await
        .expect("it can be made")
        .id
        .to_string();
    let mut task = specs::task(Owner::Nomad, "task", &image, &["true"]);
    let source = MountSource::Image {
        reference: volume.clone(),
        sub_path: "".into(),
    };
    task.mounts = vec![Mount {
        readonly: true,
        ..Mount::new("/shown", source)
    }];
    let task = nomad
        .tasks()
        .create(&sandbox, task)
        .await
        .expect("it can be made")
        .id
        .to_string();

    // The owner's right survives a restart of the daemon.
    let TwoOwners { kubernetes, nomad } = TwoOwners::of(world.reopen().await).await;
    let seen = async |scope: &Scope| {
        scope
            .images()
            .find(&volume)
            .await
            .expect("it is asked for")
            .map(|image| image.pinned)
    };
    assert_eq!(
        seen(&kubernetes).await,
        Some(true),
        "another owner's task has it as a volume"
    );
    kubernetes
        .images()
        .remove(&volume)
        .await
        .expect("it lets go");
    assert_eq!(seen(&nomad).await, Some(false), "its own task has it");
    nomad
        .tasks()
        .remove(&task)
        .await
        .expect("it can be removed");
    kubernetes
        .images()
        .remove(&volume)
        .await
        .expect("it can be removed");
    assert_eq!(seen(&kubernetes).await, None);
}
