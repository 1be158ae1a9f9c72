//! Decodes the configuration of the plugin and refuses invalid values. An agent whose plugin refuses its
//! configuration does not start, so options that have no effect here only cause warnings.

use std::time::Duration;

use switchyard_core::spec::{OomScoreAdj, PidsLimit};
use switchyard_core::{Error, Result};
use switchyard_docker_options::capabilities;
use switchyard_docker_options::local_volume::KINDS;

use super::{
    AllowedModes, AuthConfig, DEFAULT_CAPS, DanglingConfig, GcConfig, PluginConfig, VolumesConfig,
};
use crate::value::Block;

/// The minimum of the timeout of stalled pulls and of the grace period of dangling tasks.
const LEAST: Duration = Duration::from_secs(60);

/// Nomad facts that can become labels.
pub(crate) const LABEL_NAMES: [&str; 8] = [
    "job_name",
    "job_id",
    "parent_job_id",
    "task_group_name",
    "task_name",
    "namespace",
    "node_name",
    "node_id",
];

/// Keys of the docker driver that have no effect here, and why.
const WITHOUT_MEANING: [(&str, &str); 7] = [
    (
        "endpoint",
        "there is no Docker: tasks run on the containerd that the daemon is configured with",
    ),
    ("tls", "there is no Docker to speak to"),
    ("logging", "the agent collects the output of tasks itself"),
    ("infra_image", "networks need no process of their own"),
    (
        "infra_image_pull_timeout",
        "networks need no process of their own",
    ),
    (
        "container_exists_attempts",
        "a task of the same id is found at once",
    ),
    (
        "windows_allow_insecure_container_admin",
        "this is not Windows",
    ),
];

impl PluginConfig {
    /// Decodes an agent's configuration; returns it with warnings.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the key.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, Vec<String>)> {
        let mut block = Block::decode(bytes)?;
        let without = WITHOUT_MEANING.iter().filter(|(key, _)| block.has(key));
        let mut warnings: Vec<String> = without
            .map(|(key, why)| format!("{key} has no effect: {why}"))
            .collect();
        let defaults = Self::default();
        let config = Self {
            allow_privileged: block
                .flag("allow_privileged")?
                .unwrap_or(defaults.allow_privileged),
            allow_caps: allowed_caps(&mut block)?,
            allow_devices: block
                .flag("allow_devices")?
                .unwrap_or(defaults.allow_devices),
            allow_security_opt: listed(
                &mut block,
                "allow_security_opt",
                defaults.allow_security_opt,
            )?,
            allow_runtimes: block.texts("allow_runtimes")?,
            nvidia_runtime: block.text("nvidia_runtime")?,
            allowed_modes: allowed_modes(block.block("allowed_modes")?)?,
            auth: auth(block.block("auth")?)?,
            volumes: volumes(block.block("volumes")?)?,
            gc: gc(block.block("gc")?)?,
            disable_log_collection: block.flag("disable_log_collection")?.unwrap_or_default(),
            image_pull_timeout: positive(
                &mut block,
                "image_pull_timeout",
                defaults.image_pull_timeout,
            )?,
            pull_activity_timeout: at_least(
                &mut block,
                "pull_activity_timeout",
                defaults.pull_activity_timeout,
            )?,
            extra_labels: block.texts("extra_labels")?,
            pids_limit: pids_limit(&mut block)?,
            oom_score_adj: oom_score(&mut block)?,
            must_create_network: block
                .flag("must_create_network")?
                .unwrap_or(defaults.must_create_network),
        };
        warnings.extend(unknown("extra_labels", &config.extra_labels, &LABEL_NAMES));
        let options = &config.volumes.driver_options;
        warnings.extend(unknown("volumes.driver_options", options, &KINDS));
        Ok((config, warnings))
    }
}

fn allowed_caps(block: &mut Block) -> Result<Vec<String>> {
    if !block.has("allow_caps") {
        return Ok(DEFAULT_CAPS.map(str::to_owned).to_vec());
    }
    capabilities::names(&block.at("allow_caps"), &block.texts("allow_caps")?)
}

fn allowed_modes(mut block: Block) -> Result<AllowedModes> {
    let defaults = AllowedModes::default();
    Ok(AllowedModes {
        pid: listed(&mut block, "pid", defaults.pid)?,
        ipc: listed(&mut block, "ipc", defaults.ipc)?,
        userns: listed(&mut block, "userns", defaults.userns)?,
        uts: listed(&mut block, "uts", defaults.uts)?,
        network: listed(&mut block, "network", defaults.network)?,
        cgroupns: listed(&mut block, "cgroupns", defaults.cgroupns)?,
    })
}

/// A list of texts; the default applies only if there is no list, not if it is empty.
fn listed(block: &mut Block, key: &str, default: Vec<String>) -> Result<Vec<String>> {
    if block.has(key) {
        block.texts(key)
    } else {
        Ok(default)
    }
}

fn auth(mut block: Block) -> Result<AuthConfig> {
    let config = AuthConfig {
        config: block.text("config")?,
        helper: block.text("helper")?,
    };
    // It becomes the suffix of the name of a program that is searched in PATH.
    if config.helper.contains('/') {
        return Err(Error::invalid(
            block.at("helper"),
            format!(
                "{:?} is no end of a name docker-credential-…",
                config.helper
            ),
        ));
    }
    Ok(config)
}

fn volumes(mut block: Block) -> Result<VolumesConfig> {
    let config = VolumesConfig {
        enabled: block.flag("enabled")?.unwrap_or_default(),
        selinuxlabel: block.text("selinuxlabel")?,
        driver_options: listed(
            &mut block,
            "driver_options",
            VolumesConfig::default().driver_options,
        )?,
    };
    if !matches!(config.selinuxlabel.as_str(), "" | "z" | "Z") {
        return Err(Error::invalid(
            block.at("selinuxlabel"),
            format!("{:?} is neither \"z\" nor \"Z\"", config.selinuxlabel),
        ));
    }
    Ok(config)
}

fn gc(mut block: Block) -> Result<GcConfig> {
    let GcConfig {
        image,
        image_delay,
        container,
        dangling,
    } = GcConfig::default();
    Ok(GcConfig {
        image: block.flag("image")?.unwrap_or(image),
        image_delay: block.duration("image_delay")?.unwrap_or(image_delay),
        container: block.flag("container")?.unwrap_or(container),
        dangling: dangling_config(block.block("dangling_containers")?, &dangling)?,
    })
}

fn dangling_config(mut block: Block, defaults: &DanglingConfig) -> Result<DanglingConfig> {
    Ok(DanglingConfig {
        enabled: block.flag("enabled")?.unwrap_or(defaults.enabled),
        dry_run: block.flag("dry_run")?.unwrap_or(defaults.dry_run),
        period: positive(&mut block, "period", defaults.period)?,
        creation_grace: at_least(&mut block, "creation_grace", defaults.creation_grace)?,
    })
}

/// Warnings about patterns of a list that match no known name. They are no errors, because an agent whose plugin refuses its
/// configuration does not start.
fn unknown(field: &str, patterns: &[String], known: &[&str]) -> Vec<String> {
    let unknown = patterns
        .iter()
        .enumerate()
        .filter(|(_, pattern)| !known.iter().any(|name| matches(pattern, name)));
    unknown
        .map(|(index, pattern)| {
            let known = known.join(", ");
            format!("{field}[{index}] has no effect: {pattern:?} names none of {known}")
        })
        .collect()
}

/// As with Docker, 0 or less means no limit.
fn pids_limit(block: &mut Block) -> Result<Option<PidsLimit>> {
    match block.number("pids_limit")? {
        None | Some(..=0) => Ok(None),
        Some(most) => PidsLimit::new(most)
            .map(Some)
            .map_err(|error| error.in_field("pids_limit")),
    }
}

fn oom_score(block: &mut Block) -> Result<OomScoreAdj> {
    let score = block.number("oom_score_adj")?.unwrap_or_default();
    OomScoreAdj::new(score).map_err(|error| error.in_field("oom_score_adj"))
}

/// A duration that is not 0.
fn positive(block: &mut Block, key: &str, default: Duration) -> Result<Duration> {
    let value = block.duration(key)?.unwrap_or(default);
    if value.is_zero() {
        Err(Error::invalid(block.at(key), "it cannot be 0"))
    } else {
        Ok(value)
    }
}

/// A duration of at least a minute.
fn at_least(block: &mut Block, key: &str, default: Duration) -> Result<Duration> {
    let value = block.duration(key)?.unwrap_or(default);
    if value < LEAST {
        Err(Error::invalid(
            block.at(key),
            "it is less than minimum, 1m0s",
        ))
    } else {
        Ok(value)
    }
}

/// Returns whether a pattern, in which `*` stands for any text, matches a name.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(start) else {
        return false;
    };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = name.find(part) else {
            return false;
        };
        name = &name[at + part.len()..];
    }
    name.ends_with(end)
}
