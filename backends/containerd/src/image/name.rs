//! Image records: content gets a name, and the owner that holds it under that name.

use containerd_client::services::v1 as api;
use containerd_client::types;
use switchyard_core::id::Owner;
use switchyard_core::image::Right;
use switchyard_core::{Error, ErrorKind, Result, operation};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_registry::{Descriptor, Digest};

use super::holders;
use super::lease::Leases;
use super::record_lock::RecordLock;
use crate::client::{Client, QUICK, call};

/// Names for content, with `owner` as a holder by `right`.
pub(super) struct Naming {
    pub(super) client: Client,
    pub(super) names: Vec<String>,
    pub(super) target: Descriptor,
    pub(super) owner: Owner,
    pub(super) right: Right,
}

impl Naming {
    /// Gives the names: all of them under one lock, so that a removal sees either none or all. Idempotent.
    /// Cancel-safe: once the lock is held, the work is completed in a Tokio task. A call that is given up may
    /// take effect after the lock was given back, when a removal has decided without that name. `protected` is
    /// dropped when the work has ended: it keeps the content until its names do.
    pub(super) async fn assign(
        self,
        lock: &RecordLock,
        leases: &Leases,
        protected: impl Send + 'static,
    ) -> Result<()> {
        let first = self.names.first().map_or("", String::as_str);
        let lock = lock.change(&format!("name image {first}")).await?;
        let work = async move {
            let _until_it_ends = (lock, protected);
            for name in &self.names {
                assign_one(&self.client, name, &self.target, (self.owner, self.right)).await?;
            }
            Ok(())
        };
        let named = leases.spawn(operation::inherit(work)).await;
        named.unwrap_or_else(|fault| {
            Err(Error::internal("the naming of an image panicked").with_source(fault))
        })
    }
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
        labels: std::iter::once((
            key.clone(),
            holders::holder_label_value(right, &target.digest),
        ))
        .collect(),
        target: Some(types::Descriptor {
            media_type: target.media_type.clone(),
            digest: target.digest.to_string(),
            size: i64::try_from(target.size).unwrap_or(i64::MAX),
            ..Default::default()
        }),
        ..Default::default()
    };
    let what = format!("name image {name}");
    let request = api::CreateImageRequest {
        image: Some(image.clone()),
        ..Default::default()
    };
    match call(&what, QUICK, client.images().create(request)).await {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if is_open(client, name, &target.digest, owner).await? {
                image.labels.insert(
                    key.clone(),
                    holders::holder_label_value(Right::Open, &target.digest),
                );
            }
            let mask = prost_types::FieldMask {
                paths: vec!["target".to_owned(), format!("labels.{key}")],
            };
            let request = api::UpdateImageRequest {
                image: Some(image),
                update_mask: Some(mask),
                ..Default::default()
            };
            call(&what, QUICK, client.images().update(request)).await?;
        }
        Err(error) => return Err(error),
    }
    reach(CrashPoint::ImageNamed);
    Ok(())
}

/// Returns whether this owner already holds this content under this name with [`Right::Open`].
async fn is_open(client: &Client, name: &str, target: &Digest, owner: Owner) -> Result<bool> {
    let request = api::GetImageRequest {
        name: name.to_owned(),
    };
    match call(
        &format!("look up image {name}"),
        QUICK,
        client.images().get(request),
    )
    .await
    {
        Ok(answer) => {
            let labels = answer.image.map(|image| image.labels).unwrap_or_default();
            Ok(holders::parse(&labels, target).get(&owner) == Some(&Right::Open))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
