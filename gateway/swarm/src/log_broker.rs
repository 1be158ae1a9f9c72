//! Publishes logs of tasks for clients of the swarm (`docker service logs`), as managers request them.
//!
//! ```text
//! ListenSubscriptions ─► LogRequest ─► Publisher, one for each subscription ─► PublishLogs
//!                                         └ TaskReader, one for each log
//! ```
//!
//! All of it belongs to one session, and ends with it: a manager repeats open subscriptions to the next
//! session. A manager that does not serve logs does not disturb the session.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::backoff::Backoff;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::log_broker_client::LogBrokerClient;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::connection::Connection;
use crate::executor::Executor;
use publisher::{NotRead, Publisher};
use request::{InvalidSubscription, LogRequest, SubscriptionChange};

mod publisher;
pub(crate) mod request;
mod task_reader;

/// Maximum number of subscriptions that are served at the same time.
const SUBSCRIPTIONS_MAX: usize = 64;

/// Maximum number of further subscriptions that are answered without logs.
const REFUSALS_MAX: usize = 64;

/// Number of ended subscriptions that are remembered, because a manager may repeat them.
const REMEMBERED_MAX: usize = 1024;

/// Maximum number of logs that are followed at the same time: each takes about 100 KiB.
const FOLLOWED_MAX: usize = 256;

/// Messages of a subscription that wait to be sent, each with one chunk of a log.
const QUEUE: usize = 1;

/// The largest message of a manager: thousands of ids.
const MESSAGE_MAX: usize = 1 << 20;

/// Limit for a manager to answer the end of a subscription.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The pauses before a stream of subscriptions is opened again.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Error of gRPC libraries for an answer without a message, as managers answer the end of a subscription.
const NO_MESSAGE: &str = "Missing response message";

/// Serves the subscriptions of one session.
struct LogBroker<'a> {
    connection: &'a Connection,
    node: Arc<str>,
    executor: &'a Arc<dyn Executor>,
    places: Arc<Semaphore>,
    /// The publishers of open subscriptions, by subscription id.
    running: BTreeMap<String, AbortHandle>,
    ids: BTreeMap<Id, String>,
    publishers: JoinSet<()>,
    /// The subscriptions that are over, the newest last.
    over: VecDeque<String>,
}

/// Serves the logs of this node to a manager until it is dropped.
pub(crate) async fn serve(
    connection: &Connection,
    node: &str,
    executor: &Arc<dyn Executor>,
) -> Infallible {
    let mut broker = LogBroker {
        connection,
        node: node.into(),
        executor,
        places: Arc::new(Semaphore::new(FOLLOWED_MAX)),
        running: BTreeMap::new(),
        ids: BTreeMap::new(),
        publishers: JoinSet::new(),
        over: VecDeque::new(),
    };
    let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
    loop {
        let status = broker.listen(&mut backoff).await;
        if status.code() == Code::Unimplemented {
            tracing::info!(
                manager = connection.manager(),
                "the manager serves no logs of services"
            );
            std::future::pending::<()>().await;
        }
        // The session shows whether the manager can be reached at all.
        tracing::debug!(manager = connection.manager(), %status, "the stream of log subscriptions is over");
        tokio::select! {
            () = backoff.wait() => {}
            () = broker.reap_all() => {}
        }
    }
}

// === impl LogBroker ===

impl LogBroker<'_> {
    /// Serves one stream of subscriptions until it ends.
    async fn listen(&mut self, backoff: &mut Backoff) -> Status {
        let client = LogBrokerClient::new(self.connection.channel());
        let mut client = client.max_decoding_message_size(MESSAGE_MAX);
        // Managers answer when there is a subscription, so that this has no deadline.
        let opening = client.listen_subscriptions(swarm::ListenSubscriptionsRequest {});
        tokio::pin!(opening);
        let mut messages = loop {
            tokio::select! {
                opened = &mut opening => match opened {
                    Ok(opened) => break opened.into_inner(),
                    Err(status) => return status,
                },
                () = self.reap() => {}
            }
        };
        loop {
            tokio::select! {
                message = messages.message() => match message {
                    Ok(Some(message)) => {
                        backoff.reset();
                        self.take(message);
                    }
                    Ok(None) => return Status::new(Code::Aborted, "the manager has ended the stream"),
                    Err(status) => return status,
                },
                () = self.reap() => {}
            }
        }
    }

    /// Waits until a subscription is over, and forgets it. Cancel-safe.
    async fn reap(&mut self) {
        let Some(joined) = self.publishers.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let id = match &joined {
            Ok((id, ())) => *id,
            Err(fault) => fault.id(),
        };
        let Some(subscription) = self.ids.remove(&id) else {
            return;
        };
        if let Err(fault) = joined
            && fault.is_panic()
        {
            tracing::error!(subscription, error = %fault, "the logs of a subscription break off");
        }
        self.running.remove(&subscription);
        if self.over.len() == REMEMBERED_MAX {
            self.over.pop_front();
        }
        self.over.push_back(subscription);
    }

    /// Forgets all subscriptions that are over, without an end. Cancel-safe.
    async fn reap_all(&mut self) {
        loop {
            self.reap().await;
        }
    }

    /// Handles a message. The manager may repeat subscriptions that it has sent before.
    fn take(&mut self, message: swarm::SubscriptionMessage) {
        match SubscriptionChange::from_proto(message, &self.node) {
            Ok(SubscriptionChange::Opened(request)) => self.open(request),
            Ok(SubscriptionChange::Closed(id)) => {
                self.over.retain(|over| *over != id);
                if let Some(running) = self.running.get(&id) {
                    running.abort();
                }
            }
            Err(InvalidSubscription::Unsupported { id, reason }) => {
                tracing::warn!(
                    subscription = id,
                    reason,
                    "logs of services are not passed on"
                );
                self.open(LogRequest::nothing(id));
            }
            Err(error @ InvalidSubscription::Id(_)) => {
                tracing::warn!(%error, "a log subscription of the manager is not valid");
            }
        }
    }

    fn open(&mut self, mut request: LogRequest) {
        let id = request.id.clone();
        if self.running.contains_key(&id) || self.over.contains(&id) {
            return;
        }
        if self.running.len() >= SUBSCRIPTIONS_MAX {
            tracing::warn!(
                subscription = id,
                "logs are not passed on: at most {SUBSCRIPTIONS_MAX} clients are served"
            );
            if self.running.len() >= SUBSCRIPTIONS_MAX + REFUSALS_MAX {
                return;
            }
            request = LogRequest::nothing(request.id);
        }
        let (messages, stream) = mpsc::channel(QUEUE);
        let publisher = Publisher {
            node: Arc::clone(&self.node),
            executor: Arc::clone(self.executor),
            places: Arc::clone(&self.places),
            request,
            messages,
        };
        let client = LogBrokerClient::new(self.connection.channel());
        let task = self.publishers.spawn(publish(
            client,
            publisher,
            ReceiverStream::new(stream),
            id.clone(),
        ));
        self.ids.insert(task.id(), id.clone());
        self.running.insert(id, task);
    }
}

/// Passes on what a publisher reads. If dropped, the manager sees the call broken off.
async fn publish(
    mut client: LogBrokerClient<Channel>,
    publisher: Publisher,
    messages: ReceiverStream<swarm::PublishLogsMessage>,
    id: String,
) {
    let call = client.publish_logs(messages);
    tokio::pin!(call);
    let publishing = publisher.run();
    let answer = tokio::select! {
        answer = &mut call => Some(answer),
        // If that failed, the call is over already, or hangs.
        Ok(()) | Err(NotRead) = publishing => timeout(ANSWER_LIMIT, call).await.ok(),
    };
    match answer {
        Some(Ok(_)) => {}
        Some(Err(status))
            if status.code() == Code::Internal && status.message().contains(NO_MESSAGE) => {}
        // The client may have gone.
        Some(Err(status)) => {
            tracing::debug!(subscription = id, %status, "a manager takes no more logs")
        }
        None => tracing::warn!(
            subscription = id,
            "a manager does not take the logs that it has asked for"
        ),
    }
}
