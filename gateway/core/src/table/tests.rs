//! Tests of look-ups by name.

use std::collections::BTreeMap;

use super::*;

fn insert(table: &Table, owner: Owner, name: &str, number: u8) {
    let meta = Meta {
        owner,
        name: name.to_owned(),
        labels: BTreeMap::new(),
        created_at: SystemTime::UNIX_EPOCH,
        record: Vec::new(),
    };
    let sandbox = Sandbox {
        id: SandboxId::from_bytes([number; 32]),
        meta: Arc::new(meta),
        handler: String::new(),
        details: SandboxDetails::default(),
        state: SandboxState::Ready,
    };
    table.insert_sandbox(sandbox).unwrap();
}

#[test]
fn sandboxes_are_found_by_name_prefix_and_owner() {
    let table = Table::new(EventBus::default());
    let names = ["a/web/2", "a/web/1", "a/web", "a/web-2/1", "a/we", "b/web/1", "", "\u{10ffff}"];
    for (number, name) in (1..).zip(names) {
        insert(&table, Owner::Nomad, name, number);
        insert(&table, Owner::Kubernetes, name, number + 100);
    }
    let found = |beginning: &str| -> Vec<String> {
        let found = table.sandboxes_with_prefix(Owner::Nomad, beginning);
        assert!(found.iter().all(|sandbox| sandbox.meta.owner == Owner::Nomad));
        found.iter().map(|sandbox| sandbox.meta.name.clone()).collect()
    };
    assert_eq!(found("a/web/"), ["a/web/1", "a/web/2"]);
    assert_eq!(found("a/web"), ["a/web", "a/web-2/1", "a/web/1", "a/web/2"]);
    assert_eq!(found("\u{10ffff}"), ["\u{10ffff}"]);
    assert!(found("c").is_empty() && found("a/web/11").is_empty());
    assert_eq!(found("").len(), names.len());
    let last = table.sandboxes_with_prefix(Owner::Nomad, "a/web/1");
    table.remove_sandbox(last[0].id);
    assert_eq!(found("a/web/"), ["a/web/2"]);
}
