//! The pool against a model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;

use proptest::prelude::*;

use super::{ASSIGNABLE, Holder, address, addresses, attachment, in_use, names, pool_in};

#[derive(Debug, Clone)]
enum PoolOp {
    /// For a holder: the index of the requested address of each set.
    Assign(u8, [Option<usize>; 2]),
    /// Release of those of all addresses that a holder has.
    Release(u8),
    ReleaseAll(u8),
    /// A kill of the plugin when it has made the file of an address, and one of a daemon when it has made its draft.
    Kill(usize, usize),
    /// Another process.
    Reopen,
}

fn ops() -> impl Strategy<Value = Vec<PoolOp>> {
    let requested = || proptest::option::weighted(0.3, 0..6_usize);
    let op = prop_oneof![
        6 => (0..4_u8, requested(), requested()).prop_map(|(holder, four, six)| PoolOp::Assign(holder, [four, six])),
        2 => (0..4_u8).prop_map(PoolOp::Release),
        2 => (0..4_u8).prop_map(PoolOp::ReleaseAll),
        1 => (0..2_usize, 0..6_usize).prop_map(|(set, index)| PoolOp::Kill(set, index)),
        1 => Just(PoolOp::Reopen),
    ];
    proptest::collection::vec(op, 0..40)
}

#[derive(Debug, Default)]
struct PoolModel {
    held: BTreeMap<IpAddr, String>,
    last: [Option<IpAddr>; 2],
    /// Those with a file without content.
    unheld: BTreeSet<IpAddr>,
}

impl PoolModel {
    fn assign(&mut self, holder: &Holder, requested: [Option<usize>; 2]) -> Option<Vec<IpAddr>> {
        let mut found = Vec::new();
        for (set, requested) in requested.into_iter().enumerate() {
            let Some(index) = requested else {
                found.push(self.next(set)?);
                continue;
            };
            let address = address(ASSIGNABLE[set][index]);
            let id = self.held.get(&address);
            if id.is_some_and(|id| id != holder.container_id()) {
                return None;
            }
            found.push(address);
        }
        for (set, address) in found.iter().enumerate() {
            let id = holder.container_id().to_owned();
            if self.held.insert(*address, id).is_none() {
                self.last[set] = Some(*address);
                self.unheld.remove(address);
            }
        }
        Some(found)
    }

    fn next(&mut self, set: usize) -> Option<IpAddr> {
        let mut order = ASSIGNABLE[set].map(address);
        let at = order.iter().position(|one| Some(*one) == self.last[set]);
        order.rotate_left(at.map_or(0, |at| at + 1));
        let find = |model: &Self| {
            let is_free =
                |one: &&IpAddr| !model.held.contains_key(*one) && !model.unheld.contains(*one);
            order.iter().find(is_free).copied()
        };
        if find(self).is_none() {
            self.unheld.clear();
        }
        find(self)
    }

    fn release(&mut self, holder: &Holder) -> Vec<IpAddr> {
        let is_his = |id: &String| id == holder.container_id();
        let his: Vec<IpAddr> = self
            .held
            .iter()
            .filter(|(_, id)| is_his(id))
            .map(|(one, _)| *one)
            .collect();
        self.held.retain(|_, id| !is_his(id));
        // Those that nobody has go with any of these addresses.
        self.unheld.clear();
        his
    }

    /// Returns what the directory should have.
    fn in_use(&self) -> BTreeMap<IpAddr, String> {
        let unheld = self.unheld.iter().map(|one| (*one, String::new()));
        self.held.clone().into_iter().chain(unheld).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn addresses_are_those_of_the_model_whatever_came_before(ops in ops()) {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("net");
        let mut pool = pool_in(temp.path());
        let mut model = PoolModel::default();
        let all: Vec<IpAddr> = ASSIGNABLE.into_iter().flatten().map(address).collect();
        for op in ops {
            match op {
                PoolOp::Assign(id, requested) => {
                    let holder = attachment(&id.to_string());
                    let chosen = requested.into_iter().zip(ASSIGNABLE);
                    let chosen: Vec<IpAddr> = chosen.filter_map(|(index, set)| Some(address(set[index?]))).collect();
                    let found = pool.assign(&holder, &chosen).ok();
                    prop_assert_eq!(found.map(|found| addresses(&found)), model.assign(&holder, requested));
                }
                PoolOp::Release(id) => {
                    let holder = attachment(&id.to_string());
                    pool.release(&holder, &all).unwrap();
                    model.release(&holder);
                }
                PoolOp::ReleaseAll(id) => {
                    let holder = attachment(&id.to_string());
                    prop_assert_eq!(pool.release_all(&holder).unwrap(), model.release(&holder));
                }
                PoolOp::Kill(set, index) => {
                    let name = ASSIGNABLE[set][index];
                    fs::create_dir_all(&dir).unwrap();
                    fs::write(dir.join(format!("{name}.new")), "0\r\ne").unwrap();
                    if !model.held.contains_key(&address(name)) {
                        fs::write(dir.join(name), "").unwrap();
                        model.unheld.insert(address(name));
                    }
                }
                PoolOp::Reopen => pool = pool_in(temp.path()),
            }
            prop_assert_eq!(in_use(&pool), model.in_use());
        }
        if dir.exists() {
            prop_assert!(names(&dir).iter().all(|name| !name.ends_with(".new")), "{:?}", names(&dir));
        }
    }
}
