//! Converts mounts and devices of a container.

use std::path::{Path, PathBuf};

use switchyard_core::spec::{
    DeviceNode, MissingSource, Mount, MountSource, Propagation, Relabel, UserNamespace, rooted,
};
use switchyard_core::{Error, Reason, Result};
use switchyard_proto::cri::v1 as cri;

use super::field::{absolute, known, text, without_parents};
use super::parent::Parent;
use super::user_namespace::id_maps;

/// The mounts, in the order of the request.
pub(super) fn mounts(mounts: Vec<cri::Mount>, parent: &Parent<'_>) -> Result<Vec<Mount>> {
    let users = parent.users()?;
    mounts
        .into_iter()
        .enumerate()
        .map(|(index, wire)| {
            let volume = u32::try_from(index)
                .ok()
                .and_then(|index| parent.volumes.get(&index));
            mount(
                wire,
                index,
                volume,
                parent.recursive_readonly,
                users.as_ref(),
            )
        })
        .collect()
}

fn mount(
    wire: cri::Mount,
    index: usize,
    volume: Option<&String>,
    can_recurse: bool,
    users: Option<&UserNamespace>,
) -> Result<Mount> {
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
    text(format_args!("{field}.container_path"), &container_path)?;
    let propagation = match known(format_args!("{field}.propagation"), propagation)? {
        cri::MountPropagation::PropagationPrivate => Propagation::Private,
        cri::MountPropagation::PropagationHostToContainer => Propagation::HostToTask,
        cri::MountPropagation::PropagationBidirectional => Propagation::Bidirectional,
    };
    let id_mapped = id_mapped(&field, uid_mappings, gid_mappings, users)?;
    let source = match image {
        Some(image) => image_volume(&field, image, &image_sub_path, &host_path, readonly)
            .map_err(|error| error.with_reason(Reason::ImageVolume))?,
        None if !image_sub_path.is_empty() => {
            return Err(Error::invalid(
                format_args!("{field}.image_sub_path"),
                "it is for image volumes only",
            ));
        }
        None if let Some(name) = volume => MountSource::Volume {
            name: name.clone(),
            sub_path: PathBuf::new(),
            copied: true,
        },
        None => {
            let path = absolute(format_args!("{field}.host_path"), &host_path)?;
            MountSource::Host {
                path,
                missing: MissingSource::CreateDir,
            }
        }
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
                "{at}: the handler or the kernel of this node cannot do it"
            ))
            .with_reason(Reason::RecursiveReadonlyMount));
        }
    }
    Ok(Mount {
        destination: rooted(Path::new(&container_path)),
        source,
        readonly,
        recursive_readonly: recursive_read_only,
        propagation,
        id_mapped,
        selinux_relabel: if selinux_relabel {
            Relabel::Private
        } else {
            Relabel::Keep
        },
        options: mount_options,
    })
}

fn image_volume(
    field: &str,
    image: cri::ImageSpec,
    sub_path: &str,
    host_path: &str,
    readonly: bool,
) -> Result<MountSource> {
    // Kubelets send the id from the answer to PullImage; newer ones also send it as `image_ref`.
    let reference = [image.image, image.image_ref]
        .into_iter()
        .find(|reference| !reference.is_empty());
    let reference = reference
        .ok_or_else(|| Error::invalid(format_args!("{field}.image.image"), "it is empty"))?;
    if !host_path.is_empty() {
        return Err(Error::invalid(
            format_args!("{field}.host_path"),
            "an image volume has none",
        ));
    }
    if !readonly {
        return Err(Error::invalid(
            format_args!("{field}.readonly"),
            "it must be set: images cannot be written",
        ));
    }
    let at = format!("{field}.image_sub_path");
    text(&at, sub_path)?;
    let sub_path = PathBuf::from(sub_path);
    if sub_path.is_absolute() {
        return Err(Error::invalid(
            at,
            "it must be relative to the root of the image",
        ));
    }
    without_parents(&at, &sub_path)?;
    Ok(MountSource::Image {
        reference,
        sub_path,
    })
}

/// Returns whether a mount is to be id-mapped. Only the pod's own mappings, as kubelets send, are supported.
fn id_mapped(
    field: &str,
    uids: Vec<cri::IdMapping>,
    gids: Vec<cri::IdMapping>,
    users: Option<&UserNamespace>,
) -> Result<bool> {
    if uids.is_empty() && gids.is_empty() {
        return Ok(false);
    }
    let wanted = id_maps(uids, gids, field)?;
    match users {
        Some(users) if *users == wanted => Ok(true),
        Some(_) => Err(Error::invalid(
            format_args!("{field}.uidMappings"),
            "its mappings and gidMappings must be those of the pod's user namespace",
        )),
        None => Err(Error::invalid(
            format_args!("{field}.uidMappings"),
            "the pod has no user namespace for which mounts could be id-mapped",
        )),
    }
}

/// The host's device nodes.
pub(super) fn devices(devices: Vec<cri::Device>) -> Result<Vec<DeviceNode>> {
    devices.into_iter().enumerate().map(device).collect()
}

fn device((index, wire): (usize, cri::Device)) -> Result<DeviceNode> {
    let cri::Device {
        container_path,
        host_path,
        permissions,
    } = wire;
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
        container_path: rooted(&absolute(
            format_args!("{field}.container_path"),
            &container_path,
        )?),
        permissions,
    })
}
