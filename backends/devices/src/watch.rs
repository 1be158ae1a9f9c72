//! Scans repeatedly.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::device::{Inventories, Inventory};
use switchyard_linux::{WorkLost, blocking, report};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::events::Events;
use crate::scan::{Found, Scanner, Search, watched};

/// Pause between two scans without events.
const PAUSE: Duration = Duration::from_secs(2);
/// Minimum pause between two scans.
const LEAST_PAUSE: Duration = Duration::from_millis(50);
/// The pause after a scan is at least this many times as long as the scan, so that scanning never uses a
/// whole CPU.
const SCAN_SHARE: u32 = 4;
/// The upper limit of that pause, for scans that a file system has delayed.
const MOST_PAUSE: Duration = Duration::from_secs(10);

/// Scans for the devices of these groups until `stop`, on events and every two seconds, and publishes the
/// inventory when it has changed. A new search takes effect at once. Without groups nothing is scanned. Must
/// be called within a tokio runtime.
#[must_use]
pub fn watch(search: watch::Receiver<Search>, stop: CancellationToken) -> Inventories {
    let none = search
        .borrow()
        .groups
        .is_empty()
        .then(Arc::<Inventory>::default);
    let (told, inventories) = watch::channel(none);
    tokio::spawn(async move {
        stop.run_until_cancelled(follow_searches(search, told, PAUSE))
            .await
    });
    inventories
}

/// Follows the newest search.
async fn follow_searches(
    mut searches: watch::Receiver<Search>,
    inventories: watch::Sender<Option<Arc<Inventory>>>,
    pause: Duration,
) {
    loop {
        let search = searches.borrow_and_update().clone();
        if search.groups.is_empty() {
            publish(Found::default(), &inventories, &mut BTreeSet::new());
            next_search(&mut searches).await;
        } else {
            follow(&search, &mut searches, &inventories, pause).await;
        }
    }
}

/// Waits for the next search; for ever if there will be none.
async fn next_search(searches: &mut watch::Receiver<Search>) {
    if searches.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Scans until there is a new search. A scan that has begun is waited for.
async fn follow(
    search: &Search,
    searches: &mut watch::Receiver<Search>,
    inventories: &watch::Sender<Option<Arc<Inventory>>>,
    pause: Duration,
) {
    let events = Events::open();
    let mut looker = Some(Scanner::new(search.clone()));
    let mut notes = BTreeSet::new();
    loop {
        let begun = Instant::now();
        events.clear();
        let files = events.files();
        let mut own = looker
            .take()
            .unwrap_or_else(|| Scanner::new(search.clone()));
        // A path may be on a file system that hangs: then one scan waits for it, and no other one starts.
        let look = blocking("a scan of the node's devices", move || {
            // The watches are set first, so that every change after the scan's start is an event.
            if let Some(files) = files {
                files.watch(&watched(&own.search));
            }
            Ok::<_, WorkLost>((own.scan(), own))
        });
        match look.await {
            Ok((found, own)) => {
                looker = Some(own);
                publish(found, inventories, &mut notes);
            }
            Err(lost) => tracing::error!(
                error = report(&lost),
                "the devices of the node are not known"
            ),
        }
        let rest = begun
            .elapsed()
            .saturating_mul(SCAN_SHARE)
            .clamp(LEAST_PAUSE, MOST_PAUSE);
        let ended = Instant::now();
        tokio::select! {
            _ = tokio::time::timeout(pause.max(rest), events.changed()) => {}
            () = next_search(searches) => return,
        }
        // The first event after a quiet period triggers a scan at once; further events are batched.
        tokio::time::sleep_until(ended + rest).await;
    }
}

fn publish(
    found: Found,
    inventories: &watch::Sender<Option<Arc<Inventory>>>,
    known: &mut BTreeSet<String>,
) {
    let Found { inventory, notes } = found;
    for note in notes.difference(known) {
        tracing::warn!("devices: {note}");
    }
    *known = notes;
    inventories.send_if_modified(|last| {
        let inventory = match last.as_deref() {
            Some(last) => inventory.reusing_groups(last),
            None => inventory,
        };
        let is_new = last
            .as_ref()
            .is_none_or(|last| !inventory.is_shared_with(last));
        if is_new {
            *last = Some(Arc::new(inventory));
        }
        is_new
    });
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;
    use crate::config::tests::group;

    /// Longer than any test: whatever is published was triggered by an event.
    const NEVER: Duration = Duration::from_secs(3600);

    fn make(path: &Path, minor: u64) {
        mknod(path, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, minor))
            .expect("these tests make device nodes and so must run as root");
    }

    fn search(pattern: &Path) -> Search {
        let groups = vec![group("v2", &[pattern.display().to_string()])];
        Search {
            groups,
            ..Search::default()
        }
    }

    /// The number of devices in the next published inventory.
    async fn next(seen: &mut Inventories) -> usize {
        seen.changed().await.unwrap();
        let inventory = seen.borrow_and_update().clone();
        inventory.map_or(0, |inventory| {
            inventory
                .groups
                .iter()
                .map(|group| group.devices.len())
                .sum()
        })
    }

    #[tokio::test]
    async fn a_new_node_is_told_by_an_event_and_so_is_one_that_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (tell, mut seen) = watch::channel(None);
        let pattern = dir.path().join("acme*");
        let stop = CancellationToken::new();
        let (_searches, search) = watch::channel(search(&pattern));
        let following = follow_searches(search, tell, NEVER);
        let ended = stop.clone();
        let task = tokio::spawn(async move { ended.run_until_cancelled(following).await });
        assert_eq!(next(&mut seen).await, 0);
        make(&dir.path().join("acme0"), 3);
        assert_eq!(next(&mut seen).await, 1);
        std::fs::remove_file(dir.path().join("acme0")).unwrap();
        assert_eq!(next(&mut seen).await, 0);
        stop.cancel();
        task.await.unwrap();
        assert!(seen.changed().await.is_err(), "it is reported no more");
    }

    #[tokio::test]
    async fn a_directory_that_comes_later_is_followed_too() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("serial");
        let (tell, mut seen) = watch::channel(None);
        let (_searches, search) = watch::channel(search(&below.join("by-id/acme*")));
        let following = tokio::spawn(follow_searches(search, tell, NEVER));
        assert_eq!(next(&mut seen).await, 0);
        std::fs::create_dir_all(below.join("by-id")).unwrap();
        make(&below.join("by-id/acme0"), 3);
        assert_eq!(next(&mut seen).await, 1);
        following.abort();
    }

    #[tokio::test]
    async fn what_does_not_change_is_not_told() {
        let dir = tempfile::tempdir().unwrap();
        let (tell, mut seen) = watch::channel(None);
        let (_searches, search) = watch::channel(search(&dir.path().join("acme*")));
        let following = tokio::spawn(follow_searches(search, tell, NEVER));
        assert_eq!(next(&mut seen).await, 0);
        // Many irrelevant changes, and then a relevant one: the next published inventory has it.
        for number in 0..200 {
            std::fs::write(dir.path().join(format!("other{number}")), "").unwrap();
        }
        make(&dir.path().join("acme0"), 3);
        assert_eq!(next(&mut seen).await, 1);
        following.abort();
    }

    #[tokio::test]
    async fn without_groups_there_is_nothing_at_once() {
        let (_searches, search) = watch::channel(Search::default());
        let seen = watch(search, CancellationToken::new());
        assert_eq!(seen.borrow().as_deref(), Some(&Inventory::default()));
    }

    #[tokio::test]
    async fn a_new_search_replaces_the_former_one_at_once() {
        let dir = tempfile::tempdir().unwrap();
        make(&dir.path().join("acme0"), 3);
        let (searches, search_of_none) = watch::channel(Search::default());
        let (tell, mut seen) = watch::channel(None);
        let following = tokio::spawn(follow_searches(search_of_none, tell, NEVER));
        assert_eq!(next(&mut seen).await, 0);
        searches.send_replace(search(&dir.path().join("acme*")));
        assert_eq!(next(&mut seen).await, 1);
        searches.send_replace(search(&dir.path().join("other*")));
        assert_eq!(next(&mut seen).await, 0);
        searches.send_replace(Search::default());
        seen.changed().await.unwrap();
        assert_eq!(seen.borrow().as_deref(), Some(&Inventory::default()));
        following.abort();
    }
}
