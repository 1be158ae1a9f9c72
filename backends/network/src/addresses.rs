//! Addresses of containers, assigned in the directory of the CNI plugin `host-local`, so that the plugin and this daemon on one node never
//! assign an address twice, and each can release what the other one has assigned.
//!
//! ```text
//! DATA_DIR/NETWORK/lock                 locked by flock(2) while the others are read or changed
//!                 /10.0.0.7, /fd00::7   an address in use; the file says by whom: `CONTAINER_ID\r\nINTERFACE`
//!                 /last_reserved_ip.N   the address of range set N that was assigned last, after which the next search begins
//! ```
//!
//! A network has range sets, in the order of the plugin's configuration (`ranges`), and a container gets one address of each. The modules
//! `range`, `network_ranges` and `holder` decide, without I/O; `directory` reads and writes under the lock.
//!
//! Invariants:
//! - An address that has a file with a holder is assigned to nobody else. A file without content is one that a kill or a power cut has
//!   kept its writer from filling: nobody has its address.
//! - A file that this module writes has its content before it has its name. A kill at any line leaves at most addresses whose holder is
//!   known, and a draft (`NAME.new`) that the next assignment removes.
//! - Nothing is synced: no container outlives the power cut that could undo a change. Afterwards addresses may be free that a record names,
//!   and addresses may have the holder that had just released them; so addresses are released by their holder, never by the address alone,
//!   but for those whose files the power cut has emptied.
//! - What an assignment or a release costs does not depend on the holders of the other addresses: their files are not opened. Only
//!   [`AddressPool::release_all`], [`AddressPool::reservations`] and a search in a full range read them.
//!
//! All functions block: on the file system, and for up to ten seconds on the lock. A caller that stops waiting for one does not stop it: what
//! it has assigned is released by [`AddressPool::release_all`].

mod directory;
mod error;
mod holder;
mod network_ranges;
mod range;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use directory::{Directory, LockedDirectory};
use network_ranges::NetworkRanges;

pub use directory::Reservation;
pub use error::AddressError;
pub use holder::{Holder, RecordedHolder};
pub use range::{AddressRange, AssignedAddress, RangeLimits, RangeSet};

/// The addresses of one network of this node. Several for one network, also of several processes, work side by side.
#[derive(Debug)]
pub struct AddressPool {
    network: NetworkRanges,
    directory: Directory,
}

/// Decision about a range set.
struct Choice {
    assigned: AssignedAddress,
    /// True if the holder has the address already.
    is_held: bool,
}

// === impl AddressPool ===

impl AddressPool {
    /// The pool of a network whose files are in `DATA_DIR/NETWORK`; the plugin's `dataDir` is `/var/lib/cni/networks` by default. The sets
    /// are those of the plugin's configuration, in its order. Nothing is read or made.
    ///
    /// # Errors
    /// [`AddressError::Name`] if the network's name cannot be that of a CNI network; [`AddressError::Range`] if there is no set, or
    /// two have addresses in common.
    pub fn new(data_dir: &Path, network: &str, sets: Vec<RangeSet>) -> Result<Self, AddressError> {
        let network = NetworkRanges::new(network, sets)?;
        let directory = Directory::new(data_dir.join(network.name()));
        Ok(Self { network, directory })
    }

    /// Assigns an address of each range set to a holder: the requested one, or the next free one after the one that was assigned last.
    /// The addresses are in the order of the sets. Gateways are never assigned.
    ///
    /// A requested address that the holder has already is assigned again, so that a repeated call succeeds. Of the other addresses it is
    /// not asked whether the holder has one, since that would cost a look into the file of each: a caller that does not know calls
    /// [`AddressPool::release_all`] first. Blocks.
    ///
    /// # Errors
    /// [`AddressError::OutOfRange`], [`AddressError::Gateway`], [`AddressError::TwoOfOneSet`] and [`AddressError::Taken`] for what is
    /// requested; [`AddressError::Full`] if a set has no free address; [`AddressError::Busy`], [`AddressError::TooMany`],
    /// [`AddressError::File`]. The holder gets nothing then; only if the file system refuses to take back what was written,
    /// [`AddressPool::release_all`] has to.
    pub fn assign(
        &self,
        holder: &Holder,
        requested: &[IpAddr],
    ) -> Result<Vec<AssignedAddress>, AddressError> {
        let requested = self.network.by_set(requested)?;
        let directory = self.directory.lock()?;
        let choices = self.choose(&directory, holder, requested)?;
        let mut written = Vec::new();
        for (index, choice) in choices.iter().enumerate() {
            let address = choice.assigned.address;
            if choice.is_held {
                continue;
            }
            if let Err(error) = directory.reserve(address, holder) {
                for (_, address) in written {
                    drop(directory.remove(address));
                }
                return Err(error);
            }
            written.push((index, address));
        }
        for (index, address) in written {
            directory.note_last(index, address);
        }
        Ok(choices.into_iter().map(|choice| choice.assigned).collect())
    }

    /// Releases those of these addresses that a holder has, as [`AddressPool::assign`] returned them, or that nobody has since a power cut has
    /// emptied their files. Addresses that are free, or that somebody else has by now, are left as they are: idempotent. Costs the same however
    /// many addresses are in use. Blocks.
    ///
    /// # Errors
    /// [`AddressError::Busy`], [`AddressError::File`]; some may have been released then.
    pub fn release(&self, holder: &Holder, addresses: &[IpAddr]) -> Result<(), AddressError> {
        let Some(directory) = self.directory.lock_if_present()? else {
            return Ok(());
        };
        for address in addresses {
            let recorded = directory.holder_of(*address)?;
            let is_released = |recorded: RecordedHolder| {
                recorded == RecordedHolder::Nobody || recorded.belongs_to(holder)
            };
            if recorded.is_some_and(is_released) {
                directory.remove(*address)?;
            }
        }
        Ok(())
    }

    /// Releases all addresses of a holder, and returns them. As with the plugin, those whose files name its container without an interface,
    /// as early versions of the plugin wrote them, count only if it has no other. Files that name nobody are removed as well, without being
    /// returned: a power cut may have emptied his. Idempotent. Reads the file of each address in use. Blocks.
    ///
    /// # Errors
    /// [`AddressError::Busy`], [`AddressError::TooMany`], [`AddressError::File`]; some may have been released then.
    pub fn release_all(&self, holder: &Holder) -> Result<Vec<IpAddr>, AddressError> {
        let Some(directory) = self.directory.lock_if_present()? else {
            return Ok(Vec::new());
        };
        let reservations = directory.reservations()?;
        let is_unheld = |one: &&Reservation| one.holder == RecordedHolder::Nobody;
        for unheld in reservations.iter().filter(is_unheld) {
            directory.remove(unheld.address)?;
        }
        let of = |is_his: fn(&RecordedHolder, &Holder) -> bool| -> Vec<IpAddr> {
            let his = reservations
                .iter()
                .filter(|one| is_his(&one.holder, holder));
            his.map(|one| one.address).collect()
        };
        let mut his = of(RecordedHolder::is_attachment);
        if his.is_empty() {
            his = of(RecordedHolder::is_whole_container);
        }
        for address in &his {
            directory.remove(*address)?;
        }
        Ok(his)
    }

    /// The addresses in use, also those outside of the range sets, with their holders, sorted. Reads the file of each. It may be outdated
    /// when it is returned. Blocks.
    ///
    /// # Errors
    /// [`AddressError::Busy`], [`AddressError::TooMany`], [`AddressError::File`].
    pub fn reservations(&self) -> Result<Vec<Reservation>, AddressError> {
        match self.directory.lock_if_present()? {
            Some(directory) => directory.reservations(),
            None => Ok(Vec::new()),
        }
    }

    /// The addresses that have a file, also without a holder. No file is opened. Blocks.
    ///
    /// # Errors
    /// [`AddressError::Busy`], [`AddressError::TooMany`], [`AddressError::File`].
    pub(crate) fn in_use(&self) -> Result<HashSet<IpAddr>, AddressError> {
        match self.directory.lock_if_present()? {
            Some(directory) => directory.taken(),
            None => Ok(HashSet::new()),
        }
    }

    /// Chooses what each range set gives: without effect but for files that no holder is in, which are removed if a set is full.
    fn choose(
        &self,
        directory: &LockedDirectory<'_>,
        holder: &Holder,
        requested: Vec<Option<AssignedAddress>>,
    ) -> Result<Vec<Choice>, AddressError> {
        let mut taken = directory.taken()?;
        let mut choices = Vec::new();
        for (index, requested) in requested.into_iter().enumerate() {
            if let Some(assigned) = requested {
                let is_held = self.is_held(directory, holder, assigned.address)?;
                choices.push(Choice { assigned, is_held });
                continue;
            }
            let last = directory.last(index);
            let mut found = self.network.next_free(index, last, &taken);
            if found.is_none() {
                let is_unheld = |holder: &RecordedHolder| *holder == RecordedHolder::Nobody;
                for freed in directory.remove_where(is_unheld)? {
                    taken.remove(&freed.address);
                }
                found = self.network.next_free(index, last, &taken);
            }
            let assigned = found.ok_or_else(|| self.network.full(index))?;
            let is_held = false;
            choices.push(Choice { assigned, is_held });
        }
        Ok(choices)
    }

    /// Returns whether the holder has an address that it requests, or an error if somebody else has it.
    fn is_held(
        &self,
        directory: &LockedDirectory<'_>,
        holder: &Holder,
        address: IpAddr,
    ) -> Result<bool, AddressError> {
        match directory.holder_of(address)? {
            None | Some(RecordedHolder::Nobody) => Ok(false),
            Some(recorded) if recorded.belongs_to(holder) => Ok(true),
            Some(recorded) => Err(AddressError::Taken {
                network: self.network.name().to_owned(),
                address,
                holder: recorded.to_string(),
            }),
        }
    }
}
