//! Facts about what a daemon recovers after its predecessor was killed.

use std::time::Duration;

use switchyard_core::ErrorKind;
use switchyard_core::backend::Withdrawal;
use switchyard_core::id::{LeaseToken, SandboxId, TaskId};
use switchyard_core::spec::{
    ComputeClaim, CpuShares, HostPort, HostPorts, LeaseClaim, MemoryLimit, Protocol, Reserved,
    Resources, SandboxSpec, Signal, TaskSpec, TaskUpdate,
};
use switchyard_core::state::{ExitCause, SandboxState, TaskState};

use crate::Fixture;
use crate::contract_test::{
    ContractTest, ENDLESS, exit_of, same_exit, same_sandbox, same_task, same_time, sandbox_in,
    task_in,
};
use crate::refused;

/// A new system is empty.
pub async fn recovery_of_an_empty_backend_finds_nothing(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    let found = test.reopen().await;
    assert!(
        found.sandboxes.is_empty() && found.tasks.is_empty(),
        "{found:?}"
    );
}

/// Id, labels, record, addresses and state are recovered; then it can be stopped and removed.
pub async fn ready_sandbox_is_recovered_unchanged(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    let one = test.sandbox("one").await;
    let other = test.sandbox("other").await;
    let found = test.reopen().await;
    assert_eq!(found.sandboxes.len(), 2);
    for made in [&one, &other] {
        let sandbox = sandbox_in(&found, made.id);
        same_sandbox(sandbox, made);
        assert_eq!(sandbox.state, SandboxState::Ready);
    }
    test.backend.stop_sandbox(one.id).await.expect("stop");
    test.backend.wait_network_released(one.id).await;
    test.backend.remove_sandbox(one.id).await.expect("remove");
    assert_eq!(test.reopen().await.sandboxes.len(), 1);
}

/// It does not become ready again.
pub async fn stopped_sandbox_is_recovered_as_stopped(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    let made = test.sandbox("pod").await;
    test.backend.stop_sandbox(made.id).await.expect("stop");
    test.backend.wait_network_released(made.id).await;
    let found = test.reopen().await;
    let sandbox = sandbox_in(&found, made.id);
    assert_eq!(sandbox.state, SandboxState::Stopped);
    assert_eq!(
        (&sandbox.meta.name, &sandbox.meta.record),
        (&made.spec.meta.name, &made.spec.meta.record)
    );
    test.backend
        .stop_sandbox(made.id)
        .await
        .expect("stop again");
}

/// It is recovered with all its tasks until it is removed or started again.
pub async fn begun_removal_is_recovered(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (running, _) = test.running(sandbox.id, "running", ENDLESS).await;
    let other = test.sandbox("other").await;
    test.backend.begin_removal(sandbox.id).await.expect("begin");
    test.backend
        .begin_removal(sandbox.id)
        .await
        .expect("begin again");
    let found = test.reopen().await;
    assert_eq!(found.removals, [sandbox.id]);
    assert!(!sandbox_in(&found, sandbox.id).state.is_ready());
    assert!(task_in(&found, running.id).state.is_running());
    test.kill(running.id).await;
    test.backend
        .remove_task(running.id)
        .await
        .expect("remove the task");
    test.backend.stop_sandbox(sandbox.id).await.expect("stop");
    test.backend.wait_network_released(sandbox.id).await;
    assert_eq!(test.reopen().await.removals, [sandbox.id]);
    test.backend
        .start_sandbox(sandbox.id, &sandbox.spec)
        .await
        .expect("start");
    let found = test.reopen().await;
    assert!(found.removals.is_empty() && sandbox_in(&found, sandbox.id).state.is_ready());
    test.backend.begin_removal(other.id).await.expect("begin");
    test.backend.stop_sandbox(other.id).await.expect("stop");
    test.backend.wait_network_released(other.id).await;
    test.backend.remove_sandbox(other.id).await.expect("remove");
    test.backend
        .begin_removal(other.id)
        .await
        .expect("what does not exist has gone");
    assert!(test.reopen().await.removals.is_empty());
}

/// Id, labels, record, image, limits and stop signal are recovered; then it can be started.
pub async fn created_task_is_recovered_and_can_be_started(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let mut spec = fixture.task_spec("task", &["sh", "-c", "exit 5"]);
    spec.stop_signal = Signal::parse("SIGUSR1");
    let limits = Resources {
        memory_limit_bytes: MemoryLimit::new(64 << 20).ok(),
        cpu_shares: Some(CpuShares::clamped(512)),
        ..Resources::default()
    };
    spec.resources = limits.clone();
    let made = test.task_of(sandbox.id, spec).await;
    assert_eq!(Some(made.details.stop_signal), made.spec.stop_signal);
    assert_eq!(
        made.details.resources.memory_limit_bytes,
        limits.memory_limit_bytes
    );
    let found = test.reopen().await;
    let task = task_in(&found, made.id);
    same_task(task, &made);
    assert_eq!(task.state, TaskState::Created);
    test.backend
        .start_task(made.id, &Withdrawal::default())
        .await
        .expect("start");
    assert_eq!(test.wait(made.id).await.code, 5);
}

/// Pid and start time are the same; `wait` of the new daemon returns the exit.
pub async fn running_task_is_recovered_and_can_be_waited_for(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (made, started) = test.running(sandbox.id, "task", ENDLESS).await;
    let found = test.reopen().await;
    let task = task_in(&found, made.id);
    same_task(task, &made);
    match task.state {
        TaskState::Running { pid, started_at } => {
            assert_eq!(pid, started.pid);
            same_time(started_at, started.at);
        }
        TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Stopping { .. }
        | TaskState::Exited { .. }
        | TaskState::Removing { .. } => panic!("it is {:?}, not running", task.state),
    }
    let early =
        tokio::time::timeout(Duration::from_millis(50), test.backend.wait_task(made.id)).await;
    assert!(early.is_err(), "it ended with the daemon: {early:?}");
    assert_eq!(test.kill(made.id).await.code, 137);
}

/// Code, cause and times are the same; `wait` answers from the record.
pub async fn exited_task_is_recovered_with_its_exit(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (made, started) = test
        .running(sandbox.id, "task", &["sh", "-c", "exit 3"])
        .await;
    let exit = test.wait(made.id).await;
    for _ in 0..2 {
        let found = test.reopen().await;
        let task = task_in(&found, made.id);
        same_task(task, &made);
        same_exit(exit_of(task), &exit);
        match task.state {
            TaskState::Exited { started_at, .. } => {
                same_time(started_at.expect("it had started"), started.at);
            }
            TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Running { .. }
            | TaskState::Stopping { .. }
            | TaskState::Removing { .. } => panic!("it is {:?}, not exited", task.state),
        }
        same_exit(&test.wait(made.id).await, &exit);
    }
}

/// The exit code is not lost, whether the task exits before or after the new daemon recovers it.
pub async fn unawaited_exit_is_recovered(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (quick, _) = test
        .running(sandbox.id, "quick", &["sh", "-c", "exit 5"])
        .await;
    let (slow, _) = test
        .running(sandbox.id, "slow", &["sh", "-c", "sleep 0.5; exit 6"])
        .await;
    test.reopen().await;
    for (id, code) in [(quick.id, 5), (slow.id, 6)] {
        let exit = test.wait(id).await;
        assert_eq!((exit.code, &exit.cause), (code, &ExitCause::Exited));
        same_exit(exit_of(task_in(&test.reopen().await, id)), &exit);
    }
}

/// Recovery is idempotent.
pub async fn recovering_twice_changes_nothing(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (running, started) = test.running(sandbox.id, "running", ENDLESS).await;
    let created = test.task(sandbox.id, "created", ENDLESS).await;
    test.reopen().await;
    let found = test.reopen().await;
    assert_eq!((found.sandboxes.len(), found.tasks.len()), (1, 2));
    same_sandbox(sandbox_in(&found, sandbox.id), &sandbox);
    same_task(task_in(&found, created.id), &created);
    assert_eq!(task_in(&found, running.id).state.pid(), Some(started.pid));
}

/// Limits that are set on a created task and on a running one are recorded, and replace the old ones as a
/// whole.
pub async fn updated_limits_are_recovered(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let created = test.task(sandbox.id, "created", ENDLESS).await;
    let (running, _) = test.running(sandbox.id, "running", ENDLESS).await;
    let limits = Resources {
        memory_limit_bytes: MemoryLimit::new(128 << 20).ok(),
        cpu_shares: Some(CpuShares::clamped(256)),
        ..Resources::default()
    };
    for id in [created.id, running.id] {
        test.backend
            .update_task(id, &(&limits).into())
            .await
            .expect("update");
    }
    let found = test.reopen().await;
    for id in [created.id, running.id] {
        let details = &task_in(&found, id).details;
        assert_eq!(
            details.resources.memory_limit_bytes,
            limits.memory_limit_bytes
        );
        assert_eq!(details.resources.cpu_shares, limits.cpu_shares);
    }
    assert_eq!(task_in(&found, created.id).state, TaskState::Created);
}

/// A frontend's note on a sandbox survives a restart; only the last one counts.
pub async fn sandbox_note_is_recovered(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    for note in [&b"first"[..], b"last"] {
        test.backend
            .amend_sandbox(sandbox.id, note)
            .await
            .expect("it is ready");
    }
    let found = test.reopen().await;
    assert_eq!(found.sandboxes[0].details.note, b"last");
    assert_eq!(found.sandboxes[0].details.ips, sandbox.details.ips);
    let gone = test.backend.amend_sandbox(SandboxId::random(), b"x").await;
    assert_eq!(refused(gone), ErrorKind::NotFound);
}

/// The ledgers of the node's ports, devices, CPUs and memory can be restored from it.
pub async fn claims_of_sandboxes_and_tasks_are_recovered(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    test.pull().await.expect("pull the image of the fixture");
    let port = |protocol, ip| HostPort {
        protocol,
        port: 53,
        ip,
    };
    let ports = vec![
        port(Protocol::Tcp, None),
        port(Protocol::Udp, Some([127, 0, 0, 9].into())),
    ];
    let host_ports = HostPorts {
        group: "of a pod".to_owned(),
        ports,
    };
    let spec = SandboxSpec {
        host_ports: host_ports.clone(),
        ..fixture.sandbox_spec("pod")
    };
    let id = SandboxId::random();
    let details = test
        .backend
        .create_sandbox(id, &spec)
        .await
        .expect("create a sandbox");
    assert_eq!(details.host_ports, host_ports);
    let claim = LeaseClaim {
        token: LeaseToken::random(),
        slots: vec!["acme-7::1".parse().expect("it is an id")],
        named: false,
    };
    let reserved = Reserved {
        cpu_milli: 1500,
        memory_bytes: 64 << 20,
    };
    let compute = ComputeClaim {
        reserved,
        exclusive_cpus: true,
    };
    let task = TaskSpec {
        leases: vec![claim.clone()],
        compute,
        ..fixture.task_spec("task", ENDLESS)
    };
    let task = test.task_of(id, task).await;
    assert_eq!(
        (task.details.leases.as_slice(), task.details.compute),
        ([claim.clone()].as_slice(), compute)
    );
    let found = test.reopen().await;
    assert_eq!(sandbox_in(&found, id).details.host_ports, host_ports);
    let details = &task_in(&found, task.id).details;
    assert_eq!(
        (details.leases.as_slice(), details.compute),
        ([claim].as_slice(), compute)
    );
    let fewer = ComputeClaim {
        reserved: Reserved {
            cpu_milli: 500,
            ..reserved
        },
        exclusive_cpus: false,
    };
    assert_compute_is_updated(&mut test, task.id, fewer).await;
    assert!(found.remnants.is_empty(), "{:?}", found.remnants);
    test.backend.wait_network_released(id).await;
}

/// Updates the amounts that a task has claimed. An update without this field leaves them unchanged.
async fn assert_compute_is_updated(test: &mut ContractTest<'_>, task: TaskId, claim: ComputeClaim) {
    for (requested, expected) in [(Some(claim), claim), (None, claim)] {
        let update = TaskUpdate {
            compute: requested,
            ..TaskUpdate::default()
        };
        let details = test
            .backend
            .update_task(task, &update)
            .await
            .expect("update");
        assert_eq!(details.compute, expected);
        assert_eq!(
            task_in(&test.reopen().await, task).details.compute,
            expected
        );
    }
}

/// A reservation above the limit is refused.
pub async fn failed_limits_update_keeps_the_old_limits(fixture: &dyn Fixture) {
    let (mut test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, _) = test.running(sandbox.id, "task", ENDLESS).await;
    let old = Resources {
        memory_limit_bytes: MemoryLimit::new(128 << 20).ok(),
        ..Resources::default()
    };
    test.backend
        .update_task(task.id, &(&old).into())
        .await
        .expect("update");
    let before = task_in(&test.reopen().await, task.id).details.clone();
    let wrong = Resources {
        memory_limit_bytes: MemoryLimit::new(256 << 20).ok(),
        memory_reservation_bytes: MemoryLimit::new(512 << 20).ok(),
        ..Resources::default()
    };
    refused(test.backend.update_task(task.id, &(&wrong).into()).await);
    assert_eq!(task_in(&test.reopen().await, task.id).details, before);
    let gone = test
        .backend
        .update_task(TaskId::random(), &(&old).into())
        .await;
    assert_eq!(refused(gone), ErrorKind::NotFound);
}
