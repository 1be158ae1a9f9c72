//! Addresses that a network assigns: decisions without I/O.

use std::collections::HashSet;
use std::net::IpAddr;

use super::error::AddressError;
use super::holder::check_identifier;
use super::range::{AssignedAddress, RangeSet};

/// A network's name and range sets. Has at least one, and no two have addresses in common.
#[derive(Debug)]
pub(super) struct NetworkRanges {
    name: String,
    sets: Vec<RangeSet>,
}

// === impl NetworkRanges ===

impl NetworkRanges {
    pub(super) fn new(name: &str, sets: Vec<RangeSet>) -> Result<Self, AddressError> {
        check_identifier("network", name)?;
        if sets.is_empty() {
            let range = format!("of network {name}");
            let why = "there is none".to_owned();
            return Err(AddressError::Range { range, why });
        }
        for (index, set) in sets.iter().enumerate() {
            if let Some((one, other)) = sets[..index].iter().find_map(|other| set.overlap(other)) {
                let why = format!("it overlaps {other} of another set of network {name}");
                let range = one.to_string();
                return Err(AddressError::Range { range, why });
            }
        }
        let name = name.to_owned();
        Ok(Self { name, sets })
    }

    /// The network's name, which can be that of a directory.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The requested address of each set.
    pub(super) fn by_set(
        &self,
        requested: &[IpAddr],
    ) -> Result<Vec<Option<AssignedAddress>>, AddressError> {
        let mut by_set: Vec<Option<AssignedAddress>> = vec![None; self.sets.len()];
        // The plugin takes an address of IPv4 in the form of IPv6 as of IPv4.
        for address in requested.iter().map(IpAddr::to_canonical) {
            let mut places = self.sets.iter().zip(&mut by_set);
            let place = places.find_map(|(set, place)| Some((place, set.assigned(address)?)));
            let Some((place, assigned)) = place else {
                return Err(AddressError::OutOfRange {
                    network: self.name.clone(),
                    address,
                    ranges: self.ranges(),
                });
            };
            if self.is_gateway(address) {
                let network = self.name.clone();
                return Err(AddressError::Gateway { network, address });
            }
            if let Some(first) = place.replace(assigned)
                && first.address != address
            {
                return Err(AddressError::TwoOfOneSet {
                    network: self.name.clone(),
                    first: first.address,
                    second: address,
                });
            }
        }
        Ok(by_set)
    }

    /// The next address of a set, by its index, after the one that was assigned last; `None` if all are taken.
    pub(super) fn next_free(
        &self,
        index: usize,
        last: Option<IpAddr>,
        taken: &HashSet<IpAddr>,
    ) -> Option<AssignedAddress> {
        let set = self.sets.get(index)?;
        let is_free = |address: &IpAddr| !taken.contains(address) && !self.is_gateway(*address);
        let address = set.candidates(last).find(is_free)?;
        set.assigned(address)
    }

    /// The error that a set, by its index, has no free address.
    pub(super) fn full(&self, index: usize) -> AddressError {
        let ranges = self.sets.get(index).map(RangeSet::to_string);
        AddressError::Full {
            network: self.name.clone(),
            ranges: ranges.unwrap_or_default(),
        }
    }

    /// Returns whether an address is a gateway of any range: one may be among the addresses of another range of its subnet.
    fn is_gateway(&self, address: IpAddr) -> bool {
        let mut ranges = self.sets.iter().flat_map(RangeSet::ranges);
        ranges.any(|range| range.gateway() == address)
    }

    /// All ranges, for people.
    fn ranges(&self) -> String {
        let sets: Vec<String> = self.sets.iter().map(RangeSet::to_string).collect();
        sets.join(", ")
    }
}
