//! The implementation of the backend: each method is a logged call with an effect on the state.

use std::collections::BTreeMap;

use async_trait::async_trait;
use switchyard_core::backend::{
    Backend, BackendStatus, CheckpointBackend, ExecBackend, ExecProcess, Handler, Inspection, NamedVolume,
    Recovered, SandboxBackend, SandboxDetails, SandboxStats, Started, StatsBackend, TaskBackend, TaskDetails,
    VolumeBackend,
};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::ImageStore;
use switchyard_core::spec::{CheckpointSpec, ExecSpec, SandboxSpec, Signal, Subnet, TaskSpec, TaskUpdate};
use switchyard_core::state::Exit;
use switchyard_core::stats::{InterfaceStats, TaskMetrics, TaskStats};
use switchyard_core::stream::{AttachSpec, Attachment, Dialled};
use switchyard_core::table::{no_sandbox, no_task};
use switchyard_core::{Error, Result};

use crate::program::{Command, Program};
use crate::session::Method;
use crate::usage::{task_metrics, task_stats, traffic, usage};
use crate::{Fake, attach, exec};

#[async_trait]
impl Backend for Fake {
    fn status(&self) -> BackendStatus {
        self.settings().status.clone()
    }

    fn handlers(&self) -> Vec<Handler> {
        self.settings().handlers.clone()
    }

    async fn recover(&self) -> Result<Recovered> {
        self.session.act(Method::Recover, "", || Ok(self.world.lock().snapshot())).await
    }

    async fn drain(&self) {}

    fn images(&self) -> &dyn ImageStore {
        self
    }
}

#[async_trait]
impl SandboxBackend for Fake {
    async fn create_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails> {
        let handlers: Vec<String> = self.settings().handlers.iter().map(|one| one.name.clone()).collect();
        let effect = || self.world.lock().create_sandbox(id, spec, &handlers);
        self.session.act(Method::CreateSandbox, id, effect).await
    }

    async fn stop_sandbox(&self, id: SandboxId) -> Result<()> {
        self.session.act(Method::StopSandbox, id, || self.world.lock().stop_sandbox(id)).await
    }

    async fn start_sandbox(&self, id: SandboxId, _spec: &SandboxSpec) -> Result<SandboxDetails> {
        self.session.act(Method::StartSandbox, id, || self.world.lock().start_sandbox(id)).await
    }

    /// A failed call leaves nothing behind, so this returns at once, unless a test holds it.
    async fn wait_network_released(&self, id: SandboxId) {
        // A backend that was killed does not answer.
        let _ = self.session.act(Method::NetworkReleased, id, || Ok(())).await;
    }

    /// No sandbox of this backend has a process that could exit.
    async fn wait_sandbox(&self, _id: SandboxId) -> Result<String> {
        std::future::pending().await
    }

    async fn begin_removal(&self, id: SandboxId) -> Result<()> {
        let effect = || {
            self.world.lock().begin_removal(id);
            Ok(())
        };
        self.session.act(Method::BeginRemoval, id, effect).await
    }

    async fn remove_sandbox(&self, id: SandboxId) -> Result<()> {
        self.session.act(Method::RemoveSandbox, id, || self.world.lock().remove_sandbox(id)).await
    }

    async fn amend_sandbox(&self, id: SandboxId, note: &[u8]) -> Result<()> {
        let effect = || {
            let mut state = self.world.lock();
            let sandbox = state.sandboxes.get_mut(&id).ok_or_else(|| no_sandbox(id))?;
            sandbox.details.note = note.to_vec();
            Ok(())
        };
        self.session.act(Method::AmendSandbox, id, effect).await
    }

    async fn set_ranges(&self, owner: Owner, ranges: Vec<Subnet>) -> Result<()> {
        let set = || {
            self.world.lock().ranges.insert(owner, ranges);
            Ok(())
        };
        self.session.act(Method::SetRanges, owner.as_str(), set).await
    }

    async fn dial(&self, id: SandboxId, port: u16) -> Result<Dialled> {
        self.session.act(Method::Dial, id, || attach::dial(&self.world, id, port)).await
    }
}

#[async_trait]
impl TaskBackend for Fake {
    /// No call is ever interrupted half way, so that no start is ever pending.
    async fn resolve_start(&self, _id: TaskId) -> Result<Option<Started>> {
        Ok(None)
    }

    async fn create_task(&self, id: TaskId, sandbox: SandboxId, spec: &TaskSpec) -> Result<TaskDetails> {
        let effect = || self.world.lock().create_task(id, sandbox, spec);
        self.session.act(Method::CreateTask, id, effect).await
    }

    async fn start_task(&self, id: TaskId) -> Result<Started> {
        let entered = self.session.enter(Method::StartTask, id, None).await;
        // A failure that a test injects is recorded too.
        let started = self.world.start(id, entered.fault());
        entered.leave().await;
        started
    }

    async fn signal_task(&self, id: TaskId, signal: Signal) -> Result<()> {
        let entered = self.session.enter(Method::SignalTask, id, Some(signal)).await;
        let result = match entered.fault() {
            Some(error) => Err(error),
            None => {
                self.world.lock().signal(id, signal);
                Ok(())
            }
        };
        entered.leave().await;
        result
    }

    async fn wait_end(&self, id: TaskId) -> Result<()> {
        let mut end = self.world.lock().tasks.get(&id).ok_or_else(|| no_task(id))?.end.subscribe();
        let ended = async { end.wait_for(Option::is_some).await.is_ok().then_some(()) };
        self.session.unless_killed(ended).await.ok_or_else(|| no_task(id))
    }

    async fn wait_task(&self, id: TaskId) -> Result<Exit> {
        let end = || Ok(self.world.lock().tasks.get(&id).ok_or_else(|| no_task(id))?.end.subscribe());
        let mut end = self.session.act(Method::WaitTask, id, end).await?;
        let exit = async { end.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone()) };
        // The sender is dropped when the task is removed.
        self.session.unless_killed(exit).await.ok_or_else(|| no_task(id))
    }

    async fn remove_task(&self, id: TaskId) -> Result<()> {
        self.session.act(Method::RemoveTask, id, || self.world.lock().remove_task(id)).await
    }

    async fn update_task(&self, id: TaskId, update: &TaskUpdate) -> Result<TaskDetails> {
        self.session.act(Method::UpdateTask, id, || self.world.lock().update_task(id, update)).await
    }

    async fn attach(&self, id: TaskId, spec: AttachSpec) -> Result<Attachment> {
        self.session.act(Method::Attach, id, || attach::attach(&self.world, id, spec)).await
    }

    async fn resize_task(&self, id: TaskId, _width: u16, _height: u16) -> Result<()> {
        let effect = || self.world.lock().tasks.get(&id).map(|_| ()).ok_or_else(|| no_task(id));
        self.session.act(Method::ResizeTask, id, effect).await
    }

    async fn reopen_log(&self, id: TaskId) -> Result<()> {
        let effect = || {
            let state = self.world.lock();
            match state.tasks.get(&id).ok_or_else(|| no_task(id))?.details.log_path {
                Some(_) => Ok(()),
                None => Err(Error::failed_precondition(format!("task {id} has no log"))),
            }
        };
        self.session.act(Method::ReopenLog, id, effect).await
    }
}

#[async_trait]
impl ExecBackend for Fake {
    fn exec_blocked(&self, _: TaskId) -> Option<Error> {
        None
    }

    async fn exec(&self, id: TaskId, spec: &ExecSpec) -> Result<ExecProcess> {
        let effect = || {
            let mut state = self.world.lock();
            let task = state.tasks.get(&id).ok_or_else(|| no_task(id))?;
            if !task.state.is_running() {
                let word = task.state.as_str();
                return Err(Error::failed_precondition(format!("task {id} is {word}, not running")));
            }
            let end = task.end.subscribe();
            if let Some(code) = state.exec_codes.pop_front() {
                return Ok(exec::spawn(Program::exiting(code), spec, end, &state.processes));
            }
            match Command::parse(&spec.command) {
                Command::Program(program) => Ok(exec::spawn(program, spec, end, &state.processes)),
                Command::Unknown | Command::Missing => Err(Error::invalid(
                    format!("task {id}: command"),
                    format!("{:?} is not an executable of the image", spec.command),
                )),
            }
        };
        self.session.act(Method::Exec, id, effect).await
    }
}

#[async_trait]
impl CheckpointBackend for Fake {
    async fn checkpoint_task(&self, id: TaskId, _spec: &CheckpointSpec) -> Result<()> {
        let effect = || {
            let state = self.world.lock();
            let task = state.tasks.get(&id).ok_or_else(|| no_task(id))?;
            // There are no processes that could be saved.
            Err(Error::unimplemented(format!("task {id} is {} and has no real process", task.state.as_str())))
        };
        self.session.act(Method::CheckpointTask, id, effect).await
    }
}

#[async_trait]
impl StatsBackend for Fake {
    async fn task_stats(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskStats>> {
        let effect = || {
            let mut state = self.world.lock();
            let mut stats = BTreeMap::new();
            for id in ids {
                if let Some(task) = state.tasks.get_mut(id) {
                    task.reads += 1;
                    let runs = task.state.is_running();
                    stats.insert(*id, task_stats(task.reads, runs));
                }
            }
            Ok(stats)
        };
        self.session.act(Method::TaskStats, "", effect).await
    }

    async fn task_metrics(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskMetrics>> {
        let effect = || {
            let mut state = self.world.lock();
            let mut metrics = BTreeMap::new();
            for id in ids {
                if let Some(task) = state.tasks.get_mut(id).filter(|task| task.state.is_running()) {
                    task.reads += 1;
                    metrics.insert(*id, task_metrics(task.reads));
                }
            }
            Ok(metrics)
        };
        self.session.act(Method::TaskMetrics, "", effect).await
    }

    async fn sandbox_traffic(&self, ids: &[SandboxId]) -> Result<BTreeMap<SandboxId, Vec<InterfaceStats>>> {
        let effect = || {
            let mut state = self.world.lock();
            let mut all = BTreeMap::new();
            for id in ids {
                let sandbox = state.sandboxes.get_mut(id).filter(|sandbox| sandbox.details.netns.is_some());
                if let Some(sandbox) = sandbox {
                    sandbox.reads += 1;
                    all.insert(*id, vec![traffic(sandbox.reads)]);
                }
            }
            Ok(all)
        };
        self.session.act(Method::SandboxTraffic, "", effect).await
    }

    async fn sandbox_stats(&self, id: SandboxId) -> Result<SandboxStats> {
        let effect = || {
            let mut state = self.world.lock();
            let sandbox = state.sandboxes.get_mut(&id).ok_or_else(|| no_sandbox(id))?;
            sandbox.reads += 1;
            let interfaces =
                if sandbox.details.ips.is_empty() { Vec::new() } else { vec![traffic(sandbox.reads)] };
            Ok(SandboxStats { usage: usage(sandbox.reads), processes: Some(1), interfaces })
        };
        self.session.act(Method::SandboxStats, id, effect).await
    }

    async fn inspect_task(&self, id: TaskId) -> Result<Inspection> {
        let effect = || {
            let state = self.world.lock();
            let task = state.tasks.get(&id).ok_or_else(|| no_task(id))?;
            let handler = state.sandboxes.get(&task.sandbox).map_or("", |sandbox| &sandbox.handler);
            Ok(Inspection {
                pid: task.state.pid(),
                runtime_type: handler.to_owned(),
                snapshotter: "memory".into(),
                snapshot_key: id.to_string(),
                ..Inspection::default()
            })
        };
        self.session.act(Method::InspectTask, id, effect).await
    }

    async fn inspect_sandbox(&self, id: SandboxId) -> Result<Inspection> {
        let effect = || {
            let state = self.world.lock();
            let sandbox = state.sandboxes.get(&id).ok_or_else(|| no_sandbox(id))?;
            Ok(Inspection {
                pid: sandbox.details.pid,
                runtime_type: sandbox.handler.clone(),
                ..Inspection::default()
            })
        };
        self.session.act(Method::InspectSandbox, id, effect).await
    }
}

#[async_trait]
impl VolumeBackend for Fake {
    async fn remove_volume(&self, owner: Owner, name: &str) -> Result<()> {
        self.session.act(Method::RemoveVolume, name, || self.world.lock().remove_volume(owner, name)).await
    }

    async fn volumes(&self) -> Result<Vec<NamedVolume>> {
        Ok(self.world.lock().volumes())
    }
}
