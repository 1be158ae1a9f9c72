//! The file with the conclusion about the managers' check of devices.
//!
//! A kill before or after its replacement needs no crash point: without the new one the next daemon draws the conclusion
//! again.

use std::io::{self, ErrorKind};

use serde::{Deserialize, Serialize};

use super::{DEVICE_CHECK, Store, place_of};
use crate::error::Error;
use crate::offer::DeviceCheck;

/// The version of the format. A field that is added does not change it, and a version that follows reads it too.
const VERSION: u32 = 1;

/// The conclusion as it is stored. Fields that are not known are ignored.
#[derive(Serialize, Deserialize)]
struct DeviceCheckFile {
    version: u32,
    cluster: String,
    check: DeviceCheck,
}

impl Store {
    /// Stores how the managers of a cluster check devices. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`]; then the old conclusion is stored.
    pub fn save_device_check(&self, cluster: &str, check: DeviceCheck) -> Result<(), Error> {
        let file = DeviceCheckFile {
            version: VERSION,
            cluster: cluster.to_owned(),
            check,
        };
        let contents = serde_json::to_vec_pretty(&file)
            .map_err(|fault| self.failed("write", DEVICE_CHECK)(fault.into()))?;
        self.replace(DEVICE_CHECK, &contents)
    }

    /// Loads how the managers of this cluster check devices; `None` if nothing is stored, or another cluster's. Blocks on the
    /// file system.
    ///
    /// # Errors
    /// [`Error::File`], also for a damaged file or one of a later version; [`Error::InvalidFile`] if it is no such file
    /// at all.
    pub fn load_device_check(&self, cluster: &str) -> Result<Option<DeviceCheck>, Error> {
        let Some(contents) = self.read(DEVICE_CHECK)? else {
            return Ok(None);
        };
        parse(&contents, cluster).map_err(|reason| {
            self.failed("read", DEVICE_CHECK)(io::Error::new(ErrorKind::InvalidData, reason))
        })
    }
}

/// Reads what is stored, of this cluster.
pub(crate) fn parse(contents: &[u8], of: &str) -> Result<Option<DeviceCheck>, String> {
    let file: DeviceCheckFile =
        serde_json::from_slice(contents).map_err(|fault| place_of(&fault))?;
    let DeviceCheckFile {
        version,
        cluster,
        check,
    } = file;
    if version != VERSION {
        return Err(format!("its version is {version}"));
    }
    Ok((cluster == of).then_some(check))
}
