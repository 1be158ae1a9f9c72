//! This node as a worker of a swarm, or of none.
//!
//! ```text
//! not joined ──join──► joining ──► member ◄─► ended: removed, expired, unusable, its disk hangs
//!      ▲                  │          │          │
//!      └──────leave───────┴──────────┴──────────┘
//! ```
//!
//! One actor does everything, one thing after the other. Whatever it has begun is on disk, so that it
//! continues after a restart of the daemon. A node that has left a swarm, or was removed from it, joins none
//! by itself.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_core::gateway::Scope;
use switchyard_core::operation::{Caller, Operations};
use switchyard_core::reload::Reloadable;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::Error;
use crate::executor::{MakeExecutor, MemberName};
use crate::join::JoinRequest;
use crate::report::AgentReport;
use crate::store::Departure;
use crate::waiting::{WaitingService, WaitingServices};

mod activities;
mod actor;
#[cfg(test)]
mod tests;
mod token_file;

pub use actor::NodeActor;

/// Maximum number of requests that wait for the actor, which answers each at once.
const COMMANDS_MAX: usize = 16;

/// Dependencies of the actor.
pub struct NodeParts {
    /// The directory of the membership.
    pub dir: PathBuf,
    /// The join that the configuration requests.
    pub join_by_file: Option<JoinByFile>,
    /// The objects of Swarm.
    pub scope: Scope,
    /// Registry of the joins and leaves in progress.
    pub operations: Operations,
    /// Factory of the executors that run tasks.
    pub maker: Arc<dyn MakeExecutor>,
    /// For how long an image of the swarm stays that no task uses; `None`: for ever.
    pub image_retention: Reloadable<Option<Duration>>,
    /// The services whose tasks cannot begin, as the executors note them.
    pub waiting: WaitingServices,
}

/// A join that the configuration asks for.
#[derive(Debug, Clone)]
pub struct JoinByFile {
    /// The file with the token.
    pub token_file: PathBuf,
    /// The managers.
    pub managers: Vec<String>,
    /// The availability to begin with.
    pub availability: Availability,
}

/// The handle to the actor. Clones share it.
#[derive(Debug, Clone)]
pub struct SwarmNode {
    commands: mpsc::Sender<NodeCommand>,
    state: watch::Receiver<NodeState>,
    waiting: WaitingServices,
}

/// Channel for the result of a request.
type Reply = oneshot::Sender<Result<(), Error>>;

/// A request to the actor.
#[derive(Debug)]
enum NodeCommand {
    Join {
        request: JoinRequest,
        caller: Option<Caller>,
        reply: Reply,
    },
    Leave {
        caller: Option<Caller>,
        reply: Reply,
    },
}

/// The state of the node.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    /// In which part of the diagram.
    pub phase: NodePhase,
    /// Since when.
    pub since: SystemTime,
    /// Sessions opened since the start of the daemon.
    pub sessions: u64,
    /// Sessions that have failed or could not be opened since then.
    pub failures: u64,
    /// The error of the last requested join or leave, until the next one.
    pub refusal: Option<String>,
    /// The services whose tasks this node was given and cannot begin.
    pub waiting: Vec<WaitingService>,
}

/// The phase of the node's membership.
#[derive(Debug, Clone)]
pub enum NodePhase {
    /// It is in no swarm, and does not try to.
    NotJoined {
        /// The swarm that it was in.
        departure: Option<Departure>,
    },
    /// It joins one.
    Joining {
        /// The reason why it has not succeeded yet.
        error: Option<String>,
    },
    /// It is in one.
    Member(AgentReport),
    /// It leaves one.
    Leaving(Option<MemberName>),
    /// It is no working member of the one that it was in. If that is because of the clock or of a disk that hangs, it goes
    /// on by itself once that has passed; otherwise an operator has to let it leave.
    Ended {
        /// The membership, if it is still known.
        member: Option<MemberName>,
        /// The cause.
        error: String,
    },
}

/// [`NodeStatus`] as the actor has it.
#[derive(Debug, Clone)]
struct NodeState {
    phase: CurrentPhase,
    since: SystemTime,
    /// Sessions and failures counted by earlier agents.
    sessions: u64,
    failures: u64,
    refusal: Option<String>,
}

/// [`NodePhase`] as the actor has it: the report of a member changes by itself.
#[derive(Debug, Clone)]
enum CurrentPhase {
    NotJoined {
        departure: Option<Departure>,
    },
    Joining {
        error: Option<String>,
        is_asked_for: bool,
    },
    Member(watch::Receiver<AgentReport>),
    Leaving(Option<MemberName>),
    Ended {
        member: Option<MemberName>,
        error: String,
    },
}

impl fmt::Debug for NodeParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeParts")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

// === impl SwarmNode ===

impl SwarmNode {
    /// The handle, and the actor that has to be run.
    #[must_use]
    pub fn new(parts: NodeParts) -> (Self, NodeActor) {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (state, shown) = watch::channel(NodeState::new());
        (
            Self {
                commands,
                state: shown,
                waiting: parts.waiting.clone(),
            },
            NodeActor::new(parts, received, state),
        )
    }

    /// Joins a swarm, for the current caller. If dropped, the join continues.
    ///
    /// # Errors
    /// - As [`join`](crate::join()).
    /// - [`Error::StillMember`], [`Error::Busy`], [`Error::Abandoned`], [`Error::Stopping`].
    pub async fn join(&self, request: JoinRequest) -> Result<(), Error> {
        self.ask(|caller, reply| NodeCommand::Join {
            request,
            caller,
            reply,
        })
        .await
    }

    /// Ends and removes the tasks of the swarm, gives up its images, and forgets it, for the current caller. The managers are not
    /// notified, because SwarmKit has no call for it. If dropped, the leave continues.
    ///
    /// # Errors
    /// - [`Error::NotJoined`], [`Error::Busy`], [`Error::TasksLeft`], [`Error::Stopping`].
    /// - [`Error::File`]: a part of the membership is left; another leave removes it.
    pub async fn leave(&self) -> Result<(), Error> {
        self.ask(|caller, reply| NodeCommand::Leave { caller, reply })
            .await
    }

    /// Returns the state of the node.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            waiting: self.waiting.list(),
            ..self.state.borrow().status()
        }
    }

    async fn ask(
        &self,
        command: impl FnOnce(Option<Caller>, Reply) -> NodeCommand,
    ) -> Result<(), Error> {
        let (reply, result) = oneshot::channel();
        self.commands
            .send(command(Caller::current(), reply))
            .await
            .map_err(|_| Error::Stopping)?;
        result.await.map_err(|_| Error::Stopping)?
    }
}

// === impl NodeStatus ===

impl NodeStatus {
    /// Returns the problems that need an operator, each with its remedy.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = match &self.phase {
            NodePhase::NotJoined { departure: _ } | NodePhase::Leaving(_) => Vec::new(),
            NodePhase::Joining { error } => error.iter().cloned().collect(),
            NodePhase::Member(report) => report.problems(),
            NodePhase::Ended { member: _, error } => vec![error.clone()],
        };
        problems.extend(self.refusal.clone());
        problems
    }
}

// === impl NodeState ===

impl NodeState {
    fn new() -> Self {
        let phase = CurrentPhase::NotJoined { departure: None };
        Self {
            phase,
            since: SystemTime::now(),
            sessions: 0,
            failures: 0,
            refusal: None,
        }
    }

    fn status(&self) -> NodeStatus {
        let Self {
            phase,
            since,
            mut sessions,
            mut failures,
            refusal,
        } = self.clone();
        let phase = match phase {
            CurrentPhase::NotJoined { departure } => NodePhase::NotJoined { departure },
            CurrentPhase::Joining {
                error,
                is_asked_for: _,
            } => NodePhase::Joining { error },
            CurrentPhase::Member(report) => {
                let report = report.borrow().clone();
                sessions += report.sessions;
                failures += report.failures;
                NodePhase::Member(report)
            }
            CurrentPhase::Leaving(member) => NodePhase::Leaving(member),
            CurrentPhase::Ended { member, error } => NodePhase::Ended { member, error },
        };
        NodeStatus {
            phase,
            since,
            sessions,
            failures,
            refusal,
            waiting: Vec::new(),
        }
    }

    /// Enters a phase. What the agent of the former one has counted is kept.
    fn enter(&mut self, phase: CurrentPhase) {
        if let CurrentPhase::Member(report) = &self.phase {
            let report = report.borrow();
            self.sessions += report.sessions;
            self.failures += report.failures;
        }
        self.phase = phase;
        self.since = SystemTime::now();
        self.refusal = None;
    }
}
