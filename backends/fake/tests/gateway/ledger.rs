//! Two owners request the same devices concurrently, while the gateway is killed repeatedly: no slot ever has
//! two owners, and every answer holds afterwards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use switchyard_core::device::{Device, DeviceGroup, Inventory, node};
use switchyard_core::gateway::{Gateway, Leased, Limits, Scope};
use switchyard_core::id::{LeaseToken, Owner, SlotId};
use switchyard_core::ledger::{LeaseState, LeaseStore, MemoryStore, StoredLease};
use switchyard_core::operation::Operations;
use switchyard_core::spec::{LeaseClaim, TaskSpec};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_fake::Fake;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::node::{FakeNode, sandbox_spec, task_spec};

const PAIRS: usize = 10_000;

/// The number of contested slots in one life of the gateway, and the number of slots.
const LIFE: usize = 100;

const SHARES: u16 = 4;

fn devices() -> Inventory {
    let devices = (0..LIFE / usize::from(SHARES))
        .map(|number| {
            Device::new(
                &format!("acme-{number}"),
                node(format!("/dev/acme{number}").into(), "rw"),
            )
        })
        .collect();
    Inventory::of([DeviceGroup {
        shares: SHARES,
        devices,
        ..DeviceGroup::new("acme", "tpu", "v2")
    }])
}

/// The state that survives the daemon.
struct DurableState {
    fake: Fake,
    leases: Arc<MemoryStore>,
}

/// One life of the daemon: all its work ends with its runtime.
struct Life {
    runtime: Runtime,
    gateway: Gateway,
}

impl DurableState {
    fn life(&mut self) -> Life {
        self.fake = self.fake.reopen();
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .unwrap();
        let limits = Limits::default();
        let gateway = Gateway::with_leases(
            Arc::new(self.fake.clone()),
            limits,
            self.leases.clone(),
            Operations::default(),
        );
        runtime.block_on(async {
            let (_, inventories) = watch::channel(Some(Arc::new(devices())));
            gateway.devices().watch(inventories);
            gateway.recover().await.unwrap();
            let mut view = gateway.scope(Owner::Nomad).devices().subscribe();
            view.wait_for(Option::is_some).await.unwrap();
        });
        Life { runtime, gateway }
    }
}

/// The owners that were answered, by slot.
type Answered = BTreeMap<SlotId, (Owner, LeaseToken)>;

impl Life {
    /// Spawns an orchestrator that requests a slot on the signal `go`.
    fn asker(
        &self,
        owner: Owner,
        slot: &SlotId,
        go: &watch::Receiver<bool>,
    ) -> JoinHandle<Result<Leased>> {
        let scope = self.gateway.scope(owner);
        let slots = vec![slot.clone()];
        let mut go = go.clone();
        self.runtime.spawn(async move {
            go.wait_for(|go| *go).await.unwrap();
            scope.devices().lease(&slots).await
        })
    }

    /// Both request this slot; one of them gets it.
    fn race(&self, slot: &SlotId, round: usize) -> (Owner, LeaseToken) {
        let (go, begun) = watch::channel(false);
        let owners = [Owner::Kubernetes, Owner::Nomad];
        let mut asked: Vec<_> = owners
            .map(|owner| (owner, self.asker(owner, slot, &begun)))
            .into();
        if round.is_multiple_of(2) {
            asked.reverse();
        }
        go.send_replace(true);
        let answers: Vec<_> = asked
            .into_iter()
            .map(|(owner, answer)| (owner, self.runtime.block_on(answer).unwrap()))
            .collect();
        let mut winners = Vec::new();
        for (owner, answer) in answers {
            match answer {
                Ok(leased) => winners.push((owner, leased.token)),
                Err(refused) => {
                    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
                    assert!(
                        refused
                            .report()
                            .contains(&format!("device {slot:?} is held by ")),
                        "{refused}"
                    );
                }
            }
        }
        assert_eq!(winners.len(), 1, "{slot}: {winners:?}");
        winners[0]
    }

    /// Creates a task with a lease, in a sandbox of its own.
    async fn make(&self, owner: Owner, token: LeaseToken) {
        let scope = self.gateway.scope(owner);
        let name = token.to_string();
        let mut spec = sandbox_spec("pod");
        (spec.meta.owner, spec.meta.name) = (owner, name.clone());
        let sandbox = scope.sandboxes().create(spec).await.unwrap();
        let mut spec = task_spec(&name, &["serve"]);
        spec.meta.owner = owner;
        let leases = vec![LeaseClaim::new(token)];
        let task = scope
            .tasks()
            .create(&sandbox.id.to_string(), TaskSpec { leases, ..spec })
            .await
            .unwrap();
        scope.tasks().start(&task.id.to_string()).await.unwrap();
    }

    /// Checks that each slot has one owner; returns the leases by slot.
    fn holders(&self) -> BTreeMap<SlotId, (Owner, BTreeSet<LeaseToken>)> {
        let report = self.gateway.claims().report();
        let mut holders: BTreeMap<SlotId, (Owner, BTreeSet<LeaseToken>)> = BTreeMap::new();
        for (token, lease) in report.devices.leases().filter(|(_, lease)| lease.holds()) {
            for slot in &lease.slots {
                let (owner, tokens) = holders
                    .entry(slot.clone())
                    .or_insert((lease.owner, BTreeSet::new()));
                assert_eq!(*owner, lease.owner, "{slot} is held twice");
                tokens.insert(token);
            }
        }
        holders
    }

    fn has(&self, answered: &Answered) {
        let holders = self.holders();
        for (slot, (owner, token)) in answered {
            let held = holders
                .get(slot)
                .is_some_and(|(by, tokens)| by == owner && tokens.contains(token));
            assert!(
                held,
                "{slot} was given to {owner} by {token}: {:?}",
                holders.get(slot)
            );
        }
    }

    /// Ends all leases and removes all objects.
    fn clear(&self) {
        self.runtime.block_on(async {
            for scope in Owner::ALL.map(|owner| self.gateway.scope(owner)) {
                remove_all(&scope).await;
            }
            let report = self.gateway.claims().report();
            for (token, lease) in report.devices.leases() {
                match lease.state {
                    LeaseState::Unbound { .. } => {
                        self.gateway.devices().release_lease(token).await.unwrap()
                    }
                    LeaseState::Released { .. } => {}
                    LeaseState::Bound { .. } => panic!("its sandbox is gone: {lease:?}"),
                }
            }
        });
    }

    /// Ends everything at once, like `kill -9`.
    fn kill(self) {
        self.runtime.shutdown_timeout(Duration::from_secs(10));
    }
}

async fn remove_all(scope: &Scope) {
    for sandbox in scope.sandboxes().list().unwrap() {
        scope
            .sandboxes()
            .remove(&sandbox.id.to_string())
            .await
            .unwrap();
    }
}

#[test]
fn last_slot_has_one_owner_across_daemon_kills() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let fake = runtime.block_on(async { FakeNode::new().await.fake.clone() });
    let mut world = DurableState {
        fake,
        leases: Arc::default(),
    };
    let slots: Vec<SlotId> = devices().groups[0]
        .devices
        .iter()
        .flat_map(|device| device.slots(SHARES))
        .collect();
    let mut won: BTreeMap<Owner, usize> = BTreeMap::new();
    for life in 0..PAIRS / LIFE {
        let daemon = world.life();
        assert_eq!(
            daemon.holders(),
            BTreeMap::new(),
            "life {life} begins with nothing held"
        );
        let mut answered = Answered::new();
        for (round, slot) in slots.iter().enumerate() {
            let (owner, token) = daemon.race(slot, round);
            *won.entry(owner).or_default() += 1;
            answered.insert(slot.clone(), (owner, token));
            // Half of the leases are used.
            if round % 2 == 1 {
                daemon.runtime.block_on(daemon.make(owner, token));
            }
        }
        daemon.has(&answered);
        daemon.kill();
        let daemon = world.life();
        daemon.has(&answered);
        // The loser is still refused.
        for (slot, (owner, _)) in answered.iter().step_by(7) {
            let other = if *owner == Owner::Nomad {
                Owner::Kubernetes
            } else {
                Owner::Nomad
            };
            let asked = daemon.runtime.block_on(
                daemon
                    .gateway
                    .scope(other)
                    .devices()
                    .lease(std::slice::from_ref(slot)),
            );
            assert_eq!(asked.unwrap_err().kind(), ErrorKind::FailedPrecondition);
        }
        daemon.clear();
        // A stopped task may be started again for a while, but only by this daemon.
        daemon.kill();
    }
    assert_eq!(won.values().sum::<usize>(), PAIRS);
    assert!(won.len() == 2, "both win now and then: {won:?}");
    assert_eq!(world.fake.breaches(), Vec::<String>::new());
    assert_eq!(world.fake.remaining_objects(), Vec::<String>::new());
}

#[test]
fn kill_among_concurrent_leases_neither_double_allocates_nor_loses_any() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let fake = runtime.block_on(async { FakeNode::new().await.fake.clone() });
    let mut world = DurableState {
        fake,
        leases: Arc::default(),
    };
    let slots: Vec<SlotId> = devices().groups[0]
        .devices
        .iter()
        .flat_map(|device| device.slots(SHARES))
        .collect();
    for life in 0..100 {
        let daemon = world.life();
        let (go, begun) = watch::channel(false);
        let asked: Vec<_> = slots
            .iter()
            .flat_map(|slot| [Owner::Kubernetes, Owner::Nomad].map(|owner| (slot, owner)))
            .map(|(slot, owner)| (slot, owner, daemon.asker(owner, slot, &begun)))
            .collect();
        go.send_replace(true);
        // At some moment during the requests.
        while asked
            .iter()
            .filter(|(.., answer)| answer.is_finished())
            .count()
            < life
        {
            std::thread::yield_now();
        }
        daemon.kill();
        let mut answered = Answered::new();
        for (slot, owner, answer) in asked {
            if let Ok(Ok(leased)) = runtime.block_on(answer) {
                let twice = answered.insert(slot.clone(), (owner, leased.token));
                assert_eq!(twice, None, "{slot} was given to two");
            }
        }
        let daemon = world.life();
        daemon.has(&answered);
        daemon.clear();
        daemon.kill();
    }
    let daemon = world.life();
    assert_eq!(daemon.holders(), BTreeMap::new());
}

/// A store that cannot be read at first, for these reasons.
#[derive(Debug, Default)]
struct LateStore {
    leases: MemoryStore,
    failures: Mutex<VecDeque<ErrorKind>>,
    reads: AtomicUsize,
}

impl LateStore {
    fn failing(failures: &[ErrorKind]) -> Arc<Self> {
        Arc::new(Self {
            failures: Mutex::new(failures.iter().copied().collect()),
            ..Self::default()
        })
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

impl LeaseStore for LateStore {
    fn load(&self) -> BoxFuture<'_, Result<Vec<StoredLease>>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match self.failures.lock().pop_front() {
            Some(kind) => Box::pin(async move { Err(Error::new(kind, "the disk is late")) }),
            None => self.leases.load(),
        }
    }

    fn put<'a>(&'a self, lease: &'a StoredLease) -> BoxFuture<'a, Result<()>> {
        self.leases.put(lease)
    }

    fn remove<'a>(&'a self, tokens: &'a [LeaseToken]) -> BoxFuture<'a, Result<()>> {
        self.leases.remove(tokens)
    }
}

/// A gateway that has recovered with this store and knows its devices.
async fn recovered(store: &Arc<LateStore>) -> Gateway {
    let fake = Arc::new(Fake::new());
    let gateway = Gateway::with_leases(
        fake,
        Limits::default(),
        store.clone(),
        Operations::default(),
    );
    let (_, inventories) = watch::channel(Some(Arc::new(devices())));
    gateway.devices().watch(inventories);
    gateway.recover().await.unwrap();
    let mut view = gateway.scope(Owner::Nomad).devices().subscribe();
    view.wait_for(Option::is_some).await.unwrap();
    gateway
}

#[tokio::test(start_paused = true)]
async fn leases_that_cannot_be_read_at_first_are_read_later() {
    let store = LateStore::failing(&[ErrorKind::DeadlineExceeded, ErrorKind::Internal]);
    let slots: Vec<_> = devices().groups[0].devices[0]
        .slots(SHARES)
        .take(1)
        .collect();
    let token = LeaseToken::random();
    store
        .put(&StoredLease {
            token,
            owner: Owner::Nomad,
            slots: slots.clone(),
        })
        .await
        .unwrap();
    let gateway = recovered(&store).await;
    let leased = async |owner| gateway.scope(owner).devices().lease(&slots).await;
    assert!(!gateway.devices().is_recovered());
    // Whose lease it is cannot be known.
    assert_eq!(
        leased(Owner::Nomad).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    let read = async {
        while !gateway.devices().is_recovered() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_hours(1), read)
        .await
        .expect("it is tried again");
    assert_eq!(store.reads(), 3);
    assert_eq!(
        leased(Owner::Kubernetes).await.unwrap_err().kind(),
        ErrorKind::FailedPrecondition
    );
    assert_eq!(leased(Owner::Nomad).await.unwrap().token, token);
}

#[tokio::test(start_paused = true)]
async fn leases_that_can_never_be_read_are_not_read_again() {
    let store = LateStore::failing(&[ErrorKind::Internal, ErrorKind::FailedPrecondition]);
    let gateway = recovered(&store).await;
    tokio::time::sleep(Duration::from_hours(24)).await;
    assert!(!gateway.devices().is_recovered());
    assert_eq!(store.reads(), 2);
}
