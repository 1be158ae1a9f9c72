//! Fuzz target: properties that hold for any bytes that come as messages of netfilter. Called only by fuzzers and tests.

use std::collections::BTreeSet;

use super::conntrack::{Flow, Flows};
use super::family::NftFamily;
use super::found::{FoundTable, Repair, repair, table_of};
use super::message::messages;
use super::monitor::changed_by_others;
use super::socket::{MAX_SEND, NfAnswer};
use super::transaction::{element_steps, transaction, verdict};

/// Reads bytes as a dump of tables and of connections, as notifications, and as answers: a table that is listed can be read, no element that
/// is read is of the other family or cannot be written, a repair towards what was found changes no element, and one towards nothing can be
/// written.
///
/// # Panics
/// If that does not hold.
pub fn netfilter(data: &[u8]) {
    for family in NftFamily::TABLES {
        table(data, family);
        let flows = messages(data).filter_map(|message| Flow::read(message.body(), family));
        let any = Flows::Of(std::net::Ipv4Addr::LOCALHOST.into());
        assert!(flows.filter(|flow| any.include(flow)).count() <= data.len());
    }
    for (family, table) in messages(data).filter_map(|message| table_of(&message)) {
        assert!(FoundTable::read(data, family, table.as_str()).is_some());
    }
    assert!(changed_by_others(data, "switchyard", &[]).len() <= NftFamily::TABLES.len());
    let answers: Vec<_> = messages(data)
        .filter_map(|message| NfAnswer::read(&message))
        .collect();
    let _ = verdict(&answers, 1, 3);
}

fn table(data: &[u8], family: NftFamily) {
    let Some(found) = FoundTable::read(data, family, "switchyard") else {
        return;
    };
    for element in found.elements() {
        assert!(element.fits(family), "{element}");
        assert!(!element.to_string().is_empty());
        let steps: Vec<_> =
            element_steps(family, element.set(), true, std::slice::from_ref(element)).collect();
        let sent = transaction("switchyard", &steps, 1, None, true, MAX_SEND)
            .expect("one element is small");
        assert_eq!(messages(&sent.bytes).count(), 3);
    }
    let (steps, change) = repair(family, Some(&found), found.elements());
    assert_eq!(found.is_intact(family), change == Repair::Nothing);
    assert_eq!(steps.is_empty(), change == Repair::Nothing);
    let (steps, _) = repair(family, Some(&found), &BTreeSet::new());
    assert!(transaction("switchyard", &steps, 1, None, true, MAX_SEND).is_ok());
}
