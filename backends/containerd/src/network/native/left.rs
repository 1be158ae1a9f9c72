//! A bridge of pods that is left on a node whose pods have the network of CNI again. With it the node would go on to look there for the
//! addresses of its `podCIDR`, which an add-on gives by now.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use switchyard_core::Result;
use switchyard_namespaces::{delete_device, has_device};

use super::{DEVICES, NativeBridges};
use crate::base::error::from_namespaces;
use crate::base::fs::blocking;

impl NativeBridges {
    /// Deletes the bridge of pods if none is left on it. What fails is logged.
    pub(super) async fn remove_pod_bridge(self: &Arc<Self>) {
        let bridges = Arc::clone(self);
        match blocking(move || bridges.remove_if_left()).await {
            Ok(false) => {}
            Ok(true) => tracing::info!(
                interface = self.policy.pods.as_str(),
                "deleted the bridge of pods: they have the network of CNI, and none was left on it"
            ),
            Err(error) => tracing::warn!(
                interface = self.policy.pods.as_str(),
                error = error.report(),
                "cannot delete the bridge of pods, which has none any more: trying again at the next start"
            ),
        }
    }

    /// Returns whether it has deleted it. Idempotent. Blocks.
    fn remove_if_left(&self) -> Result<bool> {
        let name = &self.policy.pods;
        let addresses = self.own.settings().addresses_dir.join(name);
        if !has_device(name) || !is_left(&Path::new(DEVICES).join(name), &addresses) {
            return Ok(false);
        }
        self.forget_bridge(name)?;
        delete_device(name).map_err(from_namespaces)?;
        Ok(true)
    }
}

/// Returns whether a bridge has had pods, and has none any more. `device` is its directory of the kernel, `addresses` that of `host-local`.
fn is_left(device: &Path, addresses: &Path) -> bool {
    let names = |dir: &Path| -> Option<Vec<String>> {
        let entries = fs::read_dir(dir).ok()?.flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        Some(names.collect())
    };
    // Only bridges have this directory.
    let ports = names(&device.join("brif"));
    let is_address = |name: &String| name.parse::<IpAddr>().is_ok();
    ports.is_some_and(|ports| ports.is_empty())
        && names(addresses).is_some_and(|files| !files.iter().any(is_address))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(
                is_left(&device, &addresses),
                expected,
                "{ports:?} {files:?}"
            );
        }
    }
}
