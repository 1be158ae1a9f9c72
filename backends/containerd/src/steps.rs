//! The named steps of every sequence that changes something.
//!
//! A step is *reached* right after its effect, which is the worst moment to fail or to die. In a build with the feature `faults` a
//! test can make a step fail, or kill the process there; in any other build reaching a step does nothing.

/// A point in a sequence; what was done just before is in its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// The container object of a sandbox is written.
    SandboxRecorded,
    /// Its directories and files are made.
    SandboxFiles,
    /// Its namespaces are pinned.
    SandboxPinned,
    /// Its `/dev/shm` is mounted.
    SandboxShm,
    /// Its network is attached.
    SandboxAttached,
    /// Its infra process is created.
    InfraCreated,
    /// Its infra process runs.
    InfraStarted,
    /// It is marked ready.
    SandboxMarked,
    /// A stop has ended its infra process.
    SandboxInfraEnded,
    /// A stop has detached its network.
    SandboxDetached,
    /// A stop has released its namespaces.
    SandboxUnpinned,
    /// A stop has unmounted its `/dev/shm`.
    SandboxUnmounted,
    /// A removal has deleted its files.
    SandboxFilesGone,
    /// The container object of a task is written.
    TaskRecorded,
    /// The directories of its image volumes are made.
    TaskVolumes,
    /// Its snapshot is prepared.
    TaskPrepared,
    /// Its FIFOs are made.
    TaskFifos,
    /// The logkeeper holds its FIFOs.
    TaskLogged,
    /// containerd has created its process.
    TaskCreated,
    /// Its process runs.
    TaskStarted,
    /// Its start time is written.
    TaskMarked,
    /// Its exit is on record.
    TaskExitRecorded,
    /// containerd has deleted its process.
    TaskDeleted,
    /// The logkeeper has let go of it.
    TaskLogFinished,
    /// A removal has deleted its snapshot.
    TaskSnapshotGone,
    /// A removal has deleted its files.
    TaskFilesGone,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 26] = [
        Self::SandboxRecorded,
        Self::SandboxFiles,
        Self::SandboxPinned,
        Self::SandboxShm,
        Self::SandboxAttached,
        Self::InfraCreated,
        Self::InfraStarted,
        Self::SandboxMarked,
        Self::SandboxInfraEnded,
        Self::SandboxDetached,
        Self::SandboxUnpinned,
        Self::SandboxUnmounted,
        Self::SandboxFilesGone,
        Self::TaskRecorded,
        Self::TaskVolumes,
        Self::TaskPrepared,
        Self::TaskFifos,
        Self::TaskLogged,
        Self::TaskCreated,
        Self::TaskStarted,
        Self::TaskMarked,
        Self::TaskExitRecorded,
        Self::TaskDeleted,
        Self::TaskLogFinished,
        Self::TaskSnapshotGone,
        Self::TaskFilesGone,
    ];
}

#[cfg(feature = "faults")]
pub use with_faults::{Fault, Faults};

#[cfg(feature = "faults")]
mod with_faults {
    //! What a test wants to go wrong.

    use std::collections::HashMap;
    use std::sync::{Arc, Mutex, PoisonError};

    use switchyard_core::{Error, Result};

    use super::Step;

    /// What happens at a step.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Fault {
        /// The sequence fails there, once.
        Fail,
        /// The process is killed there.
        Kill,
    }

    /// The faults that wait for their step. Clones share them.
    #[derive(Debug, Clone, Default)]
    pub struct Faults {
        waiting: Arc<Mutex<HashMap<Step, Fault>>>,
    }

    impl Faults {
        /// Lets `fault` happen the next time `step` is reached.
        pub fn set(&self, step: Step, fault: Fault) {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(step, fault);
        }

        /// No faults.
        pub(crate) fn none() -> Self {
            Self::default()
        }

        /// Whether a fault still waits: its step has not been reached.
        #[must_use]
        pub fn waits(&self) -> bool {
            !self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
        }

        pub(crate) fn reach(&self, step: Step) -> Result<()> {
            let fault = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&step);
            match fault {
                None => Ok(()),
                Some(Fault::Fail) => Err(Error::internal(format!("a test lets the step {step:?} fail"))),
                Some(Fault::Kill) => {
                    let killed =
                        nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
                    Err(Error::internal(format!("the process survived its own SIGKILL: {killed:?}")))
                }
            }
        }
    }
}

#[cfg(not(feature = "faults"))]
#[derive(Debug, Clone)]
pub(crate) struct Faults;

#[cfg(not(feature = "faults"))]
impl Faults {
    /// No faults.
    pub(crate) const fn none() -> Self {
        Self
    }

    #[expect(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "the same shape as in a build with faults"
    )]
    pub(crate) fn reach(&self, _step: Step) -> switchyard_core::Result<()> {
        Ok(())
    }
}
