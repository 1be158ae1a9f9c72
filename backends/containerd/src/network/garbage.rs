//! GC of CNI 1.1: plugins remove what they still have of attachments that are gone.
//!
//! It takes nothing from those whom the daemon knows, and everything from those whom it does not: a Nomad agent or another runtime whose
//! network on this node has the same name. So it runs only if the configuration asks for it (`network.gc`), once at each start, when the
//! attachments of all predecessors are known. Each attachment ends by DEL all the same.

use std::time::Duration;

use switchyard_cni as cni;
use switchyard_core::id::SandboxId;
use switchyard_core::{Error, Result};
use tokio::sync::{RwLock, RwLockWriteGuard};
use tokio::time::{Instant, sleep};

use super::Network;
use crate::base::error::from_cni;
use crate::base::fs::{blocking, ids_below};
use crate::base::layout::Layout;

/// Time for which GC looks for a moment without plugins of attachments.
const TURN_LIMIT: Duration = Duration::from_mins(10);
/// Pause between two such looks.
const TURN_INTERVAL: Duration = Duration::from_secs(1);

/// An attachment as plugins know it: the id of its container, and the name of its interface.
type AttachmentName = (String, String);

impl Network {
    /// Runs GC of the plugins of the node's default network, if that is configured, in a moment in which no plugins of attachments run,
    /// and lets none begin meanwhile. Logs what fails: the next start tries again.
    pub(crate) async fn collect_garbage(&self) {
        // Pods on a bridge of the gateway use no network of the node.
        if !self.context.settings().network.gc || self.of_node.pods().is_some() {
            return;
        }
        match self.run_gc().await {
            Ok(network) => {
                tracing::info!(network, "plugins have removed what was left of attachments");
            }
            Err(error) => tracing::warn!(
                error = error.report(),
                "network.gc: plugins cannot be asked to remove what is left of attachments: trying again at the next start"
            ),
        }
    }

    /// Returns the name of the network.
    async fn run_gc(&self) -> Result<String> {
        // What may take long comes before the turn, while attachments are made and undone.
        let left: Vec<SandboxId> = self.predecessor_plugins().keys().copied().collect();
        for id in left {
            self.wait_predecessor_plugins(id).await?;
        }
        let list = self.of_node.default_network().await?;
        let name = list.name.clone();
        let network = cni::Network::new(list, self.plugins.clone());
        let _alone = take_turn(&self.plugin_turn).await?;
        let layout = self.context.layout.clone();
        let valid = blocking(move || valid_attachments(&layout)).await?;
        network.gc(&valid).await.map_err(from_cni)?;
        Ok(name)
    }
}

/// Takes the turn of all plugins in a moment in which nobody has it. It is not waited for in the order of the calls: no plugin of an
/// attachment could begin then until the last one that runs has ended, and that may hang.
///
/// # Errors
/// `Unavailable` if there is no such moment for long.
async fn take_turn(turn: &RwLock<()>) -> Result<RwLockWriteGuard<'_, ()>> {
    let deadline = Instant::now() + TURN_LIMIT;
    loop {
        match turn.try_write() {
            Ok(alone) => return Ok(alone),
            Err(_) if Instant::now() < deadline => sleep(TURN_INTERVAL).await,
            Err(_) => {
                let why = format!(
                    "in {TURN_LIMIT:?} there was no moment in which no plugin of an attachment runs"
                );
                return Err(Error::unavailable(why));
            }
        }
    }
}

/// The attachments in the journals of all sandboxes, of whichever network and driver: those of others are named for nothing. Blocks.
///
/// # Errors
/// A journal cannot be read: what it has must not be taken for gone.
fn valid_attachments(layout: &Layout) -> Result<Vec<AttachmentName>> {
    let mut valid = Vec::new();
    for id in ids_below::<SandboxId>(&layout.all_sandbox_state())?.into_values() {
        let journal = layout.sandbox(id).cni_journal();
        let saved = cni::Saved::read(&journal).map_err(|error| {
            Error::failed_precondition(format!(
                "it is not known how sandbox {id} is attached to its network"
            ))
            .with_source(error)
        })?;
        valid.extend(saved.map(|saved| {
            let attachment = saved.attachment();
            (attachment.container_id, attachment.ifname)
        }));
    }
    Ok(valid)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::FutureExt as _;
    use switchyard_core::ErrorKind;
    use tokio::time::timeout;

    use super::*;

    fn journal(container: &str, ifname: &str) -> String {
        let attachment = format!(
            r#"{{"containerId":"{container}","netns":null,"ifname":"{ifname}","args":[],"capabilities":{{}}}}"#
        );
        let network = r#"{"name":"net","cniVersion":"1.1.0","plugins":[{"type":"bridge"}]}"#;
        format!(r#"{{"version":2,"network":{network},"attachment":{attachment}}}"#)
    }

    #[test]
    fn attachments_are_valid_as_long_as_their_journals_are_there_and_an_unreadable_one_forbids_it()
    {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let layout = Layout::new(dir.path(), dir.path());
        let none = valid_attachments(&layout).expect("there is no directory");
        assert!(none.is_empty(), "{none:?}");
        let write = |text: &str| {
            let dirs = layout.sandbox(SandboxId::random());
            fs::create_dir_all(&dirs.state).expect("it can be made");
            fs::write(dirs.cni_journal(), text).expect("it can be written");
            dirs
        };
        write(&journal("c0ffee", "eth0"));
        write(&journal("decaf", "net1"));
        // No plugin has run for it.
        write("");
        let mut valid = valid_attachments(&layout).expect("all can be read");
        valid.sort();
        let name = |id: &str, ifname: &str| (id.to_owned(), ifname.to_owned());
        assert_eq!(valid, [name("c0ffee", "eth0"), name("decaf", "net1")]);
        for unreadable in [
            "nonsense".to_owned(),
            journal("x", "eth0").replace("\"version\":2", "\"version\":99"),
            journal("x", "eth0").replace("containerId", "container"),
            "[]".to_owned(),
        ] {
            let dirs = write(&unreadable);
            valid_attachments(&layout).expect_err(&unreadable);
            fs::remove_dir_all(&dirs.state).expect("it was made");
        }
    }

    /// The clock stands still: nobody waits for real time.
    #[tokio::test(start_paused = true)]
    async fn gc_that_waits_for_plugins_keeps_none_from_beginning() {
        let turn = RwLock::new(());
        let first = turn.read().await;
        let mut gc = Box::pin(take_turn(&turn));
        assert!((&mut gc).now_or_never().is_none());
        let second = turn.try_read().expect("GC only waits");
        drop(first);
        let beside = timeout(TURN_INTERVAL * 3, &mut gc).await;
        beside.expect_err("a plugin runs");
        drop(second);
        let alone = gc.await.expect("no plugin runs");
        turn.try_read().expect_err("GC runs");
        drop(alone);

        let _hung = turn.read().await;
        let began = Instant::now();
        let error = take_turn(&turn).await.expect_err("a plugin hangs");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(began.elapsed() >= TURN_LIMIT);
        drop(turn.try_read().expect("others are not held up by that"));
    }
}
