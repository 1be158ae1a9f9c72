//! The changes that CDI devices make to the spec of a container. The file uses nothing of the crate but what reads
//! fields: what is known of a host has edits too.

use serde::Deserialize;

use super::scalars;

/// The changes to a container's spec.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct Edits {
    /// Variables, `NAME=value`.
    #[serde(deserialize_with = "scalars::texts")]
    pub(crate) env: Vec<String>,
    /// Device nodes.
    #[serde(deserialize_with = "scalars::or_default")]
    pub(crate) device_nodes: Vec<CdiDeviceNode>,
    /// Network devices.
    #[serde(deserialize_with = "scalars::or_default")]
    pub(crate) net_devices: Vec<CdiNetDevice>,
    /// OCI hooks: programs of the host that are run at points of a container's lifecycle.
    #[serde(deserialize_with = "scalars::or_default")]
    pub(crate) hooks: Vec<CdiHook>,
    /// Mounts.
    #[serde(deserialize_with = "scalars::or_default")]
    pub(crate) mounts: Vec<CdiMount>,
    /// Intel RDT: classes of cache and memory bandwidth.
    pub(crate) intel_rdt: Option<CdiIntelRdt>,
    /// Groups of the process.
    #[serde(deserialize_with = "scalars::or_default")]
    pub(crate) additional_gids: Vec<u32>,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct CdiDeviceNode {
    #[serde(deserialize_with = "scalars::text")]
    pub(crate) path: String,
    /// Its path on the host, if it is another one.
    #[serde(deserialize_with = "scalars::text_if_any")]
    pub(crate) host_path: Option<String>,
    #[serde(rename = "type", deserialize_with = "scalars::text_if_any")]
    pub(crate) kind: Option<String>,
    /// Without it the host says the number, also the minor one.
    #[serde(deserialize_with = "scalars::number_if_any")]
    pub(crate) major: Option<i64>,
    pub(crate) minor: Option<i64>,
    pub(crate) file_mode: Option<u32>,
    #[serde(deserialize_with = "scalars::text_if_any")]
    pub(crate) permissions: Option<String>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct CdiNetDevice {
    #[serde(deserialize_with = "scalars::text")]
    pub(crate) host_interface_name: String,
    #[serde(deserialize_with = "scalars::text")]
    pub(crate) name: String,
}

/// A program of the host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct CdiHook {
    #[serde(deserialize_with = "scalars::text")]
    pub(crate) hook_name: String,
    #[serde(deserialize_with = "scalars::text")]
    pub(crate) path: String,
    #[serde(deserialize_with = "scalars::texts")]
    pub(crate) args: Vec<String>,
    #[serde(deserialize_with = "scalars::texts")]
    pub(crate) env: Vec<String>,
    pub(crate) timeout: Option<i64>,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct CdiMount {
    #[serde(deserialize_with = "scalars::text")]
    pub(crate) host_path: String,
    #[serde(deserialize_with = "scalars::text")]
    pub(crate) container_path: String,
    #[serde(deserialize_with = "scalars::texts")]
    pub(crate) options: Vec<String>,
    #[serde(rename = "type", deserialize_with = "scalars::text_if_any")]
    pub(crate) kind: Option<String>,
}

/// Intel RDT: classes of cache and memory bandwidth, with the keys of the runtime spec.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CdiIntelRdt {
    #[serde(
        rename = "closID",
        deserialize_with = "scalars::text_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    clos_id: Option<String>,
    #[serde(
        rename = "l3CacheSchema",
        deserialize_with = "scalars::text_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    l3_cache_schema: Option<String>,
    #[serde(
        rename = "memBwSchema",
        deserialize_with = "scalars::text_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    mem_bw_schema: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) schemata: Option<Vec<String>>,
    #[serde(rename = "enableMonitoring", skip_serializing_if = "Option::is_none")]
    enable_monitoring: Option<bool>,
    #[serde(rename = "enableCMT", skip_serializing_if = "Option::is_none")]
    enable_cmt: Option<bool>,
    #[serde(rename = "enableMBM", skip_serializing_if = "Option::is_none")]
    enable_mbm: Option<bool>,
}

// === impl Edits ===

impl Edits {
    /// Appends others to these. The last of several RDT classes applies.
    pub(super) fn append(&mut self, others: &Self) {
        let Self {
            env,
            device_nodes,
            net_devices,
            hooks,
            mounts,
            intel_rdt,
            additional_gids,
        } = others.clone();
        self.env.extend(env);
        self.device_nodes.extend(device_nodes);
        self.net_devices.extend(net_devices);
        self.hooks.extend(hooks);
        self.mounts.extend(mounts);
        self.intel_rdt = intel_rdt.or_else(|| self.intel_rdt.take());
        self.additional_gids.extend(additional_gids);
    }

    pub(super) fn check(&self) -> Result<(), String> {
        const HOOKS: [&str; 6] = [
            "prestart",
            "createRuntime",
            "createContainer",
            "startContainer",
            "poststart",
            "poststop",
        ];
        if let Some(line) = self
            .env
            .iter()
            .find(|line| line.split_once('=').is_none_or(|(name, _)| name.is_empty()))
        {
            return Err(format!("env {line:?} is not NAME=value"));
        }
        for node in &self.device_nodes {
            let host = node.host_path.as_deref().unwrap_or("/");
            let kind = node.kind.as_deref().unwrap_or("c");
            let permissions = node.permissions.as_deref().unwrap_or("rwm");
            let known = permissions == "none" || permissions.chars().all(|c| "rwm".contains(c));
            if !node.path.starts_with('/') || !host.starts_with('/') {
                return Err(format!(
                    "device node {:?} is not an absolute path",
                    node.path
                ));
            }
            if !["b", "c", "u", "p"].contains(&kind) || !known {
                return Err(format!(
                    "device node {} has a type or permissions that are none",
                    node.path
                ));
            }
            // Runtimes take -1 for all numbers.
            if [node.major, node.minor]
                .into_iter()
                .flatten()
                .any(|number| number < 0)
            {
                return Err(format!("device node {} has a negative number", node.path));
            }
        }
        for hook in &self.hooks {
            if !HOOKS.contains(&hook.hook_name.as_str()) || !hook.path.starts_with('/') {
                return Err(format!(
                    "hook {:?} of {:?} is none",
                    hook.hook_name, hook.path
                ));
            }
        }
        let relative = |mount: &&CdiMount| {
            !mount.container_path.starts_with('/') || mount.host_path.is_empty()
        };
        match self.mounts.iter().find(relative) {
            Some(mount) => Err(format!(
                "mount at {:?} has no absolute path",
                mount.container_path
            )),
            None => Ok(()),
        }
    }
}
