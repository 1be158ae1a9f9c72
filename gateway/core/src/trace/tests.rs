//! Tests of contexts, samplers and trees, with a sink that keeps the spans.

use parking_lot::Mutex;

use super::*;
use crate::error::Error;
use crate::id::Owner;
use crate::operation::{
    EndedOperation, OperationKind, OperationObserver, Operations, Subject, plain_step, step,
};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[derive(Debug, Default)]
struct Kept(Mutex<Vec<EndedSpan>>);

impl SpanSink for Kept {
    fn ended(&self, span: EndedSpan) {
        self.0.lock().push(span);
    }
}

impl Kept {
    /// Each span with the name of the one above it, in the order of their ends.
    fn tree(&self) -> Vec<(String, String)> {
        let spans = self.0.lock();
        let above = |span: &EndedSpan| {
            let named = spans
                .iter()
                .find(|other| Some(other.context.span) == span.parent);
            named.map_or_else(
                || span.parent.map(|id| id.to_string()).unwrap_or_default(),
                |other| other.name.to_string(),
            )
        };
        spans
            .iter()
            .map(|span| (span.name.to_string(), above(span)))
            .collect()
    }
}

fn tracer(sampler: Sampler) -> (Tracer, Arc<Kept>) {
    let kept = Arc::new(Kept::default());
    (Tracer::new(sampler, Arc::clone(&kept) as _), kept)
}

fn caller() -> SpanContext {
    SpanContext::parse(PARENT).unwrap()
}

fn pairs(tree: &[(&str, &str)]) -> Vec<(String, String)> {
    tree.iter()
        .map(|(name, above)| ((*name).to_owned(), (*above).to_owned()))
        .collect()
}

#[test]
fn context_is_read_by_the_rules_of_w3c() {
    assert_eq!(caller().traceparent(), PARENT);
    assert!(caller().is_sampled);
    let with = |from: &str, to: &str| SpanContext::parse(&PARENT.replacen(from, to, 1));
    assert!(!with("-01", "-02").unwrap().is_sampled);
    // Of a later version, what is known of it.
    assert_eq!(with("00-", "cc-").unwrap().traceparent(), PARENT);
    assert_eq!(
        SpanContext::parse(&format!("cc{}-what-ever", &PARENT[2..])),
        Some(caller())
    );
    for wrong in [
        "",
        "00",
        &PARENT[..54],
        &PARENT.to_uppercase(),
        &format!("{PARENT}-00"),
        &format!("{PARENT} "),
        &format!("cc{}x", &PARENT[2..]),
        &format!("ff{}", &PARENT[2..]),
        &PARENT.replace("b7ad6b7169203331", "0000000000000000"),
        &PARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
        &PARENT.replacen('-', "_", 1),
        &PARENT.replace("0af7", "+af7"),
        &"ä".repeat(60),
    ] {
        assert_eq!(SpanContext::parse(wrong), None, "{wrong:?}");
    }
}

#[test]
fn state_of_other_systems_is_kept_only_if_it_is_valid_and_bounded() {
    for valid in [
        "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
        "a=b, ,c@d=e f",
        "0x=1",
        "t@s=!~",
    ] {
        assert_eq!(TraceState::parse(valid).unwrap().as_str(), valid);
    }
    let many: Vec<_> = (0..33).map(|number| format!("k{number}=v")).collect();
    let long = format!("a={}", "x".repeat(257));
    let longer = format!("a={0},b={0},c={0}", "x".repeat(200));
    for wrong in [
        "",
        " , ",
        "a",
        "A=b",
        "a=",
        "=b",
        "a=b=c",
        "a=b,a=c",
        "a=\u{e4}",
        &many.join(","),
        &long,
        &longer,
    ] {
        assert_eq!(TraceState::parse(wrong), None, "{wrong:?}");
    }
}

#[test]
fn sampler_follows_the_caller_or_the_share() {
    let (tracer, _kept) = tracer(Sampler::All);
    let ids: Vec<_> = (0..4000)
        .map(|_| tracer.root(SpanKind::Internal, "x", None).context().trace)
        .collect();
    let count = |sampler: Sampler, caller| {
        ids.iter()
            .filter(|id| sampler.samples(**id, caller))
            .count()
    };
    assert_eq!(count(Sampler::All, Some(false)), 4000);
    assert_eq!(count(Sampler::Nothing, Some(true)), 0);
    assert_eq!(count(Sampler::CallerOrAll, Some(false)), 0);
    assert_eq!(count(Sampler::CallerOrNothing, Some(true)), 4000);
    assert_eq!(count(Sampler::CallerOrShare(0.0), Some(true)), 4000);
    assert_eq!(
        (
            count(Sampler::Share(0.0), None),
            count(Sampler::Share(1.0), None)
        ),
        (0, 4000)
    );
    let quarter = count(Sampler::CallerOrShare(0.25), None);
    assert!((800..1200).contains(&quarter), "{quarter}");
}

#[tokio::test]
async fn operations_and_steps_are_below_the_call_that_began_them_also_when_it_is_gone() {
    let (tracer, kept) = tracer(Sampler::CallerOrAll);
    let operations = Operations::default();
    operations.trace(tracer.clone());
    let begin = move |kind| {
        operations.begin(
            kind,
            Some(Owner::Nomad),
            None,
            Subject::argument("the program"),
        )
    };
    let call = tracer.request("call", Some(caller()));
    let detached = call.enter(|| {
        let remove = begin(OperationKind::RemoveSandbox).run(step("remove_tasks", async move {
            let part = begin(OperationKind::StopSandbox).run(step("kill", async { Ok(()) }));
            tokio::spawn(part).await.unwrap()
        }));
        tokio::spawn(inherit(remove))
    });
    call.end();
    detached.await.unwrap().unwrap();
    let expected = [
        ("call", "b7ad6b7169203331"),
        ("kill", "stop_sandbox"),
        ("stop_sandbox", "remove_tasks"),
        ("remove_tasks", "remove_sandbox"),
        ("remove_sandbox", "call"),
    ];
    assert_eq!(kept.tree(), pairs(&expected));
    let spans = kept.0.lock();
    assert!(
        spans
            .iter()
            .all(|span| span.context.trace == caller().trace && span.failure.is_none())
    );
    // The program of a command is in no span.
    let owner = Attribute {
        key: "switchyard.owner",
        value: "nomad".into(),
    };
    let [first, id] = &*spans[4].attributes else {
        panic!("{spans:?}")
    };
    assert_eq!((first, id.key), (&owner, "switchyard.operation.id"));
    // A part has the id of its operation.
    assert!(spans[2].attributes.contains(id), "{spans:?}");
}

#[tokio::test]
async fn operation_without_a_call_is_a_tree_and_says_why_it_failed() {
    let (tracer, kept) = tracer(Sampler::All);
    let operations = Operations::default();
    operations.trace(tracer);
    let image = format!("registry.example/{}", "x".repeat(400));
    let pull = operations.begin(
        OperationKind::PullImage,
        None,
        None,
        Subject::argument(&image),
    );
    pull.run(async { Err::<(), _>(Error::unavailable("e".repeat(1000))) })
        .await
        .unwrap_err();
    drop(operations.begin(OperationKind::PullImage, None, None, Subject::default()));
    let spans = kept.0.lock();
    assert_eq!(spans[0].parent, None);
    assert_eq!(spans[0].failure, Some("e".repeat(TEXT_MAX)));
    let said = |span: &EndedSpan| -> Vec<(&'static str, String)> {
        let text = |value: &AttributeValue| match value {
            AttributeValue::Text(text) => text.to_string(),
            AttributeValue::Number(number) => number.to_string(),
        };
        span.attributes
            .iter()
            .filter(|attribute| attribute.key != "switchyard.operation.id")
            .map(|attribute| (attribute.key, text(&attribute.value)))
            .collect()
    };
    let cut = image[..TEXT_MAX].to_owned();
    assert_eq!(
        said(&spans[0]),
        [
            ("switchyard.image", cut.clone()),
            ("container.image.name", cut),
            ("error.type", "unavailable".to_owned()),
        ]
    );
    assert_eq!(spans[1].failure.as_deref(), Some("it was given up"));
    assert_eq!(said(&spans[1]), [("error.type", "cancelled".to_owned())]);
}

#[tokio::test]
async fn step_fails_with_its_work_unless_its_error_is_not_for_others() {
    let (tracer, kept) = tracer(Sampler::All);
    let operations = Operations::default();
    operations.trace(tracer);
    let stop = operations.begin(OperationKind::StopSandbox, None, None, Subject::default());
    let work = async {
        let failed = || async {
            Err::<(), _>(Error::unavailable("away").with_source(Error::internal("why")))
        };
        plain_step("contact", failed()).await.unwrap_err();
        step("kill", failed()).await
    };
    stop.run(work).await.unwrap_err();
    let spans = kept.0.lock();
    let failures: Vec<_> = spans
        .iter()
        .map(|span| (&*span.name, span.failure.as_deref()))
        .collect();
    let failed = Some("away: why");
    assert_eq!(
        failures,
        [
            ("contact", None),
            ("kill", failed),
            ("stop_sandbox", failed)
        ]
    );
}

#[tokio::test]
async fn probe_is_recorded_only_for_a_caller_that_records_it_or_with_everything() {
    for (sampler, by_itself) in [
        (Sampler::All, true),
        (Sampler::CallerOrAll, false),
        (Sampler::CallerOrShare(1.0), false),
        (Sampler::Share(1.0), false),
    ] {
        let (tracer, kept) = tracer(sampler);
        let operations = Operations::default();
        operations.trace(tracer.clone());
        let probe = || operations.begin(OperationKind::ExecSync, None, None, Subject::default());
        // A health check of the node's own, a kubelet's probe, and the same of one that traces.
        probe().run(async { Ok(()) }).await.unwrap();
        let call = tracer.probe(SpanKind::Server, "call", None);
        let probed = call.enter(probe);
        probed.run(async { Ok(()) }).await.unwrap();
        call.end();
        assert_eq!(kept.tree().is_empty(), !by_itself, "{sampler:?}");
        let before = kept.tree().len();
        let call = tracer.probe(SpanKind::Server, "call", Some(caller()));
        let probed = call.enter(probe);
        probed.run(async { Ok(()) }).await.unwrap();
        call.end();
        assert_eq!(kept.tree().len(), before + 2, "{sampler:?}");
    }
}

/// An observer for which the argument of an operation is the name of a pod.
struct Pods;

impl OperationObserver for Pods {
    fn operation_ended(&self, _: &EndedOperation<'_>) {}

    fn span_attributes(&self, subject: &Subject) -> Vec<(&'static str, String)> {
        let argument = subject.argument.clone().unwrap_or_default();
        vec![("k8s.pod.name", argument)]
    }
}

#[tokio::test]
async fn operation_says_what_its_owner_calls_its_objects() {
    let (tracer, kept) = tracer(Sampler::CallerOrAll);
    let operations = Operations::default();
    operations.trace(tracer);
    operations.observe(Arc::new(Pods));
    let begun = operations.begin(
        OperationKind::StopSandbox,
        None,
        None,
        Subject::argument("web"),
    );
    begun.run(async { Ok(()) }).await.unwrap();
    let name = Attribute {
        key: "k8s.pod.name",
        value: "web".into(),
    };
    assert!(kept.0.lock()[0].attributes.contains(&name));
}

#[tokio::test]
async fn trace_that_is_not_sampled_is_handed_on_unchanged() {
    let (tracer, kept) = tracer(Sampler::CallerOrAll);
    let unsampled = SpanContext::parse(&PARENT.replace("-01", "-00")).unwrap();
    let call = tracer.request("call", Some(unsampled.clone()));
    let below = call.scope(traced("work", |_| (), async {
        let span = begin(SpanKind::Client, "deeper").expect("it is in a tree");
        Ok(span.context().clone())
    }));
    assert_eq!(below.await.unwrap(), unsampled);
    call.end();
    assert_eq!(kept.tree(), []);
}

#[tokio::test]
async fn query_of_a_caller_without_a_trace_is_recorded_only_with_work_below_it() {
    let (tracer, kept) = tracer(Sampler::All);
    tracer.request("list", None).end();
    tracer.request("traced list", Some(caller())).end();
    let call = tracer.request("create", None);
    call.scope(traced("work", |span| span.set("count", 3), async {
        Ok(())
    }))
    .await
    .unwrap();
    call.end();
    let expected = [
        ("traced list", "b7ad6b7169203331"),
        ("work", "create"),
        ("create", ""),
    ];
    assert_eq!(kept.tree(), pairs(&expected));
}

#[tokio::test]
async fn work_that_begins_after_the_answer_is_below_the_call_that_asked_for_it() {
    let (tracer, kept) = tracer(Sampler::All);
    let call = tracer.request("exec", None);
    let place = call.enter(TracePlace::current);
    call.end();
    TracePlace::enter(place.as_ref(), || begin(SpanKind::Internal, "command"))
        .unwrap()
        .end();
    // Within another call it is below that one.
    let other = tracer.root(SpanKind::Server, "other", None);
    let inside = || TracePlace::enter(place.as_ref(), || begin(SpanKind::Internal, "inner"));
    other.enter(inside).unwrap().end();
    other.end();
    let spans = kept.0.lock();
    let [call, command, inner, other] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!(command.parent, Some(call.context.span));
    assert_eq!(inner.parent, Some(other.context.span));
    assert!(TracePlace::current().is_none());
}

#[tokio::test]
async fn without_a_tracer_nothing_begins() {
    assert!(begin(SpanKind::Internal, "work").is_none());
    let operations = Operations::default();
    let work = operations.begin(OperationKind::PullImage, None, None, Subject::default());
    let inside = step("step", async {
        Ok(begin(SpanKind::Internal, "work").is_none())
    });
    assert!(work.run(inside).await.unwrap());
}
