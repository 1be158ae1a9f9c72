//! A node on which each path is a device or a directory, for specs of containers.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use switchyard_core::Result;
use switchyard_core::spec::{MissingSource, MountSource, TaskSpec};
use switchyard_runtime_spec::input::{DeviceInfo, HostNode, HostPropagation};
use switchyard_runtime_spec::user::{self, Accounts};
use switchyard_runtime_spec::{
    CgroupDriver, CgroupVersion, Gathered, Host, HostFs, ImageConfig, Input, Namespace, Questions,
    ResolvedMount, ResolvedSource, SandboxFacts, build,
};

/// Number of devices in the vendor's file.
pub(crate) const CDI_DEVICES: usize = 1000;

struct AnyPath;

impl HostFs for AnyPath {
    fn source(&self, path: &Path, _: MissingSource) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    fn propagation(&self, _: &Path) -> io::Result<HostPropagation> {
        Ok(HostPropagation::Shared)
    }

    fn node(&self, path: &Path) -> io::Result<HostNode> {
        let minor = path.to_str().and_then(|path| {
            path.trim_start_matches(|c: char| !c.is_ascii_digit())
                .parse()
                .ok()
        });
        let minor = minor.unwrap_or_default();
        Ok(HostNode::Device(DeviceInfo {
            block: true,
            major: 8,
            minor,
            mode: 0o600,
            uid: 0,
            gid: 0,
        }))
    }

    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>> {
        Ok(Vec::new())
    }

    fn read(&self, _: &Path, _: u64) -> io::Result<Vec<u8>> {
        let device = |number| {
            format!(
                r#"{{"name":"d{number}","containerEdits":{{"env":["D{number}=1"],"deviceNodes":[{{"path":"/dev/d{number}"}}],
                "mounts":[{{"hostPath":"/d{number}","containerPath":"/d{number}"}}]}}}}"#
            )
        };
        let devices: Vec<String> = (0..CDI_DEVICES).map(device).collect();
        Ok(format!(
            r#"{{"cdiVersion":"0.6.0","kind":"v/c","devices":[{}]}}"#,
            devices.join(",")
        )
        .into_bytes())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(vec![dir.join("v.json")])
    }
}

/// Builds the spec of a task of an image that has no lists.
pub(crate) fn build_spec(task: &TaskSpec) -> Result<()> {
    let image = ImageConfig {
        cmd: vec!["true".to_owned()],
        ..ImageConfig::default()
    };
    build_spec_of(task, &image)
}

/// Builds the spec of a task of an image.
pub(crate) fn build_spec_of(task: &TaskSpec, image: &ImageConfig) -> Result<()> {
    let mounts: Vec<ResolvedMount> = task.mounts.iter().map(resolved).collect();
    let sandbox = sandbox();
    let host = host();
    let cdi_dirs = [PathBuf::from("/etc/cdi")];
    let asked = Questions {
        task,
        mounts: &mounts,
        sandbox: &sandbox,
        host,
        cdi_dirs: &cdi_dirs,
    };
    let mut found = Gathered::of_task(&asked, &AnyPath);
    let nodes = found.resolve_cdi(&task.cdi_devices, &cdi_dirs)?;
    let found = found.with_nodes(nodes, &AnyPath);
    let user = user::resolve(&task.user, "", &Accounts::default())?;
    let built = build(&Input {
        id: "t",
        task,
        mounts: &mounts,
        image,
        sandbox: &sandbox,
        host,
        found: &found,
        user: &user,
        volumes: &[],
        stage: Path::new("/stage"),
        cgroups_path: "/t",
        target_pid: None,
        recursive_readonly: true,
        init: Path::new("/init"),
    });
    built.map(drop)
}

fn resolved(mount: &switchyard_core::spec::Mount) -> ResolvedMount {
    let path = match &mount.source {
        MountSource::Host { path, .. } => path.clone(),
        MountSource::Beneath { root, path } => root.join(path),
        MountSource::Image { .. } | MountSource::Volume { .. } | MountSource::Nfs { .. } => {
            PathBuf::from("/volume")
        }
        MountSource::Tmpfs { .. } => PathBuf::new(),
    };
    ResolvedMount {
        requested: mount.clone(),
        source: ResolvedSource::unstaged(path),
        volume: None,
    }
}

fn sandbox() -> SandboxFacts {
    let namespace = |kind: &str| Namespace::Path(PathBuf::from(format!("/run/ns/{kind}")));
    SandboxFacts {
        network: namespace("net"),
        ipc: namespace("ipc"),
        uts: namespace("uts"),
        pid: None,
        hostname: "h".to_owned(),
        hostname_file: None,
        hosts_file: None,
        resolv_conf: None,
        shm: None,
        privileged: false,
        network_shared: false,
        selinux: None,
        users: None,
    }
}

/// A node of cgroup v2, without what depends on the machine that measures.
fn host() -> &'static Host {
    static HOST: LazyLock<Host> = LazyLock::new(|| {
        let detected = Host::detect(CgroupDriver::Fs, "p").expect("this is a Linux");
        Host {
            cgroup: CgroupVersion::V2,
            hard_rlimits: BTreeMap::new(),
            io_weights: true,
            selinux: None,
            apparmor: None,
            ..detected
        }
    });
    &HOST
}
