//! The implementation of the backend: each method is a logged call with an effect on the state.

use futures::future::BoxFuture;
use switchyard_core::backend::{
    Backend, BackendStatus, CheckpointBackend, ExecBackend, ExecPlace, ExecProcess, Handler,
    NamedVolume, OccupiedPort, Recovered, SandboxBackend, Started, TaskBackend, VolumeBackend,
    Withdrawal,
};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::ImageStore;
use switchyard_core::keyed_lock::LockInUse;
use switchyard_core::object::{SandboxDetails, TaskDetails};
use switchyard_core::spec::{
    CheckpointSpec, ExecSpec, HostPort, SandboxSpec, Signal, Subnet, TaskSpec, TaskUpdate,
};
use switchyard_core::state::Exit;
use switchyard_core::stream::{AttachSpec, Attachment, Dialled};
use switchyard_core::table::{no_sandbox, no_task};
use switchyard_core::{Error, Reason, Result};

use crate::program::{Command, Program};
use crate::session::Method;
use crate::{Fake, attach, exec};

mod stats;

impl Backend for Fake {
    fn status(&self) -> BackendStatus {
        self.settings().status.clone()
    }

    fn locks_in_use(&self) -> Vec<LockInUse> {
        // It has none.
        Vec::new()
    }

    fn fresh_status(&self) -> BoxFuture<'_, BackendStatus> {
        Box::pin(async { self.status() })
    }

    fn handlers(&self) -> Vec<Handler> {
        self.settings().handlers.clone()
    }

    fn recover(&self) -> BoxFuture<'_, Result<Recovered>> {
        Box::pin(async move {
            self.session
                .act(Method::Recover, "", || Ok(self.world.lock().snapshot()))
                .await
        })
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn images(&self) -> &dyn ImageStore {
        self
    }
}

impl SandboxBackend for Fake {
    fn create_sandbox<'a>(
        &'a self,
        id: SandboxId,
        spec: &'a SandboxSpec,
    ) -> BoxFuture<'a, Result<SandboxDetails>> {
        Box::pin(async move {
            let handlers: Vec<String> = self
                .settings()
                .handlers
                .iter()
                .map(|one| one.name.clone())
                .collect();
            let effect = || self.world.lock().create_sandbox(id, spec, &handlers);
            self.session.act(Method::CreateSandbox, id, effect).await
        })
    }

    fn stop_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.session
                .act(Method::StopSandbox, id, || {
                    self.world.lock().stop_sandbox(id)
                })
                .await
        })
    }

    fn start_sandbox<'a>(
        &'a self,
        id: SandboxId,
        _spec: &'a SandboxSpec,
    ) -> BoxFuture<'a, Result<SandboxDetails>> {
        Box::pin(async move {
            self.session
                .act(Method::StartSandbox, id, || {
                    self.world.lock().start_sandbox(id)
                })
                .await
        })
    }

    /// The listeners are those that a test has set.
    fn find_listener<'a>(
        &'a self,
        ports: &'a [HostPort],
    ) -> BoxFuture<'a, Result<Option<OccupiedPort>>> {
        Box::pin(async move {
            let find = || {
                let listeners = self.world.lock().listeners.clone();
                let is_wanted =
                    |held: &&OccupiedPort| ports.iter().any(|port| port.overlaps(&held.port));
                Ok(listeners.iter().find(is_wanted).cloned())
            };
            self.session.act(Method::FindListener, "", find).await
        })
    }

    /// A failed call leaves nothing behind, so this returns at once, unless a test holds it.
    fn wait_network_released(&self, id: SandboxId) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // A backend that was killed does not answer.
            let _ = self
                .session
                .act(Method::NetworkReleased, id, || Ok(()))
                .await;
        })
    }

    /// No sandbox of this backend has a process that could exit.
    fn wait_sandbox(&self, _id: SandboxId) -> BoxFuture<'_, Result<String>> {
        Box::pin(async move { std::future::pending().await })
    }

    fn begin_removal(&self, id: SandboxId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let effect = || {
                self.world.lock().begin_removal(id);
                Ok(())
            };
            self.session.act(Method::BeginRemoval, id, effect).await
        })
    }

    fn remove_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.session
                .act(Method::RemoveSandbox, id, || {
                    self.world.lock().remove_sandbox(id)
                })
                .await
        })
    }

    fn amend_sandbox<'a>(&'a self, id: SandboxId, note: &'a [u8]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let effect = || {
                let mut state = self.world.lock();
                let sandbox = state.sandboxes.get_mut(&id).ok_or_else(|| no_sandbox(id))?;
                sandbox.details.note = note.to_vec();
                Ok(())
            };
            self.session.act(Method::AmendSandbox, id, effect).await
        })
    }

    fn set_ranges(&self, owner: Owner, ranges: Vec<Subnet>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let set = || {
                self.world.lock().ranges.insert(owner, ranges);
                Ok(())
            };
            self.session
                .act(Method::SetRanges, owner.as_str(), set)
                .await
        })
    }

    fn dial(&self, id: SandboxId, port: u16) -> BoxFuture<'_, Result<Dialled>> {
        Box::pin(async move {
            self.session
                .act(Method::Dial, id, || attach::dial(&self.world, id, port))
                .await
        })
    }
}

impl TaskBackend for Fake {
    /// A start is pending only if a test has left it behind: no call is interrupted half way.
    fn resolve_start(&self, id: TaskId) -> BoxFuture<'_, Result<Option<Started>>> {
        Box::pin(async move {
            let effect = || {
                let runs = self.world.lock().pending_starts.remove(&id);
                if runs == Some(true) {
                    self.world.start(id, None).map(Some)
                } else {
                    Ok(None)
                }
            };
            self.session.act(Method::ResolveStart, id, effect).await
        })
    }

    fn create_task<'a>(
        &'a self,
        id: TaskId,
        sandbox: SandboxId,
        spec: &'a TaskSpec,
    ) -> BoxFuture<'a, Result<TaskDetails>> {
        Box::pin(async move {
            let effect = || self.world.lock().create_task(id, sandbox, spec);
            self.session.act(Method::CreateTask, id, effect).await
        })
    }

    fn start_task<'a>(
        &'a self,
        id: TaskId,
        withdrawal: &'a Withdrawal,
    ) -> BoxFuture<'a, Result<Started>> {
        Box::pin(async move {
            withdrawal
                .check(id)
                .map_err(|error| error.with_reason(Reason::NotBegun))?;
            let entered = self.session.enter(Method::StartTask, id, None).await;
            // A failure that a test injects is recorded too.
            let fault = entered.fault().or_else(|| withdrawal.check(id).err());
            let started = self.world.start(id, fault);
            entered.leave().await;
            started
        })
    }

    fn signal_task(&self, id: TaskId, signal: Signal) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let entered = self
                .session
                .enter(Method::SignalTask, id, Some(signal))
                .await;
            let result = match entered.fault() {
                Some(error) => Err(error),
                None => {
                    self.world.lock().signal(id, signal);
                    Ok(())
                }
            };
            entered.leave().await;
            result
        })
    }

    fn wait_end(&self, id: TaskId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut end = self
                .world
                .lock()
                .tasks
                .get(&id)
                .ok_or_else(|| no_task(id))?
                .end
                .subscribe();
            let ended = async { end.wait_for(Option::is_some).await.is_ok().then_some(()) };
            self.session
                .unless_killed(ended)
                .await
                .ok_or_else(|| no_task(id))
        })
    }

    fn wait_task(&self, id: TaskId) -> BoxFuture<'_, Result<Exit>> {
        Box::pin(async move {
            let end = || {
                Ok(self
                    .world
                    .lock()
                    .tasks
                    .get(&id)
                    .ok_or_else(|| no_task(id))?
                    .end
                    .subscribe())
            };
            let mut end = self.session.act(Method::WaitTask, id, end).await?;
            let exit = async {
                end.wait_for(Option::is_some)
                    .await
                    .ok()
                    .and_then(|exit| exit.clone())
            };
            // The sender is dropped when the task is removed.
            self.session
                .unless_killed(exit)
                .await
                .ok_or_else(|| no_task(id))
        })
    }

    fn remove_task(&self, id: TaskId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.session
                .act(Method::RemoveTask, id, || self.world.lock().remove_task(id))
                .await
        })
    }

    fn update_task<'a>(
        &'a self,
        id: TaskId,
        update: &'a TaskUpdate,
    ) -> BoxFuture<'a, Result<TaskDetails>> {
        Box::pin(async move {
            self.session
                .act(Method::UpdateTask, id, || {
                    self.world.lock().update_task(id, update)
                })
                .await
        })
    }

    fn attach(&self, id: TaskId, spec: AttachSpec) -> BoxFuture<'_, Result<Attachment>> {
        Box::pin(async move {
            self.session
                .act(Method::Attach, id, || attach::attach(&self.world, id, spec))
                .await
        })
    }

    fn resize_task(&self, id: TaskId, _width: u16, _height: u16) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let effect = || {
                self.world
                    .lock()
                    .tasks
                    .get(&id)
                    .map(|_| ())
                    .ok_or_else(|| no_task(id))
            };
            self.session.act(Method::ResizeTask, id, effect).await
        })
    }

    fn reopen_log(&self, id: TaskId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let effect = || {
                let state = self.world.lock();
                match state
                    .tasks
                    .get(&id)
                    .ok_or_else(|| no_task(id))?
                    .details
                    .log_path
                {
                    Some(_) => Ok(()),
                    None => Err(Error::failed_precondition(format!("task {id} has no log"))),
                }
            };
            self.session.act(Method::ReopenLog, id, effect).await
        })
    }
}

impl ExecBackend for Fake {
    fn exec<'a>(
        &'a self,
        id: TaskId,
        spec: &'a ExecSpec,
        place: ExecPlace,
    ) -> BoxFuture<'a, Result<ExecProcess>> {
        Box::pin(async move {
            let effect = || {
                let mut state = self.world.lock();
                let task = state.tasks.get(&id).ok_or_else(|| no_task(id))?;
                if !task.state.is_running() {
                    let word = task.state.as_str();
                    return Err(Error::failed_precondition(format!(
                        "task {id} is {word}, not running"
                    )));
                }
                let end = task.end.subscribe();
                let program = match (state.exec_codes.pop_front(), Command::parse(&spec.command)) {
                    (Some(code), _) => Program::exiting(code),
                    (None, Command::Program(program)) => program,
                    (None, Command::Unknown | Command::Missing) => {
                        return Err(Error::invalid(
                            format!("task {id}: command"),
                            format!("{:?} is not an executable of the image", spec.command),
                        ));
                    }
                };
                let counts = (&state.processes, &state.unended, state.left_output);
                Ok(exec::spawn(
                    program,
                    spec,
                    place,
                    end,
                    counts,
                    (&self.session, id),
                ))
            };
            self.session.act(Method::Exec, id, effect).await
        })
    }
}

impl CheckpointBackend for Fake {
    fn checkpoint_task<'a>(
        &'a self,
        id: TaskId,
        _spec: &'a CheckpointSpec,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let effect = || {
                let state = self.world.lock();
                let task = state.tasks.get(&id).ok_or_else(|| no_task(id))?;
                // There are no processes that could be saved.
                Err(Error::unimplemented(format!(
                    "task {id} is {} and has no real process",
                    task.state.as_str()
                )))
            };
            self.session.act(Method::CheckpointTask, id, effect).await
        })
    }
}

impl VolumeBackend for Fake {
    fn remove_volume<'a>(&'a self, owner: Owner, name: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.session
                .act(Method::RemoveVolume, name, || {
                    self.world.lock().remove_volume(owner, name)
                })
                .await
        })
    }

    fn volumes(&self) -> BoxFuture<'_, Result<Vec<NamedVolume>>> {
        Box::pin(async move { Ok(self.world.lock().volumes()) })
    }
}
