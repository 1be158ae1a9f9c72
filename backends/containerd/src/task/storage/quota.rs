//! Disk limits on a task's directories: set before its creation is complete, lifted when it is removed.
//!
//! ```text
//! create: snapshot prepared ► project ids recorded ► directories in their projects ► limits set
//!         ► recorded as in force
//! remove: snapshot and files removed ► limits lifted ► container object deleted, and the ids with it
//! ```
//!
//! If the daemon is killed before the last step of the first line, the task is incomplete: the next start of
//! the daemon removes it in the order of the second line.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::types::Mount;
use switchyard_core::id::Owner;
use switchyard_core::spec::{DiskPart, Project, ProjectId};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_namespaces::{self as namespaces, projects};

use crate::base::error::exhausted_or;
use crate::base::fs::{blocking, io_error};
use crate::base::mount::mount_option_dir;
use crate::record;
use crate::record::{LimitRecord, QuotaRecord};
use crate::task::TaskEntry;
use crate::task::storage::Storage;
use crate::task::storage::plan::StoragePlan;

/// Limit for a quota call of a file system; one that joins a volume with files to a project walks the whole
/// volume.
const FS_TIMEOUT: Duration = Duration::from_secs(120);

impl Storage {
    /// Puts a new task's directories into projects, and limits these. Its snapshot has been prepared, and
    /// `mounts` are its mounts.
    ///
    /// # Errors
    /// Errors name the configuration keys that ask for the limits.
    pub(crate) async fn limit_disks(
        &self,
        entry: &TaskEntry,
        plan: &StoragePlan,
        mounts: &[Mount],
    ) -> Result<()> {
        if plan.disk.is_empty() {
            return Ok(());
        }
        let fields: Vec<_> = plan.disk.iter().map(|part| part.field.as_str()).collect();
        self.set_limits(entry, plan, mounts)
            .await
            .map_err(|error| error.context(fields.join(", ")))
    }

    async fn set_limits(
        &self,
        entry: &TaskEntry,
        plan: &StoragePlan,
        mounts: &[Mount],
    ) -> Result<()> {
        let owner = entry.record().meta.to_core()?.owner;
        let host_dirs = host_dirs(entry, plan, mounts)?;
        let mut limits = Vec::with_capacity(plan.disk.len());
        let mut joining = Vec::new();
        for part in &plan.disk {
            let dirs: Vec<_> = part
                .places
                .iter()
                .filter_map(|place| host_dirs.get(place))
                .flatten()
                .cloned()
                .collect();
            let mount = common_mount(part, dirs.clone()).await?;
            let project = self
                .project_of(entry, owner, part.project, &mount)
                .await?
                .number();
            limits.push(LimitRecord {
                project,
                bytes: part.bytes,
                mount,
            });
            joining.extend(dirs.into_iter().map(|dir| (dir, project)));
        }
        self.record_quota(
            entry,
            QuotaRecord {
                limits: limits.clone(),
                in_force: false,
            },
        )
        .await?;
        reach(CrashPoint::QuotaRecorded);
        quota_call(move || {
            joining
                .iter()
                .try_for_each(|(dir, project)| projects::join(dir, *project))
        })
        .await?;
        reach(CrashPoint::QuotaJoined);
        let setting = limits.clone();
        {
            let _guard = self.projects.lock_limits().await;
            let set = |limit: &LimitRecord| {
                projects::limit(&limit.mount, limit.project, Some(limit.bytes))
            };
            quota_call(move || setting.iter().try_for_each(set)).await?;
        }
        reach(CrashPoint::QuotaLimited);
        self.record_quota(
            entry,
            QuotaRecord {
                limits,
                in_force: true,
            },
        )
        .await?;
        reach(CrashPoint::QuotaMarked);
        Ok(())
    }

    /// Lifts the limits of a task that is removed, except those of projects that other tasks use as well.
    /// Idempotent.
    pub(crate) async fn lift_limits(&self, entry: &TaskEntry) -> Result<()> {
        let limits = entry.record().quota.clone().unwrap_or_default().limits;
        if limits.is_empty() {
            self.projects.release(entry.id, limits);
            return Ok(());
        }
        let _guard = self.projects.lock_limits().await;
        let free = self.projects.release(entry.id, limits);
        let lift = move || {
            free.iter().try_for_each(|limit| match projects::limit(&limit.mount, limit.project, None) {
                Err(error @ namespaces::Error::NoProjectQuota { .. }) => {
                    tracing::warn!(project = limit.project, %error, "a disk limit is not lifted: its file system enforces no project quotas");
                    Ok(())
                }
                // The file system is not mounted any more, so its limits are gone too.
                Err(_) if !limit.mount.exists() => Ok(()),
                other => other,
            })
        };
        quota_call(lift).await?;
        reach(CrashPoint::QuotaLifted);
        Ok(())
    }

    /// The project for a part of a task's directories, on a file system that must enforce project quotas.
    async fn project_of(
        &self,
        entry: &TaskEntry,
        owner: Owner,
        requested: Project,
        mount: &Path,
    ) -> Result<ProjectId> {
        let unused = async |first: ProjectId| {
            let mount = mount.to_owned();
            quota_call(move || projects::unused(&mount, first.number())).await
        };
        let mut first = ProjectId::FIRST;
        loop {
            if let Project::Given(project) = requested {
                // Only the error matters: it says that there are no quotas. A project that the client names
                // may have files already.
                unused(project).await?;
                self.projects.share(entry.id, owner, project)?;
                return Ok(project);
            }
            let none = || Error::new(ErrorKind::ResourceExhausted, "every project id is in use");
            let project = self
                .projects
                .reserve(entry.id, owner, first)
                .ok_or_else(none)?;
            let found = unused(project).await?;
            if found == project.number() {
                return Ok(project);
            }
            // The project belongs to somebody else, or to files that outlived their container.
            self.projects.unreserve(entry.id, project);
            first = ProjectId::new(found).ok_or_else(none)?;
        }
    }

    async fn record_quota(&self, entry: &TaskEntry, quota: QuotaRecord) -> Result<()> {
        let fresh = {
            let mut record = entry.record();
            record.quota = Some(quota);
            record.clone()
        };
        let container = api::Container {
            id: entry.id.to_string(),
            extensions: record::task_extensions(&fresh),
            ..Default::default()
        };
        self.client
            .update_container(container, record::extension_paths().into())
            .await
    }
}

/// By path in the container: the directories on the host that hold what is written there.
fn host_dirs(
    entry: &TaskEntry,
    plan: &StoragePlan,
    mounts: &[Mount],
) -> Result<BTreeMap<PathBuf, Vec<PathBuf>>> {
    let mut places: BTreeMap<_, _> = plan
        .volume_dirs()
        .map(|(destination, dir)| (destination, vec![dir]))
        .collect();
    let root = PathBuf::from("/");
    if plan.disk.iter().any(|part| part.places.contains(&root)) {
        let dirs = root_dirs(mounts).ok_or_else(|| {
            Error::unimplemented(format!(
                "the snapshotter {} keeps the writes of a container in no directory of their own, so they cannot be limited",
                entry.snapshotter
            ))
        })?;
        places.insert(root, dirs);
    }
    Ok(places)
}

/// The mount point of the file system that all of `dirs` are on.
async fn common_mount(part: &DiskPart, dirs: Vec<PathBuf>) -> Result<PathBuf> {
    let places: Vec<_> = part
        .places
        .iter()
        .map(|place| place.display().to_string())
        .collect();
    let find_mount = move || {
        let device = |dir: &PathBuf| {
            dir.metadata()
                .map(|data| data.dev())
                .map_err(|fault| io_error("read the metadata of", dir, fault))
        };
        let devices = dirs.iter().map(device).collect::<Result<Vec<_>>>()?;
        match dirs.first() {
            Some(first) if devices.iter().all(|device| *device == devices[0]) => {
                projects::mount_point(first).map_err(from_projects)
            }
            Some(_) | None => Err(Error::failed_precondition(format!(
                "{} are on several file systems, which cannot be counted together: limit each by itself",
                places.join(" and ")
            ))),
        }
    };
    with_fs_timeout(blocking(find_mount)).await
}

/// The directories that hold what is written to a root file system; `None` if the mounts do not say.
fn root_dirs(mounts: &[Mount]) -> Option<Vec<PathBuf>> {
    let [.., mount] = mounts else { return None };
    let dirs = match (
        mount_option_dir(mount, "upperdir"),
        mount_option_dir(mount, "workdir"),
    ) {
        // The overlay copies a file up in the work directory and renames it into the upper one, which is not
        // possible between projects: so both directories have to be in the same one.
        (Some(upper), Some(work)) => vec![upper, work],
        // An image without layers has no lower directory, so its snapshot is a bind mount.
        _ if mount.r#type == "bind" => vec![PathBuf::from(&mount.source)],
        _ => return None,
    };
    dirs.iter().all(|dir| dir.is_absolute()).then_some(dirs)
}

/// Runs a blocking quota call on file systems, with a time limit.
async fn quota_call<T: Send + 'static>(
    work: impl FnOnce() -> std::result::Result<T, namespaces::Error> + Send + 'static,
) -> Result<T> {
    with_fs_timeout(blocking(move || work().map_err(from_projects))).await
}

async fn with_fs_timeout<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(FS_TIMEOUT, work).await {
        Ok(done) => done,
        Err(_) => Err(Error::deadline(format!(
            "a file system has not answered within {FS_TIMEOUT:?}: check whether it hangs"
        ))),
    }
}

fn from_projects(error: namespaces::Error) -> Error {
    let kind = if matches!(error, namespaces::Error::NoProjectQuota { .. }) {
        ErrorKind::FailedPrecondition
    } else {
        exhausted_or(ErrorKind::Internal, &error)
    };
    Error::new(kind, "set or lift disk limits").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_container_writes_is_where_its_mounts_say() {
        let mount = |kind: &str, source: &str, options: &[&str]| Mount {
            r#type: kind.to_owned(),
            source: source.to_owned(),
            options: options.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let overlay = mount(
            "overlay",
            "overlay",
            &[
                "index=off",
                "workdir=/s/7/work",
                "upperdir=/s/7/fs",
                "lowerdir=/s/1/fs",
            ],
        );
        assert_eq!(
            root_dirs(&[overlay]),
            Some(vec!["/s/7/fs".into(), "/s/7/work".into()])
        );
        let bind = mount("bind", "/s/7/fs", &["rw", "rbind"]);
        assert_eq!(root_dirs(&[bind]), Some(vec!["/s/7/fs".into()]));
        assert_eq!(
            root_dirs(&[mount("btrfs", "/dev/sda", &["subvol=x"])]),
            None
        );
        assert_eq!(
            root_dirs(&[mount(
                "format/overlay",
                "x",
                &["upperdir={{ mount 0 }}/upper", "workdir=/w"]
            )]),
            None
        );
        assert_eq!(root_dirs(&[]), None);
    }
}
