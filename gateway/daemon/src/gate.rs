//! Nobody is refused because the daemon is starting: a tower layer in which requests wait until recovery is done.
//!
//! Who asks how the daemon is gets an answer at once. A recovery that takes too long is told of by the gateway, which refuses then.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use switchyard_core::gateway::Gateway;
use tower::{Layer, Service};

/// The methods that do not wait, whatever the version of the protocol: those that ask how the daemon is.
const AT_ONCE: [&str; 2] = ["Version", "Status"];

/// Lets requests wait until a gateway has recovered.
#[derive(Clone)]
pub struct GateLayer {
    gateway: Gateway,
    patience: Duration,
}

impl fmt::Debug for GateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateLayer").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl GateLayer {
    /// A layer whose requests wait for `gateway`, each at most this long.
    #[must_use]
    pub const fn new(gateway: Gateway, patience: Duration) -> Self {
        Self { gateway, patience }
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = GateService<S>;

    fn layer(&self, inner: S) -> GateService<S> {
        GateService { inner, gate: self.clone() }
    }
}

/// A service whose requests wait at the gate.
#[derive(Debug, Clone)]
pub struct GateService<S> {
    inner: S,
    gate: GateLayer,
}

impl<S, B, R> Service<Request<B>> for GateService<S>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<R>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if self.gate.gateway.is_recovered() || asks_how(request.uri().path()) {
            return Box::pin(self.inner.call(request));
        }
        // The one that is ready is used; its clone takes its place.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let GateLayer { gateway, patience } = self.gate.clone();
        Box::pin(async move {
            // In time or not, what comes next is the same: the gateway says whether it serves.
            let _ = tokio::time::timeout(patience, gateway.recovered()).await;
            inner.call(request).await
        })
    }
}

/// Whether a request asks how the daemon is, by its path `/package.Service/Method`.
fn asks_how(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|method| AT_ONCE.contains(&method))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_questions_about_the_daemon_itself_do_not_wait() {
        assert!(asks_how("/runtime.v1.RuntimeService/Version"));
        assert!(asks_how("/runtime.v1.RuntimeService/Status"));
        assert!(!asks_how("/runtime.v1.RuntimeService/ContainerStatus"));
        assert!(!asks_how("/runtime.v1.RuntimeService/ListPodSandbox"));
        assert!(!asks_how("/runtime.v1.ImageService/ImageStatus"));
    }
}
