//! Puts the two services together over one scope.

use std::sync::Arc;

use switchyard_core::gateway::Scope;
use switchyard_proto::cri::v1 as cri;

use crate::config::Config;
use crate::image::Images;
use crate::runtime::Runtime;

/// The services of `runtime.v1`, ready for a tonic server. Both may be served on one socket.
#[derive(Debug, Clone)]
pub struct Services {
    /// `runtime.v1.RuntimeService`.
    pub runtime: cri::runtime_service_server::RuntimeServiceServer<Runtime>,
    /// `runtime.v1.ImageService`.
    pub image: cri::image_service_server::ImageServiceServer<Images>,
}

/// The CRI services over `scope`, which ought to be that of [`Owner::Kubernetes`](switchyard_core::id::Owner::Kubernetes).
#[must_use]
pub fn services(scope: Scope, config: Config) -> Services {
    let limit = config.max_message_bytes;
    let images = Images::new(scope.clone());
    let runtime = Arc::new(Runtime::new(scope, config));
    Services {
        runtime: cri::runtime_service_server::RuntimeServiceServer::from_arc(runtime)
            .max_decoding_message_size(limit),
        image: cri::image_service_server::ImageServiceServer::new(images).max_decoding_message_size(limit),
    }
}
