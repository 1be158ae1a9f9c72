//! Inspects the node: its features, files, mounts and devices. All I/O of this crate is here.

use std::fs::{self, FileType, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use switchyard_core::spec::{MissingSource, OomScoreAdj};
use switchyard_linux::cgroups;
use switchyard_linux::files::if_present;
use switchyard_linux::host_features;
use switchyard_linux::mounts::MountTable;

use crate::host_fs::{DeviceInfo, HostFs, HostNode, HostPropagation};
use crate::input::{Arch, CgroupDriver, CgroupVersion, Host, SelinuxDefaults};
use crate::{capabilities, limits};

/// Names in `/dev` that belong to the host only, or are created for every task.
const SKIPPED_DEVICES: [&str; 8] = [
    "pts",
    "shm",
    "fd",
    "mqueue",
    "console",
    ".lxc",
    ".lxd-mounts",
    ".udev",
];

/// Number of levels of directories that are searched for devices; the kernel's own have three.
const DEVICE_DEPTH: usize = 8;

/// The most entries of a directory that is listed.
const ENTRIES_MAX: usize = 100_000;

/// The file system of this node.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealHost;

impl HostFs for RealHost {
    fn source(&self, path: &Path, missing: MissingSource) -> io::Result<PathBuf> {
        match (fs::canonicalize(path), missing) {
            (Err(error), MissingSource::CreateDir) if error.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o755)
                    .create(path)?;
                fs::canonicalize(path)
            }
            (found, MissingSource::CreateDir | MissingSource::Fail) => found,
        }
    }

    fn propagation(&self, path: &Path) -> io::Result<HostPropagation> {
        propagation(&MountTable::of_this_process()?, path)
    }

    /// The table of mounts is read once: a node has thousands of them.
    fn propagations(&self, paths: &[PathBuf]) -> Vec<io::Result<HostPropagation>> {
        if paths.is_empty() {
            return Vec::new();
        }
        match MountTable::of_this_process() {
            Ok(mounts) => paths
                .iter()
                .map(|path| propagation(&mounts, path))
                .collect(),
            Err(error) => {
                let same = || io::Error::new(error.kind(), error.to_string());
                paths.iter().map(|_| Err(same())).collect()
            }
        }
    }

    fn node(&self, path: &Path) -> io::Result<HostNode> {
        let metadata = fs::metadata(path)?;
        if let Some(info) = device_info(&metadata) {
            return Ok(HostNode::Device(info));
        }
        if !metadata.is_dir() {
            return Ok(HostNode::Other);
        }
        let mut devices = Vec::new();
        walk(path, &[], DEVICE_DEPTH, &mut devices)?;
        Ok(HostNode::Directory(devices))
    }

    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>> {
        let mut devices = Vec::new();
        walk(
            Path::new("/dev"),
            &SKIPPED_DEVICES,
            DEVICE_DEPTH,
            &mut devices,
        )?;
        Ok(devices)
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        Ok(switchyard_node_files::read(path, limit)?)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(switchyard_node_files::list(dir, ENTRIES_MAX)?)
    }
}

fn propagation(mounts: &MountTable, path: &Path) -> io::Result<HostPropagation> {
    mounts
        .containing(path)
        .map(|mount| mount.propagation)
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("no mount is above {}", path.display()),
            )
        })
}

fn device_info(metadata: &Metadata) -> Option<DeviceInfo> {
    let kind: FileType = metadata.file_type();
    if !kind.is_block_device() && !kind.is_char_device() {
        return None;
    }
    Some(DeviceInfo {
        block: kind.is_block_device(),
        major: u32::try_from(nix::sys::stat::major(metadata.rdev())).ok()?,
        minor: u32::try_from(nix::sys::stat::minor(metadata.rdev())).ok()?,
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
    })
}

/// Collects the devices below `dir` in the order of their names. Symlinks are not followed: their targets are
/// found by themselves. A device that disappears meanwhile is skipped.
fn walk(
    dir: &Path,
    skipped: &[&str],
    depth: usize,
    devices: &mut Vec<(PathBuf, DeviceInfo)>,
) -> io::Result<()> {
    let mut entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if entry
            .file_name()
            .to_str()
            .is_some_and(|name| skipped.contains(&name))
        {
            continue;
        }
        let Some(metadata) = if_present(entry.metadata())? else {
            continue;
        };
        if let Some(info) = device_info(&metadata) {
            devices.push((entry.path(), info));
        } else if metadata.is_dir() && depth > 0 {
            walk(&entry.path(), skipped, depth - 1, devices)?;
        }
    }
    Ok(())
}

impl Host {
    /// The features of this node, as this process sees them.
    ///
    /// `cgroup_driver` is configuration; `default_apparmor` names the default profile, which the caller
    /// loads.
    ///
    /// # Errors
    /// Those of reading `/proc/self`.
    pub fn detect(cgroup_driver: CgroupDriver, default_apparmor: &str) -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let cgroup_root = Path::new(cgroups::ROOT);
        let cgroup = if cgroups::is_unified() {
            CgroupVersion::V2
        } else {
            CgroupVersion::V1
        };
        let apparmor_fault = host_features::apparmor_unusable();
        let selinux = Path::new("/sys/fs/selinux/enforce").exists();
        Ok(Self {
            arch: Arch::native(),
            kernel: kernel_version(&fs::read_to_string("/proc/sys/kernel/osrelease")?),
            cgroup,
            cgroup_driver,
            capabilities: bounding_set(&status)?,
            in_user_namespace: host_features::in_user_namespace(),
            oom_score_adj: own_oom_score_adj()?,
            hard_rlimits: limits::parse_hard_limits(&fs::read_to_string("/proc/self/limits")?),
            apparmor: apparmor_fault
                .is_none()
                .then(|| default_apparmor.to_owned()),
            apparmor_fault: apparmor_fault.filter(|_| host_features::has_apparmor()),
            selinux: selinux.then(selinux_defaults),
            seccomp: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()
                || status.lines().any(|line| line.starts_with("Seccomp:")),
            hugepage_sizes: hugepage_sizes(cgroup_root, cgroup),
            swap_accounting: swap_accounting(cgroup_root, cgroup),
            io_weights: io_weights(cgroup_root, cgroup),
            // Only with cgroup v1: runtimes do not use a v1 hierarchy that is mounted besides cgroup v2.
            net_priorities: cgroup == CgroupVersion::V1
                && cgroup_root.join("net_prio/net_prio.ifpriomap").exists(),
        })
    }
}

/// The labels that the policy of this node names for containers.
fn selinux_defaults() -> SelinuxDefaults {
    // The file that libselinux reads; a policy need not have the file of labels.
    let config = fs::read_to_string("/etc/selinux/config").unwrap_or_default();
    let policy = config
        .lines()
        .find_map(|line| line.trim().strip_prefix("SELINUXTYPE="))
        .map_or("targeted", str::trim);
    let labels = Path::new("/etc/selinux")
        .join(policy)
        .join("contexts/lxc_contexts");
    let labels = fs::read_to_string(labels).unwrap_or_default();
    let has_levels =
        fs::read_to_string("/sys/fs/selinux/mls").map_or(true, |text| text.trim() != "0");
    SelinuxDefaults::of_policy(&labels, has_levels)
}

/// Major and minor number of a kernel release, for example `6.1.0-18-amd64`.
fn kernel_version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn bounding_set(status: &str) -> io::Result<Vec<String>> {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapBnd:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "/proc/self/status has no CapBnd line",
            )
        })?;
    Ok(capabilities::from_mask(mask))
}

fn own_oom_score_adj() -> io::Result<OomScoreAdj> {
    let text = fs::read_to_string("/proc/self/oom_score_adj")?;
    let score: i32 = text
        .trim()
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    OomScoreAdj::new(score).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Returns whether the kernel supports I/O weights. The root group has no weight file itself, but other files
/// that come with weights.
fn io_weights(root: &Path, version: CgroupVersion) -> bool {
    let (dir, marks) = match version {
        CgroupVersion::V1 => (root.join("blkio"), ["blkio.weight", "blkio.bfq."]),
        CgroupVersion::V2 => (root.to_owned(), ["io.cost.qos", "io.bfq."]),
    };
    let names = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    names.into_iter().any(|name| {
        name.to_str()
            .is_some_and(|name| marks.iter().any(|mark| name.starts_with(mark)))
    })
}

/// The page sizes that the controller has files for, for example `2MB`.
fn hugepage_sizes(root: &Path, version: CgroupVersion) -> Vec<String> {
    // The root of a v2 hierarchy has no limits: its controllers say whether the kernel's sizes can be
    // limited.
    let (dir, prefix) = match version {
        CgroupVersion::V1 => (root.join("hugetlb"), "hugetlb."),
        CgroupVersion::V2 => {
            let controllers =
                fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            if !controllers.split_whitespace().any(|name| name == "hugetlb") {
                return Vec::new();
            }
            (PathBuf::from("/sys/kernel/mm/hugepages"), "hugepages-")
        }
    };
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut sizes: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let rest = name.strip_prefix(prefix)?;
            match version {
                CgroupVersion::V1 => rest
                    .strip_suffix(".limit_in_bytes")
                    .filter(|size| !size.contains('.'))
                    .map(str::to_owned),
                CgroupVersion::V2 => rest
                    .strip_suffix("kB")
                    .and_then(|kib| kib.parse().ok())
                    .map(page_size_name),
            }
        })
        .collect();
    sizes.sort();
    sizes
}

/// The name of a page size in KiB, as cgroup files have it.
fn page_size_name(kib: u64) -> String {
    if kib >= 1 << 20 {
        format!("{}GB", kib >> 20)
    } else if kib >= 1 << 10 {
        format!("{}MB", kib >> 10)
    } else {
        format!("{kib}KB")
    }
}

fn swap_accounting(root: &Path, version: CgroupVersion) -> bool {
    match version {
        CgroupVersion::V1 => root.join("memory/memory.memsw.limit_in_bytes").exists(),
        CgroupVersion::V2 => {
            // Only groups below the root have the file; this process is in such a group on almost every node.
            let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            let path = own
                .lines()
                .find_map(|line| line.strip_prefix("0::/"))
                .unwrap_or_default();
            let file = root.join(path).join("memory.swap.max");
            file.exists()
                || fs::read_dir(root).is_ok_and(|entries| {
                    entries
                        .flatten()
                        .any(|entry| entry.path().join("memory.swap.max").exists())
                })
        }
    }
}

/// A node with all features except for huge pages and SELinux labels.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn bare_host() -> Host {
    Host {
        arch: Arch::X86_64,
        kernel: (6, 1),
        cgroup: CgroupVersion::V2,
        cgroup_driver: CgroupDriver::Fs,
        capabilities: capabilities::from_mask((1 << 41) - 1),
        in_user_namespace: false,
        oom_score_adj: OomScoreAdj::default(),
        hard_rlimits: std::collections::BTreeMap::new(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_and_page_sizes_parse() {
        assert_eq!(kernel_version("6.1.0-18-amd64"), (6, 1));
        assert_eq!(kernel_version("5.15\n"), (5, 15));
        assert_eq!(
            (
                page_size_name(64),
                page_size_name(2048),
                page_size_name(1 << 20)
            ),
            ("64KB".into(), "2MB".into(), "1GB".into())
        );
    }

    #[test]
    fn this_node_is_detected_with_its_capabilities() {
        let host = Host::detect(CgroupDriver::Fs, "p").unwrap();
        assert!(
            host.kernel >= (4, 0) && host.hard_rlimits.contains_key("RLIMIT_NOFILE"),
            "{host:?}"
        );
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(host.capabilities, bounding_set(&status).unwrap());
    }

    #[test]
    fn missing_mount_source_is_created_or_rejected_and_links_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let missing = root.join("a/b");
        assert!(RealHost.source(&missing, MissingSource::Fail).is_err());
        assert!(!missing.exists());
        assert_eq!(
            RealHost.source(&missing, MissingSource::CreateDir).unwrap(),
            missing
        );
        std::os::unix::fs::symlink(&missing, root.join("link")).unwrap();
        assert_eq!(
            RealHost
                .source(&root.join("link"), MissingSource::Fail)
                .unwrap(),
            missing
        );
    }

    #[test]
    fn host_devices_exclude_console_and_terminals() {
        let all = RealHost.all_devices().unwrap();
        let null = all
            .iter()
            .find(|(path, _)| path == Path::new("/dev/null"))
            .unwrap();
        assert_eq!((null.1.block, null.1.major, null.1.minor), (false, 1, 3));
        assert!(
            all.iter().all(|(path, _)| !path.starts_with("/dev/pts") && path != Path::new("/dev/console"))
        );
        assert_eq!(
            RealHost.node(Path::new("/dev/null")).unwrap(),
            HostNode::Device(null.1.clone())
        );
        assert_eq!(
            RealHost.node(Path::new("/proc/version")).unwrap(),
            HostNode::Other
        );
    }

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, b"12345").unwrap();
        assert_eq!(RealHost.read(&file, 5).unwrap(), b"12345");
        assert!(RealHost.read(&file, 4).is_err());
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(RealHost.read(&fifo, 5).is_err());
    }
}
