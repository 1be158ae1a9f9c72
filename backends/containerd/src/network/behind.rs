//! Networks that are released behind the answer to a stop: those whose plugins are known to need nothing from whoever asks.

use serde_json::Value;
use switchyard_cni as cni;
use switchyard_core::Result;

use super::Network;
use crate::base::fs::blocking;
use crate::base::layout::SandboxDirs;

/// The plugins of the containernetworking project that only undo what they have made on this node. What another plugin does on DEL, as
/// telling a controller that an address is free, its client may wait for; and why it fails, its client has to see.
const LOCAL_PLUGINS: [&str; 5] = ["bridge", "portmap", "firewall", "bandwidth", "loopback"];
/// The one that assigns addresses on this node alone.
const LOCAL_IPAM: &str = "host-local";

impl Network {
    /// Returns whether the network of a sandbox may be released behind the answer to a stop. A journal that cannot be read says no: whoever
    /// asks gets the reason.
    pub(crate) async fn may_end_behind(&self, dirs: &SandboxDirs) -> bool {
        let journal = dirs.cni_journal();
        let decide = move || {
            let saved = cni::Saved::read(&journal).ok().flatten();
            // A network without plugins is released in a moment.
            let saved = saved.filter(|saved| saved.driver().is_none());
            let list = saved.and_then(|saved| saved.list(&journal).ok());
            Ok(list.is_some_and(|list| is_local(&list)))
        };
        let decided: Result<bool> = blocking(decide).await;
        decided.unwrap_or(false)
    }
}

/// Returns whether all plugins of a network are local ones.
fn is_local(list: &cni::NetworkList) -> bool {
    let kind = |value: &Value| value.as_str().map(str::to_owned);
    list.plugins.iter().all(|plugin| {
        let plugin_kind = plugin.get("type").and_then(kind).unwrap_or_default();
        let ipam = plugin.get("ipam").and_then(|ipam| ipam.get("type"));
        let has_local_ipam = ipam.is_none_or(|ipam| *ipam == LOCAL_IPAM);
        LOCAL_PLUGINS.contains(&plugin_kind.as_str()) && has_local_ipam
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn only_chains_of_known_plugins_end_behind_the_answer() {
        let bridge = |ipam: Value| json!({ "type": "bridge", "ipam": ipam });
        let local = || bridge(json!({ "type": "host-local" }));
        let plugin = |kind: &str| json!({ "type": kind });
        for (plugins, expected) in [
            (vec![local()], true),
            (vec![local(), plugin("portmap"), plugin("bandwidth")], true),
            (vec![plugin("loopback"), local(), plugin("firewall")], true),
            (vec![plugin("bridge")], true),
            (vec![bridge(json!({ "type": "dhcp" }))], false),
            (vec![bridge(json!({ "type": "whereabouts" }))], false),
            (vec![local(), plugin("tuning")], false),
            (vec![local(), plugin("portmap"), plugin("istio-cni")], false),
            (vec![plugin("calico"), plugin("portmap")], false),
            (vec![plugin("Bridge")], false),
            (vec![plugin("macvlan")], false),
        ] {
            let text =
                json!({ "cniVersion": "1.0.0", "name": "net", "plugins": plugins }).to_string();
            let list = cni::NetworkList::parse(Path::new("test.conflist"), text.as_bytes());
            let list = list.expect("it is a network");
            assert_eq!(is_local(&list), expected, "{text}");
        }
    }
}
