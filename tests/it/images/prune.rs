//! Images that an owner gives up while it pulls them and creates tasks from them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use switchyard_contract::Fixture;
use switchyard_core::ErrorKind;
use switchyard_core::gateway::Scope;
use switchyard_core::id::Owner;
use switchyard_core::image::Credentials;
use switchyard_tests::backend_fixture::BackendFixture;

use super::ownership::{TwoOwners, only, request, run};

/// Gives up what this owner does not use, again and again until it is told to end; returns how often that succeeded.
async fn prune_until(scope: Scope, done: Arc<AtomicBool>) -> usize {
    let mut removed = 0;
    while !done.load(Ordering::Relaxed) {
        let unused = scope.images().unused().await.expect("they can be listed");
        for image in unused {
            match scope.images().remove_unused(image.id.as_str()).await {
                Ok(()) => removed += 1,
                // It came into use since it was listed.
                Err(error) => assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}"),
            }
        }
        tokio::task::yield_now().await;
    }
    removed
}

#[tokio::test(flavor = "multi_thread")]
async fn prunes_beside_pulls_and_creations_take_no_image_that_is_used_or_of_others() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let image = world.image();
    let TwoOwners { kubernetes, nomad } = TwoOwners::of(world.backend()).await;
    let pull = request(Owner::Nomad, &image, Credentials::Anonymous);
    let others = request(Owner::Kubernetes, &image, Credentials::Anonymous);
    for is_of_others in [true, false] {
        if is_of_others {
            let pulled = kubernetes.images().pull(&others).await;
            pulled.expect("everybody may");
        }
        let done = Arc::new(AtomicBool::new(false));
        let pruning = tokio::spawn(prune_until(nomad.clone(), Arc::clone(&done)));
        for _ in 0..5 {
            // As the frontends do if the image goes after the pull and before the task is created.
            let task = loop {
                nomad.images().pull(&pull).await.expect("everybody may");
                match run(&world, &nomad, &image).await {
                    Err(error) if error.kind() == ErrorKind::NotFound && !is_of_others => {}
                    made => break made.expect("it is there"),
                }
            };
            let found = nomad.images().find(&image).await;
            assert!(found.expect("it is asked for").is_some(), "it is in use");
            let removed = nomad.tasks().remove(&task).await;
            removed.expect("it can be removed");
        }
        // The last one is given up too.
        while !nomad
            .images()
            .unused()
            .await
            .expect("it can be read")
            .is_empty()
        {
            tokio::task::yield_now().await;
        }
        done.store(true, Ordering::Relaxed);
        assert!(pruning.await.expect("it does not panic") > 0);
        if is_of_others {
            let kept = only(&kubernetes).await;
            assert_eq!(
                kept.holders.keys().collect::<Vec<_>>(),
                [&Owner::Kubernetes]
            );
            let removed = kubernetes.images().remove(&image).await;
            removed.expect("it can be removed");
        }
        let left = nomad.images().list().await;
        assert_eq!(left.expect("they can be listed"), []);
    }
}
