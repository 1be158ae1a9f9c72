//! A tower layer in which requests wait until recovery is done, so that none is refused because the daemon is
//! starting.
//!
//! Queries of the daemon's own status do not wait. If recovery takes longer than requests may wait, the
//! gateway refuses them.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use switchyard_core::gateway::Gateway;
use switchyard_core::trace::traced;
use tower::{Layer, Service};

/// Makes requests wait until a gateway has recovered.
#[derive(Clone)]
pub struct GateLayer {
    gateway: Gateway,
    patience: Duration,
    at_once: &'static [&'static str],
}

impl fmt::Debug for GateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateLayer")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl GateLayer {
    /// A layer whose requests wait for `gateway`, each for at most `patience`; requests for the methods in
    /// `at_once`, which query the status of the daemon, do not wait.
    #[must_use]
    pub const fn new(
        gateway: Gateway,
        patience: Duration,
        at_once: &'static [&'static str],
    ) -> Self {
        Self {
            gateway,
            patience,
            at_once,
        }
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = GateService<S>;

    fn layer(&self, inner: S) -> GateService<S> {
        GateService {
            inner,
            gate: self.clone(),
        }
    }
}

/// A service whose requests wait for recovery.
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
        // The service that was polled ready must be called; its clone replaces it.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let GateLayer {
            gateway,
            patience,
            at_once: _,
        } = self.gate.clone();
        Box::pin(async move {
            // A timeout is ignored: the gateway itself refuses the request if it has not recovered.
            let recovered = async {
                gateway.recovered().await;
                Ok(())
            };
            let _ = tokio::time::timeout(patience, traced("wait_for_recovery", |_| (), recovered))
                .await;
            inner.call(request).await
        })
    }
}

/// Returns whether a request's path `/package.Service/Method` names one of these methods, in any version of
/// the protocol.
fn is_one_of(methods: &[&str], path: &str) -> bool {
    path.rsplit('/')
        .next()
        .is_some_and(|method| methods.contains(&method))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_matches_full_method_names_of_all_versions() {
        let methods = ["Version", "Status"];
        assert!(is_one_of(&methods, "/runtime.v1.RuntimeService/Version"));
        assert!(is_one_of(
            &methods,
            "/runtime.v1alpha2.RuntimeService/Status"
        ));
        assert!(!is_one_of(
            &methods,
            "/runtime.v1.RuntimeService/ContainerStatus"
        ));
        assert!(!is_one_of(
            &methods,
            "/runtime.v1.RuntimeService/ListPodSandbox"
        ));
        assert!(!is_one_of(&methods, "/runtime.v1.ImageService/ImageStatus"));
    }
}
