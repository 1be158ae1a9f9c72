//! The lifecycle of a sandbox as this daemon knows it: one state, changed by one pure function.
//!
//! ```text
//!   Provisioned ── InfraEnded ─► Ending ──── Released ──► Stopped
//!        │                         │                         │
//!        │ RemovalRecorded         │ RemovalRecorded         │ RemovalRecorded
//!        ▼                         ▼                         ▼
//!    Removing ── InfraEnded ─► Dismantling ── Released ─► Dismantled
//! ```
//!
//! `Released` also comes without `InfraEnded` before it. A stopped sandbox that is started again begins as `Provisioned` again.

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxLifecycle {
    /// It may have namespaces, a network and an infra process. With the pid of that, if it is known to run.
    Provisioned { infra: Option<u32> },
    /// The same, but its record says that it is being removed.
    Removing { infra: Option<u32> },
    /// It is stopped: its infra process has exited. Its network and namespaces are released behind that.
    Ending,
    /// The same, but its record says that it is being removed.
    Dismantling,
    /// Its infra process has exited, and its network and namespaces are released: only files remain.
    Stopped,
    /// The same, but its record says that it is being removed.
    Dismantled,
}

/// An event in the life of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SandboxChange {
    /// Its infra process runs, with this pid.
    InfraStarted(u32),
    /// Its infra process has exited; its network is still to be released.
    InfraEnded,
    /// Its infra process has exited, and its network and namespaces are released.
    Released,
    /// Its record says from now on that it is being removed.
    RemovalRecorded,
}

// === impl SandboxLifecycle ===

impl SandboxLifecycle {
    /// The state of a new sandbox, and of one that is started again.
    pub(crate) const NEW: Self = Self::Provisioned { infra: None };

    /// The state after a change; one that does not apply leaves the state as it is. Pure.
    pub(crate) const fn after(self, change: SandboxChange) -> Self {
        match (self, change) {
            (Self::Provisioned { .. }, SandboxChange::InfraStarted(pid)) => {
                Self::Provisioned { infra: Some(pid) }
            }
            (Self::Removing { .. }, SandboxChange::InfraStarted(pid)) => {
                Self::Removing { infra: Some(pid) }
            }
            (Self::Ending, SandboxChange::InfraStarted(_) | SandboxChange::InfraEnded)
            | (Self::Provisioned { .. }, SandboxChange::InfraEnded) => Self::Ending,
            (
                Self::Dismantling,
                SandboxChange::InfraStarted(_)
                | SandboxChange::InfraEnded
                | SandboxChange::RemovalRecorded,
            )
            | (Self::Removing { .. }, SandboxChange::InfraEnded)
            | (Self::Ending, SandboxChange::RemovalRecorded) => Self::Dismantling,
            (Self::Provisioned { .. } | Self::Ending | Self::Stopped, SandboxChange::Released) => {
                Self::Stopped
            }
            (
                Self::Removing { .. } | Self::Dismantling | Self::Dismantled,
                SandboxChange::Released,
            ) => Self::Dismantled,
            (
                Self::Provisioned { infra } | Self::Removing { infra },
                SandboxChange::RemovalRecorded,
            ) => Self::Removing { infra },
            (Self::Stopped | Self::Dismantled, SandboxChange::RemovalRecorded) => Self::Dismantled,
            (
                Self::Stopped | Self::Dismantled,
                SandboxChange::InfraStarted(_) | SandboxChange::InfraEnded,
            ) => self,
        }
    }

    /// The pid of its infra process, if that is known to run.
    pub(crate) const fn infra(self) -> Option<u32> {
        match self {
            Self::Provisioned { infra } | Self::Removing { infra } => infra,
            Self::Ending | Self::Dismantling | Self::Stopped | Self::Dismantled => None,
        }
    }

    /// Returns whether its infra process has exited, and its network and namespaces are released.
    pub(crate) const fn is_released(self) -> bool {
        matches!(self, Self::Stopped | Self::Dismantled)
    }

    /// Returns whether it is stopped: nothing runs in it.
    pub(crate) const fn is_stopped(self) -> bool {
        self.is_released() || self.is_ending()
    }

    /// Returns whether its record says that it is being removed.
    pub(crate) const fn is_removal_recorded(self) -> bool {
        matches!(
            self,
            Self::Removing { .. } | Self::Dismantling | Self::Dismantled
        )
    }

    /// Returns whether it is stopped, and its network and namespaces are still to be released.
    pub(crate) const fn is_ending(self) -> bool {
        matches!(self, Self::Ending | Self::Dismantling)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn change() -> impl Strategy<Value = SandboxChange> {
        prop_oneof![
            (1..9_u32).prop_map(SandboxChange::InfraStarted),
            Just(SandboxChange::InfraEnded),
            Just(SandboxChange::Released),
            Just(SandboxChange::RemovalRecorded),
        ]
    }

    proptest! {
        #[test]
        fn neither_a_release_nor_a_recorded_removal_is_taken_back(
            changes in prop::collection::vec(change(), 0..12),
        ) {
            let mut state = SandboxLifecycle::NEW;
            let mut infra = None;
            let mut ended = false;
            let mut released = false;
            let mut removal_recorded = false;
            for change in changes {
                state = state.after(change);
                match change {
                    SandboxChange::InfraStarted(pid) if !released && !ended => infra = Some(pid),
                    SandboxChange::InfraStarted(_) => {}
                    SandboxChange::InfraEnded => {
                        infra = None;
                        ended = true;
                    }
                    SandboxChange::Released => {
                        infra = None;
                        released = true;
                    }
                    SandboxChange::RemovalRecorded => removal_recorded = true,
                }
                prop_assert_eq!(state.infra(), infra);
                prop_assert_eq!(state.is_released(), released);
                prop_assert_eq!(state.is_ending(), ended && !released);
                prop_assert_eq!(state.is_removal_recorded(), removal_recorded);
            }
        }
    }
}
