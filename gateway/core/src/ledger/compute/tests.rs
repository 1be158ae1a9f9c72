//! Tests of exclusive cores against those of other owners, and of sums against the node's capacity.

use proptest::prelude::*;

use super::*;

const K: Owner = Owner::Kubernetes;
const N: Owner = Owner::Nomad;

fn task(number: u8) -> TaskId {
    TaskId::from_bytes([number; 32])
}

fn sandbox(number: u8) -> SandboxId {
    SandboxId::from_bytes([number; 32])
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn amount(cpu_milli: u64, memory_bytes: u64) -> Reserved {
    Reserved {
        cpu_milli,
        memory_bytes,
    }
}

fn holder(owner: Owner, cpus: Cpus) -> ComputeHolder {
    ComputeHolder {
        owner,
        sandbox: sandbox(1),
        name: format!("{owner}-web"),
        cpus,
        reserved: amount(0, 0),
    }
}

fn reserving(owner: Owner, reserved: Reserved) -> ComputeHolder {
    ComputeHolder {
        reserved,
        ..holder(owner, Cpus::Any)
    }
}

fn own(cores: &str) -> Cpus {
    Cpus::Exclusive(set(cores))
}

fn pool(cores: &str) -> Cpus {
    Cpus::Shared(set(cores))
}

#[test]
fn cores_of_a_task_that_cannot_be_read_are_refused_to_its_owner_too() {
    let mut compute = Compute::default();
    compute.hold(task(1), holder(N, own("2-3")));
    for owner in [N, K] {
        let refusal = compute
            .claim(task(2), holder(owner, own("3-4")))
            .unwrap_err();
        assert_eq!(
            (refusal.resource, refusal.reason),
            (Resource::Cores(set("3")), RefusalReason::Held)
        );
    }
    assert_eq!(compute.claim(task(2), holder(N, own("4"))), Ok(Vec::new()));
    // Two of one owner that can be read are separated by the owner itself.
    assert_eq!(
        compute.claim(task(3), holder(N, own("4-5"))),
        Ok(Vec::new())
    );
}

#[test]
fn withheld_cores_are_granted_to_those_alone_that_have_them() {
    let mut compute = Compute::default();
    assert_eq!(
        compute.claim(task(1), holder(N, own("2-3"))),
        Ok(Vec::new())
    );
    compute.withhold();
    let refusal = compute.claim(task(2), holder(N, own("4"))).unwrap_err();
    assert_eq!(
        (refusal.resource, refusal.reason),
        (Resource::Cores(set("4")), RefusalReason::Withheld)
    );
    compute.claim(task(1), holder(N, own("2"))).unwrap_err();
    // A start of what was recovered with them.
    assert_eq!(
        compute.claim(task(1), holder(N, own("2-3"))),
        Ok(Vec::new())
    );
    // Shared ones, and updates of what runs, are granted as ever.
    assert_eq!(compute.claim(task(3), holder(K, pool("4"))), Ok(Vec::new()));
    compute.change(task(1), holder(N, own("5"))).unwrap();
}

#[test]
fn cores_of_another_owner_are_refused_with_their_holder_until_its_sandbox_has_stopped() {
    let mut compute = Compute::default();
    assert_eq!(
        compute.claim(task(1), holder(N, own("2-3"))),
        Ok(Vec::new())
    );
    let refusal = compute.claim(task(2), holder(K, own("0,3-4"))).unwrap_err();
    assert_eq!(refusal.resource, Resource::Cores(set("3")));
    let text = refusal.to_string();
    assert!(
        text.starts_with("the set 3 of processors is held by nomad-web of nomad"),
        "{text}"
    );
    // Its orchestrator may start it again.
    compute.end(task(1));
    compute.claim(task(2), holder(K, own("3"))).unwrap_err();
    compute.release_sandbox(sandbox(1));
    assert_eq!(
        compute.claim(task(2), holder(K, own("0,3-4"))),
        Ok(Vec::new())
    );
    compute.claim(task(1), holder(N, own("2-3"))).unwrap_err();
}

#[test]
fn an_owner_plans_its_own_cores_itself() {
    let mut compute = Compute::default();
    compute.claim(task(1), holder(N, own("2-3"))).unwrap();
    assert_eq!(compute.claim(task(2), holder(N, own("3"))), Ok(Vec::new()));
    assert!(compute.conflicts().is_empty());
}

#[test]
fn a_pool_on_the_cores_of_another_is_told_once_for_each_set() {
    let mut compute = Compute::default();
    compute.claim(task(1), holder(N, own("2-3"))).unwrap();
    let warnings = compute.claim(task(2), holder(K, pool("0-2"))).unwrap();
    assert_eq!(warnings.len(), 1);
    assert_eq!(
        (&warnings[0].resource, &warnings[0].reason),
        (&Resource::Cores(set("2")), &RefusalReason::Held)
    );
    assert!(
        compute
            .claim(task(3), holder(K, pool("0-2")))
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        compute
            .change(task(3), holder(K, pool("0-3")))
            .unwrap()
            .len(),
        1
    );
    // The same in the other order.
    let warnings = compute
        .claim(task(4), holder(Owner::Swarm, own("1")))
        .unwrap();
    assert_eq!(
        (&warnings[0].resource, &warnings[0].reason),
        (&Resource::Cores(set("1")), &RefusalReason::Shared)
    );
}

#[test]
fn cores_that_a_running_task_is_given_are_held_whoever_has_them() {
    let mut compute = Compute::default();
    compute.claim(task(1), holder(N, own("2-3"))).unwrap();
    compute.claim(task(2), holder(K, own("0"))).unwrap();
    assert_eq!(
        compute
            .change(task(2), holder(K, own("0,2")))
            .unwrap()
            .len(),
        1
    );
    assert_eq!(compute.conflicts().len(), 1);
    compute
        .claim(task(3), holder(Owner::Swarm, own("0")))
        .unwrap_err();
}

#[test]
fn more_than_the_node_has_is_told_when_it_begins_or_refused() {
    let capacity = Some(amount(4000, 100));
    let mut warned = Compute::new(capacity, Overcommit::Warn);
    assert!(
        warned
            .claim(task(1), reserving(K, amount(3000, 60)))
            .unwrap()
            .is_empty()
    );
    let warnings = warned
        .claim(task(2), reserving(N, amount(2000, 10)))
        .unwrap();
    assert_eq!(warnings[0].resource, Resource::Cpu { milli: 2000 });
    assert_eq!(
        warnings[0].to_string(),
        "2 processors is more than is left of 4 processors: kubernetes has reserved 3 processors"
    );
    assert!(
        warned
            .claim(task(3), reserving(N, amount(500, 0)))
            .unwrap()
            .is_empty(),
        "it was more already"
    );

    let mut enforced = Compute::new(capacity, Overcommit::Enforce);
    enforced
        .claim(task(1), reserving(K, amount(0, 60)))
        .unwrap();
    let refusal = enforced
        .claim(task(2), reserving(N, amount(0, 41)))
        .unwrap_err();
    assert_eq!(
        (refusal.resource(), refusal.reason.as_str()),
        ("memory", "overcommitted")
    );
    assert!(
        enforced
            .claim(task(2), reserving(N, amount(0, 40)))
            .unwrap()
            .is_empty()
    );
    enforced
        .change(task(1), reserving(K, amount(0, 61)))
        .unwrap_err();
    // Less than before is never refused, and an exited task reserves nothing.
    assert!(
        enforced
            .change(task(1), reserving(K, amount(0, 50)))
            .is_ok()
    );
    enforced.end(task(1));
    assert_eq!(enforced.reserved(), &BTreeMap::from([(N, amount(0, 40))]));
    assert!(enforced.claim(task(3), reserving(N, amount(0, 60))).is_ok());

    let mut off = Compute::new(capacity, Overcommit::Off);
    assert!(
        off.claim(task(1), reserving(K, amount(9000, 900)))
            .unwrap()
            .is_empty()
    );
    let mut unknown = Compute::new(None, Overcommit::Enforce);
    assert!(
        unknown
            .claim(task(1), reserving(K, amount(9000, 900)))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn nothing_of_what_was_recovered_is_refused() {
    let mut compute = Compute::new(Some(amount(1000, 10)), Overcommit::Enforce);
    compute.record(
        task(1),
        ComputeHolder {
            reserved: amount(5000, 50),
            ..holder(N, own("1-2"))
        },
    );
    compute.record(task(2), holder(K, own("2-3")));
    let conflicts = compute.conflicts();
    assert_eq!(conflicts.len(), 1);
    assert_eq!(
        (&conflicts[0].0, conflicts[0].1.owner, conflicts[0].2.owner),
        (&set("2"), N, K)
    );
}

#[derive(Debug, Clone)]
enum Op {
    Claim(u8, Owner, Cpus, Reserved),
    Change(u8, Owner, Cpus, Reserved),
    End(u8),
    Release(u8),
    Stop(u8),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let cpus =
        (0..3_u8, proptest::collection::btree_set(0..6_u32, 1..4)).prop_map(|(kind, cores)| {
            let cores = cores.into_iter().map(|core| (core, core)).collect();
            match kind {
                0 => Cpus::Any,
                1 => Cpus::Shared(cores),
                _ => Cpus::Exclusive(cores),
            }
        });
    let owner = prop_oneof![Just(N), Just(K)];
    let reserved = (0..5_u64, 0..5_u64).prop_map(|(cpu, memory)| amount(cpu, memory));
    let claim = (0..6_u8, owner, cpus, reserved);
    let op = prop_oneof![
        4 => claim.clone().prop_map(|(id, owner, cpus, reserved)| Op::Claim(id, owner, cpus, reserved)),
        1 => claim.prop_map(|(id, owner, cpus, reserved)| Op::Change(id, owner, cpus, reserved)),
        1 => (0..6_u8).prop_map(Op::End),
        1 => (0..6_u8).prop_map(Op::Release),
        1 => (0..3_u8).prop_map(Op::Stop),
    ];
    proptest::collection::vec(op, 0..40)
}

proptest! {
    /// The model is a list of all claims that is searched linearly.
    #[test]
    fn no_two_owners_claim_a_core_and_sums_are_those_of_what_there_is(ops in ops()) {
        let capacity = amount(10, 10);
        let mut compute = Compute::new(Some(capacity), Overcommit::Enforce);
        let mut model: BTreeMap<u8, ComputeHolder> = BTreeMap::new();
        let mut changed = false;
        for op in ops {
            match op {
                Op::Claim(id, owner, cpus, reserved) | Op::Change(id, owner, cpus, reserved)
                    if model.get(&id).is_some_and(|before| before.owner != owner)
                        || (matches!(cpus, Cpus::Any) && reserved == amount(0, 0)) => {}
                Op::Claim(id, owner, cpus, reserved) => {
                    let asks = ComputeHolder { sandbox: sandbox(id % 3), reserved, ..holder(owner, cpus) };
                    let others = || model.iter().filter(|(other, _)| **other != id).map(|(_, holder)| holder);
                    let taken = matches!(&asks.cpus, Cpus::Exclusive(wanted) if model.values().any(|holder| {
                        holder.owner != owner
                            && matches!(&holder.cpus, Cpus::Exclusive(cores) if !cores.intersection(wanted).is_empty())
                    }));
                    let sum = others().fold(reserved, |sum, holder| sum.plus(holder.reserved));
                    let claimed = compute.claim(task(id), asks.clone());
                    let before = model.get(&id).map(|holder| holder.reserved).unwrap_or_default();
                    let over = (sum.cpu_milli > capacity.cpu_milli && reserved.cpu_milli > before.cpu_milli)
                        || (sum.memory_bytes > capacity.memory_bytes && reserved.memory_bytes > before.memory_bytes);
                    prop_assert_eq!(claimed.is_ok(), !taken && !over);
                    if claimed.is_ok() {
                        model.insert(id, asks);
                    }
                }
                Op::Change(id, owner, cpus, reserved) => {
                    let asks = ComputeHolder { sandbox: sandbox(id % 3), reserved, ..holder(owner, cpus) };
                    if compute.change(task(id), asks.clone()).is_ok() {
                        changed = true;
                        model.insert(id, asks);
                    }
                }
                Op::End(id) => {
                    compute.end(task(id));
                    if let Some(holder) = model.get_mut(&id) {
                        holder.reserved = Reserved::default();
                    }
                }
                Op::Release(id) => {
                    compute.release(task(id));
                    model.remove(&id);
                }
                Op::Stop(number) => {
                    compute.release_sandbox(sandbox(number));
                    model.retain(|_, holder| holder.sandbox != sandbox(number));
                }
            }
            let mut sums: BTreeMap<Owner, Reserved> = BTreeMap::new();
            for holder in model.values() {
                let sum = sums.entry(holder.owner).or_default();
                *sum = sum.plus(holder.reserved);
            }
            sums.retain(|_, sum| *sum != Reserved::default());
            let reserved: BTreeMap<Owner, Reserved> =
                compute.reserved().iter().filter(|(_, sum)| **sum != Reserved::default()).map(|(o, s)| (*o, *s)).collect();
            prop_assert_eq!(reserved, sums);
            prop_assert!(changed || compute.conflicts().is_empty());
        }
    }
}
