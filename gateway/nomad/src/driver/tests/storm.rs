//! Concurrent calls about two starts of one task in any order, cancelled at any moment, with runtime faults
//! and daemon kills in between: there is never more than one task under the key, and nothing is left behind.

use futures::future::join_all;
use proptest::prelude::*;
use switchyard_core::Error;
use switchyard_fake::Method;

use super::*;

/// Far more than any round takes in paused time.
const PATIENCE: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Copy)]
enum Deed {
    Start,
    Recover,
    Wait,
    Stop,
    Signal,
    Inspect,
    Destroy,
    Exit,
}

/// An operation, on the second start or not, after how many milliseconds, and after how many more its caller
/// cancels.
type Asked = (Deed, bool, u64, Option<u64>);

fn asked() -> impl Strategy<Value = Asked> {
    let deed = prop_oneof![
        4 => Just(Deed::Start),
        1 => Just(Deed::Recover),
        1 => Just(Deed::Wait),
        2 => Just(Deed::Stop),
        1 => Just(Deed::Signal),
        1 => Just(Deed::Inspect),
        2 => Just(Deed::Destroy),
        1 => Just(Deed::Exit),
    ];
    (deed, any::<bool>(), 0..12_u64, prop::option::of(0..8_u64))
}

fn fault() -> impl Strategy<Value = Method> {
    prop_oneof![
        Just(Method::CreateSandbox),
        Just(Method::BeginRemoval),
        Just(Method::StopSandbox),
        Just(Method::RemoveSandbox),
        Just(Method::CreateTask),
        Just(Method::StartTask),
        Just(Method::SignalTask),
        Just(Method::RemoveTask),
        Just(Method::Pull),
    ]
}

/// Does one operation. Its result depends on the others; the round is judged as a whole.
async fn perform(fixture: &DriverFixture, (deed, second, pause, patience): Asked) {
    let request = fixture.request(if second { "00000002" } else { "00000001" }, &["serve"]);
    let id = request.id.clone();
    let work = async {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        match deed {
            Deed::Start => drop(fixture.start(&request).await),
            Deed::Recover => drop(fixture.recover(&request).await),
            // A task may run for ever: this waiter gives up.
            Deed::Wait => {
                drop(tokio::time::timeout(Duration::from_secs(60), fixture.wait(&id)).await)
            }
            Deed::Stop => drop(fixture.stop(&id, "", 1).await),
            Deed::Signal => {
                let message = nomad::SignalTaskRequest {
                    task_id: id,
                    signal: "SIGHUP".into(),
                };
                drop(fixture.driver.signal_task(call(message)).await);
            }
            Deed::Inspect => drop(fixture.inspect(&id).await),
            Deed::Destroy => drop(fixture.destroy(&id, true).await),
            Deed::Exit => drop(
                fixture
                    .driver
                    .task(&id)
                    .map(|task| fixture.fake.exit(task.id, 1)),
            ),
        }
    };
    match patience {
        None => work.await,
        Some(more) => drop(tokio::time::timeout(Duration::from_millis(pause + more), work).await),
    }
}

fn running(fixture: &DriverFixture) -> usize {
    fixture
        .fake
        .tasks()
        .into_iter()
        .filter(|task| fixture.fake.runs(*task))
        .count()
}

/// Waits for cancelled operations to finish. A removal that failed may wait to be requested again: the
/// objects left at the end are checked.
async fn quiet(fixture: &DriverFixture) {
    for _ in 0..10_000 {
        assert!(
            running(fixture) <= 1,
            "two tasks run in one place: {:?}",
            fixture.fake.remaining_objects()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
        if fixture.fake.pending_removals().is_empty() {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn concurrent_call_storm_duplicates_or_leaks_no_task(
        rounds in prop::collection::vec(
            (prop::collection::vec(asked(), 1..10), prop::collection::vec(fault(), 0..3), any::<bool>()),
            1..5,
        ),
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("it can be made");
        runtime.block_on(async {
            let dir = fixture().await.dir;
            let mut fixture = over(Fake::with_busybox().with_latency(Duration::from_millis(2)), PluginConfig::default(), dir).await;
            for (deeds, faults, killed) in rounds {
                for method in faults {
                    fixture.fake.fail_next(method, Error::unavailable("by chance"));
                }
                let all = join_all(deeds.into_iter().map(|deed| perform(&fixture, deed)));
                tokio::time::timeout(PATIENCE, all).await.expect("a call hangs");
                quiet(&fixture).await;
                if killed {
                    fixture = fixture.restarted().await;
                    quiet(&fixture).await;
                }
                assert_eq!(fixture.fake.breaches(), Vec::<String>::new());
            }
            // Discards injected faults that were not met.
            let fixture = fixture.restarted().await;
            for start in ["00000001", "00000002"] {
                fixture.destroy(&fixture.request(start, &["serve"]).id, true).await.expect("it can be destroyed");
            }
            quiet(&fixture).await;
            assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());
        });
    }
}
