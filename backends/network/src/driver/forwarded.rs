//! What the bridges forward, where iptables drops by a policy.

use super::BridgeTables;
use crate::iptables::{FilterChange, IptablesError, accept_forwarded};

impl BridgeTables {
    /// Sees to it that no policy of iptables drops what the known bridges forward, as long as somebody needs the tables, and removes what it has
    /// added for that when nobody needs them any more. Returns what was changed or failed, one for each filter of the node. Call it again from
    /// time to time. Blocks while programs run; others attach and detach meanwhile.
    #[must_use = "a failure is to be told"]
    pub fn accept_forwarded(&self) -> Vec<Result<FilterChange, IptablesError>> {
        let (bridges, families) = self.lock().forwarding();
        accept_forwarded(self.name(), &bridges, &families)
    }
}
