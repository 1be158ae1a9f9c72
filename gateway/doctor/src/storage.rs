//! Checks of disks: space, inodes, tmpfs and mount options.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use switchyard_config::{AuditTarget, ContainerdMode};
use switchyard_linux::mounts::MountTable;

use super::codes::node::{DISK_INODES, DISK_SPACE, MOUNT_OPTIONS, NOT_TMPFS};
use super::codes::runtime::NO_SNAPSHOTTER;
use super::containerd;
use super::facts::Facts;
use super::finding::{Finding, Severity};
use super::view::DiskSpace;

/// Below this part of free space a kubelet evicts pods: of its own disk, and of the disk of images, in percent.
const SPACE_PERCENT: u64 = 10;
const IMAGES_PERCENT: u64 = 15;

/// Below this part of free inodes a kubelet evicts pods, in percent.
const INODES_PERCENT: u64 = 5;

/// Below this much free space hardly anything works.
const SPACE_MIN: u64 = 64 << 20;

/// Types of file systems above which the kernel mounts no overlay.
const NO_UPPER: [&str; 8] = [
    "cifs", "ecryptfs", "exfat", "nfs", "nfs4", "overlay", "smb3", "vfat",
];

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mounts = facts.view.mounts();
    let mut found = Vec::new();
    for (path, percent) in directories(facts, &mounts) {
        let Ok(space) = facts.view.space(&path) else {
            continue;
        };
        found.extend(free_space(&path, &space, percent));
        found.extend(free_inodes(&path, &space));
    }
    found.extend(current_boot(facts, &mounts));
    found.extend(options(facts, &mounts));
    found.extend(overlay_disk(facts, &mounts));
    found
}

/// The directories that fill up, one for each mount, with the least free space that each should have, in
/// percent.
fn directories(facts: &Facts, mounts: &MountTable) -> Vec<(PathBuf, u64)> {
    let config = &facts.config;
    let state = &config.paths.state;
    let images = match config.containerd.mode {
        ContainerdMode::Managed => state.join("containerd/root"),
        ContainerdMode::External => containerd::external_root(facts),
    };
    let mut wanted = vec![(images, IMAGES_PERCENT), (state.clone(), SPACE_PERCENT)];
    if config.audit.to == AuditTarget::File {
        wanted.push((config.audit.file.clone(), SPACE_PERCENT));
    }
    wanted.push((PathBuf::from("/var/log/pods"), SPACE_PERCENT));
    let mut chosen: BTreeMap<PathBuf, (PathBuf, u64)> = BTreeMap::new();
    for (path, percent) in wanted {
        let Some(path) = existing(facts, &path) else {
            continue;
        };
        let target = mounts
            .containing(&path)
            .map_or_else(|| path.clone(), |mount| mount.point.into_owned());
        // The first one has the higher limit.
        chosen.entry(target).or_insert((path, percent));
    }
    chosen.into_values().collect()
}

/// The path, or the nearest directory above it that exists.
fn existing(facts: &Facts, path: &Path) -> Option<PathBuf> {
    path.ancestors()
        .find(|path| facts.view.exists(path))
        .map(Path::to_owned)
}

fn free_space(path: &Path, space: &DiskSpace, percent: u64) -> Option<Finding> {
    let DiskSpace {
        bytes, free_bytes, ..
    } = *space;
    let has_little = u128::from(free_bytes) * 100 < u128::from(bytes) * u128::from(percent);
    (bytes > 0 && has_little).then(|| {
        let found = format!(
            "{}: {} MiB of {} MiB are free, less than {percent} %",
            path.display(),
            free_bytes >> 20,
            bytes >> 20
        );
        let severity = if free_bytes < SPACE_MIN {
            Severity::Error
        } else {
            Severity::Warning
        };
        Finding::new(&DISK_SPACE, found)
            .severity(severity)
            .command("switchyard cri images")
    })
}

fn free_inodes(path: &Path, space: &DiskSpace) -> Option<Finding> {
    let DiskSpace {
        inodes,
        free_inodes,
        ..
    } = *space;
    let has_few = u128::from(free_inodes) * 100 < u128::from(inodes) * u128::from(INODES_PERCENT);
    (inodes > 0 && has_few).then(|| {
        let found = format!(
            "{}: {free_inodes} of {inodes} inodes are free, less than {INODES_PERCENT} %",
            path.display()
        );
        let severity = if free_inodes == 0 {
            Severity::Error
        } else {
            Severity::Warning
        };
        Finding::new(&DISK_INODES, found).severity(severity)
    })
}

/// The directories for data of the current boot that are not on tmpfs.
fn current_boot(facts: &Facts, mounts: &MountTable) -> Option<Finding> {
    let config = &facts.config;
    let dirs = [
        ("paths.run", config.paths.run.clone()),
        ("logkeeper.state_dir", config.logkeeper_state()),
    ];
    let wrong: Vec<String> = dirs
        .iter()
        .filter_map(|(key, dir)| {
            let mount = mounts.containing(dir)?;
            let is_tmpfs = mount.fs_type == "tmpfs" || mount.fs_type == "ramfs";
            (!is_tmpfs).then(|| format!("{key} ({}) is on {}", dir.display(), mount.fs_type))
        })
        .collect();
    (!wrong.is_empty()).then(|| Finding::new(&NOT_TMPFS, wrong.join("; ")))
}

fn options(facts: &Facts, mounts: &MountTable) -> Option<Finding> {
    let state = &facts.config.paths.state;
    let mount = mounts.containing(state)?;
    let wrong: Vec<&str> = ["ro", "noexec", "nosuid"]
        .into_iter()
        .filter(|option| mount.options.has(option))
        .collect();
    (!wrong.is_empty()).then(|| {
        let found = format!(
            "{} is on {}, mounted {}",
            state.display(),
            mount.point.display(),
            wrong.join(",")
        );
        let severity = if wrong.contains(&"ro") {
            Severity::Error
        } else {
            Severity::Warning
        };
        Finding::new(&MOUNT_OPTIONS, found).severity(severity)
    })
}

/// The disk of a managed containerd, if overlayfs is configured and cannot work on it. A daemon that runs has tried it.
fn overlay_disk(facts: &Facts, mounts: &MountTable) -> Option<Finding> {
    let containerd = &facts.config.containerd;
    let is_managed = containerd.mode == ContainerdMode::Managed;
    if facts.status.is_ok() || !is_managed || !containerd.snapshotters().contains("overlayfs") {
        return None;
    }
    let root = existing(facts, &facts.config.paths.state.join("containerd/root"))?;
    let mount = mounts.containing(&root)?;
    NO_UPPER.contains(&&*mount.fs_type).then(|| {
        let found = format!(
            "{} is on a disk of the type {}, above which the kernel mounts no overlay, and the snapshotter overlayfs is configured",
            root.display(),
            mount.fs_type
        );
        Finding::new(&NO_SNAPSHOTTER, found)
    })
}
