//! Health checks of tasks, by a clock that stands still while something is worked on.

use switchyard_core::ErrorKind;
use switchyard_core::event::EventKind;
use switchyard_core::stop_request::StopReason;
use switchyard_fake::FakeImage;
use tokio::time::Instant;

use super::*;

const INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(3);

fn seconds(count: u64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: i64::try_from(count).unwrap(),
        nanos: 0,
    })
}

/// A health check by this command, every ten seconds.
fn health_check(test: &[&str]) -> swarm::HealthConfig {
    swarm::HealthConfig {
        test: test.iter().map(|word| (*word).to_owned()).collect(),
        interval: seconds(INTERVAL.as_secs()),
        timeout: seconds(TIMEOUT.as_secs()),
        retries: 3,
        ..Default::default()
    }
}

/// A task that runs this, with this health check.
fn checked(number: usize, args: &[&str], check: swarm::HealthConfig) -> swarm::Task {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    task(
        number,
        swarm::ContainerSpec {
            args,
            healthcheck: Some(check),
            ..container()
        },
    )
}

impl TestNode {
    /// Waits until a task is reported in this state, for up to a day, and returns its error and how long it took.
    async fn reaches(&self, number: usize, state: State) -> (String, Duration) {
        let began = Instant::now();
        let day = Duration::from_secs(86_400);
        let status = tokio::time::timeout(day, self.reported_later(number, state)).await;
        (status.expect("it takes too long").err, began.elapsed())
    }

    fn state(&self, number: usize) -> State {
        State::from_wire(self.status(number).expect("nothing was reported").state)
    }

    /// Waits until as many commands run.
    async fn commands(&self, count: usize) {
        while self.fake.processes() != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until as many checks have begun, for up to a day.
    async fn checks(&self, count: usize) {
        let began = Instant::now();
        while self.fake.count(Method::Exec) < count {
            assert!(
                began.elapsed() < Duration::from_secs(86_400),
                "it takes too long"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn ends_empty(self) {
        self.executor.remove_all().await.unwrap();
        self.is_empty().await;
        self.commands(0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn task_is_starting_until_a_check_passes_and_is_checked_on() {
    let node = TestNode::new().await;
    node.fake.script_execs([1, 1, 0]);
    node.assign(checked(1, &["serve"], health_check(&["CMD", "true"])))
        .await;
    node.reaches(1, State::Starting).await;
    let (error, took) = node.reaches(1, State::Running).await;
    assert_eq!(
        (error.as_str(), took, node.fake.count(Method::Exec)),
        ("", 3 * INTERVAL, 3)
    );
    tokio::time::sleep(3 * INTERVAL + INTERVAL / 2).await;
    assert_eq!(
        (node.state(1), node.fake.count(Method::Exec)),
        (State::Running, 6)
    );
    // Failures in between.
    node.fake.script_execs([1, 1, 0, 1, 1, 0]);
    tokio::time::sleep(10 * INTERVAL).await;
    assert_eq!(node.state(1), State::Running);
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn unhealthy_task_is_stopped_and_has_failed_in_dockers_words() {
    let node = TestNode::new().await;
    let mut events = node.gateway.subscribe();
    let check = || health_check(&["CMD-SHELL", "echo why; exit 7"]);
    // One that was never healthy.
    node.assign(checked(1, &["serve"], check())).await;
    node.reaches(1, State::Starting).await;
    let (error, took) = node.reaches(1, State::Failed).await;
    assert_eq!(
        error,
        "task: non-zero exit (143): dockerexec: unhealthy container"
    );
    assert_eq!(took, 3 * INTERVAL);
    assert!(!node.fake.runs(node.object(1)));
    // One that was, and does not end by its stop signal.
    node.fake.script_execs([0]);
    node.assign(checked(2, &["ignore-term"], check())).await;
    node.reaches(2, State::Running).await;
    let (error, took) = node.reaches(2, State::Failed).await;
    assert_eq!(
        error,
        "task: non-zero exit (137): dockerexec: unhealthy container"
    );
    assert_eq!(took, 3 * INTERVAL + crate::plan::STOP_GRACE);
    // One that exits with 0 by it.
    node.assign(checked(
        3,
        &["sh", "-c", "trap 'exit 0' TERM; sleep 9000 & wait"],
        check(),
    ))
    .await;
    let (error, _) = node.reaches(3, State::Failed).await;
    assert_eq!(error, "task: exit (0): dockerexec: unhealthy container");
    let mut reasons = Vec::new();
    while reasons.len() < 3 {
        let event = events.next().await.unwrap().unwrap();
        if let EventKind::TaskExited(_, _, end) = event.kind {
            reasons.push(end.stop.map(|stop| stop.reason));
        }
    }
    assert_eq!(reasons, [Some(StopReason::Unhealthy); 3]);
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn failures_in_the_start_period_do_not_count() {
    let node = TestNode::new().await;
    node.fake.script_execs([1; 5]);
    let check = swarm::HealthConfig {
        retries: 1,
        start_period: seconds(60),
        ..health_check(&["CMD", "true"])
    };
    node.assign(checked(1, &["serve"], check)).await;
    node.reaches(1, State::Starting).await;
    // Every five seconds by default.
    assert_eq!(
        node.reaches(1, State::Running).await.1,
        Duration::from_secs(30)
    );
    node.fake.script_execs([1]);
    let (error, took) = node.reaches(1, State::Failed).await;
    assert_eq!(took, INTERVAL, "a success ends the start period");
    assert!(error.ends_with("unhealthy container"), "{error}");
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn check_that_takes_too_long_is_killed_and_has_failed() {
    let node = TestNode::new().await;
    let check = swarm::HealthConfig {
        retries: 2,
        ..health_check(&["CMD", "sleep", "1000"])
    };
    node.assign(checked(1, &["serve"], check)).await;
    node.reaches(1, State::Starting).await;
    tokio::time::sleep(INTERVAL + TIMEOUT / 2).await;
    assert_eq!(node.fake.processes(), 1);
    tokio::time::sleep(TIMEOUT).await;
    assert_eq!((node.fake.processes(), node.state(1)), (0, State::Starting));
    assert!(
        node.reaches(1, State::Failed)
            .await
            .0
            .ends_with("unhealthy container")
    );
    assert_eq!(node.fake.count(Method::Exec), 2);
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn check_of_a_program_that_is_missing_has_failed() {
    let node = TestNode::new().await;
    node.assign(checked(
        1,
        &["serve"],
        health_check(&["CMD", "/no/such/check"]),
    ))
    .await;
    assert!(
        node.reaches(1, State::Failed)
            .await
            .0
            .ends_with("unhealthy container")
    );
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn check_without_a_result_is_no_failure() {
    let node = TestNode::new().await;
    let check = swarm::HealthConfig {
        retries: 1,
        ..health_check(&["CMD", "true"])
    };
    for round in 0..2 {
        for _ in 0..20 {
            node.fake
                .fail_next(Method::Exec, Error::unavailable("containerd is away"));
            node.fake
                .fail_next(Method::Exec, Error::deadline("containerd hangs"));
            node.fake.fail_next(
                Method::Exec,
                Error::new(ErrorKind::Cancelled, "the connection broke"),
            );
            node.fake
                .fail_next(Method::Exec, Error::internal("the shim is strange"));
        }
        let before = node.fake.count(Method::Exec);
        if round == 0 {
            node.assign(checked(1, &["serve"], check.clone())).await;
            node.reaches(1, State::Starting).await;
            // Soon after containerd is back.
            let (_, took) = node.reaches(1, State::Running).await;
            assert!(
                took > Duration::from_secs(600) && took < Duration::from_secs(700),
                "{took:?}"
            );
        } else {
            tokio::time::sleep(Duration::from_secs(700)).await;
            assert_eq!(node.state(1), State::Running);
        }
        assert!(node.fake.count(Method::Exec) > before + 80);
    }
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn task_that_exits_before_it_is_healthy_ends_by_its_own_exit() {
    let node = TestNode::new().await;
    for (number, code) in [(1, 3), (2, 0)] {
        node.assign(checked(
            number,
            &["serve"],
            health_check(&["CMD", "sleep", "2"]),
        ))
        .await;
        node.reaches(number, State::Starting).await;
        node.commands(1).await;
        node.fake.exit(node.object(number), code).unwrap();
    }
    assert_eq!(
        node.reaches(1, State::Failed).await.0,
        "task: non-zero exit (3)"
    );
    assert_eq!(node.reaches(2, State::Complete).await.0, "");
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn stop_amid_a_check_is_not_delayed() {
    let node = TestNode::new().await;
    let check = swarm::HealthConfig {
        timeout: seconds(3600),
        ..health_check(&["CMD", "sleep", "1000"])
    };
    for (number, first) in [(1, None), (2, Some(0))] {
        node.fake.script_execs(first);
        let given = checked(number, &["serve"], check.clone());
        node.assign(given.clone()).await;
        let state = if first.is_some() {
            State::Running
        } else {
            State::Starting
        };
        node.reaches(number, state).await;
        node.commands(1).await;
        node.assign(wanted(given, State::Shutdown)).await;
        assert_eq!(
            node.reaches(number, State::Shutdown).await,
            (String::new(), Duration::ZERO)
        );
        node.commands(0).await;
    }
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn stop_of_an_unhealthy_task_that_fails_is_tried_again() {
    let node = TestNode::new().await;
    node.fake.script_execs([0]);
    node.assign(checked(1, &["serve"], health_check(&["CMD", "false"])))
        .await;
    node.reaches(1, State::Running).await;
    for _ in 0..3 {
        node.fake
            .fail_next(Method::SignalTask, Error::unavailable("containerd is away"));
    }
    let (error, took) = node.reaches(1, State::Failed).await;
    assert_eq!(
        error,
        "task: non-zero exit (143): dockerexec: unhealthy container"
    );
    assert_eq!(took, 3 * INTERVAL + Duration::from_secs(1 + 2 + 4));
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn running_task_stays_running_over_a_restart_and_is_checked_on() {
    let node = TestNode::new().await;
    let given = || checked(1, &["serve"], health_check(&["CMD", "sleep", "1"]));
    node.fake.script_execs([0, 1, 1]);
    node.assign(given()).await;
    node.reaches(1, State::Running).await;
    // Two of three checks have failed, and the next is running.
    node.commands(1).await;
    let node = node.killed().await;
    node.fake.script_execs([1, 1]);
    node.apply(
        true,
        vec![Change::Task(Arc::new(known(given(), State::Running)))],
    )
    .await;
    // The first of them is due anywhere within an interval.
    node.checks(3).await;
    assert_eq!(node.status(1), None, "nothing has changed");
    node.fake.script_execs([1, 1, 1]);
    assert!(
        node.reaches(1, State::Failed)
            .await
            .0
            .ends_with("unhealthy container")
    );
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn starting_task_is_starting_after_a_restart_until_a_check_passes() {
    let node = TestNode::new().await;
    let given = || checked(1, &["serve"], health_check(&["CMD", "true"]));
    node.fake.script_execs([1, 1, 1, 0]);
    node.assign(given()).await;
    node.reaches(1, State::Starting).await;
    tokio::time::sleep(2 * INTERVAL + INTERVAL / 2).await;
    let node = node.killed().await;
    node.apply(
        true,
        vec![Change::Task(Arc::new(known(given(), State::Starting)))],
    )
    .await;
    assert_eq!(node.reaches(1, State::Running).await.1, 2 * INTERVAL);
    assert_eq!(node.fake.count(Method::StartTask), 0);
    node.ends_empty().await;
}

/// 1,000 tasks whose checks are due at the same time. A check that waits for its turn does not fail.
#[tokio::test(start_paused = true)]
async fn checks_of_a_thousand_tasks_run_few_at_a_time() {
    let node = TestNode::new().await;
    let check = swarm::HealthConfig {
        retries: 1,
        ..health_check(&["CMD", "sleep", "1"])
    };
    let list =
        (0..1_000).map(|number| Change::Task(Arc::new(checked(number, &["serve"], check.clone()))));
    node.apply(false, list.collect()).await;
    let mut most = 0;
    let is_running = |status: &swarm::TaskStatus| State::from_wire(status.state) == State::Running;
    while node
        .statuses
        .borrow()
        .values()
        .filter(|status| is_running(status))
        .count()
        < 1_000
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
        most = most.max(node.fake.processes());
    }
    assert_eq!(most, 16);
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn checks_that_hang_do_not_keep_others_waiting() {
    let node = TestNode::new().await;
    let hanging = swarm::HealthConfig {
        timeout: seconds(36_000),
        ..health_check(&["CMD", "sleep", "36000"])
    };
    for number in 0..40 {
        node.assign(checked(number, &["serve"], hanging.clone()))
            .await;
        node.reaches(number, State::Starting).await;
    }
    node.assign(checked(100, &["serve"], health_check(&["CMD", "true"])))
        .await;
    node.reaches(100, State::Starting).await;
    let (_, took) = node.reaches(100, State::Running).await;
    assert!(took <= INTERVAL + Duration::from_secs(15), "{took:?}");
    node.ends_empty().await;
}

#[tokio::test(start_paused = true)]
async fn health_check_of_the_image_holds_unless_the_service_has_its_own() {
    let image = |config: &str| FakeImage {
        config: config.to_owned(),
        ..FakeImage::default()
    };
    let fake = Fake::new()
        .with_image(
            "r.test/a:1",
            image(r#""Healthcheck":{"Test":["CMD","false"],"Interval":7000000000,"Retries":2}"#),
        )
        .with_image("r.test/b:1", image(r#""Healthcheck":{"Test":["FETCH"]}"#));
    let node = TestNode::over(fake).await;
    let with = |number: usize, name: &str, test: Option<&[&str]>| {
        let healthcheck = test.map(|test| swarm::HealthConfig {
            test: test.iter().map(|word| (*word).to_owned()).collect(),
            ..Default::default()
        });
        task(
            number,
            swarm::ContainerSpec {
                image: name.to_owned(),
                healthcheck,
                ..container()
            },
        )
    };
    node.assign(with(1, "r.test/a:1", None)).await;
    node.reaches(1, State::Starting).await;
    assert_eq!(
        node.reaches(1, State::Failed).await.1,
        Duration::from_secs(14)
    );
    node.assign(with(2, "r.test/a:1", Some(&["CMD", "true"])))
        .await;
    node.reaches(2, State::Starting).await;
    assert_eq!(
        node.reaches(2, State::Running).await.1,
        Duration::from_secs(7)
    );
    for (number, name) in [(3, "r.test/a:1"), (4, "r.test/b:1")] {
        node.assign(with(number, name, Some(&["NONE"]))).await;
        assert_eq!(node.reaches(number, State::Running).await.1, Duration::ZERO);
    }
    node.assign(with(5, "r.test/b:1", None)).await;
    let error = node.reaches(5, State::Rejected).await.0;
    assert!(
        error.starts_with("Healthcheck.Test of the image: it begins with \"FETCH\""),
        "{error}"
    );
    node.ends_empty().await;
}
