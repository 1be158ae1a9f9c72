//! Facts about images.

use switchyard_core::ErrorKind;
use switchyard_core::id::Owner;
use switchyard_core::image::{Credentials, Right};

use crate::Fixture;
use crate::lab::{ContractTest, refused};

/// By tag, by tag again, and by digest.
pub async fn pulling_twice_gives_the_same_id(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    let id = lab.pull().await.expect("pull");
    assert_eq!(lab.pull().await.expect("pull again"), id);
    let image = lab.backend.images().get(id.as_str()).await.expect("get").expect("it was pulled");
    assert_eq!(lab.pull_from(&image.repo_digests[0]).await.expect("pull by digest"), id);
    assert_eq!(lab.backend.images().list().await.expect("list").len(), 1);
}

/// They share one download, or do not affect each other.
pub async fn pulls_at_the_same_time_give_the_same_id(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    let pulls = futures::future::join_all((0..8).map(|_| lab.pull())).await;
    let ids: Vec<_> = pulls.into_iter().map(|pulled| pulled.expect("pull")).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(lab.backend.images().list().await.expect("list").len(), 1);
}

/// Id with and without `sha256:`, prefix of the id, tag, digest.
pub async fn an_image_is_found_by_each_of_its_names(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    let images = lab.backend.images();
    assert_eq!(images.get(&fixture.image()).await.expect("get"), None);
    let id = lab.pull().await.expect("pull");
    let image = images.get(&fixture.image()).await.expect("get").expect("it was pulled");
    assert_eq!(image.id, id);
    assert!(image.size_bytes > 0);
    let digits = id.as_str().strip_prefix("sha256:").expect("an id is a digest");
    let mut names = vec![id.as_str(), digits, &digits[..12], &image.repo_digests[0]];
    names.extend(image.repo_tags.iter().map(String::as_str));
    assert!(!image.repo_tags.is_empty());
    for name in names {
        assert_eq!(images.get(name).await.expect("get").as_ref(), Some(&image), "{name}");
    }
    assert_eq!(images.list().await.expect("list"), [image]);
    let config = images.config(&id).await.expect("its configuration");
    assert!(config.starts_with('{') && config.contains("\"os\""), "{config}");
}

/// The image cannot be found by any name afterwards; it can be pulled again.
pub async fn removal_by_one_name_removes_all_names(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    let images = lab.backend.images();
    let id = lab.pull().await.expect("pull");
    let image = images.get(id.as_str()).await.expect("get").expect("it was pulled");
    lab.pull_from(&image.repo_digests[0]).await.expect("pull by digest");
    images.remove(&fixture.image(), Owner::Host, false).await.expect("remove");
    for name in [&fixture.image(), &image.repo_digests[0], &id.to_string()] {
        assert_eq!(images.get(name).await.expect("get"), None, "{name}");
    }
    assert_eq!(images.list().await.expect("list"), []);
    assert_eq!(lab.pull().await.expect("pull after removal"), id);
    images.remove(id.as_str(), Owner::Host, false).await.expect("remove by id");
    assert_eq!(images.list().await.expect("list"), []);
}

/// An owner's removal does not affect other holders; an image in use by others keeps its names.
pub async fn a_removal_takes_only_what_its_owner_holds(fixture: &dyn Fixture) {
    let mut lab = ContractTest::open(fixture).await;
    let id = lab.pull().await.expect("pull");
    assert_eq!(lab.pull_for(Owner::Swarm).await.expect("pull for another"), id);
    let holders = |lab: &ContractTest<'_>| {
        let backend = std::sync::Arc::clone(&lab.backend);
        let name = id.to_string();
        async move {
            let image = backend.images().get(&name).await.expect("get");
            image.map(|image| image.holders.into_iter().collect::<Vec<_>>())
        }
    };
    let both = vec![(Owner::Swarm, Right::Open), (Owner::Host, Right::Open)];
    assert_eq!(holders(&lab).await, Some(both.clone()));
    lab.reopen().await;
    assert_eq!(holders(&lab).await, Some(both));
    let name = fixture.image();
    let remove = |owner, in_use| lab.backend.images().remove(&name, owner, in_use);
    remove(Owner::Host, false).await.expect("remove");
    assert_eq!(holders(&lab).await, Some(vec![(Owner::Swarm, Right::Open)]));
    remove(Owner::Nomad, false).await.expect("remove what one does not hold");
    assert_eq!(holders(&lab).await, Some(vec![(Owner::Swarm, Right::Open)]));
    remove(Owner::Swarm, true).await.expect("remove what others use");
    assert_eq!(holders(&lab).await, Some(Vec::new()));
    remove(Owner::Swarm, false).await.expect("remove what nobody holds");
    assert_eq!(holders(&lab).await, None);
}

/// Although others use it, also after a restart, and until it is pulled again.
pub async fn what_its_last_holder_had_by_credentials_is_nobodys_afterwards(fixture: &dyn Fixture) {
    let mut lab = ContractTest::open(fixture).await;
    let secret = || Credentials::Basic { username: "user".into(), password: "secret".into() };
    let id = lab.pull_with(Owner::Host, secret()).await.expect("pull with credentials");
    let name = fixture.image();
    let open = |lab: &ContractTest<'_>| {
        let backend = std::sync::Arc::clone(&lab.backend);
        let name = id.to_string();
        async move {
            let image = backend.images().get(&name).await.expect("get").expect("it is there");
            Owner::ALL.into_iter().filter(|owner| image.is_open_to(*owner)).collect::<Vec<_>>()
        }
    };
    assert_eq!(open(&lab).await, [Owner::Host]);
    lab.backend.images().remove(&name, Owner::Host, true).await.expect("remove what others use");
    assert_eq!(open(&lab).await, []);
    lab.reopen().await;
    assert_eq!(open(&lab).await, []);
    lab.pull_with(Owner::Swarm, secret()).await.expect("pull again");
    assert_eq!(open(&lab).await, [Owner::Swarm]);
    // A public image stays visible to all.
    lab.pull_for(Owner::Host).await.expect("pull without credentials");
    for owner in [Owner::Swarm, Owner::Host] {
        lab.backend.images().remove(&name, owner, true).await.expect("remove what others use");
    }
    assert_eq!(open(&lab).await, Owner::ALL);
    lab.backend.images().remove(&name, Owner::Swarm, false).await.expect("remove what nobody holds");
    assert_eq!(lab.backend.images().get(&name).await.expect("get"), None);
}

/// By any kind of name.
pub async fn removal_of_a_missing_image_is_done(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    let unknown = format!("sha256:{}", "0".repeat(64));
    for name in [&fixture.image(), "localhost/no/such-image:1", &unknown] {
        lab.backend.images().remove(name, Owner::Host, false).await.expect("remove");
    }
}

/// `None`, whatever the text is.
pub async fn a_text_that_names_nothing_is_no_error(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    lab.pull().await.expect("pull");
    for text in
        ["", " ", "UPPER CASE", "::", "@", "sha256:", "sha256:zz", "../..", "\u{1f600}", "no-such-image"]
    {
        assert_eq!(lab.backend.images().get(text).await.expect("get"), None, "{text:?}");
    }
}

/// `InvalidArgument`.
pub async fn a_malformed_reference_cannot_be_pulled(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    for text in ["", "UPPER CASE", "a:b:c", "name@sha256:12"] {
        assert_eq!(refused(lab.pull_from(text).await), ErrorKind::InvalidArgument, "{text:?}");
    }
}

/// `NotFound`, and no incomplete image becomes visible.
pub async fn an_image_that_the_registry_lacks_is_not_found(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    let image = fixture.image();
    let slash = image.rfind('/').expect("the fixture's image names its registry");
    let missing = format!("{}/no-such-image:no-such-tag", &image[..slash]);
    assert_eq!(refused(lab.pull_from(&missing).await), ErrorKind::NotFound);
    assert_eq!(lab.backend.images().list().await.expect("list"), []);
}

/// The remains of a dropped pull do not prevent a new one.
pub async fn an_abandoned_pull_can_be_taken_up_again(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    for _ in 0..3 {
        let mut pull = Box::pin(lab.pull());
        let _ = futures::poll!(&mut pull);
    }
    let id = lab.pull().await.expect("pull");
    assert!(lab.backend.images().get(id.as_str()).await.expect("get").is_some());
}

/// The next daemon has them too.
pub async fn images_survive_the_daemon(fixture: &dyn Fixture) {
    let mut lab = ContractTest::open(fixture).await;
    lab.pull().await.expect("pull");
    let before = lab.backend.images().list().await.expect("list");
    lab.reopen().await;
    assert_eq!(lab.backend.images().list().await.expect("list"), before);
}

/// At least one file system is reported.
pub async fn images_use_disk(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    lab.pull().await.expect("pull");
    let usage = lab.backend.images().usage().await.expect("usage");
    assert!(usage.iter().any(|disk| disk.used_bytes > 0), "{usage:?}");
}
