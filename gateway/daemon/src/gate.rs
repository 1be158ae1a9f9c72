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

/// Lets requests wait until a gateway has recovered.
#[derive(Clone)]
pub struct GateLayer {
    gateway: Gateway,
    patience: Duration,
    at_once: &'static [&'static str],
}

impl fmt::Debug for GateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateLayer").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl GateLayer {
    /// A layer whose requests wait for `gateway`, each at most this long; those for the methods `at_once`, which ask how the daemon is,
    /// do not wait.
    #[must_use]
    pub const fn new(gateway: Gateway, patience: Duration, at_once: &'static [&'static str]) -> Self {
        Self { gateway, patience, at_once }
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
        if self.gate.gateway.is_recovered() || is_one_of(self.gate.at_once, request.uri().path()) {
            return Box::pin(self.inner.call(request));
        }
        // The one that is ready is used; its clone takes its place.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let GateLayer { gateway, patience, at_once: _ } = self.gate.clone();
        Box::pin(async move {
            // In time or not, what comes next is the same: the gateway says whether it serves.
            let _ = tokio::time::timeout(patience, gateway.recovered()).await;
            inner.call(request).await
        })
    }
}

/// Whether a request is for one of these methods, by its path `/package.Service/Method`, whatever the version of the protocol.
fn is_one_of(methods: &[&str], path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|method| methods.contains(&method))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_known_by_its_whole_name_in_every_version() {
        let methods = ["Version", "Status"];
        assert!(is_one_of(&methods, "/runtime.v1.RuntimeService/Version"));
        assert!(is_one_of(&methods, "/runtime.v1alpha2.RuntimeService/Status"));
        assert!(!is_one_of(&methods, "/runtime.v1.RuntimeService/ContainerStatus"));
        assert!(!is_one_of(&methods, "/runtime.v1.RuntimeService/ListPodSandbox"));
        assert!(!is_one_of(&methods, "/runtime.v1.ImageService/ImageStatus"));
    }
}
