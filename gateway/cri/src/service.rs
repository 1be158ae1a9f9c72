//! Combines the services over one scope. The lists that clients poll bypass the generated code.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use switchyard_core::Error;
use switchyard_core::gateway::Scope;
use switchyard_core::reload::Reloadable;
use switchyard_proto::codec::LeanCodec;
use switchyard_proto::cri::v1::image_service_server::ImageServiceServer;
use switchyard_proto::cri::v1::runtime_service_server::RuntimeServiceServer;
use switchyard_proto::shape::Shaped;
use switchyard_streaming::Sessions;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService};

use crate::config::Config;
use crate::cpus::ExclusiveCpus;
use crate::deadline::with_deadline;
use crate::image::Images;
use crate::runtime::Runtime;
use crate::v1alpha2;

/// The services of `runtime.v1` and `runtime.v1alpha2`, ready for a tonic server. All can be served on one
/// socket.
#[derive(Debug, Clone)]
pub struct Services {
    /// `runtime.v1.RuntimeService`.
    pub runtime: MethodRouter<RuntimeService>,
    /// `runtime.v1.ImageService`.
    pub image: ImageServiceServer<Images>,
    /// `runtime.v1alpha2.RuntimeService`.
    pub runtime_v1alpha2: MethodRouter<v1alpha2::RuntimeServiceV1alpha2>,
    /// `runtime.v1alpha2.ImageService`.
    pub image_v1alpha2: MethodRouter<v1alpha2::ImageServiceV1alpha2>,
    /// `runtime.v1alpha2.VolumeService`.
    pub volume_v1alpha2: MethodRouter<v1alpha2::VolumeServiceV1alpha2>,
}

/// `runtime.v1.RuntimeService`. ListContainers and ListPodSandbox are answered from cached encodings; all
/// other calls by the generated server.
#[derive(Debug, Clone)]
pub struct RuntimeService {
    runtime: Arc<Runtime>,
    generated: RuntimeServiceServer<Runtime>,
    /// The largest request, in bytes.
    limit: usize,
}

/// The CRI services over `scope`, which ought to be that of
/// [`Owner::Kubernetes`](switchyard_core::id::Owner::Kubernetes). Without `sessions`, Exec, Attach and
/// PortForward are refused; without `cpus`, no CPUs count as exclusive to a container. A new `config` applies to
/// calls that begin after it was set; `max_message_bytes` is read once.
#[must_use]
pub fn services(
    scope: Scope,
    config: Reloadable<Config>,
    sessions: Option<Sessions>,
    cpus: Option<Arc<dyn ExclusiveCpus>>,
) -> Services {
    let limit = config.get().max_message_bytes;
    let images = Images::new(scope.clone());
    let runtime = Arc::new(Runtime::new(scope, config, sessions, cpus));
    let generated = RuntimeServiceServer::from_arc(Arc::clone(&runtime)).max_decoding_message_size(limit);
    let service = RuntimeService { runtime: Arc::clone(&runtime), generated, limit };
    let image = ImageServiceServer::new(images.clone()).max_decoding_message_size(limit);
    Services {
        runtime_v1alpha2: MethodRouter(v1alpha2::RuntimeServiceV1alpha2::new(
            service.clone(),
            Arc::clone(&runtime),
            limit,
        )),
        image_v1alpha2: MethodRouter(v1alpha2::ImageServiceV1alpha2::new(image.clone(), images, limit)),
        volume_v1alpha2: MethodRouter(v1alpha2::VolumeServiceV1alpha2::new(runtime, limit)),
        runtime: MethodRouter(service),
        image,
    }
}

impl RoutedService for RuntimeService {
    const NAME: &'static str = <RuntimeServiceServer<Runtime> as NamedService>::NAME;

    fn call(&self, request: Request) -> ResponseFuture {
        let runtime = &self.runtime;
        let limit = self.limit;
        match method_of(&request) {
            "ListContainers" => {
                unary(limit, runtime, request, |runtime, request| ready(runtime.list_encoded(request)))
            }
            "ListPodSandbox" => unary(limit, runtime, request, |runtime, request| {
                ready(runtime.list_sandboxes_encoded(request))
            }),
            _ => self.generated.clone().call(request),
        }
    }
}

// === calls by name ===

/// A request, as the server passes it on.
pub(crate) type Request = http::Request<tonic::body::Body>;

/// The answer to a call.
pub(crate) type ResponseFuture = BoxFuture<http::Response<tonic::body::Body>, Infallible>;

/// A gRPC service that dispatches by the name of the call.
pub trait RoutedService: Clone + Send + Sync + 'static {
    /// The full name of the service.
    const NAME: &'static str;

    /// Answers the call that is named by the last segment of the request's path.
    fn call(&self, request: Request) -> ResponseFuture;
}

/// Serves a [`RoutedService`].
#[derive(Debug, Clone)]
pub struct MethodRouter<C>(pub(crate) C);

impl<C: RoutedService> NamedService for MethodRouter<C> {
    const NAME: &'static str = C::NAME;
}

impl<C: RoutedService> Service<Request> for MethodRouter<C> {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> ResponseFuture {
        self.0.call(request)
    }
}

/// The name of the requested call.
pub(crate) fn method_of<B>(request: &http::Request<B>) -> &str {
    request.uri().path().rsplit('/').next().unwrap_or_default()
}

/// Answers a unary call as the generated server does, with the result of `work`.
pub(crate) fn unary<S, Q, T, F>(
    limit: usize,
    state: &S,
    request: Request,
    work: impl Fn(S, Q) -> F + Copy + Send + Sync + 'static,
) -> ResponseFuture
where
    S: Clone + Send + Sync + 'static,
    Q: prost::Message + Default + Shaped + 'static,
    T: prost::Message + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let state = state.clone();
    let unary = tower::service_fn(move |request| {
        let state = state.clone();
        with_deadline(request, move |message| work(state, message))
    });
    let mut grpc = Grpc::new(LeanCodec::<T, Q>::default()).apply_max_message_size_config(Some(limit), None);
    Box::pin(async move { Ok(grpc.unary(unary, request).await) })
}

#[cfg(test)]
mod tests;
