//! Something that cannot be read may hold any slot.

use proptest::prelude::*;

use super::*;

const N: Owner = Owner::Nomad;
const K: Owner = Owner::Kubernetes;

/// Leases and binds a slot.
fn bound(devices: &mut Devices, owner: Owner, slot: &str, number: u8) {
    devices.lease(owner, &ids(&[slot]), token(number)).unwrap();
    devices
        .bind(owner, token(number), sandbox(number), "pod")
        .unwrap();
}

#[test]
fn who_has_a_slot_keeps_it_and_nobody_gets_another() {
    let mut devices = devices(vec![group("v2", &["a", "b", "c"])]);
    bound(&mut devices, N, "a", 1);
    devices.lease(N, &ids(&["b"]), token(2)).unwrap();
    devices.withhold();
    let refusal = devices.lease(K, &ids(&["c"]), token(3)).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Withheld);
    // What was leased may be what the other has: an orchestrator may lease what its own sandbox still has.
    let refusal = devices.bind(N, token(2), sandbox(2), "task").unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Withheld);
    let path = Path::new("/dev/c");
    let named = DeviceNames {
        nodes: &[path],
        cdi: &[],
    };
    let refusal = devices
        .lease_named(K, named, (sandbox(4), "pod"))
        .unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::Withheld);
    // Another task of the sandbox that has it.
    let claim = devices.bind(N, token(1), sandbox(1), "pod").unwrap();
    assert_eq!(claim.slots, ids(&["a"]));
    devices
        .reclaim(N, &claim, (sandbox(1), "pod".to_owned()))
        .unwrap();
    assert_eq!(healthy(&devices, N), ["a", "b"]);
    assert_eq!(healthy(&devices, K), [""; 0]);
    assert_eq!(devices.report().groups[0].free, 0);
}

proptest! {
    /// Whatever is asked for, no sandbox gets a slot that it did not have.
    #[test]
    fn no_sandbox_has_more_than_before(asked in proptest::collection::vec((0..3_u8, 0..4_u8, 0..3_usize, any::<bool>()), 0..30)) {
        let names = ["a", "b", "c"];
        let mut devices = devices(vec![group("v2", &names)]);
        bound(&mut devices, N, "a", 1);
        devices.withhold();
        for (number, lease, slot, by_name) in asked {
            let paths = [format!("/dev/{}", names[slot])];
            let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
            let named = DeviceNames { nodes: &paths, cdi: &[] };
            if by_name {
                let _ = devices.lease_named(N, named, (sandbox(number), "x"));
            } else {
                let _ = devices.lease(N, &ids(&[names[slot]]), token(lease));
                let _ = devices.bind(N, token(lease), sandbox(number), "x");
            }
            for (_, lease) in devices.leases() {
                if let LeaseState::Bound { sandbox: holder, .. } = &lease.state {
                    prop_assert_eq!((*holder, &lease.slots), (sandbox(1), &ids(&["a"])));
                }
            }
        }
    }
}
