//! Attaches containers to a bridge of this node, as the CNI plugins bridge, host-local, portmap and bandwidth would, without running a program.
//!
//! ```text
//! attach   address of host-local's directory ─► pair of devices, bandwidth ─► addresses, routes inside ─► published ports
//! detach   published ports ─► host's end down ─► address
//! restore  elements of all known attachments ─► tables
//! ```
//!
//! The caller keeps records: it writes down that a container will be attached before it calls [`BridgeDriver::attach`], and what it got
//! afterwards. With or without the second part [`BridgeDriver::detach`] undoes it, since the names of devices follow from the holder, and the
//! holder is in the files of its addresses. What no record names is removed by [`BridgeDriver::restore`] and [`BridgeDriver::sweep`].
//!
//! Invariants:
//! - A published port leads to a container only while the container has its address: ports are withdrawn, and the host's end is down, before
//!   an address is released.
//! - The bridge's own hardware address does not change, so that containers know it for good.
//! - Attachments that plugins have made on the same bridge stay as they are.
//! - No container gets an address while connections of its last owner may still be led to it.
//!
//! All calls block: an attachment takes about a millisecond, in which others wait. The kernel has one lock for all links, so several threads
//! would only wait there.

mod attachment;
mod bridge;
mod container;
mod elements;
mod error;
mod flows;
mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use parking_lot::Mutex;
use switchyard_crash_points::{CrashPoint, reach};

use crate::addresses::{AddressPool, AssignedAddress, Holder, RangeSet};
use crate::netlink::{
    Family, IpFamily, IpPrefix, Link, LinkName, LinkRef, Socket, delete_link, delete_neighbour,
    find_link, is_forwarding, list_links, set_down,
};
use crate::nft::{Element, ElementChange, Flows, NftFamily, NftTables, Repair, TableName};
use container::forwarding_port;
use elements::{flows_of_ended, flows_of_new, is_of_port, of_ports, port_elements};
use flows::PastFlows;
use names::{group_of, host_link, ifb_link};

pub use attachment::{
    AttachRequest, Attached, Attachment, BridgeSettings, LimitBits, Limits, PublishedPort,
};
pub use error::DriverError;

/// Attaches containers to one bridge of the network namespace of its callers. Costs nothing before it is used.
#[derive(Debug)]
pub struct BridgeDriver {
    settings: BridgeSettings,
    pool: AddressPool,
    /// The addresses of the bridge.
    gateways: Vec<IpPrefix>,
    /// The families of its subnets, which have a table each.
    families: Vec<NftFamily>,
    /// The elements that the bridge itself has.
    own_elements: BTreeSet<Element>,
    /// The group of all its links.
    group: u32,
    /// It is waited for only on blocking threads.
    state: Mutex<State>,
    /// Connections that are to be removed.
    past: PastFlows,
}

/// What one thread at a time works with.
#[derive(Debug, Default)]
struct State {
    kernel: Option<Kernel>,
    /// The index of the bridge whose settings were made by this process.
    bridge: Option<u32>,
    /// The elements of each attachment, by the host's end.
    attachments: BTreeMap<LinkName, BTreeSet<Element>>,
    /// Whether the attachments of all former processes are among them: until then no published port is taken for one that a kill has left.
    knows_all: bool,
}

/// Sockets in the network namespace of the node.
#[derive(Debug)]
struct Kernel {
    route: Socket,
    tables: NftTables,
}

// === impl Kernel ===

impl Kernel {
    fn open(table: &TableName) -> Result<Self, DriverError> {
        Ok(Self {
            route: Socket::open(Family::Route)?,
            tables: NftTables::open(table.clone())?,
        })
    }
}

// === impl State ===

impl State {
    /// The sockets, opened by the first call.
    fn kernel(&mut self, table: &TableName) -> Result<&mut Kernel, DriverError> {
        match &mut self.kernel {
            Some(kernel) => Ok(kernel),
            none => Ok(none.insert(Kernel::open(table)?)),
        }
    }
}

// === impl BridgeDriver ===

impl BridgeDriver {
    /// The driver of a bridge. Nothing is read or made.
    ///
    /// # Errors
    /// [`DriverError::Addresses`] or [`DriverError::Rules`] if a value of the settings is impossible.
    pub fn new(settings: BridgeSettings) -> Result<Self, DriverError> {
        let ranges = settings.ranges()?;
        let gateways = settings.subnets.iter().zip(&ranges);
        let gateways = gateways.map(|(subnet, range)| {
            IpPrefix::new(range.gateway(), subnet.prefix()).map_err(DriverError::from)
        });
        let gateways: Vec<_> = gateways.collect::<Result<_, _>>()?;
        let of = |family: &NftFamily| {
            let mut addresses = gateways.iter().map(|gateway| gateway.address());
            addresses.any(|address| NftFamily::of(&address) == *family)
        };
        let families = NftFamily::ALL.into_iter().filter(of).collect();
        let sets = ranges.into_iter().map(|range| RangeSet::new(vec![range]));
        let pool = AddressPool::new(
            &settings.addresses_dir,
            settings.name.as_str(),
            sets.collect::<Result<_, _>>()?,
        )?;
        Ok(Self {
            own_elements: settings.elements()?,
            group: group_of(&settings.table),
            pool,
            gateways,
            families,
            state: Mutex::default(),
            past: PastFlows::default(),
            settings,
        })
    }

    /// The name of its tables.
    #[must_use]
    pub const fn table(&self) -> &TableName {
        &self.settings.table
    }

    /// The port id of the socket by which it changes tables, if it has one: [`crate::nft::NftMonitor::read`] needs it.
    #[must_use]
    pub fn socket_port(&self) -> Option<u32> {
        let state = self.state.lock();
        state.kernel.as_ref().map(|kernel| kernel.tables.port())
    }

    /// Looks whether the kernel can do all that containers need, limits of bandwidth aside. Changes nothing, but the kernel may load modules,
    /// which takes some 100 ms, once. Blocks.
    ///
    /// # Errors
    /// [`DriverError::Rules`], [`DriverError::Links`]: what the kernel cannot do.
    pub fn probe(&self) -> Result<(), DriverError> {
        bridge::probe_links()?;
        if self.families.contains(&NftFamily::Ip6) {
            is_forwarding(IpFamily::V6)?;
        }
        let mut state = self.state.lock();
        let kernel = state.kernel(&self.settings.table)?;
        for family in &self.families {
            kernel.tables.probe(*family)?;
        }
        Ok(())
    }

    /// Takes over attachments that former processes have made: their published ports stay at the next [`BridgeDriver::restore`]. One whose
    /// host's end is gone or down was cut off, before it was complete or after its ports were withdrawn: it has none. If the devices cannot be
    /// listed, which is logged, each counts as complete. `all` says whether these are all that there may be on record; until then, no port is
    /// withdrawn that belongs to no known attachment. May be repeated. Blocks.
    pub fn adopt(&self, attachments: &[Attachment], all: bool) {
        let mut state = self.state.lock();
        let up = self.links_that_are_up(&mut state);
        if let Err(error) = &up {
            tracing::warn!(
                error = switchyard_linux::report(error),
                "cannot list network devices: all ports of containers on record stay published"
            );
        }
        for attachment in attachments {
            let host = host_link(&self.settings.table, &attachment.holder);
            let is_up = up.as_ref().map_or(true, |up| up.contains(host.as_str()));
            let addresses = attachment.addresses.as_deref().filter(|_| is_up);
            let elements = port_elements(&attachment.ports, addresses.unwrap_or_default());
            state.attachments.entry(host).or_insert(elements);
        }
        state.knows_all |= all;
    }

    fn links_that_are_up(&self, state: &mut State) -> Result<BTreeSet<String>, DriverError> {
        let links = list_links(&mut state.kernel(&self.settings.table)?.route)?;
        let up = links.into_iter().filter(|link| link.is_up);
        Ok(up.map(|link| link.name).collect())
    }

    /// Makes the tables what the known attachments need: adds what is missing, and removes what else is in them. Returns what was done in
    /// each family. Does nothing if nobody needs them: if the bridge is not used by this driver and no attachment is known. Blocks.
    ///
    /// # Errors
    /// [`DriverError::Rules`].
    pub fn restore(&self) -> Result<Vec<(NftFamily, Repair)>, DriverError> {
        self.restore_locked(&mut self.state.lock())
    }

    fn restore_locked(&self, state: &mut State) -> Result<Vec<(NftFamily, Repair)>, DriverError> {
        if !self.settings.is_used && state.attachments.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: BTreeSet<Element> = state
            .attachments
            .values()
            .flatten()
            .chain(&self.own_elements)
            .cloned()
            .collect();
        let knows_all = state.knows_all;
        let kernel = state.kernel(&self.settings.table)?;
        let mut repairs = Vec::new();
        for family in &self.families {
            let wanted = wanted.iter().filter(|element| element.fits(*family));
            let mut wanted: BTreeSet<Element> = wanted.cloned().collect();
            if !knows_all && let Some(found) = kernel.tables.read(*family)? {
                let ports = found.elements().iter();
                wanted.extend(ports.filter(|element| is_of_port(element)).cloned());
            }
            repairs.push((*family, kernel.tables.restore(*family, &wanted)?));
        }
        Ok(repairs)
    }

    /// Deletes the links of this bridge that belong to no known attachment, and returns how many there were: none, until all attachments of
    /// former processes are known. A kill leaves such links if their namespace goes on to exist. Blocks, some 30 ms for each.
    ///
    /// # Errors
    /// [`DriverError::Links`].
    pub fn sweep(&self) -> Result<usize, DriverError> {
        let mut swept = 0;
        // Others attach between two deletions.
        while self.sweep_one(&mut self.state.lock())? {
            swept += 1;
        }
        Ok(swept)
    }

    fn sweep_one(&self, state: &mut State) -> Result<bool, DriverError> {
        if !state.knows_all {
            return Ok(false);
        }
        let known: BTreeSet<String> = state
            .attachments
            .keys()
            .flat_map(|host| [host.as_str().to_owned(), ifb_link(host).as_str().to_owned()])
            .collect();
        let kernel = state.kernel(&self.settings.table)?;
        let links = list_links(&mut kernel.route)?;
        let is_left = |link: &&Link| link.group == self.group && !known.contains(&link.name);
        let Some(left) = links.iter().find(is_left) else {
            return Ok(false);
        };
        let delete = delete_link(&LinkRef::Index(left.index));
        kernel.route.run_one(&delete)?;
        Ok(true)
    }

    /// Attaches a container: gives it addresses, connects it, and publishes its ports. When this returns, packets pass.
    ///
    /// A failure is undone before this returns. A kill leaves what [`BridgeDriver::detach`] undoes, which has to be called before the holder is
    /// attached again: devices of before are replaced, but the holder keeps addresses that are not requested again. A call that has begun
    /// continues to its end, also if nobody waits for it. Blocks.
    ///
    /// # Errors
    /// [`DriverError::Addresses`] if there are no addresses, or not the requested ones; [`DriverError::NoBridge`],
    /// [`DriverError::PortTaken`], [`DriverError::Links`], [`DriverError::Rules`]; [`DriverError::NotUndone`] if something of it is left.
    pub fn attach(&self, request: &AttachRequest) -> Result<Attached, DriverError> {
        let assigned = self.pool.assign(&request.holder, &request.addresses)?;
        reach(CrashPoint::AddressesAssigned);
        let addresses: Vec<_> = assigned.iter().map(|one| one.address).collect();
        self.past.remove_before(&addresses);
        match self.connect(request, assigned) {
            Ok(attached) => {
                self.past.add(flows_of_new(&request.ports));
                Ok(attached)
            }
            Err(error) => Err(self.undone(request, addresses, error)),
        }
    }

    /// Undoes an attachment that failed, and returns the error.
    fn undone(
        &self,
        request: &AttachRequest,
        addresses: Vec<IpAddr>,
        error: DriverError,
    ) -> DriverError {
        let attachment = Attachment {
            holder: request.holder.clone(),
            addresses: Some(addresses),
            ports: request.ports.clone(),
        };
        match self.end(&attachment, true) {
            Ok(()) => error,
            Err(undo) => DriverError::NotUndone {
                source: Box::new(error),
                undo: Box::new(undo),
            },
        }
    }

    fn connect(
        &self,
        request: &AttachRequest,
        assigned: Vec<AssignedAddress>,
    ) -> Result<Attached, DriverError> {
        let addresses: Vec<_> = assigned.iter().map(|one| one.address).collect();
        let host = host_link(&self.settings.table, &request.holder);
        let mut state = self.state.lock();
        // Before there is anything of it, so that it is never taken for something that a kill has left.
        let replaced = state.attachments.insert(host.clone(), BTreeSet::new());
        self.withdraw(&mut state, &replaced.unwrap_or_default())?;
        let bridge = self.ready_bridge(&mut state)?;
        let mac = self.connect_links(&mut state, request, &bridge, &assigned)?;
        self.publish(&mut state, &host, &request.ports, &addresses)?;
        reach(CrashPoint::PortsPublished);
        drop(state);
        let host_end = forwarding_port(&host)?;
        Ok(Attached {
            host_mac: host_end.mac.unwrap_or(bridge.mac),
            host_link: host,
            bridge_mac: bridge.mac,
            mac,
            addresses: assigned,
        })
    }

    /// Lets the ports of the node lead to a container. Without ports, the table is not looked at.
    fn publish(
        &self,
        state: &mut State,
        host: &LinkName,
        ports: &[PublishedPort],
        addresses: &[IpAddr],
    ) -> Result<(), DriverError> {
        let elements = port_elements(ports, addresses);
        if elements.is_empty() {
            return Ok(());
        }
        let changes = self.changes(&elements, true);
        let kernel = state.kernel(&self.settings.table)?;
        match kernel.tables.change(&changes) {
            Err(error) if error.is_missing() => {
                // Others have deleted the table, and the daemon has not noticed it yet.
                state.attachments.insert(host.clone(), elements);
                let restored = self.restore_locked(state);
                restored.map_err(|error| of_ports(error, ports))?;
            }
            Err(error) => return Err(of_ports(error.into(), ports)),
            Ok(()) => {
                state.attachments.insert(host.clone(), elements);
            }
        }
        Ok(())
    }

    /// Detaches a container: when this returns, its ports lead nowhere, and its addresses may be assigned again. The pair of devices goes
    /// with the namespace of the container. Idempotent. Blocks.
    ///
    /// # Errors
    /// [`DriverError::Rules`], [`DriverError::Links`], [`DriverError::Addresses`]: call it again.
    pub fn detach(&self, attachment: &Attachment) -> Result<(), DriverError> {
        self.end(attachment, false)
    }

    /// Detaches a container. If its namespace stays, and may be attached again, its pair of devices is deleted.
    fn end(&self, attachment: &Attachment, deletes_link: bool) -> Result<(), DriverError> {
        let Attachment {
            holder,
            addresses,
            ports,
        } = attachment;
        let Some(addresses) = addresses else {
            // A kill came before they were on record. They are released last, as all else.
            let held = self.pool.reservations()?.into_iter();
            let held = held.filter(|one| one.holder.belongs_to(holder));
            let held: Vec<IpAddr> = held.map(|one| one.address).collect();
            self.disconnect(holder, &held, ports, deletes_link)?;
            self.past.add(held.into_iter().map(Flows::Of).collect());
            self.pool.release_all(holder)?;
            reach(CrashPoint::AddressesReleased);
            return Ok(());
        };
        self.disconnect(holder, addresses, ports, deletes_link)?;
        self.pool.release(holder, addresses)?;
        reach(CrashPoint::AddressesReleased);
        Ok(())
    }

    /// Removes connections of UDP and SCTP that go on as they began: those from before their port was published, and those to containers that
    /// are detached. Call it behind the answer to each attachment and detachment, once for several. An attachment that gets an address to
    /// which such connections lead does it first.
    ///
    /// The kernel looks at all its buckets of connections for it, which takes milliseconds also if there are few. Blocks. A kernel that does not list connections keeps
    /// them until they have been silent for some minutes, which is logged once.
    pub fn forget_past_flows(&self) {
        self.past.remove();
    }

    /// Withdraws ports, and sets the host's end down or deletes it.
    fn disconnect(
        &self,
        holder: &Holder,
        addresses: &[IpAddr],
        ports: &[PublishedPort],
        deletes_link: bool,
    ) -> Result<(), DriverError> {
        let host = host_link(&self.settings.table, holder);
        let mut elements = port_elements(ports, addresses);
        let mut state = self.state.lock();
        // From now on no repair publishes its ports again.
        let known = state.attachments.insert(host.clone(), BTreeSet::new());
        elements.extend(known.unwrap_or_default());
        self.withdraw(&mut state, &elements)?;
        reach(CrashPoint::PortsWithdrawn);
        let kernel = state.kernel(&self.settings.table)?;
        let bridge = find_link(&mut kernel.route, &self.settings.name.clone().into())?;
        let forget = |bridge: &Link| {
            let forget = |address: &IpAddr| delete_neighbour(bridge.index, *address);
            addresses.iter().map(forget).collect::<Vec<_>>()
        };
        let mut requests = bridge.as_ref().map(forget).unwrap_or_default();
        let host_end = LinkRef::Name(host.clone());
        requests.push(if deletes_link {
            delete_link(&host_end)
        } else {
            set_down(&host_end)
        });
        requests.push(delete_link(&ifb_link(&host).into()));
        kernel.route.run(&requests)?;
        reach(CrashPoint::HostEndDown);
        state.attachments.remove(&host);
        drop(state);
        self.past.add(flows_of_ended(&elements));
        Ok(())
    }

    /// Removes the elements of ports.
    fn withdraw(&self, state: &mut State, elements: &BTreeSet<Element>) -> Result<(), DriverError> {
        if elements.is_empty() {
            return Ok(());
        }
        let changes = self.changes(elements, false);
        match state.kernel(&self.settings.table)?.tables.change(&changes) {
            Err(error) if error.is_missing() => Ok(()),
            done => Ok(done?),
        }
    }

    /// The changes that add or remove elements, each in the tables where it belongs.
    fn changes(&self, elements: &BTreeSet<Element>, add: bool) -> Vec<ElementChange> {
        let of = |element: &Element| {
            let fitting = self.families.iter().copied();
            let fitting = fitting.filter(|family| element.fits(*family));
            let change = |family| ElementChange {
                family,
                add,
                element: element.clone(),
            };
            fitting.map(change).collect::<Vec<_>>()
        };
        elements.iter().flat_map(of).collect()
    }
}
