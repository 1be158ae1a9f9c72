//! The process of a sandbox, where it needs one: to hold a shared process namespace, or because its runtime makes a sandbox
//! of a container.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use containerd_client::services::v1 as api;
use containerd_client::types::Mount;
use containerd_client::types::v1::Status;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{ID_PLACEHOLDER, SandboxSpec, Signal};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_runtime_spec::infra::{InfraInput, build};
use switchyard_runtime_spec::{Host, ResolvedUser};
use switchyard_steps::reach;

use super::SandboxEntry;
use crate::backend::Inner;
use crate::client::{QUICK, SLOW, call, ignore_not_found};
use crate::container_id::ContainerId;
use crate::error::from_status;
use crate::fs::{blocking, create_private_dir_blocking, io_error};
use crate::layout::SandboxDirs;
use crate::mount::unmount_all;
use crate::recover::CallOutcome;
use crate::steps::Step;

/// The program, built for this purpose and linked statically.
const PAUSE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));
/// Its name in the root file system. With a command it is the init process of a task: see there.
pub(crate) const PROGRAM: &str = "pause";
/// Directories that the runtime mounts on; the root file system itself is read-only.
const MOUNT_POINTS: [&str; 4] = ["proc", "sys", "dev", "etc"];
/// Nobody in particular.
const USER: ResolvedUser = ResolvedUser { uid: 65535, gid: 65535, additional_gids: Vec::new() };

/// Makes the root file system of infra processes. Idempotent; running ones keep the old program.
pub(crate) fn install(dir: &Path) -> Result<()> {
    for name in MOUNT_POINTS {
        let path = dir.join(name);
        std::fs::create_dir_all(&path).map_err(|fault| io_error("make directory", &path, fault))?;
    }
    let program = dir.join(PROGRAM);
    if std::fs::read(&program).is_ok_and(|there| there == PAUSE) {
        return Ok(());
    }
    let fresh = dir.join(".pause.new");
    std::fs::write(&fresh, PAUSE).map_err(|fault| io_error("write", &fresh, fault))?;
    reach(Step::InfraDrafted);
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&fresh, mode).map_err(|fault| io_error("make executable", &fresh, fault))?;
    std::fs::rename(&fresh, &program).map_err(|fault| io_error("put in place", &program, fault))?;
    reach(Step::InfraInstalled);
    Ok(())
}

/// Pins the process namespace of the infra process, so that a process that later gets the same number is never taken for it. A sandbox
/// that shares all else with the host has no other pin.
async fn pin_pid(pid: u32, dirs: &SandboxDirs) -> Result<()> {
    let dir = dirs.pins.clone();
    let pin = dirs.pid_namespace();
    blocking(move || {
        create_private_dir_blocking(&dir)?;
        std::fs::write(&pin, []).map_err(|fault| io_error("write", &pin, fault))?;
        reach(Step::InfraPinPlaced);
        let source = PathBuf::from(format!("/proc/{pid}/ns/pid"));
        nix::mount::mount(Some(&source), &pin, None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>)
            .map_err(|fault| io_error("pin the process namespace at", &pin, fault.into()))
    })
    .await
}

/// Releases a pinned process namespace. Idempotent.
pub(super) async fn unpin_pid(dirs: &SandboxDirs) -> Result<()> {
    let pin = dirs.pid_namespace();
    blocking(move || {
        unmount_all(&pin)?;
        match std::fs::remove_file(&pin) {
            Err(fault) if fault.kind() != std::io::ErrorKind::NotFound => {
                Err(io_error("remove", &pin, fault))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    })
    .await
}

impl Inner {
    /// The OCI spec of a sandbox's infra process.
    pub(super) async fn infra_spec(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        entry: &SandboxEntry,
    ) -> Result<serde_json::Value> {
        let id = id.to_string();
        let location = self.cgroup_of(entry, &id)?;
        let annotations = spec
            .annotations
            .iter()
            .map(|(key, value)| (key.clone(), value.replace(ID_PLACEHOLDER, &id)))
            .collect();
        let host = Host { apparmor: self.default_profile().await, ..self.host.clone() };
        let built = build(&InfraInput {
            command: vec![format!("/{PROGRAM}")],
            user: &USER,
            sandbox: &entry.facts(),
            host: &host,
            cgroups_path: &location.path,
            annotations,
        })?;
        for warning in built.warnings {
            tracing::debug!(sandbox.id = id, warning, "infra process");
        }
        Ok(built.spec)
    }

    /// Starts a sandbox's infra process and gives its process id.
    pub(super) async fn start_infra(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        entry: &SandboxEntry,
    ) -> Result<u32> {
        let runtime = self.runtime(&spec.handler)?;
        let id = id.to_string();
        let location = self.cgroup_of(entry, &id)?;
        let rootfs = Mount {
            r#type: "bind".to_owned(),
            source: self.layout.infra().display().to_string(),
            target: String::new(),
            options: vec!["rbind".to_owned(), "ro".to_owned()],
        };
        let request = api::CreateTaskRequest {
            container_id: id.clone(),
            rootfs: vec![rootfs],
            options: self.runtime_options(runtime, location.systemd, entry.users().as_ref()),
            ..Default::default()
        };
        let expected_move = self.expect_move();
        let making = self.creates_in_flight.begin(&id);
        call(&format!("create the infra process of sandbox {id}"), SLOW, self.client.tasks().create(request))
            .await?;
        drop((expected_move, making));
        self.faults.reach(Step::InfraCreated)?;
        let request = api::StartRequest { container_id: id.clone(), exec_id: String::new() };
        let started = call(
            &format!("start the infra process of sandbox {id}"),
            SLOW,
            self.client.tasks().start(request),
        )
        .await?;
        self.faults.reach(Step::InfraStarted)?;
        if entry.record.shared_pid {
            pin_pid(started.pid, &entry.dirs).await?;
            self.assert_runs(&id, started.pid).await?;
            self.faults.reach(Step::InfraPinned)?;
        }
        Ok(started.pid)
    }

    /// Refuses an infra process that has ended: what was pinned by its number may be another's.
    async fn assert_runs(&self, id: &str, pid: u32) -> Result<()> {
        let request = api::GetRequest { container_id: id.to_owned(), exec_id: String::new() };
        let what = format!("look up the infra process of sandbox {id}");
        let process = call(&what, QUICK, self.client.tasks().get(request)).await?.process.unwrap_or_default();
        if process.pid == pid && process.status() == Status::Running {
            return Ok(());
        }
        Err(Error::internal(format!(
            "the infra process {pid} of sandbox {id} has ended as soon as it ran: the log of the kernel may say why"
        )))
    }

    /// Waits for the end of a sandbox's infra process; for ever if it has none.
    pub(crate) async fn wait_sandbox(&self, id: SandboxId) -> Result<String> {
        if self.sandbox(id)?.pid.is_none() {
            return std::future::pending().await;
        }
        let request = api::WaitRequest { container_id: id.to_string(), exec_id: String::new() };
        let what = format!("wait for the infra process of sandbox {id}");
        match self.client.task_queries().wait(request).await {
            Ok(answer) => {
                Ok(format!("its infra process has ended with code {}", answer.into_inner().exit_status))
            }
            Err(status) => match from_status(&what, status) {
                error if error.kind() == ErrorKind::NotFound => Ok("its infra process is gone".to_owned()),
                error => Err(error),
            },
        }
    }

    /// Ends a sandbox's infra process, if there is one, and removes its cgroup. Idempotent.
    pub(super) async fn end_infra(&self, id: SandboxId, entry: Option<&SandboxEntry>) -> Result<()> {
        self.end_process(&id.into()).await?;
        if let Some(entry) = entry {
            let id = id.to_string();
            let path = self.cgroup_of(entry, &id)?.path;
            let group = switchyard_cgroup::Group::from_cgroups_path(&path).ok();
            self.remove_cgroup(&id, group, Some(entry)).await?;
        }
        Ok(())
    }

    /// Kills what runs under a container's id, deletes it, and waits until nothing is left of it. What a predecessor may have asked of
    /// containerd about it has settled before. Says whether there was anything. Idempotent.
    pub(crate) async fn end_process(&self, id: &ContainerId) -> Result<bool> {
        let settled = self.await_predecessor_call(id).await?;
        let deleted = self.delete_process(id).await?;
        self.unprotect_exit(id).await?;
        match settled {
            // It has been waited for already.
            CallOutcome::Stuck => self.clear_bundle(id).await?,
            CallOutcome::NoEffect | CallOutcome::Incomplete | CallOutcome::Started { .. } => {
                self.await_bundle_removal(id).await?
            }
        }
        self.predecessor_call_done(id).await?;
        Ok(deleted)
    }

    /// Whether containerd had something to delete.
    async fn delete_process(&self, id: &str) -> Result<bool> {
        let what = format!("end task {id}");
        let delete = || api::DeleteTaskRequest { container_id: id.to_owned() };
        match call(&what, SLOW, self.client.tasks().delete(delete())).await {
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            // It runs, or is created and not started.
            Err(error) if matches!(error.kind(), ErrorKind::FailedPrecondition | ErrorKind::Internal) => {
                tracing::debug!(id, error = error.report(), "killing before deleting");
            }
            Err(error) => return Err(error),
        }
        let kill = api::KillRequest {
            container_id: id.to_owned(),
            signal: u32::from(Signal::KILL.number()),
            all: true,
            ..Default::default()
        };
        ignore_not_found(call(&what, SLOW, self.client.tasks().kill(kill)).await)?;
        let wait = api::WaitRequest { container_id: id.to_owned(), exec_id: String::new() };
        match call(&what, SLOW, self.client.task_queries().wait(wait)).await {
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
                return Err(Error::deadline(format!("task {id} still runs {SLOW:?} after SIGKILL")));
            }
            other => ignore_not_found(other)?,
        }
        reach(Step::ProcessKilled);
        ignore_not_found(call(&what, SLOW, self.client.tasks().delete(delete())).await)?;
        Ok(true)
    }
}
