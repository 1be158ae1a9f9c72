//! `runtime.v1.RuntimeService`. The lists that clients poll bypass the generated code.

use std::future::ready;
use std::sync::Arc;

use switchyard_proto::cri::v1::runtime_service_server::RuntimeServiceServer;
use tonic::codegen::Service;
use tonic::server::NamedService;

use crate::routed::{Request, ResponseFuture, RoutedService, method_of, unary};
use crate::runtime::Runtime;

/// ListContainers and ListPodSandbox are answered from cached encodings; all
/// other calls by the generated server.
#[derive(Debug, Clone)]
pub struct RuntimeService {
    runtime: Arc<Runtime>,
    generated: RuntimeServiceServer<Runtime>,
    /// The largest request, in bytes.
    limit: usize,
}

// === impl RuntimeService ===

impl RuntimeService {
    /// The calls of this runtime; `limit` is the largest request, in bytes.
    pub(crate) fn new(runtime: Arc<Runtime>, limit: usize) -> Self {
        let generated = RuntimeServiceServer::from_arc(Arc::clone(&runtime)).max_decoding_message_size(limit);
        Self { runtime, generated, limit }
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

#[cfg(test)]
mod tests;
