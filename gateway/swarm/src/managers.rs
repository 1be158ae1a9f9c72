//! Choice of the next manager to connect to, among the known ones: pure.

#[cfg(test)]
mod tests;

/// Maximum number of managers that are kept. SwarmKit advises at most 7.
const COUNT_MAX: usize = 64;

/// The longest address that is accepted: a host name of 253 bytes with a port.
const ADDRESS_MAX: usize = 260;

/// The weight of a manager that answers.
const WEIGHT_MAX: u32 = 64;

/// The weight of one that has failed often, so that it is tried now and then.
const WEIGHT_MIN: u32 = 1;

/// A manager of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The id of its node; empty if only its address is known.
    pub node: String,
    /// Its address, `HOST:PORT`.
    pub address: String,
}

/// The managers that are known, each with a weight. One that fails loses half of its weight, one that answers
/// has all of it again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Managers {
    weighted: Vec<(Peer, u32)>,
}

// === impl Managers ===

impl Managers {
    /// These managers. Those without an address, and all beyond the 64th, are left out.
    pub fn of(peers: impl IntoIterator<Item = Peer>) -> Self {
        let mut known = Self::default();
        known.replace(peers);
        known
    }

    /// The managers are these from now on; those that stay keep their weight. Returns whether anything has
    /// changed. A list without any usable manager changes nothing.
    pub fn replace(&mut self, peers: impl IntoIterator<Item = Peer>) -> bool {
        let mut new: Vec<(Peer, u32)> = Vec::new();
        let usable = peers
            .into_iter()
            .filter(|peer| !peer.address.is_empty() && peer.address.len() <= ADDRESS_MAX);
        for peer in usable {
            if new.len() == COUNT_MAX {
                break;
            }
            if new.iter().all(|(other, _)| other.address != peer.address) {
                let weight = self.weight(&peer.address);
                new.push((peer, weight));
            }
        }
        new.sort();
        let is_same = new.iter().map(|(peer, _)| peer).eq(self.peers());
        if new.is_empty() || is_same {
            return false;
        }
        self.weighted = new;
        true
    }

    /// A manager, by chance and by weight: `random` chooses. `None` if none is known.
    #[must_use]
    pub fn choose(&self, random: u64) -> Option<&Peer> {
        let sum: u64 = self
            .weighted
            .iter()
            .map(|(_, weight)| u64::from(*weight))
            .sum();
        let mut place = random.checked_rem(sum)?;
        for (peer, weight) in &self.weighted {
            match place.checked_sub(u64::from(*weight)) {
                None => return Some(peer),
                Some(rest) => place = rest,
            }
        }
        None
    }

    /// A manager has answered.
    pub fn answered(&mut self, address: &str) {
        self.set(address, |_| WEIGHT_MAX);
    }

    /// A manager has not answered, or has ended a session.
    pub fn failed(&mut self, address: &str) {
        self.set(address, |weight| (weight / 2).max(WEIGHT_MIN));
    }

    /// The managers, sorted.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.weighted.iter().map(|(peer, _)| peer)
    }

    fn weight(&self, address: &str) -> u32 {
        let known = self
            .weighted
            .iter()
            .find(|(peer, _)| peer.address == address);
        known.map_or(WEIGHT_MAX, |(_, weight)| *weight)
    }

    fn set(&mut self, address: &str, weight: impl Fn(u32) -> u32) {
        for (_, known) in self
            .weighted
            .iter_mut()
            .filter(|(peer, _)| peer.address == address)
        {
            *known = weight(*known);
        }
    }
}
