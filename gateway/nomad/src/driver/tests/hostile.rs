//! Sequences of calls with texts of any length and content and numbers at all limits: each call succeeds, or
//! is refused with a short and fitting error, and a task that was not started does not exist.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rmpv::Value;
use switchyard_core::STATUS_TEXT_MAX;

use super::*;
use crate::identity::task_key;

/// Far more than any call takes in paused time, except a stop whose grace period is not over.
const PATIENCE: Duration = Duration::from_secs(3600);

const REFUSALS: [Code; 4] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::FailedPrecondition,
    Code::Unimplemented,
];

/// Options of a task that take a text.
const OPTIONS: [&str; 12] = [
    "image",
    "command",
    "hostname",
    "work_dir",
    "runtime",
    "network_mode",
    "pid_mode",
    "ipc_mode",
    "cgroupns",
    "load",
    "mac_address",
    "image_pull_timeout",
];

#[derive(Debug, Clone)]
enum Step {
    /// With one field, option or resource number malformed.
    Start(Field, Option<(usize, String)>, i64),
    Recover(Field),
    Stop(usize, String, i64),
    Signal(usize, String),
    Inspect(String),
    Destroy(usize),
    /// For a task that was not started.
    DestroyNone(String),
}

/// Number of a request's field, and its new value.
type Field = (u8, String);

fn text() -> impl Strategy<Value = String> + Clone {
    let kinds = [
        "",
        "a",
        "..",
        "/",
        "../../x",
        "\0",
        "a\nb",
        "\"",
        "a;b=c,d",
        "\u{202e}x",
        "\u{10ffff}",
        "-1",
        "{id}",
    ];
    prop_oneof![
        4 => prop::sample::select(kinds.to_vec()).prop_map(str::to_owned),
        2 => prop::sample::select(vec![64, 128, 253, 255, 256, 4096, 65_536]).prop_map(|length| "n".repeat(length)),
        1 => any::<String>(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let field = || (0..14_u8, text());
    let number = || prop_oneof![3 => Just(0), 1 => prop::sample::select(vec![-1, 1, i64::MAX, i64::MIN, 1 << 40])];
    prop_oneof![
        6 => (field(), prop::option::of((0..OPTIONS.len(), text())), number())
            .prop_map(|(field, option, number)| Step::Start(field, option, number)),
        1 => field().prop_map(Step::Recover),
        1 => (0..4_usize, text(), number()).prop_map(|(task, signal, grace)| Step::Stop(task, signal, grace)),
        1 => (0..4_usize, text()).prop_map(|(task, signal)| Step::Signal(task, signal)),
        1 => text().prop_map(Step::Inspect),
        1 => (0..4_usize).prop_map(Step::Destroy),
        1 => text().prop_map(Step::DestroyNone),
    ]
}

/// A request with one field changed; most numbers change none.
fn request(fixture: &DriverFixture, start: usize, (field, text): Field) -> nomad::TaskConfig {
    let mut task = fixture.request(&format!("{start:08}"), &["serve"]);
    match field {
        0 => task.id = text,
        1 => task.name = text,
        2 => task.alloc_id = text,
        3 => task.alloc_dir = text,
        4 => task.user = text,
        5 => drop(task.env.insert(text.clone(), text)),
        6 => task.job_name = text,
        7 => task.namespace = text,
        8 => task.stdout_path = text,
        9 => task.mounts.push(nomad::Mount {
            task_path: text.clone(),
            host_path: text,
            ..Default::default()
        }),
        10 => task.msgpack_driver_config = text.into_bytes(),
        _ => {}
    }
    task
}

/// The same with an option, and a number in each field of its resources.
fn with_option(task: &mut nomad::TaskConfig, option: Option<(usize, String)>, number: i64) {
    if let Some((option, text)) = option {
        let given = rmpv::decode::read_value(&mut &*task.msgpack_driver_config);
        let Ok(Value::Map(mut pairs)) = given else {
            return;
        };
        pairs.retain(|(key, _)| key.as_str() != Some(OPTIONS[option]));
        pairs.push((OPTIONS[option].into(), text.into()));
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, &Value::Map(pairs))
            .expect("a vector grows as it must");
        task.msgpack_driver_config = bytes;
    }
    if number != 0 {
        let linux = nomad::LinuxResources {
            cpu_period: number,
            cpu_quota: number,
            cpu_shares: number,
            memory_limit_bytes: number,
            oom_score_adj: number,
            ..Default::default()
        };
        task.resources = Some(nomad::Resources {
            linux_resources: Some(linux),
            ..Default::default()
        });
    }
}

/// Returns whether a call succeeded; panics if it was refused in a way that an agent cannot use.
#[track_caller]
fn done<T>(step: &Step, answer: Result<T, Status>) -> bool {
    let Err(status) = answer else { return true };
    let short: String = format!("{step:?}").chars().take(200).collect();
    assert!(REFUSALS.contains(&status.code()), "{short}: {status:?}");
    let length = status.message().len();
    assert!(
        (1..=STATUS_TEXT_MAX).contains(&length),
        "{short}: {:?} in {length} bytes",
        status.code()
    );
    assert!(
        status.details().len() <= STATUS_TEXT_MAX + 200,
        "{short}: details"
    );
    false
}

async fn take(fixture: &DriverFixture, started: &mut BTreeSet<String>, number: usize, step: Step) {
    let pick = |at: usize| {
        started
            .iter()
            .nth(at % started.len().max(1))
            .cloned()
            .unwrap_or_default()
    };
    match step.clone() {
        Step::Start(field, option, number_of) => {
            let mut request = request(fixture, number, field);
            with_option(&mut request, option, number_of);
            if done(&step, fixture.start(&request).await) {
                // A start removes an earlier one of the same task of the same allocation.
                started.retain(|other| task_key(other) != task_key(&request.id));
                started.insert(request.id);
            } else {
                // A start that is refused late has already removed it.
                let here = task_key(&request.id);
                let mut gone = Vec::new();
                for other in started.iter().filter(|other| task_key(other) == here) {
                    if fixture.inspect(other).await.is_err() {
                        gone.push(other.clone());
                    }
                }
                started.retain(|other| !gone.contains(other));
            }
        }
        Step::Recover(field) => {
            let request = request(fixture, number, field);
            assert!(!done(&step, fixture.recover(&request).await) || started.contains(&request.id));
        }
        Step::Stop(at, signal, grace) => {
            done(&step, fixture.stop(&pick(at), &signal, grace).await);
        }
        Step::Signal(at, signal) => {
            let message = nomad::SignalTaskRequest {
                task_id: pick(at),
                signal,
            };
            done(&step, fixture.driver.signal_task(call(message)).await);
        }
        Step::Inspect(id) => assert_eq!(
            done(&step, fixture.inspect(&id).await),
            started.contains(&id)
        ),
        Step::Destroy(at) => {
            let id = pick(at);
            if done(&step, fixture.destroy(&id, true).await) {
                started.remove(&id);
            }
        }
        Step::DestroyNone(id) => {
            if done(&step, fixture.destroy(&id, true).await) {
                started.remove(&id);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_calls_are_done_or_rejected_without_side_effects(steps in prop::collection::vec(step(), 1..16)) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let fixture = fixture().await;
let mut started = BTreeSet::new();
            for (number, step) in steps.into_iter().enumerate() {
                let taken = tokio::time::timeout(PATIENCE, take(&fixture, &mut started, number, step.clone())).await;
                // A longer grace period than that is waited for by the client.
                assert!(taken.is_ok() || matches!(step, Step::Stop(..)), "{step:?} is not answered");
                for id in &started {
                    assert!(fixture.inspect(id).await.is_ok(), "{id} was started");
                }
            }
            for id in started {
                fixture.destroy(&id, true).await.expect("what was started can be destroyed");
            }
            assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());
        });
    }
}
