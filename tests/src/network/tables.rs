//! The tables of nf_tables that the daemon has for a bridge of a test.

use switchyard_network::nft::{Element, NftError, NftFamily, NftTables, TableName};

use super::TestNetwork;

impl TestNetwork {
    /// What tables of the daemon say of sandboxes on this bridge, which it has attached without plugins.
    pub(super) fn elements(&self) -> Vec<String> {
        use Element::{Hairpin, PinnedPort, Port};
        let mut tables = tables(self.bridge());
        let mut found = Vec::new();
        for family in NftFamily::TABLES {
            let read = tables.as_mut().map(|tables| tables.read(family));
            let table = read.and_then(Result::ok).flatten();
            let elements = table.iter().flat_map(|table| table.elements());
            let of_sandboxes = elements
                .filter(|element| matches!(element, Port { .. } | Hairpin(_) | PinnedPort(_)));
            found.extend(of_sandboxes.map(|element| {
                format!(
                    "{element} in the nftables of {} for {}",
                    self.bridge(),
                    family.name()
                )
            }));
        }
        found
    }

    /// The tables that the daemon has for this bridge if it attaches sandboxes without plugins.
    ///
    /// # Panics
    /// When there is no socket of netfilter.
    #[must_use]
    pub fn tables(&self) -> NftTables {
        tables(self.bridge()).expect("the kernel has netfilter by netlink")
    }

    /// Removes them, as a flush of the ruleset does.
    ///
    /// # Panics
    /// When they cannot be removed.
    pub fn remove_tables(&self) {
        remove_tables(self.bridge()).expect("root may remove them");
    }

    /// How many sandboxes are pinned.
    ///
    /// # Panics
    /// When the table cannot be read.
    #[must_use]
    pub fn pinned(&self) -> usize {
        let table = self.tables().read(NftFamily::Bridge);
        let table = table.expect("root may read it");
        let elements = table.iter().flat_map(|table| table.elements());
        elements
            .filter(|element| matches!(element, Element::PinnedPort(_)))
            .count()
    }
}

/// `None` where the kernel has no netfilter by netlink: then there are no tables.
fn tables(bridge: &str) -> Option<NftTables> {
    let table = TableName::of_instance(bridge);
    NftTables::open(table.expect("bridges of tests have small letters and digits")).ok()
}

/// Removes them.
pub(super) fn remove_tables(bridge: &str) -> Result<(), NftError> {
    let Some(mut tables) = tables(bridge) else {
        return Ok(());
    };
    // One that stays keeps no other.
    let removed = NftFamily::TABLES.map(|family| tables.remove(family));
    removed.into_iter().collect()
}
