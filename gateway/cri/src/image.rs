//! `runtime.v1.ImageService`: decodes, calls the core, encodes.

use std::collections::BTreeMap;

use switchyard_core::gateway::Scope;
use switchyard_core::image::Image;
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;
use tonic::Request;

use crate::batch;
use crate::deadline::{RpcResult, with_deadline};
use crate::{from_proto, to_proto};

/// Serves `runtime.v1.ImageService` over one scope.
#[derive(Debug, Clone)]
pub struct Images {
    scope: Scope,
}

impl Images {
    pub(crate) const fn new(scope: Scope) -> Self {
        Self { scope }
    }

    /// CRI v1 PullImage. Concurrent pulls of one image share a download, which is cancelled when its last
    /// client is gone.
    pub(crate) async fn pull(
        &self,
        request: cri::PullImageRequest,
    ) -> Result<cri::PullImageResponse> {
        let pod = request.sandbox_config.as_ref();
        let sandbox = pod
            .and_then(|config| config.metadata.as_ref())
            .map(from_proto::sandbox_name);
        let request = from_proto::pull_request(request)?;
        let handlers = self.scope.handlers();
        if !request.handler.is_empty()
            && !handlers
                .iter()
                .any(|handler| handler.name == request.handler)
        {
            return Err(crate::runtime::unknown_handler(
                "image.runtime_handler",
                &request.handler,
                &handlers,
            ));
        }
        let images = self.scope.images();
        let id = match sandbox {
            Some(sandbox) => images.pull_for(&sandbox, &request).await?,
            None => images.pull(&request).await?,
        };
        Ok(cri::PullImageResponse {
            image_ref: id.to_string(),
        })
    }

    /// CRI v1 ListImages.
    async fn list(&self, filter: Option<cri::ImageFilter>) -> Result<Vec<cri::Image>> {
        Ok(self
            .chosen(filter)
            .await?
            .iter()
            .map(to_proto::image)
            .collect())
    }

    /// The images that match a filter, which names one image by any reference, or is empty for all.
    pub(crate) async fn chosen(&self, filter: Option<cri::ImageFilter>) -> Result<Vec<Image>> {
        let reference = filter
            .and_then(|filter| filter.image)
            .map(|image| image.image)
            .unwrap_or_default();
        if reference.is_empty() {
            self.scope.images().list().await
        } else {
            Ok(self
                .scope
                .images()
                .find(&reference)
                .await?
                .into_iter()
                .collect())
        }
    }

    /// CRI v1 ImageStatus. A missing image is an answer without an image. So is an image that only other
    /// owners have pulled, with their own credentials: the kubelet then pulls it with its own.
    async fn find(&self, request: cri::ImageStatusRequest) -> Result<cri::ImageStatusResponse> {
        let (image, info) = self.found(request).await?;
        Ok(cri::ImageStatusResponse {
            image: image.as_ref().map(to_proto::image),
            info,
        })
    }

    /// The image of a request, if this owner has it, and its verbose information.
    pub(crate) async fn found(
        &self,
        request: cri::ImageStatusRequest,
    ) -> Result<(Option<Image>, BTreeMap<String, String>)> {
        let cri::ImageStatusRequest { image, verbose } = request;
        let image: Option<Image> = self.scope.images().find(&reference(image)?).await?;
        let info = match &image {
            Some(image) if verbose => {
                to_proto::image_info(image, &self.scope.images().config(&image.id).await?)
            }
            Some(_) | None => BTreeMap::new(),
        };
        Ok((image, info))
    }

    /// CRI v1 RemoveImage: removes all names of the image that no other owner holds. Idempotent. An image that other
    /// owners keep is an error, after this owner's hold is released: the client counts on its space.
    async fn remove(&self, request: cri::RemoveImageRequest) -> Result<cri::RemoveImageResponse> {
        let cri::RemoveImageRequest { image } = request;
        let reference = reference(image)?;
        let images = self.scope.images();
        images.remove(&reference).await?;
        let keepers = images.other_keepers(&reference).await?;
        if keepers.is_empty() {
            return Ok(cri::RemoveImageResponse {});
        }
        let owner = self.scope.owner();
        Err(Error::failed_precondition(format!(
            "image {reference:?} stays on the node, {keepers}: {owner} does not hold it any more, and `switchyard images \
             --why` shows what keeps it"
        )))
    }

    /// CRI v1 ImageFsInfo.
    async fn usage(&self) -> Result<cri::ImageFsInfoResponse> {
        Ok(to_proto::image_fs_info(&self.scope.images().usage().await?))
    }
}

/// The reference in a request.
fn reference(image: Option<cri::ImageSpec>) -> Result<String> {
    match image {
        Some(image) if !image.image.is_empty() => Ok(image.image),
        Some(_) | None => Err(Error::invalid("image.image", "it is empty")),
    }
}

#[tonic::async_trait]
impl cri::image_service_server::ImageService for Images {
    type StreamImagesStream = batch::Stream<cri::StreamImagesResponse>;

    async fn list_images(
        &self,
        request: Request<cri::ListImagesRequest>,
    ) -> RpcResult<cri::ListImagesResponse> {
        with_deadline(request, |cri::ListImagesRequest { filter }| async {
            Ok(cri::ListImagesResponse {
                images: self.list(filter).await?,
            })
        })
        .await
    }

    async fn stream_images(
        &self,
        request: Request<cri::StreamImagesRequest>,
    ) -> RpcResult<Self::StreamImagesStream> {
        with_deadline(request, |cri::StreamImagesRequest { filter }| async {
            let images = self.list(filter).await?;
            Ok(batch::stream(images, |images| cri::StreamImagesResponse {
                images,
            }))
        })
        .await
    }

    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> RpcResult<cri::ImageStatusResponse> {
        with_deadline(request, |request| self.find(request)).await
    }

    async fn pull_image(
        &self,
        request: Request<cri::PullImageRequest>,
    ) -> RpcResult<cri::PullImageResponse> {
        with_deadline(request, |request| self.pull(request)).await
    }

    async fn remove_image(
        &self,
        request: Request<cri::RemoveImageRequest>,
    ) -> RpcResult<cri::RemoveImageResponse> {
        with_deadline(request, |request| self.remove(request)).await
    }

    async fn image_fs_info(
        &self,
        request: Request<cri::ImageFsInfoRequest>,
    ) -> RpcResult<cri::ImageFsInfoResponse> {
        with_deadline(request, |cri::ImageFsInfoRequest {}| self.usage()).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use cri::image_service_server::ImageService;
    use switchyard_core::gateway::{Gateway, Limits};
    use switchyard_core::id::Owner;
    use switchyard_fake::{BUSYBOX, Fake, Method};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pull_is_cancelled_with_its_client() {
        let fake = Fake::with_busybox();
        let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
        gateway.recover().await.expect("the fake recovers");
        let images = Images::new(gateway.scope(Owner::Kubernetes));
        let _held = fake.hold(Method::Pull);
        let image = Some(cri::ImageSpec {
            image: BUSYBOX.into(),
            ..Default::default()
        });
        let mut request = Request::new(cri::PullImageRequest {
            image,
            ..Default::default()
        });
        request.set_timeout(Duration::from_millis(100));
        let status = images
            .pull_image(request)
            .await
            .expect_err("the registry hangs");
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        let missing = images.find(cri::ImageStatusRequest {
            image: Some(cri::ImageSpec {
                image: BUSYBOX.into(),
                ..Default::default()
            }),
            verbose: false,
        });
        assert_eq!(missing.await.expect("it answers").image, None);
    }
}
