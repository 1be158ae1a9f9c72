//! Devices that pods have by dynamic resource allocation, as `/v1/devices` shows them.

use serde::{Deserialize, Serialize};
use switchyard_core::device::DynamicDevice;

/// A device that a container of a pod has by dynamic resource allocation. No ledger counts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicView {
    /// The pod, `NAMESPACE/NAME`.
    pub pod: String,
    /// The container.
    pub container: String,
    /// The resource claim, `NAMESPACE/NAME`.
    pub claim: String,
    /// The driver.
    pub driver: String,
    /// The pool of the driver.
    pub pool: String,
    /// The name of the device in the pool.
    pub device: String,
    /// CDI names of what the container gets for it.
    pub cdi: Vec<String>,
}

impl From<DynamicDevice> for DynamicView {
    fn from(device: DynamicDevice) -> Self {
        let DynamicDevice {
            pod,
            container,
            claim,
            driver,
            pool,
            device,
            cdi,
        } = device;
        Self {
            pod,
            container,
            claim,
            driver,
            pool,
            device,
            cdi,
        }
    }
}
