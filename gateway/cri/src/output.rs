//! Keeps the share of the output budget of a command's answer until its data have been sent.
//!
//! The handler returns the share with the answer, as an extension of the response, which a server drops as soon as it has
//! sent the headers. The data of a client that does not read wait in the buffers of its connection for much longer, so
//! that the share moves into them.

use std::sync::Arc;

use http_body_util::BodyExt;
use prost::bytes::Bytes;
use switchyard_core::gateway::OutputShare;
use tonic::Response;
use tonic::body::Body;
use tonic::codegen::http;

/// A part of a response, which occupies the budget until it is dropped.
struct CountedData {
    data: Bytes,
    _share: Arc<OutputShare>,
}

impl AsRef<[u8]> for CountedData {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// The answer, with its share of the budget attached.
pub(crate) fn attach<T>(answered: Response<(T, OutputShare)>) -> Response<T> {
    let (metadata, (answer, share), mut extensions) = answered.into_parts();
    // An extension has to be `Clone`.
    extensions.insert(Arc::new(share));
    Response::from_parts(metadata, answer, extensions)
}

/// The same response, with the attached share in its data.
pub(crate) fn hold(mut response: http::Response<Body>) -> http::Response<Body> {
    let Some(share) = response.extensions_mut().remove::<Arc<OutputShare>>() else {
        return response;
    };
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            frame.map_data(|data| {
                Bytes::from_owner(CountedData {
                    data,
                    _share: Arc::clone(&share),
                })
            })
        }))
    })
}
