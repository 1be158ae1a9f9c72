//! Builds an inventory from the scan results: decides which device owns a node, and assigns device ids. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use switchyard_core::device::{Device, DeviceGroup, Health, Inventory, Traffic};
use switchyard_core::spec::DeviceNode;

use crate::identity;
use crate::roots::Number;

/// A scan result for one device.
#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub(crate) struct Candidate {
    /// The identity from which its id is derived.
    pub(crate) known_by: String,
    /// Its id, if that is not equal to its identity; set by [`assemble`].
    pub(crate) id: Option<String>,
    /// Distinguishes it from devices that would have the same id; as stable as possible. `None` for its first
    /// CDI name.
    pub(crate) distinct_by: Option<String>,
    /// The place where it was found; used if nothing else distinguishes it.
    pub(crate) found_at: String,
    /// Its ids in earlier versions.
    pub(crate) aliases: Vec<String>,
    /// The device nodes that a task gets.
    pub(crate) nodes: Vec<DeviceNode>,
    /// The CDI device names that a task gets.
    pub(crate) cdi: Vec<String>,
    /// The device numbers of the nodes that it owns exclusively.
    pub(crate) numbers: BTreeSet<Number>,
    /// Devices of one family may share some of their nodes, but not all. The devices in CDI spec files form
    /// one family.
    pub(crate) family: Option<Arc<str>>,
    /// The reason why it cannot be allocated to a task.
    pub(crate) fault: Option<String>,
    pub(crate) pci_bus_id: Option<String>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) traffic: Option<Traffic>,
}

/// The indices of a group and of a candidate in it.
type CandidateIndex = (usize, usize);

/// Builds the inventory of these groups, each with its candidates. The order of the candidates does not
/// matter, that of the groups does: a node that several devices have belongs to the first one, and the others
/// are unhealthy.
pub(crate) fn assemble(mut groups: Vec<(DeviceGroup, Vec<Candidate>)>) -> Inventory {
    for (_, candidates) in &mut groups {
        candidates.sort_by(|a, b| a.order().cmp(&b.order()));
    }
    let refused = refused(&groups);
    set_ids(&mut groups, &refused);
    let refusal = |(at, why): (&CandidateIndex, &(Number, CandidateIndex))| {
        let (number, (group, index)) = why;
        let (group, candidates) = &groups[*group];
        let owner = candidates[*index].id();
        (
            *at,
            format!("{number} belongs to device {owner} of {}", full_name(group)),
        )
    };
    let mut refusals: BTreeMap<CandidateIndex, String> = refused.iter().map(refusal).collect();
    let mut aliases = BTreeSet::new();
    let mut inventory = Inventory::default();
    for (at, (mut group, candidates)) in groups.into_iter().enumerate() {
        let device = |(index, candidate): (usize, Candidate)| {
            candidate.into_device(refusals.remove(&(at, index)), &mut aliases)
        };
        group.devices = candidates.into_iter().enumerate().map(device).collect();
        group.devices.sort_by(|a, b| a.id.cmp(&b.id));
        inventory.groups.push(Arc::new(group));
    }
    inventory
}

fn full_name(group: &DeviceGroup) -> String {
    format!("{}/{}/{}", group.vendor, group.kind, group.name)
}

/// The devices that have a node of another device, with the node and that device.
fn refused(
    groups: &[(DeviceGroup, Vec<Candidate>)],
) -> BTreeMap<CandidateIndex, (Number, CandidateIndex)> {
    let mut owners: BTreeMap<Number, CandidateIndex> = BTreeMap::new();
    let mut refused = BTreeMap::new();
    for (at, (_, candidates)) in groups.iter().enumerate() {
        for (index, candidate) in candidates.iter().enumerate() {
            let taken = |number: &Number| owners.get(number).map(|owner| (*number, *owner));
            let is_kin = |owner: CandidateIndex| {
                candidate.family.is_some() && groups[owner.0].1[owner.1].family == candidate.family
            };
            let stranger = candidate
                .numbers
                .iter()
                .filter_map(taken)
                .find(|(_, owner)| !is_kin(*owner));
            let all_taken = candidate
                .numbers
                .iter()
                .all(|number| owners.contains_key(number));
            let clash = stranger.or_else(|| {
                candidate
                    .numbers
                    .iter()
                    .filter_map(taken)
                    .next()
                    .filter(|_| all_taken)
            });
            match clash {
                Some(clash) => drop(refused.insert((at, index), clash)),
                None => {
                    for number in &candidate.numbers {
                        owners.entry(*number).or_insert((at, index));
                    }
                }
            }
        }
    }
    refused
}

/// Sets the id of each device. Devices that would have the same id are all distinguished by a hash; a refused
/// device never takes an id from one that is not refused.
fn set_ids(
    groups: &mut [(DeviceGroup, Vec<Candidate>)],
    refused: &BTreeMap<CandidateIndex, (Number, CandidateIndex)>,
) {
    let mut places = Vec::new();
    let mut others: Vec<CandidateIndex> = refused.keys().copied().collect();
    for (at, (_, candidates)) in groups.iter_mut().enumerate() {
        for (index, candidate) in candidates.iter_mut().enumerate() {
            candidate.id =
                Some(identity::id(&candidate.known_by)).filter(|id| *id != candidate.known_by);
            if !refused.contains_key(&(at, index)) {
                places.push((at, index));
            }
        }
    }
    let id = |(at, index): CandidateIndex| groups[at].1[index].id();
    places.sort_by(|one, other| id(*one).cmp(id(*other)));
    let mut alone = Vec::with_capacity(places.len());
    for same in places.chunk_by(|one, other| id(*one) == id(*other)) {
        match same {
            [place] => alone.push(*place),
            _ => others.extend(same),
        }
    }
    let mut given = BTreeMap::new();
    let mut taken = BTreeSet::new();
    let mut turns = BTreeMap::new();
    others.sort_by_key(|place| (refused.contains_key(place), *place));
    for (at, index) in others {
        let (group, candidates) = &groups[at];
        let candidate = &candidates[index];
        let is_refused = refused.contains_key(&(at, index));
        let of_group = if is_refused {
            full_name(group)
        } else {
            String::new()
        };
        let plain = candidate.id();
        let stays = format!(
            "{}\0{}\0{of_group}",
            candidate.known_by,
            candidate.distinct_by()
        );
        // Devices that are equal in all of this continue from the last number, so that very many of them do
        // not take quadratic time.
        let next: &mut usize = turns.entry(stays.clone()).or_default();
        let distinct = (*next..).map(|turn| {
            *next = turn + 1;
            let by = if turn == 0 {
                stays.clone()
            } else {
                format!("{stays}\0{}\0{turn}", candidate.found_at)
            };
            identity::distinct_id(plain, &by)
        });
        let mut choice = is_refused
            .then(|| plain.to_owned())
            .into_iter()
            .chain(distinct);
        let is_free = |wanted: &String| {
            !taken.contains(wanted)
                && alone
                    .binary_search_by(|place| id(*place).cmp(wanted))
                    .is_err()
        };
        let chosen = choice.find(is_free).unwrap_or_default();
        taken.insert(chosen.clone());
        given.insert((at, index), chosen);
    }
    for ((at, index), id) in given {
        groups[at].1[index].id = Some(id);
    }
}

// === impl Candidate ===

impl Candidate {
    /// Within a family, devices with few nodes come first: a device that combines several others is refused,
    /// and not these.
    fn order(&self) -> (usize, &str, &str, &str) {
        let nodes = if self.family.is_some() {
            self.numbers.len()
        } else {
            0
        };
        (nodes, &self.known_by, self.distinct_by(), &self.found_at)
    }

    fn id(&self) -> &str {
        self.id.as_ref().unwrap_or(&self.known_by)
    }

    fn distinct_by(&self) -> &str {
        self.distinct_by
            .as_ref()
            .or(self.cdi.first())
            .map_or("", String::as_str)
    }

    /// The device, with its id; `taken` are the aliases of those before it.
    fn into_device(self, refusal: Option<String>, taken: &mut BTreeSet<String>) -> Device {
        let Self {
            known_by,
            id,
            distinct_by: _,
            found_at: _,
            aliases,
            nodes,
            cdi,
            numbers: _,
            family: _,
            fault,
            pci_bus_id,
            numa_node,
            traffic,
        } = self;
        let of_another = refusal.is_some();
        Device {
            id: id.unwrap_or(known_by),
            aliases: aliases
                .into_iter()
                .filter(|alias| !of_another && taken.insert(alias.clone()))
                .collect(),
            nodes,
            cdi,
            health: refusal.or(fault).map_or(Health::Healthy, Health::Unhealthy),
            pci_bus_id,
            numa_node,
            traffic,
        }
    }
}

#[cfg(test)]
mod tests;
