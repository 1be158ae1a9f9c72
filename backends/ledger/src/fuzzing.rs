//! Properties that hold for any bytes that a disk returns as the journal. Called only by fuzz targets and
//! tests.

use switchyard_core::id::{LeaseToken, Owner};
use switchyard_core::ledger::{LEASE_SLOTS_MAX, StoredLease};

use crate::record;

/// Decodes bytes as a journal: the leases are within their limits and survive a rewrite, and a lease that is
/// appended to the bytes is found in addition.
///
/// # Panics
/// If a property does not hold.
pub fn journal(data: &[u8]) {
    let Ok(contents) = record::read(data) else {
        return;
    };
    let mut anew = Vec::new();
    for (token, (lease, size)) in &contents.leases {
        assert_eq!(*token, lease.token);
        assert!(
            (1..=LEASE_SLOTS_MAX).contains(&lease.slots.len()),
            "{lease:?}"
        );
        assert!(
            usize::try_from(*size).is_ok_and(|size| size <= data.len() + 2),
            "{size}"
        );
        anew.extend(record::of_lease(lease));
    }
    let again = record::read(&anew).expect("it is our own");
    assert!(again.damaged.is_empty() && !again.is_torn);
    let leases = |contents: &record::Contents| -> Vec<StoredLease> {
        contents
            .leases
            .values()
            .map(|(lease, _)| lease.clone())
            .collect()
    };
    assert_eq!(leases(&again), leases(&contents));

    let token = LeaseToken::from_bytes([0xa5; 16]);
    let appended = StoredLease {
        token,
        owner: Owner::Nomad,
        slots: vec!["appended".parse().expect("it is short")],
    };
    let more =
        record::read(&[data, &record::of_lease(&appended)].concat()).expect("it was read before");
    assert_eq!(
        more.leases.get(&token).map(|(lease, _)| lease),
        Some(&appended)
    );
    let ended = record::read(
        &[
            data,
            &record::of_lease(&appended),
            &record::of_end(&[token]),
        ]
        .concat(),
    );
    let ended = ended.expect("it was read before");
    assert!(!ended.leases.contains_key(&token));
    assert!(
        contents
            .leases
            .keys()
            .all(|known| *known == token || ended.leases.contains_key(known))
    );
}
