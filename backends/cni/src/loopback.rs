//! The plugin `loopback`, which is not run: whoever makes the network namespace of a container has brought its loopback device up, and
//! the device ends with the namespace.

use serde_json::{Value, json};

use crate::attachment::Attachment;
use crate::conf::{PluginConf, type_of};

/// The `type` of the plugin.
const LOOPBACK: &str = "loopback";

/// Returns whether a plugin does nothing but bring the loopback device up, so that it needs neither to be run nor to be installed.
pub(crate) fn is_loopback(plugin: &PluginConf) -> bool {
    type_of(plugin) == LOOPBACK
}

/// The result with which the plugin answers ADD at the beginning of a chain. Elsewhere it passes on the result of the plugin before it.
pub(crate) fn result(attachment: &Attachment) -> Value {
    let netns = attachment.netns.as_ref();
    let netns = netns.map(|path| path.display().to_string());
    json!({
        "cniVersion": "1.0.0",
        "interfaces": [{ "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": netns }],
        "ips": [{ "address": "127.0.0.1/8", "interface": 0 }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::CheckOutcome;
    use crate::testing::{Bench, attachment, list};

    #[tokio::test]
    async fn loopback_is_neither_run_nor_installed_wherever_it_stands_in_a_chain() {
        for (chain, address) in [
            (&["loopback", "one"][..], "10.0.0.2"),
            (&["one", "loopback"][..], "10.0.0.2"),
            (&["one", "loopback", "two"][..], "10.0.0.3"),
            (&["loopback", "loopback", "two", "one"][..], "10.0.0.2"),
            (&["loopback"][..], "127.0.0.1"),
        ] {
            let bench = Bench::new();
            bench.good("one", "10.0.0.2/24");
            bench.good("two", "10.0.0.3/24");
            let network = bench.network(&list("1.0.0", chain));
            network.check_installed().unwrap();
            let made = network.add(&attachment()).await.unwrap();
            let first = made.ips.first().map(|ip| ip.address.ip.to_string());
            assert_eq!(first.as_deref(), Some(address), "{chain:?}");
            let checked = network.check(&attachment(), &made).await.unwrap();
            assert_eq!(checked, CheckOutcome::Passed, "{chain:?}");
            network.del(&attachment(), Some(&made)).await.unwrap();
            let run: Vec<_> = chain.iter().filter(|kind| **kind != "loopback").collect();
            let adds = run.iter().map(|kind| format!("ADD {kind}"));
            let checks = run.iter().map(|kind| format!("CHECK {kind}"));
            let dels = run.iter().rev().map(|kind| format!("DEL {kind}"));
            let expected: Vec<_> = adds.chain(checks).chain(dels).collect();
            assert_eq!(bench.order(), expected, "{chain:?}");
        }
    }

    #[tokio::test]
    async fn plugin_after_loopback_gets_its_result_in_the_version_of_the_network() {
        for (version, family) in [
            ("0.3.1", Some("4")),
            ("0.4.0", Some("4")),
            ("1.0.0", None),
            ("1.1.0", None),
        ] {
            let bench = Bench::new();
            bench.good("one", "10.0.0.2/24");
            let network = bench.network(&list(version, &["loopback", "one"]));
            network.add(&attachment()).await.unwrap();
            let given = &bench.stdin("one", "ADD")["prevResult"];
            assert_eq!(given["cniVersion"], version);
            assert_eq!(given["interfaces"][0]["name"], "lo");
            assert_eq!(given["interfaces"][0]["sandbox"], "/run/netns/x");
            let marked = given["ips"][0].get("version").and_then(Value::as_str);
            assert_eq!(marked, family, "{version}");
        }
    }
}
