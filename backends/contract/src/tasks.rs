//! Facts about tasks.

use std::time::Duration;

use switchyard_core::backend::{ExecPlace, Withdrawal};
use switchyard_core::id::TaskId;
use switchyard_core::spec::{Mount, MountSource, Output, PidMode, Signal};
use switchyard_core::state::{ExitCause, START_FAILED_CODE};
use switchyard_core::stats::Usage;
use switchyard_core::stream::AttachSpec;
use switchyard_core::{ErrorKind, Reason};

use crate::contract_test::{ContractTest, ENDLESS, exit_of, same_exit, task_in};
use crate::refused;
use crate::{Fixture, MISSING_EXECUTABLE, specs};

/// A shell that exits with 7 on SIGTERM, and not before.
const LISTENING: &[&str] = &[
    "sh",
    "-c",
    "trap 'exit 7' TERM; while true; do sleep 0.05; done",
];

/// Number of starts needed to see the effect of a signal at different moments after them.
const STARTS: u32 = 10;

/// All of them return `NotFound`.
pub async fn unknown_task_cannot_be_started_awaited_or_entered(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    let backend = &test.backend;
    let id = TaskId::random();
    assert_eq!(
        refused(backend.start_task(id, &Withdrawal::default()).await),
        ErrorKind::NotFound
    );
    assert_eq!(refused(backend.wait_task(id).await), ErrorKind::NotFound);
    assert_eq!(
        refused(
            backend
                .exec(id, &specs::exec(&["true"]), ExecPlace::uncounted())
                .await
        ),
        ErrorKind::NotFound
    );
    assert_eq!(refused(backend.inspect_task(id).await), ErrorKind::NotFound);
    assert!(
        backend
            .task_stats(&[id])
            .await
            .expect("stats leave it out")
            .is_empty()
    );
}

/// Removing a task that does not exist succeeds.
pub async fn removal_of_an_unknown_task_succeeds(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    test.backend
        .remove_task(TaskId::random())
        .await
        .expect("remove");
}

/// `NotFound`, and neither the task nor any part of it exists.
pub async fn task_with_missing_image_is_not_found_and_leaves_nothing_behind(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    let sandbox = test.sandbox("pod").await;
    let mut spec = fixture.task_spec("task", ENDLESS);
    spec.image = "localhost/no/such-image:1".into();
    let result = test
        .backend
        .create_task(TaskId::random(), sandbox.id, &spec)
        .await;
    assert_eq!(refused(result), ErrorKind::NotFound);
    let found = test.reopen().await;
    assert_eq!((found.sandboxes.len(), found.tasks.len()), (1, 0));
}

/// Waiters before, during and after the exit get the same result.
pub async fn every_waiter_gets_the_exit_code_also_after_exit(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, started) = test
        .running(sandbox.id, "task", &["sh", "-c", "sleep 0.3; exit 3"])
        .await;
    let (first, second) = tokio::join!(test.wait(task.id), test.wait(task.id));
    assert_eq!((first.code, &first.cause), (3, &ExitCause::Exited));
    assert!(
        first.finished_at >= started.at,
        "{first:?} ended before {started:?}"
    );
    same_exit(&second, &first);
    same_exit(&test.wait(task.id).await, &first);
    let (quick, _) = test.running(sandbox.id, "quick", &["true"]).await;
    assert_eq!(test.wait(quick.id).await.code, 0);
}

/// Dropping a waiter does not lose the exit.
pub async fn cancelled_wait_loses_no_exit(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, _) = test.running(sandbox.id, "task", ENDLESS).await;
    for _ in 0..3 {
        let waited =
            tokio::time::timeout(Duration::from_millis(20), test.backend.wait_task(task.id)).await;
        assert!(waited.is_err(), "it ended by itself: {waited:?}");
    }
    assert_eq!(test.kill(task.id).await.code, 137);
}

/// The pid of an existing process, and a start time that is not before the creation.
pub async fn started_task_has_pid_and_start_time(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (one, one_started) = test.running(sandbox.id, "one", ENDLESS).await;
    let (_, other_started) = test.running(sandbox.id, "other", ENDLESS).await;
    assert!(one_started.pid > 1 && other_started.pid > 1);
    assert_ne!(one_started.pid, other_started.pid);
    assert!(
        one_started.at >= one.spec.meta.created_at,
        "{one_started:?}"
    );
}

/// The main process's own handler handles it, also if it is sent right after the start: the signal is neither
/// lost nor handled by the runtime.
pub async fn signal_reaches_the_main_process(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    for number in 0..STARTS {
        let (task, _) = test
            .running(sandbox.id, &format!("task{number}"), LISTENING)
            .await;
        test.backend
            .signal_task(task.id, Signal::TERM)
            .await
            .expect("signal");
        let exit = test.wait(task.id).await;
        assert_eq!((exit.code, exit.cause), (7, ExitCause::Exited));
    }
}

/// The exit code is 128 plus the signal.
pub async fn sigkill_exits_a_task_with_137(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, _) = test.running(sandbox.id, "task", ENDLESS).await;
    let exit = test.kill(task.id).await;
    assert_eq!((exit.code, exit.cause), (137, ExitCause::Exited));
}

/// It is not an error, neither before the start nor after the exit.
pub async fn signal_to_a_task_that_does_not_run_succeeds(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let task = test.task(sandbox.id, "task", &["true"]).await;
    test.backend
        .signal_task(task.id, Signal::TERM)
        .await
        .expect("signal before the start");
    test.backend
        .start_task(task.id, &Withdrawal::default())
        .await
        .expect("start");
    assert_eq!(test.wait(task.id).await.code, 0);
    for signal in [Signal::TERM, Signal::KILL] {
        test.backend
            .signal_task(task.id, signal)
            .await
            .expect("signal after the end");
    }
    assert_eq!(test.wait(task.id).await.code, 0);
}

/// It fails with `Cancelled` before anything is done, and the task can be started later.
pub async fn start_withdrawn_before_it_begins_changes_nothing(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let task = test.task(sandbox.id, "task", &["sh", "-c", "exit 6"]).await;
    let withdrawal = Withdrawal::default();
    withdrawal.withdraw();
    let error = test
        .backend
        .start_task(task.id, &withdrawal)
        .await
        .expect_err("nobody wants it");
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Cancelled, Some(Reason::NotBegun)),
        "{error}"
    );
    test.backend
        .start_task(task.id, &Withdrawal::default())
        .await
        .expect("start");
    assert_eq!(test.wait(task.id).await.code, 6);
}

/// The start fails, and `wait` and `recover` return the reason, also for the next daemon.
pub async fn missing_executable_fails_the_start_and_is_recorded(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let task = test.task(sandbox.id, "task", &[MISSING_EXECUTABLE]).await;
    refused(
        test.backend
            .start_task(task.id, &Withdrawal::default())
            .await,
    );
    assert_eq!(test.wait(task.id).await.code, START_FAILED_CODE);
    for _ in 0..2 {
        let found = test.reopen().await;
        let found = task_in(&found, task.id);
        let exit = exit_of(found);
        assert_eq!(exit.code, START_FAILED_CODE);
        assert!(
            matches!(&exit.cause, ExitCause::StartFailed(why) if !why.is_empty()),
            "{exit:?}"
        );
        assert_eq!(found.state.pid(), None);
    }
    assert_eq!(test.wait(task.id).await.code, START_FAILED_CODE);
    test.backend.remove_task(task.id).await.expect("remove");
}

/// Removal is idempotent, and a removed task no longer exists.
pub async fn task_removal_is_idempotent(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, _) = test.running(sandbox.id, "task", &["true"]).await;
    test.wait(task.id).await;
    for _ in 0..3 {
        test.backend.remove_task(task.id).await.expect("remove");
    }
    assert_eq!(
        refused(test.backend.wait_task(task.id).await),
        ErrorKind::NotFound
    );
    assert!(test.reopen().await.tasks.is_empty());
}

/// It need not have been started.
pub async fn created_task_can_be_removed(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let task = test.task(sandbox.id, "task", ENDLESS).await;
    test.backend.remove_task(task.id).await.expect("remove");
    assert!(test.reopen().await.tasks.is_empty());
}

/// Tasks do not affect each other.
pub async fn tasks_of_one_sandbox_run_concurrently(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let codes = futures::future::join_all(["11", "12", "13", "14"].map(|code| {
        let test = &test;
        let sandbox = sandbox.id;
        async move {
            let script = format!("exit {code}");
            let (task, _) = test.running(sandbox, code, &["sh", "-c", &script]).await;
            let exit = test.wait(task.id).await;
            test.backend.remove_task(task.id).await.expect("remove");
            exit.code
        }
    }))
    .await;
    assert_eq!(codes, [11, 12, 13, 14]);
}

/// CPU time and memory while it runs; nothing before and after.
pub async fn only_a_running_task_has_usage(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, _) = test.running(sandbox.id, "task", ENDLESS).await;
    let created = test.task(sandbox.id, "created", ENDLESS).await;
    let mut stats = test
        .backend
        .task_stats(&[task.id, created.id])
        .await
        .expect("stats");
    let running = stats.remove(&task.id).expect("a running task has stats");
    let cpu = running.usage.cpu.expect("processor time");
    let memory = running.usage.memory.expect("memory");
    assert!(
        memory.usage_bytes > 0 && memory.working_set_bytes <= memory.usage_bytes,
        "{memory:?}"
    );
    let not_yet = stats
        .remove(&created.id)
        .map_or_else(Usage::default, |stats| stats.usage);
    assert_eq!(not_yet, Usage::default());
    let metrics = test
        .backend
        .task_metrics(&[task.id, created.id])
        .await
        .expect("metrics");
    assert_eq!(
        metrics.keys().collect::<Vec<_>>(),
        [&task.id],
        "only what runs has metrics"
    );
    let detail = &metrics[&task.id].detail;
    assert!(
        detail.processes.is_some_and(|processes| processes > 0),
        "{detail:?}"
    );
    assert!(
        detail.threads_limit.is_some_and(|limit| limit > 1),
        "{detail:?}"
    );
    let again = test
        .backend
        .task_stats(&[task.id])
        .await
        .expect("stats again");
    let later = again[&task.id]
        .usage
        .cpu
        .clone()
        .expect("processor time again");
    assert!(
        later.total_ns >= cpu.total_ns && later.at >= cpu.at,
        "{later:?} after {cpu:?}"
    );
    test.kill(task.id).await;
    let ended = test
        .backend
        .task_stats(&[task.id])
        .await
        .expect("stats after the end");
    assert!(
        test.backend
            .task_metrics(&[task.id])
            .await
            .expect("metrics after the end")
            .is_empty()
    );
    assert_eq!(
        ended
            .get(&task.id)
            .map(|stats| stats.usage.clone())
            .unwrap_or_default(),
        Usage::default()
    );
}

/// `FailedPrecondition`.
pub async fn log_reopen_fails_without_a_log(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, _) = test.running(sandbox.id, "task", ENDLESS).await;
    assert_eq!(task.details.log_path, None);
    assert_eq!(
        refused(test.backend.reopen_log(task.id).await),
        ErrorKind::FailedPrecondition
    );
}

/// With its pid while it runs; `NotFound` once it is removed.
pub async fn task_can_be_inspected_until_removal(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, started) = test.running(sandbox.id, "task", ENDLESS).await;
    assert_eq!(
        test.backend.inspect_task(task.id).await.expect("facts").pid,
        Some(started.pid)
    );
    test.kill(task.id).await;
    assert_eq!(
        test.backend.inspect_task(task.id).await.expect("facts").pid,
        None
    );
    test.backend.remove_task(task.id).await.expect("remove");
    assert_eq!(
        refused(test.backend.inspect_task(task.id).await),
        ErrorKind::NotFound
    );
}

/// Afterwards it can be removed; removing it again is not an error.
pub async fn volume_in_use_is_not_removed(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let mut spec = fixture.task_spec("task", ENDLESS);
    let source = MountSource::Volume {
        name: "data".to_owned(),
        sub_path: std::path::PathBuf::new(),
        copied: true,
    };
    spec.mounts = vec![Mount::new("/data", source)];
    let owner = spec.meta.owner;
    let id = test.task_of(sandbox.id, spec).await.id;
    assert_eq!(
        refused(test.backend.remove_volume(owner, "data").await),
        ErrorKind::FailedPrecondition
    );
    test.reopen().await;
    assert_eq!(
        refused(test.backend.remove_volume(owner, "data").await),
        ErrorKind::FailedPrecondition
    );
    let listed = async || {
        let volumes = test.backend.volumes().await.expect("list the volumes");
        volumes
            .into_iter()
            .find(|volume| volume.owner == owner && volume.name == "data")
    };
    assert_eq!(listed().await.expect("it is listed").tasks, [id]);
    test.backend.remove_task(id).await.expect("remove");
    for _ in 0..2 {
        test.backend
            .remove_volume(owner, "data")
            .await
            .expect("remove the volume");
    }
    assert_eq!(listed().await, None);
    assert_eq!(
        refused(test.backend.remove_volume(owner, "../data").await),
        ErrorKind::InvalidArgument
    );
}

/// `FailedPrecondition`, also after a restart; otherwise the task is like any other.
pub async fn caller_owned_output_cannot_be_attached(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let mut spec = fixture.task_spec("task", ENDLESS);
    spec.stdio.output = Output::Fifos {
        stdout: "/dev/null".into(),
        stderr: "/dev/null".into(),
    };
    let id = test.task_of(sandbox.id, spec).await.id;
    test.backend
        .start_task(id, &Withdrawal::default())
        .await
        .expect("start");
    let asked = AttachSpec {
        stdout: true,
        ..AttachSpec::default()
    };
    assert_eq!(
        refused(test.backend.attach(id, asked).await),
        ErrorKind::FailedPrecondition
    );
    assert!(task_in(&test.reopen().await, id).state.is_running());
    assert_eq!(
        refused(test.backend.attach(id, asked).await),
        ErrorKind::FailedPrecondition
    );
    assert_eq!(
        refused(test.backend.reopen_log(id).await),
        ErrorKind::FailedPrecondition
    );
    assert_eq!(test.kill(id).await.code, 137);
}

/// It would not be the first process of any other namespace. `InvalidArgument`, and nothing is left behind.
pub async fn init_process_needs_a_private_pid_namespace(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let mut spec = fixture.task_spec("task", &["sh", "-c", "exit 5"]);
    (spec.init, spec.pid) = (true, PidMode::Host);
    let shared = test
        .backend
        .create_task(TaskId::random(), sandbox.id, &spec)
        .await;
    assert_eq!(refused(shared), ErrorKind::InvalidArgument);
    assert!(test.reopen().await.tasks.is_empty());
    spec.pid = PidMode::Private;
    let id = test.task_of(sandbox.id, spec).await.id;
    test.backend
        .start_task(id, &Withdrawal::default())
        .await
        .expect("start");
    assert_eq!(test.wait(id).await.code, 5);
}
