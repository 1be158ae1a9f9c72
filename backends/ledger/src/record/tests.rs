//! Tests of reading a journal after any damage.

use proptest::prelude::*;

use switchyard_core::id::SLOT_ID_MAX;

use super::*;

/// An operation that a test writes.
#[derive(Debug, Clone)]
enum Op {
    Put(StoredLease),
    End(Vec<LeaseToken>),
}

/// A record, and its position in the journal.
struct Written {
    op: Op,
    from: usize,
    to: usize,
}

fn token(number: u8) -> LeaseToken {
    LeaseToken::from_bytes([number; 16])
}

fn lease(number: u8, slots: &[&str]) -> StoredLease {
    let slots = slots.iter().map(|slot| slot.parse().unwrap()).collect();
    StoredLease {
        token: token(number),
        owner: Owner::Nomad,
        slots,
    }
}

fn write(ops: Vec<Op>) -> (Vec<u8>, Vec<Written>) {
    let mut bytes = Vec::new();
    let mut written = Vec::new();
    for op in ops {
        let from = bytes.len();
        bytes.extend(match &op {
            Op::Put(lease) => of_lease(lease),
            Op::End(tokens) => of_end(tokens),
        });
        written.push(Written {
            op,
            from,
            to: bytes.len(),
        });
    }
    (bytes, written)
}

/// The leases that result from these records.
fn model<'a>(written: impl Iterator<Item = &'a Written>) -> BTreeMap<LeaseToken, StoredLease> {
    let mut leases = BTreeMap::new();
    for record in written {
        match &record.op {
            Op::Put(lease) => drop(leases.insert(lease.token, lease.clone())),
            Op::End(tokens) => tokens.iter().for_each(|token| drop(leases.remove(token))),
        }
    }
    leases
}

fn leases(contents: &Contents) -> BTreeMap<LeaseToken, StoredLease> {
    contents
        .leases
        .iter()
        .map(|(token, (lease, _))| (*token, lease.clone()))
        .collect()
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Slot ids are plain, but those that an earlier version gave to devices are paths, which may contain
    // anything.
    let slot = prop_oneof![
        Just("acme-0::1".to_owned()),
        "[a-z0-9:]{1,12}",
        "\\PC{1,8}",
        Just("/dev/a\n b".to_owned())
    ];
    let slot = slot.prop_map(|slot| SlotId::new(slot).unwrap());
    let slots = proptest::collection::vec(slot, 1..4);
    let owner = proptest::sample::select(Owner::ALL.to_vec());
    let put = (0..6_u8, owner, slots).prop_map(|(number, owner, slots)| {
        Op::Put(StoredLease {
            token: token(number),
            owner,
            slots,
        })
    });
    let end = proptest::collection::vec((0..6_u8).prop_map(token), 1..3).prop_map(Op::End);
    proptest::collection::vec(prop_oneof![3 => put, 1 => end], 0..12)
}

#[test]
fn record_format_is_stable() {
    // Journals of earlier builds must be readable.
    let text = "\n1 9a0cef3b {\"lease\":{\"token\":\"07070707070707070707070707070707\",\"owner\":\"nomad\",\"slots\":[\"a::0\"]}}\n";
    assert_eq!(
        String::from_utf8(of_lease(&lease(7, &["a::0"]))).unwrap(),
        text
    );
    let text = "\n1 e0f33b30 {\"ended\":[\"07070707070707070707070707070707\"]}\n";
    assert_eq!(String::from_utf8(of_end(&[token(7)])).unwrap(), text);
}

#[test]
fn damage_in_the_middle_is_reported_by_line_and_loses_one_record() {
    let (mut bytes, written) = write(vec![
        Op::Put(lease(1, &["a"])),
        Op::Put(lease(2, &["b"])),
        Op::Put(lease(3, &["c"])),
    ]);
    bytes[written[1].from + 30] ^= 1;
    let contents = read(&bytes).unwrap();
    assert_eq!(
        contents.leases.keys().copied().collect::<Vec<_>>(),
        [token(1), token(3)]
    );
    assert_eq!(
        (contents.damaged.as_slice(), contents.is_torn),
        (&[4][..], false)
    );
}

#[test]
fn torn_tail_is_no_damage_and_appended_records_are_read() {
    let (mut bytes, _) = write(vec![Op::Put(lease(1, &["a"])), Op::Put(lease(2, &["b"]))]);
    bytes.truncate(bytes.len() - 10);
    let contents = read(&bytes).unwrap();
    assert_eq!(
        (
            contents.leases.len(),
            contents.damaged.len(),
            contents.is_torn
        ),
        (1, 0, true)
    );
    bytes.extend(of_lease(&lease(3, &["c"])));
    let contents = read(&bytes).unwrap();
    assert_eq!(
        (
            contents.leases.len(),
            contents.damaged.len(),
            contents.is_torn
        ),
        (2, 1, false)
    );
}

#[test]
fn complete_unknown_record_is_no_damage() {
    let line = |version: &str, document: &str| {
        format!("\n{version} {} {document}\n", checksum(version, document))
    };
    let lease = |owner: &str, slots: &str| {
        let token = token(1);
        line(
            "1",
            &format!(
                "{{\"lease\":{{\"token\":\"{token}\",\"owner\":\"{owner}\",\"slots\":[{slots}]}}}}"
            ),
        )
    };
    assert_eq!(
        read(lease("nomad", "\"a\"").as_bytes())
            .unwrap()
            .leases
            .len(),
        1
    );
    let many = vec!["\"a\""; LEASE_SLOTS_MAX + 1].join(",");
    let long = format!("\"{}\"", "x".repeat(SLOT_ID_MAX + 1));
    for (text, why) in [
        (line("2", "{}"), "its version is \"2\""),
        (line("1", "{}"), "expected value"),
        (line("1", "{\"lent\":[]}"), "unknown variant"),
        (line("1", "{\"ended\":[\"xy\"]}"), "is not an id"),
        (lease("docker", "\"a\""), "\"docker\" is no owner"),
        (lease("nomad", ""), "a lease of 0 slots"),
        (lease("nomad", &many), "a lease of 1025 slots"),
        (lease("nomad", "\"\""), "the id of a device is empty"),
        (lease("nomad", &long), "has 4103 bytes"),
    ] {
        let unknown = read(text.as_bytes()).unwrap_err();
        assert_eq!(unknown.line, 2);
        assert!(unknown.why.contains(why), "{text}: {}", unknown.why);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_journal_prefix_yields_the_leases_it_contains(ops in ops()) {
        let (bytes, written) = write(ops);
        for end in 0..=bytes.len() {
            let contents = read(&bytes[..end]).expect("what is written is understood");
            // The last newline is not needed.
            let whole = written.iter().filter(|record| record.to - 1 <= end);
            prop_assert_eq!(leases(&contents), model(whole), "the first {} bytes of {}", end, bytes.len());
            prop_assert!(contents.damaged.is_empty());
        }
    }

    #[test]
    fn damaged_byte_loses_only_its_record(ops in ops(), flip in 1..=255_u8) {
        let (bytes, written) = write(ops);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let contents = read(&damaged).expect("what is damaged is no record");
            let whole = written.iter().filter(|record| !(record.from..record.to).contains(&at));
            prop_assert_eq!(leases(&contents), model(whole), "byte {} is {:?}", at, damaged[at]);
            prop_assert!(contents.is_torn || !contents.damaged.is_empty());
        }
    }
}
