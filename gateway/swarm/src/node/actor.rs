//! The actor: begins activities, and follows their ends and the requests of operators.
//!
//! Longer than 500 lines because one actor handles all its messages here.

use std::sync::Arc;
use std::time::Duration;

use switchyard_core::gateway::Scope;
use switchyard_core::operation::{Caller, Operations};
use switchyard_core::reload::Reloadable;
use tokio::sync::{mpsc, watch};

use super::activities::{self, Activity, ActivityEnd, StoredState};
use super::{CurrentPhase, JoinByFile, NodeCommand, NodeParts, NodeState, Reply};
use crate::agent::Agent;
use crate::error::Error;
use crate::executor::{Executor, MakeExecutor, MemberName};
use crate::identity::Identity;
use crate::image_retention::ImageRetention;
use crate::join::JoinRequest;
use crate::log_rotation::LogRotator;
use crate::session::reports::Reports;
use crate::store::{Departure, DepartureCause, Store};

/// Runs the node's membership.
pub struct NodeActor {
    store: Store,
    join_by_file: Option<JoinByFile>,
    scope: Scope,
    operations: Operations,
    maker: Arc<dyn MakeExecutor>,
    image_retention: Reloadable<Option<Duration>>,
    commands: mpsc::Receiver<NodeCommand>,
    state: watch::Sender<NodeState>,
    /// The executor of the present or the last membership, until all of its tasks are removed.
    executor: Option<CurrentExecutor>,
    /// The caller that waits for the join or leave in progress.
    waiting: Option<Reply>,
}

/// An executor, and where the statuses of its tasks go.
#[derive(Clone)]
struct CurrentExecutor {
    executor: Arc<dyn Executor>,
    reports: Arc<Reports>,
}

impl std::fmt::Debug for NodeActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeActor")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

// === impl NodeActor ===

impl NodeActor {
    pub(super) fn new(
        parts: NodeParts,
        commands: mpsc::Receiver<NodeCommand>,
        state: watch::Sender<NodeState>,
    ) -> Self {
        let NodeParts {
            dir,
            join_by_file,
            scope,
            operations,
            maker,
            image_retention,
            // Of the handle.
            waiting: _,
        } = parts;
        Self {
            store: Store::new(dir),
            join_by_file,
            scope,
            operations,
            maker,
            image_retention,
            commands,
            state,
            executor: None,
            waiting: None,
        }
    }

    /// The files of the membership, whose writes a test holds.
    #[cfg(test)]
    pub(crate) const fn store(&self) -> &Store {
        &self.store
    }

    /// Continues from the stored state, obeys requests, rotates the logs of tasks, and removes images that none
    /// uses, until there is no handle any more. If dropped, managers are not notified, tasks continue, and the next run continues
    /// with everything.
    pub async fn run(self) {
        // Tasks run on while the node has no membership that works.
        let rotation = LogRotator::new(self.scope.clone()).run();
        let retention = self.image_retention.clone();
        let removal = ImageRetention::new(self.scope.clone(), retention).run();
        tokio::select! {
            never = rotation => match never {},
            never = removal => match never {},
            () = self.act() => {}
        }
    }

    async fn act(mut self) {
        let mut activity = self.begin().await;
        loop {
            tokio::select! {
                end = &mut activity => activity = self.follow(end).await,
                command = self.commands.recv() => match command {
                    Some(command) => {
                        if let Some(next) = self.obey(command) {
                            activity = next;
                        }
                    }
                    None => return,
                },
            }
        }
    }

    /// Continues from the stored state.
    async fn begin(&mut self) -> Activity {
        let stored = self.store.run(activities::load_at_start).await;
        self.go_on_if_read(stored).await
    }

    async fn go_on_if_read(&mut self, stored: Result<StoredState, Error>) -> Activity {
        match stored {
            Ok(stored) => self.go_on(stored).await,
            Err(error) => self.ended(None, error),
        }
    }

    async fn go_on(&mut self, stored: StoredState) -> Activity {
        let is_leaving = stored.unfinished_departure().is_some();
        let StoredState {
            identity,
            departure,
            has_unfinished_join,
        } = stored;
        let departure = match departure {
            Ok(departure) => departure,
            // With a certificate, its own state is the more specific answer.
            Err(error) if matches!(identity, Ok(None)) => return self.ended(None, error),
            Err(_) => None,
        };
        let member = match &identity {
            Ok(Some(identity)) => Some(name_of(identity)),
            Ok(None) | Err(_) => None,
        };
        match (identity, departure) {
            (_, Some(departure)) if is_leaving => {
                if !self.is_leaving() {
                    tracing::info!(
                        node = departure.node,
                        "this node continues to leave its swarm"
                    );
                }
                self.leave(member, departure, None)
            }
            (Ok(Some(_)), Some(departure)) => self.ended(
                member,
                Error::Removed {
                    node: departure.node,
                },
            ),
            (Ok(Some(identity)), None) => self.member(identity).await,
            (Err(error), _) => self.ended(member, error),
            (Ok(None), departure) => self.not_a_member(departure, has_unfinished_join),
        }
    }

    /// Joins if that was begun before, or the configuration has it.
    fn not_a_member(
        &mut self,
        departure: Option<Departure>,
        has_unfinished_join: Result<bool, Error>,
    ) -> Activity {
        let has_unfinished_join = match has_unfinished_join {
            Ok(has_one) => has_one,
            // Another join would make another node, and the file may be of a later version, which continues it.
            Err(error) => return self.ended(None, error),
        };
        let joining = CurrentPhase::Joining {
            error: None,
            is_asked_for: false,
        };
        match (&self.join_by_file, &departure) {
            (Some(file), None) => {
                let file = file.clone();
                self.enter(joining);
                activities::join_by_file(
                    self.store.clone(),
                    self.operations.clone(),
                    file,
                    self.state.clone(),
                )
            }
            (_, _) if has_unfinished_join => {
                self.enter(joining);
                activities::resume(
                    self.store.clone(),
                    self.operations.clone(),
                    self.state.clone(),
                )
            }
            (by_file, Some(Departure { node, .. })) => {
                if by_file.is_some() {
                    tracing::info!(
                        node,
                        "swarm.join_token_file is not used: this node has left a swarm, so that only `switchyard \
                         swarm join` lets it join again"
                    );
                }
                self.enter(CurrentPhase::NotJoined { departure });
                activities::rest()
            }
            (None, None) => {
                self.enter(CurrentPhase::NotJoined { departure: None });
                activities::rest()
            }
        }
    }

    /// Continues after a failed join, which may have stored the certificate before it failed: the files on
    /// disk decide which state the node is in.
    async fn after_failed_join(&mut self, error: &Error) -> Activity {
        if let Error::DiskLate { path } = error {
            return self.ended(None, Error::DiskLate { path: path.clone() });
        }
        let stored = match self.store.run(activities::load).await {
            Ok(stored) => stored,
            Err(error) => return self.ended(None, error),
        };
        if !matches!(stored.identity, Ok(None)) || stored.has_unfinished_join.is_err() {
            return self.go_on(stored).await;
        }
        self.enter(CurrentPhase::NotJoined {
            departure: stored.departure.unwrap_or_default(),
        });
        activities::rest()
    }

    /// Continues after a failed leave. A stored leave can only be retried, after a pause: a read-only disk
    /// fails each try at once.
    async fn after_failed_leave(&mut self) -> Activity {
        match self.store.run(activities::load).await {
            Ok(stored) => match stored.unfinished_departure() {
                Some(departure) => self.leave_again(departure),
                None => self.go_on(stored).await,
            },
            Err(error) => self.ended(None, error),
        }
    }

    /// Follows the end of an activity.
    async fn follow(&mut self, end: ActivityEnd) -> Activity {
        match end {
            ActivityEnd::Joined(Ok(Some(identity))) => {
                let next = self.member(identity).await;
                self.answer(Ok(()));
                next
            }
            ActivityEnd::Joined(Ok(None)) => {
                let error =
                    "the swarm does not know the node of the join that was interrupted; join again"
                        .to_owned();
                tracing::error!(error, "this node has not joined its swarm");
                self.enter(CurrentPhase::NotJoined { departure: None });
                self.state.send_modify(|state| state.refusal = Some(error));
                activities::rest()
            }
            ActivityEnd::Joined(Err(error)) => {
                tracing::error!(error = error.report(), "this node has not joined the swarm");
                let next = self.after_failed_join(&error).await;
                self.refuse(error);
                next
            }
            ActivityEnd::LookedAgain(stored) => self.go_on_if_read(stored).await,
            ActivityEnd::Ended(error) => {
                let member = self.member_name();
                if let (Error::Removed { .. }, Some(MemberName { cluster, node })) =
                    (&error, member.clone())
                {
                    let departure = Departure {
                        cluster,
                        node,
                        cause: DepartureCause::Removed,
                    };
                    if let Err(error) = self
                        .store
                        .run(move |store| store.save_departure(&departure))
                        .await
                    {
                        // The next start asks a manager, and receives the removal again.
                        tracing::warn!(
                            error = error.report(),
                            "cannot store that this node was removed"
                        );
                    }
                }
                self.ended(member, error)
            }
            ActivityEnd::Left(Ok(departure)) => {
                tracing::info!(
                    node = departure.node,
                    cluster = departure.cluster,
                    "this node has left its swarm; `docker node rm` on a manager removes it from the list of nodes"
                );
                // Its tasks are removed, and nobody works on one any more.
                self.executor = None;
                self.enter(CurrentPhase::NotJoined {
                    departure: Some(departure),
                });
                self.answer(Ok(()));
                activities::rest()
            }
            ActivityEnd::Left(Err(error)) => {
                activities::show_not_left(&self.state, &error);
                let next = self.after_failed_leave().await;
                self.refuse(error);
                next
            }
        }
    }

    /// Begins the requested activity; `None` if it is refused, which is sent to the caller.
    fn obey(&mut self, command: NodeCommand) -> Option<Activity> {
        let (result, reply) = match command {
            NodeCommand::Join {
                request,
                caller,
                reply,
            } => (self.join(request, caller), reply),
            NodeCommand::Leave { caller, reply } => (self.leave_as_asked(caller), reply),
        };
        match result {
            Ok(activity) => {
                self.waiting = Some(reply);
                Some(activity)
            }
            Err(error) => {
                // The caller may be gone.
                let _ = reply.send(Err(error));
                None
            }
        }
    }

    fn join(&mut self, request: JoinRequest, caller: Option<Caller>) -> Result<Activity, Error> {
        match &self.state.borrow().phase {
            CurrentPhase::NotJoined { .. }
            | CurrentPhase::Joining {
                is_asked_for: false,
                ..
            } => {}
            CurrentPhase::Joining { .. } => return Err(Error::Busy { doing: "joining" }),
            CurrentPhase::Leaving(_) => return Err(Error::Busy { doing: "leaving" }),
            CurrentPhase::Member(report) => {
                let report = report.borrow();
                return Err(Error::AlreadyJoined {
                    node: report.node.clone(),
                    cluster: report.cluster.clone(),
                });
            }
            CurrentPhase::Ended { member: _, error } => {
                return Err(Error::StillMember {
                    reason: error.clone(),
                });
            }
        }
        self.enter(CurrentPhase::Joining {
            error: None,
            is_asked_for: true,
        });
        Ok(activities::join_as_asked(
            self.store.clone(),
            &self.operations,
            request,
            caller,
        ))
    }

    fn leave_as_asked(&mut self, caller: Option<Caller>) -> Result<Activity, Error> {
        let member = match &self.state.borrow().phase {
            CurrentPhase::NotJoined { .. } => return Err(Error::NotJoined),
            CurrentPhase::Leaving(_) => return Err(Error::Busy { doing: "leaving" }),
            CurrentPhase::Joining { .. } => None,
            CurrentPhase::Member(report) => Some(member_of(report)),
            CurrentPhase::Ended { member, .. } => member.clone(),
        };
        self.answer(Err(Error::Abandoned));
        let MemberName { cluster, node } = member.clone().unwrap_or_default();
        let departure = Departure {
            cluster,
            node,
            cause: DepartureCause::Left,
        };
        Ok(self.leave(member, departure, caller))
    }

    fn leave(
        &mut self,
        member: Option<MemberName>,
        departure: Departure,
        caller: Option<Caller>,
    ) -> Activity {
        let is_new = self.executor.is_none();
        let CurrentExecutor {
            executor,
            reports: _,
        } = self.current_executor();
        if let Some(member) = member.as_ref().filter(|_| is_new) {
            executor.serve(member);
        }
        // One that is tried again is the same leave: since when, and why it has failed, stays.
        if !self.is_leaving() {
            self.enter(CurrentPhase::Leaving(member));
        }
        activities::leave(
            self.store.clone(),
            &self.operations,
            (executor, self.scope.clone()),
            departure,
            caller,
        )
    }

    fn leave_again(&mut self, departure: &Departure) -> Activity {
        let CurrentExecutor {
            executor,
            reports: _,
        } = self.current_executor();
        let state = self.state.clone();
        activities::leave_again(
            self.store.clone(),
            &self.operations,
            (executor, self.scope.clone()),
            departure,
            state,
        )
    }

    /// The node is a member.
    async fn member(&mut self, identity: Identity) -> Activity {
        let member = name_of(&identity);
        let CurrentExecutor { executor, reports } = self.current_executor();
        executor.serve(&member);
        match Agent::new(self.store.clone(), identity, executor, reports).await {
            Ok(agent) => {
                self.enter(CurrentPhase::Member(agent.report()));
                activities::be_member(self.scope.clone(), agent)
            }
            Err(error) => self.ended(Some(member), error),
        }
    }

    /// The executor. One that is there is kept, whatever has become of its membership: it may still be removing tasks, and
    /// beside it another one would run what this one removes.
    fn current_executor(&mut self) -> CurrentExecutor {
        let maker = &self.maker;
        let current = self.executor.get_or_insert_with(|| {
            let reports = Arc::<Reports>::default();
            CurrentExecutor {
                executor: maker.make(Arc::clone(&reports)),
                reports,
            }
        });
        current.clone()
    }

    /// Enters the phase in which the node can be no member until an operator acts, the clock is set, or the
    /// disk answers. If the stored name is unreadable, that of the phase before is kept.
    fn ended(&mut self, member: Option<MemberName>, error: Error) -> Activity {
        let text = error.report();
        let is_known = matches!(&self.state.borrow().phase, CurrentPhase::Ended { error, .. } if *error == text);
        if !is_known {
            tracing::error!(error = text, "this node is no working member of its swarm");
            let member = member.or_else(|| self.member_name());
            self.enter(CurrentPhase::Ended {
                member,
                error: text,
            });
        }
        if error.may_pass() {
            activities::look_again(self.store.clone())
        } else {
            activities::rest()
        }
    }

    fn member_name(&self) -> Option<MemberName> {
        match &self.state.borrow().phase {
            CurrentPhase::Member(report) => Some(member_of(report)),
            CurrentPhase::Leaving(member) | CurrentPhase::Ended { member, error: _ } => {
                member.clone()
            }
            CurrentPhase::NotJoined { .. } | CurrentPhase::Joining { .. } => None,
        }
    }

    fn is_leaving(&self) -> bool {
        matches!(self.state.borrow().phase, CurrentPhase::Leaving(_))
    }

    fn enter(&self, phase: CurrentPhase) {
        self.state.send_modify(|state| state.enter(phase));
    }

    /// The join or leave has failed.
    fn refuse(&mut self, error: Error) {
        self.state
            .send_modify(|state| state.refusal = Some(error.report()));
        self.answer(Err(error));
    }

    /// Answers who waits for the end of a join or leave; the caller may be gone.
    fn answer(&mut self, result: Result<(), Error>) {
        if let Some(reply) = self.waiting.take() {
            let _ = reply.send(result);
        }
    }
}

fn name_of(identity: &Identity) -> MemberName {
    MemberName {
        cluster: identity.cluster().to_owned(),
        node: identity.node().to_owned(),
    }
}

fn member_of(report: &watch::Receiver<crate::report::AgentReport>) -> MemberName {
    let report = report.borrow();
    MemberName {
        cluster: report.cluster.clone(),
        node: report.node.clone(),
    }
}
