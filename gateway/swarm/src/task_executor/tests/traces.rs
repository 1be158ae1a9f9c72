//! The trace of an assignment.

use parking_lot::Mutex;
use switchyard_core::trace::{EndedSpan, Sampler, SpanSink, Tracer};

use super::*;

#[derive(Debug, Default)]
struct Kept(Mutex<Vec<EndedSpan>>);

impl SpanSink for Kept {
    fn ended(&self, span: EndedSpan) {
        self.0.lock().push(span);
    }
}

async fn traced_node() -> (TestNode, Arc<Kept>) {
    let node = TestNode::new().await;
    let kept = Arc::new(Kept::default());
    node.operations
        .trace(Tracer::new(Sampler::All, Arc::clone(&kept) as _));
    (node, kept)
}

#[tokio::test]
async fn assignment_is_one_trace_until_the_task_runs() {
    let (node, kept) = traced_node().await;
    node.assign(running(1, &[])).await;
    node.reported(1, State::Running).await;
    node.assign(wanted(running(1, &[]), State::Shutdown)).await;
    node.reported(1, State::Shutdown).await;
    let spans = kept.0.lock().clone();
    let named = |name: &str| {
        spans
            .iter()
            .find(|span| span.name == name)
            .unwrap_or_else(|| panic!("{name}: {spans:?}"))
    };
    let assignment = named("swarm_assignment");
    assert_eq!(
        (assignment.parent, assignment.failure.as_deref()),
        (None, None)
    );
    for name in ["create_sandbox", "create_task", "start_task"] {
        assert_eq!(named(name).parent, Some(assignment.context.span), "{name}");
    }
    // What happens to it later is not of its start.
    assert_ne!(named("stop_task").context.trace, assignment.context.trace);
}

#[tokio::test]
async fn failed_assignment_says_why() {
    let (node, kept) = traced_node().await;
    node.fake.fail_next(
        Method::CreateTask,
        Error::failed_precondition("no room for it"),
    );
    node.assign(running(1, &[])).await;
    node.reported(1, State::Rejected).await;
    let spans = kept.0.lock();
    let assignment = spans
        .iter()
        .find(|span| span.name == "swarm_assignment")
        .unwrap();
    assert!(
        assignment
            .failure
            .as_deref()
            .is_some_and(|why| why.contains("no room for it")),
        "{assignment:?}"
    );
}
