//! The log broker of the scripted manager.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::log_broker_server::LogBroker;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::manager::{ScriptedManager, Service};

/// The script of the log broker, and the calls that it received.
#[derive(Default)]
pub(super) struct LogScript {
    /// Statuses with which the next subscription streams are refused, the next one last.
    pub(super) refusals: Mutex<Vec<Status>>,
    /// Number of streams that were requested.
    pub(super) listens: Mutex<usize>,
    /// The latest stream.
    pub(super) listener: Mutex<Option<mpsc::Sender<Result<swarm::SubscriptionMessage, Status>>>>,
    /// Published messages, by subscription.
    pub(super) published: Mutex<BTreeMap<String, Published>>,
}

/// The messages that were published for a subscription.
#[derive(Debug, Clone, Default)]
pub(super) struct Published {
    pub(super) messages: Vec<swarm::LogMessage>,
    /// The size of the largest message.
    pub(super) largest: usize,
    /// Number of calls, and how many of them ended properly and otherwise.
    pub(super) calls: usize,
    pub(super) closes: usize,
    pub(super) breaks: usize,
}

// === impl Published ===

impl Published {
    /// The text of both streams, in their order.
    pub(super) fn text(&self) -> String {
        let data: Vec<u8> = self
            .messages
            .iter()
            .flat_map(|message| message.data.clone())
            .collect();
        String::from_utf8_lossy(&data).into_owned()
    }
}

impl ScriptedManager {
    /// Sends the node a subscription, once it listens.
    pub(super) async fn subscribe(&self, message: swarm::SubscriptionMessage) {
        for _ in 0..600 {
            let listener = self.shared.logs.listener.lock().clone();
            if let Some(listener) = listener
                && listener.send(Ok(message.clone())).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the node does not listen");
    }

    /// Waits until the messages of a subscription satisfy `is_so`, and returns them.
    #[track_caller]
    pub(super) fn published<'a>(
        &'a self,
        id: &'a str,
        is_so: impl Fn(&Published) -> bool + 'a,
    ) -> impl Future<Output = Published> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let mut last = None;
            for _ in 0..600 {
                last = self.shared.logs.published.lock().get(id).cloned();
                if let Some(published) = last.clone().filter(|published| is_so(published)) {
                    return published;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            panic!("{caller}: {id}: {last:?}");
        }
    }
}

#[tonic::async_trait]
impl LogBroker for Service {
    type ListenSubscriptionsStream = ReceiverStream<Result<swarm::SubscriptionMessage, Status>>;

    async fn listen_subscriptions(
        &self,
        _: Request<swarm::ListenSubscriptionsRequest>,
    ) -> Result<Response<Self::ListenSubscriptionsStream>, Status> {
        *self.0.logs.listens.lock() += 1;
        if let Some(refusal) = self.0.logs.refusals.lock().pop() {
            return Err(refusal);
        }
        let (sender, messages) = mpsc::channel(16);
        *self.0.logs.listener.lock() = Some(sender);
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    /// As swarmkit does: a close is answered by trailers alone.
    async fn publish_logs(
        &self,
        request: Request<Streaming<swarm::PublishLogsMessage>>,
    ) -> Result<Response<swarm::PublishLogsResponse>, Status> {
        let mut messages = request.into_inner();
        let mut subscription: Option<String> = None;
        loop {
            let received = messages.message().await;
            let mut published = self.0.logs.published.lock();
            match received {
                Ok(Some(message)) => {
                    let size = prost::Message::encoded_len(&message);
                    let swarm::PublishLogsMessage {
                        subscription_id,
                        messages,
                        close,
                    } = message;
                    let known = published.entry(subscription_id.clone()).or_default();
                    match &subscription {
                        None => known.calls += 1,
                        Some(first) => {
                            assert_eq!(first, &subscription_id, "one subscription in each call")
                        }
                    }
                    subscription = Some(subscription_id);
                    if close {
                        known.closes += 1;
                        return Err(Status::new(Code::Ok, ""));
                    }
                    let is_foreign = |message: &swarm::LogMessage| {
                        message
                            .context
                            .as_ref()
                            .is_none_or(|context| context.node_id != "node1")
                    };
                    if messages.iter().any(is_foreign) {
                        return Err(Status::permission_denied("invalid NodeID"));
                    }
                    known.largest = known.largest.max(size);
                    known.messages.extend(messages);
                }
                Ok(None) | Err(_) => {
                    if let Some(known) = subscription.and_then(|id| published.get_mut(&id)) {
                        known.breaks += 1;
                    }
                    return Ok(Response::new(swarm::PublishLogsResponse {}));
                }
            }
        }
    }
}
