//! Images with their holders, as `/v1/images` shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use switchyard_core::backend::Unreadable;
use switchyard_core::id::Owner;
use switchyard_core::image::{Image, ImageLease, Right};
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
    /// Its owner; empty if it cannot be read and its owner is not known.
    pub owner: String,
}

/// A lease in the store of images, for display: it keeps layers and documents that no image needs, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageLeaseView {
    /// Its id.
    pub id: String,
    /// True if the daemon has made it, as for a pull.
    pub is_own: bool,
    /// Time at which it was made, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// Time at which it ends by itself, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<String>,
}

/// An image that an owner has given up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedImageView {
    /// The name or id by which it was removed.
    pub image: String,
    /// The owners that still hold it. It is gone if this and `users` are empty.
    pub holders: BTreeSet<String>,
    /// The other owners whose tasks use it.
    pub users: BTreeSet<String>,
}

impl RemovedImageView {
    /// Returns whether the node does not have it any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.holders.is_empty() && self.users.is_empty()
    }
}

impl From<ImageLease> for ImageLeaseView {
    fn from(
        ImageLease {
            id,
            is_own,
            created_at,
            ends_at,
        }: ImageLease,
    ) -> Self {
        Self {
            id,
            is_own,
            created_at: created_at.map(rfc3339),
            ends_at,
        }
    }
}

impl ImageView {
    /// The images with those of these tasks that were created from them, or have them as volumes, and with the objects
    /// that cannot be read and use them; ordered by name.
    #[must_use]
    pub fn of_all(
        images: Vec<Image>,
        tasks: &[Arc<Task>],
        unreadable: &[Arc<Unreadable>],
    ) -> Vec<Self> {
        let mut users: BTreeMap<&str, Vec<ImageUserView>> = BTreeMap::new();
        for task in tasks {
            let used = std::iter::once(&task.details.image_id).chain(&task.details.volume_images);
            for id in used.collect::<BTreeSet<_>>() {
                let user = ImageUserView {
                    id: task.id.to_string(),
                    owner: task.meta.owner.to_string(),
                };
                users.entry(id.as_str()).or_default().push(user);
            }
        }
        for held in unreadable {
            for id in &held.claims.images {
                let user = ImageUserView {
                    id: held.id.clone(),
                    owner: held
                        .owner
                        .map(|owner| owner.to_string())
                        .unwrap_or_default(),
                };
                users.entry(id.as_str()).or_default().push(user);
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

    fn of(image: Image, tasks: &[ImageUserView]) -> Self {
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
                .map(|user| user.owner.clone())
                .filter(|owner| !owner.is_empty())
                .collect(),
            tasks: tasks.iter().take(TASKS).cloned().collect(),
            task_count: tasks.len(),
        }
    }

    /// Returns whether an owner holds it or has tasks that use it.
    #[must_use]
    pub fn concerns(&self, owner: Owner) -> bool {
        self.holders.contains_key(owner.as_str()) || self.users.contains(owner.as_str())
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::backend::{HeldClaims, ObjectFacts, UnreadableKind};
    use switchyard_core::image::ImageId;

    use super::*;

    fn image(id: &str) -> Image {
        Image {
            id: ImageId::new(id),
            repo_tags: vec![format!("registry.test/{id}:1")],
            repo_digests: Vec::new(),
            size_bytes: 1,
            user: String::new(),
            volumes: Vec::new(),
            labels: BTreeMap::new(),
            pinned: false,
            holders: BTreeMap::new(),
            imported: false,
            stored_at: None,
        }
    }

    #[test]
    fn object_that_cannot_be_read_counts_among_the_tasks_of_its_images() {
        let held = |id: &str, owner| {
            Arc::new(Unreadable {
                id: id.to_owned(),
                kind: UnreadableKind::Task,
                owner,
                name: String::new(),
                sandbox: None,
                reason: "of version 9".to_owned(),
                claims: HeldClaims {
                    images: [ImageId::new("a")].into(),
                    ..HeldClaims::default()
                },
                facts: ObjectFacts::default(),
            })
        };
        let held = [held("known", Some(Owner::Nomad)), held("unknown", None)];
        let views = ImageView::of_all(vec![image("b"), image("a")], &[], &held);
        let counts: Vec<_> = views
            .iter()
            .map(|view| (view.id.as_str(), view.task_count))
            .collect();
        assert_eq!(counts, [("a", 2), ("b", 0)]);
        let users: Vec<&str> = views[0].tasks.iter().map(|user| user.id.as_str()).collect();
        assert_eq!(users, ["known", "unknown"]);
        assert!(views[0].concerns(Owner::Nomad) && views[0].users.len() == 1);
    }
}
