//! One session with a manager: everything that goes over one connection while the node is registered.
//!
//! ```text
//! Session ───────► managers, roots, renewals          describes the node, again when it changes
//! Heartbeat ─────► the period of the next one
//! Assignments ───► executor
//! Reports ───────► UpdateTaskStatus
//! log_broker ────► logs for clients
//! ```
//!
//! The five run side by side in one asynchronous task. The first failure of any of them but the logs ends the
//! session, and with it the others: nothing of a session is left when [`run`] returns.

use std::sync::Arc;
use std::time::Duration;

use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::dispatcher_client::DispatcherClient;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use crate::connection::Connection;
use crate::error::Error;
use crate::executor::Executor;
use crate::identity::Identity;
use crate::log_broker;
use crate::managers::Peer;
use crate::membership::Membership;
use crate::status::{Reaction, reaction};
use assignments::Assignments;
use description::NodeFacts;
use reports::{Reports, StatusUpdate};

mod assigning;
pub(crate) mod assignments;
pub(crate) mod description;
pub(crate) mod pace;
pub(crate) mod reports;

/// Limit for a manager to register the node: it does so with the next write of its store.
const REGISTER_LIMIT: Duration = Duration::from_secs(5);

/// Limits for an answer to a heartbeat or to statuses, and for the first assignments.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const ASSIGNMENTS_LIMIT: Duration = Duration::from_secs(10);

/// The period of heartbeats if a manager names none, and the limits of what it may name.
const PERIOD: Duration = Duration::from_secs(5);
const PERIOD_MIN: Duration = Duration::from_millis(500);
const PERIOD_MAX: Duration = Duration::from_secs(3600);

/// The least time between two descriptions of the node: each is a write in the managers' store.
const DESCRIBE_PAUSE: Duration = Duration::from_secs(10);

/// Pause before assignments are requested again because a message was missing.
const RESYNC_PAUSE: Duration = Duration::from_secs(1);

/// The largest message with assignments. The first of a session has all tasks, secrets and configs of the node at once, and a
/// config has up to a MiB; docker's agents take any size, so that what managers have sent them is more than 4 MiB. How much memory
/// it takes once it is decoded is bounded as for each message.
const ASSIGNMENTS_MAX: usize = 64 << 20;

/// The longest id of a session. They have 25 characters.
const SESSION_ID_MAX: usize = 128;

/// Dependencies of a session.
pub(crate) struct SessionContext<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) membership: &'a Membership,
    /// The identity that the connection was opened with.
    pub(crate) identity: &'a Identity,
    pub(crate) executor: &'a Arc<dyn Executor>,
    pub(crate) reports: &'a Reports,
}

/// Receiver of a session's events.
pub(crate) trait SessionObserver: Sync {
    /// The node is registered.
    fn opened(&self);
    /// The cluster has changed whether it wants this node to be a manager.
    fn promoted(&self, is_promoted: bool);
}

/// The reason why a session is over.
#[derive(Debug)]
pub(crate) enum SessionEnd {
    /// It has failed, or could not be opened.
    Failed(Error),
    /// The identity has changed: the next session uses the new one.
    Certificate,
}

/// A registered node.
struct Session<'a> {
    context: &'a SessionContext<'a>,
    observer: &'a dyn SessionObserver,
    id: String,
}

type Messages = Streaming<swarm::SessionMessage>;

/// Registers the node, and serves the session until it is over. If dropped, the connection is closed, and the
/// manager is not notified.
pub(crate) async fn run(
    context: &SessionContext<'_>,
    assigned: &mut Assignments,
    observer: &dyn SessionObserver,
) -> SessionEnd {
    let mut identity = context.membership.watch();
    if !identity.borrow_and_update().is_same(context.identity) {
        return SessionEnd::Certificate;
    }
    let mut facts = context.executor.facts();
    let known = facts.borrow_and_update().clone();
    let (messages, first) = match open(context, &known, "").await {
        Ok(opened) => opened,
        Err(error) => return SessionEnd::Failed(error),
    };
    let session = match Session::new(context, observer, &first) {
        Ok(session) => session,
        Err(error) => return SessionEnd::Failed(error),
    };
    observer.opened();
    context.reports.begin_session();
    let logs = log_broker::serve(
        context.connection,
        context.identity.node(),
        context.executor,
    );
    let error = tokio::select! {
        _ = identity.changed() => return SessionEnd::Certificate,
        error = session.messages(first, messages, facts) => error,
        error = session.heartbeats() => error,
        error = session.assignments(assigned) => error,
        error = session.statuses() => error,
        never = logs => match never {},
    };
    SessionEnd::Failed(error)
}

/// Opens a Session stream, and returns its first message.
async fn open(
    context: &SessionContext<'_>,
    facts: &NodeFacts,
    id: &str,
) -> Result<(Messages, swarm::SessionMessage), Error> {
    let description = description::to_proto(facts, context.identity.tls_info());
    let request = swarm::SessionRequest {
        description: Some(description),
        session_id: id.to_owned(),
    };
    let mut client = client(context.connection);
    let opened = async {
        let mut messages = client.session(request).await?.into_inner();
        let first = messages.message().await?.ok_or_else(ended)?;
        Ok(Response::new((messages, first)))
    };
    context
        .connection
        .answer("Session", REGISTER_LIMIT, opened)
        .await
}

fn client(connection: &Connection) -> DispatcherClient<Channel> {
    DispatcherClient::new(connection.channel())
}

/// The status of a stream that its manager has ended without one.
fn ended() -> Status {
    Status::new(Code::Aborted, "the manager has ended the stream")
}

// === impl Session ===

impl<'a> Session<'a> {
    fn new(
        context: &'a SessionContext<'a>,
        observer: &'a dyn SessionObserver,
        first: &swarm::SessionMessage,
    ) -> Result<Self, Error> {
        let id = first.session_id.clone();
        if id.is_empty() || id.len() > SESSION_ID_MAX {
            return Err(Error::InvalidAnswer {
                manager: context.connection.manager().to_owned(),
                call: "Session",
                reason: format!("the id of the session has {} bytes", id.len()),
            });
        }
        Ok(Self {
            context,
            observer,
            id,
        })
    }

    /// Follows the Session stream, and describes the node again when it has changed.
    async fn messages(
        &self,
        first: swarm::SessionMessage,
        mut messages: Messages,
        mut facts: watch::Receiver<NodeFacts>,
    ) -> Error {
        if let Err(error) = self.take(first).await {
            return error;
        }
        let mut described = Instant::now();
        let mut is_outdated = false;
        let mut is_final = false;
        loop {
            let message = tokio::select! {
                message = messages.message() => message,
                changed = facts.changed(), if !is_outdated && !is_final => {
                    is_outdated = changed.is_ok();
                    is_final = changed.is_err();
                    continue;
                }
                () = sleep_until(described + DESCRIBE_PAUSE), if is_outdated => {
                    let known = facts.borrow_and_update().clone();
                    match open(self.context, &known, &self.id).await {
                        Ok((stream, message)) => {
                            messages = stream;
                            (described, is_outdated) = (Instant::now(), false);
                            Ok(Some(message))
                        }
                        Err(error) => return error,
                    }
                }
            };
            let taken = match message {
                Ok(Some(message)) => self.take(message).await,
                Ok(None) => Err(self.refused("Session", ended())),
                Err(status) => Err(self.refused("Session", status)),
            };
            if let Err(error) = taken {
                return error;
            }
        }
    }

    /// Acts on a message of the Session stream.
    async fn take(&self, message: swarm::SessionMessage) -> Result<(), Error> {
        // The keys are of overlay networks.
        let swarm::SessionMessage {
            session_id,
            node,
            managers,
            network_bootstrap_keys: _,
            root_ca,
        } = message;
        if session_id != self.id {
            return Err(self.refused(
                "Session",
                Status::new(Code::Aborted, "the manager has changed the session"),
            ));
        }
        let SessionContext {
            membership,
            identity,
            ..
        } = self.context;
        let peers = managers.into_iter().filter_map(|manager| manager.peer);
        membership
            .told_managers(peers.map(|peer| Peer {
                node: peer.node_id,
                address: peer.addr,
            }))
            .await;
        let node = node.unwrap_or_default();
        let desired = node.spec.as_ref().map(swarm::NodeSpec::desired_role);
        let manager = swarm::NodeRole::Manager;
        self.observer
            .promoted(node.role() == manager || desired == Some(manager));
        let state = node
            .certificate
            .and_then(|certificate| certificate.status)
            .unwrap_or_default()
            .state();
        if state == swarm::issuance_status::State::Rotate {
            membership.ask_for_renewal(identity);
        }
        match membership.offered_roots(&root_ca).await {
            Ok(true) => {}
            Ok(false) => membership.ask_for_renewal(identity),
            Err(error) => {
                tracing::warn!(
                    error = error.report(),
                    "the root certificates of the swarm are not changed"
                )
            }
        }
        Ok(())
    }

    /// Sends heartbeats at the interval that the manager chooses.
    async fn heartbeats(&self) -> Error {
        let mut client = client(self.context.connection);
        loop {
            let request = swarm::HeartbeatRequest {
                session_id: self.id.clone(),
            };
            let call = client.heartbeat(request);
            match self
                .context
                .connection
                .answer("Heartbeat", ANSWER_LIMIT, call)
                .await
            {
                Ok(swarm::HeartbeatResponse { period }) => sleep(period_of(period)).await,
                Err(error) => return error,
            }
        }
    }

    /// Sends the statuses of tasks.
    async fn statuses(&self) -> Error {
        loop {
            let batch = self.context.reports.next().await;
            if let Err(error) = self.send(&batch).await {
                return error;
            }
        }
    }

    async fn send(&self, batch: &[StatusUpdate]) -> Result<(), Error> {
        let reports = self.context.reports;
        match self.update(batch).await {
            Ok(()) => reports.sent(batch),
            Err(Error::Refused { status, .. }) if is_of_another_node(&status) => {
                // One update refuses them all: each is sent alone.
                for update in batch.chunks(1) {
                    match self.update(update).await {
                        Err(Error::Refused { status, .. }) if is_of_another_node(&status) => {
                            let task = &update[0].task_id;
                            tracing::warn!(
                                swarm_task = task,
                                reason = status.message(),
                                "the swarm refuses the status of a task"
                            );
                        }
                        result => result?,
                    }
                    reports.sent(update);
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn update(&self, updates: &[StatusUpdate]) -> Result<(), Error> {
        let request = swarm::UpdateTaskStatusRequest {
            session_id: self.id.clone(),
            updates: updates.to_owned(),
        };
        let mut client = client(self.context.connection);
        let call = client.update_task_status(request);
        let answer = self
            .context
            .connection
            .answer("UpdateTaskStatus", ANSWER_LIMIT, call)
            .await?;
        let swarm::UpdateTaskStatusResponse {} = answer;
        Ok(())
    }

    fn refused(&self, call: &'static str, status: Status) -> Error {
        let manager = self.context.connection.manager().to_owned();
        Error::Refused {
            manager,
            call,
            status: Box::new(status),
        }
    }
}

/// Returns whether statuses were refused because a task belongs to another node.
fn is_of_another_node(status: &Status) -> bool {
    status.code() == Code::PermissionDenied && reaction(status) != Reaction::Removed
}

/// Returns the interval of heartbeats.
fn period_of(period: Option<prost_types::Duration>) -> Duration {
    // The conversion of prost overflows for the most negative number.
    let period = period.and_then(|prost_types::Duration { seconds, nanos }| {
        Some(Duration::new(
            u64::try_from(seconds).ok()?,
            u32::try_from(nanos).ok()?.min(999_999_999),
        ))
    });
    let period = period.filter(|period| !period.is_zero());
    period.map_or(PERIOD, |period| period.clamp(PERIOD_MIN, PERIOD_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn period_is_what_the_manager_says_within_reason() {
        let of = |seconds, nanos| period_of(Some(prost_types::Duration { seconds, nanos }));
        assert_eq!(of(5, 250_000_000), Duration::from_millis(5250));
        assert_eq!(of(0, 1), PERIOD_MIN);
        assert_eq!(of(i64::MAX, 0), PERIOD_MAX);
        for none in [of(0, 0), of(-5, 0), of(i64::MIN, i32::MIN), period_of(None)] {
            assert_eq!(none, PERIOD);
        }
    }
}
