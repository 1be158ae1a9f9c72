//! Rules for what the bridges forward, where iptables drops by a policy.

use std::collections::BTreeSet;

use super::BridgeTables;
use crate::iptables::{FilterChange, IptablesError, accept_forwarded};
use crate::netlink::{Family, NetlinkError, Socket, list_links};
use crate::nft::BridgeRules;

impl BridgeTables {
    /// Sees to it that no policy of iptables drops what the known bridges forward, as long as somebody needs the tables, and removes what it has
    /// added for that when nobody needs them any more. Returns what was changed or failed, one for each filter of the node. Call it again from
    /// time to time. Blocks while programs run; others attach and detach meanwhile.
    #[must_use = "a failure is to be told"]
    pub fn accept_forwarded(&self) -> Vec<Result<FilterChange, IptablesError>> {
        let known = self.lock().forwarding();
        match bridges_of(known) {
            Ok(bridges) => accept_forwarded(self.name(), &bridges),
            Err(error) => vec![Err(error.into())],
        }
    }
}

/// Those of the known bridges whose name no device of another kind has, as the node's way out: what that forwards is not ours to accept.
fn bridges_of(mut known: Vec<BridgeRules>) -> Result<Vec<BridgeRules>, NetlinkError> {
    if known.is_empty() {
        return Ok(known);
    }
    let links = list_links(&mut Socket::open(Family::Route)?)?.into_iter();
    let others = links.filter(|link| link.kind.as_deref() != Some("bridge"));
    let others: BTreeSet<String> = others.map(|link| link.name).collect();
    known.retain(|bridge| !others.contains(bridge.name.as_str()));
    Ok(known)
}
