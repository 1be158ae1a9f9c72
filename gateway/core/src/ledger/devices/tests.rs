//! Tests of devices and leases: examples.

use std::path::Path;

use super::*;
use crate::device::{DeviceGroup, Health, node};

mod following;
mod random;
mod withheld;

fn token(number: u8) -> LeaseToken {
    LeaseToken::from_bytes([number; 16])
}

fn sandbox(number: u8) -> SandboxId {
    SandboxId::from_bytes([number; 32])
}

fn device(id: &str) -> Device {
    let path = format!("/dev/{id}");
    Device {
        aliases: vec![path.clone()],
        ..Device::new(id, node(path.into(), "rw"))
    }
}

fn group(name: &str, ids: &[&str]) -> DeviceGroup {
    DeviceGroup {
        devices: ids.iter().map(|id| device(id)).collect(),
        ..DeviceGroup::new("acme", "tpu", name)
    }
}

fn devices(groups: Vec<DeviceGroup>) -> Devices {
    let mut devices = Devices::default();
    devices.set_inventory(&Inventory::of(groups));
    devices.set_recovered();
    devices
}

fn ids(ids: &[&str]) -> Vec<SlotId> {
    ids.iter().map(|id| id.parse().unwrap()).collect()
}

/// The slots that an owner sees as healthy.
fn healthy(devices: &Devices, owner: Owner) -> Vec<String> {
    let view = devices.view(owner).unwrap();
    let all = view.groups.iter().flat_map(|group| &group.devices);
    all.filter(|device| device.health == Health::Healthy)
        .map(|device| device.id.clone())
        .collect()
}

/// The next tick ends every grace period.
const OVER: TickLimits = TickLimits {
    unbound: u32::MAX,
    grace: 1,
};
/// The next tick makes every unbound lease contestable.
const AGED: TickLimits = TickLimits {
    unbound: 1,
    grace: u32::MAX,
};

const K: Owner = Owner::Kubernetes;
const N: Owner = Owner::Nomad;

#[test]
fn what_one_owner_has_is_unhealthy_for_the_others_alone() {
    let mut devices = devices(vec![group("v2", &["a", "b"])]);
    let granted = devices.lease(K, &ids(&["a"]), token(1)).unwrap();
    assert!(granted.is_new);
    assert_eq!(granted.reservation.nodes, [node("/dev/a".into(), "rw")]);
    assert_eq!(healthy(&devices, K), ["a", "b"]);
    for owner in [N, Owner::Swarm, Owner::Host] {
        assert_eq!(healthy(&devices, owner), ["b"]);
    }
    let refusal = devices.lease(N, &ids(&["b", "a"]), token(2)).unwrap_err();
    assert_eq!(
        (
            refusal.reason.clone(),
            refusal.holder.as_ref().unwrap().owner
        ),
        (RefusalReason::Held, K)
    );
    assert_eq!(
        healthy(&devices, K),
        ["a", "b"],
        "nothing is leased of what was refused"
    );
    devices.bind(K, token(1), sandbox(1), "pod").unwrap();
    let refusal = devices.lease(N, &ids(&["a"]), token(2)).unwrap_err();
    assert!(
        refusal.to_string().contains("pod of kubernetes"),
        "{refusal}"
    );
    assert_eq!(devices.release_sandbox(sandbox(1)), [token(1)]);
    assert_eq!(healthy(&devices, N), ["b"], "its owner may start it again");
    devices.tick(OVER);
    assert_eq!(healthy(&devices, N), ["a", "b"]);
    devices.lease(N, &ids(&["a"]), token(2)).unwrap();
    assert_eq!(
        devices
            .bind(K, token(1), sandbox(2), "pod")
            .unwrap_err()
            .reason,
        RefusalReason::Lost
    );
}

#[test]
fn a_lease_whose_sandbox_had_stopped_before_a_restart_holds_nothing_and_is_known() {
    let mut devices = devices(vec![group("v2", &["a", "b"])]);
    devices.record(
        token(1),
        Lease::bound(N, ids(&["a"]), sandbox(1), "task".to_owned()),
    );
    // Of the previous attempt of the same task, and of another task.
    devices.recall(token(1), Lease::new(N, ids(&["a"])));
    devices.recall(token(2), Lease::new(N, ids(&["b"])));
    devices.recall(token(3), Lease::new(N, ids(&["b"])));
    assert_eq!(healthy(&devices, K), ["b"]);
    assert_eq!(
        devices
            .bind(K, token(2), sandbox(2), "pod")
            .unwrap_err()
            .reason,
        RefusalReason::Lost,
        "it is Nomad's"
    );
    assert_eq!(
        devices
            .bind(N, token(2), sandbox(2), "other")
            .unwrap()
            .slots,
        ["b"]
    );
    assert_eq!(
        devices
            .bind(N, token(3), sandbox(3), "third")
            .unwrap_err()
            .reason,
        RefusalReason::Held
    );
    assert_eq!(healthy(&devices, K), Vec::<String>::new());
}

#[test]
fn a_lease_whose_start_has_failed_holds_its_slots_for_its_grace_and_is_known_after_it() {
    let mut devices = devices(vec![group("v2", &["a", "b"])]);
    devices.lease(N, &ids(&["a"]), token(1)).unwrap();
    devices.lease(N, &ids(&["b"]), token(2)).unwrap();
    devices.bind(N, token(2), sandbox(1), "task").unwrap();
    assert_eq!(devices.start_failed(K, &[token(1)]), [], "it is Nomad's");
    assert_eq!(
        devices.start_failed(N, &[token(1), token(2), token(3)]),
        [token(1)],
        "the other is in use"
    );
    assert_eq!(
        devices.lease(K, &ids(&["a"]), token(4)).unwrap_err().reason,
        RefusalReason::Held
    );
    assert_eq!(
        devices.tick(OVER),
        TickOutcome {
            freed: true,
            expired: vec![token(1)]
        }
    );
    assert_eq!(healthy(&devices, K), ["a"]);
    devices.bind(N, token(1), sandbox(2), "task").unwrap();
    assert_eq!(healthy(&devices, K), Vec::<String>::new());
    // An operator may end the lease of a sandbox in which nothing runs.
    devices.unbind_stopped(token(1));
    devices.lease(K, &ids(&["a"]), token(4)).unwrap();
    assert_eq!(
        devices
            .bind(N, token(1), sandbox(3), "task")
            .unwrap_err()
            .reason,
        RefusalReason::Lost
    );
}

#[test]
fn the_same_question_has_the_same_answer_until_something_is_made_with_it() {
    let mut devices = devices(vec![group("v2", &["a", "b"])]);
    devices.lease(N, &ids(&["b", "a"]), token(1)).unwrap();
    let again = devices.lease(N, &ids(&["a", "b", "a"]), token(2)).unwrap();
    assert_eq!((again.token, again.is_new), (token(1), false));
    devices.bind(N, token(1), sandbox(1), "task").unwrap();
    let other = devices.lease(N, &ids(&["a", "b"]), token(3)).unwrap();
    assert_eq!((other.token, other.is_new), (token(3), true));
    assert!(devices.has_slot_awaiting_release(N, &ids(&["b"])));
    let refusal = devices.bind(N, token(3), sandbox(2), "task").unwrap_err();
    assert_eq!(
        refusal.holder.unwrap().sandbox,
        Some(sandbox(1)),
        "its predecessor runs"
    );
    devices.release_sandbox(sandbox(1));
    assert!(!devices.has_slot_awaiting_release(N, &ids(&["b"])));
    devices.bind(N, token(3), sandbox(2), "task").unwrap();
}

#[test]
fn a_task_that_is_restarted_has_its_devices_again() {
    let mut devices = devices(vec![group("v2", &["a"])]);
    devices.lease(N, &ids(&["a"]), token(1)).unwrap();
    devices.bind(N, token(1), sandbox(1), "task").unwrap();
    devices.release_sandbox(sandbox(1));
    assert_eq!(
        devices.bind(N, token(1), sandbox(2), "task").unwrap().slots,
        ["a"]
    );
    devices.tick(OVER);
    assert_eq!(
        healthy(&devices, K),
        Vec::<String>::new(),
        "a grace that ends late takes nothing away"
    );
    devices.release_sandbox(sandbox(2));
    devices.tick(OVER);
    assert_eq!(
        devices.bind(N, token(1), sandbox(3), "task").unwrap().slots,
        ["a"],
        "they were free still"
    );
}

#[test]
fn a_lease_that_nothing_is_made_with_yields_in_the_end_and_only_to_who_asks() {
    let mut devices = devices(vec![group("v2", &["a"])]);
    devices.lease(N, &ids(&["a"]), token(1)).unwrap();
    devices.lease(K, &ids(&["a"]), token(2)).unwrap_err();
    devices.tick(AGED);
    assert_eq!(healthy(&devices, K), ["a"]);
    devices.bind(N, token(1), sandbox(1), "task").unwrap();
    devices.lease(K, &ids(&["a"]), token(2)).unwrap_err();
    devices.unbind(token(1));
    devices.tick(AGED);
    assert_eq!(
        devices.lease(K, &ids(&["a"]), token(2)).unwrap().ended,
        [token(1)]
    );
    assert_eq!(
        devices
            .bind(N, token(1), sandbox(1), "task")
            .unwrap_err()
            .reason,
        RefusalReason::Lost
    );
}

#[test]
fn a_lease_that_its_orchestrator_does_not_have_any_more_ends() {
    let mut devices = devices(vec![group("v2", &["a", "b"])]);
    devices.lease(K, &ids(&["a"]), token(1)).unwrap();
    devices.lease(K, &ids(&["b"]), token(2)).unwrap();
    devices.bind(K, token(2), sandbox(1), "pod").unwrap();
    let none = BTreeSet::new();
    let listed = BTreeSet::from(["a".parse().unwrap()]);
    for _ in 1..MISSES {
        assert_eq!(devices.end_unlisted(K, &none), []);
    }
    assert_eq!(
        devices.end_unlisted(K, &listed),
        [],
        "it counts again from a list that has it"
    );
    for _ in 1..MISSES {
        assert_eq!(devices.end_unlisted(K, &none), []);
        assert_eq!(devices.end_unlisted(N, &none), []);
    }
    assert_eq!(
        devices.end_unlisted(K, &none),
        [token(1)],
        "what a sandbox has is not ended by a list"
    );
    assert_eq!(healthy(&devices, N), ["a"]);
    assert_eq!(devices.end_unlisted(K, &none), [], "it has ended already");
    devices.bind(K, token(1), sandbox(2), "late").unwrap();
}

#[test]
fn a_lease_that_its_orchestrator_lists_does_not_age() {
    let mut devices = devices(vec![group("v2", &["a"])]);
    devices.lease(K, &ids(&["a"]), token(1)).unwrap();
    let listed = BTreeSet::from(["a".parse().unwrap()]);
    for _ in 0..10 {
        assert!(
            !devices
                .tick(TickLimits {
                    unbound: 2,
                    grace: 1
                })
                .freed
        );
        assert_eq!(devices.end_unlisted(K, &listed), []);
    }
    assert_eq!(healthy(&devices, N), [""; 0]);
}

#[test]
fn an_owner_has_no_more_than_its_quota_and_sees_no_more() {
    let quota = BTreeMap::from([(K, 1), (N, 2)]);
    let mut devices = devices(vec![DeviceGroup {
        quota,
        ..group("v2", &["a", "b", "c", "d"])
    }]);
    assert_eq!(healthy(&devices, K), ["a"]);
    assert_eq!(healthy(&devices, N), ["c", "d"]);
    assert_eq!(healthy(&devices, Owner::Swarm), ["a", "b", "c", "d"]);
    assert_eq!(
        devices
            .lease(K, &ids(&["a", "b"]), token(1))
            .unwrap_err()
            .reason,
        RefusalReason::Quota
    );
    devices.lease(K, &ids(&["b"]), token(1)).unwrap();
    assert_eq!(healthy(&devices, K), ["b"], "its own stay healthy");
    assert_eq!(
        devices.lease(K, &ids(&["a"]), token(2)).unwrap_err().reason,
        RefusalReason::Quota
    );
}

#[test]
fn slots_of_a_shared_device_are_leased_apart() {
    let mut devices = devices(vec![DeviceGroup {
        shares: 2,
        ..group("v2", &["a"])
    }]);
    assert_eq!(healthy(&devices, K), ["a::0", "a::1"]);
    let granted = devices.lease(K, &ids(&["a::0"]), token(1)).unwrap();
    assert_eq!(granted.reservation.nodes.len(), 1);
    devices.lease(N, &ids(&["a::1"]), token(2)).unwrap();
    assert_eq!(
        devices
            .lease(N, &ids(&["a::2"]), token(3))
            .unwrap_err()
            .reason,
        RefusalReason::Unknown
    );
}

#[test]
fn a_device_that_goes_stays_known_and_an_old_id_is_understood() {
    let mut devices = devices(vec![group("v2", &["a", "b"])]);
    devices.record(token(1), Lease::new(N, ids(&["/dev/b"])));
    assert_eq!(healthy(&devices, K), ["a"]);
    devices.set_inventory(&Inventory::of([group("v2", &["a"])]));
    let view = devices.view(N).unwrap();
    let vanished = &view.groups[0].devices[1];
    assert_eq!(
        (vanished.id.as_str(), &vanished.health),
        ("b", &Health::Gone)
    );
    assert!(matches!(
        devices.lease(N, &ids(&["b"]), token(2)).unwrap_err().reason,
        RefusalReason::Unhealthy(_)
    ));
    devices.set_inventory(&Inventory::of([group("v2", &["a", "b"])]));
    assert_eq!(healthy(&devices, N), ["a", "b"]);
}

#[test]
fn a_lease_from_before_the_first_look_is_known_by_its_old_id() {
    let mut devices = Devices::default();
    devices.record(token(1), Lease::new(N, ids(&["/dev/b"])));
    devices.set_inventory(&Inventory::of([group("v2", &["a", "b"])]));
    assert_eq!(
        healthy(&devices, N),
        Vec::<String>::new(),
        "nothing is given out before all is known"
    );
    assert_eq!(
        devices.lease(K, &ids(&["a"]), token(2)).unwrap_err().reason,
        RefusalReason::Recovering
    );
    devices.set_recovered();
    assert_eq!(healthy(&devices, K), ["a"]);
}

#[test]
fn two_owners_that_are_found_with_one_slot_are_both_kept_and_neither_gets_more() {
    let mut devices = devices(vec![group("v2", &["a"])]);
    let bound =
        |owner, number| Lease::bound(owner, ids(&["a"]), sandbox(number), number.to_string());
    devices.record(token(1), bound(N, 1));
    devices.record(token(2), bound(K, 2));
    assert_eq!(devices.leases().count(), 2);
    for owner in [K, N] {
        assert_eq!(healthy(&devices, owner), Vec::<String>::new());
        devices.lease(owner, &ids(&["a"]), token(3)).unwrap_err();
    }
}

#[test]
fn what_can_never_be_asked_for_is_refused_before_it_is_looked_at() {
    let mut devices = devices(vec![group("v2", &["a"])]);
    let many: Vec<SlotId> = (0..10_000)
        .map(|number| format!("x{number}").parse().unwrap())
        .collect();
    assert_eq!(
        devices.lease(K, &many, token(1)).unwrap_err().reason,
        RefusalReason::TooMany
    );
    assert_eq!(
        devices.lease(K, &[], token(1)).unwrap_err().reason,
        RefusalReason::TooMany
    );
    assert_eq!(
        devices
            .lease(K, &ids(&["a", "../x"]), token(1))
            .unwrap_err()
            .reason,
        RefusalReason::Unknown
    );
    assert_eq!(
        devices
            .bind(K, token(9), sandbox(1), "pod")
            .unwrap_err()
            .reason,
        RefusalReason::Lost
    );
}

#[test]
fn a_report_shows_each_slot_with_all_who_have_it_and_what_is_of_no_group() {
    let shared = DeviceGroup {
        shares: 2,
        ..group("two", &["b"])
    };
    let mut devices = devices(vec![group("one", &["a", "c"]), shared.clone()]);
    devices.lease(N, &ids(&["a", "b::1"]), token(1)).unwrap();
    devices.bind(N, token(1), sandbox(1), "web").unwrap();
    devices.lease(K, &ids(&["c"]), token(2)).unwrap();
    devices.record(
        token(3),
        Lease::bound(K, ids(&["a"]), sandbox(2), "pod".to_owned()),
    );
    devices.record(token(4), Lease::new(Owner::Swarm, ids(&["elsewhere"])));
    devices.set_inventory(&Inventory::of([group("one", &["a"]), shared]));
    let report = devices.report();
    let shown: Vec<_> = report
        .slots
        .iter()
        .map(|slot| {
            let holders = slot
                .holders
                .iter()
                .map(|holder| (holder.owner, holder.name.as_str(), holder.state));
            (
                slot.id.as_str(),
                slot.group.as_str(),
                slot.health == Health::Healthy,
                holders.collect::<Vec<_>>(),
            )
        })
        .collect();
    let expected = [
        (
            "a",
            "acme/tpu/one",
            true,
            vec![(N, "web", "bound"), (K, "pod", "bound")],
        ),
        ("c", "acme/tpu/one", false, vec![(K, "", "unbound")]),
        ("b::0", "acme/tpu/two", true, vec![]),
        ("b::1", "acme/tpu/two", true, vec![(N, "web", "bound")]),
        ("elsewhere", "", false, vec![(Owner::Swarm, "", "unbound")]),
    ];
    assert_eq!(shown, expected);
    let numbers: Vec<_> = report
        .groups
        .iter()
        .map(|group| (group.capacity, group.free, group.held.clone()))
        .collect();
    let both = BTreeMap::from([(K, 2), (N, 1)]);
    assert_eq!(numbers, [(1, 0, both), (2, 1, BTreeMap::from([(N, 1)]))]);
    devices.release_sandbox(sandbox(1));
    assert_eq!(devices.report().slots[3].holders[0].state, "grace");
    devices.tick(OVER);
    assert_eq!(
        devices.report().slots[3].holders,
        [],
        "what is only remembered holds nothing"
    );
    devices.tick(AGED);
    assert_eq!(devices.report().slots[1].holders[0].state, "contestable");
    assert!(devices.is_recovered() && !Devices::default().is_recovered());
}
