//! Tests of operations with an observer that records their events.

use std::sync::Arc;

use parking_lot::Mutex;

use super::*;

#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl OperationObserver for Recorder {
    fn operation_ended(&self, operation: &EndedOperation<'_>) {
        let outcome = match operation.outcome {
            Outcome::Succeeded => "succeeded".to_owned(),
            Outcome::Failed(error) => error.kind().as_str().to_owned(),
            Outcome::Dropped => "dropped".to_owned(),
        };
        let caller = operation.caller.map_or("nobody", |caller| caller.listener);
        self.0
            .lock()
            .push(format!("{} {outcome} for {caller}", operation.kind));
    }

    fn step_ended(&self, step: EndedStep) {
        let EndedStep {
            operation,
            name,
            took: _,
            failure,
        } = step;
        let failure = failure.map_or_else(String::new, |kind| format!(" {}", kind.as_str()));
        self.0.lock().push(format!("{operation}: {name}{failure}"));
    }
}

fn observed() -> (Operations, Arc<Recorder>) {
    let operations = Operations::default();
    let recorder = Arc::new(Recorder::default());
    operations.observe(Arc::clone(&recorder) as _);
    (operations, recorder)
}

fn begin(operations: &Operations, kind: OperationKind) -> PendingOperation {
    operations.begin(
        kind,
        Some(Owner::Nomad),
        Caller::current(),
        Subject::default(),
    )
}

fn caller() -> Caller {
    Caller {
        listener: "nomad",
        uid: Some(0),
        pid: Some(1),
    }
}

#[tokio::test]
async fn work_inside_an_operation_is_a_part_of_it() {
    let (operations, recorder) = observed();
    let stop =
        || begin(&operations, OperationKind::StopSandbox).run(step("kill", async { Ok(()) }));
    let remove = begin(&operations, OperationKind::RemoveSandbox).run(async {
        // As the gateway does it: the nested work is begun here and executed by a task of its own.
        tokio::spawn(stop()).await.unwrap()
    });
    remove.await.unwrap();
    assert_eq!(
        *recorder.0.lock(),
        [
            "remove_sandbox: kill",
            "remove_sandbox succeeded for nobody"
        ]
    );
    stop().await.unwrap();
    assert_eq!(
        recorder.0.lock()[2..],
        ["stop_sandbox: kill", "stop_sandbox succeeded for nobody"]
    );
}

#[tokio::test]
async fn operation_shows_its_caller_and_overlapping_steps_while_it_runs() {
    let (operations, recorder) = observed();
    let work = async {
        let slow = step("network", std::future::pending::<Result<()>>());
        let quick = plain_step("files", tokio::task::yield_now());
        let mut both = Box::pin(futures::future::join(slow, quick));
        assert!(futures::poll!(&mut both).is_pending());
        let shown = operations.in_flight();
        let [only] = shown.as_slice() else {
            panic!("{shown:?}")
        };
        assert_eq!(only.caller, Some(caller()));
        let steps: Vec<_> = only.steps.iter().map(|(name, _)| *name).collect();
        assert_eq!(steps, ["network", "files"]);
        assert!(futures::poll!(&mut both).is_pending());
        assert_eq!(operations.in_flight()[0].steps.len(), 1);
        Err::<(), _>(Error::unavailable("no network"))
    };
    let operation = caller().scope(async {
        begin(&operations, OperationKind::CreateSandbox)
            .run(work)
            .await
    });
    operation.await.unwrap_err();
    let expected = [
        "create_sandbox: files",
        "create_sandbox: network cancelled",
        "create_sandbox unavailable for nomad",
    ];
    assert_eq!(*recorder.0.lock(), expected);
    assert!(operations.in_flight().is_empty());
}

#[tokio::test]
async fn step_is_reported_with_the_kind_of_its_error_unless_that_is_not_for_others() {
    let (operations, recorder) = observed();
    let late = || async { Err::<(), _>(Error::deadline("the runtime hangs")) };
    let work = async {
        plain_step("contact", late()).await.unwrap_err();
        step("start_command", late()).await
    };
    let operation = begin(&operations, OperationKind::ExecSync).run(work);
    operation.await.unwrap_err();
    let expected = [
        "exec_sync: contact",
        "exec_sync: start_command deadline_exceeded",
        "exec_sync deadline_exceeded for nobody",
    ];
    assert_eq!(*recorder.0.lock(), expected);
}

#[tokio::test]
async fn dropped_operation_is_reported_once() {
    let (operations, recorder) = observed();
    drop(begin(&operations, OperationKind::PullImage));
    let mut pull = Box::pin(
        begin(&operations, OperationKind::PullImage).run(std::future::pending::<Result<()>>()),
    );
    assert!(futures::poll!(&mut pull).is_pending());
    let owned = Some(Owner::Nomad);
    assert_eq!(
        operations
            .ages()
            .get(&(owned, OperationKind::PullImage))
            .map(|(count, _)| *count),
        Some(1)
    );
    drop(pull);
    let dropped = "pull_image dropped for nobody";
    assert_eq!(*recorder.0.lock(), [dropped, dropped]);
    assert!(operations.ages().is_empty());
}

#[tokio::test]
async fn caller_is_inherited_by_spawned_work() {
    let inherited = caller().scope(async {
        tokio::spawn(Caller::inherit(async { Caller::current() }))
            .await
            .unwrap()
    });
    assert_eq!(inherited.await, Some(caller()));
    assert_eq!(Caller::inherit(async { Caller::current() }).await, None);
}

/// An observer that knows a name of every object.
struct Named;

impl OperationObserver for Named {
    fn operation_ended(&self, _: &EndedOperation<'_>) {
        // The line that is written here is about the operation.
        assert_eq!(log_context()[0].1, "stop_sandbox");
    }

    fn names(&self, _: &Subject) -> Vec<ContextField> {
        vec![("pod", "web".to_owned())]
    }
}

#[tokio::test]
async fn lines_of_detached_work_name_the_operation_that_began_it() {
    let operations = Operations::default();
    operations.observe(Arc::new(Named));
    assert!(log_context().is_empty());
    let work = async {
        let own = log_context();
        let detached = tokio::spawn(inherit(async {
            // It is no part of the operation.
            assert!(current().is_none());
            let below = tokio::spawn(inherit(async { log_context() }));
            (log_context(), below.await.unwrap())
        }));
        let lost = tokio::spawn(async { log_context() });
        Ok((own, detached.await.unwrap(), lost.await.unwrap()))
    };
    let stop = begin(&operations, OperationKind::StopSandbox).run(work);
    let (own, (detached, below), lost) = stop.await.unwrap();
    let names: Vec<_> = own.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["operation", "operation_id", "owner", "pod"]);
    assert!(own[1].1.ends_with("-0"), "{own:?}");
    assert_eq!((&detached, &below), (&own, &own));
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn argument_is_cut_at_a_character() {
    let long = "ä".repeat(ARGUMENT_MAX);
    let argument = Subject::argument(&long).argument.unwrap();
    assert_eq!(argument.len(), ARGUMENT_MAX);
    let odd = format!("x{long}");
    assert_eq!(
        Subject::argument(&odd).argument.unwrap().len(),
        ARGUMENT_MAX - 1
    );
}

#[test]
fn words_of_kinds_are_distinct() {
    let words: std::collections::BTreeSet<_> = OperationKind::ALL
        .iter()
        .map(|kind| kind.as_str())
        .collect();
    assert_eq!(words.len(), OperationKind::ALL.len());
}
