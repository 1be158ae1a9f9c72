//! The infra process of a sandbox (the "pause" process), where one is needed: to hold a shared process
//! namespace, or because the runtime turns a container into the sandbox.

use std::path::PathBuf;

use containerd_client::services::v1 as api;
use containerd_client::types::Mount;
use containerd_client::types::v1::Status;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{ID_PLACEHOLDER, SandboxSpec};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_crash_points::reach;
use switchyard_linux::files::if_present;
use switchyard_runtime_spec::infra::{InfraInput, build};
use switchyard_runtime_spec::{Host, ResolvedUser};

use super::SandboxEntry;
use super::infra_rootfs::{self, PROGRAM};
use crate::base::crash_points::CrashPoint;
use crate::base::error::from_status;
use crate::base::fs::{blocking, create_private_dir_blocking, io_error};
use crate::base::layout::SandboxDirs;
use crate::base::mount::unmount_all;
use crate::base::null_device;
use crate::client::{QUICK, SLOW, call};
use crate::sandbox::Sandboxes;

/// The user of the infra process: an unprivileged id.
const USER: ResolvedUser = ResolvedUser {
    uid: 65535,
    gid: 65535,
    additional_gids: Vec::new(),
};

/// Pins the process namespace of the infra process, so that a process that later gets the same process id is
/// never taken for it. The directory of pins is created here too: a sandbox that shares all other namespaces
/// with the host has no other pin.
async fn pin_pid(pid: u32, dirs: &SandboxDirs) -> Result<()> {
    let dir = dirs.pins.clone();
    let pin = dirs.pid_namespace();
    blocking(move || {
        create_private_dir_blocking(&dir)?;
        std::fs::write(&pin, []).map_err(|fault| io_error("write", &pin, fault))?;
        reach(CrashPoint::InfraPinPlaced);
        let source = PathBuf::from(format!("/proc/{pid}/ns/pid"));
        nix::mount::mount(
            Some(&source),
            &pin,
            None::<&str>,
            nix::mount::MsFlags::MS_BIND,
            None::<&str>,
        )
        .map_err(|fault| io_error("pin the process namespace at", &pin, fault.into()))
    })
    .await
}

/// Removes the pin of the process namespace. Idempotent.
pub(super) async fn unpin_pid(dirs: &SandboxDirs) -> Result<()> {
    let pin = dirs.pid_namespace();
    blocking(move || {
        unmount_all(&pin)?;
        if_present(std::fs::remove_file(&pin))
            .map(drop)
            .map_err(|fault| io_error("remove", &pin, fault))
    })
    .await
}

impl Sandboxes {
    /// The OCI spec of a sandbox's infra process.
    pub(super) async fn infra_spec(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        entry: &SandboxEntry,
    ) -> Result<serde_json::Value> {
        let id = id.to_string();
        let location = entry.cgroup_location(&self.context, &id)?;
        let annotations = spec
            .annotations
            .iter()
            .map(|(key, value)| (key.clone(), value.replace(ID_PLACEHOLDER, &id)))
            .collect();
        let host = Host {
            apparmor: self.node.default_profile().await,
            ..self.context.host.clone()
        };
        let built = build(&InfraInput {
            command: vec![format!("/{PROGRAM}")],
            user: &USER,
            sandbox: &entry.facts(),
            host: &host,
            cgroups_path: &location.path,
            annotations,
        })?;
        for warning in built.warnings {
            tracing::debug!(sandbox = id, warning, "infra process");
        }
        Ok(built.spec)
    }

    /// Starts a sandbox's infra process and returns its process id.
    pub(super) async fn start_infra(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        entry: &SandboxEntry,
    ) -> Result<u32> {
        let runtime = self.context.runtime(&spec.handler)?;
        let infra = self.context.layout.infra();
        let label = self.context.host.readonly_label().map(str::to_owned);
        let installed = blocking(move || infra_rootfs::ensure(&infra, label.as_deref())).await;
        installed.map_err(|error| error.context("the infra program"))?;
        let id = id.to_string();
        let location = entry.cgroup_location(&self.context, &id)?;
        let rootfs = Mount {
            r#type: "bind".to_owned(),
            source: self.context.layout.infra().display().to_string(),
            target: String::new(),
            options: vec!["rbind".to_owned(), "ro".to_owned()],
        };
        let request = api::CreateTaskRequest {
            container_id: id.clone(),
            rootfs: vec![rootfs],
            options: self.context.runtime_options(
                &runtime,
                location.systemd,
                entry.users().as_ref(),
            ),
            ..Default::default()
        };
        let expected_move = self.cgroups.expect_move();
        let creating = self.shims.creates_in_flight.begin(&id);
        let created = call(
            &format!("create the infra process of sandbox {id}"),
            SLOW,
            self.client.tasks().create(request),
        )
        .await;
        null_device::give_back();
        created?;
        drop((expected_move, creating));
        self.context.faults.reach(CrashPoint::InfraCreated)?;
        let request = api::StartRequest {
            container_id: id.clone(),
            exec_id: String::new(),
        };
        let started = call(
            &format!("start the infra process of sandbox {id}"),
            SLOW,
            self.client.tasks().start(request),
        )
        .await?;
        self.context.faults.reach(CrashPoint::InfraStarted)?;
        if entry.record.shared_pid {
            pin_pid(started.pid, &entry.dirs).await?;
            // After the pin: a process that runs now had this id when its namespace was pinned.
            self.assert_runs(&id, started.pid).await?;
            self.context.faults.reach(CrashPoint::InfraPinned)?;
        }
        Ok(started.pid)
    }

    /// Fails if the infra process has exited: the namespace that was pinned by its process id may be that of
    /// another process.
    async fn assert_runs(&self, id: &str, pid: u32) -> Result<()> {
        let request = api::GetRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        };
        let what = format!("look up the infra process of sandbox {id}");
        let process = call(&what, QUICK, self.client.tasks().get(request))
            .await?
            .process
            .unwrap_or_default();
        if process.pid == pid && process.status() == Status::Running {
            return Ok(());
        }
        Err(Error::internal(format!(
            "the infra process {pid} of sandbox {id} exited right after its start: the kernel log may say why"
        )))
    }

    /// Waits for the exit of a sandbox's infra process and returns a description of it; waits for ever if the
    /// sandbox has none.
    pub(crate) async fn wait_sandbox(&self, id: SandboxId) -> Result<String> {
        if self.table.get(id)?.infra_pid().is_none() {
            return std::future::pending().await;
        }
        let request = api::WaitRequest {
            container_id: id.to_string(),
            exec_id: String::new(),
        };
        let what = format!("wait for the infra process of sandbox {id}");
        match self.client.task_queries().wait(request).await {
            Ok(answer) => Ok(format!(
                "its infra process has ended with code {}",
                answer.into_inner().exit_status
            )),
            Err(status) => match from_status(&what, status) {
                error if error.kind() == ErrorKind::NotFound => {
                    Ok("its infra process is gone".to_owned())
                }
                error => Err(error),
            },
        }
    }

    /// Ends a sandbox's infra process, if there is one, and removes its cgroup. Idempotent.
    pub(super) async fn end_infra(
        &self,
        id: SandboxId,
        entry: Option<&SandboxEntry>,
    ) -> Result<()> {
        self.processes.end_process(&id.into()).await?;
        if let Some(entry) = entry {
            let id = id.to_string();
            let path = entry.cgroup_location(&self.context, &id)?.path;
            let group = switchyard_cgroup::Group::from_cgroups_path(&path).ok();
            self.cgroups
                .remove_cgroup(&id, group, entry.made_groups())
                .await?;
        }
        Ok(())
    }
}
