//! Metrics of the file systems that the daemon, containerd and the logs of containers use.

use prometheus::{IntGaugeVec, Registry};
use switchyard_core::backend::WatchedDisk;

use super::families::{gauges, signed};
use super::table;

/// The space of file systems.
#[derive(Debug)]
pub(super) struct DiskMetrics {
    size: IntGaugeVec,
    avail: IntGaugeVec,
    inodes: IntGaugeVec,
    free_inodes: IntGaugeVec,
}

impl DiskMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            size: gauges(registry, table::DISK_SIZE)?,
            avail: gauges(registry, table::DISK_AVAIL)?,
            inodes: gauges(registry, table::DISK_INODES)?,
            free_inodes: gauges(registry, table::DISK_FREE_INODES)?,
        })
    }

    pub(super) fn set(&self, disks: &[WatchedDisk]) {
        for gauge in [&self.size, &self.avail, &self.inodes, &self.free_inodes] {
            // A disk that does not answer now has no series: its last values would be taken for those of now.
            gauge.reset();
        }
        for WatchedDisk { of, space } in disks {
            let mount_point = space.mount_point.to_string_lossy();
            let labels = [*of, &*mount_point];
            let set = |gauge: &IntGaugeVec, value: u64| {
                gauge.with_label_values(&labels).set(signed(value));
            };
            set(&self.size, space.size_bytes);
            set(&self.avail, space.avail_bytes);
            // A file system that makes inodes as it needs them has no number of them.
            if space.inodes > 0 {
                set(&self.inodes, space.inodes);
                set(&self.free_inodes, space.free_inodes);
            }
        }
    }
}
