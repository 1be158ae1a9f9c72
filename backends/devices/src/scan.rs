//! One scan of the node: all I/O of this crate, except for the events that trigger a scan.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use switchyard_core::device::{DeviceGroup, Fact, Inventory, node};
use switchyard_core::spec::{MissingSource, Mount, MountSource};

use crate::assemble::{Candidate, assemble};
use crate::config::{Group, GroupMount};
use crate::roots::Roots;

mod by_id;
mod cdi;
mod files;
mod nodes;
mod paths;
mod pci;
mod sysfs;
mod usb;

#[cfg(test)]
mod tests;

pub(crate) use files::watched;

/// The most devices of a group.
const DEVICES_MAX: usize = 4096;
/// The most slots of a group: kubelets accept no list of more than 4 MiB.
const SLOTS_MAX: usize = 32_768;

/// The devices to scan for, and the directories to scan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Search {
    /// The groups, which were [checked](Group::check).
    pub groups: Vec<Group>,
    /// Directories with CDI spec files; a later one takes precedence.
    pub cdi_spec_dirs: Vec<PathBuf>,
    /// The directories in which the kernel shows devices.
    pub roots: Roots,
}

/// The result of a scan.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Found {
    /// The devices.
    pub inventory: Inventory,
    /// Messages for the operator: malformed files, and devices that were left out.
    pub notes: BTreeSet<String>,
}

/// Scans repeatedly. An inventory is only built when something has changed: on a node with thousands of
/// devices it takes megabytes, which the allocator may keep.
#[derive(Debug)]
pub(crate) struct Scanner {
    pub(crate) search: Search,
    specs: cdi::Specs,
    last: Option<LastScan>,
    /// Hasher of the digests. Its keys are random, so that no device can be crafted whose change is not seen.
    hasher: RandomState,
}

/// A result, and the digests of what it was built from.
#[derive(Debug)]
struct LastScan {
    /// Digests of the data [gathered](Gathered) for each group.
    digests: Vec<u64>,
    found: Found,
}

/// The data found for one group.
#[derive(Debug, Hash)]
struct Gathered {
    candidates: Vec<Candidate>,
    notes: BTreeSet<String>,
}

/// The state of one scan.
struct Scan<'s> {
    search: &'s Search,
    /// The paths that are devices already: a path belongs to the first group that has it.
    taken: BTreeSet<PathBuf>,
    /// The udev links, read when they are first needed.
    links: Option<by_id::Links>,
    /// Messages about the present group.
    notes: BTreeSet<String>,
}

/// Scans for the present devices. Blocks on the file system.
#[must_use]
pub fn scan(search: &Search) -> Found {
    Scanner::new(search.clone()).scan()
}

// === impl Scanner ===

impl Scanner {
    pub(crate) fn new(search: Search) -> Self {
        Self {
            search,
            specs: cdi::Specs::default(),
            last: None,
            hasher: RandomState::new(),
        }
    }

    /// Scans for the present devices. Groups that are the same as in the last result are shared with it.
    pub(crate) fn scan(&mut self) -> Found {
        let Self {
            search,
            specs,
            last,
            hasher,
        } = self;
        let uses_files = search.groups.iter().any(|group| !group.cdi.is_empty());
        let is_reread = uses_files && specs.refresh(&search.cdi_spec_dirs);
        let mut scan = Scan {
            search,
            taken: BTreeSet::new(),
            links: None,
            notes: BTreeSet::new(),
        };
        let mut all = Vec::with_capacity(search.groups.len());
        let mut digests = Vec::with_capacity(search.groups.len());
        for (at, group) in search.groups.iter().enumerate() {
            // What files alone determine is the same as long as these are.
            let is_known = !is_reread && specs.determine(group);
            let known = last
                .as_ref()
                .filter(|_| is_known)
                .and_then(|last| last.digests.get(at));
            let (digest, gathered) = match known {
                Some(digest) => (*digest, None),
                None => {
                    let gathered = scan.gather(group, specs);
                    (hasher.hash_one(&gathered), Some(gathered))
                }
            };
            digests.push(digest);
            all.push(gathered);
        }
        if let Some(last) = last.as_ref().filter(|last| last.digests == digests) {
            return last.found.clone();
        }
        let mut notes = BTreeSet::new();
        let complete = |(group, gathered): (&Group, Option<Gathered>)| {
            let gathered = gathered.unwrap_or_else(|| scan.gather(group, specs));
            notes.extend(gathered.notes);
            (without_devices(group), gathered.candidates)
        };
        let groups = search.groups.iter().zip(all).map(complete).collect();
        let inventory = assemble(groups);
        let inventory = match last.take() {
            Some(last) => inventory.reusing_groups(&last.found.inventory),
            None => inventory,
        };
        let found = Found { inventory, notes };
        *last = Some(LastScan {
            digests,
            found: found.clone(),
        });
        found
    }
}

// === impl Scan ===

impl Scan<'_> {
    /// Looks for the devices of a group.
    fn gather(&mut self, group: &Group, specs: &cdi::Specs) -> Gathered {
        let mut candidates = self.paths(group);
        candidates.extend(self.usb(group));
        candidates.extend(self.pci(group));
        candidates.extend(self.cdi(group, specs));
        let most = DEVICES_MAX.min(SLOTS_MAX / usize::from(group.shares.max(1)));
        if candidates.len() > most {
            let all = candidates.len();
            let what = format!(
                "group {} has {all} devices: only {most} are offered",
                group.full_name()
            );
            self.notes.insert(what);
            candidates.truncate(most);
        }
        Gathered {
            candidates,
            notes: std::mem::take(&mut self.notes),
        }
    }
}

/// The group without its devices.
pub(crate) fn without_devices(group: &Group) -> DeviceGroup {
    let Group {
        vendor,
        kind,
        name,
        resource,
        // Of the offer to a swarm, which takes it from the configuration.
        swarm_kind: _,
        paths: _,
        usb: _,
        pci: _,
        cdi: _,
        shares,
        quota: _,
        placement,
        permissions,
        shared,
        mounts,
        env,
        environment,
        attributes,
    } = group;
    let facts = attributes
        .iter()
        .map(|(key, text)| (key.clone(), Fact::parse(text)));
    DeviceGroup {
        vendor: vendor.clone(),
        kind: kind.clone(),
        name: name.clone(),
        resource: resource.clone(),
        attributes: facts.collect::<BTreeMap<_, _>>(),
        shares: *shares,
        quota: group.quotas(),
        placement: (*placement).into(),
        devices: Vec::new(),
        variable: env.clone(),
        env: environment.clone(),
        shared: shared
            .iter()
            .map(|path| node(path.clone(), permissions))
            .collect(),
        mounts: mounts.iter().map(mount).collect(),
    }
}

fn mount(mount: &GroupMount) -> Mount {
    let GroupMount {
        host_path,
        container_path: _,
        read_only,
    } = mount;
    let source = MountSource::Host {
        path: host_path.clone(),
        missing: MissingSource::Fail,
    };
    Mount {
        readonly: *read_only,
        ..Mount::new(mount.destination(), source)
    }
}
