//! Namespaces and security settings of a task: the requested ones, as far as the operator allows them.

use switchyard_core::spec::{
    AppArmorProfile, CapabilityChanges, CgroupNamespace, IpcMode, PidMode, SandboxNetwork,
    SandboxPid, SeccompProfile, Security, SelinuxLabel, SelinuxPart, UtsMode,
};
use switchyard_core::{Error, Result};
use switchyard_docker_options::capabilities;
use switchyard_docker_options::confinement::{UNCONFINED_TYPE, masked_paths, readonly_paths};
use switchyard_docker_options::fields::absolute;

use super::request::TaskRequest;
use super::{devices, names};
use crate::capability;
use crate::plugin_config::{PluginConfig, matches};

/// Namespaces of a task, except its network.
#[derive(Debug)]
pub(super) struct Namespaces {
    /// Its host name; empty with the host's.
    pub(super) hostname: String,
    pub(super) uts: UtsMode,
    pub(super) ipc: IpcMode,
    pub(super) sandbox_pid: SandboxPid,
    pub(super) pid: PidMode,
    pub(super) cgroup: Option<CgroupNamespace>,
}

/// The requested namespaces.
pub(super) fn namespaces(
    request: &TaskRequest<'_>,
    network: &SandboxNetwork,
) -> Result<Namespaces> {
    let options = request.options;
    let modes = &request.session.config.allowed_modes;
    let pid = host_or_own(
        request,
        "pid_mode",
        &options.pid_mode,
        &["private"],
        &modes.pid,
    )?;
    let ipc = host_or_own(
        request,
        "ipc_mode",
        &options.ipc_mode,
        &["private", "shareable"],
        &modes.ipc,
    )?;
    let uts = host_or_own(
        request,
        "uts_mode",
        &options.uts_mode,
        &["private"],
        &modes.uts,
    )?;
    // Every task is in the host's user namespace. Requesting it changes nothing, but is checked as Nomad
    // checks it.
    host_or_own(
        request,
        "userns_mode",
        &options.userns_mode,
        &[],
        &modes.userns,
    )?;
    let host_network = *network == SandboxNetwork::Host;
    let (uts, hostname) = match (uts, host_network, options.hostname.is_empty()) {
        (true, _, false) => {
            return Err(Error::invalid(
                "hostname",
                "uts_mode is \"host\": the host keeps its name",
            ));
        }
        (true, _, true) => (UtsMode::Host, String::new()),
        (false, true, true) => (UtsMode::Network, String::new()),
        (false, true, false) => (UtsMode::Own, names::hostname(request)?),
        (false, false, _) => (UtsMode::Network, names::hostname(request)?),
    };
    let (sandbox_pid, pid) = if pid {
        (SandboxPid::Host, PidMode::Host)
    } else {
        (SandboxPid::PerTask, PidMode::Private)
    };
    let cgroup = match options.cgroupns.as_str() {
        "" => None,
        "private" => Some(CgroupNamespace::Private),
        "host" => {
            require_host_mode_allowed(request, "cgroupns", &modes.cgroupns)?;
            Some(CgroupNamespace::Host)
        }
        other => {
            return Err(Error::invalid(
                "cgroupns",
                format!("{other:?} is neither \"private\" nor \"host\""),
            ));
        }
    };
    let ipc = if ipc { IpcMode::Host } else { IpcMode::Shared };
    Ok(Namespaces {
        hostname,
        uts,
        ipc,
        sandbox_pid,
        pid,
        cgroup,
    })
}

/// Returns whether a mode is the host's, which the operator must allow.
fn host_or_own(
    request: &TaskRequest<'_>,
    field: &str,
    mode: &str,
    own: &[&str],
    allowed: &[String],
) -> Result<bool> {
    match mode {
        "" => Ok(false),
        "host" => require_host_mode_allowed(request, field, allowed).map(|()| true),
        mode if own.contains(&mode) => Ok(false),
        other => Err(Error::unimplemented(format!(
            "{field}: {other:?} is not supported, only \"host\" or the task's own"
        ))),
    }
}

/// Refuses a host namespace that the operator has not allowed.
pub(super) fn require_host_mode_allowed(
    request: &TaskRequest<'_>,
    field: &str,
    allowed: &[String],
) -> Result<()> {
    if request.session.config.allow_privileged || allowed.iter().any(|allowed| allowed == "host") {
        return Ok(());
    }
    let kind = field.trim_end_matches("_mode");
    Err(Error::invalid(
        field,
        format!(
            "\"host\" is not allowed on this Nomad agent: have allowed_modes.{kind} of the plugin's configuration name it"
        ),
    ))
}

/// The runtime handler of a task; empty for the node's default.
pub(super) fn handler(request: &TaskRequest<'_>) -> Result<String> {
    let config = &request.session.config;
    let wanted = &request.options.runtime;
    if wanted.is_empty() {
        let gpus = devices::gpus(request).is_some();
        return Ok(if gpus {
            config.nvidia_runtime.clone()
        } else {
            String::new()
        });
    }
    if config.allow_runtimes.is_empty() || config.allow_runtimes.contains(wanted) {
        return Ok(wanted.clone());
    }
    let why = "have allow_runtimes of the plugin's configuration name it";
    Err(Error::invalid(
        "runtime",
        format!("requested runtime {wanted:?} is not allowed: {why}"),
    ))
}

/// The security settings of a task.
pub(super) fn security(request: &TaskRequest<'_>) -> Result<Security> {
    let options = request.options;
    let config = &request.session.config;
    let add = capabilities::names("cap_add", &options.cap_add)?;
    let drop = capabilities::names("cap_drop", &options.cap_drop)?;
    let capabilities = capability::changes(&config.allow_caps, &add, &drop)?;
    let mut security = Security {
        privileged: options.privileged,
        capabilities,
        readonly_rootfs: options.readonly_rootfs,
        no_new_privileges: false,
        seccomp: SeccompProfile::RuntimeDefault,
        apparmor: None,
        selinux: None,
        masked_paths: masked_paths(),
        readonly_paths: readonly_paths(),
    };
    if options.privileged {
        if !config.allow_privileged {
            let text = "Docker privileged mode is disabled on this Nomad agent: allow_privileged of the plugin's configuration \
                is false";
            return Err(Error::invalid("privileged", text));
        }
        security.capabilities = CapabilityChanges::default();
        security.seccomp = SeccompProfile::Unconfined;
        security.apparmor = Some(AppArmorProfile::Unconfined);
        (security.masked_paths, security.readonly_paths) = (Vec::new(), Vec::new());
    }
    for (index, option) in options.security_opt.iter().enumerate() {
        apply(
            &format!("security_opt[{index}]"),
            option,
            config,
            &mut security,
        )?;
    }
    Ok(security)
}

/// Applies a `security_opt`: `key`, `key=value`, or in the old spelling `key:value`.
fn apply(field: &str, option: &str, config: &PluginConfig, security: &mut Security) -> Result<()> {
    let (key, value) = match option.split_once('=').or_else(|| option.split_once(':')) {
        Some((key, value)) => (key, value),
        None => (option, ""),
    };
    require_option_allowed(field, (key, value), config)?;
    match (key, value) {
        ("no-new-privileges", "" | "true") => security.no_new_privileges = true,
        ("no-new-privileges", "false") => security.no_new_privileges = false,
        ("seccomp", "unconfined") => security.seccomp = SeccompProfile::Unconfined,
        ("seccomp", "builtin") => security.seccomp = SeccompProfile::RuntimeDefault,
        ("seccomp", path) => security.seccomp = SeccompProfile::Localhost(absolute(field, path)?),
        ("apparmor", "unconfined") => security.apparmor = Some(AppArmorProfile::Unconfined),
        ("apparmor", "docker-default") => security.apparmor = Some(AppArmorProfile::RuntimeDefault),
        ("apparmor", name) if !name.is_empty() && !name.chars().any(char::is_control) => {
            security.apparmor = Some(AppArmorProfile::Localhost(name.to_owned()));
        }
        ("label", label) => {
            let known = security.selinux.take().unwrap_or_default();
            security.selinux = Some(with_label(field, label, known)?);
        }
        ("systempaths", "unconfined") => {
            (security.masked_paths, security.readonly_paths) = (Vec::new(), Vec::new());
        }
        ("credentialspec", _) => {
            return Err(Error::unimplemented(format!(
                "{field}: credentialspec is for Windows"
            )));
        }
        _ => {
            return Err(Error::invalid(
                field,
                format!("{option:?} is no security option that can be set here"),
            ));
        }
    }
    Ok(())
}

/// Refuses a `security_opt` that the operator has not allowed. One that confines a task as by default, or
/// further, is always allowed.
fn require_option_allowed(
    field: &str,
    (key, value): (&str, &str),
    config: &PluginConfig,
) -> Result<()> {
    if matches!(
        (key, value),
        ("no-new-privileges", _) | ("seccomp", "builtin") | ("apparmor", "docker-default")
    ) {
        return Ok(());
    }
    let option = format!("{key}={value}");
    if !config
        .allow_security_opt
        .iter()
        .any(|pattern| matches(pattern, &option))
    {
        let why = "is not allowed on this Nomad agent: have allow_security_opt of the plugin's configuration name it";
        return Err(Error::invalid(field, format!("{option:?} {why}")));
    }
    // It makes /proc/sys writable, and thereby the path of a program that the kernel starts as root of the
    // host.
    if key == "systempaths" && !config.allow_privileged {
        let why =
            "is as good as privileged, and allow_privileged of the plugin's configuration is false";
        return Err(Error::invalid(field, format!("{option:?} {why}")));
    }
    Ok(())
}

fn with_label(field: &str, label: &str, known: SelinuxLabel) -> Result<SelinuxLabel> {
    let (part, value) = label.split_once(':').unwrap_or((label, ""));
    let refused = || Error::invalid(field, format!("{label:?} is no part of a label"));
    let which = match part {
        "disable" if value.is_empty() => {
            return Ok(SelinuxLabel {
                type_: UNCONFINED_TYPE.to_owned(),
                ..known
            });
        }
        "user" => SelinuxPart::User,
        "role" => SelinuxPart::Role,
        "type" => SelinuxPart::Type,
        "level" => SelinuxPart::Level,
        _ => return Err(refused()),
    };
    which.check(field, value)?;
    let value = value.to_owned();
    Ok(match which {
        SelinuxPart::User => SelinuxLabel {
            user: value,
            ..known
        },
        SelinuxPart::Role => SelinuxLabel {
            role: value,
            ..known
        },
        SelinuxPart::Type => SelinuxLabel {
            type_: value,
            ..known
        },
        SelinuxPart::Level => SelinuxLabel {
            level: value,
            ..known
        },
    })
}
