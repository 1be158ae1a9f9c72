//! Combines the services over one scope.

use std::sync::Arc;

use switchyard_core::gateway::Scope;
use switchyard_core::reload::Reloadable;
use switchyard_proto::cri::v1::image_service_server::ImageServiceServer;
use switchyard_streaming::Sessions;

use crate::config::Config;
use crate::cpus::ExclusiveCpus;
use crate::image::Images;
use crate::routed::{MAX_MESSAGE_BYTES, MethodRouter};
use crate::runtime::Runtime;
use crate::runtime_service::RuntimeService;
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

/// The CRI services over `scope`, which ought to be that of
/// [`Owner::Kubernetes`](switchyard_core::id::Owner::Kubernetes). Without `sessions`, Exec, Attach and
/// PortForward are refused; without `cpus`, no CPUs count as exclusive to a container. A new `config` applies to
/// calls that begin after it was set.
#[must_use]
pub fn services(
    scope: Scope,
    config: Reloadable<Config>,
    sessions: Option<Sessions>,
    cpus: Option<Arc<dyn ExclusiveCpus>>,
) -> Services {
    let images = Images::new(scope.clone());
    let runtime = Arc::new(Runtime::new(scope, config, sessions, cpus));
    let service = RuntimeService::new(Arc::clone(&runtime));
    let image =
        ImageServiceServer::new(images.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    Services {
        runtime_v1alpha2: MethodRouter(v1alpha2::RuntimeServiceV1alpha2::new(
            service.clone(),
            Arc::clone(&runtime),
        )),
        image_v1alpha2: MethodRouter(v1alpha2::ImageServiceV1alpha2::new(image.clone(), images)),
        volume_v1alpha2: MethodRouter(v1alpha2::VolumeServiceV1alpha2::new(runtime)),
        runtime: MethodRouter(service),
        image,
    }
}
