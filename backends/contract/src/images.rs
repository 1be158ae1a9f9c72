//! Facts about images.

use switchyard_core::id::Owner;
use switchyard_core::image::{Credentials, ImageId, Right};
use switchyard_core::{ErrorKind, Result};

use crate::Fixture;
use crate::contract_test::ContractTest;
use crate::refused;

/// Other owners use no image.
fn unused(_image: &ImageId, _is_named: &dyn Fn(&str) -> bool) -> Result<bool> {
    Ok(false)
}

/// Other owners use every image.
fn used(_image: &ImageId, _is_named: &dyn Fn(&str) -> bool) -> Result<bool> {
    Ok(true)
}

/// By tag, by tag again, and by digest.
pub async fn repeated_pull_returns_the_same_id(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    let id = test.pull().await.expect("pull");
    assert_eq!(test.pull().await.expect("pull again"), id);
    let image = test
        .backend
        .images()
        .get(id.as_str())
        .await
        .expect("get")
        .expect("it was pulled");
    assert_eq!(
        test.pull_from(&image.repo_digests[0])
            .await
            .expect("pull by digest"),
        id
    );
    assert_eq!(test.backend.images().list().await.expect("list").len(), 1);
}

/// They share one download, or do not affect each other.
pub async fn concurrent_pulls_return_the_same_id(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    let pulls = futures::future::join_all((0..8).map(|_| test.pull())).await;
    let ids: Vec<_> = pulls
        .into_iter()
        .map(|pulled| pulled.expect("pull"))
        .collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(test.backend.images().list().await.expect("list").len(), 1);
}

/// Id with and without `sha256:`, prefix of the id, tag, digest.
pub async fn image_is_found_by_each_of_its_names(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    let images = test.backend.images();
    assert_eq!(images.get(&fixture.image()).await.expect("get"), None);
    let id = test.pull().await.expect("pull");
    let image = images
        .get(&fixture.image())
        .await
        .expect("get")
        .expect("it was pulled");
    assert_eq!(image.id, id);
    assert!(image.size_bytes > 0);
    let digits = id
        .as_str()
        .strip_prefix("sha256:")
        .expect("an id is a digest");
    let mut names = vec![id.as_str(), digits, &digits[..12], &image.repo_digests[0]];
    names.extend(image.repo_tags.iter().map(String::as_str));
    assert!(!image.repo_tags.is_empty());
    for name in names {
        assert_eq!(
            images.get(name).await.expect("get").as_ref(),
            Some(&image),
            "{name}"
        );
    }
    assert_eq!(images.list().await.expect("list"), [image]);
    let config = images.config(&id).await.expect("its configuration");
    assert!(
        config.starts_with('{') && config.contains("\"os\""),
        "{config}"
    );
}

/// The image cannot be found by any name afterwards; it can be pulled again.
pub async fn image_removal_removes_all_names(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    let images = test.backend.images();
    let id = test.pull().await.expect("pull");
    let image = images
        .get(id.as_str())
        .await
        .expect("get")
        .expect("it was pulled");
    test.pull_from(&image.repo_digests[0])
        .await
        .expect("pull by digest");
    images
        .remove(&fixture.image(), Owner::Host, &unused)
        .await
        .expect("remove");
    for name in [&fixture.image(), &image.repo_digests[0], &id.to_string()] {
        assert_eq!(images.get(name).await.expect("get"), None, "{name}");
    }
    assert_eq!(images.list().await.expect("list"), []);
    assert_eq!(test.pull().await.expect("pull after removal"), id);
    images
        .remove(id.as_str(), Owner::Host, &unused)
        .await
        .expect("remove by id");
    assert_eq!(images.list().await.expect("list"), []);
}

/// An owner's removal does not affect other holders; an image in use by others keeps its names.
pub async fn image_removal_affects_only_its_owner(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    let id = test.pull().await.expect("pull");
    assert_eq!(
        test.pull_for(Owner::Swarm).await.expect("pull for another"),
        id
    );
    let holders = |test: &ContractTest<'_>| {
        let backend = std::sync::Arc::clone(&test.backend);
        let name = id.to_string();
        async move {
            let image = backend.images().get(&name).await.expect("get");
            image.map(|image| image.holders.into_iter().collect::<Vec<_>>())
        }
    };
    let both = vec![(Owner::Swarm, Right::Open), (Owner::Host, Right::Open)];
    assert_eq!(holders(&test).await, Some(both.clone()));
    test.reopen().await;
    assert_eq!(holders(&test).await, Some(both));
    let name = fixture.image();
    let remove = |owner| test.backend.images().remove(&name, owner, &unused);
    remove(Owner::Host).await.expect("remove");
    assert_eq!(
        holders(&test).await,
        Some(vec![(Owner::Swarm, Right::Open)])
    );
    remove(Owner::Nomad)
        .await
        .expect("remove what one does not hold");
    assert_eq!(
        holders(&test).await,
        Some(vec![(Owner::Swarm, Right::Open)])
    );
    test.backend
        .images()
        .remove(&name, Owner::Swarm, &used)
        .await
        .expect("remove what others use");
    assert_eq!(holders(&test).await, Some(Vec::new()));
    remove(Owner::Swarm)
        .await
        .expect("remove what nobody holds");
    assert_eq!(holders(&test).await, None);
}

/// Although others use it, also after a restart, and until it is pulled again.
pub async fn private_image_is_inaccessible_after_its_last_holder(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    let secret = || Credentials::Basic {
        username: "user".into(),
        password: "secret".into(),
    };
    let id = test
        .pull_with(Owner::Host, secret())
        .await
        .expect("pull with credentials");
    let name = fixture.image();
    let open = |test: &ContractTest<'_>| {
        let backend = std::sync::Arc::clone(&test.backend);
        let name = id.to_string();
        async move {
            let image = backend
                .images()
                .get(&name)
                .await
                .expect("get")
                .expect("it is there");
            Owner::ALL
                .into_iter()
                .filter(|owner| image.is_open_to(*owner))
                .collect::<Vec<_>>()
        }
    };
    assert_eq!(open(&test).await, [Owner::Host]);
    test.backend
        .images()
        .remove(&name, Owner::Host, &used)
        .await
        .expect("remove what others use");
    assert_eq!(open(&test).await, []);
    test.reopen().await;
    assert_eq!(open(&test).await, []);
    test.pull_with(Owner::Swarm, secret())
        .await
        .expect("pull again");
    assert_eq!(open(&test).await, [Owner::Swarm]);
    // A public image stays visible to all.
    test.pull_for(Owner::Host)
        .await
        .expect("pull without credentials");
    for owner in [Owner::Swarm, Owner::Host] {
        test.backend
            .images()
            .remove(&name, owner, &used)
            .await
            .expect("remove what others use");
    }
    assert_eq!(open(&test).await, Owner::ALL);
    test.backend
        .images()
        .remove(&name, Owner::Swarm, &unused)
        .await
        .expect("remove what nobody holds");
    assert_eq!(test.backend.images().get(&name).await.expect("get"), None);
}

/// By any kind of name.
pub async fn removal_of_a_missing_image_succeeds(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    let unknown = format!("sha256:{}", "0".repeat(64));
    for name in [&fixture.image(), "localhost/no/such-image:1", &unknown] {
        test.backend
            .images()
            .remove(name, Owner::Host, &unused)
            .await
            .expect("remove");
    }
}

/// `None`, whatever the text is.
pub async fn lookup_of_an_unknown_image_is_none(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    test.pull().await.expect("pull");
    for text in [
        "",
        " ",
        "UPPER CASE",
        "::",
        "@",
        "sha256:",
        "sha256:zz",
        "../..",
        "\u{1f600}",
        "no-such-image",
    ] {
        assert_eq!(
            test.backend.images().get(text).await.expect("get"),
            None,
            "{text:?}"
        );
    }
}

/// `InvalidArgument`.
pub async fn pull_of_a_malformed_reference_fails(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    for text in ["", "UPPER CASE", "a:b:c", "name@sha256:12"] {
        assert_eq!(
            refused(test.pull_from(text).await),
            ErrorKind::InvalidArgument,
            "{text:?}"
        );
    }
}

/// `NotFound`, and no incomplete image becomes visible.
pub async fn image_missing_in_the_registry_is_not_found(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    let image = fixture.image();
    let slash = image
        .rfind('/')
        .expect("the fixture's image names its registry");
    let missing = format!("{}/no-such-image:no-such-tag", &image[..slash]);
    assert_eq!(refused(test.pull_from(&missing).await), ErrorKind::NotFound);
    assert_eq!(test.backend.images().list().await.expect("list"), []);
}

/// The remains of a dropped pull do not prevent a new one.
pub async fn cancelled_pull_can_be_resumed(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    for _ in 0..3 {
        let mut pull = Box::pin(test.pull());
        let _ = futures::poll!(&mut pull);
    }
    let id = test.pull().await.expect("pull");
    assert!(
        test.backend
            .images()
            .get(id.as_str())
            .await
            .expect("get")
            .is_some()
    );
}

/// The next daemon has them too.
pub async fn images_survive_daemon_restart(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    test.pull().await.expect("pull");
    let before = test.backend.images().list().await.expect("list");
    test.reopen().await;
    assert_eq!(test.backend.images().list().await.expect("list"), before);
}

/// At least one file system is reported.
pub async fn images_use_disk(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    test.pull().await.expect("pull");
    let usage = test.backend.images().usage().await.expect("usage");
    assert!(usage.iter().any(|disk| disk.used_bytes > 0), "{usage:?}");
}
