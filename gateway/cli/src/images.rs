//! `switchyard images`: the images of the node, with their holders and users, or why each of them stays; and their removal.

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use switchyard_operator_api::text::{age, short, short_digest, short_reference, size};
use switchyard_operator_api::{ImageLeaseView, ImageView};

use super::daemon::{DaemonError, ask};
use super::watch::ListArgs;
use crate::output::table;

mod removal;

use removal::ImagesCommand;

/// Maximum number of tasks that a reason names.
const NAMED: usize = 3;

/// The images that are listed, and what is shown of them.
#[derive(Debug, Args)]
// The owner of a list is not that of a removal.
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct ImagesArgs {
    #[command(flatten)]
    list: ListArgs,
    /// Show why each image stays, and the leases that keep layers without an image.
    #[arg(long)]
    why: bool,
    #[command(subcommand)]
    command: Option<ImagesCommand>,
}

/// The images with the leases of their store.
#[derive(Debug, Serialize)]
struct ImagesWithLeases {
    images: Vec<ImageView>,
    leases: Vec<ImageLeaseView>,
}

/// Lists images, or removes some.
pub(super) async fn images(
    ImagesArgs { list, why, command }: &ImagesArgs,
) -> Result<(), DaemonError> {
    let watch = &list.watch;
    if let Some(command) = command {
        return removal::remove(command, &watch.target).await;
    }
    let path = list.path("/v1/images");
    if *why {
        let asked = async || {
            let images = ask(&watch.target, &path).await?;
            let leases = ask(&watch.target, "/v1/images/leases").await?;
            Ok(ImagesWithLeases { images, leases })
        };
        return watch
            .show(asked, |found| reasons(found, Timestamp::now()))
            .await;
    }
    let asked = async || ask::<Vec<ImageView>>(&watch.target, &path).await;
    watch
        .show(asked, |images| shown(images, Timestamp::now()))
        .await
}

/// The images with a row for each reason to stay, and the leases.
fn reasons(ImagesWithLeases { images, leases }: &ImagesWithLeases, now: Timestamp) -> String {
    let rows_of = |image: &ImageView| {
        let names = image.tags.first().or(image.digests.first());
        let name = names.map_or_else(|| "(no name)".to_owned(), |name| short_reference(name));
        let mut heading = [
            name,
            short_digest(&image.id).to_owned(),
            size(image.size_bytes),
        ];
        let rows = why_it_stays(image).into_iter().map(|reason| {
            let [name, id, size] = std::mem::take(&mut heading);
            [name, id, size, reason]
        });
        rows.collect::<Vec<_>>()
    };
    let rows: Vec<_> = images.iter().flat_map(rows_of).collect();
    let mut text = table(["IMAGE", "ID", "SIZE", "WHY IT STAYS"], &rows);
    if leases.is_empty() {
        return text;
    }
    let rows: Vec<_> = leases
        .iter()
        .map(|lease| {
            let made = lease.created_at.as_ref();
            let maker = if lease.is_own { "switchyard" } else { "others" };
            [
                lease.id.clone(),
                made.map_or_else(|| "-".to_owned(), |at| age(at, now)),
                maker.to_owned(),
                lease.ends_at.clone().unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    text.push_str("\nThese leases keep layers that no image needs, or not yet:\n");
    text.push_str(&table(["LEASE", "AGE", "MADE BY", "ENDS"], &rows));
    text
}

/// The reasons for which an image stays; at least one.
fn why_it_stays(image: &ImageView) -> Vec<String> {
    let mut reasons = Vec::new();
    if image.pinned {
        reasons.push("pinned by images.pinned, or by a label in containerd".to_owned());
    }
    for (owner, right) in &image.holders {
        let by = if right == "private" {
            ", with credentials"
        } else {
            ""
        };
        reasons.push(format!("{owner} has pulled it{by}, and has not removed it"));
    }
    if image.imported {
        reasons.push("imported: it goes when an owner removes it".to_owned());
    }
    if image.task_count > 0 {
        let named = image.tasks.iter().take(NAMED);
        let mut named: Vec<_> = named
            .map(|task| format!("{} ({})", short(&task.id), task.owner))
            .collect();
        let more = image.task_count.saturating_sub(named.len());
        named.extend((more > 0).then(|| format!("{more} more")));
        reasons.push(format!("used by tasks: {}", named.join(", ")));
    }
    if reasons.is_empty() {
        reasons.push("nothing: it goes when an owner removes it".to_owned());
    }
    reasons
}

fn shown(images: &[ImageView], now: Timestamp) -> String {
    let rows: Vec<_> = images.iter().flat_map(|image| rows(image, now)).collect();
    table(["IMAGE", "ID", "SIZE", "AGE", "TASKS", "HELD BY"], &rows)
}

/// A row for each name with a tag; the first of them has what concerns the image as a whole.
fn rows(image: &ImageView, now: Timestamp) -> Vec<[String; 6]> {
    let names = if image.tags.is_empty() {
        &image.digests
    } else {
        &image.tags
    };
    let first = names
        .first()
        .map_or_else(|| "(no name)".to_owned(), |name| short_reference(name));
    let age = image
        .stored_at
        .as_ref()
        .map_or_else(|| "-".to_owned(), |at| age(at, now));
    let row = [
        first,
        short_digest(&image.id).to_owned(),
        size(image.size_bytes),
        age,
        image.task_count.to_string(),
        held_by(image),
    ];
    let others = names.iter().skip(1).map(|name| {
        let mut row = [const { String::new() }; 6];
        row[0] = short_reference(name);
        row
    });
    std::iter::once(row).chain(others).collect()
}

/// The holders of the image, with the right of those that need credentials for it, and whether it is pinned.
fn held_by(image: &ImageView) -> String {
    let holders = image.holders.iter();
    let holder = |(owner, right): (&String, &String)| match right.as_str() {
        "private" => format!("{owner} (private)"),
        _ => owner.clone(),
    };
    let mut words: Vec<_> = holders.map(holder).collect();
    words.extend(image.imported.then(|| "(imported)".to_owned()));
    words.extend(image.pinned.then(|| "(pinned)".to_owned()));
    if words.is_empty() {
        "-".to_owned()
    } else {
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use switchyard_operator_api::ImageUserView;

    use super::*;

    #[test]
    fn image_has_a_row_for_each_name_with_who_keeps_it() {
        let image = ImageView {
            id: format!("sha256:{}", "ab".repeat(32)),
            tags: vec![
                "docker.io/library/busybox:1".into(),
                "docker.io/library/busybox:latest".into(),
            ],
            size_bytes: 1536,
            stored_at: Some("2026-11-23T12:00:00Z".into()),
            pinned: true,
            holders: BTreeMap::from([
                ("kubernetes".into(), "open".into()),
                ("nomad".into(), "private".into()),
            ]),
            task_count: 2,
            ..ImageView::default()
        };
        let text = shown(
            &[image, ImageView::default()],
            "2026-11-26T12:00:00Z".parse().unwrap(),
        );
        let expected = "\
IMAGE           ID            SIZE     AGE  TASKS  HELD BY
busybox:1       abababababab  1.5 KiB  3d   2      kubernetes nomad (private) (pinned)
busybox:latest
(no name)                     0 B      -    0      -
";
        assert_eq!(text, expected);
    }

    #[test]
    fn each_reason_to_stay_is_named() {
        let user = |id: &str| ImageUserView {
            id: id.repeat(32),
            owner: "nomad".into(),
        };
        let image = ImageView {
            id: format!("sha256:{}", "ab".repeat(32)),
            tags: vec!["docker.io/library/busybox:1".into()],
            size_bytes: 1536,
            pinned: true,
            holders: BTreeMap::from([("nomad".into(), "private".into())]),
            tasks: vec![user("1a"), user("2b"), user("3c"), user("4d")],
            task_count: 4,
            ..ImageView::default()
        };
        let lease = ImageLeaseView {
            id: "moby-1".into(),
            is_own: false,
            created_at: Some("2026-11-23T12:00:00Z".into()),
            ends_at: None,
        };
        let found = ImagesWithLeases {
            images: vec![image, ImageView::default()],
            leases: vec![lease],
        };
        let text = reasons(&found, "2026-11-26T12:00:00Z".parse().unwrap());
        for part in [
            "busybox:1  abababababab  1.5 KiB  pinned by images.pinned",
            "nomad has pulled it, with credentials, and has not removed it\n",
            " (nomad), 1 more\n",
            "nothing: it goes when an owner removes it\n",
            "moby-1  3d   others   -\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
