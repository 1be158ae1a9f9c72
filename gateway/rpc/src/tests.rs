//! Tests of the end of calls, with bodies that end as gRPC's do.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use parking_lot::Mutex;

use super::*;

#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<Code>>>);

impl CallObserver for Ends {
    fn ended(self, code: Code) {
        self.0.lock().push(code);
    }
}

impl Ends {
    fn all(&self) -> Vec<Code> {
        self.0.lock().clone()
    }
}

fn headers(status: Option<&str>) -> HeaderMap {
    status
        .map(|code| ("grpc-status".parse().unwrap(), code.parse().unwrap()))
        .into_iter()
        .collect()
}

fn body(status: Option<&str>) -> impl Body<Data = Bytes, Error = Infallible> + Unpin + use<> {
    Full::new(Bytes::from_static(b"answer")).with_trailers(ready(Some(Ok(headers(status)))))
}

#[tokio::test]
async fn a_call_ends_with_its_trailers() {
    let ends = Ends::default();
    let response = Call::begin(ends.clone()).watch(Response::new(body(Some("0"))));
    assert_eq!(ends.all(), []);
    let whole = response.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers(), Some(&headers(Some("0"))));
    assert_eq!(whole.to_bytes(), "answer");
    assert_eq!(ends.all(), [Code::Ok]);
}

#[tokio::test]
async fn a_call_that_fails_before_data_ends_with_its_headers_and_once() {
    let ends = Ends::default();
    let mut response = Response::new(Empty::<Bytes>::new());
    *response.headers_mut() = headers(Some("5"));
    let response = Call::begin(ends.clone()).watch(response);
    assert_eq!(ends.all(), [Code::NotFound]);
    drop(response.into_body().collect().await.unwrap());
    assert_eq!(ends.all(), [Code::NotFound]);
}

#[tokio::test]
async fn a_response_without_status_ends_as_unknown() {
    for body in [
        body(None).boxed(),
        Full::new(Bytes::from_static(b"cut")).boxed(),
    ] {
        let ends = Ends::default();
        let response = Call::begin(ends.clone()).watch(Response::new(body));
        drop(response.into_body().collect().await.unwrap());
        assert_eq!(ends.all(), [Code::Unknown]);
    }
}

#[test]
fn a_call_that_is_dropped_was_given_up() {
    let ends = Ends::default();
    drop(Call::begin(ends.clone()));
    drop(Call::begin(ends.clone()).watch(Response::new(body(Some("0")))));
    assert_eq!(ends.all(), [Code::Cancelled; 2]);
}
