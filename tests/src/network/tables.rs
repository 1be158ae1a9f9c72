//! The tables of nf_tables that the daemon has for a bridge of a test, and its rules in iptables.

use std::fs::{self, DirEntry};

use switchyard_network::driver::group_of;
use switchyard_network::iptables::accept_forwarded;
use switchyard_network::nft::{Element, NftError, NftFamily, NftTables, TableName};

use super::TestNetwork;

impl TestNetwork {
    /// Lists what tables of the daemon say of sandboxes on this bridge, which it has attached without plugins.
    pub(super) fn elements(&self) -> Vec<String> {
        let found = self.elements_of_sandboxes().into_iter();
        let bridge = self.bridge();
        let text = |(family, element): (NftFamily, Element)| {
            let family = family.name();
            format!("{element} in the nftables of {bridge} for {family}")
        };
        found.map(text).collect()
    }

    /// The elements for sandboxes, each with the family of its table.
    pub(super) fn elements_of_sandboxes(&self) -> Vec<(NftFamily, Element)> {
        use Element::{Hairpin, PinnedAddress, PinnedMac, PinnedPort, Port};
        let mut tables = tables(self.bridge());
        let mut found = Vec::new();
        for family in NftFamily::TABLES {
            let read = tables.as_mut().map(|tables| tables.read(family));
            let table = read.and_then(Result::ok).flatten();
            let elements = table.iter().flat_map(|table| table.elements());
            let of_sandboxes = elements.filter(|element| {
                matches!(
                    element,
                    Port { .. } | Hairpin(_) | PinnedPort(_) | PinnedMac(..) | PinnedAddress(..)
                )
            });
            found.extend(of_sandboxes.map(|element| (family, element.clone())));
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

    /// Counts the sandboxes that are pinned.
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

/// The devices that the daemon with this bridge has made for sandboxes, on whatever bridge or on none.
pub(super) fn devices(bridge: &str) -> Vec<String> {
    let group = group_of(&table_name(bridge)).to_string();
    let is_of_daemon = |device: &DirEntry| {
        let text = fs::read_to_string(device.path().join("netdev_group"));
        text.is_ok_and(|text| text.trim() == group)
    };
    let devices = fs::read_dir("/sys/class/net").into_iter().flatten();
    let names = devices.flatten().filter(is_of_daemon);
    names
        .map(|device| device.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The name of the tables of the instance with this bridge.
fn table_name(bridge: &str) -> TableName {
    TableName::of_instance(bridge).expect("bridges of tests have small letters and digits")
}

/// `None` where the kernel has no netfilter by netlink: then there are no tables.
fn tables(bridge: &str) -> Option<NftTables> {
    NftTables::open(table_name(bridge)).ok()
}

/// Removes the rules in FORWARD of iptables by which the daemon with this bridge accepts what it forwards where the policy is DROP; says what
/// could not be.
pub(super) fn remove_accepts(bridge: &str) -> Vec<String> {
    let changes = accept_forwarded(&table_name(bridge), &[]).into_iter();
    let errors = changes.filter_map(Result::err);
    errors
        .map(|error| format!("rules of {bridge} in FORWARD: {error}"))
        .collect()
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
