//! `switchyard images prune` and `rm`: an owner gives up images that none of its tasks uses.

use std::time::Duration;

use clap::{Args, Subcommand};
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use switchyard_operator_api::text::{parse_duration, short_reference, size};
use switchyard_operator_api::{ImageView, RemovedImageView};

use crate::daemon::{DaemonError, Target, ask, parse, request};
use crate::output::{Format, print, print_json};
use crate::watch::OWNERS;

#[derive(Debug, Subcommand)]
pub(super) enum ImagesCommand {
    /// Remove all images that an owner holds and none of its tasks uses, not even one that has ended. Pinned ones stay, and
    /// those that other owners hold or use.
    Prune(PruneImagesArgs),
    /// Remove images that an owner holds and none of its tasks uses. One that another owner holds or uses stays for that one.
    Rm(RemoveImagesArgs),
}

#[derive(Debug, Args)]
pub(super) struct PruneImagesArgs {
    /// Owner of the images.
    #[arg(long, value_name = "OWNER", value_parser = OWNERS, default_value = "swarm")]
    owner: String,
    /// Only images that the node got longer ago than this, such as 24h; AGE in `switchyard images`.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    older: Option<Duration>,
}

#[derive(Debug, Args)]
pub(super) struct RemoveImagesArgs {
    /// Owner of the images.
    #[arg(long, value_name = "OWNER", value_parser = OWNERS, default_value = "swarm")]
    owner: String,
    /// Their names or ids, as `switchyard images` shows them.
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

/// Images that were given up, and those that could not be.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct ImageRemovals {
    removed: Vec<RemovedImageView>,
    /// The names of those that came into use meanwhile, with the reason.
    in_use: Vec<(String, String)>,
    /// The names of those whose removal takes longer, and continues.
    continuing: Vec<String>,
    /// Size of the downloads of those that are gone, in bytes.
    freed_bytes: u64,
}

/// Gives up images.
pub(super) async fn remove(command: &ImagesCommand, target: &Target) -> Result<(), DaemonError> {
    match command {
        ImagesCommand::Prune(args) => prune(args, target).await,
        ImagesCommand::Rm(args) => remove_named(args, target).await,
    }
}

async fn prune(
    PruneImagesArgs { owner, older }: &PruneImagesArgs,
    target: &Target,
) -> Result<(), DaemonError> {
    let unused: Vec<ImageView> = ask(target, &format!("/v1/images/unused?owner={owner}")).await?;
    let now = Timestamp::now();
    let mut removals = ImageRemovals::default();
    let mut ended = Ok(());
    for image in unused.iter().filter(|image| is_older(image, *older, now)) {
        let name = shown_name(image);
        match remove_one(owner, &image.id, target).await {
            Ok(removed) => {
                if removed.is_gone() {
                    removals.freed_bytes += image.size_bytes;
                }
                removals.removed.push(RemovedImageView {
                    image: name,
                    ..removed
                });
            }
            // A task has begun to use it since it was listed.
            Err(ImageRefusal::Stays(why)) => removals.in_use.push((name, why)),
            // Somebody else has removed it since then.
            Err(ImageRefusal::Missing(_)) => {}
            Err(ImageRefusal::Continues(_)) => removals.continuing.push(name),
            Err(ImageRefusal::Error(error)) => {
                ended = Err(error);
                break;
            }
        }
    }
    // What was removed before an error is gone nevertheless.
    match target.output {
        Format::Json => print_json(&removals)?,
        Format::Text => print(shown(&removals))?,
    }
    ended
}

/// Removes images in their order, until one cannot be removed.
async fn remove_named(
    RemoveImagesArgs { owner, images }: &RemoveImagesArgs,
    target: &Target,
) -> Result<(), DaemonError> {
    let mut all = Vec::new();
    for image in images {
        let removed = remove_one(owner, image, target).await?;
        if target.output == Format::Text {
            print(line(&removed))?;
        }
        all.push(removed);
    }
    if target.output == Format::Json {
        print_json(&all)?;
    }
    Ok(())
}

/// Reason why an image was not given up.
enum ImageRefusal {
    /// The daemon's words, which name the image and what it is used by.
    Stays(String),
    /// The daemon's words: the node does not have it.
    Missing(String),
    /// The daemon's words: the removal takes longer than an answer may.
    Continues(String),
    Error(DaemonError),
}

impl From<ImageRefusal> for DaemonError {
    fn from(refusal: ImageRefusal) -> Self {
        match refusal {
            ImageRefusal::Stays(why)
            | ImageRefusal::Missing(why)
            | ImageRefusal::Continues(why) => Self::Message(why),
            ImageRefusal::Error(error) => error,
        }
    }
}

async fn remove_one(
    owner: &str,
    image: &str,
    target: &Target,
) -> Result<RemovedImageView, ImageRefusal> {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("owner", owner).append_pair("name", image);
    let path = format!("/v1/images?{}", query.finish());
    match request(&target.socket, Method::DELETE, &path).await {
        Ok((StatusCode::ACCEPTED, text)) => {
            let text = String::from_utf8_lossy(&text).trim().to_owned();
            Err(ImageRefusal::Continues(text))
        }
        Ok((_, body)) => parse("/v1/images", &body).map_err(ImageRefusal::Error),
        // The text says by itself what is meant.
        Err(DaemonError::Refused { path, status, text }) => Err(match status {
            StatusCode::CONFLICT => ImageRefusal::Stays(text),
            StatusCode::NOT_FOUND => ImageRefusal::Missing(text),
            StatusCode::BAD_REQUEST => ImageRefusal::Error(DaemonError::Message(text)),
            status => ImageRefusal::Error(DaemonError::Refused { path, status, text }),
        }),
        Err(error) => Err(ImageRefusal::Error(error)),
    }
}

/// Returns whether the node got an image longer ago than that; one whose age is not known is not older than anything. Pure.
fn is_older(image: &ImageView, than: Option<Duration>, now: Timestamp) -> bool {
    let Some(than) = than else { return true };
    let stored_at = image.stored_at.as_ref().and_then(|at| at.parse().ok());
    stored_at.is_some_and(|at: Timestamp| {
        let age = now.duration_since(at);
        Duration::try_from(age).is_ok_and(|age| age > than)
    })
}

fn shown_name(image: &ImageView) -> String {
    let name = image.tags.first().or(image.digests.first());
    name.map_or_else(|| image.id.clone(), |name| short_reference(name))
}

/// Describes the result of the removal of an image.
fn line(removed: &RemovedImageView) -> String {
    let name = &removed.image;
    if removed.is_gone() {
        return format!("removed {name}\n");
    }
    let named = |how: &str, owners: &std::collections::BTreeSet<String>| {
        let names: Vec<&str> = owners.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| format!("{how} {}", names.join(" and ")))
    };
    let reasons = [
        named("held by", &removed.holders),
        named("used by tasks of", &removed.users),
    ];
    let reasons: Vec<String> = reasons.into_iter().flatten().collect();
    format!("given up {name}, which stays: {}\n", reasons.join(", "))
}

fn shown(removals: &ImageRemovals) -> String {
    let mut text: String = removals.removed.iter().map(line).collect();
    for (name, why) in &removals.in_use {
        text.push_str(&format!("kept {name}: {why}\n"));
    }
    for name in &removals.continuing {
        text.push_str(&format!("removing {name} takes longer, and continues\n"));
    }
    text.push_str(&format!(
        "{} as downloaded were freed\n",
        size(removals.freed_bytes)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_of_known_age_are_older() {
        let now: Timestamp = "2026-11-26T12:00:00Z".parse().unwrap();
        let day = Some(Duration::from_secs(24 * 3600));
        for (stored_at, than, expected) in [
            (None, None, true),
            (None, day, false),
            (Some("2026-11-26T11:00:00Z"), None, true),
            (Some("2026-11-26T11:00:00Z"), day, false),
            (Some("2026-11-25T12:00:00Z"), day, false),
            (Some("2026-11-25T11:59:59Z"), day, true),
            // The clock was set back.
            (Some("2026-11-27T12:00:00Z"), day, false),
            (Some("yesterday"), day, false),
        ] {
            let image = ImageView {
                stored_at: stored_at.map(str::to_owned),
                ..ImageView::default()
            };
            assert_eq!(is_older(&image, than, now), expected, "{stored_at:?}");
        }
    }

    #[test]
    fn each_image_is_told_as_gone_or_with_what_keeps_it() {
        let owners = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let removed = |image: &str, holders: &[&str], users: &[&str]| RemovedImageView {
            image: image.to_owned(),
            holders: owners(holders),
            users: owners(users),
        };
        let removals = ImageRemovals {
            removed: vec![
                removed("a:1", &[], &[]),
                removed("b:1", &["nomad"], &[]),
                removed("c:1", &["host", "nomad"], &["kubernetes"]),
            ],
            in_use: vec![("d:1".to_owned(), "it is used".to_owned())],
            continuing: vec!["e:1".to_owned()],
            freed_bytes: 1536,
        };
        let expected = "\
removed a:1
given up b:1, which stays: held by nomad
given up c:1, which stays: held by host and nomad, used by tasks of kubernetes
kept d:1: it is used
removing e:1 takes longer, and continues
1.5 KiB as downloaded were freed
";
        assert_eq!(shown(&removals), expected);
    }
}
