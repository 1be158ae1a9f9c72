//! Converts the gateway's types to the kubelet's messages.

use switchyard_core::device::Reservation;
use switchyard_core::gateway::Leased;
use switchyard_core::spec::{DeviceNode, Mount, MountSource};
use switchyard_core::{Error, Result};
use switchyard_proto::kubelet::device_plugin::v1beta1;

use crate::listing::{Listing, Slot};

/// The version of the device plugin API that is spoken.
pub(crate) const VERSION: &str = "v1beta1";

/// Prefix of the annotation key that identifies a container's lease to CreateContainer; the lease token
/// follows.
const ANNOTATION: &str = "devices.switchyard.io/";

/// The options of the plugin: which optional calls the kubelet has to make.
pub(crate) const fn options() -> v1beta1::DevicePluginOptions {
    v1beta1::DevicePluginOptions {
        pre_start_required: true,
        get_preferred_allocation_available: true,
    }
}

/// All slots of a resource.
pub(crate) fn list(listing: &Listing) -> v1beta1::ListAndWatchResponse {
    let device = |(id, slot): (&str, Slot)| {
        let Slot { healthy, numa_node } = slot;
        v1beta1::Device {
            id: id.to_owned(),
            health: if healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
            topology: numa_node.map(|node| v1beta1::TopologyInfo {
                nodes: vec![v1beta1::NumaNode { id: node.into() }],
            }),
        }
    };
    v1beta1::ListAndWatchResponse {
        devices: listing.slots().map(device).collect(),
    }
}

/// The answer to Allocate for one container: what a lease gives it.
pub(crate) fn allocated(leased: Leased) -> Result<v1beta1::ContainerAllocateResponse> {
    let Leased {
        token,
        reservation:
            Reservation {
                env,
                nodes,
                mounts,
                cdi,
            },
    } = leased;
    let node = |DeviceNode {
                    host_path,
                    container_path,
                    permissions,
                }: DeviceNode| v1beta1::DeviceSpec {
        container_path: container_path.display().to_string(),
        host_path: host_path.display().to_string(),
        permissions,
    };
    Ok(v1beta1::ContainerAllocateResponse {
        envs: env,
        mounts: mounts.into_iter().map(mount).collect::<Result<_>>()?,
        devices: nodes.into_iter().map(node).collect(),
        annotations: [(format!("{ANNOTATION}{token}"), String::new())].into(),
        cdi_devices: cdi
            .into_iter()
            .map(|name| v1beta1::CdiDevice { name })
            .collect(),
    })
}

/// Converts a mount. The message has no fields for its propagation and its other options; these are dropped.
fn mount(mount: Mount) -> Result<v1beta1::Mount> {
    let Mount {
        destination,
        source,
        readonly,
        recursive_readonly: _,
        propagation: _,
        id_mapped: _,
        selinux_relabel: _,
        options: _,
    } = mount;
    let host_path = match source {
        MountSource::Host { path, missing: _ } => path,
        MountSource::Beneath { root, path } => root.join(path),
        MountSource::Image { .. }
        | MountSource::Volume { .. }
        | MountSource::Nfs { .. }
        | MountSource::Tmpfs { .. } => {
            let text = format!(
                "a kubelet cannot mount anything but a path of the host at {}",
                destination.display()
            );
            return Err(Error::unimplemented(text));
        }
    };
    Ok(v1beta1::Mount {
        container_path: destination.display().to_string(),
        host_path: host_path.display().to_string(),
        read_only: readonly,
    })
}

#[cfg(test)]
mod tests {
    use switchyard_core::device::node;
    use switchyard_core::id::LeaseToken;
    use switchyard_core::spec::MissingSource;

    use super::*;

    fn mounted(source: MountSource) -> Mount {
        Mount {
            readonly: true,
            ..Mount::new("/firmware", source)
        }
    }

    #[test]
    fn a_container_gets_all_of_the_reservation_and_the_token() {
        let firmware = MountSource::Host {
            path: "/lib/firmware".into(),
            missing: MissingSource::Fail,
        };
        let reservation = Reservation {
            env: [("TPU".to_owned(), "/dev/tpu0".to_owned())].into(),
            nodes: vec![node("/dev/tpu0".into(), "rw")],
            mounts: vec![mounted(firmware)],
            cdi: vec!["acme.com/tpu=0".to_owned()],
        };
        let given = allocated(Leased {
            token: LeaseToken::from_bytes([0xab; 16]),
            reservation,
        })
        .unwrap();
        let v1beta1::ContainerAllocateResponse {
            envs,
            mounts,
            devices,
            annotations,
            cdi_devices,
        } = given;
        assert_eq!(envs["TPU"], "/dev/tpu0");
        let [mount] = &mounts[..] else {
            panic!("{mounts:?}")
        };
        assert_eq!(
            (&*mount.container_path, &*mount.host_path),
            ("/firmware", "/lib/firmware")
        );
        assert!(mount.read_only);
        let [node] = &devices[..] else {
            panic!("{devices:?}")
        };
        assert_eq!(
            (&*node.container_path, &*node.host_path, &*node.permissions),
            ("/dev/tpu0", "/dev/tpu0", "rw")
        );
        assert_eq!(
            annotations,
            [(
                format!("devices.switchyard.io/{}", "ab".repeat(16)),
                String::new()
            )]
            .into()
        );
        assert_eq!(
            cdi_devices,
            [v1beta1::CdiDevice {
                name: "acme.com/tpu=0".to_owned()
            }]
        );
    }

    #[test]
    fn a_mount_that_is_no_path_of_the_host_is_refused() {
        let error = mount(mounted(MountSource::Tmpfs {
            size_bytes: 0,
            mode: 0,
        }))
        .unwrap_err();
        assert!(error.to_string().contains("/firmware"), "{error}");
    }
}
