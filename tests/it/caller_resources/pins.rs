//! Sandboxes on the gateway's own bridge without plugins, which send with their own addresses alone.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use switchyard_containerd::Settings;
use switchyard_containerd::config::{BridgeDriverChoice, PinChoice};
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{SandboxNetwork, Security};
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::forger::is_heard;
use switchyard_tests::host::eventually;

use super::bridge::{LIMIT, first};
use super::{CallerFixture, bridged};

/// Time for a datagram that does not arrive.
const QUIET: Duration = Duration::from_millis(400);
const SLEEP: &str = "exec sleep 1000";

type Change = fn(&mut Security);

/// Tasks, with whether their sandbox stays pinned.
const TASKS: [(&str, Change, bool); 8] = [
    ("a task that asks for nothing", |_| {}, true),
    ("NET_RAW", |one| add(one, "NET_RAW"), true),
    ("NET_ADMIN", |one| add(one, "NET_ADMIN"), false),
    ("CAP_NET_ADMIN", |one| add(one, "CAP_NET_ADMIN"), false),
    ("ALL", |one| add(one, "ALL"), false),
    (
        "ALL without NET_ADMIN",
        |one| {
            add(one, "ALL");
            one.capabilities.drop.push("NET_ADMIN".to_owned());
        },
        true,
    ),
    (
        "an ambient capability",
        |one| one.capabilities.add_ambient.push("NET_ADMIN".to_owned()),
        false,
    ),
    ("privileged", |one| one.privileged = true, false),
];

fn add(security: &mut Security, name: &str) {
    security.capabilities.add.push(name.to_owned());
}

/// A sandbox, and how it is reached.
struct Pinnable {
    id: SandboxId,
    netns: PathBuf,
    own: Ipv4Addr,
}

impl Pinnable {
    async fn new(caller: &CallerFixture) -> Self {
        let (id, details) = caller
            .sandbox(|spec| {
                spec.network = bridged(|_| {});
                spec.privileged = true;
            })
            .await;
        let netns = details.netns.clone().expect("it has one");
        let own = first(&details);
        Self { id, netns, own }
    }

    /// Its own address is heard always, and another one if it is not pinned.
    #[track_caller]
    fn check(&self, caller: &CallerFixture, is_pinned: bool, when: &str) {
        let bridge = caller.fixture.root().bridge();
        let [node, other] = [bridge.gateway(), bridge.spare()];
        assert!(is_heard(&self.netns, self.own, node, LIMIT), "{when}");
        let limit = if is_pinned { QUIET } else { LIMIT };
        let forged = is_heard(&self.netns, other, node, limit);
        assert_eq!(forged, !is_pinned, "{when}");
    }
}

/// Counts the sandboxes that are pinned.
fn pinned(caller: &CallerFixture) -> usize {
    caller.fixture.root().bridge().pinned()
}

fn set(settings: &mut Settings, pin: PinChoice) {
    settings.network.bridge.driver = Some(BridgeDriverChoice::Native);
    settings.network.bridge.pin = pin;
}

/// Replaces the backend, as a restart with this value of the key.
async fn reopen(caller: &mut CallerFixture, pin: PinChoice) {
    let change = |settings: &mut Settings| set(settings, pin);
    caller.backend = tokio::task::block_in_place(|| caller.fixture.reopen_with(change));
    caller.backend.recover().await.expect("it recovers");
}

async fn start(pin: PinChoice) -> CallerFixture {
    let fixture = || BackendFixture::with(|settings| set(settings, pin));
    CallerFixture::with_fixture(tokio::task::block_in_place(fixture)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_is_pinned_until_a_task_of_it_has_net_admin() {
    let mut caller = start(PinChoice::Auto).await;
    let mut sandboxes = Vec::new();
    for (name, change, is_pinned) in TASKS {
        let sandbox = Pinnable::new(&caller).await;
        sandbox.check(&caller, true, &format!("before {name}"));
        let id = sandbox.id;
        caller
            .task(id, SLEEP, |spec| change(&mut spec.security))
            .await;
        sandbox.check(&caller, is_pinned, name);
        sandboxes.push((sandbox, name, is_pinned));
    }
    let expected = sandboxes.iter().filter(|(_, _, is_pinned)| *is_pinned);
    let expected = expected.count();
    assert_eq!(pinned(&caller), expected);
    for stage in ["restarted", "flushed"] {
        if stage == "restarted" {
            reopen(&mut caller, PinChoice::Auto).await;
        } else {
            caller.fixture.root().bridge().remove_tables();
        }
        assert!(
            eventually(LIMIT, || pinned(&caller) == expected),
            "{stage}: {} are pinned",
            pinned(&caller)
        );
        for (sandbox, name, is_pinned) in &sandboxes {
            sandbox.check(&caller, *is_pinned, &format!("{stage}, {name}"));
        }
    }
    // A second task changes nothing.
    let (sandbox, ..) = &sandboxes[2];
    caller.task(sandbox.id, SLEEP, |_| {}).await;
    assert_eq!(pinned(&caller), expected);
    for (sandbox, ..) in &sandboxes {
        let stopped = caller.backend.stop_sandbox(sandbox.id).await;
        stopped.expect("it can be stopped");
    }
    assert_eq!(pinned(&caller), 0);
    caller.close().await;
}

/// A task of Nomad may join the network of a sibling, which has a sandbox of its own.
#[tokio::test(flavor = "multi_thread")]
async fn task_counts_for_the_sandbox_whose_network_it_joins() {
    let mut caller = start(PinChoice::Auto).await;
    let joined = Pinnable::new(&caller).await;
    let other = Pinnable::new(&caller).await;
    for (name, change, is_pinned) in [TASKS[1], TASKS[2]] {
        let netns = joined.netns.clone();
        let (id, _) = caller
            .sandbox(|spec| spec.network = SandboxNetwork::Joined(netns))
            .await;
        caller
            .task(id, SLEEP, |spec| change(&mut spec.security))
            .await;
        joined.check(&caller, is_pinned, name);
        other.check(&caller, true, "another network");
    }
    reopen(&mut caller, PinChoice::Auto).await;
    joined.check(&caller, false, "restarted");
    other.check(&caller, true, "another network, restarted");
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_that_is_started_again_is_pinned_as_it_was() {
    let caller = start(PinChoice::Auto).await;
    for (name, change, is_pinned) in [TASKS[0], TASKS[2]] {
        let mut spec = caller.sandbox_spec();
        spec.network = bridged(|_| {});
        let id = SandboxId::random();
        let backend = &caller.backend;
        let created = backend.create_sandbox(id, &spec).await;
        created.expect("it can be created");
        caller
            .task(id, SLEEP, |spec| change(&mut spec.security))
            .await;
        assert_eq!(pinned(&caller), usize::from(is_pinned), "{name}");
        backend.stop_sandbox(id).await.expect("it can be stopped");
        backend.wait_network_released(id).await;
        assert_eq!(pinned(&caller), 0, "{name}");
        let started = backend.start_sandbox(id, &spec).await;
        started.expect("its address is free");
        assert_eq!(pinned(&caller), usize::from(is_pinned), "{name}");
        backend.stop_sandbox(id).await.expect("it can be stopped");
    }
    caller.close().await;
}

/// Tasks that were created while nothing was pinned have left no note, nor have those of sandboxes that joined the network.
#[tokio::test(flavor = "multi_thread")]
async fn sandbox_that_is_started_again_is_pinned_only_without_net_admin() {
    let mut caller = start(PinChoice::None).await;
    let mut made = Vec::new();
    for ((name, change, is_pinned), is_joined) in [
        (TASKS[0], false),
        (TASKS[2], false),
        (TASKS[7], false),
        (TASKS[0], true),
        (TASKS[2], true),
    ] {
        let mut spec = caller.sandbox_spec();
        spec.network = bridged(|_| {});
        spec.privileged = true;
        let id = SandboxId::random();
        let backend = &caller.backend;
        let created = backend.create_sandbox(id, &spec).await;
        let netns = created.expect("it can be created").netns;
        let mut of_task = id;
        if is_joined {
            let netns = netns.expect("it has one");
            let joined = caller.sandbox(|spec| spec.network = SandboxNetwork::Joined(netns));
            (of_task, _) = joined.await;
        }
        let task = caller.task(of_task, "exit 0", |spec| change(&mut spec.security));
        caller.end(task.await).await;
        if is_joined {
            let stopped = backend.stop_sandbox(of_task).await;
            stopped.expect("it can be stopped");
        }
        backend.stop_sandbox(id).await.expect("it can be stopped");
        backend.wait_network_released(id).await;
        made.push((id, spec, name, is_joined, is_pinned));
    }
    reopen(&mut caller, PinChoice::Auto).await;
    for (id, spec, name, is_joined, is_pinned) in &made {
        let before = pinned(&caller);
        let started = caller.backend.start_sandbox(*id, spec).await;
        started.expect("its address is free");
        let added = usize::from(*is_pinned);
        let found = pinned(&caller);
        assert_eq!(found, before + added, "{name}, joined: {is_joined}");
    }
    caller.close().await;
}

/// Each step restarts the backend with a value of the key. The first sandbox is made without pins, the second one with them; that one gets
/// a task with NET_ADMIN.
#[tokio::test(flavor = "multi_thread")]
async fn key_says_which_sandboxes_are_pinned() {
    use PinChoice::{All, Auto, None as NoPins};
    let mut caller = start(NoPins).await;
    let first = Pinnable::new(&caller).await;
    first.check(&caller, false, "none");
    reopen(&mut caller, Auto).await;
    assert_eq!(pinned(&caller), 0, "it was made without");
    let second = Pinnable::new(&caller).await;
    second.check(&caller, true, "auto");
    for (pin, expected) in [(NoPins, 0), (All, 1)] {
        reopen(&mut caller, pin).await;
        assert_eq!(pinned(&caller), expected, "{pin:?}");
    }
    let admin = |spec: &mut switchyard_core::spec::TaskSpec| add(&mut spec.security, "NET_ADMIN");
    caller.task(second.id, SLEEP, admin).await;
    second.check(&caller, true, "all");
    for (pin, expected) in [(Auto, 0), (All, 1), (NoPins, 0)] {
        reopen(&mut caller, pin).await;
        assert_eq!(pinned(&caller), expected, "{pin:?}, with NET_ADMIN");
    }
    second.check(&caller, false, "none again");
    caller.close().await;
}
