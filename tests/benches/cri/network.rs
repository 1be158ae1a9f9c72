//! Attaching and detaching alone: the driver that the daemon has for its own bridge, beside the plugins of the same bridge's configuration.
//!
//! Both give a new network namespace an address and publish a port of 127.0.0.1, for TCP and UDP. Their bridges and addresses differ.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use switchyard_core::spec::Subnet;
use switchyard_network::addresses::Holder;
use switchyard_network::driver::{
    AttachRequest, Attached, Attachment, BridgeDriver, BridgeSettings, BridgeTables, Limits,
    PublishedPort,
};
use switchyard_network::netlink::LinkName;
use switchyard_network::nft::{Element, ElementChange, NftFamily, NftTables, TableName, Transport};

use crate::bridges::delete_bridge;
use crate::failure::Failure;
use crate::pair::Pair;
use crate::report::{Report, progress};
use crate::row::{Goal, Row};
use crate::tasks::cni::{Cni, make_namespace};
use crate::test_bed::TestBed;

/// The bridge of the driver, and its subnet, which must be free on the node.
const BRIDGE: &str = "swbench0";
const SUBNET: &str = "10.254.192.0/20";
/// Ports that other containers have published when one more is measured.
const OTHER_PORTS: u16 = 1000;
/// Ports of a task with many.
const MANY_PORTS: u16 = 400;
/// The first of them on the node. 127.0.0.9 keeps them away from programs of the node.
const FIRST_PORT: u16 = 20_000;
const PORT_IN_CONTAINER: u16 = 80;
/// Attachments before the first measured one: kernel modules are loaded, and the bridges are made.
const WARM_UP: u32 = 3;

/// The driver, on a bridge that goes with it.
struct OwnBridge {
    driver: BridgeDriver,
    tables: Arc<BridgeTables>,
    table: TableName,
    dir: PathBuf,
}

/// A network namespace that a file holds.
struct Namespace {
    path: PathBuf,
}

/// The times of one attachment and of its end.
struct Round {
    attach: Duration,
    detach: Duration,
}

/// Measures all of it. Blocks.
pub(crate) fn measure(stand: &TestBed, count: u32, report: &mut Report) -> Result<(), Failure> {
    let cni = Cni::of(&stand.root, None)?;
    let dir = stand.root.path().join("network-bench");
    fs::create_dir_all(&dir)?;
    let own = OwnBridge::new(&dir)?;
    let mut attached = Vec::new();
    let mut detached = Vec::new();
    for round in 0..WARM_UP + count {
        let theirs = of_plugins(&cni, &dir, round)?;
        let ours = own.round(&format!("ours-{round}"), &published(1))?;
        if round >= WARM_UP {
            attached.push(Pair {
                theirs: theirs.attach,
                ours: ours.attach,
            });
            detached.push(Pair {
                theirs: theirs.detach,
                ours: ours.detach,
            });
            progress("attachments", round + 1 - WARM_UP, count);
        }
    }
    let many = own.round("many", &published(MANY_PORTS))?;
    let rows = vec![
        Row::times("attach, one port", attached).goal(Goal::OursAtMost(3.0)),
        Row::times("detach, until the answer", detached).goal(Goal::OursAtMost(1.0)),
        Row::ours("attach, 400 ports", "ms", [milliseconds(many.attach)])
            .goal(Goal::OursAtMost(200.0)),
        Row::ours(
            "one more port beside 1,000",
            "ms",
            own.one_more_port(count)?,
        )
        .goal(Goal::OursAtMost(0.2)),
    ];
    report.section("network of a container alone", rows, String::new());
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// TCP and UDP ports of an address that nothing else uses.
fn published(count: u16) -> Vec<PublishedPort> {
    (0..count)
        .flat_map(|index| {
            [Transport::Tcp, Transport::Udp].map(|protocol| PublishedPort {
                protocol,
                at: Some([127, 0, 0, 9].into()),
                port: FIRST_PORT + index,
                to_port: PORT_IN_CONTAINER,
            })
        })
        .collect()
}

fn of_plugins(cni: &Cni, dir: &Path, round: u32) -> Result<Round, Failure> {
    let id = format!("theirs-{round}");
    let namespace = Namespace::new(dir, &id)?;
    let begun = Instant::now();
    let result = cni.add(&id, &namespace.path, FIRST_PORT)?;
    let attach = begun.elapsed();
    let begun = Instant::now();
    cni.del(&id, &namespace.path, FIRST_PORT, &result)?;
    let detach = begun.elapsed();
    Ok(Round { attach, detach })
}

// === impl OwnBridge ===

impl OwnBridge {
    fn new(dir: &Path) -> Result<Self, Failure> {
        let table = TableName::of_instance("bench")?;
        let settings = BridgeSettings {
            name: LinkName::new(BRIDGE)?,
            subnets: vec![SUBNET.parse::<Subnet>()?.into()],
            is_gateway: true,
            has_masquerade: true,
            mtu: None,
            addresses_dir: dir.join("addresses"),
            owner: String::new(),
            direct_routing: true,
        };
        let tables = Arc::new(BridgeTables::new(table.clone()));
        let driver = BridgeDriver::new(settings, Arc::clone(&tables))?;
        Ok(Self {
            driver,
            tables,
            table,
            dir: dir.to_owned(),
        })
    }

    fn attach(
        &self,
        id: &str,
        ports: &[PublishedPort],
        namespace: &Namespace,
    ) -> Result<Attached, Failure> {
        let request = AttachRequest {
            holder: Holder::new(id, "eth0")?,
            netns: namespace.path.clone(),
            mac: None,
            addresses: Vec::new(),
            ports: ports.to_vec(),
            limits: Limits::default(),
            is_pinned: true,
        };
        Ok(self.driver.attach(&request)?)
    }

    fn round(&self, id: &str, ports: &[PublishedPort]) -> Result<Round, Failure> {
        let namespace = Namespace::new(&self.dir, id)?;
        let begun = Instant::now();
        let attached = self.attach(id, ports, &namespace)?;
        let attach = begun.elapsed();
        let attachment = Attachment {
            holder: Holder::new(id, "eth0")?,
            addresses: Some(attached.addresses.iter().map(|one| one.address).collect()),
            ports: ports.to_vec(),
            pin: Some(attached.mac),
        };
        let begun = Instant::now();
        self.driver.detach(&attachment)?;
        let detach = begun.elapsed();
        // As the daemon does behind its answer: the next container has the same port of UDP, and would wait for it.
        self.tables.forget_past_flows();
        Ok(Round { attach, detach })
    }

    /// Measures how much longer an attachment takes for one port, beside many of others: the difference of two attachments would be less
    /// than their noise, so the port alone is measured, as the driver publishes it.
    fn one_more_port(&self, count: u32) -> Result<Vec<f64>, Failure> {
        let namespace = Namespace::new(&self.dir, "others")?;
        let others = published(OTHER_PORTS / 2);
        let attached = self.attach("others", &others, &namespace)?;
        let to = attached
            .addresses
            .first()
            .ok_or("it has an address")?
            .address;
        let mut tables = NftTables::open(self.table.clone())?;
        let mut samples = Vec::new();
        for port in 0..u16::try_from(count)? {
            let change = |add| ElementChange {
                family: NftFamily::Ip4,
                add,
                element: Element::Port {
                    at: Some([127, 0, 0, 8].into()),
                    protocol: Transport::Tcp,
                    port: FIRST_PORT + port,
                    to,
                    to_port: PORT_IN_CONTAINER,
                },
            };
            let begun = Instant::now();
            tables.change(&[change(true)])?;
            samples.push(milliseconds(begun.elapsed()));
            tables.change(&[change(false)])?;
        }
        let attachment = Attachment {
            holder: Holder::new("others", "eth0")?,
            addresses: Some(vec![to]),
            ports: others,
            pin: Some(attached.mac),
        };
        self.driver.detach(&attachment)?;
        Ok(samples)
    }
}

impl Drop for OwnBridge {
    fn drop(&mut self) {
        let mut families = NftFamily::TABLES.into_iter();
        let removed = NftTables::open(self.table.clone())
            .and_then(|mut tables| families.try_for_each(|family| tables.remove(family)));
        if let Err(error) = removed {
            eprintln!("the table of the benchmark stays: {error}");
        }
        delete_bridge(BRIDGE);
    }
}

// === impl Namespace ===

impl Namespace {
    fn new(dir: &Path, name: &str) -> Result<Self, Failure> {
        let path = dir.join(name);
        make_namespace(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let gone = umount2(&self.path, MntFlags::MNT_DETACH)
            .map_err(Failure::from)
            .and_then(|()| Ok(fs::remove_file(&self.path)?));
        if let Err(error) = gone {
            eprintln!(
                "a network namespace stays at {}: {error}",
                self.path.display()
            );
        }
    }
}
