//! Services that dispatch by the name of the call, which answer some calls themselves and leave the others to the generated code.

use std::convert::Infallible;
use std::future::Future;
use std::task::{Context, Poll};

use switchyard_core::Error;
use switchyard_proto::codec::LeanCodec;
use switchyard_proto::shape::Shaped;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService};

use crate::deadline::with_deadline;

/// The largest request that is accepted, in bytes. Clients themselves accept 16 MiB.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 << 20;

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
    let codec = LeanCodec::<T, Q>::default();
    let mut grpc = Grpc::new(codec).apply_max_message_size_config(Some(MAX_MESSAGE_BYTES), None);
    Box::pin(async move { Ok(grpc.unary(unary, request).await) })
}
