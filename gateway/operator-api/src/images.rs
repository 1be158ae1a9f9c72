//! Images with their holders, as `/v1/images` shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use switchyard_core::id::Owner;
use switchyard_core::image::{Image, Right};
use switchyard_core::object::Task;

use crate::text::rfc3339;

/// Maximum number of tasks that are shown with an image.
const TASKS: usize = 100;

/// An image, for display.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageView {
    /// The digest of its configuration.
    pub id: String,
    /// Its names with a tag.
    pub tags: Vec<String>,
    /// Its names with a digest.
    pub digests: Vec<String>,
    /// Size of the download, in bytes.
    pub size_bytes: u64,
    /// Time at which the node stored it, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_at: Option<String>,
    /// True if the configuration keeps it from being removed.
    pub pinned: bool,
    /// True if all owners may use it without having pulled it, as after an import.
    pub imported: bool,
    /// The owners that hold it, and by which right: `open`, or `private` if the registry required credentials.
    pub holders: BTreeMap<String, String>,
    /// The owners whose tasks use it.
    pub users: BTreeSet<String>,
    /// The tasks that use it, at most a hundred of them.
    pub tasks: Vec<ImageUserView>,
    /// Number of tasks that use it.
    pub task_count: usize,
}

/// A task that uses an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageUserView {
    /// Its id.
    pub id: String,
    /// Its owner.
    pub owner: String,
}

impl ImageView {
    /// The images with those of these tasks that were created from them, or have them as volumes, ordered by
    /// name.
    #[must_use]
    pub fn of_all(images: Vec<Image>, tasks: &[Arc<Task>]) -> Vec<Self> {
        let mut users: BTreeMap<&str, Vec<&Task>> = BTreeMap::new();
        for task in tasks {
            let used = std::iter::once(&task.details.image_id).chain(&task.details.volume_images);
            for id in used.collect::<BTreeSet<_>>() {
                users.entry(id.as_str()).or_default().push(task);
            }
        }
        let mut views: Vec<_> = images
            .into_iter()
            .map(|image| {
                let users = users
                    .get(image.id.as_str())
                    .map(Vec::as_slice)
                    .unwrap_or_default();
                Self::of(image, users)
            })
            .collect();
        views.sort_by(|a, b| (&a.tags, &a.digests, &a.id).cmp(&(&b.tags, &b.digests, &b.id)));
        views
    }

    fn of(image: Image, tasks: &[&Task]) -> Self {
        let Image {
            id,
            repo_tags,
            repo_digests,
            size_bytes,
            user: _,
            volumes: _,
            // Their values are the image author's; nobody looks for them in a list.
            labels: _,
            pinned,
            holders,
            imported,
            stored_at,
        } = image;
        let right = |(owner, right): (Owner, Right)| {
            let right = match right {
                Right::Open => "open",
                Right::Private => "private",
            };
            (owner.to_string(), right.to_owned())
        };
        let user = |task: &&Task| ImageUserView {
            id: task.id.to_string(),
            owner: task.meta.owner.to_string(),
        };
        Self {
            id: id.to_string(),
            tags: repo_tags,
            digests: repo_digests,
            size_bytes,
            stored_at: stored_at.map(rfc3339),
            pinned,
            imported,
            holders: holders.into_iter().map(right).collect(),
            users: tasks
                .iter()
                .map(|task| task.meta.owner.to_string())
                .collect(),
            tasks: tasks.iter().take(TASKS).map(user).collect(),
            task_count: tasks.len(),
        }
    }

    /// Returns whether an owner holds it or has tasks that use it.
    #[must_use]
    pub fn concerns(&self, owner: Owner) -> bool {
        self.holders.contains_key(owner.as_str()) || self.users.contains(owner.as_str())
    }
}
