//! State that all bridges of one instance of the daemon share: the tables, the sockets, and what is known of bridges and containers.
//!
//! Longer than 500 lines because all of this is behind one lock, in whose order it has to be read.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use parking_lot::{Mutex, MutexGuard};

use super::BridgeDriver;
use super::attachment::Attachment;
use super::bridge::probe_links;
use super::elements::{changes, container_elements, flows_of_published, is_pin, kept_of_unknown};
use super::error::DriverError;
use super::flows::PastFlows;
use super::known::{KnownBridge, is_of_bridge};
use super::names::{bridge_port, group_of, ifb_link};
use crate::addresses::Holder;
use crate::netlink::{
    Family, IpFamily, Link, LinkName, LinkRef, Socket, delete_link, find_link, is_forwarding,
    list_addresses, list_links,
};
use crate::nft::{
    BridgeName, BridgeRules, Element, Isolation, NftError, NftFamily, NftTables, Repair, TableName,
    bridge_elements,
};

/// The tables of one instance of the daemon, with the elements of all its bridges and their containers, in the network namespace of its
/// callers. The drivers of the bridges have it in common, so that one repair mends all. Costs nothing before it is used.
#[derive(Debug)]
pub struct BridgeTables {
    name: TableName,
    /// The group of all links.
    group: u32,
    /// Choice of the bridges that reach each other.
    isolation: Isolation,
    /// Pairs of bridges that reach each other all the same.
    isolation_allow: Vec<(BridgeName, BridgeName)>,
    /// It is waited for only on blocking threads.
    state: Mutex<State>,
    /// Connections that are to be removed.
    pub(super) past: PastFlows,
}

/// State with which one thread at a time works.
#[derive(Debug, Default)]
pub(super) struct State {
    kernel: Option<Kernel>,
    /// The bridges whose elements are in the tables, by name.
    pub(super) bridges: BTreeMap<LinkName, KnownBridge>,
    /// By the host's end.
    pub(super) attachments: BTreeMap<LinkName, KnownAttachment>,
    /// The bridges on record that get no rules, as was told.
    refused: BTreeSet<LinkName>,
    /// The families of all subnets that a bridge had so far, which have a table each.
    families: BTreeSet<NftFamily>,
    /// True if the attachments of all former processes are known: until then nothing is taken for something that a kill has left.
    knows_all: bool,
    /// The families whose tables could not be restored when that was last tried: they may lack rules, also if they take elements.
    pub(super) behind: BTreeSet<NftFamily>,
}

/// Outcome of a repair of the tables of all families.
struct Restored {
    repairs: Vec<(NftFamily, Repair)>,
    /// Those that could not be restored.
    failed: Vec<(NftFamily, NftError)>,
}

/// The same for whoever tells people.
#[derive(Debug)]
pub struct Restoration {
    /// Result of each family whose table could be restored.
    pub repairs: Vec<(NftFamily, Repair)>,
    /// The reason why not all could be: [`DriverError::NotRestored`], or [`DriverError::Rules`] without a socket.
    pub failure: Option<DriverError>,
}

/// Sockets in the network namespace of the node.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) route: Socket,
    pub(super) tables: NftTables,
}

/// A container on one of the bridges.
#[derive(Debug)]
pub(super) struct KnownAttachment {
    /// Holder of the addresses.
    pub(super) holder: Holder,
    /// The name of its bridge.
    pub(super) bridge: LinkName,
    /// The elements of its published ports, and its pins.
    pub(super) elements: BTreeSet<Element>,
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
    pub(super) fn kernel(&mut self, table: &TableName) -> Result<&mut Kernel, DriverError> {
        match &mut self.kernel {
            Some(kernel) => Ok(kernel),
            none => Ok(none.insert(Kernel::open(table)?)),
        }
    }

    /// Looks whether the tables can have the subnets of a bridge: no two with addresses in common, else they can be restored for no bridge.
    ///
    /// # Errors
    /// [`DriverError::SubnetTaken`].
    pub(super) fn check_free(
        &self,
        name: &LinkName,
        rules: &BridgeRules,
    ) -> Result<(), DriverError> {
        for (bridge, known) in self.bridges.iter().filter(|(other, _)| *other != name) {
            for subnet in &rules.subnets {
                if let Some(taken) = known.overlap(subnet) {
                    return Err(DriverError::SubnetTaken {
                        subnet: subnet.to_string(),
                        taken: taken.to_string(),
                        bridge: bridge.to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Makes a bridge one whose elements are in the tables, from the next repair on.
    ///
    /// # Errors
    /// Those of [`State::check_free`].
    pub(super) fn know(
        &mut self,
        name: &LinkName,
        rules: &BridgeRules,
    ) -> Result<&mut KnownBridge, DriverError> {
        self.check_free(name, rules)?;
        let families = rules.subnets.iter().map(|subnet| subnet.family());
        self.families.extend(families);
        Ok(match self.bridges.entry(name.clone()) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                known.change(rules);
                known
            }
            Entry::Vacant(none) => none.insert(KnownBridge::new(rules)),
        })
    }

    /// Makes a bridge again what it was before it was to be known, or to be another one.
    pub(super) fn put_back(&mut self, name: &LinkName, before: Option<KnownBridge>) {
        match before {
            Some(known) => {
                self.bridges.insert(name.clone(), known);
            }
            None => {
                self.bridges.remove(name);
            }
        }
    }

    /// Returns whether somebody needs the tables.
    fn is_needed(&self) -> bool {
        !self.attachments.is_empty() || self.bridges.values().any(|bridge| bridge.is_kept)
    }

    /// Returns the rules of a bridge. As long as there is none of its name, others beyond the node may have its subnets, and the node
    /// may forward their packets: nothing is said of these subnets then. That is not known before the attachments of former processes are.
    fn rules_of(&self, name: &LinkName, known: &KnownBridge) -> BridgeRules {
        let mut rules = known.rules.clone();
        let has_containers = || self.attachments.values().any(|one| one.bridge == *name);
        if self.knows_all && !known.is_there() && !has_containers() {
            rules.subnets.clear();
        }
        rules
    }

    /// The bridges whose packets are forwarded; none if nobody needs the tables.
    pub(super) fn forwarding(&self) -> Vec<BridgeRules> {
        if !self.is_needed() {
            return Vec::new();
        }
        let bridges = self.bridges.values();
        bridges.map(|bridge| bridge.rules.clone()).collect()
    }

    /// Removes elements from the tables of these families and from that of ports, as far as they are there.
    pub(super) fn withdraw(
        &mut self,
        table: &TableName,
        elements: &BTreeSet<Element>,
        families: &[NftFamily],
    ) -> Result<(), DriverError> {
        if elements.is_empty() {
            return Ok(());
        }
        let changes = changes(elements, families, false);
        match self.kernel(table)?.tables.change(&changes) {
            Err(error) if error.is_missing() => Ok(()),
            done => Ok(done?),
        }
    }
}

// === impl BridgeTables ===

impl BridgeTables {
    /// The tables of this name, whose bridges reach each other. Nothing is read or made.
    #[must_use]
    pub fn new(name: TableName) -> Self {
        Self {
            group: group_of(&name),
            name,
            isolation: Isolation::None,
            isolation_allow: Vec::new(),
            state: Mutex::default(),
            past: PastFlows::default(),
        }
    }

    /// The same, with bridges that are kept apart, save these pairs.
    #[must_use]
    pub fn with_isolation(
        mut self,
        isolation: Isolation,
        allow: Vec<(BridgeName, BridgeName)>,
    ) -> Self {
        self.isolation = isolation;
        self.isolation_allow = allow;
        self
    }

    /// Lists what is to be in the tables, of all families.
    fn elements(&self, state: &State) -> BTreeSet<Element> {
        let bridges = state.bridges.iter();
        let rules: Vec<_> = bridges
            .map(|(name, known)| state.rules_of(name, known))
            .collect();
        let mut elements = bridge_elements(&rules, self.isolation, &self.isolation_allow);
        let of_containers = state.attachments.values().flat_map(|one| &one.elements);
        elements.extend(of_containers.cloned());
        elements
    }

    /// Returns whether a bridge with all its subnets has elements in the tables, or is to have them.
    #[must_use]
    pub fn knows(&self, bridge: &BridgeDriver) -> bool {
        let state = self.lock();
        let known = state.bridges.get(&bridge.settings.name);
        known.is_some_and(|known| known.has(&bridge.rules))
    }

    /// Their name.
    #[must_use]
    pub const fn name(&self) -> &TableName {
        &self.name
    }

    /// The group of all links of the bridges.
    pub(super) const fn group(&self) -> u32 {
        self.group
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The port id of the socket by which tables are changed, if there is one: [`crate::nft::NftMonitor::read`] needs it.
    #[must_use]
    pub fn socket_port(&self) -> Option<u32> {
        let state = self.lock();
        state.kernel.as_ref().map(|kernel| kernel.tables.port())
    }

    /// Looks whether the kernel can do all that containers with addresses of these families need, limits of bandwidth aside. Changes nothing,
    /// but the kernel may load modules, which takes some 100 ms, once. Blocks.
    ///
    /// # Errors
    /// [`DriverError::Rules`], [`DriverError::Links`]: what the kernel cannot do.
    pub fn probe(&self, families: &[NftFamily]) -> Result<(), DriverError> {
        probe_links()?;
        if families.contains(&NftFamily::Ip6) {
            is_forwarding(IpFamily::V6)?;
        }
        let mut state = self.lock();
        let kernel = state.kernel(&self.name)?;
        for family in families {
            kernel.tables.probe(*family)?;
        }
        Ok(())
    }

    /// Looks whether the kernel can keep containers from sending with other addresses than their own, as `probe` looks at the rest. Blocks.
    ///
    /// # Errors
    /// [`DriverError::Rules`]: what the kernel cannot do.
    pub fn probe_pins(&self) -> Result<(), DriverError> {
        let mut state = self.lock();
        Ok(state.kernel(&self.name)?.tables.probe(NftFamily::Bridge)?)
    }

    /// Takes over attachments that former processes have made: their published ports and pins stay at the next [`BridgeTables::restore`]. One
    /// whose host's end is gone or down was cut off, before it was complete or after its ports were withdrawn: it has none. A bridge that is gone, as
    /// after a reboot, has no elements; nor has one that is refused, which is logged once. If the devices cannot be listed, which is logged too, each
    /// counts as complete. `all` says whether these are all that there may be on record; until then, nothing is withdrawn that belongs to no
    /// known bridge or attachment. May be repeated. Blocks.
    pub fn adopt<'a>(
        &self,
        attachments: impl IntoIterator<Item = (&'a BridgeDriver, &'a Attachment)>,
        all: bool,
    ) {
        for error in self.take_over(attachments, all) {
            tracing::warn!(
                error = switchyard_linux::report(&error),
                "a bridge of containers on record gets no rules: they are reached only from the bridge itself"
            );
        }
    }

    /// The same. Returns why bridges are refused that were not before.
    pub(super) fn take_over<'a>(
        &self,
        attachments: impl IntoIterator<Item = (&'a BridgeDriver, &'a Attachment)>,
        all: bool,
    ) -> Vec<DriverError> {
        let mut refused = Vec::new();
        let mut state = self.lock();
        let links = self.links(&mut state);
        if let Err(error) = &links {
            tracing::warn!(
                error = switchyard_linux::report(error),
                "cannot list network devices: all ports of containers on record stay published"
            );
        }
        let links = links.ok();
        // Whether it is up, of a device that is there.
        let state_of = |name: &LinkName| match &links {
            Some(links) => links.get(name.as_str()).copied(),
            None => Some(true),
        };
        for (driver, attachment) in attachments {
            let bridge = driver.settings.name.clone();
            let is_there = state_of(&bridge).is_some();
            let know = || state.know(&bridge, &driver.rules).err();
            match is_there.then(know).flatten() {
                None => {
                    state.refused.remove(&bridge);
                }
                Some(error) => {
                    if state.refused.insert(bridge.clone()) {
                        refused.push(error);
                    }
                }
            }
            let host = driver.host_link(&attachment.holder);
            let is_complete = state_of(&host) == Some(true);
            let addresses = attachment.addresses.as_deref().filter(|_| is_complete);
            let elements = addresses.map(|addresses| {
                container_elements(&host, &attachment.ports, attachment.pin, addresses)
            });
            let known = KnownAttachment {
                holder: attachment.holder.clone(),
                bridge,
                elements: elements.unwrap_or_default(),
            };
            if let Entry::Vacant(place) = state.attachments.entry(host) {
                // The former process may have been killed before it removed the connections that had begun before.
                let published = flows_of_published(known.elements.iter());
                self.past.add_for_later(published);
                place.insert(known);
            }
        }
        for (name, known) in &mut state.bridges {
            known.was_there |= state_of(name).is_some();
        }
        state.knows_all |= all;
        refused
    }

    /// The devices of the node, each with whether it is up.
    fn links(&self, state: &mut State) -> Result<BTreeMap<String, bool>, DriverError> {
        let links = list_links(&mut state.kernel(&self.name)?.route)?;
        Ok(links
            .into_iter()
            .map(|link| (link.name, link.is_up))
            .collect())
    }

    /// Makes the tables what the known bridges and attachments need: adds what is missing, and removes what else is in them. Returns what was
    /// done in each family. Does nothing if nobody needs them: if no bridge is kept and no attachment is known. Blocks.
    ///
    /// # Errors
    /// [`DriverError::NotRestored`]: the tables of other families are restored all the same. [`DriverError::Rules`] without a socket.
    pub fn restore(&self) -> Result<Vec<(NftFamily, Repair)>, DriverError> {
        let Restoration { repairs, failure } = self.restore_each();
        match failure {
            Some(error) => Err(error),
            None => Ok(repairs),
        }
    }

    /// The same, with what was done in some families although others failed. Blocks.
    #[must_use]
    pub fn restore_each(&self) -> Restoration {
        match self.restore_locked(&mut self.lock()) {
            Ok(Restored { repairs, failed }) => Restoration {
                repairs,
                failure: DriverError::not_restored(failed),
            },
            Err(error) => Restoration {
                repairs: Vec::new(),
                failure: Some(error),
            },
        }
    }

    /// Restores the tables for a container that needs those of these families. That another one fails is left to the next
    /// [`BridgeTables::restore`]: see [`BridgeTables::is_behind`].
    ///
    /// # Errors
    /// [`DriverError::Rules`].
    pub(super) fn restore_for(
        &self,
        state: &mut State,
        families: &[NftFamily],
    ) -> Result<(), DriverError> {
        let failed = self.restore_locked(state)?.failed.into_iter();
        let mut needed = failed.filter(|(family, _)| families.contains(family));
        match needed.next() {
            Some((_, error)) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Returns whether a table could not be restored when that was last tried, by whoever it was: [`BridgeTables::restore`] tries it again, and
    /// says why.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        !self.lock().behind.is_empty()
    }

    fn restore_locked(&self, state: &mut State) -> Result<Restored, DriverError> {
        let mut restored = Restored {
            repairs: Vec::new(),
            failed: Vec::new(),
        };
        if !state.is_needed() {
            state.behind.clear();
            return Ok(restored);
        }
        let all = self.elements(state);
        let mut families = state.families.clone();
        // A former process may have pinned ports, also if none is by now.
        families.insert(NftFamily::Bridge);
        let subnets = state.bridges.values().flat_map(|one| &one.rules.subnets);
        let mut needed: BTreeSet<_> = subnets.map(|subnet| subnet.family()).collect();
        needed.extend(all.iter().any(is_pin).then_some(NftFamily::Bridge));
        let hosts = state.attachments.keys();
        let known: Option<BTreeSet<_>> =
            (!state.knows_all).then(|| hosts.map(bridge_port).collect());
        let kernel = state.kernel(&self.name)?;
        for family in families {
            let is_needed = needed.contains(&family);
            match restore_family(&mut kernel.tables, family, &all, is_needed, known.as_ref()) {
                Ok(repair) => {
                    let done = repair.map(|repair| (family, repair));
                    restored.repairs.extend(done);
                }
                Err(error) => restored.failed.push((family, error)),
            }
        }
        state.behind = restored.failed.iter().map(|(family, _)| *family).collect();
        // Clients that sent while a port was missing would not be led to the container.
        let repairs = restored.repairs.iter();
        let published = repairs.filter(|(_, repair)| repair.has_published());
        let published: Vec<NftFamily> = published.map(|(family, _)| *family).collect();
        let is_restored = |element: &&Element| published.iter().any(|one| element.fits(*one));
        let flows = flows_of_published(all.iter().filter(is_restored));
        self.past.add_for_later(flows);
        Ok(restored)
    }

    /// Removes what the tables have of a bridge, which is about to be deleted. Nothing is attached to it any more. Idempotent; without effect
    /// if this process has not attached to it or taken it over. Blocks.
    ///
    /// # Errors
    /// [`DriverError::Rules`]: call it again.
    pub fn forget_bridge(&self, name: &LinkName) -> Result<(), DriverError> {
        let mut state = self.lock();
        let before = self.elements(&state);
        let Some(known) = state.bridges.remove(name) else {
            return Ok(());
        };
        let after = self.elements(&state);
        let gone: BTreeSet<Element> = before.difference(&after).cloned().collect();
        let families: Vec<_> = state.families.iter().copied().collect();
        let withdrawn = state.withdraw(&self.name, &gone, &families);
        if withdrawn.is_err() {
            state.bridges.insert(name.clone(), known);
        }
        withdrawn
    }

    /// Removes what the tables have of a bridge that only former processes knew, and that is about to be deleted: by its name, and by the
    /// addresses of its device. Does nothing if somebody needs the tables: a repair removes it then. Idempotent. Blocks.
    ///
    /// # Errors
    /// [`DriverError::Links`], [`DriverError::Rules`]: call it again.
    pub fn forget_former_bridge(&self, name: &LinkName) -> Result<(), DriverError> {
        let mut state = self.lock();
        if state.is_needed() {
            return Ok(());
        }
        let tables = NftTables::list()?;
        if !tables.iter().any(|(_, table)| *table == self.name) {
            return Ok(());
        }
        let kernel = state.kernel(&self.name)?;
        let Some(link) = find_link(&mut kernel.route, &name.clone().into())? else {
            return Ok(());
        };
        let all = list_addresses(&mut kernel.route)?.into_iter();
        let own = all.filter(|held| held.address.link == link.index);
        let own: Vec<IpAddr> = own.map(|held| held.address.prefix.address()).collect();
        let mut gone = BTreeSet::new();
        for family in NftFamily::ALL {
            let found = kernel.tables.read(family)?;
            let elements = found.iter().flat_map(|table| table.elements());
            let of_it = elements.filter(|element| is_of_bridge(element, name, &own));
            gone.extend(of_it.cloned());
        }
        state.withdraw(&self.name, &gone, &NftFamily::ALL)
    }

    /// Deletes the links of all bridges that belong to no known attachment, and returns how many there were: none, until all attachments of
    /// former processes are known. A kill leaves such links if their namespace continues to exist. Blocks, some 30 ms for each.
    ///
    /// # Errors
    /// [`DriverError::Links`].
    pub fn sweep(&self) -> Result<usize, DriverError> {
        let mut swept = 0;
        // Others attach between two deletions.
        while self.sweep_one(&mut self.lock())? {
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
        let kernel = state.kernel(&self.name)?;
        let links = list_links(&mut kernel.route)?;
        let is_left = |link: &&Link| link.group == self.group && !known.contains(&link.name);
        let Some(left) = links.iter().find(is_left) else {
            return Ok(false);
        };
        let delete = delete_link(&LinkRef::Index(left.index));
        kernel.route.run_one(&delete)?;
        Ok(true)
    }

    /// Removes connections of UDP and SCTP that go on as they began: those from before their port was published, or while it was missing from
    /// the tables, and those to containers that are detached. Call it behind the answer to each attachment and detachment, once for several,
    /// and after each [`BridgeTables::restore`] that has changed something. An attachment that gets an address to which such connections lead,
    /// or the port at which they began, does it first.
    ///
    /// The kernel looks at all its buckets of connections for it, which takes milliseconds also if there are few. Blocks. A kernel that does
    /// not list connections keeps them until they have been silent for some minutes, which is logged once.
    pub fn forget_past_flows(&self) {
        self.past.remove();
    }
}

/// Restores the table of a family. One that no bridge needs any more is restored if it is there, and not made again. `known` are the host's
/// ends of the containers that are known, unless these are all that there are.
fn restore_family(
    tables: &mut NftTables,
    family: NftFamily,
    all: &BTreeSet<Element>,
    is_needed: bool,
    known: Option<&BTreeSet<BridgeName>>,
) -> Result<Option<Repair>, NftError> {
    let wanted = all.iter().filter(|element| element.fits(family));
    let mut wanted: BTreeSet<Element> = wanted.cloned().collect();
    if !is_needed || known.is_some() {
        let found = tables.read(family)?;
        if !is_needed && found.is_none() {
            return Ok(None);
        }
        if let (Some(known), Some(found)) = (known, found) {
            let kept = kept_of_unknown(found.elements(), &wanted, known);
            wanted.extend(kept);
        }
    }
    tables.restore(family, &wanted).map(Some)
}
