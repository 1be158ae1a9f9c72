//! Tests of the RPC layer in a real tonic server, and of the listener's checks before it.

use std::sync::Arc;

use switchyard_daemon::layer::RpcLayer;
use switchyard_operator::metrics::{Metrics, NodeCounts};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1::image_service_server::{ImageService, ImageServiceServer};
use switchyard_socket::channel;
use switchyard_socket::listener::{GuardedListener, OwnConnections};
use tonic::codec::Streaming;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use crate::support::soon;

/// Has no images, and says so in each of the ways there are.
struct Empty;

type Listed = tokio_stream::Pending<Result<cri::StreamImagesResponse, Status>>;

#[tonic::async_trait]
impl ImageService for Empty {
    type StreamImagesStream = Listed;

    async fn list_images(
        &self,
        _: Request<cri::ListImagesRequest>,
    ) -> Result<Response<cri::ListImagesResponse>, Status> {
        Ok(Response::new(cri::ListImagesResponse::default()))
    }

    async fn stream_images(
        &self,
        _: Request<cri::StreamImagesRequest>,
    ) -> Result<Response<Listed>, Status> {
        Ok(Response::new(tokio_stream::pending()))
    }

    async fn image_status(
        &self,
        _: Request<cri::ImageStatusRequest>,
    ) -> Result<Response<cri::ImageStatusResponse>, Status> {
        Err(Status::new(Code::NotFound, "no such image"))
    }

    async fn pull_image(
        &self,
        _: Request<cri::PullImageRequest>,
    ) -> Result<Response<cri::PullImageResponse>, Status> {
        std::future::pending().await
    }

    async fn remove_image(
        &self,
        _: Request<cri::RemoveImageRequest>,
    ) -> Result<Response<cri::RemoveImageResponse>, Status> {
        Err(Status::new(Code::Unavailable, "not now"))
    }

    async fn image_fs_info(
        &self,
        _: Request<cri::ImageFsInfoRequest>,
    ) -> Result<Response<cri::ImageFsInfoResponse>, Status> {
        Ok(Response::new(cri::ImageFsInfoResponse::default()))
    }
}

fn scrape(metrics: &Metrics) -> String {
    String::from_utf8(metrics.render(&NodeCounts::default()).unwrap()).unwrap()
}

#[track_caller]
fn check(text: &str, method: &str, code: &str) {
    let method = format!("method=\"runtime.v1.ImageService/{method}\"");
    let line =
        format!("switchyard_rpc_requests_total{{code=\"{code}\",{method},protocol=\"cri\"}} 1");
    assert!(text.contains(&line), "{line} is missing in {text}");
}

#[tokio::test]
async fn real_server_calls_are_counted_by_method_and_code() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cri.sock");
    let listener = GuardedListener::bind(&socket, None).unwrap();
    let metrics = Arc::new(Metrics::new().unwrap());
    let server = Server::builder()
        .layer(RpcLayer::new("cri", &metrics, None))
        .add_service(ImageServiceServer::new(Empty));
    tokio::spawn(server.serve_with_incoming(listener.into_stream(OwnConnections::none())));
    let mut client = ImageServiceClient::new(channel::grpc(&socket).await.unwrap());

    client
        .list_images(cri::ListImagesRequest::default())
        .await
        .unwrap();
    client
        .image_status(cri::ImageStatusRequest::default())
        .await
        .unwrap_err();
    client
        .remove_image(cri::RemoveImageRequest::default())
        .await
        .unwrap_err();
    let mut hasty = Request::new(cri::PullImageRequest::default());
    hasty.set_timeout(std::time::Duration::from_millis(50));
    client.pull_image(hasty).await.unwrap_err();
    let stream: Streaming<_> = client
        .stream_images(cri::StreamImagesRequest::default())
        .await
        .unwrap()
        .into_inner();
    drop(stream);

    let in_flight = || scrape(&metrics).contains("switchyard_rpc_in_flight{protocol=\"cri\"} 0");
    let idle = async {
        // The server learns of a dropped call by a separate frame.
        while !in_flight() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon("all calls to end", idle).await;
    let text = scrape(&metrics);
    check(&text, "ListImages", "OK");
    check(&text, "ImageStatus", "NOT_FOUND");
    check(&text, "RemoveImage", "UNAVAILABLE");
    check(&text, "StreamImages", "CANCELLED");
    // Either the server or the client may notice the deadline first.
    assert!(
        text.contains("method=\"runtime.v1.ImageService/PullImage\",protocol=\"cri\"} 1"),
        "{text}"
    );
    assert!(
        text.contains("switchyard_rpc_duration_seconds_bucket{"),
        "{text}"
    );
}
