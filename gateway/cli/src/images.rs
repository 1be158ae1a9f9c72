//! `switchyard images`: the images of the node, with their holders and users.

use jiff::Timestamp;
use switchyard_operator_api::ImageView;
use switchyard_operator_api::text::{age, short_digest, short_reference, size};

use super::daemon::{DaemonError, ask};
use super::watch::ListArgs;
use crate::output::table;

/// Lists images.
pub(super) async fn images(args: &ListArgs) -> Result<(), DaemonError> {
    let path = args.path("/v1/images");
    let asked = async || ask::<Vec<ImageView>>(&args.watch.target, &path).await;
    args.watch
        .show(asked, |images| shown(images, Timestamp::now()))
        .await
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
}
