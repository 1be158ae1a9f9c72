//! The keys of a job that the parts of a specification come from: what the backend refuses is named by them.

use switchyard_core::SpecPart;

use super::devices::Devices;
use super::mounts::Mounts;
use super::request::TaskRequest;
use crate::task_config::TaskOptions;

/// The key of each part that has one.
pub(super) fn keys(
    request: &TaskRequest<'_>,
    mounts: &Mounts,
    devices: &Devices,
) -> Vec<(SpecPart, String)> {
    let options = request.options;
    let mut keys: Vec<(SpecPart, String)> = (0..options.group_add.len())
        .map(|index| (SpecPart::Group(index), format!("group_add[{index}]")))
        .collect();
    for (part, fields) in [
        (
            SpecPart::Mount as fn(usize) -> SpecPart,
            mounts.fields.as_slice(),
        ),
        (SpecPart::Device, devices.node_fields.as_slice()),
        (SpecPart::CdiDevice, devices.cdi_fields.as_slice()),
    ] {
        let named = fields.iter().enumerate();
        keys.extend(named.map(|(index, field)| (part(index), field.clone())));
    }
    let handler = if options.runtime.is_empty() {
        "nvidia_runtime of the plugin's configuration"
    } else {
        "runtime"
    };
    keys.push((SpecPart::Handler, handler.to_owned()));
    keys.push((SpecPart::User, "task.user".to_owned()));
    for (part, name) in [
        (SpecPart::Seccomp, "seccomp"),
        (SpecPart::AppArmor, "apparmor"),
        (SpecPart::Selinux, "label"),
    ] {
        keys.extend(security_option(options, name).map(|key| (part, key)));
    }
    keys
}

/// The last `security_opt` with this name, which is the one that applies.
fn security_option(options: &TaskOptions, name: &str) -> Option<String> {
    let has_name = |option: &String| {
        option
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['=', ':']))
    };
    let index = options.security_opt.iter().rposition(has_name)?;
    Some(format!("security_opt[{index}]"))
}
