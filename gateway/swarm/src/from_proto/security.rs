//! Confinement of a task.

use swarm::privileges::{AppArmorOpts, SeLinuxContext, SeccompOpts, app_armor_opts, seccomp_opts};
use switchyard_core::spec::{AppArmorProfile, SeccompProfile, Security, SelinuxLabel};
use switchyard_core::{Error, Result};
use switchyard_docker_options::capabilities::{self, DEFAULTS};
use switchyard_docker_options::confinement::{UNCONFINED_TYPE, masked_paths, readonly_paths};
use switchyard_proto::docker::swarmkit::v1 as swarm;

/// The security settings of a task.
pub(super) fn security(container: &swarm::ContainerSpec) -> Result<Security> {
    let add = capabilities::names("container.capability_add", &container.capability_add)?;
    let drop = capabilities::names("container.capability_drop", &container.capability_drop)?;
    let privileges = container.privileges.clone().unwrap_or_default();
    let swarm::Privileges {
        credential_spec,
        selinux_context,
        seccomp,
        apparmor,
        no_new_privileges,
    } = privileges;
    if credential_spec.is_some() {
        return Err(Error::unimplemented(
            "container.privileges.credential_spec: it is for Windows",
        ));
    }
    Ok(Security {
        privileged: false,
        capabilities: capabilities::changes("container.capability_add", DEFAULTS, &add, &drop)?,
        readonly_rootfs: container.read_only,
        no_new_privileges,
        seccomp: seccomp.map_or(Ok(SeccompProfile::RuntimeDefault), seccomp_profile)?,
        apparmor: apparmor.map(apparmor_profile).transpose()?.flatten(),
        selinux: selinux_context.map(selinux).transpose()?.flatten(),
        masked_paths: masked_paths(),
        readonly_paths: readonly_paths(),
    })
}

fn seccomp_profile(wire: SeccompOpts) -> Result<SeccompProfile> {
    let SeccompOpts { mode, profile: _ } = wire;
    let field = "container.privileges.seccomp";
    match seccomp_opts::SeccompMode::try_from(mode) {
        Ok(seccomp_opts::SeccompMode::Default) => Ok(SeccompProfile::RuntimeDefault),
        Ok(seccomp_opts::SeccompMode::Unconfined) => Ok(SeccompProfile::Unconfined),
        Ok(seccomp_opts::SeccompMode::Custom) => {
            let why =
                "custom profiles of a service are not supported: use the default one or unconfined";
            Err(Error::unimplemented(format!("{field}: {why}")))
        }
        Err(_) => Err(Error::unimplemented(format!(
            "{field}.mode: {mode} is not known"
        ))),
    }
}

/// `None` is the default profile.
fn apparmor_profile(wire: AppArmorOpts) -> Result<Option<AppArmorProfile>> {
    let AppArmorOpts { mode } = wire;
    match app_armor_opts::AppArmorMode::try_from(mode) {
        Ok(app_armor_opts::AppArmorMode::Default) => Ok(None),
        Ok(app_armor_opts::AppArmorMode::Disabled) => Ok(Some(AppArmorProfile::Unconfined)),
        Err(_) => Err(Error::unimplemented(format!(
            "container.privileges.apparmor.mode: {mode} is not known"
        ))),
    }
}

/// `None` takes the default label.
fn selinux(wire: SeLinuxContext) -> Result<Option<SelinuxLabel>> {
    let SeLinuxContext {
        disable,
        user,
        role,
        r#type,
        level,
    } = wire;
    if disable {
        return Ok(Some(SelinuxLabel {
            type_: UNCONFINED_TYPE.to_owned(),
            ..SelinuxLabel::default()
        }));
    }
    let label = SelinuxLabel {
        user,
        role,
        type_: r#type,
        level,
    };
    label.check("container.privileges.selinux_context")?;
    Ok(Some(label).filter(|label| *label != SelinuxLabel::default()))
}
