//! GC of CNI 1.1: plugins remove what they still have of attachments that are gone.
//!
//! It takes nothing from those whom the daemon knows, and everything from those whom it does not: a Nomad agent or another runtime whose
//! network on this node has the same name. So it runs only if the configuration asks for it (`network.gc`), once at each start, when the
//! attachments of all predecessors are known. Each attachment ends by DEL all the same.

use switchyard_cni as cni;
use switchyard_core::id::SandboxId;
use switchyard_core::{Error, Result};

use super::Network;
use crate::base::error::from_cni;
use crate::base::fs::{blocking, ids_below};
use crate::base::layout::Layout;

/// An attachment as plugins know it: the id of its container, and the name of its interface.
type AttachmentName = (String, String);

impl Network {
    /// Runs GC of the plugins of the node's default network, if that is configured. Waits for plugins of attachments that run, and lets
    /// none begin meanwhile. Logs what fails: the next start tries again.
    pub(crate) async fn collect_garbage(&self) {
        // Pods on a bridge of the gateway use no network of the node.
        if !self.context.settings().network.gc || self.of_node.pods().is_some() {
            return;
        }
        let _alone = self.plugin_turn.write().await;
        match self.collect_alone().await {
            Ok(network) => {
                tracing::info!(network, "plugins have removed what was left of attachments");
            }
            Err(error) => tracing::warn!(
                error = error.report(),
                "network.gc: plugins cannot be asked to remove what is left of attachments: trying again at the next start"
            ),
        }
    }

    /// Returns the name of the network. No plugin of an attachment may run.
    async fn collect_alone(&self) -> Result<String> {
        let left: Vec<SandboxId> = self.predecessor_plugins().keys().copied().collect();
        for id in left {
            self.wait_predecessor_plugins(id).await?;
        }
        let list = self.of_node.default_network().await?;
        let name = list.name.clone();
        let layout = self.context.layout.clone();
        let valid = blocking(move || valid_attachments(&layout)).await?;
        let network = cni::Network::new(list, self.plugins.clone());
        network.gc(&valid).await.map_err(from_cni)?;
        Ok(name)
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
}
