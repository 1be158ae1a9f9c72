//! Streams that begin before the daemon is available: the launcher sends a first message itself, and the
//! daemon's messages follow.

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
    /// No message was sent; this one is sent if the daemon is not available.
    Begin(Option<T>),
    /// The daemon's stream is forwarded.
    Daemon(Box<Streaming<T>>),
}

/// The messages of the stream that `open` opens at the daemon, preceded by `first` if the daemon is not
/// available. Ends only with the launcher, unless the daemon refuses the stream.
pub(super) fn stream<T, F>(
    link: Link,
    first: Option<T>,
    open: impl Fn(SessionHandle) -> F + Send + 'static,
) -> impl Stream<Item = Result<T, Status>> + Send
where
    T: Send + 'static,
    F: Future<Output = Result<Streaming<T>, Status>> + Send + 'static,
{
    futures::stream::unfold(
        (StreamState::Begin(first), link, open),
        |(mut at, link, open)| async move {
            loop {
                at = match at {
                    StreamState::Begin(first) => {
                        // The link opens a session with the daemon only once a call needs one.
                        link.need();
                        let up = match (tokio::time::timeout(GRACE, link.session()).await, first) {
                            (Ok(up), _) => up,
                            (Err(_), Some(first)) => {
                                return Some((Ok(first), (StreamState::Begin(None), link, open)));
                            }
                            (Err(_), None) => link.session().await,
                        };
                        match open(up).await {
                            Ok(daemon) => StreamState::Daemon(Box::new(daemon)),
                            Err(status) => {
                                return Some((
                                    Err(delay_error(status).await),
                                    (StreamState::Begin(None), link, open),
                                ));
                            }
                        }
                    }
                    StreamState::Daemon(mut daemon) => match daemon.message().await {
                        Ok(Some(message)) => {
                            return Some((Ok(message), (StreamState::Daemon(daemon), link, open)));
                        }
                        Ok(None) => {
                            return Some((
                                Err(delay_error(broken()).await),
                                (StreamState::Daemon(daemon), link, open),
                            ));
                        }
                        Err(status) => {
                            return Some((
                                Err(delay_error(status).await),
                                (StreamState::Daemon(daemon), link, open),
                            ));
                        }
                    },
                }
            }
        },
    )
}

/// Returns an error only after the launcher has had time to exit: the end of the daemon must not appear as an
/// error.
async fn delay_error(status: Status) -> Status {
    tokio::time::sleep(ERROR_DELAY).await;
    status
}
