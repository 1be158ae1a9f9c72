//! The calls of the image service.

use switchyard_proto::cri::v1 as cri;
use tonic::Status;

use super::{Cri, image_spec};

impl Cri {
    /// `PullImage`; the id of the image.
    ///
    /// # Errors
    /// The status of the call.
    pub fn pull(&self, reference: &str, auth: Option<cri::AuthConfig>) -> Result<String, Status> {
        let request = cri::PullImageRequest {
            image: Some(image_spec(reference)),
            auth,
            sandbox_config: None,
        };
        self.images(async |mut client| client.pull_image(request).await)
            .map(|answer| answer.image_ref)
    }

    /// `ImageStatus`; nothing when the image is not there.
    ///
    /// # Errors
    /// The status of the call.
    pub fn image(&self, reference: &str) -> Result<Option<cri::Image>, Status> {
        let request = cri::ImageStatusRequest {
            image: Some(image_spec(reference)),
            verbose: false,
        };
        self.images(async |mut client| client.image_status(request).await)
            .map(|answer| answer.image)
    }

    /// `ListImages` without a filter.
    ///
    /// # Errors
    /// The status of the call.
    pub fn list_images(&self) -> Result<Vec<cri::Image>, Status> {
        self.images(async |mut client| client.list_images(cri::ListImagesRequest::default()).await)
            .map(|answer| answer.images)
    }

    /// `RemoveImage`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn remove_image(&self, reference: &str) -> Result<(), Status> {
        let request = cri::RemoveImageRequest {
            image: Some(image_spec(reference)),
        };
        self.images(async |mut client| client.remove_image(request).await)
            .map(drop)
    }
}
