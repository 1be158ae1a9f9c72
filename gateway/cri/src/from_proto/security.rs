//! Converts users, namespaces and security settings.

use std::path::PathBuf;

use switchyard_core::id::TaskId;
use switchyard_core::spec::{
    AppArmorProfile, CapabilityChanges, GroupPolicy, IpcMode, PidMode, SandboxPid, SeccompProfile,
    Security, SelinuxLabel, UserNamespace, UserRef, UserSpec,
};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

use super::field::{absolute, known, numeric_id};
use super::parent::Parent;
use super::user_namespace::user_namespace;
use crate::config::{Config, UnsetSeccomp};

const FIELD: &str = "config.linux.security_context";

/// Namespaces of a sandbox.
#[derive(Debug, PartialEq)]
pub(super) struct SandboxNamespaces {
    /// True if it uses the host's network.
    pub(super) host_network: bool,
    /// Its process namespace.
    pub(super) pid: SandboxPid,
    /// Its IPC namespace.
    pub(super) ipc: IpcMode,
    /// The user namespace, if it has its own.
    pub(super) users: Option<UserNamespace>,
}

/// The security context of a container.
#[derive(Debug, Default)]
pub(super) struct ContainerContext {
    /// Seccomp, AppArmor, SELinux, capabilities and the like.
    pub(super) security: Security,
    /// The user that it runs as.
    pub(super) user: UserSpec,
    /// The pid namespace; `None` uses the sandbox's.
    pub(super) pid: Option<PidMode>,
}

// === namespaces ===

/// The namespaces of a sandbox; namespaces that are not specified are the pod's own.
pub(super) fn sandbox_namespaces(
    options: Option<cri::NamespaceOption>,
) -> Result<SandboxNamespaces> {
    let at = |name: &str| format!("{FIELD}.namespace_options.{name}");
    let cri::NamespaceOption {
        network,
        pid,
        ipc,
        // A sandbox cannot join a container: TARGET is refused below.
        target_id: _,
        userns_options,
    } = options.unwrap_or_default();
    let users = user_namespace(userns_options, &at("userns_options"))?;
    use cri::NamespaceMode as Mode;
    let pod_or_node = |name: &str, mode: Mode| match mode {
        Mode::Pod => Ok(false),
        Mode::Node => Ok(true),
        Mode::Container | Mode::Target => Err(Error::invalid(
            at(name),
            format!("a sandbox's cannot be {}", mode.as_str_name()),
        )),
    };
    let host_network = pod_or_node("network", known(at("network"), network)?)?;
    let host_ipc = pod_or_node("ipc", known(at("ipc"), ipc)?)?;
    let pid = match known(at("pid"), pid)? {
        Mode::Pod => SandboxPid::Shared,
        Mode::Container => SandboxPid::PerTask,
        Mode::Node => SandboxPid::Host,
        Mode::Target => return Err(Error::invalid(at("pid"), "a sandbox's cannot be TARGET")),
    };
    let ipc = if host_ipc {
        IpcMode::Host
    } else {
        IpcMode::Shared
    };
    if users.is_some() && (host_ipc || pid == SandboxPid::Host) {
        return Err(Error::invalid(
            at("userns_options"),
            "a user namespace needs pid and ipc namespaces of the pod's own: root inside has no say in the host's",
        ));
    }
    Ok(SandboxNamespaces {
        host_network,
        pid,
        ipc,
        users,
    })
}

/// The pid namespace of a container; its network, IPC and user namespaces are always the sandbox's.
fn pid_mode(
    options: cri::NamespaceOption,
    parent: &Parent<'_>,
    target: &dyn Fn(&str) -> Result<TaskId>,
) -> Result<Option<PidMode>> {
    let at = |name: &str| format!("{FIELD}.namespace_options.{name}");
    let cri::NamespaceOption {
        network,
        pid,
        ipc,
        target_id,
        userns_options,
    } = options;
    known::<cri::NamespaceMode>(at("network"), network)?;
    known::<cri::NamespaceMode>(at("ipc"), ipc)?;
    if userns_options.is_some()
        && user_namespace(userns_options, &at("userns_options"))? != parent.users()?
    {
        return Err(Error::invalid(
            at("userns_options"),
            "they must be those of the pod",
        ));
    }
    Ok(match known(at("pid"), pid)? {
        cri::NamespaceMode::Pod => None,
        cri::NamespaceMode::Container => Some(PidMode::Private),
        cri::NamespaceMode::Node => Some(PidMode::Host),
        cri::NamespaceMode::Target if target_id.is_empty() => {
            return Err(Error::invalid(at("target_id"), "the mode TARGET needs it"));
        }
        cri::NamespaceMode::Target => Some(PidMode::Target(
            target(&target_id).map_err(|error| error.context(at("target_id")))?,
        )),
    })
}

// === containers ===

/// Converts the security context of a container.
pub(super) fn container_context(
    context: Option<cri::LinuxContainerSecurityContext>,
    parent: &Parent<'_>,
    settings: &Config,
    target: &dyn Fn(&str) -> Result<TaskId>,
) -> Result<ContainerContext> {
    let cri::LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options,
        selinux_options,
        run_as_user,
        run_as_username,
        readonly_rootfs,
        supplemental_groups,
        apparmor_profile,
        seccomp_profile_path,
        no_new_privs,
        run_as_group,
        masked_paths,
        readonly_paths,
        seccomp,
        apparmor,
        supplemental_groups_policy,
    } = context.unwrap_or_default();
    if privileged && !parent.privileged() {
        // containerd's words, by which its suite of tests knows the refusal.
        let why = "failed to generate spec opts: no privileged container allowed in sandbox";
        return Err(Error::invalid(
            format_args!("{FIELD}.privileged"),
            format!("{why} {}", parent.id),
        ));
    }
    let security = Security {
        privileged,
        capabilities: capability_changes(capabilities)?,
        readonly_rootfs,
        no_new_privileges: no_new_privs,
        seccomp: seccomp_profile(seccomp, &seccomp_profile_path, settings)?,
        apparmor: apparmor_of(apparmor, &apparmor_profile)?,
        selinux: selinux_label(selinux_options)?,
        masked_paths: paths("masked_paths", &masked_paths)?,
        readonly_paths: paths("readonly_paths", &readonly_paths)?,
    };
    let user = UserSpec {
        user: user_ref(run_as_user, run_as_username, run_as_group.is_some())?,
        gid: run_as_group
            .map(|group| numeric_id(format_args!("{FIELD}.run_as_group"), group.value))
            .transpose()?,
        supplemental: groups(&supplemental_groups)?,
        named: Vec::new(),
        policy: match known(
            format_args!("{FIELD}.supplemental_groups_policy"),
            supplemental_groups_policy,
        )? {
            cri::SupplementalGroupsPolicy::Merge => GroupPolicy::Merge,
            cri::SupplementalGroupsPolicy::Strict => GroupPolicy::Strict,
        },
    };
    let pid = match namespace_options {
        None => None,
        Some(options) => pid_mode(options, parent, target)?,
    };
    Ok(ContainerContext {
        security,
        user,
        pid,
    })
}

fn user_ref(
    uid: Option<cri::Int64Value>,
    name: String,
    has_group: bool,
) -> Result<Option<UserRef>> {
    match (uid, name.is_empty()) {
        (Some(_), false) => Err(Error::invalid(
            format_args!("{FIELD}.run_as_username"),
            "run_as_user is set as well: give one",
        )),
        (Some(uid), true) => Ok(Some(UserRef::Uid(numeric_id(
            format_args!("{FIELD}.run_as_user"),
            uid.value,
        )?))),
        (None, false) => {
            if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
                return Err(Error::invalid(
                    format_args!("{FIELD}.run_as_username"),
                    format!("{name:?} is not a user's name"),
                ));
            }
            Ok(Some(UserRef::Name(name)))
        }
        (None, true) if has_group => Err(Error::invalid(
            format_args!("{FIELD}.run_as_group"),
            "it needs run_as_user or run_as_username",
        )),
        (None, true) => Ok(None),
    }
}

/// Numeric group ids.
pub(super) fn groups(numbers: &[i64]) -> Result<Vec<u32>> {
    numbers
        .iter()
        .enumerate()
        .map(|(index, number)| {
            numeric_id(
                format_args!("{FIELD}.supplemental_groups[{index}]"),
                *number,
            )
        })
        .collect()
}

fn paths(name: &str, paths: &[String]) -> Result<Vec<PathBuf>> {
    paths
        .iter()
        .enumerate()
        .map(|(index, path)| absolute(format_args!("{FIELD}.{name}[{index}]"), path))
        .collect()
}

fn capability_changes(changes: Option<cri::Capability>) -> Result<CapabilityChanges> {
    let cri::Capability {
        add_capabilities,
        drop_capabilities,
        add_ambient_capabilities,
    } = changes.unwrap_or_default();
    for (name, list) in [
        ("add_capabilities", &add_capabilities),
        ("drop_capabilities", &drop_capabilities),
        ("add_ambient_capabilities", &add_ambient_capabilities),
    ] {
        for (index, capability) in list.iter().enumerate() {
            // Unknown names are passed on: the runtime may be newer than this program.
            if capability.is_empty()
                || !capability
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'_')
            {
                return Err(Error::invalid(
                    format_args!("{FIELD}.capabilities.{name}[{index}]"),
                    format!("{capability:?} is not the name of a capability"),
                ));
            }
        }
    }
    Ok(CapabilityChanges {
        add: add_capabilities,
        drop: drop_capabilities,
        add_ambient: add_ambient_capabilities,
    })
}

// === profiles ===

/// The effective seccomp profile: the new field, or else the deprecated one.
fn seccomp_profile(
    profile: Option<cri::SecurityProfile>,
    old: &str,
    settings: &Config,
) -> Result<SeccompProfile> {
    if let Some(cri::SecurityProfile {
        profile_type,
        localhost_ref,
    }) = profile
    {
        let field = format!("{FIELD}.seccomp");
        return Ok(
            match known(format_args!("{field}.profile_type"), profile_type)? {
                cri::security_profile::ProfileType::RuntimeDefault => {
                    SeccompProfile::RuntimeDefault
                }
                cri::security_profile::ProfileType::Unconfined => SeccompProfile::Unconfined,
                cri::security_profile::ProfileType::Localhost => SeccompProfile::Localhost(
                    absolute(format_args!("{field}.localhost_ref"), &localhost_ref)?,
                ),
            },
        );
    }
    let field = format_args!("{FIELD}.seccomp_profile_path");
    match old {
        "" => Ok(match settings.unset_seccomp {
            UnsetSeccomp::Unconfined => SeccompProfile::Unconfined,
            UnsetSeccomp::RuntimeDefault => SeccompProfile::RuntimeDefault,
        }),
        "unconfined" => Ok(SeccompProfile::Unconfined),
        "runtime/default" | "docker/default" => Ok(SeccompProfile::RuntimeDefault),
        other => match other.strip_prefix("localhost/") {
            Some(path) => Ok(SeccompProfile::Localhost(absolute(field, path)?)),
            None => Err(Error::invalid(field, format!("{other:?} names no profile"))),
        },
    }
}

fn apparmor_of(
    profile: Option<cri::SecurityProfile>,
    old: &str,
) -> Result<Option<AppArmorProfile>> {
    let loaded = |field: &str, name: &str| {
        let name = name.strip_prefix("localhost/").unwrap_or(name);
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(Error::invalid(
                format_args!("{FIELD}.{field}"),
                format!("{name:?} names no profile"),
            ));
        }
        Ok(Some(AppArmorProfile::Localhost(name.to_owned())))
    };
    if let Some(cri::SecurityProfile {
        profile_type,
        localhost_ref,
    }) = profile
    {
        return match known(format_args!("{FIELD}.apparmor.profile_type"), profile_type)? {
            cri::security_profile::ProfileType::RuntimeDefault => {
                Ok(Some(AppArmorProfile::RuntimeDefault))
            }
            cri::security_profile::ProfileType::Unconfined => Ok(Some(AppArmorProfile::Unconfined)),
            cri::security_profile::ProfileType::Localhost => {
                loaded("apparmor.localhost_ref", &localhost_ref)
            }
        };
    }
    match old {
        "" => Ok(None),
        "runtime/default" => Ok(Some(AppArmorProfile::RuntimeDefault)),
        "unconfined" => Ok(Some(AppArmorProfile::Unconfined)),
        other if other.starts_with("localhost/") => loaded("apparmor_profile", other),
        other => Err(Error::invalid(
            format_args!("{FIELD}.apparmor_profile"),
            format!("{other:?} names no profile"),
        )),
    }
}

/// An SELinux label; an empty one is none.
pub(super) fn selinux_label(options: Option<cri::SeLinuxOption>) -> Result<Option<SelinuxLabel>> {
    let Some(cri::SeLinuxOption {
        user,
        role,
        r#type,
        level,
    }) = options
    else {
        return Ok(None);
    };
    if [&user, &role, &r#type, &level]
        .into_iter()
        .all(String::is_empty)
    {
        return Ok(None);
    }
    let label = SelinuxLabel {
        user,
        role,
        type_: r#type,
        level,
    };
    label.check(format_args!("{FIELD}.selinux_options"))?;
    Ok(Some(label))
}

/// Checks the profiles of a sandbox. They are for a process of the sandbox itself, which the backend
/// confines.
pub(super) fn check_sandbox_profiles(
    seccomp: Option<cri::SecurityProfile>,
    seccomp_profile_path: &str,
    apparmor: Option<cri::SecurityProfile>,
    settings: &Config,
) -> Result<()> {
    seccomp_profile(seccomp, seccomp_profile_path, settings)?;
    apparmor_of(apparmor, "").map(drop)
}
