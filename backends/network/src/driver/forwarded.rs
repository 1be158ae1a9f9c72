//! What the bridge forwards, where iptables drops by a policy.

use super::BridgeDriver;
use crate::iptables::{FilterChange, IptablesError, accept_forwarded};
use crate::nft::{BridgeName, NftFamily};

impl BridgeDriver {
    /// Sees to it that no policy of iptables drops what the bridge forwards, as long as this driver or one of its attachments needs the
    /// bridge, and removes what it has added for that when nobody needs it any more. Returns what was changed or failed, one for each
    /// filter of the node. Call it again from time to time. Blocks while programs run; others attach and detach meanwhile.
    #[must_use = "a failure is to be told"]
    pub fn accept_forwarded(&self) -> Vec<Result<FilterChange, IptablesError>> {
        let is_needed = self.settings.is_used || !self.state.lock().attachments.is_empty();
        let families: &[NftFamily] = if is_needed { &*self.families } else { &[] };
        match BridgeName::new(self.settings.name.as_str()) {
            Ok(bridge) => accept_forwarded(self.table(), &[bridge], families),
            Err(error) => vec![Err(error.into())],
        }
    }
}
