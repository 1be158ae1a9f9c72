//! A look at the chain FORWARD of `iptables`, in its variant that uses nf_tables.

use nix::errno::Errno;
use nix::sys::socket::SockFlag;

use super::error::NftError;
use super::family::NftFamily;
use super::message::NFTABLES;
use super::socket::NfSocket;
use super::tables::GET_CHAIN;
use super::transaction::{CHAIN_NAME, TABLE_NAME};

/// Returns whether the table `filter` of a family has the chain `FORWARD`, in the network namespace of the calling thread. Nothing is made
/// and no module of iptables is loaded, as its program may do for a look.
///
/// # Errors
/// [`NftError::Socket`], [`NftError::Query`].
pub fn has_iptables_forward(family: NftFamily) -> Result<bool, NftError> {
    let mut socket = match NfSocket::open(0, SockFlag::empty()) {
        // The kernel has no netfilter.
        Err(Errno::EPROTONOSUPPORT) => return Ok(false),
        opened => opened.map_err(|source| NftError::Socket { source })?,
    };
    let asked = socket.ask(NFTABLES | GET_CHAIN, family.number(), |body| {
        body.text(TABLE_NAME, "filter");
        body.text(CHAIN_NAME, "FORWARD");
    });
    match asked {
        Ok(_) => Ok(true),
        // There is no such table or chain, or no nf_tables in the kernel.
        Err(Errno::ENOENT | Errno::EINVAL) => Ok(false),
        Err(errno) => Err(NftError::query("look for the chain FORWARD of iptables")(
            errno,
        )),
    }
}
