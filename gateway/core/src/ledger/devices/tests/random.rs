//! The invariants of devices and leases under random operations.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Op {
    Lease(Owner, Vec<SlotId>),
    Bind(Owner, u8, u8),
    Unbind(u8),
    LetGo(u8),
    Tick(TickLimits),
    List(Owner, bool),
    Drop(u8),
    Vanish(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let owner = || prop_oneof![Just(K), Just(N)];
    let slot = prop_oneof![
        Just("a"),
        Just("b::0"),
        Just("b::1"),
        Just("c"),
        Just("/dev/c")
    ];
    let slots = proptest::collection::vec(slot.prop_map(|slot| slot.parse().unwrap()), 1..3);
    let number = || 0..20_u8;
    proptest::collection::vec(
        prop_oneof![
            4 => (owner(), slots).prop_map(|(owner, slots)| Op::Lease(owner, slots)),
            4 => (owner(), number(), 0..4_u8).prop_map(|(owner, token, sandbox)| Op::Bind(owner, token, sandbox)),
            1 => number().prop_map(Op::Unbind),
            2 => (0..4_u8).prop_map(Op::LetGo),
            3 => prop_oneof![Just(OVER), Just(AGED)].prop_map(Op::Tick),
            2 => (owner(), any::<bool>()).prop_map(|(owner, empty)| Op::List(owner, empty)),
            1 => number().prop_map(Op::Drop),
            1 => any::<bool>().prop_map(Op::Vanish),
        ],
        0..60,
    )
}

/// The invariants, whatever was done to the devices.
fn check(devices: &Devices) -> Result<(), TestCaseError> {
    for (slot, tokens) in &devices.by_slot {
        let leases: Vec<&Lease> = tokens.iter().map(|token| &devices.leases[token]).collect();
        prop_assert!(leases.iter().all(|lease| lease.slots.contains(slot)));
        let holders: BTreeSet<Owner> = leases
            .iter()
            .filter(|lease| lease.holds())
            .map(|lease| lease.owner)
            .collect();
        prop_assert!(holders.len() <= 1, "{slot} is held by {holders:?}");
        let sandboxes: BTreeSet<SandboxId> = leases
            .iter()
            .filter_map(|lease| match lease.state {
                LeaseState::Bound { sandbox, .. } => Some(sandbox),
                LeaseState::Unbound { .. } | LeaseState::Released { .. } => None,
            })
            .collect();
        prop_assert!(sandboxes.len() <= 1, "{slot} is in {sandboxes:?}");
    }
    for (token, lease) in &devices.leases {
        prop_assert!(
            lease
                .slots
                .iter()
                .all(|slot| devices.by_slot[slot].contains(token))
        );
    }
    for token in &devices.remembered {
        prop_assert_eq!(
            &devices.leases[token].state,
            &LeaseState::Released { grace: false }
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn never_do_two_owners_or_two_sandboxes_have_one_slot(ops in ops()) {
        let shared = DeviceGroup { shares: 2, ..group("two", &["b"]) };
        let quota = BTreeMap::from([(N, 1)]);
        let all = vec![group("one", &["a", "c"]), DeviceGroup { quota, ..shared }];
        let mut devices = devices(all.clone());
        let mut views = [K, N].map(|owner| (owner, View::default()));
        for (number, op) in ops.into_iter().enumerate() {
            let fresh = LeaseToken::from_bytes([u8::try_from(number % 20).unwrap(); 16]);
            match op {
                Op::Lease(owner, slots) => {
                    // Tokens are random: a token is never used for a second lease.
                    if devices.get(fresh).is_none() {
                        match devices.lease(owner, &slots, fresh) {
                            Ok(granted) => {
                                prop_assert!(granted.lease.slots.iter().all(|slot| devices.is_held_by(owner, slot)));
                                prop_assert_eq!(granted.reservation.nodes.is_empty(), false);
                            }
                            Err(refusal) => prop_assert!(refusal.reason != RefusalReason::Held || refusal.holder.is_some()),
                        }
                    }
                }
                Op::Bind(owner, lease, home) => match devices.bind(owner, token(lease), sandbox(home), "task") {
                    Ok(claim) => prop_assert!(claim.slots.iter().all(|slot| devices.is_held_by(owner, slot))),
                    Err(refusal) => prop_assert!(refusal.reason == RefusalReason::Lost || refusal.holder.is_some()),
                },
                Op::Unbind(lease) => {
                    // Nothing was made with it, so it cannot have been contested meanwhile.
                    devices.unbind(token(lease));
                }
                Op::LetGo(home) => drop(devices.release_sandbox(sandbox(home))),
                Op::Tick(limits) => drop(devices.tick(limits)),
                Op::List(owner, empty) => {
                    let all = ids(&["a", "b::0", "b::1", "c"]).into_iter();
                    let listed = all.filter(|_| !empty).collect();
                    let ended = devices.end_unlisted(owner, &listed);
                    prop_assert!(empty || ended.is_empty());
                }
                Op::Drop(lease) => drop(devices.drop_unused(token(lease))),
                Op::Vanish(gone) => {
                    let groups = if gone { vec![group("one", &["a"])] } else { all.clone() };
                    devices.set_inventory(&Inventory::of(groups));
                }
            }
            check(&devices)?;
            let outlook = Arc::new(devices.snapshot());
            for (owner, view) in &mut views {
                *view = outlook.view(*owner, view);
                prop_assert_eq!(&view.inventory, &devices.view(*owner), "a view that is kept up equals one that is made again");
            }
        }
    }
}
