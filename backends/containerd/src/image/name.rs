//! Image records: content gets a name, and the owner that holds it under that name.

use containerd_client::services::v1 as api;
use containerd_client::types;
use switchyard_core::id::Owner;
use switchyard_core::image::Right;
use switchyard_core::{ErrorKind, Result};
use switchyard_registry::{Descriptor, Digest};
use switchyard_steps::{Step, reach};

use super::holders;
use super::record_lock::RecordLock;
use crate::client::{Client, QUICK, call};

/// Gives these names to an image, with `owner` as a holder by `right`: all of them under one lock, so that a
/// removal sees either none or all. Idempotent.
pub(super) async fn assign(
    client: &Client,
    lock: &RecordLock,
    names: &[String],
    target: &Descriptor,
    holder: (Owner, Right),
) -> Result<()> {
    let _lock = lock.change(&format!("name image {}", names.first().map_or("", String::as_str))).await?;
    for name in names {
        assign_one(client, name, target, holder).await?;
    }
    Ok(())
}

/// Creates or updates the image record `name`. A record that exists is moved to this content. An owner that
/// already holds the same content with [`Right::Open`] keeps that right.
async fn assign_one(
    client: &Client,
    name: &str,
    target: &Descriptor,
    (owner, right): (Owner, Right),
) -> Result<()> {
    let key = holders::holder_label(owner);
    let mut image = api::Image {
        name: name.to_owned(),
        labels: std::iter::once((key.clone(), holders::holder_label_value(right, &target.digest))).collect(),
        target: Some(types::Descriptor {
            media_type: target.media_type.clone(),
            digest: target.digest.to_string(),
            size: i64::try_from(target.size).unwrap_or(i64::MAX),
            ..Default::default()
        }),
        ..Default::default()
    };
    let what = format!("name image {name}");
    let request = api::CreateImageRequest { image: Some(image.clone()), ..Default::default() };
    match call(&what, QUICK, client.images().create(request)).await {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if is_open(client, name, &target.digest, owner).await? {
                image.labels.insert(key.clone(), holders::holder_label_value(Right::Open, &target.digest));
            }
            let mask = prost_types::FieldMask { paths: vec!["target".to_owned(), format!("labels.{key}")] };
            let request =
                api::UpdateImageRequest { image: Some(image), update_mask: Some(mask), ..Default::default() };
            call(&what, QUICK, client.images().update(request)).await?;
        }
        Err(error) => return Err(error),
    }
    reach(Step::ImageNamed);
    Ok(())
}

/// Whether this owner already holds this content under this name with [`Right::Open`].
async fn is_open(client: &Client, name: &str, target: &Digest, owner: Owner) -> Result<bool> {
    let request = api::GetImageRequest { name: name.to_owned() };
    match call(&format!("look up image {name}"), QUICK, client.images().get(request)).await {
        Ok(answer) => {
            let labels = answer.image.map(|image| image.labels).unwrap_or_default();
            Ok(holders::parse(&labels, target).get(&owner) == Some(&Right::Open))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
