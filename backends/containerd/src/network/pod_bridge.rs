//! The bridge of pods, on a node whose kubelet does without CNI configurations (`cri.network = "bridge"`). Whoever attaches sandboxes to the
//! gateway's own bridge makes it too, in the same way. Its addresses are those that the kubelet tells as the node's `podCIDR`, or those of
//! the configuration.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use switchyard_cni as cni;
use switchyard_core::id::Owner;
use switchyard_core::spec::Subnet;
use switchyard_core::{Error, Result};
use switchyard_namespaces::has_device;

use super::bridge::{BridgeNetwork, RangeKey};
use super::native::{DEVICES, NativeBridges};
use super::ranges::Ranges;
use super::routes::Routes;
use crate::base::config;
use crate::base::error::from_cni;

/// Reason why a node has no addresses for pods, and the remedies.
const NO_RANGES: &str = "no kubelet has told the podCIDR of this node: in a cluster the controller manager gives each node one (--allocate-node-cidrs); a kubelet without a cluster has podCIDR in its configuration; or set network.pods.subnets";

/// Reason why the bridge cannot be made on a node on which something else has its name, and the remedy.
const OTHER_DEVICE: &str = "a network device that is no bridge has this name: rename it, or set network.pods.name to another one";

/// The bridge of pods.
#[derive(Debug)]
pub(crate) struct PodBridge {
    config: config::PodsConfig,
    /// The gateway's own bridge, whose addresses it cannot have.
    own: config::BridgeConfig,
    ranges: Arc<Ranges>,
    native: Arc<NativeBridges>,
    /// The ranges that were found free last: the routes to them are the bridge's own from then on.
    found_free: Mutex<Vec<Subnet>>,
    /// The subnets of networks that clusters define, each with the name of its network: there may be no route to them.
    of_clusters: Mutex<Vec<(String, Subnet)>>,
}

// === impl config::PodsConfig ===

impl config::PodsConfig {
    /// Checks the values beyond their types, beside those of the gateway's own bridge.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the key.
    pub fn check(&self, own: &config::BridgeConfig) -> Result<()> {
        if self.name == own.name {
            let why = format!(
                "{:?} is the bridge of network.bridge: pods have another one",
                own.name
            );
            return Err(Error::invalid("name", why));
        }
        // Without ranges of its own, the other values are checked.
        let ranges = if self.subnets.is_empty() {
            &own.subnets
        } else {
            &self.subnets
        };
        self.bridge(own, ranges.clone()).check()?;
        match overlap(&parsed(&self.subnets), own) {
            Some(why) => Err(Error::invalid("subnets", why)),
            None => Ok(()),
        }
    }

    /// The bridge of pods with these ranges, in other things as the gateway's own one.
    fn bridge(&self, own: &config::BridgeConfig, subnets: Vec<String>) -> config::BridgeConfig {
        config::BridgeConfig {
            name: self.name.clone(),
            subnets,
            mtu: self.mtu,
            ..own.clone()
        }
    }
}

/// Those of these texts that are ranges.
pub(super) fn parsed(texts: &[String]) -> Vec<Subnet> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Returns the reason why a bridge beside the gateway's own one cannot have these ranges, if it cannot.
fn overlap(ranges: &[Subnet], own: &config::BridgeConfig) -> Option<String> {
    let of_own = parsed(&own.subnets);
    let pair = |range: &Subnet| Some((*range, *of_own.iter().find(|own| own.overlaps(range))?));
    let (range, taken) = ranges.iter().find_map(pair)?;
    Some(format!(
        "{range} has addresses of {taken}, which the gateway's own bridge {} has: choose another range, or other network.bridge.subnets",
        own.name
    ))
}

/// Returns whether there is a network device that is no bridge, as its directory of the kernel says.
fn is_other_device(dir: &Path) -> bool {
    // One read: a device that is being made has its kind there from the beginning, but the directory `bridge` only after its own.
    let properties = fs::read_to_string(dir.join("uevent"));
    properties.is_ok_and(|text| !text.lines().any(|line| line == "DEVTYPE=bridge"))
}

// === impl PodBridge ===

impl PodBridge {
    pub(crate) fn new(
        config: &config::NetworkConfig,
        ranges: Arc<Ranges>,
        native: Arc<NativeBridges>,
    ) -> Self {
        Self {
            config: config.pods.clone(),
            own: config.bridge.clone(),
            ranges,
            native,
            found_free: Mutex::default(),
            of_clusters: Mutex::default(),
        }
    }

    /// The ranges of its addresses, by now; none if nobody has told any.
    pub(super) fn subnets(&self) -> Vec<Subnet> {
        self.subnets_and_key().0
    }

    fn subnets_and_key(&self) -> (Vec<Subnet>, RangeKey) {
        let told = self.ranges.of(Owner::Kubernetes);
        if told.is_empty() {
            (parsed(&self.config.subnets), RangeKey::Pods)
        } else {
            (told, RangeKey::Told)
        }
    }

    /// Takes down which subnets the networks of clusters have from now on, each with the name of its network.
    pub(super) fn clusters_have(&self, subnets: Vec<(String, Subnet)>) {
        *self.of_clusters.lock() = subnets;
    }

    /// Returns the reason why it cannot have these ranges beside networks of clusters, if it cannot.
    fn overlap_of_clusters(&self, ranges: &[Subnet]) -> Option<String> {
        let of_clusters = self.of_clusters.lock();
        let taken = |range: &Subnet| {
            let mut all = of_clusters.iter();
            Some((*range, all.find(|(_, subnet)| subnet.overlaps(range))?))
        };
        let (range, (network, subnet)) = ranges.iter().find_map(taken)?;
        Some(format!(
            "{range} has addresses of {subnet}, which the network {network:?} has: choose another range, or create the network with another subnet"
        ))
    }

    /// Its name and ranges, for the status.
    pub(crate) fn summary(&self) -> String {
        let subnets = self.subnets().into_iter().map(|range| range.to_string());
        let words: Vec<String> = [self.config.name.clone()]
            .into_iter()
            .chain(subnets)
            .collect();
        words.join(" ")
    }

    /// Its configuration list, for a pod that is to be connected. Blocks on small files of the kernel.
    ///
    /// # Errors
    /// `Unavailable` if it has no ranges, or not such as a bridge can have, or if others have some of their addresses; if a device of another
    /// kind has its name; and if the plugin `bridge` would refuse another range beside that of a former `podCIDR`, or the daemon to attach pods,
    /// as the node would lose what it learns from routers.
    pub(super) fn list_if_free(&self) -> Result<Arc<cni::NetworkList>> {
        let name = &self.config.name;
        let unavailable = |why: &str| Error::unavailable(format!("network {name}: {why}"));
        let (subnets, key) = self.subnets_and_key();
        if subnets.is_empty() {
            return Err(unavailable(NO_RANGES));
        }
        let taken = overlap(&subnets, &self.own);
        if let Some(why) = taken.or_else(|| self.overlap_of_clusters(&subnets)) {
            return Err(unavailable(&why));
        }
        let texts = subnets.iter().map(ToString::to_string).collect();
        let config = self.config.bridge(&self.own, texts);
        let (network, _) = BridgeNetwork::of(&config, Path::new(name), key).map_err(|error| {
            let error = error.context("network.pods");
            unavailable("a bridge cannot have these addresses").with_source(error)
        })?;
        // Also of one that was free: somebody may have replaced it.
        if is_other_device(&Path::new(DEVICES).join(name)) {
            return Err(unavailable(OTHER_DEVICE));
        }
        let is_free = *self.found_free.lock() == subnets && has_device(name);
        if !is_free {
            let routes = Routes::read(name)?;
            network.check_routes(&routes)?;
            if self.native.is_chosen() {
                let kept = self.native.keep_routers(network.list());
                kept.map_err(|error| unavailable("pods cannot be attached").with_source(error))?;
            } else if let Some(former) = routes.former(name, &subnets) {
                return Err(unavailable(&format!(
                    "the bridge still has {former} of a former podCIDR, and plugins give it one range of IPv4: drain the node and `ip link delete {name}`, or set network.bridge.driver to \"native\""
                )));
            }
            *self.found_free.lock() = subnets;
        }
        Ok(Arc::clone(network.list()))
    }

    /// Looks whether a pod could be connected, and returns the configuration list. If plugins connect pods, it blocks on their directories.
    ///
    /// # Errors
    /// `Unavailable` as [`PodBridge::list_if_free`], and if plugins or their programs are missing.
    pub(super) fn look(&self, plugins: cni::Plugins) -> Result<Arc<cni::NetworkList>> {
        let list = self.list_if_free()?;
        if !self.native.is_chosen() {
            self.native.check_programs(&list.name)?;
            let network = cni::Network::new(Arc::clone(&list), plugins);
            let installed = network.check_installed().map_err(from_cni);
            installed.map_err(|error| self.native.explain(&list.name, error))?;
        }
        Ok(list)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use switchyard_core::ErrorKind;

    use super::*;
    use crate::base::layout::Layout;

    /// Ranges that no route of a node that runs tests has.
    const TOLD: [&str; 2] = ["198.19.242.0/24", "fd00:198:19:242::/64"];

    pub(in crate::network) fn network(subnets: &[&str]) -> config::NetworkConfig {
        let mut network = config::NetworkConfig::default();
        network.pods.name = "swt-pods".to_owned();
        network.pods.subnets = subnets.iter().map(|text| (*text).to_owned()).collect();
        network
    }

    /// The bridge of this configuration, on a node whose kubelet has told these ranges.
    pub(in crate::network) async fn bridge(
        network: &config::NetworkConfig,
        told: &[&str],
    ) -> PodBridge {
        let dir = tempfile::tempdir().unwrap();
        let ranges = Arc::new(Ranges::load(dir.path().join("ranges")));
        let told = told.iter().map(|text| text.parse().unwrap()).collect();
        ranges.set(Owner::Kubernetes, told).await.unwrap();
        bridge_with(network, ranges)
    }

    /// The same with ranges that it may be told later.
    pub(in crate::network) fn bridge_with(
        network: &config::NetworkConfig,
        ranges: Arc<Ranges>,
    ) -> PodBridge {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path(), dir.path());
        let own = BridgeNetwork::new(&network.bridge, &layout).unwrap();
        let native = Arc::new(NativeBridges::new(network, own.list()).unwrap());
        PodBridge::new(network, ranges, native)
    }

    #[tokio::test]
    async fn addresses_are_those_that_the_kubelet_tells_or_else_the_configured_ones() {
        let configured = ["198.19.243.0/24"];
        for (configured, told, expected) in [
            (&configured[..], &TOLD[..1], "swt-pods 198.19.242.0/24"),
            (&configured[..], &[][..], "swt-pods 198.19.243.0/24"),
            (
                &[][..],
                &TOLD[..],
                "swt-pods 198.19.242.0/24 fd00:198:19:242::/64",
            ),
            (&[][..], &TOLD[1..], "swt-pods fd00:198:19:242::/64"),
        ] {
            let bridge = bridge(&network(configured), told).await;
            assert_eq!(bridge.summary(), expected);
            let list = bridge.list_if_free().unwrap();
            let document = list.to_document().to_string();
            for range in bridge.subnets() {
                assert!(
                    document.contains(&format!("\"subnet\":\"{range}\"")),
                    "{document}"
                );
            }
            assert_eq!(list.name, "swt-pods");
        }
    }

    #[tokio::test]
    async fn ranges_that_a_bridge_cannot_have_make_the_network_unavailable() {
        for (told, expected) in [
            (
                &["172.26.81.0/24"][..],
                "172.26.80.0/20, which the gateway's own bridge switchyard0 has",
            ),
            (&[][..], "podCIDR in its configuration"),
            (&["198.19.242.0/31"][..], "fewer than four addresses"),
            (
                &["198.19.242.0/24", "198.19.243.0/24"][..],
                "a range of IPv4, one of IPv6, or both",
            ),
            (&["127.0.0.0/24"][..], "of loopback"),
            (
                &["198.18.20.0/24"][..],
                "198.18.20.0/24 has addresses of 198.18.16.0/20, which the network \"back\" has",
            ),
        ] {
            let bridge = bridge(&network(&[]), told).await;
            let of_cluster = "198.18.16.0/20".parse().unwrap();
            bridge.clusters_have(vec![("back".to_owned(), of_cluster)]);
            let error = bridge.list_if_free().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{told:?}");
            assert!(error.report().contains(expected), "{}", error.report());
        }
    }

    #[tokio::test]
    async fn device_of_another_kind_makes_the_network_unavailable() {
        // Each node has this one, and in each namespace.
        let mut network = network(&[]);
        network.pods.name = "lo".to_owned();
        let bridge = bridge(&network, &TOLD).await;
        let error = bridge.list_if_free().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.report().contains(OTHER_DEVICE), "{}", error.report());
        let cases = [
            // None, and one that is being made or is going away.
            (None, false),
            (Some("INTERFACE=eth0\nIFINDEX=2\n"), true),
            (Some("DEVTYPE=wlan\nINTERFACE=wlan0\nIFINDEX=3\n"), true),
            (Some("INTERFACE=DEVTYPE=bridge\nIFINDEX=4\n"), true),
            (Some("DEVTYPE=bridge\nINTERFACE=pods0\nIFINDEX=5\n"), false),
        ];
        for (properties, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            if let Some(text) = properties {
                fs::write(dir.path().join("uevent"), text).unwrap();
            }
            assert_eq!(is_other_device(dir.path()), expected, "{properties:?}");
        }
    }

    #[test]
    fn what_is_no_bridge_beside_the_own_one_is_refused_by_its_key() {
        type Change = fn(&mut config::PodsConfig);
        let cases: [(Change, Option<&str>); 8] = [
            (|_| {}, None),
            (|pods| pods.name = "switchyard0".into(), Some("name: ")),
            (
                |pods| pods.name = "a name that is too long".into(),
                Some("name: "),
            ),
            (
                |pods| pods.subnets = vec!["10.1.0.0/16".into(), "fd00::/64".into()],
                None,
            ),
            (
                |pods| pods.subnets = vec!["172.26.0.0/16".into()],
                Some("subnets: "),
            ),
            (
                |pods| pods.subnets = vec!["10.1.0.0/31".into()],
                Some("subnets: "),
            ),
            (|pods| pods.subnets = vec!["10.1".into()], Some("subnet: ")),
            (|pods| pods.mtu = 7, Some("mtu: ")),
        ];
        for (change, key) in cases {
            let mut pods = config::PodsConfig::default();
            change(&mut pods);
            let found = pods.check(&config::BridgeConfig::default());
            let found = found.map_err(|error| error.to_string());
            match key {
                None => assert_eq!(found, Ok(())),
                Some(key) => assert!(found.unwrap_err().starts_with(key), "{key}"),
            }
        }
    }
}
