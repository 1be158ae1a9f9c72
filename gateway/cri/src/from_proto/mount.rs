//! Mounts and devices of a container.

use std::path::{Component, Path, PathBuf};

use switchyard_core::spec::{DeviceNode, MissingSource, Mount, MountSource, Propagation};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

use super::{absolute, known};

/// Mounts, in the order asked for. `recursive_readonly` says whether the handler can make mounts read-only all the way down.
pub(super) fn mounts(mounts: Vec<cri::Mount>, recursive_readonly: bool) -> Result<Vec<Mount>> {
    mounts.into_iter().enumerate().map(|(index, wire)| mount(wire, index, recursive_readonly)).collect()
}

fn mount(wire: cri::Mount, index: usize, can_recurse: bool) -> Result<Mount> {
    let field = format!("config.mounts[{index}]");
    let cri::Mount {
        container_path,
        host_path,
        readonly,
        selinux_relabel,
        propagation,
        uid_mappings,
        gid_mappings,
        recursive_read_only,
        image,
        image_sub_path,
        mount_options,
    } = wire;
    if image.is_some() {
        // The kubelet knows the error by how its text begins.
        return Err(Error::unimplemented(format!(
            "ImageVolumeMountFailed: {field}.image: images cannot be mounted as volumes on this node yet"
        )));
    }
    if !image_sub_path.is_empty() {
        return Err(Error::invalid(format_args!("{field}.image_sub_path"), "it is for image volumes only"));
    }
    for (name, mappings) in [("uidMappings", uid_mappings), ("gidMappings", gid_mappings)] {
        if !mappings.is_empty() {
            return Err(Error::unimplemented(format!(
                "{field}.{name}: mounts cannot be id-mapped, for no handler of this node has user namespaces"
            )));
        }
    }
    if !mount_options.is_empty() {
        return Err(Error::unimplemented(format!(
            "{field}.mount_options: further options are not supported, as the features in Status say"
        )));
    }
    let destination = absolute(format_args!("{field}.container_path"), &container_path)?;
    let path = absolute(format_args!("{field}.host_path"), &host_path)?;
    let propagation = match known(format_args!("{field}.propagation"), propagation)? {
        cri::MountPropagation::PropagationPrivate => Propagation::Private,
        cri::MountPropagation::PropagationHostToContainer => Propagation::HostToTask,
        cri::MountPropagation::PropagationBidirectional => Propagation::Bidirectional,
    };
    if recursive_read_only {
        let at = format!("{field}.recursive_read_only");
        if !readonly {
            return Err(Error::invalid(at, "it needs readonly"));
        }
        if propagation != Propagation::Private {
            return Err(Error::invalid(at, "it needs PROPAGATION_PRIVATE"));
        }
        if !can_recurse {
            return Err(Error::unimplemented(format!(
                "RROUnsupported: {at}: the handler or the kernel of this node cannot do it"
            )));
        }
    }
    Ok(Mount {
        destination: lexically_clean(&destination),
        source: MountSource::Host { path, missing: MissingSource::CreateDir },
        readonly,
        recursive_readonly: recursive_read_only,
        propagation,
        selinux_relabel,
        options: Vec::new(),
    })
}

/// The same path without `.` and `..`, read as text: inside a container nothing is there yet to be followed.
fn lexically_clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

/// Devices of the host.
pub(super) fn devices(devices: Vec<cri::Device>) -> Result<Vec<DeviceNode>> {
    let device = |(index, wire)| {
        let cri::Device { container_path, host_path, permissions } = wire;
        let field = format!("config.devices[{index}]");
        let known = !permissions.is_empty() && permissions.chars().all(|c| "rwm".contains(c));
        if !known {
            return Err(Error::invalid(
                format_args!("{field}.permissions"),
                format!("{permissions:?} is not made of r, w and m"),
            ));
        }
        Ok(DeviceNode {
            host_path: absolute(format_args!("{field}.host_path"), &host_path)?,
            container_path: lexically_clean(&absolute(
                format_args!("{field}.container_path"),
                &container_path,
            )?),
            permissions,
        })
    };
    devices.into_iter().enumerate().map(device).collect()
}
