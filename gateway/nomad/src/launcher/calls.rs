//! Answers single calls without a generated server: the launcher handles some calls of a service and forwards
//! the others.

use std::convert::Infallible;
use std::future::{Future, ready};

use futures::Stream;
use switchyard_proto::codec::LeanCodec;
use switchyard_proto::shape::Shaped;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::server::Grpc;
use tonic::{Response, Status};

/// A call as received from the server.
pub(super) type Call = http::Request<Body>;

/// The answer to a call.
pub(super) type ResponseFuture = BoxFuture<http::Response<Body>, Infallible>;

/// Answers a unary call.
pub(super) fn unary<Q, T>(
    call: Call,
    work: impl FnOnce(Q) -> Result<T, Status> + Send + 'static,
) -> ResponseFuture
where
    Q: prost::Message + Default + Shaped + 'static,
    T: prost::Message + Default + 'static,
{
    awaited(call, move |request| ready(work(request)))
}

/// Answers a unary call with the result of a future.
pub(super) fn awaited<Q, T, F>(
    call: Call,
    work: impl FnOnce(Q) -> F + Send + 'static,
) -> ResponseFuture
where
    Q: prost::Message + Default + Shaped + 'static,
    T: prost::Message + Default + 'static,
    F: Future<Output = Result<T, Status>> + Send + 'static,
{
    let mut work = Some(work);
    let service = tower::service_fn(move |request: tonic::Request<Q>| {
        let work = work.take().expect("a call is answered once");
        let answer = work(request.into_inner());
        async move { answer.await.map(Response::new) }
    });
    let mut grpc = grpc::<T, Q>();
    Box::pin(async move { Ok(grpc.unary(service, call).await) })
}

/// Answers a call with a stream of messages.
pub(super) fn streaming<Q, T>(
    call: Call,
    answers: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> ResponseFuture
where
    Q: prost::Message + Default + Shaped + 'static,
    T: prost::Message + Default + 'static,
{
    let mut answers = Some(answers);
    let service = tower::service_fn(move |_: tonic::Request<Q>| {
        ready(Ok::<_, Status>(Response::new(
            answers.take().expect("a call is answered once"),
        )))
    });
    let mut grpc = grpc::<T, Q>();
    Box::pin(async move { Ok(grpc.server_streaming(service, call).await) })
}

/// Keeps a bidirectional call open until the caller ends it, without sending a message.
pub(super) fn never_answered<Q, T>(call: Call) -> ResponseFuture
where
    Q: prost::Message + Default + Shaped + 'static,
    T: prost::Message + Default + 'static,
{
    let service = tower::service_fn(|request: tonic::Request<tonic::Streaming<Q>>| {
        ready(Ok::<_, Status>(Response::new(drained::<Q, T>(
            request.into_inner(),
        ))))
    });
    let mut grpc = grpc::<T, Q>();
    Box::pin(async move { Ok(grpc.streaming(service, call).await) })
}

fn drained<Q: Send + 'static, T: Send + 'static>(
    messages: tonic::Streaming<Q>,
) -> impl Stream<Item = Result<T, Status>> + Send {
    futures::stream::unfold(messages, |mut messages| async move {
        // Its end and its errors mean the same: the call is over.
        while let Ok(Some(_)) = messages.message().await {}
        None
    })
}

fn grpc<T, Q>() -> Grpc<LeanCodec<T, Q>>
where
    Q: prost::Message + Default + Shaped + 'static,
    T: prost::Message + Default + 'static,
{
    Grpc::new(LeanCodec::default()).apply_max_message_size_config(
        Some(crate::transport::MAX_MESSAGE),
        Some(crate::transport::MAX_MESSAGE),
    )
}

/// Answers a call with an error.
pub(super) fn refuse(status: Status) -> http::Response<Body> {
    status.into_http()
}

/// Boxes the future of an answer.
pub(super) fn boxed(
    work: impl Future<Output = http::Response<Body>> + Send + 'static,
) -> ResponseFuture {
    Box::pin(async move { Ok(work.await) })
}
