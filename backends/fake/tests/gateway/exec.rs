//! Execs through the gateway.

use std::pin::pin;
use std::time::Duration;

use futures::poll;
use switchyard_contract::refused;
use switchyard_contract::specs;
use switchyard_core::backend::CUT_PATIENCE;
use switchyard_core::gateway::Limits;
use switchyard_core::{ErrorKind, Reason};
use switchyard_fake::{Fake, LeftOutput, Method};

use crate::node::{ENDLESS, FakeNode, limits, task_spec, until};

const CAP: usize = 16 << 20;

/// A node with these limits.
async fn node_within(limits: Limits) -> FakeNode {
    let node = FakeNode::within(Fake::with_local_busybox().await, limits);
    node.gateway.recover().await.unwrap();
    node
}

#[tokio::test]
async fn exec_runs_to_completion() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    let spec = specs::exec(&["sh", "-c", "echo out; echo err >&2; exit 3"]);
    let output = node
        .scope
        .commands()
        .exec_sync(&id, &spec, None)
        .await
        .unwrap();
    assert_eq!(
        (output.code, &output.stdout[..], &output.stderr[..]),
        (3, &b"out\n"[..], &b"err\n"[..])
    );
    until(|| node.fake.processes() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn exec_is_killed_at_its_timeout() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    let begun = tokio::time::Instant::now();
    let limit = Duration::from_secs(3);
    let output = node
        .scope
        .commands()
        .exec_sync(&id, &specs::exec(&["sleep", "1000"]), Some(limit))
        .await;
    let error = output.unwrap_err();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::DeadlineExceeded, Some(Reason::CommandTimeout))
    );
    assert_eq!(begun.elapsed(), limit);
    until(|| node.fake.processes() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn exec_that_does_not_start_in_time_is_no_timeout_of_the_command() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    let _hold = node.fake.hold(Method::Exec);
    let output = node
        .scope
        .commands()
        .exec_sync(&id, &specs::exec(&["true"]), Some(Duration::from_secs(3)))
        .await;
    let error = output.unwrap_err();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Unavailable, None)
    );
}

#[tokio::test]
async fn exits_of_execs_can_be_scripted() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    node.fake.script_execs([7, 0]);
    for code in [7, 0, 3] {
        let spec = specs::exec(&["sh", "-c", "exit 3"]);
        assert_eq!(
            node.scope
                .commands()
                .exec_sync(&id, &spec, None)
                .await
                .unwrap()
                .code,
            code
        );
    }
}

#[tokio::test]
async fn unrepresentable_exec_timeout_means_none() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    for seconds in [u64::try_from(i64::MAX).unwrap(), u64::MAX, 1 << 40] {
        let limit = Some(Duration::from_secs(seconds));
        let output = node
            .scope
            .commands()
            .exec_sync(&id, &specs::exec(&["sh", "-c", "exit 3"]), limit)
            .await
            .unwrap();
        assert_eq!(output.code, 3);
    }
}

#[tokio::test]
async fn exec_is_killed_when_its_caller_is_dropped() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    {
        let spec = specs::exec(&["sleep", "1000"]);
        let mut gone = pin!(node.scope.commands().exec_sync(&id, &spec, None));
        assert!(poll!(&mut gone).is_pending());
        assert_eq!(node.fake.processes(), 1);
    }
    until(|| node.fake.processes() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn command_that_cannot_be_ended_keeps_its_place() {
    let node = node_within(Limits {
        exec_per_task: 2,
        ..limits()
    })
    .await;
    let id = node.running(ENDLESS).await.id.to_string();
    let spec = specs::exec(&["sleep", "1000"]);
    node.fake.set_execs_unended(true);
    for running in 1..=2 {
        let mut gone = pin!(node.scope.commands().exec_sync(&id, &spec, None));
        assert!(poll!(&mut gone).is_pending());
        assert_eq!(node.fake.processes(), running);
    }
    assert_eq!(
        refused(node.scope.commands().exec_sync(&id, &spec, None).await),
        ErrorKind::ResourceExhausted
    );
    assert_eq!(node.fake.processes(), 2);
    // One that waits gets a place as soon as they are ended.
    let more = specs::exec(&["true"]);
    let mut waits = pin!(node.scope.commands().exec_sync(&id, &more, None));
    assert!(poll!(&mut waits).is_pending());
    node.fake.set_execs_unended(false);
    assert_eq!(waits.await.unwrap().code, 0);
}

#[tokio::test]
async fn output_held_of_one_container_refuses_no_small_output_and_no_other_container() {
    let node = node_within(Limits {
        exec_output_bytes: 4 << 20,
        ..limits()
    })
    .await;
    let id = node.running(ENDLESS).await.id.to_string();
    // It keeps what it has written, and its caller waits for more.
    let much = specs::exec(&["sh", "-c", "head -c 1000000 /dev/zero; sleep 1000"]);
    let mut holds = pin!(node.scope.commands().exec_sync(&id, &much, None));
    assert!(poll!(&mut holds).is_pending());
    let more = specs::exec(&["head", "-c", "100000", "/dev/zero"]);
    tokio::select! {
        _ = &mut holds => unreachable!("it sleeps"),
        refusal = async {
            loop {
                let answer = node.scope.commands().exec_sync(&id, &more, None).await;
                if let Err(error) = answer {
                    break error;
                }
            }
        } => assert_eq!(refusal.kind(), ErrorKind::ResourceExhausted),
    }
    let probe = specs::exec(&["sh", "-c", "echo well"]);
    assert_eq!(
        node.scope
            .commands()
            .exec_sync(&id, &probe, None)
            .await
            .unwrap()
            .stdout,
        "well\n"
    );
    let sandbox = node.sandbox().await.id.to_string();
    let other = node
        .scope
        .tasks()
        .create(&sandbox, task_spec("other", ENDLESS))
        .await
        .unwrap()
        .id
        .to_string();
    node.scope.tasks().start(&other).await.unwrap();
    assert_eq!(
        node.scope
            .commands()
            .exec_sync(&other, &more, None)
            .await
            .unwrap()
            .stdout
            .len(),
        100_000
    );
}

#[tokio::test]
async fn output_counts_for_as_long_as_its_caller_keeps_its_share() {
    let node = node_within(Limits {
        exec_output_bytes: 4 << 20,
        ..limits()
    })
    .await;
    let id = node.running(ENDLESS).await.id.to_string();
    let commands = node.scope.commands();
    // More than half of what one container may have.
    let much = specs::exec(&["head", "-c", "600000", "/dev/zero"]);
    let held = commands.exec_sync(&id, &much, None).await.unwrap();
    let refusal = commands.exec_sync(&id, &much, None).await;
    assert_eq!(refused(refusal), ErrorKind::ResourceExhausted);
    drop(held);
    let output = commands.exec_sync(&id, &much, None).await.unwrap();
    assert_eq!(output.stdout.len(), 600_000);
}

#[tokio::test]
async fn output_beyond_the_cap_is_discarded() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    for (size, kept) in [(CAP - 1, CAP - 1), (CAP, CAP), (CAP + 100_000, CAP)] {
        let spec = specs::exec(&["head", "-c", &size.to_string(), "/dev/zero"]);
        let output = node
            .scope
            .commands()
            .exec_sync(&id, &spec, None)
            .await
            .unwrap();
        assert_eq!((output.code, output.stdout.len()), (0, kept));
    }
}

#[tokio::test(start_paused = true)]
async fn output_held_open_by_a_child_is_awaited_for_the_drain_time_whatever_the_timeout() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    let spec = specs::exec(&["sh", "-c", "echo started; sleep 1000 & exit 3"]);
    let limits = [
        None,
        Some(spec.drain / 2),
        Some(spec.drain),
        Some(spec.drain * 2),
    ];
    for limit in limits {
        let begun = tokio::time::Instant::now();
        let error = node
            .scope
            .commands()
            .exec_sync(&id, &spec, limit)
            .await
            .unwrap_err();
        // Not DeadlineExceeded, for which kubelets have a text of their own.
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::FailedPrecondition, None)
        );
        let text = error.report();
        assert!(
            text.contains("failed to drain exec process: ")
                && text.contains("has ended with code 3, but a child of it kept its output open"),
            "{text}"
        );
        assert_eq!(begun.elapsed(), spec.drain);
        until(|| node.fake.processes() == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_command_ends_with_its_exit() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    let spec = specs::exec(&["sh", "-c", "echo early; sleep 2; sleep 1000 & exit 3"]);
    let limit = |seconds| Some(Duration::from_secs(seconds));
    let late = node
        .scope
        .commands()
        .exec_sync(&id, &spec, limit(1))
        .await
        .unwrap_err();
    assert_eq!(
        (late.kind(), late.reason()),
        (ErrorKind::DeadlineExceeded, Some(Reason::CommandTimeout))
    );
    let late = node
        .scope
        .commands()
        .exec_tail(&id, &spec, limit(1), 100)
        .await
        .unwrap_err();
    assert_eq!(late.reason(), Some(Reason::CommandTimeout));
    // One of which the last output is wanted has its exit code, though the drain time ends after its timeout.
    let output = node
        .scope
        .commands()
        .exec_tail(&id, &spec, limit(3), 100)
        .await
        .unwrap();
    assert_eq!((output.code, &output.stdout[..]), (3, &b"early\n"[..]));
    until(|| node.fake.processes() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn output_of_a_child_that_never_pauses_is_cut_off_at_the_timeout_of_the_command() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    node.fake.set_left_output(LeftOutput::Busy);
    let spec = specs::exec(&["sh", "-c", "echo early; sleep 1000 & exit 3"]);
    let limit = Duration::from_secs(60);
    let begun = tokio::time::Instant::now();
    let output = node
        .scope
        .commands()
        .exec_tail(&id, &spec, Some(limit), 100)
        .await
        .unwrap();
    assert_eq!((output.code, &output.stdout[..]), (3, &b"early\n"[..]));
    assert_eq!(begun.elapsed(), limit);
}

#[tokio::test(start_paused = true)]
async fn output_that_the_runtime_does_not_close_is_not_awaited_for_long() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    let spec = specs::exec(&["sh", "-c", "echo early; sleep 1000 & exit 3"]);
    let limit = Duration::from_secs(60);
    for (left, cut) in [(LeftOutput::Open, spec.drain), (LeftOutput::Hung, limit)] {
        node.fake.set_left_output(left);
        let begun = tokio::time::Instant::now();
        let error = node
            .scope
            .commands()
            .exec_tail(&id, &spec, Some(limit), 100)
            .await
            .unwrap_err();
        let text = error.report();
        assert!(
            text.contains("has ended with code 3, but the runtime has not closed its output"),
            "{text}"
        );
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(begun.elapsed().as_secs(), (cut + CUT_PATIENCE).as_secs());
    }
}

#[tokio::test]
async fn a_command_ends_with_its_task() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let id = task.id.to_string();
    let spec = specs::exec(&["sleep", "1000"]);
    let mut running = pin!(node.scope.commands().exec_sync(&id, &spec, None));
    assert!(poll!(&mut running).is_pending());
    node.scope.tasks().stop(&id, Duration::ZERO).await.unwrap();
    assert_eq!(running.await.unwrap().code, 137);
}

#[tokio::test]
async fn exec_needs_a_running_task_and_a_command() {
    let node = FakeNode::new().await;
    let id = node.task(ENDLESS).await.id.to_string();
    let entered = node
        .scope
        .commands()
        .exec_sync(&id, &specs::exec(&["true"]), None)
        .await;
    assert_eq!(refused(entered), ErrorKind::FailedPrecondition);
    node.scope.tasks().start(&id).await.unwrap();
    assert_eq!(
        refused(node.scope.commands().exec(&id, &specs::exec(&[])).await),
        ErrorKind::InvalidArgument
    );
    let missing = node
        .scope
        .commands()
        .exec(&id, &specs::exec(&["/no/such/tool"]))
        .await;
    assert_eq!(refused(missing), ErrorKind::InvalidArgument);
    assert_eq!(node.fake.processes(), 0);
}
