//! The pool beside other threads and processes.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use super::{AddressError, AddressPool, addresses, attachment, in_use, pool_in, set};

#[test]
fn held_lock_is_not_waited_for_forever_by_anybody() {
    let temp = tempfile::tempdir().unwrap();
    let mut pool = pool_in(temp.path());
    pool.directory.patience = Duration::from_millis(20);
    pool.assign(&attachment("c1"), &[]).unwrap();
    let check = |pool: &AddressPool| {
        let found = [
            pool.assign(&attachment("c2"), &[]).map(drop),
            pool.release(&attachment("c1"), &[]),
            pool.release_all(&attachment("c1")).map(drop),
            pool.reservations().map(drop),
        ];
        for found in found {
            assert!(matches!(found, Err(AddressError::Busy { .. })), "{found:?}");
        }
    };
    // By another process.
    let lock = File::open(temp.path().join("net/lock")).unwrap();
    let lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    check(&pool);
    drop(lock);
    // By another thread.
    let lock = pool.directory.lock().unwrap();
    thread::scope(|scope| scope.spawn(|| check(&pool)).join().unwrap());
    drop(lock);
    assert_eq!(in_use(&pool).len(), 2);
}

#[test]
fn concurrent_assignments_get_distinct_addresses() {
    let temp = tempfile::tempdir().unwrap();
    // As two processes that use a network have it.
    let pools = [0, 1].map(|_| {
        let sets = vec![set(&["10.0.0.0/24"]), set(&["fd00::/64"])];
        AddressPool::new(temp.path(), "net", sets).unwrap()
    });
    let found: Vec<IpAddr> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let pool = &pools[thread % 2];
                scope.spawn(move || {
                    let assign = |number| {
                        addresses(
                            &pool
                                .assign(&attachment(&format!("{thread}-{number}")), &[])
                                .unwrap(),
                        )
                    };
                    (0..10).flat_map(assign).collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let distinct: BTreeSet<IpAddr> = found.iter().copied().collect();
    assert_eq!((found.len(), distinct.len()), (160, 160));
    let recorded: BTreeSet<IpAddr> = in_use(&pools[0]).into_keys().collect();
    assert_eq!(recorded, distinct);
}
