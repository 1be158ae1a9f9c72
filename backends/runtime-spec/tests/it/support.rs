//! A simulated node, and tasks to run on it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use switchyard_contract::specs;
use switchyard_core::spec::{Meta, MissingSource, Mount, MountSource, OomScoreAdj, TaskSpec};
use switchyard_core::{Result, id::Owner};
use switchyard_runtime_spec::capabilities;
use switchyard_runtime_spec::input::{DeviceInfo, HostNode, HostPropagation};
use switchyard_runtime_spec::mounts::host_source;
use switchyard_runtime_spec::{
    Arch, Built, CgroupDriver, CgroupVersion, Gathered, Host, HostFs, ImageConfig, ImageVolume,
    Input, Namespace, Questions, ResolvedMount, ResolvedSource, ResolvedUser, SandboxFacts, build,
};

/// A node with a few paths, of which those below `/shared` and `/slave` are on such mounts.
pub(crate) struct FakeFs;

impl HostFs for FakeFs {
    fn source(&self, path: &Path, missing: MissingSource) -> io::Result<PathBuf> {
        match (path.to_str(), missing) {
            (Some("/link"), _) => Ok(PathBuf::from("/srv/target")),
            (Some("/missing"), MissingSource::Fail) => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(path.to_owned()),
        }
    }

    fn propagation(&self, path: &Path) -> io::Result<HostPropagation> {
        Ok(match path {
            path if path.starts_with("/shared") => HostPropagation::Shared,
            path if path.starts_with("/slave") => HostPropagation::Slave,
            _ => HostPropagation::Private,
        })
    }

    fn node(&self, path: &Path) -> io::Result<HostNode> {
        match path.to_str() {
            Some("/dev/sda") => Ok(HostNode::Device(DeviceInfo {
                block: true,
                ..device(8, 0)
            })),
            Some("/dev/fuse") => Ok(HostNode::Device(device(10, 229))),
            Some("/dev/snd") => Ok(HostNode::Directory(vec![
                (PathBuf::from("/dev/snd/controlC0"), device(116, 0)),
                (PathBuf::from("/dev/snd/by-path/x"), device(116, 1)),
            ])),
            Some("/etc/passwd") => Ok(HostNode::Other),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>> {
        let disk = DeviceInfo {
            block: true,
            mode: 0o660,
            gid: 6,
            ..device(8, 0)
        };
        Ok(vec![
            (PathBuf::from("/dev/fuse"), device(10, 229)),
            (PathBuf::from("/dev/sda"), disk),
        ])
    }

    fn read(&self, path: &Path, _limit: u64) -> io::Result<Vec<u8>> {
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{} is not here", path.display()),
        ))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let names: &[&str] = match dir.to_str() {
            Some("/sys/class/net") => &["lo", "veth1", "vlan7", "eth0", "cni0"],
            Some("/sys/class/net/eth0") => &["device", "mtu"],
            Some("/sys/class/net/vlan7") => &["lower_eth0", "mtu"],
            Some("/sys/class/net/cni0") => &["lower_veth1", "mtu"],
            Some("/sys/class/net/veth1") => return Err(io::ErrorKind::NotFound.into()),
            _ => &[],
        };
        Ok(names.iter().map(|name| dir.join(name)).collect())
    }
}

fn device(major: u32, minor: u32) -> DeviceInfo {
    DeviceInfo {
        block: false,
        major,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 0,
    }
}

/// A task with all inputs of its spec; tests change the parts that they are about.
pub(crate) struct Case {
    pub(crate) task: TaskSpec,
    pub(crate) image: ImageConfig,
    pub(crate) sandbox: SandboxFacts,
    pub(crate) host: Host,
    pub(crate) user: ResolvedUser,
    pub(crate) volumes: Vec<ImageVolume>,
    pub(crate) cgroups_path: String,
    pub(crate) target_pid: Option<PathBuf>,
    pub(crate) recursive_readonly: bool,
    /// Mounts whose sources are not found by [`FakeFs`].
    pub(crate) staged: Vec<ResolvedMount>,
}

impl Case {
    /// An ordinary task in an ordinary sandbox on a v2 node.
    pub(crate) fn plain() -> Self {
        let path = |text: &str| Some(PathBuf::from(text));
        let namespace =
            |kind: &str| Namespace::Path(PathBuf::from(format!("/run/switchyard/ns/{kind}")));
        Self {
            task: TaskSpec {
                args: words(&["--verbose"]),
                ..task()
            },
            image: ImageConfig {
                entrypoint: words(&["/bin/web"]),
                cmd: words(&["--help"]),
                env: words(&["PATH=/bin:/usr/bin", "LANG=C"]),
                cwd: "/srv".to_owned(),
                ..Default::default()
            },
            sandbox: SandboxFacts {
                network: namespace("net"),
                ipc: namespace("ipc"),
                uts: namespace("uts"),
                pid: None,
                hostname: "web-1".to_owned(),
                hostname_file: path("/run/switchyard/sandbox/hostname"),
                hosts_file: path("/run/switchyard/sandbox/hosts"),
                resolv_conf: path("/run/switchyard/sandbox/resolv.conf"),
                shm: path("/run/switchyard/sandbox/shm"),
                privileged: false,
                network_shared: false,
                selinux: None,
                users: None,
            },
            host: bare_host(),
            user: ResolvedUser {
                uid: 1000,
                gid: 100,
                additional_gids: vec![100, 10],
            },
            volumes: Vec::new(),
            cgroups_path: "/kubepods/pod1/abc".to_owned(),
            target_pid: None,
            recursive_readonly: true,
            staged: Vec::new(),
        }
    }

    /// A privileged task in a sandbox that allows that.
    pub(crate) fn privileged() -> Self {
        let mut case = Self::plain();
        case.sandbox.privileged = true;
        case.task.security.privileged = true;
        case
    }

    pub(crate) fn build_with(&self, fs: &dyn HostFs) -> Result<Built> {
        let found = self.task.mounts.iter().map(|mount| resolved(mount, fs));
        let found = found.chain(self.staged.iter().cloned().map(Ok));
        let mounts = found.collect::<Result<Vec<_>>>()?;
        let Self {
            task,
            sandbox,
            host,
            ..
        } = self;
        let cdi_dirs = [PathBuf::from("/etc/cdi")];
        let asked = Questions {
            task,
            mounts: &mounts,
            sandbox,
            host,
            cdi_dirs: &cdi_dirs,
        };
        let mut found = Gathered::of_task(&asked, fs);
        let nodes = found.resolve_cdi(&task.cdi_devices, &cdi_dirs)?;
        let found = found.with_nodes(nodes, fs);
        build(&Input {
            id: "abc",
            task: &self.task,
            mounts: &mounts,
            image: &self.image,
            sandbox: &self.sandbox,
            host: &self.host,
            found: &found,
            user: &self.user,
            volumes: &self.volumes,
            stage: Path::new("/host/stage"),
            cgroups_path: &self.cgroups_path,
            target_pid: self.target_pid.as_deref(),
            recursive_readonly: self.recursive_readonly,
            init: Path::new("/host/init"),
        })
    }

    pub(crate) fn build(&self) -> Result<Built> {
        self.build_with(&FakeFs)
    }

    /// The text of the error; panics without one.
    #[track_caller]
    pub(crate) fn refused(&self) -> String {
        self.build().expect_err("this must be refused").report()
    }
}

/// A mount of a host path or a tmpfs, with its source found.
fn resolved(mount: &Mount, fs: &dyn HostFs) -> Result<ResolvedMount> {
    let path = match &mount.source {
        MountSource::Host { path, missing } => host_source(&mount.destination, path, *missing, fs)?,
        MountSource::Tmpfs { .. } => PathBuf::new(),
        MountSource::Beneath { .. }
        | MountSource::Image { .. }
        | MountSource::Nfs { .. }
        | MountSource::Volume { .. } => {
            panic!("{mount:?} belongs to the staged mounts of the case")
        }
    };
    Ok(ResolvedMount {
        requested: mount.clone(),
        source: ResolvedSource::unstaged(path),
        volume: None,
    })
}

/// A v2 node with all features except for huge pages and SELinux labels.
pub(crate) fn bare_host() -> Host {
    Host {
        arch: Arch::X86_64,
        kernel: (6, 1),
        cgroup: CgroupVersion::V2,
        cgroup_driver: CgroupDriver::Fs,
        capabilities: capabilities::from_mask((1 << 41) - 1),
        in_user_namespace: false,
        oom_score_adj: OomScoreAdj::default(),
        hard_rlimits: BTreeMap::new(),
        apparmor: None,
        apparmor_fault: None,
        selinux: None,
        seccomp: true,
        hugepage_sizes: Vec::new(),
        io_weights: true,
        net_priorities: false,
        swap_accounting: true,
    }
}

pub(crate) fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

/// A task without any requests.
pub(crate) fn task() -> TaskSpec {
    let meta = Meta {
        owner: Owner::Host,
        name: "t".to_owned(),
        labels: BTreeMap::new(),
        created_at: SystemTime::UNIX_EPOCH,
        record: Vec::new(),
    };
    TaskSpec {
        meta,
        ..specs::task(Owner::Host, "t", "i", &[])
    }
}
