//! The calls of the model as gRPC: unary calls, streams of answers, and the stream of a write.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::{ModelContainerd, ModelState, Store, store};

impl ModelContainerd {
    pub(super) async fn unary<Q, A>(
        &self,
        call: String,
        request: http::Request<Body>,
        object: fn(&Q) -> String,
        effect: fn(&mut Store, Q) -> Result<A, Status>,
    ) -> http::Response<Body>
    where
        Q: Message + Default + 'static,
        A: Message + 'static,
    {
        let answer = self.answers(call, object, effect);
        let service = tower::service_fn(move |request: Request<Q>| {
            let answer = answer(request.into_inner());
            async move { answer.await.map(Response::new) }
        });
        Grpc::new(ProstCodec::<A, Q>::default())
            .unary(service, request)
            .await
    }

    pub(super) async fn streamed<Q, A>(
        &self,
        call: String,
        request: http::Request<Body>,
        object: fn(&Q) -> String,
        effect: fn(&mut Store, Q) -> Result<A, Status>,
    ) -> http::Response<Body>
    where
        Q: Message + Default + 'static,
        A: Message + 'static,
    {
        let answer = self.answers(call, object, effect);
        let service = tower::service_fn(move |request: Request<Q>| {
            let answer = answer(request.into_inner());
            async move {
                let answer = answer.await?;
                Ok::<_, Status>(Response::new(tokio_stream::once(Ok::<_, Status>(answer))))
            }
        });
        Grpc::new(ProstCodec::<A, Q>::default())
            .server_streaming(service, request)
            .await
    }

    /// Answers one message of a call, as a test wants: before the effect, and after it, the call may be held.
    fn answers<Q, A>(
        &self,
        call: String,
        object: fn(&Q) -> String,
        effect: fn(&mut Store, Q) -> Result<A, Status>,
    ) -> impl Fn(Q) -> BoxFuture<'static, Result<A, Status>> + use<Q, A>
    where
        Q: Message + 'static,
        A: Message + 'static,
    {
        let shared = Arc::clone(&self.shared);
        move |message| {
            let shared = Arc::clone(&shared);
            let call = format!("{call} {}", object(&message));
            Box::pin(async move {
                shared.enter(&call).await?;
                let answer = effect(&mut shared.store.lock(), message);
                shared.wait(&call, true).await;
                answer
            })
        }
    }

    /// Handles a write, which is locked by its stream. A commit that has begun continues without its client,
    /// as containerd's does.
    pub(super) async fn write(&self, request: http::Request<Body>) -> http::Response<Body> {
        type Answers = BoxStream<'static, Result<store::Written, Status>>;
        let shared = Arc::clone(&self.shared);
        let service = tower::service_fn(move |request: Request<Streaming<store::Write>>| {
            let shared = Arc::clone(&shared);
            async move {
                let (answer, answers) = mpsc::unbounded_channel();
                let lease = request
                    .metadata()
                    .get("containerd-lease")
                    .and_then(|id| id.to_str().ok());
                let lease = lease.unwrap_or_default().to_owned();
                tokio::spawn(write_all(shared, request.into_inner(), lease, answer));
                Ok::<_, Status>(Response::new(
                    UnboundedReceiverStream::new(answers).boxed() as Answers
                ))
            }
        });
        Grpc::new(ProstCodec::<store::Written, store::Write>::default())
            .streaming(service, request)
            .await
    }
}

/// Serves one stream of a write.
async fn write_all(
    shared: Arc<ModelState>,
    mut messages: Streaming<store::Write>,
    lease: String,
    answer: mpsc::UnboundedSender<Result<store::Written, Status>>,
) {
    let mut name = String::new();
    while let Some(Ok(message)) = messages.next().await {
        let opened = if name.is_empty() {
            name.clone_from(&message.r#ref);
            shared.store.lock().open_write(&message, &lease)
        } else {
            Ok(())
        };
        let call = format!("Content/Write {} {name}", message.action().as_str_name());
        let written = match opened {
            Ok(()) => shared
                .enter(&call)
                .await
                .and_then(|()| shared.store.lock().write(&name, message)),
            Err(status) => {
                // The lock is another stream's.
                drop(answer.send(Err(status)));
                return;
            }
        };
        let failed = written.is_err();
        if answer.send(written).is_err() || failed {
            break;
        }
    }
    shared.store.lock().unlock_write(&name);
}
