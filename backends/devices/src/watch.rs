//! Looks again and again.

use std::sync::Arc;
use std::time::Duration;

use switchyard_core::device::{Inventories, Inventory};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::Group;
use crate::look::look;

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(2);

/// Looks for the devices of these groups until `stop`, and tells what there is when it is another than before. Where there are no groups
/// nothing is looked for. Must be called within a tokio runtime.
#[must_use]
pub fn watch(groups: Vec<Group>, stop: CancellationToken) -> Inventories {
    let none = groups.is_empty().then(Arc::<Inventory>::default);
    let (told, inventories) = watch::channel(none);
    if !groups.is_empty() {
        tokio::spawn(async move { stop.run_until_cancelled(follow(groups.into(), told)).await });
    }
    inventories
}

async fn follow(groups: Arc<[Group]>, told: watch::Sender<Option<Arc<Inventory>>>) {
    loop {
        let these = Arc::clone(&groups);
        // A path may be on a file system that hangs: one look waits for it, and no other begins.
        match tokio::task::spawn_blocking(move || look(&these)).await {
            Ok(found) => {
                told.send_if_modified(|last| {
                    let is_new = last.as_deref() != Some(&found);
                    if is_new {
                        *last = Some(Arc::new(found));
                    }
                    is_new
                });
            }
            Err(fault) => tracing::error!(error = %fault, "a look at the node's devices broke off"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test]
    async fn what_changes_is_told_and_what_does_not_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let group = Group {
            vendor: "acme".to_owned(),
            kind: "tpu".to_owned(),
            name: "v2".to_owned(),
            paths: vec![dir.path().join("acme*").display().to_string()],
            permissions: "r".to_owned(),
            shared: Vec::new(),
            env: String::new(),
            attributes: BTreeMap::new(),
        };
        let stop = CancellationToken::new();
        let mut seen = watch(vec![group], stop.clone());
        let first = seen.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert!(first.groups[0].devices.is_empty(), "{first:?}");
        std::fs::write(dir.path().join("acme0"), "").unwrap();
        seen.changed().await.unwrap();
        let second = seen.borrow_and_update().clone().unwrap();
        assert_eq!(second.groups[0].devices.len(), 1);
        stop.cancel();
        assert!(seen.changed().await.is_err(), "it is told no more");
    }

    #[tokio::test]
    async fn without_groups_there_is_nothing_at_once() {
        let seen = watch(Vec::new(), CancellationToken::new());
        assert_eq!(seen.borrow().as_deref(), Some(&Inventory::default()));
    }
}
