//! Activities of the actor besides answering: each is a future whose result decides the next one.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_core::backoff::Backoff;
use switchyard_core::gateway::Scope;
use switchyard_core::id::Owner;
use switchyard_core::operation::{
    Caller, OperationKind, Operations, PendingOperation, Subject, plain_step,
};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::token_file::{FileStamp, TokenFile};
use super::{CurrentPhase, JoinByFile, NodeState};
use crate::agent::Agent;
use crate::error::Error;
use crate::executor::Executor;
use crate::identity::Identity;
use crate::image_retention;
use crate::join::{JoinRequest, is_passing, join, resume_join};
use crate::status::refuses_token;
use crate::store::{Departure, DepartureCause, Store};

/// The pauses between attempts to join that nobody waits for.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Interval at which an unusable token file is examined for changes.
const FOLLOW: Duration = Duration::from_secs(5);

/// The pause before what is stored is read again, also by a leave that has failed.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Limit for the removal of all tasks when the node leaves.
const REMOVAL_LIMIT: Duration = Duration::from_secs(180);

/// The result of an activity.
pub(super) enum ActivityEnd {
    /// A join; without an identity there is nothing to continue any more.
    Joined(Result<Option<Identity>, Error>),
    /// The agent of a membership, which only an error ends.
    Ended(Error),
    /// The stored state was read again, because it may be usable now.
    LookedAgain(Result<StoredState, Error>),
    /// A leave.
    Left(Result<Departure, Error>),
}

/// The actor's present activity. It may be dropped at any time.
pub(super) type Activity = Pin<Box<dyn Future<Output = ActivityEnd> + Send>>;

/// Nothing.
pub(super) fn rest() -> Activity {
    Box::pin(pending())
}

/// Waits until the clock may have been set right, or the disk may have recovered, and reads what is stored.
pub(super) fn look_again(store: Store) -> Activity {
    Box::pin(async move {
        sleep(LOOK_AGAIN).await;
        ActivityEnd::LookedAgain(store.run(load).await)
    })
}

/// Joins as somebody asks for it.
pub(super) fn join_as_asked(
    store: Store,
    operations: &Operations,
    request: JoinRequest,
    caller: Option<Caller>,
) -> Activity {
    let subject = Subject::argument(&request.managers.join(","));
    let operation = operations.begin(
        OperationKind::JoinSwarm,
        Some(Owner::Swarm),
        caller,
        subject,
    );
    Box::pin(async move {
        let work = Box::pin(join(&store, &request));
        ActivityEnd::Joined(operation.run_with(work, as_core).await.map(Some))
    })
}

/// Joins as the configuration has it, for as long as it takes.
pub(super) fn join_by_file(
    store: Store,
    operations: Operations,
    file: JoinByFile,
    state: watch::Sender<NodeState>,
) -> Activity {
    Box::pin(async move {
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        let token_file = TokenFile::new(file.token_file.clone());
        loop {
            let stamp = token_file.stamp().await;
            let error = match Box::pin(attempt(&store, &operations, &file, &token_file)).await {
                Ok(identity) => return ActivityEnd::Joined(Ok(Some(identity))),
                // The attempt before has failed after it had stored the membership.
                Err(Error::AlreadyJoined { .. }) => {
                    return ActivityEnd::LookedAgain(store.run(load).await);
                }
                Err(error) => error,
            };
            show(&state, &error);
            let needs_other_token = refuses_token(&error)
                || error.is_final()
                || matches!(error, Error::TokenFile { .. });
            if needs_other_token {
                wait_for_change(&token_file, stamp).await;
                backoff.reset();
            } else {
                backoff.wait().await;
            }
        }
    })
}

async fn attempt(
    store: &Store,
    operations: &Operations,
    file: &JoinByFile,
    token_file: &TokenFile,
) -> Result<Identity, Error> {
    let JoinByFile {
        token_file: _,
        managers,
        availability,
    } = file;
    let token = token_file.read().await?;
    let request = JoinRequest {
        managers: managers.clone(),
        token,
        availability: *availability,
    };
    let subject = Subject::argument(&managers.join(","));
    let operation = operations.begin(OperationKind::JoinSwarm, Some(Owner::Swarm), None, subject);
    operation
        .run_with(Box::pin(join(store, &request)), as_core)
        .await
}

async fn wait_for_change(file: &TokenFile, known: FileStamp) {
    while file.stamp().await == known {
        sleep(FOLLOW).await;
    }
}

/// Continues a join that a restart of the daemon has interrupted.
pub(super) fn resume(
    store: Store,
    operations: Operations,
    state: watch::Sender<NodeState>,
) -> Activity {
    Box::pin(async move {
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        loop {
            let subject = Subject::default();
            let operation =
                operations.begin(OperationKind::JoinSwarm, Some(Owner::Swarm), None, subject);
            match operation
                .run_with(Box::pin(resume_join(&store)), as_core)
                .await
            {
                Err(error) if is_passing(&error) || waits_for_certificate(&error) => {
                    show(&state, &error);
                    backoff.wait().await;
                }
                joined => return ActivityEnd::Joined(joined),
            }
        }
    })
}

/// Returns whether the certificate of an unfinished join may be usable later.
const fn waits_for_certificate(error: &Error) -> bool {
    matches!(
        error,
        Error::CertificateLate { .. } | Error::CertificateNotValidYet { .. }
    )
}

/// Reports why the node has not joined yet. The log has a warning whenever the reason changes.
fn show(state: &watch::Sender<NodeState>, error: &Error) {
    let text = error.report();
    let is_new = state.send_if_modified(|state| {
        if let CurrentPhase::Joining {
            error,
            is_asked_for: _,
        } = &mut state.phase
            && error.as_ref() != Some(&text)
        {
            *error = Some(text.clone());
            return true;
        }
        false
    });
    if is_new {
        tracing::warn!(error = text, "this node has not joined its swarm yet");
    }
}

/// Is a member, once it is known which tasks run.
pub(super) fn be_member(scope: Scope, agent: Agent) -> Activity {
    Box::pin(async move {
        scope.recovered().await;
        agent.recover().await;
        match Box::pin(agent.run(CancellationToken::new())).await {
            Err(error) => ActivityEnd::Ended(error),
            // Nobody cancels it: it is dropped.
            Ok(()) => pending().await,
        }
    })
}

/// Ends and removes the tasks, forgets the membership, and gives up the images.
pub(super) fn leave(
    store: Store,
    operations: &Operations,
    (executor, scope): (Arc<dyn Executor>, Scope),
    departure: Departure,
    caller: Option<Caller>,
) -> Activity {
    let operation = begin_leave(operations, &departure, caller);
    Box::pin(async move {
        let work = try_to_leave(&store, &*executor, &scope, &departure);
        ActivityEnd::Left(operation.run_with(work, as_core).await.map(|()| departure))
    })
}

/// Retries a stored leave that has failed, until it succeeds or is not stored any more. All tries are one
/// operation: a read-only disk may fail them for days.
pub(super) fn leave_again(
    store: Store,
    operations: &Operations,
    (executor, scope): (Arc<dyn Executor>, Scope),
    departure: &Departure,
    state: watch::Sender<NodeState>,
) -> Activity {
    let operation = begin_leave(operations, departure, None);
    let work = async move {
        loop {
            plain_step("wait_for_next_try", sleep(LOOK_AGAIN)).await;
            let stored = store.run(load).await?;
            let Some(departure) = stored.unfinished_departure().cloned() else {
                return Ok(ActivityEnd::LookedAgain(Ok(stored)));
            };
            match try_to_leave(&store, &*executor, &scope, &departure).await {
                Ok(()) => return Ok(ActivityEnd::Left(Ok(departure))),
                Err(error) => show_not_left(&state, &error),
            }
        }
    };
    Box::pin(async move {
        let done = operation.run_with(Box::pin(work), as_core).await;
        done.unwrap_or_else(|error| ActivityEnd::LookedAgain(Err(error)))
    })
}

fn begin_leave(
    operations: &Operations,
    departure: &Departure,
    caller: Option<Caller>,
) -> PendingOperation {
    let subject = Subject::argument(&departure.node);
    operations.begin(
        OperationKind::LeaveSwarm,
        Some(Owner::Swarm),
        caller,
        subject,
    )
}

/// A kill before the membership is forgotten leaves a member without tasks, which a leave that is asked for again continues.
/// One after it leaves images, which `switchyard images prune` removes: if they went first, which may take minutes, the node
/// would be a member again after a kill, and be given its tasks.
async fn try_to_leave(
    store: &Store,
    executor: &dyn Executor,
    scope: &Scope,
    departure: &Departure,
) -> Result<(), Error> {
    plain_step("remove_tasks", remove_tasks(executor)).await?;
    let left = departure.clone();
    store.run(move |store| store.leave(&left)).await?;
    plain_step("remove_images", image_retention::give_up_all(scope)).await;
    Ok(())
}

/// Reports why the node has not left yet. The log has an error whenever the reason changes.
pub(super) fn show_not_left(state: &watch::Sender<NodeState>, error: &Error) {
    let text = error.report();
    let is_new =
        state.send_if_modified(|state| state.refusal.replace(text.clone()).as_ref() != Some(&text));
    if is_new {
        tracing::error!(error = text, "this node has not left its swarm");
    } else {
        tracing::debug!(error = text, "this node has not left its swarm");
    }
}

async fn remove_tasks(executor: &dyn Executor) -> Result<(), Error> {
    let removed = timeout(REMOVAL_LIMIT, executor.remove_all()).await;
    let removed = removed.unwrap_or_else(|_| {
        let seconds = REMOVAL_LIMIT.as_secs();
        Err(switchyard_core::Error::deadline(format!(
            "they have not ended within {seconds} s"
        )))
    });
    removed.map_err(|cause| Error::TasksLeft { cause })
}

/// The stored state of the membership.
pub(super) struct StoredState {
    pub(super) identity: Result<Option<Identity>, Error>,
    pub(super) departure: Result<Option<Departure>, Error>,
    pub(super) has_unfinished_join: Result<bool, Error>,
}

impl StoredState {
    /// Returns the stored leave that is not complete.
    pub(super) fn unfinished_departure(&self) -> Option<&Departure> {
        let departure = self.departure.as_ref().ok()?.as_ref()?;
        let is_unfinished =
            departure.cause == DepartureCause::Left && !matches!(self.identity, Ok(None));
        is_unfinished.then_some(departure)
    }
}

/// Reads what is stored, after it has removed what a killed daemon has left of a write. Blocks on the file system.
pub(super) fn load_at_start(store: &Store) -> Result<StoredState, Error> {
    if let Err(error) = store.remove_drafts() {
        tracing::warn!(
            error = error.report(),
            "what an interrupted write has left of the membership cannot be removed"
        );
    }
    load(store)
}

/// Reads what is stored. Blocks on the file system.
pub(super) fn load(store: &Store) -> Result<StoredState, Error> {
    let identity = store.load(SystemTime::now());
    let has_unfinished_join = store.load_join().map(|join| join.is_some());
    Ok(StoredState {
        identity,
        departure: store.load_departure(),
        has_unfinished_join,
    })
}

fn as_core(error: &Error) -> switchyard_core::Error {
    switchyard_core::Error::new(error.kind(), error.report())
}
