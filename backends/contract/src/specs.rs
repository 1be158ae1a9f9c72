//! Basic specs: default security settings, no limits, no streams.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use switchyard_core::id::Owner;
use switchyard_core::spec::{
    CgroupPlacement, ComputeClaim, DEFAULT_SHM_BYTES, ExecSpec, HostPorts, IpcMode, Meta, PidMode,
    PodNetwork, Resources, SandboxNetwork, SandboxPid, SandboxSpec, Security, Stdio, TaskSpec,
    UserSpec, UtsMode,
};

/// Labels and a record that are difficult to store: an empty value, a Greek word, bytes that are not UTF-8.
#[must_use]
pub fn meta(owner: Owner, name: &str) -> Meta {
    Meta {
        owner,
        name: name.to_owned(),
        labels: BTreeMap::from([
            ("contract/plain".to_owned(), "value".to_owned()),
            ("contract/empty".to_owned(), String::new()),
            ("contract/greek".to_owned(), "σῖτος, = \"".to_owned()),
        ]),
        created_at: SystemTime::now(),
        record: [&[0, 0xff, 0xfe, 0x80][..], name.as_bytes()].concat(),
    }
}

/// A sandbox with a pod network.
#[must_use]
pub fn sandbox(owner: Owner, name: &str) -> SandboxSpec {
    SandboxSpec {
        meta: meta(owner, name),
        handler: String::new(),
        hostname: name.to_owned(),
        network: SandboxNetwork::Pod(PodNetwork::default()),
        host_ports: HostPorts::default(),
        uts: UtsMode::Network,
        ipc: IpcMode::Shared,
        pid: SandboxPid::PerTask,
        dns: None,
        extra_hosts: Vec::new(),
        sysctls: BTreeMap::new(),
        shm_size_bytes: DEFAULT_SHM_BYTES,
        log_dir: PathBuf::new(),
        cgroup: CgroupPlacement::default(),
        privileged: false,
        annotations: BTreeMap::new(),
        selinux: None,
        users: None,
    }
}

/// A task with this command line.
#[must_use]
pub fn task(owner: Owner, name: &str, image: &str, command: &[&str]) -> TaskSpec {
    TaskSpec {
        meta: meta(owner, name),
        image: image.to_owned(),
        command: command.iter().map(ToString::to_string).collect(),
        args: Vec::new(),
        cwd: None,
        env: Vec::new(),
        unset_env: Vec::new(),
        user: UserSpec::default(),
        mounts: Vec::new(),
        devices: Vec::new(),
        cdi_devices: Vec::new(),
        leases: Vec::new(),
        compute: ComputeClaim::default(),
        security: Security::default(),
        rlimits: Vec::new(),
        throttles: Vec::new(),
        io_weights: Vec::new(),
        net_priority: None,
        disk_limits: Vec::new(),
        resources: Resources::default(),
        cgroup: None,
        pid: PidMode::Private,
        cgroup_namespace: None,
        init: false,
        stdio: Stdio::default(),
        stop_signal: None,
        annotations: BTreeMap::new(),
    }
}

/// An exec with output and without input.
#[must_use]
pub fn exec(command: &[&str]) -> ExecSpec {
    ExecSpec {
        command: command.iter().map(ToString::to_string).collect(),
        tty: false,
        size: None,
        stdin: false,
        env: Vec::new(),
        cwd: None,
        drain: std::time::Duration::from_secs(2),
    }
}
