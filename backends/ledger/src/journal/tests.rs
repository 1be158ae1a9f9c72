//! The journal on a real file system.

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use switchyard_core::ErrorKind as Kind;
use switchyard_core::id::Owner;
use tempfile::TempDir;

use super::*;

mod random;

fn token(number: u8) -> LeaseToken {
    LeaseToken::from_bytes([number; 16])
}

fn lease(number: u8) -> StoredLease {
    let slots = [format!("acme-{number}"), format!("acme-{number}::1")]
        .map(|slot| slot.parse().unwrap())
        .into();
    StoredLease {
        token: token(number),
        owner: Owner::Kubernetes,
        slots,
    }
}

fn state() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn file(state: &TempDir) -> PathBuf {
    state.path().join(FILE)
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// Returns the leases that the next daemon reads.
async fn found(state: &TempDir) -> Vec<StoredLease> {
    Journal::new(state.path()).load().await.unwrap()
}

/// The files below the state directory.
fn files(state: &TempDir) -> Vec<String> {
    let read = fs::read_dir(state.path().join("ledger")).unwrap();
    read.map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn deferred_lease_release_is_written_with_the_next_record() {
    let state = state();
    let journal = Journal::new(state.path());
    journal.put(&lease(1)).await.unwrap();
    // Simulates a disk that does not answer: another operation holds the lock.
    let turn = Arc::clone(&journal.lock).acquire_owned().await.unwrap();
    assert_eq!(
        journal.remove(&[token(1)]).await.unwrap_err().kind(),
        Kind::DeadlineExceeded
    );
    assert_eq!(found(&state).await, [lease(1)]);
    drop(turn);
    journal.put(&lease(2)).await.unwrap();
    assert_eq!(found(&state).await, [lease(2)]);
}

#[tokio::test]
async fn lease_that_ends_while_it_waits_to_be_stored_is_not_stored() {
    let state = state();
    let journal = Journal::new(state.path());
    let turn = Arc::clone(&journal.lock).acquire_owned().await.unwrap();
    let first = lease(1);
    let mut put = journal.put(&first);
    let ended = [token(1)];
    let mut remove = journal.remove(&ended);
    assert!(futures::poll!(&mut put).is_pending() && futures::poll!(&mut remove).is_pending());
    drop(turn);
    let (put, remove) = futures::join!(put, remove);
    put.and(remove).unwrap();
    assert_eq!(found(&state).await, []);
    assert!(journal.pending.lock().puts.is_empty());
    // The same token can be put again.
    journal.put(&first).await.unwrap();
    assert_eq!(found(&state).await, [lease(1)]);
}

#[tokio::test]
async fn end_of_a_lease_is_not_forgotten_while_the_journal_cannot_be_read() {
    let state = state();
    Journal::new(state.path()).put(&lease(1)).await.unwrap();
    let away = state.path().join("away");
    fs::rename(file(&state), &away).unwrap();
    // Reading a directory fails.
    fs::create_dir(file(&state)).unwrap();
    let journal = Journal::new(state.path());
    journal.remove(&[token(1)]).await.unwrap_err();
    fs::remove_dir(file(&state)).unwrap();
    fs::rename(&away, file(&state)).unwrap();
    assert_eq!(journal.load().await.unwrap(), []);
    assert_eq!(found(&state).await, []);
}

#[tokio::test]
async fn unreleased_leases_are_found_by_the_next_daemon() {
    let state = state();
    let journal = Journal::new(state.path());
    assert_eq!(journal.load().await.unwrap(), []);
    for number in [1, 2, 3] {
        journal.put(&lease(number)).await.unwrap();
    }
    journal.remove(&[token(2), token(9)]).await.unwrap();
    assert_eq!(found(&state).await, [lease(1), lease(3)]);
    assert_eq!(
        journal.load().await.unwrap(),
        [lease(1), lease(3)],
        "it can be read again"
    );
    assert_eq!(
        fs::metadata(file(&state)).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        fs::metadata(state.path().join("ledger"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
    assert_eq!(files(&state), ["leases.journal"]);
}

#[tokio::test]
async fn unchanged_put_and_unknown_remove_write_nothing() {
    let state = state();
    let journal = Journal::new(state.path());
    journal.put(&lease(1)).await.unwrap();
    let before = size(&file(&state));
    journal.put(&lease(1)).await.unwrap();
    journal.remove(&[token(2)]).await.unwrap();
    journal.remove(&[]).await.unwrap();
    assert_eq!(size(&file(&state)), before);
    let changed = StoredLease {
        owner: Owner::Nomad,
        ..lease(1)
    };
    journal.put(&changed).await.unwrap();
    assert_eq!(found(&state).await, [changed]);
}

#[tokio::test]
async fn journal_is_compacted_at_start_and_when_mostly_released() {
    let state = state();
    let journal = Journal::new(state.path());
    journal.put(&lease(1)).await.unwrap();
    let alone = size(&file(&state));
    let mut largest = 0;
    let large = StoredLease {
        slots: vec!["x".repeat(4000).parse().unwrap(); 5],
        ..lease(2)
    };
    for _ in 0..20 {
        journal.put(&large).await.unwrap();
        journal.remove(&[token(2)]).await.unwrap();
        largest = largest.max(size(&file(&state)));
    }
    assert!(
        (REWRITE_MIN - 25_000..REWRITE_MIN).contains(&largest),
        "{largest}"
    );
    assert!(size(&file(&state)) < largest);
    assert_eq!(found(&state).await, [lease(1)]);
    assert_eq!(size(&file(&state)), alone);
    // The open journal refers to the replaced file by now; in production a daemon opens only one.
    assert_eq!(files(&state), ["leases.journal"]);
}

#[tokio::test]
async fn interrupted_compaction_is_harmless() {
    let state = state();
    Journal::new(state.path()).put(&lease(1)).await.unwrap();
    let new = draft_of(&file(&state));
    fs::write(&new, "half of i").unwrap();
    assert_eq!(found(&state).await, [lease(1)]);
    assert!(!new.exists());
}

#[tokio::test]
async fn torn_tail_is_truncated_and_damage_loses_one_lease() {
    let state = state();
    let journal = Journal::new(state.path());
    for number in [1, 2, 3] {
        journal.put(&lease(number)).await.unwrap();
    }
    let mut bytes = fs::read(file(&state)).unwrap();
    let whole = bytes.len();
    bytes[whole / 2] ^= 4;
    bytes.truncate(whole - 7);
    fs::write(file(&state), &bytes).unwrap();
    let journal = Journal::new(state.path());
    assert_eq!(journal.load().await.unwrap(), [lease(1)]);
    assert_eq!(length(&record::of_lease(&lease(1))), size(&file(&state)));
    journal.put(&lease(4)).await.unwrap();
    assert_eq!(found(&state).await, [lease(1), lease(4)]);
}

#[tokio::test]
async fn full_disk_is_reported_with_path_and_nothing_is_lost() {
    let state = state();
    let journal = Journal::new(state.path());
    journal.put(&lease(1)).await.unwrap();
    // A write to this device fails like one to a full disk.
    let full = || OpenOptions::new().append(true).open("/dev/full").unwrap();
    let fill = || journal.disk.lock().state.as_mut().unwrap().file = Some(full());
    fill();
    let error = journal.put(&lease(2)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::ResourceExhausted);
    let report = error.report();
    assert!(
        report.contains("leases.journal") && report.contains("No space left"),
        "{report}"
    );
    fill();
    assert_eq!(
        journal.remove(&[token(1)]).await.unwrap_err().kind(),
        Kind::ResourceExhausted
    );
    journal.put(&lease(3)).await.unwrap();
    assert_eq!(
        found(&state).await,
        [lease(3)],
        "the file is rewritten as soon as there is space"
    );
}

#[tokio::test]
async fn leases_are_readable_on_a_read_only_disk_and_granted_when_writable() {
    let state = state();
    Journal::new(state.path()).put(&lease(1)).await.unwrap();
    // A directory in the place of the temporary file: the file cannot be rewritten, which is necessary after
    // an incomplete record.
    let blocked = draft_of(&file(&state));
    fs::create_dir(&blocked).unwrap();
    OpenOptions::new()
        .append(true)
        .open(file(&state))
        .unwrap()
        .write_all(b"\n1 torn")
        .unwrap();
    let journal = Journal::new(state.path());
    assert_eq!(journal.load().await.unwrap(), [lease(1)]);
    let error = journal.put(&lease(2)).await.unwrap_err().report();
    assert!(
        error.contains("cannot write") && error.contains("leases.journal"),
        "{error}"
    );
    fs::remove_dir(&blocked).unwrap();
    journal.put(&lease(2)).await.unwrap();
    assert_eq!(found(&state).await, [lease(1), lease(2)]);
}

#[tokio::test]
async fn unknown_journal_format_is_rejected_and_kept() {
    let state = state();
    let journal = Journal::new(state.path());
    journal.put(&lease(1)).await.unwrap();
    let later = [
        fs::read(file(&state)).unwrap(),
        b"\n2 6c6b1e2f {}\n".to_vec(),
    ]
    .concat();
    // The checksum is that of a record of version 2.
    let mut sum = crc32fast::Hasher::new();
    sum.update(b"2 {}");
    let later = String::from_utf8(later)
        .unwrap()
        .replace("6c6b1e2f", &format!("{:08x}", sum.finalize()));
    fs::write(file(&state), &later).unwrap();
    let journal = Journal::new(state.path());
    let error = journal.load().await.unwrap_err().report();
    assert!(
        error.contains("leases.journal") && error.contains("later version"),
        "{error}"
    );
    journal.put(&lease(2)).await.unwrap_err();
    assert_eq!(fs::read_to_string(file(&state)).unwrap(), later);
    fs::write(file(&state), vec![b'x'; 17 << 20]).unwrap();
    assert!(
        journal
            .load()
            .await
            .unwrap_err()
            .report()
            .contains("more than 16777216 bytes")
    );
}

#[tokio::test]
async fn full_journal_is_reported() {
    let state = state();
    let journal = Journal::new(state.path());
    // Names of earlier versions are paths, which may be long.
    let large = |number| StoredLease {
        slots: vec!["x".repeat(4 << 10).parse().unwrap(); 1 << 10],
        ..lease(number)
    };
    for number in [1, 2, 3] {
        journal.put(&large(number)).await.unwrap();
    }
    let error = journal.put(&large(4)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::ResourceExhausted);
    assert!(
        error.report().contains("is full: it has 3 leases"),
        "{}",
        error.report()
    );
    journal.remove(&[token(1)]).await.unwrap();
    journal.put(&large(4)).await.unwrap();
    let empty = StoredLease {
        slots: Vec::new(),
        ..lease(5)
    };
    assert_eq!(
        journal.put(&empty).await.unwrap_err().kind(),
        Kind::InvalidArgument
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writes_are_all_kept_despite_dropped_callers() {
    let state = state();
    let journal = Arc::new(Journal::new(state.path()));
    let puts: Vec<_> = (0..64)
        .map(|number| {
            let journal = Arc::clone(&journal);
            tokio::spawn(async move { journal.put(&lease(number)).await })
        })
        .collect();
    for (number, put) in puts.into_iter().enumerate() {
        if number % 8 == 7 {
            put.abort();
        }
        if let Ok(put) = put.await {
            put.unwrap();
        }
    }
    let found = found(&state).await;
    assert!(
        (0..64)
            .filter(|number| number % 8 != 7)
            .all(|number| found.contains(&lease(number)))
    );
}
