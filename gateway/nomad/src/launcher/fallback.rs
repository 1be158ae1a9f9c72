//! Streams that begin before the daemon is there: the launcher says first how things are, and then the daemon does.

use std::future::Future;
use std::time::Duration;

use futures::Stream;
use tonic::{Status, Streaming};

use super::delayed_error::{ERROR_DELAY, broken};
use super::link::{Link, SessionHandle};

/// How long the daemon may take to be there before somebody else speaks for it: an agent that starts waits for the first word.
const GRACE: Duration = Duration::from_millis(700);

/// Where such a stream is.
enum StreamState<T> {
    /// Nothing has been said, and this is to be said if the daemon is away.
    Begin(Option<T>),
    /// The daemon speaks.
    Daemon(Box<Streaming<T>>),
}

/// What the daemon says on a stream that `open` opens, and before that, if the daemon is away, `first`. It ends with the launcher only,
/// unless the daemon itself refuses it.
pub(super) fn stream<T, F>(
    link: Link,
    first: Option<T>,
    open: impl Fn(SessionHandle) -> F + Send + 'static,
) -> impl Stream<Item = Result<T, Status>> + Send
where
    T: Send + 'static,
    F: Future<Output = Result<Streaming<T>, Status>> + Send + 'static,
{
    futures::stream::unfold((StreamState::Begin(first), link, open), |(mut at, link, open)| async move {
        loop {
            at = match at {
                StreamState::Begin(first) => {
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
                    Ok(Some(said)) => return Some((Ok(said), (StreamState::Daemon(daemon), link, open))),
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
    })
}

/// An error, when the launcher has had time to end: the daemon's death is none.
async fn delay_error(status: Status) -> Status {
    tokio::time::sleep(ERROR_DELAY).await;
    status
}
