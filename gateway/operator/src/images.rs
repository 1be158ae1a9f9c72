//! Images that an owner holds and does not use, and their removal for it.

use std::collections::BTreeSet;

use switchyard_core::gateway::Gateway;
use switchyard_core::id::Owner;
use switchyard_core::image::{Image, ImageKeepers};
use switchyard_core::{Error, Result};
use switchyard_operator_api::text::short_reference;
use switchyard_operator_api::{ImageView, RemovedImageView};

use crate::inspect;

/// The images that this owner holds and none of its tasks uses.
///
/// # Errors
/// Those of [`ScopedImages::unused`](switchyard_core::gateway::ScopedImages::unused) and [`inspect::images`].
pub(crate) async fn unused(gateway: &Gateway, owner: Owner) -> Result<Vec<ImageView>> {
    let scope = gateway.scope(owner);
    let unused = inspect::in_time(scope.images().unused()).await?;
    let ids: BTreeSet<&str> = unused.iter().map(|image| image.id.as_str()).collect();
    let mut images = inspect::images(gateway).await?;
    images.retain(|image| ids.contains(image.id.as_str()));
    Ok(images)
}

/// Releases an owner's hold on an image that none of its tasks uses, and removes the image unless others keep it. It
/// may be dropped at any time: the removal continues.
///
/// # Errors
/// `NotFound` if the node does not have the image; `FailedPrecondition` if only others hold it, or tasks of this owner
/// use it; otherwise those of the removal.
pub(crate) async fn remove(
    gateway: &Gateway,
    owner: Owner,
    name: &str,
) -> Result<RemovedImageView> {
    let scope = gateway.scope(owner);
    let store = gateway.images().store();
    // The removal of one that does not exist succeeds, and the name may be misspelt.
    let found = inspect::in_time(store.get(name)).await?;
    let (found, reference) = if found.is_none() {
        let shown = shown_as(inspect::in_time(store.list()).await?, name)?;
        let id = shown.as_ref().map(|image| image.id.as_str().to_owned());
        (shown, id.unwrap_or_default())
    } else {
        (found, name.to_owned())
    };
    check_removable(owner, name, found.as_ref())?;
    scope.images().remove_unused(&reference).await?;
    let ImageKeepers { holders, users } = scope.images().other_keepers(&reference).await?;
    let words = |owners: Vec<Owner>| owners.iter().map(ToString::to_string).collect();
    Ok(RemovedImageView {
        image: name.to_owned(),
        holders: words(holders),
        users: words(users),
    })
}

/// The image with a name that lists show so, with the beginning of a digest alone. Pure.
///
/// # Errors
/// `InvalidArgument` if several images are shown so.
fn shown_as(images: Vec<Image>, name: &str) -> Result<Option<Image>> {
    let is_meant = |image: &Image| {
        let mut names = image.repo_tags.iter().chain(&image.repo_digests);
        names.any(|known| short_reference(known) == name)
    };
    let mut meant = images.into_iter().filter(is_meant);
    let first = meant.next();
    if meant.next().is_some() {
        return Err(Error::invalid(
            format!("image {name:?}"),
            "several images are shown so: name one by its id",
        ));
    }
    Ok(first)
}

/// Checks that an owner may remove what the store has under a name: an image that it holds, or nobody. Pure.
fn check_removable(owner: Owner, name: &str, found: Option<&Image>) -> Result<()> {
    let Some(image) = found else {
        let why = format!("the node has no image {name:?}: `switchyard images` lists them");
        return Err(Error::not_found(why));
    };
    if image.holders.is_empty() || image.holders.contains_key(&owner) {
        return Ok(());
    }
    let keepers = ImageKeepers {
        holders: image.holders.keys().copied().collect(),
        users: Vec::new(),
    };
    Err(Error::failed_precondition(format!(
        "image {name:?} is {keepers}, not by {owner}: name the owner that gives it up with --owner"
    )))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use switchyard_core::ErrorKind;
    use switchyard_core::image::{ImageId, Right};

    use super::*;

    fn held_by(owners: &[Owner]) -> Image {
        Image {
            id: ImageId::new("sha256:aa"),
            repo_tags: vec!["registry.test/a:1".to_owned()],
            repo_digests: Vec::new(),
            size_bytes: 1,
            user: String::new(),
            volumes: Vec::new(),
            labels: BTreeMap::new(),
            pinned: false,
            holders: owners.iter().map(|owner| (*owner, Right::Open)).collect(),
            imported: owners.is_empty(),
            stored_at: None,
        }
    }

    #[test]
    fn image_is_named_as_lists_show_it() {
        let digest = |begin: &str| format!("sha256:{begin:0<64}");
        let image = |id: &str, name: &str| Image {
            id: ImageId::new(digest(id)),
            repo_tags: Vec::new(),
            repo_digests: vec![name.to_owned()],
            ..held_by(&[Owner::Swarm])
        };
        let images = [
            image("1", &format!("docker.io/library/nginx@{}", digest("aa1"))),
            image("2", &format!("docker.io/team/app@{}", digest("bb2"))),
            image("3", &format!("registry.test:5000/app@{}", digest("bb2"))),
            image("4", &format!("registry.test/twins@{}", digest("cc3"))),
            image(
                "5",
                &format!("registry.test/twins@{}f", &digest("cc3")[..70]),
            ),
        ];
        for (name, expected) in [
            ("nginx@aa1000000000", Ok(Some("1"))),
            ("team/app@bb2000000000", Ok(Some("2"))),
            ("registry.test:5000/app@bb2000000000", Ok(Some("3"))),
            (
                "registry.test/twins@cc3000000000",
                Err(ErrorKind::InvalidArgument),
            ),
            // No more and no less than what is shown.
            ("nginx", Ok(None)),
            ("nginx@aa1", Ok(None)),
            ("app@bb2000000000", Ok(None)),
            ("", Ok(None)),
        ] {
            let found = shown_as(images.to_vec(), name).map_err(|error| error.kind());
            let found = found.map(|image| image.map(|image| image.id));
            let expected = expected.map(|id: Option<&str>| id.map(|id| ImageId::new(digest(id))));
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn owner_removes_what_it_holds_or_nobody_and_is_told_who_holds_the_rest() {
        let cases: [(&[Owner], Option<&str>); 5] = [
            (&[], None),
            (&[Owner::Swarm], None),
            (&[Owner::Nomad, Owner::Swarm], None),
            (&[Owner::Nomad], Some("is held by nomad, not by swarm")),
            (
                &[Owner::Kubernetes, Owner::Nomad],
                Some("is held by kubernetes and nomad, not by swarm"),
            ),
        ];
        for (holders, refusal) in cases {
            let checked = check_removable(Owner::Swarm, "a:1", Some(&held_by(holders)));
            match refusal {
                None => assert!(checked.is_ok(), "{holders:?}"),
                Some(part) => {
                    let error = checked.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
                    assert!(error.report().contains(part), "{}", error.report());
                }
            }
        }
        let missing = check_removable(Owner::Swarm, "a:1", None).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
