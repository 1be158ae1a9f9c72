//! The spec of a sandbox's infra process, which holds a process namespace that tasks share, and reaps
//! processes in it.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use switchyard_core::Result;
use switchyard_core::spec::{CpuShares, OomScoreAdj, Security};

use crate::build::Built;
use crate::environment::{DEFAULT_PATH, checked_command};
use crate::input::{CgroupVersion, Host, SandboxFacts};
use crate::mounts::Sysfs;
use crate::user::ResolvedUser;
use crate::{devices, labels, limits, mounts, namespaces, oci, seccomp};

/// The OOM score adjustment: the kernel should kill this process of a pod last, since tasks would lose their
/// namespace with it.
const OOM_SCORE_ADJ: i32 = -998;

/// The inputs of the spec of an infra process.
#[derive(Debug, Clone)]
pub struct InfraInput<'a> {
    /// The command line inside its root file system, for example `/pause`.
    pub command: Vec<String>,
    /// The user that it runs as.
    pub user: &'a ResolvedUser,
    /// The namespaces that it joins; `pid` is ignored, since it has its own.
    pub sandbox: &'a SandboxFacts,
    /// The abilities of the node.
    pub host: &'a Host,
    /// The location of its cgroup.
    pub cgroups_path: &'a str,
    /// Annotations for the runtime.
    pub annotations: BTreeMap<String, String>,
}

/// The spec of a sandbox's infra process: a process namespace of its own, all other namespaces joined, no
/// capabilities, a read-only root file system, the default seccomp filter.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub fn build(input: &InfraInput<'_>) -> Result<Built> {
    let mut warnings = Vec::new();
    let InfraInput {
        command,
        user,
        sandbox,
        host,
        cgroups_path,
        annotations,
    } = input;
    let score = OomScoreAdj::new(OOM_SCORE_ADJ).expect("every kernel accepts it");
    let oom_score_adj = limits::oom_score_adj(score, host, &mut warnings);
    let confined = Security {
        readonly_rootfs: true,
        no_new_privileges: true,
        ..Security::default()
    };
    let labels = labels::selinux(&confined, sandbox.selinux.as_ref(), host)?;
    let (selinux_label, mount_label) = labels.map(|labels| (labels.process, labels.mount)).unzip();
    let capabilities = oci::Capabilities::default();
    let (uid_mappings, gid_mappings) = namespaces::id_mappings(sandbox);
    let spec = oci::Spec {
        oci_version: oci::VERSION,
        process: oci::Process {
            terminal: false,
            user: user.to_oci(),
            args: checked_command("infra command", command.clone())?,
            env: vec![format!("PATH={DEFAULT_PATH}")],
            cwd: "/".to_owned(),
            rlimits: Vec::new(),
            no_new_privileges: true,
            apparmor_profile: labels::apparmor(&confined, host)?,
            oom_score_adj: Some(oom_score_adj.get()),
            selinux_label,
            capabilities: capabilities.clone(),
        },
        root: oci::Root {
            path: "rootfs".to_owned(),
            readonly: true,
        },
        mounts: mounts::kernel_mounts(Sysfs::of(sandbox, false, false)),
        annotations: annotations.clone(),
        linux: oci::Linux {
            resources: oci::LinuxResources {
                devices: devices::default_rules(),
                cpu: Some(oci::LinuxCpu {
                    shares: Some(CpuShares::LEAST.get()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            cgroups_path: (*cgroups_path).to_owned(),
            namespaces: namespaces_of(sandbox, host)?,
            uid_mappings,
            gid_mappings,
            devices: Vec::new(),
            seccomp: host
                .seccomp
                .then(|| seccomp::default_filter(host, &capabilities)),
            rootfs_propagation: None,
            masked_paths: crate::DEFAULT_MASKED_PATHS.map(str::to_owned).to_vec(),
            readonly_paths: crate::DEFAULT_READONLY_PATHS.map(str::to_owned).to_vec(),
            mount_label,
            intel_rdt: None,
        },
        hooks: oci::Hooks::new(),
    };
    Ok(Built {
        spec: oci::to_value(&spec)?,
        warnings,
        ..Built::default()
    })
}

/// Lists the namespaces of the process: a process and a mount namespace of its own, the others joined.
fn namespaces_of(sandbox: &SandboxFacts, host: &Host) -> Result<Vec<oci::LinuxNamespace>> {
    let mut list = Vec::with_capacity(6);
    namespaces::users(&mut list, sandbox)?;
    list.push(namespaces::new("pid"));
    namespaces::joined(&mut list, "ipc", &sandbox.ipc)?;
    namespaces::joined(&mut list, "uts", &sandbox.uts)?;
    list.push(namespaces::new("mount"));
    namespaces::joined(&mut list, "network", &sandbox.network)?;
    if host.cgroup == CgroupVersion::V2 {
        list.push(namespaces::new("cgroup"));
    }
    Ok(list)
}

/// Returns what a sandbox without an infra process has of the spec that such a process would have, for people and tools that
/// look for its namespaces: those that its tasks join.
///
/// # Errors
/// `InvalidArgument` for a namespace whose path is not UTF-8.
pub fn shown(sandbox: &SandboxFacts) -> Result<Value> {
    let mut list = Vec::with_capacity(4);
    namespaces::users(&mut list, sandbox)?;
    namespaces::joined(&mut list, "ipc", &sandbox.ipc)?;
    namespaces::joined(&mut list, "uts", &sandbox.uts)?;
    namespaces::joined(&mut list, "network", &sandbox.network)?;
    Ok(json!({
        "ociVersion": oci::VERSION,
        "hostname": sandbox.hostname,
        "linux": { "namespaces": list },
    }))
}

/// The spec of a sandbox without an infra process. It is never started: it exists for readers of container
/// objects that expect every spec to have a process and a root file system (for example containerd's restart
/// monitor). The files that it names do not exist, and it grants no privileges.
#[must_use]
pub fn without_process() -> Value {
    let namespaces = ["pid", "ipc", "uts", "mount", "network"].map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": oci::VERSION,
        "process": {
            "user": { "uid": 65_535, "gid": 65_535 },
            "args": ["/nothing"],
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "linux": {
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "namespaces": namespaces,
        },
    })
}
