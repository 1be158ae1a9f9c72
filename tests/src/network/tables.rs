//! The tables of nf_tables that the daemon has for a bridge of a test, and its rules in iptables.

use std::fs::{self, DirEntry};
use std::process::Command;

use nix::errno::Errno;
use switchyard_network::driver::group_of;
use switchyard_network::iptables::{IptablesError, accept_forwarded};
use switchyard_network::nft::{Element, FoundTable, NftError, NftFamily, NftTables, TableName};

use super::{END_LIMIT, TestNetwork, tell};
use crate::{host, prereq};

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

    /// The elements for sandboxes on this bridge, each with the family of its table.
    ///
    /// # Panics
    /// As [`elements_of_sandboxes`].
    #[track_caller]
    pub(super) fn elements_of_sandboxes(&self) -> Vec<(NftFamily, Element)> {
        elements_of_sandboxes(&table_name(self.bridge()))
    }

    /// The tables that the daemon has for this bridge if it attaches sandboxes without plugins.
    ///
    /// # Panics
    /// When there is no socket of netfilter.
    #[must_use]
    pub fn tables(&self) -> NftTables {
        let tables = NftTables::open(table_name(self.bridge()));
        tables.expect("the kernel has netfilter by netlink")
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

/// The elements for sandboxes in the tables of this name, each with the family of its table.
///
/// # Panics
/// When the tables cannot be read: what is in them would be taken for gone.
#[must_use]
#[track_caller]
pub fn elements_of_sandboxes(name: &TableName) -> Vec<(NftFamily, Element)> {
    use Element::{Hairpin, PinnedAddress, PinnedMac, PinnedPort, Port};
    let mut read = read_tables(name);
    // Others may change rules at any moment.
    let is_read = host::eventually(END_LIMIT, || {
        if read.is_err() {
            read = read_tables(name);
        }
        read.is_ok()
    });
    assert!(is_read, "nftables {}: {read:?}", name.as_str());
    let mut found = Vec::new();
    for (family, table) in read.unwrap_or_default() {
        let elements = table.elements().iter();
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

/// Reads the tables of this name; none on a kernel without nf_tables.
fn read_tables(name: &TableName) -> Result<Vec<(NftFamily, FoundTable)>, NftError> {
    let mut there = NftTables::list()?;
    there.retain(|(_, table)| table == name);
    if there.is_empty() {
        return Ok(Vec::new());
    }
    let mut tables = NftTables::open(name.clone())?;
    let mut found = Vec::new();
    for (family, _) in there {
        found.extend(tables.read(family)?.map(|table| (family, table)));
    }
    Ok(found)
}

/// Removes the rules in FORWARD of iptables by which the daemon with this bridge accepts what it forwards where the policy is DROP, and returns
/// those that are left. What no program can look at is told: others may have the lock of the filter, or have filled it by other means.
pub(super) fn clear_accepts(bridge: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let _ = host::eventually(END_LIMIT, || {
        let changes = accept_forwarded(&table_name(bridge), &[]).into_iter();
        errors = changes.filter_map(Result::err).collect();
        // What cannot be read stays so; who has the lock lets go of it.
        errors
            .iter()
            .all(|error| matches!(error, IptablesError::Unreadable { .. }))
    });
    if errors.is_empty() {
        return Vec::new();
    }
    for error in errors {
        tell(&format!("rules of {bridge} in FORWARD: {error:?}"));
    }
    rules_shown_by_nft(bridge).unwrap_or_else(|reason| {
        tell(&format!("nft list ruleset: {reason}"));
        Vec::new()
    })
}

/// Lists the rules that name this bridge: `nft` shows all that has to do with nf_tables, whoever has made it. Not every script that
/// runs tests installs it.
fn rules_shown_by_nft(bridge: &str) -> Result<Vec<String>, String> {
    let nft = prereq::find("nft").ok_or("it is not installed")?;
    let listed = Command::new(nft).args(["list", "ruleset"]).output();
    let listed = listed.map_err(|error| error.to_string())?;
    if !listed.status.success() {
        return Err(String::from_utf8_lossy(&listed.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&listed.stdout);
    let rules = text.lines().filter(|rule| rule.contains(bridge));
    Ok(rules.map(|rule| format!("rule {}", rule.trim())).collect())
}

/// Removes them.
pub(super) fn remove_tables(bridge: &str) -> Result<(), NftError> {
    let mut tables = match NftTables::open(table_name(bridge)) {
        // The kernel has no netfilter, or this process may not use it: then it has made no tables.
        Err(NftError::Socket {
            source: Errno::EPROTONOSUPPORT | Errno::EPERM,
        }) => return Ok(()),
        opened => opened?,
    };
    // One that stays keeps no other.
    let removed = NftFamily::TABLES.map(|family| tables.remove(family));
    removed.into_iter().collect()
}
