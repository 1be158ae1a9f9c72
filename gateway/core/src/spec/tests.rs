//! Tests of the pure parts of the specs.

use super::*;

#[test]
fn signals_parse_by_name_number_and_real_time_offset() {
    let cases = [
        ("SIGTERM", Some(15)),
        ("term", Some(15)),
        ("9", Some(9)),
        ("SIGRTMIN+3", Some(37)),
        ("RTMAX-1", Some(63)),
        ("SIGRTMAX", Some(64)),
        ("SIGIOT", Some(6)),
        ("POLL", Some(29)),
        ("0", None),
        ("65", None),
        ("RTMIN+31", None),
        ("SIGNOPE", None),
        ("", None),
    ];
    for (text, number) in cases {
        assert_eq!(Signal::parse(text).map(Signal::number), number, "{text}");
    }
}

#[test]
fn an_update_changes_only_what_it_names() {
    let before = Resources {
        cpu_shares: Some(CpuShares::clamped(100)),
        memory_limit_bytes: MemoryLimit::new(1 << 20).ok(),
        hugepages: vec![HugepageLimit {
            page_size: HugepageSize::new("2MB").unwrap(),
            limit_bytes: 1,
        }],
        unified: BTreeMap::from([(CgroupFile::new("memory.high").unwrap(), "1".into())]),
        ..Resources::default()
    };
    let update = Resources {
        memory_limit_bytes: MemoryLimit::new(2 << 20).ok(),
        hugepages: vec![HugepageLimit {
            page_size: HugepageSize::new("2MB").unwrap(),
            limit_bytes: 4,
        }],
        unified: BTreeMap::from([(CgroupFile::new("memory.low").unwrap(), "2".into())]),
        ..Resources::default()
    };
    let after = before.merged(&update);
    assert_eq!(after.cpu_shares, before.cpu_shares);
    assert_eq!(after.memory_limit_bytes, update.memory_limit_bytes);
    assert_eq!(after.hugepages, update.hugepages);
    assert_eq!(after.unified.len(), 2);
}
