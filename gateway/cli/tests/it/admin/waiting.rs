//! Pages that have several sources wait for all of them together.

use std::sync::Arc;

use parking_lot::Mutex;
use switchyard_fake::{Hold, Method};
use switchyard_operator::control::Reporter;
use switchyard_operator::status::Part;

use super::Pages;
use super::node::TestNode;

/// A component that lets the images be listed as soon as it is asked for its parts.
struct Releasing(Mutex<Option<Hold>>);

impl Reporter for Releasing {
    fn parts(&self) -> Vec<Part> {
        drop(self.0.lock().take());
        Vec::new()
    }
}

#[tokio::test]
async fn metrics_wait_for_their_sources_together() {
    let node = TestNode::new().await;
    let hold = node.fake.hold(Method::ListImages);
    let releasing = Releasing(Mutex::new(Some(hold)));
    let pages = Pages::serve(node.with_reporter(Arc::new(releasing))).await;
    let metrics = pages.get_tcp("/metrics").await;
    // One after the other, the images would be given up before the parts are asked.
    assert!(metrics.contains("\nswitchyard_images 1\n"), "{metrics}");
}
