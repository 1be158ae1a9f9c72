//! Tests of removals that fail, as while containerd is down, and that no agent repeats.

use switchyard_core::backend::{BackendStatus, Condition};
use switchyard_core::state::{SandboxState, TaskState};
use switchyard_fake::Method;
use tokio_util::task::AbortOnDropHandle;

use super::leases::{GRACE_OVER, fixture_with_devices};
use super::*;

/// The calls of a removal, in their order.
pub(super) const REMOVAL: [Method; 4] = [
    Method::BeginRemoval,
    Method::StopSandbox,
    Method::RemoveTask,
    Method::RemoveSandbox,
];

/// Longer than the pauses after the first failures.
pub(super) const SOON: Duration = Duration::from_secs(10);
/// Longer than any pause.
pub(super) const LONG: Duration = Duration::from_mins(10);

pub(super) fn away() -> Error {
    Error::unavailable("containerd is away")
}

impl DriverFixture {
    /// Runs the background work of the driver until it is dropped.
    pub(super) fn tended(&self) -> AbortOnDropHandle<()> {
        let driver = self.driver.clone();
        AbortOnDropHandle::new(tokio::spawn(async move { driver.run_background().await }))
    }

    /// A start that fails, and whose removal fails at this step as often.
    async fn fail_start(&self, request: &nomad::TaskConfig, step: Method, times: usize) {
        self.fake.fail_next(Method::StartTask, away());
        for _ in 0..times {
            self.fake.fail_next(step, away());
        }
        let failed = self.start(request).await.expect_err("containerd is away");
        assert!(
            failed.message().contains("containerd is away"),
            "{failed:?}"
        );
        assert!(!self.fake.remaining_objects().is_empty(), "{step:?}");
    }

    /// Containerd is down until this status is set again.
    fn take_down(&self) -> BackendStatus {
        let up = self.driver.scope().status();
        let runtime = Condition::False {
            reason: "ContainerdUnavailable".into(),
            message: "away".into(),
        };
        self.fake.set_status(BackendStatus {
            runtime,
            ..up.clone()
        });
        up
    }

    pub(super) fn is_clean(&self, why: &str) {
        assert_eq!(self.fake.remaining_objects(), Vec::<String>::new(), "{why}");
        assert_eq!(self.fake.breaches(), Vec::<String>::new(), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn remains_of_a_failed_start_are_removed_and_hold_neither_device_nor_image() {
    for step in REMOVAL {
        let fixture = fixture_with_devices().await;
        let _tending = fixture.tended();
        let request = fixture.leased("00000001", &fixture.reserve().await);
        fixture.fail_start(&request, step, 4).await;
        fixture
            .pods()
            .devices()
            .lease(&["acme0".parse().unwrap()])
            .await
            .expect_err("the sandbox holds it");
        tokio::time::sleep(SOON).await;
        fixture.is_clean(&format!("{step:?}"));
        tokio::time::sleep(GRACE_OVER).await;
        fixture
            .pods()
            .devices()
            .lease(&["acme0".parse().unwrap()])
            .await
            .expect("nobody holds it");
        tokio::time::sleep(PluginConfig::default().gc.image_delay).await;
        assert_eq!(fixture.fake.count(Method::RemoveImage), 1, "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_start_replaces_what_is_still_to_be_removed() {
    for step in REMOVAL {
        let fixture = fixture().await;
        let _tending = fixture.tended();
        let request = fixture.request("00000001", &["serve"]);
        fixture.fail_start(&request, step, 1).await;
        let gone = fixture
            .recover(&request)
            .await
            .expect_err("no agent has a handle of it");
        assert!(
            gone.message().starts_with("task not found for given id"),
            "{gone:?}"
        );
        fixture.start(&request).await.expect("containerd is back");
        let task = fixture.task(&request.id);
        fixture.recover(&request).await.expect("it runs");
        tokio::time::sleep(LONG).await;
        assert_eq!(fixture.fake.tasks(), [task], "{step:?}");
        assert!(
            fixture.fake.runs(task),
            "{step:?}: the removal was of the first start alone"
        );
        assert_eq!(fixture.fake.breaches(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_start_waits_for_a_removal_in_progress() {
    let fixture = fixture().await;
    let _tending = fixture.tended();
    let request = fixture.request("00000001", &["serve"]);
    fixture.fail_start(&request, Method::RemoveSandbox, 1).await;
    let held = fixture.fake.hold(Method::RemoveSandbox);
    held.arrived(1).await;
    let driver = fixture.driver.clone();
    let message = nomad::StartTaskRequest {
        task: Some(request.clone()),
    };
    let start = tokio::spawn(async move { driver.start_task(call(message)).await });
    tokio::time::sleep(SOON).await;
    assert_eq!(
        fixture.fake.count(Method::CreateSandbox),
        1,
        "the removal holds the lock of the task"
    );
    drop(held);
    start.await.expect("it does not panic").expect("it starts");
    tokio::time::sleep(LONG).await;
    assert!(fixture.fake.runs(fixture.task(&request.id)));
    assert_eq!(fixture.fake.sandboxes().len(), 1);
    assert_eq!(fixture.fake.breaches(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn start_that_cannot_clear_earlier_ones_leaves_that_to_the_background() {
    let fixture = fixture().await;
    let _tending = fixture.tended();
    let undelivered = fixture.running(&["serve"]).await;
    fixture.fake.fail_next(Method::StopSandbox, away());
    let next = fixture.request("00000002", &["serve"]);
    fixture
        .start(&next)
        .await
        .expect_err("the earlier one cannot be removed");
    assert!(fixture.driver.task(&undelivered).is_ok());
    tokio::time::sleep(SOON).await;
    fixture.is_clean("the agent may give the task up");
}

#[tokio::test(start_paused = true)]
async fn destruction_of_a_failed_start_ends_its_tries() {
    for keeps_ended in [true, false] {
        let mut config = PluginConfig::default();
        config.gc.container = !keeps_ended;
        let fixture = fixture_with(config).await;
        let request = fixture.request("00000001", &["serve"]);
        fixture.fail_start(&request, Method::StopSandbox, 1).await;
        fixture
            .destroy(&request.id, false)
            .await
            .expect("it never ran");
        fixture.is_clean("it was destroyed");
        let calls = fixture.fake.calls().len();
        let _tending = fixture.tended();
        tokio::time::sleep(LONG).await;
        let later = &fixture.fake.calls()[calls..];
        assert!(
            later.iter().all(|call| !REMOVAL.contains(&call.method)),
            "{later:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_tried_during_an_outage_and_all_is_removed_after_it() {
    let fixture = fixture().await;
    let _tending = fixture.tended();
    let up = fixture.take_down();
    let request = fixture.request("00000001", &["serve"]);
    fixture.fail_start(&request, Method::BeginRemoval, 1).await;
    let tries = fixture.fake.count(Method::BeginRemoval);
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(fixture.fake.count(Method::BeginRemoval), tries);
    fixture.fake.set_status(up);
    tokio::time::sleep(Duration::from_secs(1)).await;
    fixture.is_clean("containerd is back");
}

#[tokio::test(start_paused = true)]
async fn all_is_removed_soon_after_a_long_outage_whenever_it_ends() {
    // Twice the longest time between two tries, which is a minute and a short pause.
    for phase in (0..120).step_by(10) {
        let fixture = fixture().await;
        let _tending = fixture.tended();
        let up = fixture.take_down();
        let request = fixture.request("00000001", &["serve"]);
        fixture.fail_start(&request, Method::BeginRemoval, 1).await;
        let mut tries = 0;
        for _ in 0..15 * 60 + phase {
            // The next try fails, too, also the first one after the outage.
            if fixture.fake.count(Method::BeginRemoval) > tries {
                fixture.fake.fail_next(Method::BeginRemoval, away());
                tries = fixture.fake.count(Method::BeginRemoval);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        fixture.fake.set_status(up);
        tokio::time::sleep(Duration::from_secs(2)).await;
        fixture.is_clean(&format!("{phase}"));
    }
}

#[tokio::test(start_paused = true)]
async fn removal_that_hangs_delays_no_other() {
    let fixture = fixture().await;
    let _tending = fixture.tended();
    let request = fixture.request("00000001", &["serve"]);
    fixture.fail_start(&request, Method::RemoveSandbox, 1).await;
    let held = fixture.fake.hold(Method::RemoveSandbox);
    held.arrived(1).await;
    let mut other = fixture.request("00000001", &["serve"]);
    other.id = "other/web/00000001".into();
    fixture.fake.fail_next(Method::StartTask, away());
    fixture.fake.fail_next(Method::StopSandbox, away());
    fixture.start(&other).await.expect_err("containerd is away");
    held.arrived(2).await;
    // Several tries of the first one have been given up meanwhile.
    tokio::time::sleep(LONG).await;
    drop(held);
    tokio::time::sleep(SOON).await;
    fixture.is_clean("both have gone");
}

#[tokio::test(start_paused = true)]
async fn daemon_removes_what_its_predecessor_left_of_failed_starts() {
    for (failing, step) in [Method::CreateTask, Method::StartTask]
        .into_iter()
        .flat_map(|failing| [Method::BeginRemoval, Method::StopSandbox].map(|step| (failing, step)))
    {
        let fixture = fixture().await;
        let exited = fixture.running(&["true"]).await;
        fixture.wait(&exited).await.expect("it ends");
        let mut kept = fixture.request("00000003", &["serve"]);
        kept.id = "kept/web/00000003".into();
        fixture.start(&kept).await.expect("it starts");
        let mut request = fixture.request("00000002", &["serve"]);
        request.id = "failed/web/00000002".into();
        fixture.fake.fail_next(failing, away());
        // Neither the removal nor the stop is recorded.
        for method in [Method::BeginRemoval, step] {
            fixture.fake.fail_next(method, away());
        }
        fixture
            .start(&request)
            .await
            .expect_err("containerd is away");
        let left = fixture.fake.sandboxes().len();
        assert_eq!(left, 3, "{failing:?} {step:?}");

        let fixture = fixture.restarted().await;
        let _tending = fixture.tended();
        tokio::time::sleep(SOON).await;
        assert_eq!(fixture.fake.sandboxes().len(), 2, "{failing:?} {step:?}");
        assert!(fixture.driver.task(&request.id).is_err());
        assert!(fixture.fake.runs(fixture.task(&kept.id)));
        assert!(matches!(
            fixture.driver.task(&exited).expect("it is there").state,
            TaskState::Exited {
                started_at: Some(_),
                ..
            }
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn start_under_way_is_not_taken_for_one_that_has_failed() {
    let fixture = fixture().await;
    let held = fixture.fake.hold(Method::CreateTask);
    let request = fixture.request("00000001", &["serve"]);
    let driver = fixture.driver.clone();
    let message = nomad::StartTaskRequest {
        task: Some(request.clone()),
    };
    let start = tokio::spawn(async move { driver.start_task(call(message)).await });
    held.arrived(1).await;
    // A sandbox without a task: as after a failed start.
    let _tending = fixture.tended();
    tokio::time::sleep(SOON).await;
    drop(held);
    start.await.expect("it does not panic").expect("it starts");
    tokio::time::sleep(LONG).await;
    assert!(fixture.fake.runs(fixture.task(&request.id)));
    let sandboxes = fixture
        .driver
        .scope()
        .sandboxes()
        .list()
        .expect("they are known");
    assert!(matches!(sandboxes[0].state, SandboxState::Ready));
}
