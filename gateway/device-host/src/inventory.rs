//! The devices of the node: those of the configured groups, and those of vendors' plugins.

use std::collections::BTreeSet;
use std::sync::Arc;

use switchyard_core::device::{DeviceGroup, Inventories, Inventory};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The groups of vendors' plugins, in the order of their first registration. Only the latest value counts.
pub type Groups = watch::Receiver<Arc<Vec<DeviceGroup>>>;

/// Merges both into one inventory, and returns the ids of the devices that are left out. An id is in one
/// group only: two devices with the same id are assumed to be the same device. The configured one is kept, or
/// the one of the resource that was registered first.
#[must_use]
pub fn merge(hardware: &Inventory, hosted: &[DeviceGroup]) -> (Inventory, Vec<String>) {
    let mut groups = hardware.groups.clone();
    let devices = groups.iter().flat_map(|group| &group.devices);
    let mut ids: BTreeSet<String> = devices
        .flat_map(|device| device.aliases.iter().chain([&device.id]).cloned())
        .collect();
    let mut left_out = Vec::new();
    for group in hosted {
        let mut group = group.clone();
        group.devices.retain(|device| {
            let is_new = ids.insert(device.id.clone());
            if !is_new {
                left_out.push(device.id.clone());
            }
            is_new
        });
        groups.push(Arc::new(group));
    }
    (Inventory { groups }, left_out)
}

/// Keeps the merged inventory up to date until `stop`; it is `None` until the hardware was scanned. Must be
/// called within a tokio runtime.
#[must_use]
pub fn merged(
    mut hardware: Inventories,
    mut hosted: Groups,
    stop: CancellationToken,
) -> Inventories {
    let (sender, inventories) = watch::channel::<Option<Arc<Inventory>>>(None);
    tokio::spawn(stop.run_until_cancelled_owned(async move {
        let mut known = Vec::new();
        loop {
            let seen = hardware.borrow_and_update().clone();
            let groups = Arc::clone(&hosted.borrow_and_update());
            if let Some(seen) = seen {
                let (inventory, left_out) = merge(&seen, &groups);
                if known != left_out && !left_out.is_empty() {
                    tracing::warn!(
                        devices = left_out.len(),
                        first = left_out[0],
                        "devices of vendors' plugins are left out, since another group has devices with the same ids: offer each device in one group only"
                    );
                }
                known = left_out;
                sender.send_if_modified(|last| {
                    let before = last.clone().unwrap_or_default();
                    let now = inventory.reusing_groups(&before);
                    let is_new = last.is_none() || !now.is_shared_with(&before);
                    if is_new {
                        *last = Some(Arc::new(now));
                    }
                    is_new
                });
            }
            tokio::select! {
                Ok(()) = hardware.changed() => {}
                Ok(()) = hosted.changed() => {}
                // Both senders are gone: the inventory stays as it is.
                else => return,
            }
        }
    }));
    inventories
}

#[cfg(test)]
mod tests {
    use switchyard_core::device::{Device, node};

    use super::*;

    fn group(resource: &str, ids: &[&str]) -> DeviceGroup {
        DeviceGroup {
            resource: resource.to_owned(),
            devices: ids
                .iter()
                .map(|id| Device::new(id, node(format!("/dev/{id}").into(), "rw")))
                .collect(),
            ..DeviceGroup::new("acme", "tpu", resource)
        }
    }

    #[test]
    fn device_id_belongs_to_one_group_only() {
        let mut own = group("acme.com/own", &["a", "b"]);
        own.devices[0].aliases.push("old".to_owned());
        let hardware = Inventory::of([own]);
        let hosted = [
            group("acme.com/one", &["b", "c", "old"]),
            group("acme.com/two", &["c", "d"]),
        ];
        let (inventory, left_out) = merge(&hardware, &hosted);
        let ids: Vec<Vec<&str>> = inventory
            .groups
            .iter()
            .map(|group| group.devices.iter().map(|device| &*device.id).collect())
            .collect();
        assert_eq!(ids, [vec!["a", "b"], vec!["c"], vec!["d"]]);
        assert_eq!(left_out, ["b", "old", "c"]);
        assert_eq!(merge(&hardware, &[]), (hardware, Vec::new()));
    }

    #[tokio::test]
    async fn inventory_change_of_either_source_is_reported() {
        let stop = CancellationToken::new();
        let (hardware, seen) = watch::channel(None);
        let (hosted, groups) = watch::channel(Arc::new(vec![group("acme.com/one", &["a"])]));
        let mut all = merged(seen, groups, stop.clone());
        let count = |count: usize| {
            move |now: &Option<Arc<Inventory>>| {
                now.as_ref().is_some_and(|now| now.groups.len() == count)
            }
        };
        assert!(all.borrow().is_none());
        hardware.send_replace(Some(Arc::default()));
        all.wait_for(count(1)).await.unwrap();
        drop(hardware);
        hosted.send_modify(|groups| Arc::make_mut(groups).push(group("acme.com/two", &["b"])));
        all.wait_for(count(2)).await.unwrap();
        stop.cancel();
        assert!(all.changed().await.is_err());
    }
}
