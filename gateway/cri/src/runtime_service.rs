//! `runtime.v1.RuntimeService`. The lists that clients poll bypass the generated code.

use std::future::ready;
use std::sync::Arc;

use switchyard_proto::cri::v1::runtime_service_server::RuntimeServiceServer;
use tonic::codegen::Service;
use tonic::server::NamedService;

use crate::output;
use crate::routed::{MAX_MESSAGE_BYTES, Request, ResponseFuture, RoutedService, method_of, unary};
use crate::runtime::Runtime;

/// ListContainers and ListPodSandbox are answered from cached encodings; all other calls by the generated server. The
/// output in an answer to ExecSync counts until it has been sent.
#[derive(Debug, Clone)]
pub struct RuntimeService {
    runtime: Arc<Runtime>,
    generated: RuntimeServiceServer<Runtime>,
}

// === impl RuntimeService ===

impl RuntimeService {
    /// The calls of this runtime.
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        let generated = RuntimeServiceServer::from_arc(Arc::clone(&runtime));
        let generated = generated.max_decoding_message_size(MAX_MESSAGE_BYTES);
        Self { runtime, generated }
    }
}

impl RoutedService for RuntimeService {
    const NAME: &'static str = <RuntimeServiceServer<Runtime> as NamedService>::NAME;

    fn call(&self, request: Request) -> ResponseFuture {
        let runtime = &self.runtime;
        match method_of(&request) {
            "ListContainers" => unary(runtime, request, |runtime, request| {
                ready(runtime.list_encoded(request))
            }),
            "ListPodSandbox" => unary(runtime, request, |runtime, request| {
                ready(runtime.list_sandboxes_encoded(request))
            }),
            "ExecSync" => {
                let answered = self.generated.clone().call(request);
                Box::pin(async move { answered.await.map(output::hold) })
            }
            _ => self.generated.clone().call(request),
        }
    }
}

#[cfg(test)]
mod tests;
