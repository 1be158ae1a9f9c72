//! The decisions of recovery about the objects that it found, without side effects.

use std::time::SystemTime;

use containerd_client::services::v1 as api;
use switchyard_core::backend::{ObjectFacts, Started, Unreadable, UnreadableKind};
use switchyard_core::id::Owner;
use switchyard_core::state::{Exit, SandboxState};

use crate::base::reserved::is_reserved;
use crate::client::process_state::{ProcessExit, ProcessState};
use crate::record::{Identity, PHASE, SandboxPhase};

/// Recovery's findings about a task.
#[derive(Debug, Clone)]
pub(super) struct TaskFacts {
    /// The container object of its sandbox exists, and the sandbox was created completely.
    pub(super) sandbox: bool,
    /// It was created completely, its snapshot exists, and so do the disk limits that were asked for; and its creation was not given
    /// up.
    pub(super) finished: bool,
    /// It was created in this boot of the node.
    pub(super) this_boot: bool,
    /// Its persisted or noted exit and the time of its start, if there is one.
    pub(super) exit: Option<(Exit, Option<SystemTime>)>,
    /// Time of its start, from the file that a start leaves.
    pub(super) started_at: Option<SystemTime>,
    /// A start was begun in this boot: its run directory exists.
    pub(super) begun: bool,
    /// Its files in the run directory were lost in this boot, and with them whether it was started.
    pub(super) files_lost: bool,
    /// The state of its process; `None` without a query where the answer would not matter.
    pub(super) process: ProcessState,
}

/// Recovery's decision about a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TaskFate {
    /// It was not created completely, or has no sandbox: remove all of it.
    Destroy,
    /// It was not started: it can be.
    Created,
    /// A predecessor call may still be starting it: it counts as created until that call has finished.
    StartPending,
    /// It runs, or has to be treated as if it did.
    Running(Started),
    /// It has exited, and the exit is neither persisted nor noted.
    Reap {
        /// Time of its start.
        started_at: Option<SystemTime>,
        /// The exit.
        end: ProcessExit,
    },
    /// It has exited, or must have, and its exit status is lost.
    Lost(Option<SystemTime>),
    /// It has exited, and the exit is persisted or noted.
    Exited(Exit, Option<SystemTime>),
}

/// Decides the fate of a task. `now` is used as the start time of a running process whose start was not
/// recorded.
pub(super) fn task_fate(facts: &TaskFacts, now: SystemTime) -> TaskFate {
    if !facts.sandbox {
        return TaskFate::Destroy;
    }
    if let Some((exit, started_at)) = &facts.exit {
        return TaskFate::Exited(exit.clone(), *started_at);
    }
    match facts.process {
        // A process whose shim does not answer is watched like a running one: its exit is seen once the shim
        // answers.
        ProcessState::Running { pid } | ProcessState::Unanswered { pid } => {
            TaskFate::Running(Started {
                pid,
                at: facts.started_at.unwrap_or(now),
            })
        }
        ProcessState::Stopped(end) => TaskFate::Reap {
            started_at: facts.started_at,
            end,
        },
        ProcessState::Created => TaskFate::StartPending,
        ProcessState::None if !facts.finished => TaskFate::Destroy,
        // A reboot also removes the file that a start leaves, so the task may have run.
        ProcessState::None if !facts.this_boot => TaskFate::Lost(None),
        ProcessState::None => match facts.started_at {
            Some(at) => TaskFate::Lost(Some(at)),
            // It may have run.
            None if facts.files_lost => TaskFate::Lost(None),
            None if facts.begun => TaskFate::StartPending,
            None => TaskFate::Created,
        },
    }
}

/// Returns whether the state of a task's process has to be queried. Not for a start that was begun and not
/// finished: its shim may take long to answer, and the answer would not change the fate, which is
/// [`TaskFate::StartPending`]. If the files were lost, only the query shows whether it runs.
pub(super) const fn needs_shim_query(
    exit_known: bool,
    begun: bool,
    started: bool,
    files_lost: bool,
) -> bool {
    !exit_known && ((begun && started) || files_lost)
}

/// Recovery's findings about a sandbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct SandboxFacts {
    /// The phase in its label.
    pub(super) phase: SandboxPhase,
    /// All namespaces that it owns are pinned.
    pub(super) pinned: bool,
    /// Its infra process runs, or it needs none.
    pub(super) infra: bool,
}

/// The state of a sandbox; `None` if its creation was cut off: remove all of it.
pub(super) fn sandbox_fate(facts: SandboxFacts) -> Option<SandboxState> {
    let broken = |reason: &str| {
        Some(SandboxState::Unknown {
            reason: reason.to_owned(),
        })
    };
    match facts.phase {
        SandboxPhase::Creating => None,
        SandboxPhase::Stopped => Some(SandboxState::Stopped),
        SandboxPhase::Starting => broken("its start was cut off"),
        SandboxPhase::Removing => broken("its removal was cut off"),
        SandboxPhase::Ready if !facts.pinned => {
            broken("its namespaces are gone, as after a reboot")
        }
        SandboxPhase::Ready if !facts.infra => broken("its infra process has ended"),
        SandboxPhase::Ready => Some(SandboxState::Ready),
    }
}

/// The facts that containerd has of an object which cannot be read, and whose main process is in this state. Most sandboxes
/// have no process: the phase in their label counts too.
pub(super) fn facts_of(container: &api::Container, process: ProcessState) -> ObjectFacts {
    let has_process = matches!(
        process,
        ProcessState::Running { .. } | ProcessState::Unanswered { .. }
    );
    let phase = container.labels.get(PHASE);
    let labels = container
        .labels
        .iter()
        .filter(|(key, _)| !is_reserved(key))
        .map(|(key, value)| (key.clone(), value.clone()));
    ObjectFacts {
        labels: labels.collect(),
        image: container.image.clone(),
        created_at: container
            .created_at
            .and_then(|at| SystemTime::try_from(at).ok()),
        runs: has_process || phase.is_some_and(|word| word == SandboxPhase::Ready.as_str()),
    }
}

/// An object that cannot be read, with what its identity says of it. An owner that this version does not know is
/// nobody whose requests it could be in the way of.
pub(super) fn unreadable(
    id: String,
    kind: UnreadableKind,
    identity: Identity,
    reason: String,
    facts: ObjectFacts,
) -> Unreadable {
    let Identity {
        owner,
        name,
        sandbox,
        claims,
        projects: _,
    } = identity;
    Unreadable {
        id,
        kind,
        owner: Owner::parse(&owner),
        name,
        sandbox,
        reason,
        claims,
        facts,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use switchyard_core::backend::HeldClaims;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn stopped(code: i32) -> ProcessState {
        ProcessState::Stopped(ProcessExit {
            code,
            at: Some(at(8)),
        })
    }

    fn facts(process: ProcessState) -> TaskFacts {
        let exit = None;
        let started_at = None;
        TaskFacts {
            sandbox: true,
            finished: true,
            this_boot: true,
            exit,
            started_at,
            begun: false,
            files_lost: false,
            process,
        }
    }

    #[test]
    fn an_object_of_an_unknown_owner_keeps_what_it_holds() {
        let claims = HeldClaims {
            exclusive_cpus: "1".parse().ok(),
            is_complete: true,
            ..HeldClaims::default()
        };
        for (word, owner) in [("nomad", Some(Owner::Nomad)), ("mesos", None), ("", None)] {
            let identity = Identity {
                owner: word.to_owned(),
                name: "web".to_owned(),
                claims: claims.clone(),
                ..Identity::default()
            };
            let reason = "of version 9".to_owned();
            let facts = ObjectFacts::default();
            let held = unreadable(
                "ab".to_owned(),
                UnreadableKind::Task,
                identity,
                reason,
                facts,
            );
            assert_eq!((held.owner, held.name.as_str()), (owner, "web"));
            assert_eq!(held.claims, claims);
        }
    }

    #[test]
    fn facts_of_an_object_do_not_need_its_record() {
        let of = |phase: Option<&str>, process| {
            let own = phase.map(|phase| (PHASE, phase));
            let labels = [
                ("io.kubernetes.pod.uid", "u-1"),
                ("switchyard.io/kind", "x"),
            ];
            let labels = labels.into_iter().chain(own);
            let container = api::Container {
                labels: labels
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .collect(),
                image: "busybox:1".to_owned(),
                created_at: Some(at(5).into()),
                ..api::Container::default()
            };
            facts_of(&container, process)
        };
        let running = ObjectFacts {
            labels: [("io.kubernetes.pod.uid".to_owned(), "u-1".to_owned())].into(),
            image: "busybox:1".to_owned(),
            created_at: Some(at(5)),
            runs: true,
        };
        let ended = ObjectFacts {
            runs: false,
            ..running.clone()
        };
        for process in [
            ProcessState::Running { pid: 7 },
            ProcessState::Unanswered { pid: 0 },
        ] {
            assert_eq!(of(None, process), running, "{process:?}");
        }
        for process in [ProcessState::None, ProcessState::Created, stopped(0)] {
            assert_eq!(of(None, process), ended, "{process:?}");
            assert_eq!(of(Some("ready"), process), running, "{process:?}");
            assert_eq!(of(Some("halted"), process), ended, "{process:?}");
        }
    }

    #[test]
    fn a_running_process_is_adopted_with_the_start_time_on_file() {
        let running = TaskFacts {
            started_at: Some(at(5)),
            ..facts(ProcessState::Running { pid: 7 })
        };
        assert_eq!(
            task_fate(&running, at(9)),
            TaskFate::Running(Started { pid: 7, at: at(5) })
        );
        let unrecorded = facts(ProcessState::Running { pid: 7 });
        assert_eq!(
            task_fate(&unrecorded, at(9)),
            TaskFate::Running(Started { pid: 7, at: at(9) })
        );
    }

    #[test]
    fn a_task_whose_shim_does_not_answer_counts_as_running() {
        let unresponsive = TaskFacts {
            started_at: Some(at(5)),
            ..facts(ProcessState::Unanswered { pid: 7 })
        };
        assert_eq!(
            task_fate(&unresponsive, at(9)),
            TaskFate::Running(Started { pid: 7, at: at(5) })
        );
    }

    #[test]
    fn what_was_never_finished_or_has_no_sandbox_goes() {
        let half = TaskFacts {
            finished: false,
            ..facts(ProcessState::None)
        };
        assert_eq!(task_fate(&half, at(9)), TaskFate::Destroy);
        let orphan = TaskFacts {
            sandbox: false,
            ..facts(ProcessState::Running { pid: 7 })
        };
        assert_eq!(task_fate(&orphan, at(9)), TaskFate::Destroy);
    }

    #[test]
    fn exit_that_is_persisted_or_noted_stands_whatever_else_is_found() {
        let exit = Exit {
            code: 3,
            finished_at: at(8),
            cause: switchyard_core::state::ExitCause::Exited,
        };
        for process in [ProcessState::None, stopped(0), ProcessState::Created] {
            let ended = TaskFacts {
                exit: Some((exit.clone(), Some(at(5)))),
                finished: false,
                ..facts(process)
            };
            assert_eq!(
                task_fate(&ended, at(9)),
                TaskFate::Exited(exit.clone(), Some(at(5)))
            );
        }
    }

    #[test]
    fn an_end_that_nobody_saw_is_looked_at_while_it_can_be() {
        let ended = TaskFacts {
            started_at: Some(at(5)),
            ..facts(stopped(3))
        };
        let end = ProcessExit {
            code: 3,
            at: Some(at(8)),
        };
        assert_eq!(
            task_fate(&ended, at(9)),
            TaskFate::Reap {
                started_at: Some(at(5)),
                end
            }
        );
        let gone = TaskFacts {
            started_at: Some(at(5)),
            ..facts(ProcessState::None)
        };
        assert_eq!(task_fate(&gone, at(9)), TaskFate::Lost(Some(at(5))));
        let rebooted = TaskFacts {
            this_boot: false,
            ..facts(ProcessState::None)
        };
        assert_eq!(task_fate(&rebooted, at(9)), TaskFate::Lost(None));
    }

    #[test]
    fn a_task_that_was_not_started_can_still_be() {
        assert_eq!(
            task_fate(&facts(ProcessState::None), at(9)),
            TaskFate::Created
        );
        let cut = TaskFacts {
            begun: true,
            ..facts(ProcessState::None)
        };
        assert_eq!(task_fate(&cut, at(9)), TaskFate::StartPending);
        assert_eq!(
            task_fate(&facts(ProcessState::Created), at(9)),
            TaskFate::StartPending
        );
    }

    #[test]
    fn a_task_whose_run_files_were_lost_may_have_run_and_cannot_be_started() {
        for begun in [true, false] {
            let lost = |process| TaskFacts {
                begun,
                files_lost: true,
                ..facts(process)
            };
            assert_eq!(
                task_fate(&lost(ProcessState::None), at(9)),
                TaskFate::Lost(None)
            );
            let running = task_fate(&lost(ProcessState::Running { pid: 7 }), at(9));
            assert_eq!(running, TaskFate::Running(Started { pid: 7, at: at(9) }));
            assert!(
                needs_shim_query(false, begun, false, true)
                    && !needs_shim_query(true, begun, false, true)
            );
        }
    }

    #[test]
    fn a_sandbox_is_ready_only_with_all_that_it_needs() {
        let facts = SandboxFacts {
            phase: SandboxPhase::Ready,
            pinned: true,
            infra: true,
        };
        assert_eq!(sandbox_fate(facts), Some(SandboxState::Ready));
        assert!(matches!(
            sandbox_fate(SandboxFacts {
                pinned: false,
                ..facts
            }),
            Some(SandboxState::Unknown { .. })
        ));
        assert!(matches!(
            sandbox_fate(SandboxFacts {
                infra: false,
                ..facts
            }),
            Some(SandboxState::Unknown { .. })
        ));
        assert_eq!(
            sandbox_fate(SandboxFacts {
                phase: SandboxPhase::Stopped,
                pinned: false,
                infra: false
            }),
            Some(SandboxState::Stopped)
        );
        let cut = sandbox_fate(SandboxFacts {
            phase: SandboxPhase::Starting,
            ..facts
        });
        assert!(matches!(cut, Some(SandboxState::Unknown { .. })));
        let leaving = sandbox_fate(SandboxFacts {
            phase: SandboxPhase::Removing,
            ..facts
        });
        assert_eq!(leaving.map(|state| state.as_str()), Some("unknown"));
        assert_eq!(
            sandbox_fate(SandboxFacts {
                phase: SandboxPhase::Creating,
                ..facts
            }),
            None
        );
    }
}
