//! The pages about objects: sandboxes and tasks, one of them with all that is known of it, images, volumes, and devices.

use std::time::Duration;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::{delete, get};
use serde::Deserialize;
use switchyard_core::id::Owner;
use switchyard_core::spec::is_volume_name;
use switchyard_linux::beginning;
use switchyard_operator_api::{Disclosure, ImageView};
use tokio::time::timeout;

use super::access;
use super::answers::{failed, json, owner_named, refused, text};
use super::pages::ListenerPages;

/// Time for which an answer waits for the removal of a volume or image, which continues after that.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);

pub(super) fn routes() -> Router<ListenerPages> {
    Router::new()
        .route("/v1/objects", get(objects))
        .route("/v1/inspect", get(inspect))
        .route("/v1/images", get(images).delete(remove_image))
        .route("/v1/images/unused", get(unused_images))
        .route("/v1/images/leases", get(image_leases))
        .route("/v1/volumes", get(volumes))
        .route("/v1/volumes/{owner}/{name}", delete(remove_volume))
        .route("/v1/devices", get(devices))
}

/// The owner whose objects are listed; all if it is missing.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OwnerQuery {
    owner: Option<String>,
}

/// The object that is shown, and whether possible secrets are included.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InspectQuery {
    name: String,
    #[serde(default)]
    env: bool,
}

async fn objects(State(pages): State<ListenerPages>, OfOwner(owner): OfOwner) -> Response {
    let all = pages.admin.node.objects();
    json(&match owner {
        Some(owner) => all.of_owner(owner),
        None => all,
    })
}

async fn devices(State(pages): State<ListenerPages>, OfOwner(owner): OfOwner) -> Response {
    let all = pages.admin.node.named_devices();
    json(&match owner {
        Some(owner) => all.of_owner(owner),
        None => all,
    })
}

async fn images(State(pages): State<ListenerPages>, OfOwner(owner): OfOwner) -> Response {
    match pages.admin.node.images().await {
        Ok(mut images) => {
            images.retain(|image: &ImageView| owner.is_none_or(|owner| image.concerns(owner)));
            json(&images)
        }
        Err(error) => failed(&error),
    }
}

/// An image, and the owner that gives it up.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageQuery {
    owner: String,
    name: String,
}

async fn unused_images(State(pages): State<ListenerPages>, OfOwner(owner): OfOwner) -> Response {
    let Some(owner) = owner else {
        return refused("name the owner of the images: ?owner=swarm");
    };
    match pages.admin.node.unused_images(owner).await {
        Ok(images) => json(&images),
        Err(error) => failed(&error),
    }
}

async fn remove_image(
    State(pages): State<ListenerPages>,
    query: Result<Query<ImageQuery>, QueryRejection>,
) -> Response {
    let Query(ImageQuery { owner, name }) = match query {
        Ok(query) => query,
        Err(error) => return refused(&error.body_text()),
    };
    let owner = match owner_named(&owner) {
        Ok(owner) => owner,
        Err(why) => return refused(&why),
    };
    match timeout(REMOVAL_LIMIT, pages.admin.node.remove_image(owner, &name)).await {
        Ok(Ok(removed)) => json(&removed),
        Ok(Err(error)) => failed(&error),
        // No error: clients go on with other images.
        Err(_) => continues("image", StatusCode::ACCEPTED),
    }
}

/// The answer while a removal continues.
fn continues(what: &str, status: StatusCode) -> Response {
    let why = format!("the {what} is not removed after {REMOVAL_LIMIT:?}: the removal continues\n");
    text(status, why)
}

async fn image_leases(State(pages): State<ListenerPages>) -> Response {
    match pages.admin.node.image_leases().await {
        Ok(leases) => json(&leases),
        Err(error) => failed(&error),
    }
}

async fn volumes(State(pages): State<ListenerPages>, OfOwner(owner): OfOwner) -> Response {
    match pages.admin.node.volumes().await {
        Ok(mut volumes) => {
            volumes.retain(|volume| owner.is_none_or(|owner| volume.owner == owner.as_str()));
            json(&volumes)
        }
        Err(error) => failed(&error),
    }
}

async fn remove_volume(
    State(pages): State<ListenerPages>,
    Path((owner, name)): Path<(String, String)>,
) -> Response {
    let owner = match owner_named(&owner) {
        Ok(owner) => owner,
        Err(why) => return refused(&why),
    };
    if !is_volume_name(&name) {
        let shown = beginning(&name, 100);
        return refused(&format!("{shown:?} is no name of a volume"));
    }
    match timeout(REMOVAL_LIMIT, pages.admin.node.remove_volume(owner, name)).await {
        Ok(Ok(())) => text(StatusCode::NO_CONTENT, String::new()),
        Ok(Err(error)) => failed(&error),
        Err(_) => continues("volume", StatusCode::GATEWAY_TIMEOUT),
    }
}

async fn inspect(
    State(pages): State<ListenerPages>,
    query: Result<Query<InspectQuery>, QueryRejection>,
) -> Response {
    let Query(InspectQuery { name, env }) = match query {
        Ok(query) => query,
        Err(error) => return refused(&error.body_text()),
    };
    if env && let Err(refusal) = access::demand_root("see the values of environment variables") {
        return *refusal;
    }
    let disclosure = if env {
        Disclosure::Secrets
    } else {
        Disclosure::Names
    };
    match pages.admin.node.inspect(&name, disclosure).await {
        Ok(view) => json(&view),
        Err(error) => failed(&error),
    }
}

/// The owner that a request asks for; all if it names none.
struct OfOwner(Option<Owner>);

impl FromRequestParts<ListenerPages> for OfOwner {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        pages: &ListenerPages,
    ) -> Result<Self, Response> {
        let query = Query::<OwnerQuery>::from_request_parts(parts, pages).await;
        let Query(OwnerQuery { owner }) = query.map_err(|error| refused(&error.body_text()))?;
        owner
            .as_deref()
            .map(owner_named)
            .transpose()
            .map(Self)
            .map_err(|why| refused(&why))
    }
}
