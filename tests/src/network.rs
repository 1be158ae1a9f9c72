//! The bridge networks of a test, the node's and the gateway's: subnet, CNI configuration, and removal of all
//! traces.

use std::fs;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use self::packet_rules::{PacketRules, clear_forward_rules, clear_rules, rules};
use self::tables::{clear_accepts, devices, remove_tables};
use crate::{host, prereq};

mod held;
mod packet_rules;
mod tables;

pub use held::port_rules;
pub use tables::elements_of_sandboxes;

/// The directory of the node's network below that of a test.
pub const NODE_DIR: &str = "cni";
/// The directory of [`TestNetwork::of_gateway`] below that of a test.
pub const GATEWAY_DIR: &str = "bridge";
/// Time for the kernel to end a network namespace, and for others to leave the packet filters alone, on a busy machine.
const END_LIMIT: Duration = Duration::from_secs(10);
/// The file that records the common prefix of all addresses of a network.
const SUBNET_FILE: &str = "addresses-begin";

/// A network that no other test on this machine uses.
#[derive(Debug)]
pub struct TestNetwork {
    name: String,
    bridge: String,
    subnet: [u8; 3],
    data_dir: PathBuf,
    /// A reservation of the subnet against other tests: the kernel releases it when this process exits.
    _reservation: UnixListener,
}

impl TestNetwork {
    /// The node's network. Chooses a free subnet of `10.200.0.0` to `10.250.255.0`. Addresses are allocated
    /// below `dir`, to which it writes what has to be removed after a killed run.
    ///
    /// # Panics
    /// When no free subnet is found in a hundred attempts, or `dir` cannot be written.
    #[must_use]
    pub fn new(digits: &str, dir: &Path) -> Self {
        Self::with_names(name(digits), bridge(digits), dir)
    }

    /// The gateway's own network, chosen in the same way.
    ///
    /// # Panics
    /// As [`TestNetwork::new`].
    #[must_use]
    pub fn of_gateway(digits: &str, dir: &Path) -> Self {
        Self::with_names(gateway_bridge(digits), gateway_bridge(digits), dir)
    }

    fn with_names(name: String, bridge: String, dir: &Path) -> Self {
        let routes = routes();
        for _ in 0..100 {
            let [a, b] = host::random_bytes();
            let subnet = [10, 200 + a % 51, b];
            let mask = |route: &(u32, u32)| {
                u32::from_be_bytes([subnet[0], subnet[1], subnet[2], 0]) & route.1 == route.0
            };
            if routes.iter().any(mask) {
                continue;
            }
            if let Some(reservation) = reserve(&prefix_of(subnet)) {
                let network = Self {
                    name,
                    bridge,
                    subnet,
                    data_dir: dir.join("ipam"),
                    _reservation: reservation,
                };
                fs::create_dir_all(dir).expect("the directory of a test can be written");
                fs::write(dir.join(SUBNET_FILE), network.address_prefix())
                    .expect("the directory was just made");
                return network;
            }
        }
        panic!("no free subnet in 10.200.0.0 to 10.250.255.0");
    }

    /// The name of the network in its CNI configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the bridge, at most 12 bytes.
    #[must_use]
    pub fn bridge(&self) -> &str {
        &self.bridge
    }

    /// Returns the directory in which its addresses are allocated.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The subnet, for example `10.213.7.0/24`.
    #[must_use]
    pub fn subnet(&self) -> String {
        format!("{}/24", self.address(0))
    }

    /// The address of the bridge.
    #[must_use]
    pub fn gateway(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// Returns whether the address is one of the subnet.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        address.octets()[..3] == self.subnet
    }

    /// Writes the configuration list into `conf_dir`: bridge, port mappings, bandwidth; IPv6 beside IPv4 if
    /// asked for.
    ///
    /// # Panics
    /// When the directory cannot be written.
    pub fn write_conflist(&self, conf_dir: &Path, dual_stack: bool) {
        let mut ranges = vec![json!([{ "subnet": self.subnet() }])];
        let mut routes = vec![json!({ "dst": "0.0.0.0/0" })];
        if dual_stack {
            ranges
                .push(json!([{ "subnet": format!("fd00:{:x}:{:x}::/64", self.subnet[1], self.subnet[2]) }]));
            routes.push(json!({ "dst": "::/0" }));
        }
        let list = json!({
            "cniVersion": "1.0.0", "name": self.name(), "plugins": [
                { "type": "bridge", "bridge": self.bridge(), "isGateway": true, "ipMasq": true, "hairpinMode": true,
                  "ipam": { "type": "host-local", "dataDir": self.data_dir, "ranges": ranges, "routes": routes } },
                { "type": "portmap", "capabilities": { "portMappings": true } },
                { "type": "bandwidth", "capabilities": { "bandwidth": true } },
            ],
        });
        fs::create_dir_all(conf_dir).expect("the directory of a test can be written");
        fs::write(conf_dir.join("10-test.conflist"), format!("{list:#}\n"))
            .expect("the directory was just made");
    }

    /// The parts of this network that are still in use: leased addresses, interfaces at the bridge, packet
    /// rules.
    #[must_use]
    pub fn in_use(&self) -> Vec<String> {
        in_use(&[self])
    }

    fn collect_in_use(&self, v4: &PacketRules, v6: &PacketRules, found: &mut Vec<String>) {
        // Also those of a bridge of pods, which has addresses beside those of the gateway's own.
        let networks = fs::read_dir(&self.data_dir).into_iter().flatten().flatten();
        let files = networks.flat_map(|network| fs::read_dir(network.path()).into_iter().flatten());
        for entry in files.flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if file != "lock" && !file.starts_with("last_reserved_ip") {
                let holder = fs::read_to_string(entry.path()).unwrap_or_default();
                found.push(format!(
                    "address {file} leased to {}",
                    holder.lines().next().unwrap_or_default()
                ));
            }
        }
        let ports = Path::new("/sys/class/net").join(self.bridge()).join("brif");
        for entry in fs::read_dir(ports).into_iter().flatten().flatten() {
            let port = entry.file_name().to_string_lossy().into_owned();
            if !is_ending(&port) {
                found.push(format!("interface {port} at {}", self.bridge()));
            }
        }
        let devices = devices(self.bridge()).into_iter();
        found.extend(
            devices
                .filter(|device| !is_ending(device))
                .map(|device| format!("interface {device} of the daemon with {}", self.bridge())),
        );
        let prefix = self.address_prefix();
        let passes = v4.accepting(&prefix);
        found.extend(
            v4.marked(&self.marks())
                .chain(passes)
                .map(|rule| format!("iptables rule {rule}")),
        );
        found.extend(
            v6.marked(&self.marks())
                .map(|rule| format!("ip6tables rule {rule}")),
        );
        found.extend(self.elements());
    }

    /// An address of the subnet that no sandbox of a test gets.
    #[must_use]
    pub fn spare(&self) -> Ipv4Addr {
        self.address(250)
    }

    /// The names by which plugins mark rules: its own, and that of its bridge, of which the gateway makes a network of pods.
    fn marks(&self) -> [&str; 2] {
        [self.name(), self.bridge()]
    }

    /// The common prefix of all its addresses.
    fn address_prefix(&self) -> String {
        prefix_of(self.subnet)
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(self.subnet[0], self.subnet[1], self.subnet[2], host)
    }
}

/// The common prefix of all addresses of a subnet.
fn prefix_of([a, b, c]: [u8; 3]) -> String {
    format!("{a}.{b}.{c}.")
}

/// Reserves the subnet with this prefix against other tests, until the result is dropped; `None` if one of them has it.
fn reserve(prefix: &str) -> Option<UnixListener> {
    let (_, rest) = prefix.trim_end_matches('.').split_once('.')?;
    let lock = format!("switchyard-tests-subnet-{}", rest.replace('.', "-"));
    let address = SocketAddr::from_abstract_name(lock).ok()?;
    UnixListener::bind_addr(&address).ok()
}

/// Says what a clean-up cannot look at or change, which is no fault of the test.
#[expect(
    clippy::print_stderr,
    reason = "the test harness shows this output with a failed test"
)]
fn tell(what: &str) {
    eprintln!("clean-up: {what}");
}

/// Removes the bridges, their ports and the packet rules of the networks with these digits, of the test that
/// has its files at `path`; returns what of it is left.
#[must_use]
pub fn clear(path: &Path, digits: &str) -> Vec<String> {
    let gateway = gateway_bridge(digits);
    for device in devices(&gateway) {
        delete_link(&device);
    }
    let mut left: Vec<String> = devices(&gateway)
        .iter()
        .map(|device| format!("interface {device}"))
        .collect();
    left.extend(clear_network(&name(digits), &bridge(digits)));
    left.extend(clear_network(&gateway, &gateway));
    let beginning = |dir: &str| fs::read_to_string(path.join(dir).join(SUBNET_FILE)).ok();
    let beginnings: Vec<String> = [NODE_DIR, GATEWAY_DIR]
        .into_iter()
        .filter_map(beginning)
        .collect();
    if !beginnings.is_empty() {
        left.extend(clear_accepts(&gateway));
        left.extend(clear_forward_rules(&beginnings));
    }
    left
}

/// Returns whether an interface is down, as the daemon leaves that of a sandbox which it has detached, and goes with the namespace, which the
/// kernel ends in its own time.
fn is_ending(interface: &str) -> bool {
    let interface = Path::new("/sys/class/net").join(interface);
    let flags = fs::read_to_string(interface.join("flags")).unwrap_or_default();
    let flags = flags.trim().trim_start_matches("0x");
    let is_up = u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    !is_up && host::eventually(END_LIMIT, || !interface.exists())
}

fn clear_network(name: &str, bridge: &str) -> Vec<String> {
    let mut left = Vec::new();
    if let Err(error) = remove_tables(bridge) {
        left.push(format!("nftables of {bridge}: {error}"));
    }
    let device = Path::new("/sys/class/net").join(bridge);
    if device.exists() {
        for port in fs::read_dir(device.join("brif"))
            .into_iter()
            .flatten()
            .flatten()
        {
            delete_link(&port.file_name().to_string_lossy());
        }
        delete_link(bridge);
        if device.exists() {
            left.push(format!("bridge {bridge}"));
        }
    }
    for program in ["iptables", "ip6tables"] {
        let marks = [name, bridge];
        clear_rules(program, &marks);
        left.extend(
            rules(program, &marks)
                .into_iter()
                .map(|rule| format!("{program} rule {rule}")),
        );
    }
    left
}

fn name(digits: &str) -> String {
    format!("swtnet-{digits}")
}

fn bridge(digits: &str) -> String {
    format!("swt{digits}")
}

fn gateway_bridge(digits: &str) -> String {
    format!("swtb{digits}")
}

/// Lists the objects of these networks that are still in use, as [`TestNetwork::in_use`] does.
#[must_use]
pub fn in_use(networks: &[&TestNetwork]) -> Vec<String> {
    let v4 = PacketRules::read("iptables");
    let v6 = PacketRules::read("ip6tables");
    let mut found = Vec::new();
    for network in networks {
        network.collect_in_use(&v4, &v6, &mut found);
    }
    found
}

fn delete_link(link: &str) {
    // A veth is removed with its namespace, possibly at this moment; remaining ones are reported below.
    let ip = prereq::require("ip", "iproute2");
    let _ = Command::new(ip)
        .args(["link", "delete", link])
        .stderr(Stdio::null())
        .status();
}

/// The destinations and masks of the IPv4 routes, save the default one.
fn routes() -> Vec<(u32, u32)> {
    let table = fs::read_to_string("/proc/net/route").unwrap_or_default();
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // The kernel prints the bytes of the address as one number of the machine's own order.
            let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
            Some((number(fields.get(1)?)?, number(fields.get(7)?)?))
        })
        .filter(|(_, mask)| *mask != 0)
        .collect()
}
