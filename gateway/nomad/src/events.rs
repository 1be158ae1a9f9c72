//! Messages of the driver to people about tasks, sent to the agent that runs them.
//!
//! Each stream receives the events of its session from its opening on; earlier ones are not repeated. A
//! stream that is not read loses the oldest events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use futures::Stream;
use futures::stream;
use switchyard_proto::nomad::drivers::proto as nomad;
use tokio::sync::broadcast;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

/// Maximum number of events by which a stream may lag behind.
const QUEUE: usize = 256;

/// Distributes events to the streams of their session.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    sender: broadcast::Sender<SessionEvent>,
}

#[derive(Debug, Clone)]
struct SessionEvent {
    session: Arc<str>,
    event: Arc<nomad::DriverTaskEvent>,
}

/// Sends events about one task in one session.
#[derive(Debug, Clone)]
pub(crate) struct TaskEventSender {
    events: Events,
    session: Arc<str>,
    task_id: String,
    alloc_id: String,
    task_name: String,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            sender: broadcast::channel(QUEUE).0,
        }
    }
}

impl Events {
    /// A sender for the task of this request.
    pub(crate) fn sender_for(&self, session: &str, request: &nomad::TaskConfig) -> TaskEventSender {
        TaskEventSender {
            events: self.clone(),
            session: session.into(),
            task_id: request.id.clone(),
            alloc_id: request.alloc_id.clone(),
            task_name: request.name.clone(),
        }
    }

    /// The events of a session from now on, until the gateway shuts down.
    pub(crate) fn stream(
        &self,
        session: String,
        ended: WaitForCancellationFutureOwned,
    ) -> impl Stream<Item = Result<nomad::DriverTaskEvent, Status>> + Send + use<> {
        let state = (self.sender.subscribe(), session, Box::pin(ended));
        stream::unfold(state, async |(mut receiver, session, mut ended)| {
            loop {
                let received = tokio::select! {
                    received = receiver.recv() => received,
                    () = &mut ended => return None,
                };
                match received {
                    Ok(received) if *received.session == *session => {
                        return Some((Ok((*received.event).clone()), (receiver, session, ended)));
                    }
                    Ok(_) => {}
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        tracing::debug!(
                            missed,
                            session,
                            "an agent does not read the events of its driver: the oldest are dropped"
                        );
                    }
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        })
    }
}

impl TaskEventSender {
    /// Sends an event to the agent; never waits, and succeeds without a receiver.
    pub(crate) fn send(&self, message: impl Into<String>, annotations: &[(&str, &str)]) {
        let annotations: BTreeMap<_, _> = annotations
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let event = nomad::DriverTaskEvent {
            task_id: self.task_id.clone(),
            alloc_id: self.alloc_id.clone(),
            task_name: self.task_name.clone(),
            timestamp: Some(SystemTime::now().into()),
            message: message.into(),
            annotations,
        };
        let message = SessionEvent {
            session: Arc::clone(&self.session),
            event: Arc::new(event),
        };
        // It is not an error to have no receiver.
        let _ = self.events.sender.send(message);
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn request() -> nomad::TaskConfig {
        nomad::TaskConfig {
            id: "a/t/00000000".into(),
            name: "t".into(),
            alloc_id: "a".into(),
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn event_stream_covers_its_session_from_the_start() {
        let events = Events::default();
        let end = CancellationToken::new();
        let ours = events.sender_for("1", &request());
        let theirs = events.sender_for("2", &request());
        ours.send("before", &[]);
        let mut stream = Box::pin(events.stream("1".into(), end.clone().cancelled_owned()));
        theirs.send("other", &[]);
        ours.send("Downloading image", &[("image", "busybox")]);
        let event = stream
            .next()
            .await
            .expect("it is open")
            .expect("it is an event");
        assert_eq!(
            (event.task_id.as_str(), event.message.as_str()),
            ("a/t/00000000", "Downloading image")
        );
        assert_eq!(
            (event.alloc_id.as_str(), event.task_name.as_str()),
            ("a", "t")
        );
        assert_eq!(event.annotations["image"], "busybox");
        assert!(event.timestamp.is_some());
        end.cancel();
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn unread_event_stream_drops_the_oldest_and_continues() {
        let events = Events::default();
        let end = CancellationToken::new();
        let sender = events.sender_for("1", &request());
        let mut stream = Box::pin(events.stream("1".into(), end.cancelled_owned()));
        for number in 0..QUEUE + 5 {
            sender.send(number.to_string(), &[]);
        }
        let event = stream
            .next()
            .await
            .expect("it is open")
            .expect("it is an event");
        assert_eq!(event.message, "5");
    }
}
