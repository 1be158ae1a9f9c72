//! Converts containers.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use switchyard_core::id::{LeaseToken, Owner, TOKEN_LEN, TaskId};
use switchyard_core::spec::{
    ComputeClaim, EnvVar, LeaseClaim, Meta, Output, Stdin, Stdio, TaskSpec,
};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

use super::field::{absolute, makeable, name, required, text, without_parents};
use super::parent::Parent;
use super::security::ContainerContext;
use super::{mount, resources, security, signal};
use crate::config::Config;
use crate::record::{self, ContainerRecord};

/// Prefix of the annotations by which older kubelets request CDI devices.
const CDI_ANNOTATIONS: &str = "cdi.k8s.io/";

/// Prefix of the annotations by which kubelets pass on the tokens of leases from a device plugin of this
/// gateway.
const LEASE_ANNOTATIONS: &str = "devices.switchyard.io/";

/// The most device leases of a container: a kubelet requests one for each kind of device.
const LEASES_MAX: usize = 256;

/// Converts a container that was requested at `now`; `target` finds the container whose pid namespace it
/// joins.
pub(crate) fn container(
    config: cri::ContainerConfig,
    parent: &Parent<'_>,
    settings: &Config,
    target: &dyn Fn(&str) -> Result<TaskId>,
    now: SystemTime,
) -> Result<TaskSpec> {
    let request = ContainerRecord {
        config: Some(config),
        ..Default::default()
    };
    let record = record::encode(&request);
    let cri::ContainerConfig {
        metadata,
        image,
        command,
        args,
        working_dir,
        envs,
        mounts,
        devices,
        labels,
        annotations,
        log_path,
        stdin,
        stdin_once,
        tty,
        linux,
        windows: _,
        cdi_devices,
        stop_signal,
    } = required("config", request.config)?;
    let metadata = required("config.metadata", metadata)?;
    name("config.metadata.name", &metadata.name)?;
    let image = named_image(image)?;
    words("config.command", &command)?;
    words("config.args", &args)?;
    let cri::LinuxContainerConfig {
        resources: limits,
        security_context,
    } = linux.unwrap_or_default();
    let ContainerContext {
        security,
        user,
        pid,
    } = security::container_context(security_context, parent, settings, target)?;
    Ok(TaskSpec {
        annotations: runtime_annotations(&metadata, &image, parent),
        meta: Meta {
            owner: Owner::Kubernetes,
            name: format!("{}_{}_{}", metadata.name, metadata.attempt, parent.id),
            labels,
            created_at: now,
            record,
        },
        image: image.image,
        command,
        args,
        cwd: working_directory(&working_dir)?,
        env: environment(envs)?,
        unset_env: Vec::new(),
        user,
        mounts: mount::mounts(mounts, parent)?,
        devices: mount::devices(devices)?,
        cdi_devices: cdi_names(&cdi_devices, &annotations)?,
        leases: leases(&annotations)?,
        security,
        // CRI has no fields for these; the runtime's defaults apply.
        rlimits: Vec::new(),
        throttles: Vec::new(),
        io_weights: Vec::new(),
        net_priority: None,
        disk_limits: Vec::new(),
        resources: resources::limits(limits, "config.linux.resources")?,
        // Set by the caller; see `reserved`.
        compute: ComputeClaim::default(),
        cgroup: None,
        pid: pid.unwrap_or_else(|| parent.pid()),
        cgroup_namespace: None,
        init: false,
        stdio: Stdio {
            stdin: stdin_mode(stdin, stdin_once),
            tty,
            output: output(parent, &log_path)?,
        },
        stop_signal: signal::stop_signal(stop_signal)?,
    })
}

/// Checks that a container has an image, and that it is named.
fn named_image(image: Option<cri::ImageSpec>) -> Result<cri::ImageSpec> {
    let image = required("config.image", image)?;
    if image.image.is_empty() {
        return Err(Error::invalid("config.image.image", "it is empty"));
    }
    Ok(image)
}

fn working_directory(path: &str) -> Result<Option<PathBuf>> {
    if path.is_empty() {
        Ok(None)
    } else {
        absolute("config.working_dir", path).map(Some)
    }
}

const fn stdin_mode(is_open: bool, is_once: bool) -> Stdin {
    match (is_open, is_once) {
        (false, _) => Stdin::Closed,
        (true, false) => Stdin::Open,
        (true, true) => Stdin::Once,
    }
}

/// The names of CDI devices: those of the field, then those of annotations, without duplicates.
fn cdi_names(
    devices: &[cri::CdiDevice],
    annotations: &BTreeMap<String, String>,
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut known = HashSet::new();
    let mut add = |field: fmt::Arguments<'_>, name: &str| {
        let name = name.trim();
        if name.is_empty() {
            return Err(Error::invalid(field, "it names no device"));
        }
        text(field, name)?;
        if known.insert(name.to_owned()) {
            names.push(name.to_owned());
        }
        Ok(())
    };
    for (index, device) in devices.iter().enumerate() {
        add(format_args!("config.CDI_devices[{index}]"), &device.name)?;
    }
    for (key, list) in annotations
        .iter()
        .filter(|(key, _)| key.starts_with(CDI_ANNOTATIONS))
    {
        for name in list.split(',') {
            // A long key is written for an error alone, not for each name.
            add(format_args!("config.annotations[{key:?}]"), name)?;
        }
    }
    Ok(names)
}

/// The device leases of a container: their tokens are in the keys, the values have no meaning.
fn leases(annotations: &BTreeMap<String, String>) -> Result<Vec<LeaseClaim>> {
    let mut leases = Vec::new();
    for key in annotations.keys() {
        let Some(token) = key.strip_prefix(LEASE_ANNOTATIONS) else {
            continue;
        };
        if leases.len() == LEASES_MAX {
            let why = format!(
                "the container has {LEASES_MAX} leases of devices without it, and may have no more"
            );
            return Err(Error::invalid(
                format_args!("config.annotations[{key:?}]"),
                why,
            ));
        }
        let token: LeaseToken = token.parse().map_err(|_| {
            let why = format!(
                "it names no lease of devices: expected {TOKEN_LEN} lower-case hexadecimal digits"
            );
            Error::invalid(format_args!("config.annotations[{key:?}]"), why)
        })?;
        leases.push(LeaseClaim::new(token));
    }
    Ok(leases)
}

fn words(field: &str, words: &[String]) -> Result<()> {
    words
        .iter()
        .enumerate()
        .try_for_each(|(index, word)| text(format_args!("{field}[{index}]"), word))
}

fn environment(envs: Vec<cri::KeyValue>) -> Result<Vec<EnvVar>> {
    envs.into_iter().enumerate().map(variable).collect()
}

fn variable((index, variable): (usize, cri::KeyValue)) -> Result<EnvVar> {
    let cri::KeyValue { key, value } = variable;
    let field = format!("config.envs[{index}]");
    if key.is_empty() || key.contains(['=', '\0']) {
        return Err(Error::invalid(
            format_args!("{field}.key"),
            format!("{key:?} is not a variable's name"),
        ));
    }
    if value.contains(&0) {
        return Err(Error::invalid(
            format_args!("{field}.value"),
            "it contains a NUL byte",
        ));
    }
    Ok(EnvVar { name: key, value })
}

/// Returns the destination of output; without a directory or a path there is no log.
fn output(parent: &Parent<'_>, log_path: &str) -> Result<Output> {
    let directory = parent.config.log_directory.as_str();
    if directory.is_empty() || log_path.is_empty() {
        return Ok(Output::Live);
    }
    let field = "config.log_path";
    text(field, log_path)?;
    let path = PathBuf::from(log_path);
    if path.is_absolute() {
        return Err(Error::invalid(
            field,
            format!("{path:?} must be relative to the sandbox's log directory"),
        ));
    }
    without_parents(field, &path)?;
    if log_path.ends_with('/') || path.file_name().is_none() {
        return Err(Error::invalid(field, format!("{path:?} names no file")));
    }
    let path = Path::new(directory).join(path);
    makeable(field, &path)?;
    Ok(Output::Log(path))
}

/// The annotations that tools and runtimes expect in a runtime spec.
fn runtime_annotations(
    metadata: &cri::ContainerMetadata,
    image: &cri::ImageSpec,
    parent: &Parent<'_>,
) -> BTreeMap<String, String> {
    let user_image = match image.user_specified_image.as_str() {
        "" => image.image.as_str(),
        image => image,
    };
    let pod = parent.config.metadata.clone().unwrap_or_default();
    let id = parent.id.to_string();
    [
        ("container-type", "container"),
        ("sandbox-id", &id),
        ("container-name", &metadata.name),
        ("image-name", user_image),
        ("sandbox-name", &pod.name),
        ("sandbox-namespace", &pod.namespace),
        ("sandbox-uid", &pod.uid),
    ]
    .map(|(fact, value)| (format!("io.kubernetes.cri.{fact}"), value.to_owned()))
    .into()
}
