//! Tests of devices that tasks name directly, that several containers share, and whose ids change.

use super::*;

#[test]
fn a_device_that_a_task_names_itself_is_its_own_and_no_other_sandboxes() {
    let mut devices = devices(vec![
        group("v2", &["a"]),
        DeviceGroup {
            shares: 2,
            ..group("v3", &["b"])
        },
    ]);
    let path = [
        Path::new("/dev/a"),
        Path::new("/dev/b"),
        Path::new("/dev/null"),
    ];
    let named = DeviceNames {
        nodes: &path,
        cdi: &[],
    };
    let claims = devices.lease_named(N, named, (sandbox(1), "task")).unwrap();
    let slots: Vec<_> = claims
        .iter()
        .flat_map(|claim| claim.slots.clone())
        .collect();
    assert_eq!(slots, ["a", "b::0"]);
    let again = devices.lease_named(N, named, (sandbox(1), "task")).unwrap();
    assert_eq!(
        again, claims,
        "what its sandbox has is claimed for its next task as well"
    );
    let refusal = devices
        .lease_named(K, named, (sandbox(2), "pod"))
        .unwrap_err();
    assert!(refusal.to_string().contains("task of nomad"), "{refusal}");
    assert_eq!(
        devices.leases().count(),
        2,
        "nothing is leased of what was refused"
    );
    let shared = DeviceNames {
        nodes: &path[1..],
        cdi: &[],
    };
    assert_eq!(
        devices.lease_named(K, shared, (sandbox(2), "pod")).unwrap()[0].slots,
        ["b::1"]
    );
    devices.lease(K, &ids(&["a"]), token(1)).unwrap_err();
    devices.release_sandbox(sandbox(1));
    devices.tick(OVER);
    devices.lease(K, &ids(&["a"]), token(1)).unwrap();
}

#[test]
fn a_node_that_several_devices_have_is_no_devices_alone_and_one_that_is_gone_has_none() {
    let with_control = |id: &str| {
        let mut device = device(id);
        device.nodes.push(node("/dev/ctl".into(), "rw"));
        device.cdi = vec![format!("acme.com/tpu={id}")];
        device.aliases.push(format!("acme.com/tpu=GPU-{id}"));
        device
    };
    let group_of = |ids: &[&str]| DeviceGroup {
        devices: ids.iter().map(|id| with_control(id)).collect(),
        ..group("v2", &[])
    };
    let mut devices = devices(vec![group_of(&["a", "b", "c"])]);
    let slots = |devices: &mut Devices, nodes: &[&Path], cdi: &[&str], number| {
        let cdi: Vec<String> = cdi.iter().map(|name| (*name).to_owned()).collect();
        let named = DeviceNames { nodes, cdi: &cdi };
        let claims = devices.lease_named(N, named, (sandbox(number), "task"));
        claims.map(|claims| {
            claims
                .into_iter()
                .flat_map(|claim| claim.slots)
                .collect::<Vec<_>>()
        })
    };
    let a = Path::new("/dev/a");
    let ctl = Path::new("/dev/ctl");
    assert_eq!(slots(&mut devices, &[a, ctl], &[], 1).unwrap(), ["a"]);
    assert_eq!(
        slots(&mut devices, &[ctl], &["acme.com/tpu=GPU-b"], 2).unwrap(),
        ["b"]
    );
    slots(&mut devices, &[], &["acme.com/tpu=all"], 3).unwrap_err();
    devices.set_inventory(&Inventory::of([group_of(&["b", "c"])]));
    assert_eq!(
        slots(&mut devices, &[a], &[], 4).unwrap(),
        Vec::<SlotId>::new(),
        "its path may be another's by now"
    );
}

#[test]
fn the_containers_of_a_pod_have_devices_in_common_and_do_not_wait_for_each_other() {
    let mut devices = devices(vec![group("v2", &["a", "b"])]);
    devices.lease(K, &ids(&["a"]), token(1)).unwrap();
    devices.lease(K, &ids(&["a", "b"]), token(2)).unwrap();
    devices
        .bind(K, token(1), sandbox(1), "pod")
        .expect("the init container");
    assert!(
        !devices.has_slot_awaiting_release(K, &ids(&["a", "b"])),
        "its own sandbox is nobody to wait for"
    );
    devices
        .bind(K, token(2), sandbox(1), "pod")
        .expect("the container after it");
    assert_eq!(healthy(&devices, N), Vec::<String>::new());
    devices.lease(K, &ids(&["a"]), token(3)).unwrap();
    assert!(
        devices.has_slot_awaiting_release(K, &ids(&["a"])),
        "that is another pod's"
    );
}

#[test]
fn what_a_task_was_made_with_is_taken_up_again_unless_somebody_has_it() {
    let mut devices = devices(vec![group("v2", &["a"])]);
    let claim = LeaseClaim {
        token: token(1),
        slots: ids(&["a"]),
        named: false,
    };
    devices
        .reclaim(K, &claim, (sandbox(1), "pod".to_owned()))
        .expect("a predecessor has made it");
    devices
        .reclaim(K, &claim, (sandbox(1), "pod".to_owned()))
        .expect("it has it");
    devices.release_sandbox(sandbox(1));
    devices.tick(OVER);
    devices.lease(N, &ids(&["a"]), token(2)).unwrap();
    let refusal = devices
        .reclaim(K, &claim, (sandbox(1), "pod".to_owned()))
        .unwrap_err();
    assert_eq!(
        (refusal.reason, refusal.holder.unwrap().owner),
        (RefusalReason::Held, N)
    );
}

#[test]
fn a_lease_follows_its_device_when_the_id_changes() {
    let mut devices = devices(vec![group("v2", &["a"])]);
    devices.lease(N, &ids(&["a"]), token(1)).unwrap();
    devices.bind(N, token(1), sandbox(1), "task").unwrap();
    let named = |id: &str, path: &str| Device {
        aliases: vec![path.to_owned()],
        nodes: vec![node(path.into(), "rw")],
        ..device(id)
    };
    // A second device of the same kind appears, and both get longer ids.
    let twins = vec![named("a-1111", "/dev/a"), named("a-2222", "/dev/b")];
    devices.set_inventory(&Inventory::of([DeviceGroup {
        devices: twins,
        ..group("v2", &[])
    }]));
    assert_eq!(healthy(&devices, K), ["a-2222"]);
    assert_eq!(devices.get(token(1)).unwrap().slots, ["a-1111"]);
    // A different device at the path of one that is gone is not the same device.
    let other = vec![named("c", "/dev/a")];
    devices.set_inventory(&Inventory::of([DeviceGroup {
        devices: other,
        ..group("v2", &[])
    }]));
    assert_eq!(healthy(&devices, K), ["c"]);
}

#[test]
fn what_has_not_changed_for_an_owner_is_shared_with_what_it_was_told_before() {
    let quota = BTreeMap::from([(N, 1)]);
    let all = || {
        [
            group("one", &["a", "b"]),
            DeviceGroup {
                quota: quota.clone(),
                ..group("two", &["c", "d"])
            },
        ]
    };
    let mut devices = devices(all().into());
    let mut views = [K, N].map(|owner| (owner, View::default()));
    // Which groups changed in the views of Kubernetes and of Nomad.
    let mut changed = |devices: &Devices| {
        let outlook = Arc::new(devices.snapshot());
        views.each_mut().map(|(owner, view)| {
            let before = std::mem::replace(view, outlook.view(*owner, view));
            let groups = |view: &View| {
                view.inventory
                    .clone()
                    .map_or_else(Vec::new, |all| all.groups.clone())
            };
            let now = groups(view);
            let before = groups(&before);
            let is_new = |at: &usize| {
                before
                    .get(*at)
                    .is_none_or(|group| !Arc::ptr_eq(group, &now[*at]))
            };
            (0..now.len()).filter(is_new).collect::<Vec<_>>()
        })
    };
    assert_eq!(changed(&devices), [[0, 1], [0, 1]]);
    devices.set_inventory(&Inventory::of(all()));
    assert_eq!(
        changed(&devices),
        [[0_usize; 0]; 2],
        "an equal inventory changes nothing"
    );
    devices.lease(K, &ids(&["a"]), token(1)).unwrap();
    assert_eq!(
        changed(&devices),
        [vec![], vec![0]],
        "its owner sees it as before"
    );
    devices.lease(N, &ids(&["d"]), token(2)).unwrap();
    assert_eq!(
        changed(&devices),
        [vec![1], vec![]],
        "a quota of one is used up by the one that was shown"
    );
    let [one, mut two] = all();
    two.devices[0].health = Health::Unhealthy("it burns".to_owned());
    devices.set_inventory(&Inventory::of([one, two]));
    assert_eq!(changed(&devices), [vec![1], vec![1]]);
    assert_eq!(healthy(&devices, K), ["a", "b"]);
    assert_eq!(healthy(&devices, N), ["b", "d"]);
}

#[test]
fn a_lease_of_before_holds_all_that_it_may_be_of() {
    let mut devices = Devices::default();
    devices.record(token(1), Lease::new(N, ids(&["a"])));
    devices.record(token(2), Lease::new(N, ids(&["b::1"])));
    let shared = DeviceGroup {
        shares: 2,
        ..group("v2", &["a", "c"])
    };
    devices.set_inventory(&Inventory::of([shared, group("v3", &["b-1", "b-2", "d"])]));
    devices.set_recovered();
    assert_eq!(healthy(&devices, K), ["c::0", "c::1", "d"]);
}
