//! Puts the services together over one scope, with the lists that clients poll in front of the generated code.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use switchyard_core::Error;
use switchyard_core::gateway::Scope;
use switchyard_proto::cri::v1::image_service_server::ImageServiceServer;
use switchyard_proto::cri::v1::runtime_service_server::RuntimeServiceServer;
use switchyard_streaming::Sessions;
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService};
use tonic_prost::ProstCodec;

use crate::config::Config;
use crate::deadline::answer;
use crate::image::Images;
use crate::runtime::Runtime;
use crate::v1alpha2;

/// The services of `runtime.v1` and `runtime.v1alpha2`, ready for a tonic server. All may be served on one socket.
#[derive(Debug, Clone)]
pub struct Services {
    /// `runtime.v1.RuntimeService`.
    pub runtime: RuntimeService,
    /// `runtime.v1.ImageService`.
    pub image: ImageServiceServer<Images>,
    /// `runtime.v1alpha2.RuntimeService`.
    pub runtime_v1alpha2: v1alpha2::RuntimeService,
    /// `runtime.v1alpha2.ImageService`.
    pub image_v1alpha2: v1alpha2::ImageService,
    /// `runtime.v1alpha2.VolumeService`.
    pub volume_v1alpha2: v1alpha2::VolumeService,
}

/// `runtime.v1.RuntimeService`. ListContainers and ListPodSandbox are answered from bytes that are kept; everything else by the
/// generated server.
#[derive(Debug, Clone)]
pub struct RuntimeService {
    runtime: Arc<Runtime>,
    generated: RuntimeServiceServer<Runtime>,
    /// The most bytes of a request.
    limit: usize,
}

/// The CRI services over `scope`, which ought to be that of [`Owner::Kubernetes`](switchyard_core::id::Owner::Kubernetes). Without
/// `sessions`, Exec, Attach and PortForward are refused.
#[must_use]
pub fn services(scope: Scope, config: Config, sessions: Option<Sessions>) -> Services {
    let limit = config.max_message_bytes;
    let images = Images::new(scope.clone());
    let runtime = Arc::new(Runtime::new(scope, config, sessions));
    let generated = RuntimeServiceServer::from_arc(Arc::clone(&runtime)).max_decoding_message_size(limit);
    let service = RuntimeService { runtime: Arc::clone(&runtime), generated, limit };
    let image = ImageServiceServer::new(images.clone()).max_decoding_message_size(limit);
    Services {
        runtime_v1alpha2: v1alpha2::RuntimeService::new(service.clone(), runtime, limit),
        image_v1alpha2: v1alpha2::ImageService::new(image.clone(), images, limit),
        volume_v1alpha2: v1alpha2::VolumeService::new(limit),
        runtime: service,
        image,
    }
}

impl NamedService for RuntimeService {
    const NAME: &'static str = <RuntimeServiceServer<Runtime> as NamedService>::NAME;
}

impl<B> Service<http::Request<B>> for RuntimeService
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let (runtime, limit) = (Arc::clone(&self.runtime), self.limit);
        match request.uri().path() {
            "/runtime.v1.RuntimeService/ListContainers" => {
                Box::pin(unary(limit, request, move |request| ready(runtime.list_encoded(request))))
            }
            "/runtime.v1.RuntimeService/ListPodSandbox" => {
                Box::pin(unary(limit, request, move |request| ready(runtime.list_sandboxes_encoded(request))))
            }
            _ => self.generated.call(request),
        }
    }
}

/// Answers a call as the generated server does, with what `work` gives.
pub(crate) async fn unary<B, Q, T, F>(
    limit: usize,
    request: http::Request<B>,
    work: impl Fn(Q) -> F + Clone + Send + 'static,
) -> Result<http::Response<tonic::body::Body>, Infallible>
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
    Q: prost::Message + Default + 'static,
    T: prost::Message + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let unary = tower::service_fn(move |request| answer(request, work.clone()));
    let codec = ProstCodec::<T, Q>::default();
    Ok(Grpc::new(codec).apply_max_message_size_config(Some(limit), None).unary(unary, request).await)
}

#[cfg(test)]
mod tests;
