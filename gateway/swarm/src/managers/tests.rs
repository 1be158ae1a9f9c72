//! The choice of a manager.

use super::{COUNT_MAX, Managers, Peer};

fn peer(address: &str) -> Peer {
    Peer {
        node: format!("node-of-{address}"),
        address: address.to_owned(),
    }
}

/// Counts how often a manager is chosen over all remainders of the weights.
fn share(managers: &Managers, address: &str) -> usize {
    (0..192)
        .filter(|random| {
            managers
                .choose(*random)
                .is_some_and(|peer| peer.address == address)
        })
        .count()
}

#[test]
fn none_is_chosen_of_none() {
    assert_eq!(Managers::default().choose(7), None);
}

#[test]
fn equal_managers_are_chosen_equally() {
    let managers = Managers::of(["a:1", "b:1", "c:1"].map(peer));
    for address in ["a:1", "b:1", "c:1"] {
        assert_eq!(share(&managers, address), 64);
    }
}

#[test]
fn manager_that_fails_is_chosen_less_and_still_now_and_then() {
    let mut managers = Managers::of(["a:1", "b:1"].map(peer));
    managers.failed("a:1");
    assert!(share(&managers, "a:1") * 3 / 2 <= share(&managers, "b:1"));
    for _ in 0..100 {
        managers.failed("a:1");
    }
    let chosen = (0..65)
        .filter(|random| managers.choose(*random) == Some(&peer("a:1")))
        .count();
    assert_eq!(chosen, 1);
    managers.answered("a:1");
    let chosen = (0..128)
        .filter(|random| managers.choose(*random) == Some(&peer("a:1")))
        .count();
    assert_eq!(chosen, 64);
}

#[test]
fn replaced_list_keeps_the_weights_of_those_that_stay() {
    let mut managers = Managers::of(["a:1", "b:1"].map(peer));
    for _ in 0..10 {
        managers.failed("b:1");
    }
    assert!(managers.replace(["c:1", "b:1"].map(peer)));
    let chosen = (0..65)
        .filter(|random| managers.choose(*random) == Some(&peer("b:1")))
        .count();
    assert_eq!(chosen, 1);
    assert!(
        !managers.replace(["b:1", "c:1", "b:1"].map(peer)),
        "it is the same list"
    );
}

#[test]
fn useless_and_hostile_lists_change_nothing_or_are_cut() {
    let mut managers = Managers::of([peer("a:1")]);
    assert!(!managers.replace([]));
    assert!(!managers.replace([peer(""), peer(&"x".repeat(1000))]));
    assert_eq!(managers.peers().count(), 1);
    assert!(managers.replace((0..10_000).map(|port| peer(&format!("a:{port}")))));
    assert_eq!(managers.peers().count(), COUNT_MAX);
}
