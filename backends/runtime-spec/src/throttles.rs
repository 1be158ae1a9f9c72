//! Limits on block devices, by their numbers.

use std::path::Path;

use switchyard_core::spec::{Throttle, Throttled};
use switchyard_core::{Error, Result};

use crate::input::{DeviceInfo, HostFs, HostNode};
use crate::oci::{LinuxBlockIo, LinuxThrottle};
use crate::text;

/// The limits of a spec; `None` without any. Of two for one device and use the later counts.
///
/// # Errors
/// `InvalidArgument`, naming `throttles`, for a path that is missing or no block device, or a rate of 0.
pub fn block_io(asked: &[Throttle], fs: &dyn HostFs) -> Result<Option<LinuxBlockIo>> {
    let mut limits = LinuxBlockIo::default();
    for Throttle { device, what, rate } in asked {
        let path = text::absolute("throttles", device)?;
        if *rate == 0 {
            return Err(Error::invalid("throttles", format!("the rate of {path} is 0")));
        }
        let found = fs.node(Path::new(&path)).map_err(|error| {
            Error::invalid("throttles", format!("{path} cannot be used")).with_source(error)
        })?;
        let HostNode::Device(DeviceInfo { block: true, major, minor, .. }) = found else {
            return Err(Error::invalid("throttles", format!("{path} is no block device")));
        };
        let list = match what {
            Throttled::ReadBytes => &mut limits.throttle_read_bps_device,
            Throttled::WriteBytes => &mut limits.throttle_write_bps_device,
            Throttled::Reads => &mut limits.throttle_read_iops_device,
            Throttled::Writes => &mut limits.throttle_write_iops_device,
        };
        let limit = LinuxThrottle { major: major.into(), minor: minor.into(), rate: *rate };
        list.retain(|other| (other.major, other.minor) != (limit.major, limit.minor));
        list.push(limit);
    }
    Ok((limits != LinuxBlockIo::default()).then_some(limits))
}
