//! Tests of destructions that fail, as while containerd is down: agents do not repeat them.

use switchyard_fake::Method;
use tokio::time::Instant;

use super::unfinished::{LONG, REMOVAL, SOON, away};
use super::*;

/// More tries than a call makes.
const ALL_TRIES: usize = 20;

#[tokio::test(start_paused = true)]
async fn destruction_waits_for_the_return_of_containerd() {
    for step in REMOVAL.into_iter().chain([Method::SignalTask]) {
        let fixture = fixture().await;
        let _tending = fixture.tended();
        let id = fixture.running(&["serve"]).await;
        // Until after the only search for unused images of this session.
        tokio::time::sleep(SOON).await;
        for _ in 0..3 {
            fixture.fake.fail_next(step, away());
        }
        fixture
            .destroy(&id, true)
            .await
            .expect("containerd is back in time");
        fixture.is_clean(&format!("{step:?}"));
        tokio::time::sleep(LONG).await;
        assert_eq!(fixture.fake.count(Method::RemoveImage), 1, "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn destruction_that_fails_is_completed_in_the_background() {
    for step in REMOVAL.into_iter().chain([Method::SignalTask]) {
        let fixture = fixture().await;
        let _tending = fixture.tended();
        let request = fixture.request("00000001", &["serve"]);
        fixture.start(&request).await.expect("it starts");
        // As above.
        tokio::time::sleep(SOON).await;
        for _ in 0..ALL_TRIES {
            fixture.fake.fail_next(step, away());
        }
        let failed = fixture
            .destroy(&request.id, true)
            .await
            .expect_err("containerd is away");
        assert!(
            failed.message().contains("containerd is away"),
            "{step:?}: {failed:?}"
        );
        let gone = fixture
            .recover(&request)
            .await
            .expect_err("it was destroyed");
        assert!(
            gone.message().starts_with("task not found for given id"),
            "{gone:?}"
        );
        assert!(!fixture.fake.remaining_objects().is_empty(), "{step:?}");
        tokio::time::sleep(LONG).await;
        fixture.is_clean(&format!("{step:?}"));
        assert_eq!(fixture.fake.count(Method::RemoveImage), 1, "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn destruction_does_not_wait_for_what_is_no_outage() {
    let fixture = fixture().await;
    let _tending = fixture.tended();
    let id = fixture.running(&["serve"]).await;
    fixture.fake.fail_next(
        Method::RemoveSandbox,
        Error::internal("a tree cannot be removed"),
    );
    let began = Instant::now();
    fixture
        .destroy(&id, true)
        .await
        .expect_err("it cannot be removed");
    assert_eq!(began.elapsed(), Duration::ZERO);
    tokio::time::sleep(SOON).await;
    fixture.is_clean("the next try succeeds");
}

#[tokio::test(start_paused = true)]
async fn stop_of_a_task_that_is_kept_is_completed_in_the_background() {
    let mut config = PluginConfig::default();
    config.gc.container = false;
    let fixture = fixture_with(config).await;
    let _tending = fixture.tended();
    let id = fixture.running(&["serve"]).await;
    for _ in 0..ALL_TRIES {
        fixture.fake.fail_next(Method::StopSandbox, away());
    }
    fixture
        .destroy(&id, true)
        .await
        .expect_err("containerd is away");
    tokio::time::sleep(LONG).await;
    let sandbox = fixture
        .driver
        .scope()
        .sandboxes()
        .named(&id)
        .expect("it is known")
        .expect("it is kept");
    assert_eq!(sandbox.state.as_str(), "stopped");
    assert_eq!(fixture.fake.count(Method::RemoveSandbox), 0);
}

#[tokio::test(start_paused = true)]
async fn end_of_the_daemon_is_not_held_up_by_a_destruction_that_waits() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    for _ in 0..ALL_TRIES {
        fixture.fake.fail_next(Method::StopSandbox, away());
    }
    let (destroyed, ended) = tokio::join!(fixture.destroy(&id, true), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fixture.gateway.shut_down(Duration::from_secs(1)).await
    });
    destroyed.expect_err("containerd is away");
    ended.expect("nothing is in flight");
}

#[tokio::test(start_paused = true)]
async fn removal_of_a_network_that_fails_is_completed_in_the_background() {
    for again in [true, false] {
        let fixture = fixture().await;
        let _tending = fixture.tended();
        let create = || nomad::CreateNetworkRequest {
            alloc_id: ALLOC.into(),
            hostname: String::new(),
        };
        fixture
            .driver
            .create_network(call(create()))
            .await
            .expect("it can be made");
        fixture.fake.fail_next(Method::StopSandbox, away());
        let destroy = nomad::DestroyNetworkRequest {
            alloc_id: ALLOC.into(),
            isolation_spec: None,
        };
        fixture
            .driver
            .destroy_network(call(destroy))
            .await
            .expect_err("containerd is away");
        assert_eq!(fixture.fake.sandboxes().len(), 1);
        if again {
            let made = fixture
                .driver
                .create_network(call(create()))
                .await
                .expect("it can be made");
            assert!(
                made.into_inner().created,
                "the first one does not work any more"
            );
        }
        tokio::time::sleep(LONG).await;
        assert_eq!(fixture.fake.sandboxes().len(), usize::from(again));
        assert_eq!(fixture.fake.breaches(), Vec::<String>::new());
    }
}
