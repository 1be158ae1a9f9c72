//! The bridges of networks that clusters define. Each exists while sandboxes hold it.
//!
//! ```text
//! <run>/networks/<bridge>/network.json    what the network is
//!                        /holders/<id>    one empty file for each sandbox, from before it is attached until after it
//!                                         is detached
//!                        /addresses/      what `host-local` has assigned
//! ```
//!
//! The directory is written before the bridge is made, and removed after it is deleted, so that a bridge is
//! found after a kill at any line. A reboot removes both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use switchyard_cni as cni;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{ClusterBridge, Subnet};
use switchyard_core::{Error, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{Durable, if_present};
use switchyard_namespaces::files;
use switchyard_namespaces::{delete_device, has_device};
use switchyard_tree::Cancel;

use crate::base::error::{from_cni, from_namespaces};
use crate::base::fs::{blocking, create_private_dir_blocking, io_error, remove_tree_blocking};
use crate::network::cluster_bridge_names::{interface_name, is_interface_name};
use crate::network::native::NativeBridges;
use crate::network::pod_bridge::PodBridge;
use crate::network::routes::Routes;
use definition::Definition;

mod definition;

/// The bridges of clusters on this node.
#[derive(Debug)]
pub(crate) struct ClusterBridges {
    dir: PathBuf,
    own: OwnBridge,
    /// The bridges to which the daemon attaches sandboxes itself.
    native: Arc<NativeBridges>,
    /// The bridge of pods, if they have one, which these bridges must not collide with either.
    pods: Option<Arc<PodBridge>>,
    /// By the name of the bridge. It is waited for only on blocking threads.
    made: Mutex<BTreeMap<String, MadeBridge>>,
}

/// The gateway's own bridge, which these bridges must not collide with.
#[derive(Debug)]
pub(crate) struct OwnBridge {
    pub(crate) name: String,
    pub(crate) subnets: Vec<Subnet>,
    /// The MTU of networks that name none; 0 for the kernel's default.
    pub(crate) mtu: u32,
}

/// A bridge, which may not exist yet.
#[derive(Debug, Default)]
struct MadeBridge {
    /// `None` if its file is damaged.
    definition: Option<Definition>,
    holders: BTreeSet<SandboxId>,
}

// === impl ClusterBridges ===

impl ClusterBridges {
    pub(crate) fn new(
        dir: PathBuf,
        own: OwnBridge,
        native: Arc<NativeBridges>,
        pods: Option<Arc<PodBridge>>,
    ) -> Self {
        Self {
            dir,
            own,
            native,
            pods,
            made: Mutex::default(),
        }
    }

    /// Makes a sandbox a holder of a network, and returns the network's configuration list. Idempotent.
    ///
    /// # Errors
    /// `FailedPrecondition` if the node cannot have this network; `Unavailable` if its routes are not known.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        id: SandboxId,
        asked: &ClusterBridge,
    ) -> Result<Arc<cni::NetworkList>> {
        let all = Arc::clone(self);
        let asked = asked.clone();
        blocking(move || all.acquire_blocking(id, &asked)).await
    }

    /// Ends what a sandbox holds, after it is detached. The bridge goes with its last holder. Idempotent.
    ///
    /// # Errors
    /// `Internal` if what the sandbox held cannot be removed. The next release of any sandbox tries it again, and does not
    /// fail for it.
    pub(crate) async fn release(self: &Arc<Self>, id: SandboxId) -> Result<()> {
        // Each pod is released, and most nodes have no such bridge. Somebody who has the lock is about to make one, or has one.
        if self.made.try_lock().is_some_and(|made| made.is_empty()) {
            return Ok(());
        }
        let all = Arc::clone(self);
        blocking(move || all.release_blocking(id)).await
    }

    /// Finds the bridges of a predecessor, and removes those that nobody holds. Returns the holders.
    ///
    /// # Errors
    /// `Internal` if the directories cannot be read.
    pub(crate) async fn load(self: &Arc<Self>) -> Result<Vec<SandboxId>> {
        let all = Arc::clone(self);
        blocking(move || all.load_blocking()).await
    }

    fn acquire_blocking(
        &self,
        id: SandboxId,
        asked: &ClusterBridge,
    ) -> Result<Arc<cni::NetworkList>> {
        let interface = interface_name(&self.own.name, &asked.id);
        let mut all = self.made.lock();
        let definition = match all.get(&interface).and_then(|made| made.definition.clone()) {
            Some(definition) => {
                definition.check_same(asked)?;
                definition
            }
            None => {
                let definition = self.define(&all, &interface, asked)?;
                all.entry(interface.clone()).or_default().definition = Some(definition.clone());
                self.tell_pods(&all);
                definition
            }
        };
        // In the set before it is on disk: a release finds it then, whatever becomes of the file.
        all.entry(interface.clone()).or_default().holders.insert(id);
        let holder = self.holders(&interface).join(id.to_string());
        fs::write(&holder, "").map_err(|fault| io_error("write", &holder, fault))?;
        reach(CrashPoint::ClusterBridgeHeld);
        let list = definition
            .conflist(&interface, &self.addresses(&interface), self.own.mtu)
            .to_string();
        cni::NetworkList::parse(&self.file(&interface), list.as_bytes())
            .map(Arc::new)
            .map_err(from_cni)
    }

    /// Decides what a new network is, and writes its files.
    fn define(
        &self,
        all: &BTreeMap<String, MadeBridge>,
        interface: &str,
        asked: &ClusterBridge,
    ) -> Result<Definition> {
        if !all.contains_key(interface) && has_device(interface) {
            // Of a gateway whose run directory is gone: nobody of ours uses it, and its addresses may be others.
            delete_device(interface).map_err(from_namespaces)?;
        }
        let routes = Routes::read(&asked.name)?;
        let definition = Definition::new(asked, |subnet| {
            self.conflict(all, &routes, interface, subnet)
        })?;
        create_private_dir_blocking(&self.holders(interface))?;
        create_private_dir_blocking(&self.addresses(interface))?;
        files::write(
            &self.file(interface),
            definition.to_json().as_bytes(),
            0o600,
            Durable::No,
        )
        .map_err(from_namespaces)?;
        reach(CrashPoint::ClusterBridgeDefined);
        Ok(definition)
    }

    /// Returns the user of addresses of a subnet, save the bridge `interface` itself: it exists if its file
    /// was damaged.
    fn conflict(
        &self,
        all: &BTreeMap<String, MadeBridge>,
        routes: &Routes,
        interface: &str,
        subnet: &Subnet,
    ) -> Option<String> {
        if let Some(own) = self.own.subnets.iter().find(|own| own.overlaps(subnet)) {
            return Some(format!(
                "the gateway's own bridge {} has {own}",
                self.own.name
            ));
        }
        let mut of_pods = self.pods.iter().flat_map(|pods| pods.subnets());
        if let Some(range) = of_pods.find(|range| range.overlaps(subnet)) {
            return Some(format!("the bridge of pods has {range}"));
        }
        let mut made = all.values().filter_map(|made| made.definition.as_ref());
        let taken = |made: &Definition| {
            let taken = made.subnets().find(|other| other.overlaps(subnet))?;
            Some(format!("network {:?} has {taken}", made.name()))
        };
        if let Some(other) = made.find_map(taken) {
            return Some(other);
        }
        Some(routes.conflict(subnet, interface)?.why)
    }

    fn release_blocking(&self, id: SandboxId) -> Result<()> {
        let mut all = self.made.lock();
        let mut held = Ok(());
        let mut removed = Vec::new();
        for (interface, made) in all.iter_mut() {
            let is_own = made.holders.contains(&id);
            if is_own {
                self.remove_holder(interface, id)?;
                made.holders.remove(&id);
                reach(CrashPoint::ClusterBridgeLeft);
            }
            if !made.holders.is_empty() {
                continue;
            }
            match self.remove(interface) {
                Ok(()) => removed.push(interface.clone()),
                Err(error) if is_own => held = Err(error),
                // It belongs to another sandbox, whose removal has reported the error.
                Err(error) => report_unused(interface, &error),
            }
        }
        for interface in removed {
            all.remove(&interface);
        }
        self.tell_pods(&all);
        held
    }

    /// Tells the bridge of pods which subnets it cannot have: a network without a way out has no route to its one.
    fn tell_pods(&self, all: &BTreeMap<String, MadeBridge>) {
        let Some(pods) = &self.pods else {
            return;
        };
        let made = all.values().filter_map(|made| made.definition.as_ref());
        let subnets = |made: &Definition| {
            let name = made.name().to_owned();
            let named = made.subnets().map(|subnet| (name.clone(), *subnet));
            named.collect::<Vec<_>>()
        };
        pods.clusters_have(made.flat_map(subnets).collect());
    }

    fn remove_holder(&self, interface: &str, id: SandboxId) -> Result<()> {
        let holder = self.holders(interface).join(id.to_string());
        if_present(fs::remove_file(&holder))
            .map(drop)
            .map_err(|fault| io_error("remove", &holder, fault))
    }

    /// Removes a bridge that nobody holds. Idempotent.
    fn remove(&self, interface: &str) -> Result<()> {
        let failed = |error: Error| error.context(format!("remove the unused bridge {interface}"));
        let deleted = self.native.delete_bridge(
            interface,
            CrashPoint::ClusterBridgeRulesRemoved,
            CrashPoint::ClusterBridgeDeleted,
        );
        deleted.map_err(failed)?;
        remove_tree_blocking(&self.dir.join(interface), &Cancel::default())?;
        reach(CrashPoint::ClusterBridgeForgotten);
        Ok(())
    }

    fn load_blocking(&self) -> Result<Vec<SandboxId>> {
        let mut found = BTreeMap::new();
        for interface in names_below(&self.dir)?
            .into_iter()
            .filter(|name| is_interface_name(name))
        {
            let definition = fs::read(self.file(&interface))
                .ok()
                .and_then(|text| Definition::parse(&text));
            let holders: BTreeSet<SandboxId> = names_below(&self.holders(&interface))?
                .iter()
                .filter_map(|name| name.parse().ok())
                .collect();
            if definition.is_none() && !holders.is_empty() {
                tracing::warn!(
                    interface,
                    "the file of a bridge of a cluster is damaged: it is written again for the next sandbox"
                );
            }
            found.insert(
                interface,
                MadeBridge {
                    definition,
                    holders,
                },
            );
        }
        found.retain(|interface, made| {
            let is_unused = made.holders.is_empty();
            match is_unused.then(|| self.remove(interface)) {
                Some(Ok(())) => false,
                Some(Err(error)) => {
                    report_unused(interface, &error);
                    true
                }
                None => true,
            }
        });
        let holders = found
            .values()
            .flat_map(|made| made.holders.iter().copied())
            .collect();
        self.tell_pods(&found);
        *self.made.lock() = found;
        Ok(holders)
    }

    fn file(&self, interface: &str) -> PathBuf {
        self.dir.join(interface).join("network.json")
    }

    fn holders(&self, interface: &str) -> PathBuf {
        self.dir.join(interface).join("holders")
    }

    fn addresses(&self, interface: &str) -> PathBuf {
        self.dir.join(interface).join("addresses")
    }
}

fn report_unused(interface: &str, error: &Error) {
    tracing::warn!(
        interface,
        error = error.report(),
        "an unused bridge of a cluster stays: it is removed later"
    );
}

/// The names in a directory; none if it is missing.
fn names_below(dir: &Path) -> Result<Vec<String>> {
    let listed = fs::read_dir(dir).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let entries = if_present(listed).map_err(|fault| io_error("list", dir, fault))?;
    Ok(entries
        .unwrap_or_default()
        .into_iter()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect())
}

#[cfg(test)]
mod tests;
