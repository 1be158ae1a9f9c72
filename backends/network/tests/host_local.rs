//! The pool beside the real plugin `host-local`, in one directory.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use switchyard_network::addresses::{
    AddressError, AddressPool, AddressRange, AssignedAddress, Holder, RangeLimits, RangeSet,
};
use tempfile::TempDir;

/// The plugin of Debian's package containernetworking-plugins.
const PLUGIN: &str = "/usr/lib/cni/host-local";

/// A network that the plugin and the pool share, with a range of each family.
struct SharedNetwork {
    temp: TempDir,
    subnets: [&'static str; 2],
    pool: AddressPool,
}

impl SharedNetwork {
    fn new(subnets: [&'static str; 2]) -> Self {
        let there = Path::new(PLUGIN).is_file();
        assert!(
            there,
            "{PLUGIN} is missing; install the package containernetworking-plugins"
        );
        let temp = tempfile::tempdir().unwrap();
        let set = |subnet: &str| {
            let range = AddressRange::new(subnet.parse().unwrap(), RangeLimits::default()).unwrap();
            RangeSet::new(vec![range]).unwrap()
        };
        let pool = AddressPool::new(temp.path(), "shared", subnets.map(set).into()).unwrap();
        Self {
            temp,
            subnets,
            pool,
        }
    }

    /// Runs the plugin, and returns what it prints, or its error.
    fn plugin(&self, verb: &str, id: &str, requested: &[&str]) -> Result<Value, String> {
        let ranges = self.subnets.map(|subnet| json!([{ "subnet": subnet }]));
        let config = json!({
            "cniVersion": "1.0.0", "name": "shared", "runtimeConfig": { "ips": requested },
            "ipam": { "type": "host-local", "dataDir": self.temp.path(), "ranges": ranges },
        });
        // It is not entered.
        let netns: PathBuf = self.temp.path().join("no-namespace");
        let mut plugin = Command::new(PLUGIN)
            .env_clear()
            .envs([
                ("CNI_COMMAND", verb),
                ("CNI_CONTAINERID", id),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/usr/lib/cni"),
            ])
            .env("CNI_NETNS", netns)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = plugin.stdin.take().unwrap();
        stdin.write_all(config.to_string().as_bytes()).unwrap();
        drop(stdin);
        let output = plugin.wait_with_output().unwrap();
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if output.status.success() {
            return Ok(printed);
        }
        let error = printed["msg"].as_str().unwrap_or_default().to_owned();
        assert!(!error.is_empty(), "{output:?}");
        Err(error)
    }

    /// The addresses that the plugin assigns.
    fn add(&self, id: &str, requested: &[&str]) -> Result<Vec<IpAddr>, String> {
        let result = self.plugin("ADD", id, requested)?;
        let ips = result["ips"].as_array().unwrap();
        let address = |ip: &Value| -> IpAddr {
            let text = ip["address"].as_str().unwrap();
            text.split('/').next().unwrap().parse().unwrap()
        };
        Ok(ips.iter().map(address).collect())
    }

    /// The addresses that the pool assigns.
    fn assign(&self, id: &str, requested: &[&str]) -> Result<Vec<IpAddr>, AddressError> {
        let assigned = self.pool.assign(&holder(id), &addresses(requested))?;
        Ok(assigned.iter().map(|one| one.address).collect())
    }

    fn in_use(&self) -> Vec<IpAddr> {
        let reservations = self.pool.reservations().unwrap();
        reservations.iter().map(|one| one.address).collect()
    }
}

fn holder(id: &str) -> Holder {
    Holder::new(id, "eth0").unwrap()
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn each_continues_where_the_other_has_ended() {
    let network = SharedNetwork::new(["10.77.0.0/24", "fd77::/64"]);
    assert_eq!(
        network.add("c1", &[]).unwrap(),
        addresses(&["10.77.0.2", "fd77::2"])
    );
    assert_eq!(
        network.assign("o1", &[]).unwrap(),
        addresses(&["10.77.0.3", "fd77::3"])
    );
    assert_eq!(
        network.add("c2", &[]).unwrap(),
        addresses(&["10.77.0.4", "fd77::4"])
    );
    assert_eq!(
        network.assign("o2", &["10.77.0.9"]).unwrap(),
        addresses(&["10.77.0.9", "fd77::5"])
    );
    assert_eq!(
        network.add("c3", &["fd77::a"]).unwrap(),
        addresses(&["10.77.0.10", "fd77::a"])
    );
    assert_eq!(
        network.assign("o3", &[]).unwrap(),
        addresses(&["10.77.0.11", "fd77::b"])
    );
    // What was freed is not used again at once, by whomever it was.
    network.plugin("DEL", "c3", &[]).unwrap();
    network.pool.release_all(&holder("o3")).unwrap();
    assert_eq!(
        network.add("c4", &[]).unwrap(),
        addresses(&["10.77.0.12", "fd77::c"])
    );
    assert_eq!(
        network.assign("o4", &[]).unwrap(),
        addresses(&["10.77.0.13", "fd77::d"])
    );
}

#[test]
fn both_report_a_range_in_the_same_words() {
    let network = SharedNetwork::new(["10.77.0.0/28", "fd77:0:0:1::/64"]);
    let printed = network.plugin("ADD", "c1", &[]).unwrap();
    network.plugin("DEL", "c1", &[]).unwrap();
    let requested: Vec<IpAddr> = addresses(&["10.77.0.2", "fd77:0:0:1::2"]);
    let assigned = network.pool.assign(&holder("o1"), &requested).unwrap();
    let told = |one: &AssignedAddress| json!({ "address": format!("{}/{}", one.address, one.prefix), "gateway": one.gateway });
    let told: Vec<Value> = assigned.iter().map(told).collect();
    assert_eq!(printed["ips"], Value::from(told));
}

#[test]
fn neither_assigns_what_the_other_holds() {
    let network = SharedNetwork::new(["10.77.0.0/24", "fd77::/64"]);
    network.add("c1", &[]).unwrap();
    network.assign("o1", &[]).unwrap();
    let before = network.in_use();
    for requested in ["10.77.0.2", "fd77::2"] {
        let error = network.assign("o2", &[requested]).unwrap_err().to_string();
        assert!(
            error.contains(&format!(
                "{requested} is held by container \"c1\" (\"eth0\")"
            )),
            "{error}"
        );
    }
    for requested in ["10.77.0.3", "fd77::3"] {
        let error = network.add("c2", &[requested]).unwrap_err();
        assert!(error.contains("is not available in range set"), "{error}");
    }
    // The plugin's second address for one interface of a container.
    let error = network.add("o1", &[]).unwrap_err();
    assert!(
        error.contains("duplicate allocation is not allowed"),
        "{error}"
    );
    assert_eq!(before.len(), 4);
    assert_eq!(network.in_use(), before);
}

#[test]
fn each_finds_and_releases_what_the_other_has_assigned() {
    let network = SharedNetwork::new(["10.77.0.0/24", "fd77::/64"]);
    network.add("c1", &[]).unwrap();
    let of_pool = network.assign("o1", &[]).unwrap();
    for id in ["c1", "o1"] {
        network.plugin("CHECK", id, &[]).unwrap();
    }
    network.plugin("DEL", "o1", &[]).unwrap();
    network.pool.release(&holder("o1"), &of_pool).unwrap();
    assert_eq!(network.in_use(), addresses(&["10.77.0.2", "fd77::2"]));
    let of_plugin = network.pool.release_all(&holder("c1")).unwrap();
    assert_eq!(of_plugin, addresses(&["10.77.0.2", "fd77::2"]));
    assert!(network.in_use().is_empty());
    for id in ["c1", "o1"] {
        network.plugin("CHECK", id, &[]).unwrap_err();
        network.plugin("DEL", id, &[]).unwrap();
    }
}

#[test]
fn range_is_full_for_both_at_the_same_address() {
    // Five addresses of IPv4, and more of IPv6.
    let network = SharedNetwork::new(["10.77.0.0/29", "fd77::/64"]);
    for number in 0..5 {
        let id = format!("a{number}");
        let assigned = if number % 2 == 0 {
            network.add(&id, &[]).unwrap()
        } else {
            network.assign(&id, &[]).unwrap()
        };
        let expected = [
            format!("10.77.0.{}", number + 2),
            format!("fd77::{:x}", number + 2),
        ];
        assert_eq!(
            assigned,
            addresses(&expected.each_ref().map(String::as_str))
        );
    }
    let before = network.in_use();
    network.add("late", &[]).unwrap_err();
    let error = network.assign("late", &[]).unwrap_err();
    assert!(matches!(error, AddressError::Full { .. }), "{error}");
    assert_eq!(network.in_use(), before, "nothing of IPv6 is kept");
    // What one frees, the other can have.
    network.plugin("DEL", "a1", &[]).unwrap();
    assert_eq!(
        network.assign("late", &[]).unwrap()[0],
        addresses(&["10.77.0.3"])[0]
    );
    network.pool.release_all(&holder("a2")).unwrap();
    assert_eq!(
        network.add("later", &[]).unwrap()[0],
        addresses(&["10.77.0.4"])[0]
    );
}

#[test]
fn concurrent_assignments_of_both_are_distinct() {
    let network = SharedNetwork::new(["10.77.0.0/24", "fd77::/64"]);
    let found: Vec<IpAddr> = thread::scope(|scope| {
        let network = &network;
        let workers: Vec<_> = (0..6)
            .map(|worker| {
                scope.spawn(move || {
                    let mut found = Vec::new();
                    for number in 0..5 {
                        let id = format!("w{worker}-{number}");
                        found.extend(if worker % 2 == 0 {
                            network.add(&id, &[]).unwrap()
                        } else {
                            network.assign(&id, &[]).unwrap()
                        });
                    }
                    found
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    let distinct: BTreeSet<IpAddr> = found.iter().copied().collect();
    assert_eq!((found.len(), distinct.len()), (60, 60));
    assert_eq!(network.in_use(), distinct.into_iter().collect::<Vec<_>>());
}
