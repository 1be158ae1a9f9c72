//! What pods have by dynamic resource allocation, as `/v1/devices` shows it.

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
    /// What the container gets of it, by CDI names.
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

#[cfg(test)]
mod tests {
    use switchyard_core::id::Owner;

    use super::*;
    use crate::DevicesView;

    #[test]
    fn devices_of_claims_are_those_of_kubernetes() {
        let device = DynamicDevice {
            pod: "shop/web".to_owned(),
            container: "app".to_owned(),
            claim: "shop/gpus".to_owned(),
            driver: "gpu.acme.com".to_owned(),
            pool: "node1".to_owned(),
            device: "gpu-0".to_owned(),
            cdi: vec!["gpu.acme.com/claim=1".to_owned()],
        };
        let view = DevicesView::default().with_dynamic(&[device]);
        let text = serde_json::to_string(&view).unwrap();
        assert_eq!(serde_json::from_str::<DevicesView>(&text).unwrap(), view);
        for owner in Owner::ALL {
            let shown = view.clone().of_owner(owner).dynamic;
            assert_eq!(
                shown.len(),
                usize::from(owner == Owner::Kubernetes),
                "{owner}"
            );
        }
    }
}
