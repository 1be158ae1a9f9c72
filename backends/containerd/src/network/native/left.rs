//! The deletion of a bridge; and a bridge of pods that is left on a node whose pods have the network of CNI again. With such a bridge the node
//! would go on to look there for the addresses of its `podCIDR`, which an add-on gives by now. A file of the gateway says that its pods had the
//! bridge: that of another gateway of the node may have the same name, and no pod for a moment.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use switchyard_core::Result;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::Durable;
use switchyard_namespaces::{delete_device, files, has_device};
use switchyard_network::netlink::LinkName;

use super::{DEVICES, NativeBridges};
use crate::base::error::{from_namespaces, from_network};
use crate::base::fs::{create_private_dir_blocking, io_error};

impl NativeBridges {
    /// The same on a node whose pods are on their bridge, which `mark` says from now on. What fails is logged. Blocks.
    #[must_use]
    pub(crate) fn with_pods(self, mark: &Path) -> Self {
        if mark.exists() {
            return self;
        }
        let dir = mark.parent().unwrap_or(Path::new("/"));
        let written = create_private_dir_blocking(dir)
            .and_then(|()| files::write(mark, b"", 0o644, Durable::No).map_err(from_namespaces));
        match written {
            Ok(()) => reach(CrashPoint::PodBridgeMarked),
            Err(error) => tracing::warn!(
                interface = self.policy.pods.as_str(),
                error = error.report(),
                "cannot note that pods are on their bridge: it will not be deleted when they have the network of CNI again"
            ),
        }
        self
    }

    /// The same on a node whose pods have the network of CNI: the bridge that they had before, as `mark` says, goes when none is left on it.
    #[must_use]
    pub(crate) fn without_pods(self, mark: PathBuf) -> Self {
        Self {
            pod_mark: Some(mark),
            ..self
        }
    }

    /// Deletes the bridge of pods if they had it and none is left on it. What fails is logged. If a disk hangs, it ends all the same.
    pub(super) async fn remove_pod_bridge(self: &Arc<Self>, mark: &Path) {
        let bridges = Arc::clone(self);
        let mark = mark.to_owned();
        let object = format!("the bridge {}", self.policy.pods);
        let remove = move || bridges.remove_if_left(&mark);
        match self.files.run(object, remove).await {
            Ok(false) => {}
            Ok(true) => tracing::info!(
                interface = self.policy.pods.as_str(),
                "deleted the bridge of pods: they have the network of CNI, and none was left on it"
            ),
            Err(error) => tracing::warn!(
                interface = self.policy.pods.as_str(),
                error = error.report(),
                "cannot look whether the bridge that pods had is left, or delete it: trying again at the next start"
            ),
        }
    }

    /// Returns whether it has deleted it. Idempotent. Blocks.
    fn remove_if_left(&self, mark: &Path) -> Result<bool> {
        let name = &self.policy.pods;
        let addresses = self.own.settings().addresses_dir.join(name);
        let is_there = has_device(name);
        if is_there {
            if !is_left(mark, &Path::new(DEVICES).join(name), &addresses) {
                return Ok(false);
            }
            // Only former daemons know it, if the driver is another one by now.
            let link = LinkName::new(name).map_err(from_network)?;
            let forgotten = self.tables.forget_former_bridge(&link);
            forgotten.map_err(from_network)?;
            self.delete_bridge(
                name,
                CrashPoint::PodBridgeRulesRemoved,
                CrashPoint::PodBridgeDeleted,
            )?;
        }
        // One that is made from now on is another gateway's.
        if mark.exists() {
            fs::remove_file(mark).map_err(|fault| io_error("remove", mark, fault))?;
            reach(CrashPoint::PodBridgeUnmarked);
        }
        Ok(is_there)
    }

    /// Removes what the tables have of a bridge that is about to be deleted, and on which nothing is. Idempotent. Blocks.
    ///
    /// # Errors
    /// `Internal` with the kernel's text: call it again.
    pub(super) fn forget_bridge(&self, name: &str) -> Result<()> {
        let link = LinkName::new(name).map_err(from_network)?;
        self.tables.forget_bridge(&link).map_err(from_network)?;
        self.others.lock().remove(name);
        self.bridges_changed.notify_one();
        Ok(())
    }

    /// Deletes a bridge on which nothing is, with what the tables have of it. The crash points are those of the rules' and of the bridge's
    /// removal. Idempotent. Blocks.
    ///
    /// # Errors
    /// `Internal` with the kernel's text: call it again.
    pub(in crate::network) fn delete_bridge(
        &self,
        name: &str,
        rules_removed: CrashPoint,
        deleted: CrashPoint,
    ) -> Result<()> {
        self.forget_bridge(name)?;
        reach(rules_removed);
        delete_device(name).map_err(from_namespaces)?;
        reach(deleted);
        // Who takes over what is on record may have seen the device in between.
        self.forget_bridge(name)
    }
}

/// Returns whether a bridge has had pods of this gateway, and has none any more. `mark` says the first, `device` is its directory of the
/// kernel, `addresses` that of `host-local`.
fn is_left(mark: &Path, device: &Path, addresses: &Path) -> bool {
    let names = |dir: &Path| -> Option<Vec<String>> {
        let entries = fs::read_dir(dir).ok()?.flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        Some(names.collect())
    };
    // Only bridges have this directory.
    let ports = names(&device.join("brif"));
    let is_address = |name: &String| name.parse::<IpAddr>().is_ok();
    mark.exists()
        && ports.is_some_and(|ports| ports.is_empty())
        && names(addresses).is_some_and(|files| !files.iter().any(is_address))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::FutureExt as _;

    use super::super::recovery::READ_LIMIT;
    use super::*;
    use crate::base::config::NetworkConfig;
    use crate::network::bridge::{BridgeNetwork, RangeKey};

    /// The names in a directory, if it is there.
    type Names = Option<&'static [&'static str]>;

    #[test]
    fn bridge_is_left_if_it_has_had_pods_and_has_none() {
        let made = |dir: &Path, names: Names| {
            for name in names.into_iter().flatten() {
                fs::create_dir_all(dir.join(name)).unwrap();
            }
            if names.is_some() {
                fs::create_dir_all(dir).unwrap();
            }
        };
        let cases: [(Names, Names, bool); 7] = [
            (Some(&[]), Some(&["last_reserved_ip.0", "lock"]), true),
            (Some(&[]), Some(&[]), true),
            (Some(&["veth0"]), Some(&["lock"]), false),
            (Some(&[]), Some(&["lock", "10.244.1.2"]), false),
            (Some(&[]), Some(&["fd00::2"]), false),
            // It never had a pod, or is no bridge.
            (Some(&[]), None, false),
            (None, Some(&["lock"]), false),
        ];
        for (ports, files, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            let [device, addresses] = ["device", "addresses"].map(|name| dir.path().join(name));
            made(&device.join("brif"), ports);
            made(&addresses, files);
            let mark = dir.path().join("mark");
            // It is that of another gateway.
            assert!(!is_left(&mark, &device, &addresses), "{ports:?} {files:?}");
            fs::write(&mark, "").unwrap();
            assert_eq!(
                is_left(&mark, &device, &addresses),
                expected,
                "{ports:?} {files:?}"
            );
        }
    }

    /// The bridges of a gateway whose bridge of pods has this name.
    fn bridges(pods: &str) -> NativeBridges {
        let mut network = NetworkConfig::default();
        network.pods.name = pods.to_owned();
        let (own, _) = BridgeNetwork::of(&network.bridge, Path::new("own"), RangeKey::Own).unwrap();
        NativeBridges::new(&network, own.list()).unwrap()
    }

    #[test]
    fn gateway_notes_that_its_pods_are_on_their_bridge_until_that_is_gone() {
        for (pods, is_marked, stays) in [
            ("swt-no-bridge", true, false),
            ("swt-no-bridge", false, false),
            // Each node has this one, which is no bridge.
            ("lo", true, true),
            ("lo", false, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mark = dir.path().join("network/mark");
            let mut bridges = bridges(pods);
            if is_marked {
                bridges = bridges.with_pods(&mark).with_pods(&mark);
            }
            assert_eq!(mark.exists(), is_marked);
            let bridges = bridges.without_pods(mark.clone());
            assert!(!bridges.remove_if_left(&mark).unwrap(), "{pods}");
            assert_eq!(mark.exists(), stays, "{pods} {is_marked}");
        }
    }

    /// The clock stands still: nothing here waits for real time.
    #[tokio::test(start_paused = true)]
    async fn look_for_pods_ends_although_a_disk_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        fs::write(&mark, "").unwrap();
        let bridges = Arc::new(bridges("swt-no-bridge"));
        let (answers, answer) = mpsc::channel::<()>();
        let hung = move || {
            let _ = answer.recv();
            Ok(())
        };
        let mut reads = Box::pin(bridges.files.run("the journals".to_owned(), hung));
        assert!((&mut reads).now_or_never().is_none());
        let mut look = Box::pin(bridges.remove_pod_bridge(&mark));
        assert!((&mut look).now_or_never().is_none());
        tokio::time::advance(READ_LIMIT).await;
        look.await;
        assert!(mark.exists(), "the next start tries again");
        drop(answers);
    }
}
