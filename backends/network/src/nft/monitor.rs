//! Notices that other programs change our tables, as `nft flush ruleset` and `firewall-cmd --reload` do.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockFlag};

use super::error::NftError;
use super::family::{NftFamily, TableName};
use super::message::{NFTABLES, messages, text};
use super::socket::NfSocket;
use super::transaction::TABLE_NAME;

/// `NFNLGRP_NFTABLES`, group 7, in a mask of groups.
const CHANGES: u32 = 1 << 6;
/// `NFT_MSG_NEWGEN`: the end of a transaction. Its first attribute is a number, where others name a table.
const NEW_GENERATION: u16 = 15;
/// The subsystem of a message's kind.
const SUBSYSTEM: u16 = 0xff00;
/// Datagrams that one call reads, so that a program which changes rules all the time does not keep it busy.
const MAX_READ: usize = 256;

/// Changes that a monitor noticed since it was last read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NftNotice {
    /// The families whose table was changed by others.
    pub families: BTreeSet<NftFamily>,
    /// True if there may be more to read at once.
    pub more: bool,
}

/// Receives what is changed in the ruleset of the network namespace in which it was opened.
///
/// It sees only what happens after it was opened: open it before the tables are restored. Notifications may be lost when there are many;
/// then all families that have tables are reported. They are not a promise: who relies on the tables also looks from time to time.
#[derive(Debug)]
pub struct NftMonitor {
    socket: NfSocket,
    table: TableName,
}

impl NftMonitor {
    /// Opens a socket in the network namespace of the calling thread, which looks at the tables of this name.
    ///
    /// # Errors
    /// [`NftError::Socket`].
    pub fn open(table: TableName) -> Result<Self, NftError> {
        let socket = NfSocket::open(CHANGES, SockFlag::SOCK_NONBLOCK)
            .map_err(|source| NftError::Socket { source })?;
        Ok(Self { socket, table })
    }

    /// Reads what there is, and never waits: wait until the descriptor is readable before. `own` are the ports of the sockets whose changes
    /// do not count ([`super::NftTables::port`]).
    ///
    /// # Errors
    /// [`NftError::Query`].
    pub fn read(&mut self, own: &[u32]) -> Result<NftNotice, NftError> {
        let mut notice = NftNotice::default();
        for _ in 0..MAX_READ {
            match self.socket.receive(MsgFlags::MSG_DONTWAIT) {
                Ok(datagram) => {
                    notice
                        .families
                        .extend(changed_by_others(datagram, self.table.as_str(), own))
                }
                Err(Errno::EAGAIN) => return Ok(notice),
                // The buffer was full: something was lost.
                Err(Errno::ENOBUFS) => notice.families.extend(NftFamily::TABLES),
                Err(errno) => return Err(NftError::query("read changes of the ruleset")(errno)),
            }
        }
        notice.more = true;
        Ok(notice)
    }
}

impl AsFd for NftMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the families whose table of this name a datagram of notifications is about, unless a socket with one of these ports changed it.
pub(super) fn changed_by_others(datagram: &[u8], table: &str, own: &[u32]) -> BTreeSet<NftFamily> {
    messages(datagram)
        .filter(|message| message.kind & SUBSYSTEM == NFTABLES)
        .filter(|message| message.kind != NFTABLES | NEW_GENERATION && !own.contains(&message.port))
        .filter(|message| text(message.body(), TABLE_NAME) == Some(table))
        .filter_map(|message| NftFamily::from_number(message.family()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::kept::kept;

    #[test]
    fn flush_of_others_is_noticed_and_own_changes_are_not() {
        let flush = kept("notified-flush");
        let port = messages(&flush).next().unwrap().port;
        let both = BTreeSet::from(NftFamily::ALL);
        for (name, table, datagram, own, wanted) in [
            (
                "of others",
                "switchyard",
                flush.clone(),
                vec![],
                both.clone(),
            ),
            (
                "of another socket",
                "switchyard",
                flush.clone(),
                vec![port + 1],
                both,
            ),
            (
                "our own",
                "switchyard",
                flush.clone(),
                vec![port + 1, port],
                BTreeSet::new(),
            ),
            (
                "another instance",
                "switchyard_2",
                flush.clone(),
                vec![],
                BTreeSet::new(),
            ),
            ("nothing", "switchyard", vec![], vec![], BTreeSet::new()),
            (
                "another subsystem",
                "switchyard",
                kept("conntrack-ip4"),
                vec![],
                BTreeSet::new(),
            ),
        ] {
            assert_eq!(changed_by_others(&datagram, table, &own), wanted, "{name}");
        }
    }
}
