//! Every step of every sequence fails once, on a real containerd: what was done is undone, and the failed
//! operation can be repeated.
//!
//! Longer than 500 lines because a test reads this text to check that each operation has its test.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use switchyard_containerd::Settings;
use switchyard_contract::Fixture;
use switchyard_core::backend::{Backend, Withdrawal};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::{Credentials, PullRequest};
use switchyard_core::spec::{
    CheckpointSpec, MemoryLimit, Mount, MountSource, OomScoreAdj, Output, Resources,
    SandboxNetwork, SandboxPid, SandboxSpec, Signal, TaskSpec, TaskUpdate, Throttle, Throttled,
};
use switchyard_core::state::{ExitCause, TaskState};
use switchyard_crash_points::{CrashPoint, Operation};
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::bad_disks::ReadOnlyDisk;
use switchyard_tests::host::{block_device, cgroups, eventually};
use switchyard_tests::image::busybox;
use switchyard_tests::prereq;

/// Time for a task to resume, and for what goes behind an answer.
const LIMIT: Duration = Duration::from_secs(20);

/// An image with a volume, so that the creation of a task takes every step.
const IMAGE: &str = "library/volumes:latest";

struct UndoFixture {
    node: BackendFixture,
    backend: Arc<dyn Backend>,
}

impl UndoFixture {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let node = tokio::task::block_in_place(|| BackendFixture::with(change));
        node.registry()
            .push(IMAGE, &busybox().volume("/data").build());
        let backend = node.backend();
        backend
            .recover()
            .await
            .expect("a fresh world can be recovered");
        let request = PullRequest {
            reference: node.registry().reference(IMAGE),
            credentials: Credentials::Anonymous,
            handler: String::new(),
            owner: Owner::Host,
        };
        backend
            .images()
            .pull(&request)
            .await
            .expect("the image can be pulled");
        Self { node, backend }
    }

    /// A sandbox whose creation takes every step: with a network, shared memory and an infra process.
    fn sandbox_spec(&self) -> SandboxSpec {
        SandboxSpec {
            network: SandboxNetwork::Pod(switchyard_core::spec::PodNetwork::default()),
            pid: SandboxPid::Shared,
            ..self.node.sandbox_spec("pod")
        }
    }

    /// A task whose creation takes every step: with a volume of its image, an image as a volume, and a log.
    fn task_spec(&self, command: &[&str]) -> TaskSpec {
        let mut spec = self.node.task_spec("task", command);
        spec.image = self.node.registry().reference(IMAGE);
        let source = MountSource::Image {
            reference: spec.image.clone(),
            sub_path: "".into(),
        };
        spec.mounts = vec![Mount {
            readonly: true,
            ..Mount::new("/image", source)
        }];
        spec.stdio.output = Output::Log(self.node.root().log_dir().join("task/0.log"));
        spec
    }

    async fn sandbox(&self) -> SandboxId {
        let id = SandboxId::random();
        self.backend
            .create_sandbox(id, &self.sandbox_spec())
            .await
            .expect("a sandbox can be made");
        id
    }

    async fn task(&self, sandbox: SandboxId, command: &[&str]) -> TaskId {
        let id = TaskId::random();
        self.backend
            .create_task(id, sandbox, &self.task_spec(command))
            .await
            .expect("a task can be made");
        id
    }

    async fn assert_only(&self, what: &[String]) {
        let strange = self.all_but(what).await;
        assert!(strange.is_empty(), "left behind: {strange:#?}");
    }

    /// The same after a stop, or a failed start: their plugins, and then the namespaces, go behind the answer.
    async fn assert_soon_only(&self, what: &[String]) {
        let end = Instant::now() + LIMIT;
        while !self.all_but(what).await.is_empty() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.assert_only(what).await;
    }

    async fn all_but(&self, what: &[String]) -> Vec<String> {
        let mut left = self.node.remaining_objects().await;
        left.retain(|finding| !what.iter().any(|known| finding.contains(known.as_str())));
        left
    }

    fn fail(&self, step: CrashPoint) {
        self.node.faults().fail(step);
    }

    #[track_caller]
    fn assert_reached(&self, step: CrashPoint) {
        assert!(!self.node.faults().waits(), "{step:?} was not reached");
    }
}

/// The steps at which a test below makes the operation fail.
fn failures(operation: Operation) -> impl Iterator<Item = CrashPoint> {
    operation
        .crash_points()
        .iter()
        .copied()
        .filter(|step| step.can_fail())
}

#[test]
fn every_operation_that_can_fail_has_an_undo_test() {
    let tests = include_str!("undo.rs");
    let tested =
        |operation: Operation| tests.contains(&format!("failures(Operation::{operation:?})"));
    let untested: Vec<_> = Operation::ALL
        .iter()
        .filter(|operation| failures(**operation).next().is_some() && !tested(**operation))
        .collect();
    assert!(
        untested.is_empty(),
        "no test makes {untested:?} fail at each of its steps"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_sandbox_creation_leaves_nothing_behind() {
    let undo = UndoFixture::new().await;
    for step in failures(Operation::CreateSandbox) {
        undo.fail(step);
        let made = undo
            .backend
            .create_sandbox(SandboxId::random(), &undo.sandbox_spec())
            .await;
        assert!(made.is_err(), "{step:?}");
        undo.assert_reached(step);
        undo.assert_only(&[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_sandbox_start_is_stopped_and_can_be_retried() {
    let undo = UndoFixture::new().await;
    let id = undo.sandbox().await;
    undo.backend
        .stop_sandbox(id)
        .await
        .expect("it can be stopped");
    undo.backend.wait_network_released(id).await;
    let stopped = undo.node.remaining_objects().await;
    // The first step of its creation writes its record, which exists already.
    let created =
        failures(Operation::CreateSandbox).filter(|step| *step != CrashPoint::SandboxRecorded);
    for step in failures(Operation::StartSandbox).chain(created) {
        undo.fail(step);
        assert!(
            undo.backend
                .start_sandbox(id, &undo.sandbox_spec())
                .await
                .is_err(),
            "{step:?}"
        );
        undo.assert_reached(step);
        undo.assert_soon_only(&stopped).await;
    }
    let started = undo
        .backend
        .start_sandbox(id, &undo.sandbox_spec())
        .await
        .expect("it can be started");
    assert!(
        started.pid.is_some() && !started.ips.is_empty(),
        "{started:?}"
    );
    undo.backend
        .stop_sandbox(id)
        .await
        .expect("it can be stopped");
    undo.backend
        .remove_sandbox(id)
        .await
        .expect("it can be removed");
    undo.assert_only(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_whose_journal_stayed_on_a_read_only_disk_can_be_started() {
    let undo = UndoFixture::new().await;
    let id = undo.sandbox().await;
    let files = undo
        .node
        .settings()
        .state
        .join("sandboxes")
        .join(id.to_string());
    let disk = ReadOnlyDisk::with_content_of(&files);
    undo.backend
        .stop_sandbox(id)
        .await
        .expect("it can be stopped");
    undo.backend.wait_network_released(id).await;
    drop(disk);
    assert!(
        files.join("cni.json").exists(),
        "it was removed from a read-only disk"
    );
    let started = undo
        .backend
        .start_sandbox(id, &undo.sandbox_spec())
        .await
        .expect("it can be started");
    assert!(!started.ips.is_empty(), "{started:?}");
    undo.backend
        .stop_sandbox(id)
        .await
        .expect("it can be stopped");
    undo.backend
        .remove_sandbox(id)
        .await
        .expect("it can be removed");
    undo.assert_only(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_rollback_keeps_its_network_until_cleaned_up() {
    let undo = UndoFixture::new().await;
    let id = SandboxId::random();
    undo.fail(CrashPoint::SandboxMarked);
    undo.fail(CrashPoint::SandboxInfraEnded);
    assert!(
        undo.backend
            .create_sandbox(id, &undo.sandbox_spec())
            .await
            .is_err()
    );
    let mut released = Box::pin(undo.backend.wait_network_released(id));
    assert!(
        released.as_mut().now_or_never().is_none(),
        "its ports still lead to it"
    );
    tokio::time::timeout(LIMIT, released)
        .await
        .expect("it is cleared away soon");
    let gone = async {
        while !undo.node.remaining_objects().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LIMIT, gone)
        .await
        .expect("the rest goes as well");

    let id = undo.sandbox().await;
    undo.backend
        .stop_sandbox(id)
        .await
        .expect("it can be stopped");
    undo.fail(CrashPoint::SandboxMarked);
    undo.fail(CrashPoint::SandboxInfraEnded);
    assert!(
        undo.backend
            .start_sandbox(id, &undo.sandbox_spec())
            .await
            .is_err()
    );
    assert!(
        undo.backend
            .wait_network_released(id)
            .now_or_never()
            .is_none()
    );
    undo.backend
        .stop_sandbox(id)
        .await
        .expect("it can be stopped");
    undo.backend.wait_network_released(id).await;
    undo.backend
        .remove_sandbox(id)
        .await
        .expect("it can be removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_sandbox_stop_and_removal_can_be_retried() {
    let undo = UndoFixture::new().await;
    for step in failures(Operation::StopSandbox).chain(failures(Operation::RemoveSandbox)) {
        let id = undo.sandbox().await;
        undo.fail(step);
        let begun = undo.backend.begin_removal(id).await;
        let stopped = undo.backend.stop_sandbox(id).await;
        let removed = undo.backend.remove_sandbox(id).await;
        // What fails behind the answer to the stop is done again, by whoever comes first.
        let is_behind = matches!(
            step,
            CrashPoint::SandboxDetached | CrashPoint::SandboxUnpinned
        );
        assert!(
            is_behind || begun.is_err() || stopped.is_err() || removed.is_err(),
            "{step:?}"
        );
        undo.assert_reached(step);
        undo.backend
            .stop_sandbox(id)
            .await
            .expect("a stop can be repeated");
        undo.backend
            .remove_sandbox(id)
            .await
            .expect("a removal can be repeated");
        undo.assert_only(&[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_task_creation_leaves_only_its_sandbox() {
    let undo = UndoFixture::new().await;
    let sandbox = undo.sandbox().await;
    let before = undo.node.remaining_objects().await;
    for step in failures(Operation::CreateTask) {
        undo.fail(step);
        let made = undo
            .backend
            .create_task(TaskId::random(), sandbox, &undo.task_spec(&["true"]))
            .await;
        assert!(made.is_err(), "{step:?}");
        undo.assert_reached(step);
        undo.assert_only(&before).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_task_start_is_recorded_and_leaves_no_process() {
    let undo = UndoFixture::new().await;
    let sandbox = undo.sandbox().await;
    for step in failures(Operation::StartTask) {
        let id = undo.task(sandbox, &["sleep", "1000"]).await;
        let before = undo.node.remaining_objects().await;
        undo.fail(step);
        assert!(
            undo.backend
                .start_task(id, &Withdrawal::default())
                .await
                .is_err(),
            "{step:?}"
        );
        undo.assert_reached(step);
        undo.assert_only(&before).await;
        let exit = undo
            .backend
            .wait_task(id)
            .await
            .expect("a failed start is an end");
        assert!(
            matches!(exit.cause, ExitCause::StartFailed(_)),
            "{step:?}: {exit:?}"
        );
        undo.backend
            .remove_task(id)
            .await
            .expect("a task that never ran can be removed");
    }
    undo.backend
        .stop_sandbox(sandbox)
        .await
        .expect("the sandbox can be stopped");
    undo.backend
        .remove_sandbox(sandbox)
        .await
        .expect("the sandbox can be removed");
    undo.assert_only(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_sandbox_annotation_can_be_retried() {
    let mut undo = UndoFixture::new().await;
    let sandbox = undo.sandbox().await;
    for step in failures(Operation::AmendSandbox) {
        undo.fail(step);
        assert!(
            undo.backend.amend_sandbox(sandbox, b"first").await.is_err(),
            "{step:?}"
        );
        undo.assert_reached(step);
        undo.backend
            .amend_sandbox(sandbox, b"second")
            .await
            .expect("it can be repeated");
    }
    undo.backend = undo.node.reopen().await;
    let found = undo.backend.recover().await.expect("it recovers");
    assert_eq!(found.sandboxes[0].details.note, b"second");
    undo.backend
        .stop_sandbox(sandbox)
        .await
        .expect("the sandbox can be stopped");
    undo.backend
        .remove_sandbox(sandbox)
        .await
        .expect("the sandbox can be removed");
    undo.assert_only(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_limits_update_can_be_retried() {
    let undo = UndoFixture::new().await;
    let sandbox = undo.sandbox().await;
    let id = undo.task(sandbox, &["sleep", "1000"]).await;
    let pid = undo
        .backend
        .start_task(id, &Withdrawal::default())
        .await
        .expect("a task can be started")
        .pid;
    let score = || {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it runs");
        OomScoreAdj::new(text.trim().parse::<i32>().expect("it is a number"))
            .expect("the kernel has it")
    };
    for (step, megabytes) in failures(Operation::UpdateTask).zip((64_i64..).step_by(16)) {
        let limits = Resources {
            memory_limit_bytes: MemoryLimit::new(megabytes << 20).ok(),
            oom_score_adj: OomScoreAdj::new(400 + megabytes).ok(),
            ..Resources::default()
        };
        let throttle = Throttle {
            device: block_device().into(),
            what: Throttled::Reads,
            rate: megabytes.unsigned_abs(),
        };
        let change = TaskUpdate {
            throttles: vec![throttle],
            ..(&limits).into()
        };
        let before = score();
        undo.fail(step);
        assert!(
            undo.backend.update_task(id, &change).await.is_err(),
            "{step:?}"
        );
        undo.assert_reached(step);
        let on_record = step == CrashPoint::TaskLimitsRecorded;
        assert_eq!(
            Some(score()),
            if on_record {
                limits.oom_score_adj
            } else {
                Some(before)
            },
            "{step:?}"
        );
        undo.backend
            .update_task(id, &change)
            .await
            .expect("a change can be repeated");
        let in_force: Vec<_> = cgroups::named(&id.to_string())
            .iter()
            .filter_map(|group| {
                let file = |name: &str| fs::read_to_string(group.join(name)).ok();
                file("memory.limit_in_bytes").or_else(|| file("memory.max"))
            })
            .collect();
        assert_eq!(in_force, [format!("{}\n", megabytes << 20)], "{step:?}");
        assert_eq!(Some(score()), limits.oom_score_adj, "{step:?}");
    }
    undo.backend
        .signal_task(id, Signal::KILL)
        .await
        .expect("a task can be killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_that_cannot_be_persisted_is_not_lost() {
    let undo = UndoFixture::new().await;
    let sandbox = undo.sandbox().await;
    for step in failures(Operation::EndTask) {
        let id = undo
            .task(sandbox, &["sh", "-c", "echo last words; exit 7"])
            .await;
        undo.backend
            .start_task(id, &Withdrawal::default())
            .await
            .expect("a task can be started");
        undo.fail(step);
        // Until the exit is persisted the wait fails; then the exit is reported even if the cleanup fails.
        let first = undo.backend.wait_task(id).await;
        assert_eq!(
            first.is_err(),
            step == CrashPoint::TaskExitPersisted,
            "{step:?}: {first:?}"
        );
        undo.assert_reached(step);
        let exit = undo
            .backend
            .wait_task(id)
            .await
            .expect("a wait can be repeated");
        assert!(
            (exit.code, &exit.cause) == (7, &ExitCause::Exited),
            "{step:?}: {exit:?}"
        );
        undo.backend
            .remove_task(id)
            .await
            .expect("a task that has ended can be removed");
    }
    let log =
        fs::read_to_string(undo.node.root().log_dir().join("task/0.log")).expect("there is a log");
    assert_eq!(
        log.matches("last words").count(),
        failures(Operation::EndTask).count(),
        "{log}"
    );
}

/// Not every kernel supports Debian's criu: this fake writes one word. See `tests/guest/checkpoint.rs`.
const RUNTIME: &str = r#"#!/bin/sh
for word; do [ "$word" = checkpoint ] && found=yes; done
[ "$found" ] || exec runc "$@"
while [ $# -gt 0 ]; do
    [ "$1" != --image-path ] || { mkdir -p "$2" && echo processes > "$2/inventory.img"; }
    shift
done
"#;

#[tokio::test(flavor = "multi_thread")]
async fn failed_checkpoint_keeps_the_task_running_and_can_be_retried() {
    let _ = prereq::require("criu", "criu");
    let undo = UndoFixture::with(|settings| {
        let path = settings.run.join("runc-with-word");
        fs::create_dir_all(&settings.run).expect("the root can be written");
        fs::write(&path, RUNTIME).expect("the root can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it was just written");
        let runtime = settings
            .containerd
            .runtimes
            .get_mut("runc")
            .expect("every world has it");
        runtime.binary = path.to_str().expect("it is ASCII").to_owned();
    });
    let undo = undo.await;
    let sandbox = undo.sandbox().await;
    let id = undo
        .task(
            sandbox,
            &["sh", "-c", "while :; do echo moves; sleep 0.05; done"],
        )
        .await;
    undo.backend
        .start_task(id, &Withdrawal::default())
        .await
        .expect("a task can be started");
    // The shell has another child each time.
    let mut before = undo.node.remaining_objects().await;
    before.push("in a control group of the root".to_owned());
    let log = undo.node.root().log_dir().join("task/0.log");
    let written = || fs::metadata(&log).map_or(0, |data| data.len());
    let archives = undo.node.root().path().join("archives");
    fs::create_dir(&archives).expect("the root can be written");
    let spec = CheckpointSpec {
        location: archives.join("one.tar"),
        limit: Duration::from_secs(60),
        notes: BTreeMap::new(),
    };
    for step in failures(Operation::CheckpointTask) {
        undo.fail(step);
        undo.backend
            .checkpoint_task(id, &spec)
            .await
            .expect_err("it is to fail");
        undo.assert_reached(step);
        let so_far = written();
        assert!(
            eventually(LIMIT, || written() > so_far),
            "{step:?}: the task stands still"
        );
        undo.assert_only(&before).await;
        assert!(
            !undo
                .node
                .settings()
                .state
                .join("tasks")
                .join(id.to_string())
                .join("checkpoint")
                .exists()
        );
        // A complete archive is neither removed nor ever replaced.
        let names = || fs::read_dir(&archives).expect("it is there").count();
        assert_eq!(
            names(),
            usize::from(step == CrashPoint::CheckpointNamed),
            "{step:?}"
        );
        if step == CrashPoint::CheckpointNamed {
            fs::remove_file(&spec.location).expect("it is there");
        }
        undo.backend
            .checkpoint_task(id, &spec)
            .await
            .expect("it can be repeated");
        fs::remove_file(&spec.location).expect("it was made");
    }
    undo.backend
        .signal_task(id, Signal::KILL)
        .await
        .expect("a task can be killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_task_removal_can_be_retried() {
    let undo = UndoFixture::new().await;
    let sandbox = undo.sandbox().await;
    let before = undo.node.remaining_objects().await;
    for step in failures(Operation::RemoveTask) {
        let id = undo.task(sandbox, &["sleep", "1000"]).await;
        undo.backend
            .start_task(id, &Withdrawal::default())
            .await
            .expect("a task can be started");
        undo.backend
            .signal_task(id, Signal::KILL)
            .await
            .expect("a task can be killed");
        undo.backend
            .wait_task(id)
            .await
            .expect("a killed task ends");
        undo.fail(step);
        assert!(undo.backend.remove_task(id).await.is_err(), "{step:?}");
        undo.assert_reached(step);
        undo.backend
            .remove_task(id)
            .await
            .expect("a removal can be repeated");
        undo.assert_only(&before).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_backend_recovers_after_failure_at_any_step() {
    let undo = UndoFixture::new().await;
    let sandbox = undo.sandbox().await;
    let running = undo.task(sandbox, &["sleep", "1000"]).await;
    undo.backend
        .start_task(running, &Withdrawal::default())
        .await
        .expect("a task can be started");
    for step in failures(Operation::StopSandbox).chain(failures(Operation::RemoveSandbox)) {
        let doomed = undo.sandbox().await;
        undo.fail(step);
        let _ = undo.backend.begin_removal(doomed).await;
        let _ = undo.backend.stop_sandbox(doomed).await;
        let _ = undo.backend.remove_sandbox(doomed).await;
        undo.assert_reached(step);
        let backend = undo.node.reopen().await;
        let found = backend.recover().await.expect("recovery succeeds");
        let task = found
            .tasks
            .iter()
            .find(|task| task.id == running)
            .expect("the running task is found");
        assert!(
            matches!(task.state, TaskState::Running { .. }),
            "{step:?}: {:?}",
            task.state
        );
        if found.sandboxes.iter().any(|found| found.id == doomed) {
            backend
                .stop_sandbox(doomed)
                .await
                .expect("it can be stopped by the new backend");
            backend
                .remove_sandbox(doomed)
                .await
                .expect("it can be removed by the new backend");
        }
        let name = doomed.to_string();
        let left: Vec<_> = undo
            .node
            .remaining_objects()
            .await
            .into_iter()
            .filter(|finding| finding.contains(&name))
            .collect();
        assert!(left.is_empty(), "{step:?} left {left:#?}");
        // The old backend knows less than the new one: the rest of the test uses it for new sandboxes only.
    }
}
