//! Attaches containers to a bridge of this node, as the CNI plugins bridge, host-local, portmap and bandwidth would, without running a program.
//!
//! ```text
//! attach   address of host-local's directory ─► pair of devices, bandwidth ─► addresses, routes inside ─► published ports, pins
//! detach   published ports, pins ─► host's end down ─► address
//! restore  elements of all known attachments ─► tables
//! ```
//!
//! The caller keeps records: it writes down that a container will be attached before it calls [`BridgeDriver::attach`], and what it got
//! afterwards. With or without the second part [`BridgeDriver::detach`] undoes it, since the names of devices follow from the holder, and the
//! holder is in the files of its addresses. What no record names is removed by [`BridgeTables::restore`] and [`BridgeTables::sweep`].
//!
//! Each bridge has a driver. The tables, the sockets and what is known of all bridges are in common to the drivers of an instance of the daemon
//! ([`BridgeTables`]): the kernel takes one change of links at a time, and a table is restored as a whole.
//!
//! Invariants:
//! - A published port leads to a container only while the container has its address: ports are withdrawn, and the host's end is down, before
//!   an address is released.
//! - The bridge's own hardware address does not change, so that containers know it for good.
//! - Attachments that plugins have made on the same bridge stay as they are.
//! - No container gets an address, or a port of UDP or SCTP, while connections of its last owner may still be led there.
//! - A pinned container sends with its own addresses alone from the moment at which it is attached, until it is unpinned or detached.
//!
//! All calls block: an attachment takes about a millisecond, in which others wait. The kernel has one lock for all links, so several threads
//! would only wait there.

mod attachment;
mod bridge;
mod container;
mod elements;
mod error;
mod flows;
mod forwarded;
mod known;
mod names;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::report;

use crate::addresses::{AddressPool, AssignedAddress, Holder, RangeSet};
use crate::netlink::{
    IpPrefix, Link, LinkName, LinkRef, NetNs, delete_link, delete_neighbour, find_link, set_down,
};
use crate::nft::{BridgeRules, Element, Flows, NftFamily};
use container::forwarding_port;
use elements::{
    TakenPort, changes, container_elements, flows_of_ended, flows_of_published, is_pin, is_taken,
    port_taken, taken_by,
};
use names::{host_link, ifb_link};
use tables::{KnownAttachment, State};

pub use attachment::{
    AttachRequest, Attached, Attachment, BridgeSettings, BridgeSubnet, LimitBits, Limits,
    PublishedPort,
};
pub use error::DriverError;
pub use names::group_of;
pub use tables::{BridgeTables, Restoration};

/// Limit of tries to remove connections that a predecessor has left. Each attachment makes one, and a kernel that cannot list connections never
/// can.
const ABANDONED_TRIES: u32 = 5;

/// Attaches containers to one bridge of the network namespace of its callers. Costs nothing before it is used.
#[derive(Debug)]
pub struct BridgeDriver {
    settings: BridgeSettings,
    tables: Arc<BridgeTables>,
    pool: AddressPool,
    /// The addresses of the bridge, if it is a gateway.
    gateways: Vec<IpPrefix>,
    /// The families of its subnets, which have a table each.
    families: Vec<NftFamily>,
    /// Rules of the bridge, as the tables need them.
    rules: BridgeRules,
    /// True if addresses stay that are of none of its subnets.
    leaves_addresses: bool,
    /// How often it is still tried to remove connections that a predecessor has left: not at all once they are.
    abandoned: Mutex<u32>,
}

impl BridgeDriver {
    /// The driver of a bridge. Nothing is read or made.
    ///
    /// # Errors
    /// [`DriverError::Addresses`] or [`DriverError::Rules`] if a value of the settings is impossible.
    pub fn new(settings: BridgeSettings, tables: Arc<BridgeTables>) -> Result<Self, DriverError> {
        let ranges = settings.ranges()?;
        let gateways = settings.subnets.iter().zip(&ranges);
        let gateways = gateways.map(|(one, range)| {
            IpPrefix::new(range.gateway(), one.subnet.prefix()).map_err(DriverError::from)
        });
        let gateways: Vec<_> = gateways.collect::<Result<_, _>>()?;
        let rules = settings.rules()?;
        let of = |family: &NftFamily| {
            let mut subnets = rules.subnets.iter();
            subnets.any(|subnet| subnet.family() == *family)
        };
        let families = NftFamily::ALL.into_iter().filter(of).collect();
        let sets = ranges.into_iter().map(|range| RangeSet::new(vec![range]));
        let pool = AddressPool::new(
            &settings.addresses_dir,
            settings.name.as_str(),
            sets.collect::<Result<_, _>>()?,
        )?;
        Ok(Self {
            tables,
            pool,
            gateways,
            families,
            rules,
            settings,
            leaves_addresses: true,
            abandoned: Mutex::new(ABANDONED_TRIES),
        })
    }

    /// The same, for a bridge that nobody else gives addresses: those of former subnets are taken from it, of which no container has any. Else
    /// the node would look there for whoever has them by now.
    #[must_use]
    pub fn without_former_addresses(mut self) -> Self {
        self.leaves_addresses = false;
        self
    }

    /// Returns the settings of the bridge.
    #[must_use]
    pub const fn settings(&self) -> &BridgeSettings {
        &self.settings
    }

    /// The families of its subnets.
    #[must_use]
    pub fn families(&self) -> &[NftFamily] {
        &self.families
    }

    /// Has tables kept for the bridge also while nothing is attached to it, from the next repair on.
    ///
    /// # Errors
    /// [`DriverError::SubnetTaken`].
    pub fn keep(&self) -> Result<(), DriverError> {
        let mut state = self.tables.lock();
        state.know(&self.settings.name, &self.rules)?.is_kept = true;
        Ok(())
    }

    fn host_link(&self, holder: &Holder) -> LinkName {
        host_link(self.tables.name(), holder)
    }

    /// Attaches a container: gives it addresses, connects it, and publishes its ports. When this returns, packets pass, unless a policy of
    /// iptables drops what is forwarded: [`BridgeTables::accept_forwarded`] follows for a bridge that was not known.
    ///
    /// A failure is undone before this returns. A kill leaves what [`BridgeDriver::detach`] undoes, which has to be called before the holder is
    /// attached again: devices of before are replaced, but the holder keeps addresses that are not requested again. A call that has begun
    /// continues to its end, also if nobody waits for it. Blocks.
    ///
    /// # Errors
    /// [`DriverError::Addresses`] if there are no addresses, or not the requested ones; [`DriverError::NoBridge`],
    /// [`DriverError::SubnetTaken`], [`DriverError::BridgeFull`], [`DriverError::RoutersIgnored`], [`DriverError::PortTaken`],
    /// [`DriverError::Links`], [`DriverError::Rules`]; [`DriverError::NotUndone`] if something of it is left.
    pub fn attach(&self, request: &AttachRequest) -> Result<Attached, DriverError> {
        self.forget_abandoned_flows();
        let assigned = self.pool.assign(&request.holder, &request.addresses)?;
        reach(CrashPoint::AddressesAssigned);
        let addresses: Vec<_> = assigned.iter().map(|one| one.address).collect();
        let connected = self.connect(request, assigned);
        connected.map_err(|error| self.undone(request, addresses, error))
    }

    /// Removes the connections of UDP and SCTP that still lead to former containers of a predecessor. It knew which these are, and may have
    /// been killed behind the answer to a detachment. Done once, by the first attachment at the latest; what fails is repeated by the next ones,
    /// five times in all, and its reason is logged. Call it before for each bridge that a predecessor had: their ports may be published on
    /// another one. Blocks, as [`BridgeTables::forget_past_flows`].
    pub fn forget_abandoned_flows(&self) {
        // Over the removal: who waits for it finds them removed.
        let mut tries = self.abandoned.lock();
        if let Some(left) = tries.checked_sub(1) {
            *tries = if self.remove_abandoned_flows() {
                0
            } else {
                left
            };
        }
    }

    /// Returns whether they are removed.
    fn remove_abandoned_flows(&self) -> bool {
        let in_use = match self.pool.in_use() {
            Ok(in_use) => in_use.into_iter(),
            Err(error) => {
                tracing::warn!(
                    error = report(&error),
                    "cannot read which addresses are in use: connections of UDP and SCTP to containers of a former process stay"
                );
                return false;
            }
        };
        let gateways = self.gateways.iter().map(|gateway| gateway.address());
        let in_use: BTreeSet<IpAddr> = in_use.chain(gateways).collect();
        let subnets = &self.rules.subnets;
        self.tables.past.remove_abandoned(subnets, &in_use)
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
            // Those that are there are known.
            pin: None,
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
        let host = self.host_link(&request.holder);
        // For a container that is gone by now no bridge is made.
        let namespace = NetNs::open(&request.netns)?;
        // Before there is anything of it, so that it is never taken for something that a kill has left.
        let before = self.replace(&mut self.tables.lock(), &request.holder, BTreeSet::new())?;
        self.tables.past.add(flows_of_ended(&before));
        self.tables.past.remove_before(&addresses, &request.ports);
        let mut state = self.tables.lock();
        let bridge = self.ready_bridge(&mut state)?;
        let mac = self.connect_links(&mut state, request, &namespace, &bridge, &assigned)?;
        let pin = request.is_pinned.then_some(mac);
        let elements = container_elements(&host, &request.ports, pin, &addresses);
        let published = flows_of_published(elements.iter());
        self.publish(&mut state, request, elements)?;
        reach(CrashPoint::PortsPublished);
        drop(state);
        self.tables.past.add(published);
        let host_end = forwarding_port(&host)?;
        Ok(Attached {
            host_mac: host_end.mac.unwrap_or(bridge.mac),
            host_link: host,
            bridge_mac: bridge.mac,
            mac,
            addresses: assigned,
        })
    }

    /// Lets the ports of the node lead to a container, and keeps it from sending with addresses of others. Without elements, no table is
    /// looked at.
    fn publish(
        &self,
        state: &mut State,
        request: &AttachRequest,
        elements: BTreeSet<Element>,
    ) -> Result<(), DriverError> {
        if elements.is_empty() {
            return Ok(());
        }
        let changes = changes(&elements, &self.families, true);
        let families: Vec<_> = changes.iter().map(|change| change.family).collect();
        let is_behind = families.iter().any(|family| state.behind.contains(family));
        let changed = state.kernel(self.tables.name())?.tables.change(&changes);
        let error = match changed {
            Ok(()) if !is_behind => {
                self.note(state, &request.holder, elements);
                return Ok(());
            }
            Err(error) if !error.is_missing() => {
                if !is_taken(&error) {
                    // It may be done all the same, without an answer: then it is withdrawn with the rest.
                    self.note(state, &request.holder, elements.clone());
                }
                error.into()
            }
            // Others have deleted a table, and the daemon has not noticed it yet; or it is the first container that is pinned; or the table has no
            // rules for its elements.
            Ok(()) | Err(_) => {
                self.note(state, &request.holder, elements.clone());
                match self.tables.restore_for(state, &families) {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                }
            }
        };
        Err(self.of_ports(state, request, &elements, error))
    }

    /// The error for ports that could not be published as these elements.
    fn of_ports(
        &self,
        state: &mut State,
        request: &AttachRequest,
        elements: &BTreeSet<Element>,
        error: DriverError,
    ) -> DriverError {
        let DriverError::Rules(error) = error else {
            return error;
        };
        if request.ports.is_empty() || !is_taken(&error) {
            return DriverError::Rules(error);
        }
        let taken = self.taken(state, &request.holder, elements);
        port_taken(taken, &request.ports, error)
    }

    /// The published port that one of these elements of a container was to be: of another container, or of the tables alone.
    fn taken(
        &self,
        state: &mut State,
        holder: &Holder,
        elements: &BTreeSet<Element>,
    ) -> Option<TakenPort> {
        let taken_by = taken_by(elements);
        let others = state.attachments.values();
        let mut others = others.filter(|known| known.holder != *holder);
        let known = others.find_map(|known| {
            let element = taken_by(&known.elements)?;
            Some((element, Some(known.holder.clone())))
        });
        if known.is_some() {
            return known;
        }
        let kernel = state.kernel(self.tables.name()).ok()?;
        self.families.iter().find_map(|family| {
            let table = kernel.tables.read(*family).ok().flatten()?;
            Some((taken_by(table.elements())?, None))
        })
    }

    /// Notes what a container has from now on, and returns what it had.
    fn note(
        &self,
        state: &mut State,
        holder: &Holder,
        elements: BTreeSet<Element>,
    ) -> Option<KnownAttachment> {
        let known = KnownAttachment {
            holder: holder.clone(),
            bridge: self.settings.name.clone(),
            elements,
        };
        state.attachments.insert(self.host_link(holder), known)
    }

    /// Notes that a container has no elements from now on, and withdraws these and those that it had. Returns all of them.
    fn replace(
        &self,
        state: &mut State,
        holder: &Holder,
        mut elements: BTreeSet<Element>,
    ) -> Result<BTreeSet<Element>, DriverError> {
        let known = self.note(state, holder, BTreeSet::new());
        elements.extend(known.into_iter().flat_map(|known| known.elements));
        // Also of a family that the bridge had when it was attached, and has no more.
        state.withdraw(self.tables.name(), &elements, &NftFamily::ALL)?;
        Ok(elements)
    }

    /// Lets a pinned container send with any address from now on. Idempotent; without effect for one that is not known or not pinned. The caller has it on
    /// record before, so that no later process pins it again. Blocks.
    ///
    /// # Errors
    /// [`DriverError::Rules`]: call it again.
    pub fn unpin(&self, holder: &Holder) -> Result<(), DriverError> {
        let host = self.host_link(holder);
        let mut state = self.tables.lock();
        let known = state.attachments.get(&host);
        let elements = known.into_iter().flat_map(|known| &known.elements);
        let pins: BTreeSet<Element> = elements.filter(|one| is_pin(one)).cloned().collect();
        if pins.is_empty() {
            return Ok(());
        }
        state.withdraw(self.tables.name(), &pins, &self.families)?;
        reach(CrashPoint::PinsWithdrawn);
        if let Some(known) = state.attachments.get_mut(&host) {
            known.elements.retain(|element| !is_pin(element));
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
            holder, addresses, ..
        } = attachment;
        let Some(addresses) = addresses else {
            // A kill came before they were on record. They are released last, as all else.
            let held = self.pool.reservations()?.into_iter();
            let held = held.filter(|one| one.holder.belongs_to(holder));
            let held: Vec<IpAddr> = held.map(|one| one.address).collect();
            self.disconnect(attachment, &held, deletes_link)?;
            let past = held.into_iter().map(Flows::Of).collect();
            self.tables.past.add(past);
            self.pool.release_all(holder)?;
            reach(CrashPoint::AddressesReleased);
            return Ok(());
        };
        self.disconnect(attachment, addresses, deletes_link)?;
        self.pool.release(holder, addresses)?;
        reach(CrashPoint::AddressesReleased);
        Ok(())
    }

    /// Withdraws ports and pins, and sets the host's end down or deletes it.
    fn disconnect(
        &self,
        attachment: &Attachment,
        addresses: &[IpAddr],
        deletes_link: bool,
    ) -> Result<(), DriverError> {
        let host = self.host_link(&attachment.holder);
        let mut state = self.tables.lock();
        // From now on no repair publishes its ports again.
        let elements = container_elements(&host, &attachment.ports, attachment.pin, addresses);
        let elements = self.replace(&mut state, &attachment.holder, elements)?;
        reach(CrashPoint::PortsWithdrawn);
        let kernel = state.kernel(self.tables.name())?;
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
        self.tables.past.add(flows_of_ended(&elements));
        Ok(())
    }
}
