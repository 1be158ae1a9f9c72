//! Limits and weights of block devices, by device number.

use std::collections::HashSet;
use std::path::Path;

use switchyard_core::spec::{IoWeight, TaskSpec, Throttle, Throttled};
use switchyard_core::{Error, Result};

use crate::host_fs::{DeviceInfo, HostFs, HostNode};
use crate::input::Host;
use crate::oci::{LinuxBlockIo, LinuxThrottle, LinuxWeight};
use crate::text;

/// The weights that every kernel with I/O weights accepts.
const WEIGHTS: std::ops::RangeInclusive<u16> = 10..=1000;

/// The limits and weights of a spec; `None` if there are none. Of two limits for the same device and
/// operation the later applies.
///
/// # Errors
/// `InvalidArgument`, naming `throttles` or `blkio_weight`, for a path that does not exist or is not a block
/// device, and for a number out of range; `Unimplemented` for weights if the kernel has none.
pub fn block_io(task: &TaskSpec, host: &Host, fs: &dyn HostFs) -> Result<Option<LinuxBlockIo>> {
    let mut limits = throttles(&task.throttles, fs)?;
    if !task.io_weights.is_empty() && !host.io_weights {
        return Err(Error::unimplemented(
            "blkio_weight: is not supported: this kernel has I/O weights neither by bfq nor by io.cost",
        ));
    }
    for IoWeight { device, weight } in &task.io_weights {
        if !WEIGHTS.contains(weight) {
            return Err(Error::invalid(
                "blkio_weight",
                format!("{weight} is not between 10 and 1000"),
            ));
        }
        match device {
            None => limits.weight = Some(*weight),
            Some(device) => {
                let (major, minor) = numbers("blkio_weight", device, fs)?;
                limits.weight_device.push(LinuxWeight {
                    major,
                    minor,
                    weight: *weight,
                });
            }
        }
    }
    keep_last(&mut limits.weight_device, |one| (one.major, one.minor));
    Ok((limits != LinuxBlockIo::default()).then_some(limits))
}

/// Only the limits, of a new task or for an update.
///
/// # Errors
/// `InvalidArgument`, naming `throttles`, for a path that does not exist or is not a block device, and for a
/// rate of 0.
pub fn throttles(asked: &[Throttle], fs: &dyn HostFs) -> Result<LinuxBlockIo> {
    let mut limits = LinuxBlockIo::default();
    for Throttle { device, what, rate } in asked {
        if *rate == 0 {
            return Err(Error::invalid(
                "throttles",
                format!("the rate of {} is 0", device.display()),
            ));
        }
        let (major, minor) = numbers("throttles", device, fs)?;
        let list = match what {
            Throttled::ReadBytes => &mut limits.throttle_read_bps_device,
            Throttled::WriteBytes => &mut limits.throttle_write_bps_device,
            Throttled::Reads => &mut limits.throttle_read_iops_device,
            Throttled::Writes => &mut limits.throttle_write_iops_device,
        };
        list.push(LinuxThrottle {
            major,
            minor,
            rate: *rate,
        });
    }
    for list in [
        &mut limits.throttle_read_bps_device,
        &mut limits.throttle_write_bps_device,
        &mut limits.throttle_read_iops_device,
        &mut limits.throttle_write_iops_device,
    ] {
        keep_last(list, |one| (one.major, one.minor));
    }
    Ok(limits)
}

/// Keeps the last of those for one device.
fn keep_last<T>(list: &mut Vec<T>, device: impl Fn(&T) -> (i64, i64)) {
    let mut seen = HashSet::with_capacity(list.len());
    list.reverse();
    list.retain(|one| seen.insert(device(one)));
    list.reverse();
}

/// The numbers of a block device.
fn numbers(field: &str, device: &Path, fs: &dyn HostFs) -> Result<(i64, i64)> {
    let path = text::absolute(field, device)?;
    let found = fs.node(Path::new(&path)).map_err(|error| {
        Error::invalid(field, format!("{path} cannot be used")).with_source(error)
    })?;
    match found {
        HostNode::Device(DeviceInfo {
            block: true,
            major,
            minor,
            ..
        }) => Ok((major.into(), minor.into())),
        HostNode::Device(_) | HostNode::Directory(_) | HostNode::Other => {
            Err(Error::invalid(field, format!("{path} is no block device")))
        }
    }
}
