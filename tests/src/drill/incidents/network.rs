//! CNI plugins and addresses.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::cni_plugin;
use crate::drill::incident::{Incident, Sign};
use crate::drill::node::DrillNode;
use crate::host::random_bytes;
use crate::prereq;
use crate::root::PrivateRoot;

/// The plugin of a vendor at the end of the chain, which fails at each twentieth ADD.
const POLICY: &str = r#"if [ "$CNI_COMMAND" = ADD ]; then
    exec 9>"DIR/lock"
    flock 9
    count=$(($(cat "DIR/count" 2>/dev/null || echo 0) + 1))
    echo "$count" >"DIR/count"
    if [ $((count % 20)) = 0 ]; then
        echo '{"cniVersion":"1.0.0","code":11,"msg":"no answer from the policy agent at 10.96.0.14:9093"}'
        exit 1
    fi
fi
"#;

/// Addresses that are leased to containers that nobody knows. Dropping this frees them.
#[derive(Debug)]
struct LeasedAddresses(Vec<PathBuf>);

impl Drop for LeasedAddresses {
    fn drop(&mut self) {
        for file in &self.0 {
            // The end of the root removes it otherwise.
            let _ = fs::remove_file(file);
        }
    }
}

/// Configures the plugin that fails now and then.
pub(crate) fn with_policy_plugin(root: &PrivateRoot) -> String {
    let dir = cni_plugin::add(root, "policy", POLICY);
    format!(
        "[network]\nbin_dirs = [{dir:?}, {:?}]\n",
        prereq::CNI_BIN_DIR
    )
}

/// One in twenty pods gets no network.
pub(crate) fn some_pods_fail(node: &DrillNode) -> Incident {
    // So many at a time that several fail within the half minute for which the rules look back.
    let farm = [
        "build",
        "build-arm",
        "build-docs",
        "build-lint",
        "build-nightly",
        "build-release",
    ];
    let pods = farm.map(|prefix| node.running_pods("ci", prefix, Duration::from_millis(50)));
    Incident::new("build", Sign::Alert("SwitchyardNetworkFails")).with_all(pods)
}

/// All addresses are taken: most were leaked.
///
/// # Panics
/// When the root cannot be written.
pub(crate) fn no_address_left(node: &DrillNode) -> Incident {
    let network = node.root().network();
    let dir = network.data_dir().join(network.name());
    fs::create_dir_all(&dir).expect("the root can be written");
    let subnet = network.subnet();
    let prefix = subnet.trim_end_matches("0/24");
    let mut leased = LeasedAddresses(Vec::new());
    for host in 2..=254 {
        let file = dir.join(format!("{prefix}{host}"));
        if !file.exists() {
            let holder = format!("{}\r\neth0", hex::encode(random_bytes::<32>()));
            fs::write(&file, holder).expect("the root can be written");
            leased.0.push(file);
        }
    }
    let pods = node.running_pods("ci", "build", Duration::from_secs(2));
    Incident::new("build", Sign::Alert("SwitchyardNetworkFails"))
        .with(pods)
        .with(leased)
}
