//! I/O limits on block devices for an existing task: written into its cgroup, because runc changes none of
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use switchyard_cgroup::{Device, DeviceLimits};
use switchyard_core::spec::Throttle;
use switchyard_core::{Error, Result};
use switchyard_runtime_spec::RealHost;
use switchyard_runtime_spec::oci::{LinuxBlockIo, LinuxThrottle};
use switchyard_runtime_spec::throttles::throttles;

use crate::base::fs::blocking;
use crate::task::TaskEntry;
use crate::task::cgroups::TaskCgroups;

/// I/O limits on block devices, with the numbers that the devices have now.
pub(crate) struct Throttles {
    pub(crate) asked: Vec<Throttle>,
    limits: LinuxBlockIo,
}

// === impl Throttles ===

impl Throttles {
    /// # Errors
    /// `InvalidArgument` for a path that is no block device.
    pub(crate) async fn resolve(asked: Vec<Throttle>) -> Result<Self> {
        blocking(move || {
            let limits = throttles(&asked, &RealHost)?;
            Ok(Self { asked, limits })
        })
        .await
    }

    /// The limits whose devices exist: for a removed device there is nothing to limit.
    pub(crate) async fn resolve_existing(asked: Vec<Throttle>) -> Self {
        let resolved = blocking(move || {
            let exists =
                |throttle: &Throttle| match throttles(std::slice::from_ref(throttle), &RealHost) {
                    Ok(_) => true,
                    Err(error) => {
                        tracing::warn!(
                            error = error.report(),
                            "skipping an I/O limit on a block device"
                        );
                        false
                    }
                };
            let asked: Vec<Throttle> = asked.into_iter().filter(exists).collect();
            let limits = throttles(&asked, &RealHost)?;
            Ok(Self { asked, limits })
        });
        match resolved.await {
            Ok(resolved) => resolved,
            Err(error) => {
                tracing::warn!(
                    error = error.report(),
                    "skipping the I/O limits on block devices"
                );
                Self {
                    asked: Vec::new(),
                    limits: LinuxBlockIo::default(),
                }
            }
        }
    }

    /// Replaces the throttles in the resources of an OCI spec; weights are kept.
    pub(crate) fn apply_to(&self, resources: &mut Value) {
        let Some(resources) = resources.as_object_mut() else {
            return;
        };
        let block_io = resources
            .entry("blockIO")
            .or_insert_with(|| Value::Object(Map::new()));
        let Some(block_io) = block_io.as_object_mut() else {
            return;
        };
        block_io.retain(|key, _| !key.starts_with("throttle"));
        let fresh = serde_json::to_value(&self.limits).unwrap_or_default();
        if let Value::Object(fresh) = fresh {
            block_io.extend(fresh);
        }
    }

    fn by_device(&self) -> BTreeMap<Device, DeviceLimits> {
        let LinuxBlockIo {
            weight: _,
            weight_device: _,
            throttle_read_bps_device,
            throttle_write_bps_device,
            throttle_read_iops_device,
            throttle_write_iops_device,
        } = &self.limits;
        let mut devices: BTreeMap<Device, DeviceLimits> = BTreeMap::new();
        let mut take = |list: &[LinuxThrottle], set: fn(&mut DeviceLimits, u64)| {
            for LinuxThrottle { major, minor, rate } in list {
                set(devices.entry((*major, *minor)).or_default(), *rate);
            }
        };
        take(throttle_read_bps_device, |limits, rate| {
            limits.read_bytes = Some(rate)
        });
        take(throttle_write_bps_device, |limits, rate| {
            limits.write_bytes = Some(rate)
        });
        take(throttle_read_iops_device, |limits, rate| {
            limits.reads = Some(rate)
        });
        take(throttle_write_iops_device, |limits, rate| {
            limits.writes = Some(rate)
        });
        devices
    }
}

impl TaskCgroups {
    /// Sets exactly these I/O limits in a task's cgroup. Idempotent.
    pub(crate) async fn throttle(&self, entry: &TaskEntry, throttles: &Throttles) -> Result<()> {
        let Some(group) = entry.record().group() else {
            return Ok(());
        };
        let cgroups = Arc::clone(&self.reader);
        let wanted = throttles.by_device();
        blocking(move || cgroups.throttle(&group, &wanted).map_err(Error::from)).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_stored_is_replaced_and_shares_stay() {
        let limit = |rate| {
            vec![LinuxThrottle {
                major: 8,
                minor: 0,
                rate,
            }]
        };
        let limits = LinuxBlockIo {
            throttle_read_bps_device: limit(7),
            ..LinuxBlockIo::default()
        };
        let throttles = Throttles {
            asked: Vec::new(),
            limits,
        };
        let old = json!({ "weight": 200, "throttleWriteIOPSDevice": [{ "major": 8, "minor": 0, "rate": 1 }] });
        let mut resources = json!({ "cpu": { "shares": 2 }, "blockIO": old });
        throttles.apply_to(&mut resources);
        let fresh = json!({ "weight": 200, "throttleReadBpsDevice": [{ "major": 8, "minor": 0, "rate": 7 }] });
        assert_eq!(
            resources,
            json!({ "cpu": { "shares": 2 }, "blockIO": fresh })
        );
        let expected = DeviceLimits {
            read_bytes: Some(7),
            ..DeviceLimits::default()
        };
        assert_eq!(throttles.by_device(), BTreeMap::from([((8, 0), expected)]));
    }
}
