//! Tests of which images are given up, and when, over a fake backend.

use std::sync::Arc;

use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_core::image::{Credentials, PullRequest};
use switchyard_fake::{Fake, FakeImage, Method};
use tokio::time::advance;
use tokio_util::task::AbortOnDropHandle;

use super::*;

const IMAGES: [&str; 2] = ["registry.test/one:1", "registry.test/two:1"];

/// A gateway whose swarm holds all images, and Nomad the last one.
async fn gateway() -> (Fake, Gateway) {
    let fake = IMAGES.into_iter().fold(Fake::new(), |fake, image| {
        fake.with_image(image, FakeImage::default())
    });
    let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
    gateway.recover().await.unwrap();
    for image in IMAGES {
        pull(&gateway, Owner::Swarm, image).await;
    }
    pull(&gateway, Owner::Nomad, IMAGES[1]).await;
    (fake, gateway)
}

async fn pull(gateway: &Gateway, owner: Owner, image: &str) {
    let request = PullRequest {
        reference: image.to_owned(),
        credentials: Credentials::Anonymous,
        handler: String::new(),
        owner,
    };
    let scope = gateway.scope(owner);
    scope.images().pull(&request).await.unwrap();
}

/// The names of the images that the node has, each with its number of holders.
async fn left(gateway: &Gateway) -> Vec<(String, usize)> {
    let images = gateway.images().store().list().await.unwrap();
    let mut left: Vec<_> = images
        .into_iter()
        .map(|image| (image.repo_tags[0].clone(), image.holders.len()))
        .collect();
    left.sort();
    left
}

fn image(id: &str) -> Image {
    Image {
        id: ImageId::new(id),
        repo_tags: Vec::new(),
        repo_digests: Vec::new(),
        size_bytes: 1,
        user: String::new(),
        volumes: Vec::new(),
        labels: BTreeMap::new(),
        pinned: false,
        holders: BTreeMap::new(),
        imported: false,
        stored_at: None,
    }
}

#[test]
fn image_is_due_once_it_was_not_used_for_the_whole_time() {
    let begin = Instant::now();
    let hours = |hours: u64| Duration::from_secs(3600 * hours);
    let mut known = UnusedImages::default();
    for (after, unused, due) in [
        (0, vec!["a", "b"], vec![]),
        (1, vec!["a", "b", "c"], vec![]),
        // One that came into use meanwhile begins anew.
        (2, vec!["a", "c"], vec![]),
        (3, vec!["a", "b", "c"], vec!["a"]),
        // As long as it cannot be removed.
        (4, vec!["a", "b", "c"], vec!["a", "c"]),
        (5, vec!["b"], vec![]),
        (6, vec!["a", "b"], vec!["b"]),
    ] {
        let images: Vec<Image> = unused.into_iter().map(image).collect();
        let found = known.due(&images, begin + hours(after), hours(3));
        let ids: Vec<&str> = found.iter().map(|image| image.id.as_str()).collect();
        assert_eq!(ids, due, "after {after} h");
    }
    assert_eq!(known.since.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn images_go_after_the_time_that_is_configured_and_by_default_never() {
    let (_, gateway) = gateway().await;
    let retention = Reloadable::from(None);
    let run = ImageRetention::new(gateway.scope(Owner::Swarm), retention.clone()).run();
    let _running = AbortOnDropHandle::new(tokio::spawn(run));
    let [one, two] = IMAGES.map(str::to_owned);
    let all = vec![(one, 1), (two.clone(), 2)];
    pass(Duration::from_secs(30 * 24 * 3600)).await;
    assert_eq!(left(&gateway).await, all);
    // A reload: the time begins with it.
    retention.set(Some(Duration::from_secs(3600)));
    pass(Duration::from_secs(3500)).await;
    assert_eq!(left(&gateway).await, all);
    pass(Duration::from_secs(300)).await;
    assert_eq!(left(&gateway).await, [(two, 1)], "Nomad keeps its own");
}

#[tokio::test(start_paused = true)]
async fn image_that_cannot_be_removed_keeps_no_other_one() {
    let (fake, gateway) = gateway().await;
    let retention = Reloadable::from(Some(Duration::from_secs(3600)));
    let run = ImageRetention::new(gateway.scope(Owner::Swarm), retention).run();
    let _running = AbortOnDropHandle::new(tokio::spawn(run));
    pass(Duration::from_secs(3500)).await;
    fake.fail_next(
        Method::RemoveImage,
        Error::unavailable("containerd is away"),
    );
    // It ends in the pass in which both are due, before the failed one is tried again.
    let mut holders: usize = 3;
    while holders == 3 {
        pass(Duration::from_secs(10)).await;
        holders = left(&gateway).await.iter().map(|(_, number)| number).sum();
    }
    assert_eq!(holders, 2, "one of both is given up");
    pass(Duration::from_secs(100)).await;
    let [_, two] = IMAGES.map(str::to_owned);
    assert_eq!(left(&gateway).await, [(two, 1)]);
}

/// Lets time pass in which other tasks run.
async fn pass(time: Duration) {
    let step = Duration::from_secs(50);
    let mut passed = Duration::ZERO;
    while passed < time {
        // Of a long time, only its begin and its end are of interest.
        let now = if time - passed > 100 * step {
            time - passed - 100 * step
        } else {
            step
        };
        advance(now).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        passed += now;
    }
}

#[tokio::test]
async fn all_images_are_given_up_though_one_cannot_be_removed() {
    let (fake, gateway) = gateway().await;
    let scope = gateway.scope(Owner::Swarm);
    fake.fail_next(
        Method::RemoveImage,
        Error::unavailable("containerd is away"),
    );
    give_up_all(&scope).await;
    let still_held: usize = left(&gateway)
        .await
        .iter()
        .map(|(_, holders)| holders)
        .sum();
    assert_eq!(still_held, 2, "Nomad's, and that of the failure");
    give_up_all(&scope).await;
    assert_eq!(left(&gateway).await, [(IMAGES[1].to_owned(), 1)]);
}
