//! Streams that begin before the daemon is available: the launcher sends a first message itself, and the
//! daemon's messages follow. They begin again when the launcher has outlived a session: the end of a daemon must not
//! appear as an error.

use std::future::Future;
use std::time::Duration;

use futures::Stream;
use tonic::{Status, Streaming};

use super::delayed_error::{ERROR_DELAY, broken};
use super::link::{Link, SessionHandle};

/// Limit for the daemon before the launcher answers in its place: an agent that starts waits for the first
/// message.
const GRACE: Duration = Duration::from_millis(700);

/// The state of such a stream.
enum StreamState<T> {
    /// No message was sent since its beginning, or since the session has ended; this one is sent if the daemon is not
    /// available.
    Begin(Option<T>),
    /// The daemon's stream in this session is forwarded.
    Daemon(Box<Streaming<T>>, SessionHandle),
}

/// The messages of the stream that `open` opens at the daemon, preceded by `first` if the daemon is not
/// available, also when the launcher has outlived a session. Ends only with the launcher, unless the daemon
/// refuses the stream.
pub(super) fn stream<T, F>(
    link: Link,
    first: Option<T>,
    open: impl Fn(SessionHandle) -> F + Send + 'static,
) -> impl Stream<Item = Result<T, Status>> + Send
where
    T: Clone + Send + 'static,
    F: Future<Output = Result<Streaming<T>, Status>> + Send + 'static,
{
    futures::stream::unfold(
        (StreamState::Begin(first.clone()), link, open, first),
        |(mut at, link, open, first)| async move {
            loop {
                at = match at {
                    StreamState::Begin(message) => {
                        // The link opens a session with the daemon only once a call needs one.
                        link.need();
                        let session = tokio::time::timeout(GRACE, link.session()).await;
                        let up = match (session, message) {
                            (Ok(up), _) => up,
                            (Err(_), Some(message)) => {
                                let next = (StreamState::Begin(None), link, open, first);
                                return Some((Ok(message), next));
                            }
                            (Err(_), None) => link.session().await,
                        };
                        match open(up.clone()).await {
                            Ok(daemon) => StreamState::Daemon(Box::new(daemon), up),
                            Err(status) => {
                                if !link.ended_within(&up, ERROR_DELAY).await {
                                    let next = (StreamState::Begin(None), link, open, first);
                                    return Some((Err(status), next));
                                }
                                StreamState::Begin(first.clone())
                            }
                        }
                    }
                    StreamState::Daemon(mut daemon, up) => {
                        let status = match daemon.message().await {
                            Ok(Some(message)) => {
                                let next = (StreamState::Daemon(daemon, up), link, open, first);
                                return Some((Ok(message), next));
                            }
                            Ok(None) => broken(),
                            Err(status) => status,
                        };
                        if !link.ended_within(&up, ERROR_DELAY).await {
                            let next = (StreamState::Daemon(daemon, up), link, open, first);
                            return Some((Err(status), next));
                        }
                        StreamState::Begin(first.clone())
                    }
                }
            }
        },
    )
}
