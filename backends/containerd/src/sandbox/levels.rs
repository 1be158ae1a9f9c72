//! The SELinux levels of sandboxes: each has two of the policy's categories, so that its tasks cannot use the files of
//! others.
//!
//! The level of a sandbox is in its record; this is what the next one must not get.

use std::collections::{BTreeSet, HashMap, HashSet};

use parking_lot::Mutex;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::spec::{SandboxSpec, SelinuxLabel};
use switchyard_core::{Error, Result};
use switchyard_runtime_spec::input::SelinuxDefaults;

use super::{SandboxEntry, Sandboxes};
use crate::base::random::fill_random;

/// Number of categories that containers get: `c0` to `c1023`, as policies have them.
const CATEGORIES: u32 = 1024;
/// Number of pairs of them.
const PAIRS: u32 = CATEGORIES * (CATEGORIES - 1) / 2;

/// Sandboxes that share a level unless they ask for one: those of an allocation, or the attempts of a pod. The group of
/// an owner; an empty name is a group of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LevelGroup {
    pub(crate) owner: Owner,
    pub(crate) name: String,
}

/// The levels of the sandboxes that exist.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    held: Mutex<HashMap<SandboxId, HeldLevel>>,
}

#[derive(Debug)]
struct HeldLevel {
    level: String,
    pair: Option<Pair>,
    /// The group that shares it; `None` for a level that was asked for.
    group: Option<LevelGroup>,
}

/// Two categories, the lower one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Pair {
    low: u32,
    high: u32,
}

// === impl Levels ===

impl Levels {
    /// The level of a new sandbox, which holds it until [`Levels::release`]: the one that is `asked` for, which several
    /// may have; that of its group; or one at this sensitivity with a pair of categories that no other sandbox has,
    /// chosen by `random` numbers.
    ///
    /// # Errors
    /// `ResourceExhausted` if all pairs are in use.
    pub(crate) fn claim(
        &self,
        id: SandboxId,
        asked: &str,
        group: LevelGroup,
        (sensitivity, random): (&str, u32),
    ) -> Result<String> {
        if !asked.is_empty() {
            self.adopt(id, asked, None);
            return Ok(asked.to_owned());
        }
        let mut held = self.held.lock();
        let has_name = !group.name.is_empty();
        let of_group = held
            .values()
            .find(|other| has_name && other.group.as_ref() == Some(&group));
        let level = match of_group {
            Some(other) => other.level.clone(),
            None => {
                let taken: HashSet<Pair> = held.values().filter_map(|other| other.pair).collect();
                let Pair { low, high } = free_pair(&taken, random).ok_or_else(|| {
                    let why = "each pair of SELinux categories is in use: remove sandboxes, or give them levels";
                    Error::exhausted(format!("sandbox {id}: {why}"))
                })?;
                format!("{sensitivity}:c{low},c{high}")
            }
        };
        held.insert(id, HeldLevel::new(&level, Some(group)));
        Ok(level)
    }

    /// Notes the level in the record of a sandbox that exists, and the group that shares it, if one does.
    pub(crate) fn adopt(&self, id: SandboxId, level: &str, group: Option<LevelGroup>) {
        if !level.is_empty() {
            self.held.lock().insert(id, HeldLevel::new(level, group));
        }
    }

    /// Gives the level of a sandbox back; it stays in use while another one has it. Idempotent.
    pub(crate) fn release(&self, id: SandboxId) {
        self.held.lock().remove(&id);
    }
}

// === impl HeldLevel ===

impl HeldLevel {
    fn new(level: &str, group: Option<LevelGroup>) -> Self {
        Self {
            level: level.to_owned(),
            pair: Pair::of(level),
            group,
        }
    }
}

// === impl Pair ===

impl Pair {
    /// The pair of this number, below [`PAIRS`].
    const fn numbered(number: u32) -> Self {
        let high = u32::midpoint(1, (8 * number + 1).isqrt());
        Self {
            low: number - high * (high - 1) / 2,
            high,
        }
    }

    /// The two categories of a level, or of the higher one of a range; `None` if there are more or fewer.
    fn of(level: &str) -> Option<Self> {
        let high = level.split_once('-').map_or(level, |(_, high)| high);
        let (_, categories) = high.split_once(':')?;
        let mut found = BTreeSet::new();
        for part in categories.split(',') {
            let (first, last) = part.split_once('.').unwrap_or((part, part));
            let range = category(first)?..=category(last)?;
            found.extend(range.take(3));
        }
        let mut found = found.into_iter();
        match (found.next(), found.next(), found.next()) {
            (Some(low), Some(high), None) => Some(Self { low, high }),
            _ => None,
        }
    }
}

// === impl Sandboxes ===

impl Sandboxes {
    /// The SELinux label of a new sandbox, for its record: what is asked for, on a node whose policy has levels with one.
    /// The sandbox holds its level until it is destroyed.
    ///
    /// # Errors
    /// Those of [`Levels::claim`].
    pub(super) fn claim_label(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
    ) -> Result<Option<[String; 4]>> {
        let labels = self.context.host.selinux.as_ref();
        let mut label = spec.selinux.clone();
        if let Some(sensitivity) = labels.and_then(SelinuxDefaults::sensitivity) {
            let group = LevelGroup {
                owner: spec.meta.owner,
                name: spec.host_ports.group_name().to_owned(),
            };
            let mut random = [0; 4];
            fill_random(&mut random);
            let random = u32::from_le_bytes(random);
            let label = label.get_or_insert_default();
            let level = self
                .levels
                .claim(id, &label.level, group, (sensitivity, random))?;
            label.level = level;
        }
        Ok(label.map(
            |SelinuxLabel {
                 user,
                 role,
                 type_,
                 level,
             }| [user, role, type_, level],
        ))
    }

    /// Adopts the level in a sandbox's record. Whether it was asked for is not on record: one with two categories counts as
    /// that of the sandbox's group.
    pub(crate) fn adopt_level(&self, id: SandboxId, entry: &SandboxEntry) {
        let record = &entry.record;
        let Some([_, _, _, level]) = &record.selinux else {
            return;
        };
        let group = match (Pair::of(level), record.meta.owner(), &record.host_ports) {
            (Some(_), Ok(owner), Some(claims)) => Some(LevelGroup {
                owner,
                name: claims.group_name(),
            }),
            _ => None,
        };
        self.levels.adopt(id, level, group);
    }
}

fn category(name: &str) -> Option<u32> {
    let number = name.strip_prefix('c')?.parse().ok()?;
    (number < CATEGORIES).then_some(number)
}

/// The first pair that is not taken, from a random one on.
fn free_pair(taken: &HashSet<Pair>, random: u32) -> Option<Pair> {
    (0..PAIRS)
        .map(|step| Pair::numbered((random % PAIRS + step) % PAIRS))
        .find(|pair| !taken.contains(pair))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(owner: Owner, name: &str) -> LevelGroup {
        LevelGroup {
            owner,
            name: name.to_owned(),
        }
    }

    fn alone() -> LevelGroup {
        group(Owner::Kubernetes, "")
    }

    #[test]
    fn every_number_is_another_pair() {
        let all: HashSet<Pair> = (0..PAIRS).map(Pair::numbered).collect();
        assert_eq!(all.len(), 523_776);
        assert!(
            all.iter()
                .all(|pair| pair.low < pair.high && pair.high < CATEGORIES)
        );
    }

    #[test]
    fn pairs_are_read_from_levels() {
        for (level, expected) in [
            ("s0:c1,c2", Some((1, 2))),
            ("s0:c2,c1", Some((1, 2))),
            ("s0:c1.c2", Some((1, 2))),
            ("s0:c0,c1023", Some((0, 1023))),
            ("s0-s0:c7,c9", Some((7, 9))),
            ("s0:c1,c2-s15:c3,c4", Some((3, 4))),
            ("s0:c5,c5,c6", Some((5, 6))),
            // These are no pairs.
            ("s0", None),
            ("s0:c1", None),
            ("s0:c1,c1", None),
            ("s0:c1,c2,c3", None),
            ("s0:c1.c3", None),
            ("s0:c0.c1023", None),
            ("s0:c1,c1024", None),
            ("s0:c9.c1", None),
            ("s0:secret,c1", None),
            ("", None),
        ] {
            let pair = expected.map(|(low, high)| Pair { low, high });
            assert_eq!(Pair::of(level), pair, "{level}");
        }
    }

    #[test]
    fn sandboxes_get_levels_that_no_other_has() {
        let levels = Levels::default();
        let ids: Vec<_> = (0..200).map(|_| SandboxId::random()).collect();
        // The same random number for all.
        let claim = |id| levels.claim(id, "", alone(), ("s0", 77)).unwrap();
        let given: HashSet<_> = ids.iter().map(|id| claim(*id)).collect();
        assert_eq!(given.len(), ids.len());
        assert!(given.contains("s0:c11,c12"), "{given:?}");
        // What one had is free when it is gone, and not before.
        let first = levels.held.lock()[&ids[0]].level.clone();
        assert_ne!(claim(SandboxId::random()), first);
        levels.release(ids[0]);
        levels.release(ids[0]);
        assert_eq!(claim(SandboxId::random()), first);
    }

    #[test]
    fn levels_that_are_asked_for_are_honoured_and_given_to_nobody_else() {
        let levels = Levels::default();
        let (one, other) = (SandboxId::random(), SandboxId::random());
        for id in [one, other] {
            let given = levels.claim(id, "s0:c2,c1", alone(), ("s0", 0)).unwrap();
            assert_eq!(given, "s0:c2,c1");
        }
        // The pair of number 2 is c1 and c2.
        let next = |levels: &Levels| {
            let id = SandboxId::random();
            let given = levels.claim(id, "", alone(), ("s0", 2)).unwrap();
            levels.release(id);
            given
        };
        assert_eq!(next(&levels), "s0:c0,c3");
        levels.release(one);
        assert_eq!(next(&levels), "s0:c0,c3", "another sandbox has it");
        levels.release(other);
        assert_eq!(next(&levels), "s0:c1,c2");
    }

    #[test]
    fn sandboxes_of_a_group_share_a_level_also_after_a_restart() {
        let levels = Levels::default();
        let claim = |levels: &Levels, asked: &str, group: LevelGroup| {
            let id = SandboxId::random();
            (id, levels.claim(id, asked, group, ("s0", 9)).unwrap())
        };
        let of = |name: &str| group(Owner::Nomad, name);
        let (first, level) = claim(&levels, "", of("3a7c"));
        assert_eq!(claim(&levels, "", of("3a7c")).1, level);
        assert_ne!(claim(&levels, "", of("90ff")).1, level);
        assert_ne!(claim(&levels, "", of("")).1, level);
        assert_ne!(
            claim(&levels, "", group(Owner::Kubernetes, "3a7c")).1,
            level
        );
        // One that asks for a level of its own is not what the others follow.
        assert_eq!(claim(&levels, "s0:c700", of("51b0")).1, "s0:c700");
        assert_ne!(claim(&levels, "", of("51b0")).1, "s0:c700");

        let next = Levels::default();
        next.adopt(first, &level, Some(of("3a7c")));
        next.adopt(SandboxId::random(), "", Some(of("of an earlier version")));
        assert_eq!(claim(&next, "", of("3a7c")).1, level);
        assert_ne!(claim(&next, "", of("90ff")).1, level);
        assert_ne!(claim(&next, "", of("of an earlier version")).1, "");
    }

    #[test]
    fn the_last_free_pair_is_found() {
        let taken: HashSet<Pair> = (0..PAIRS).map(Pair::numbered).collect();
        assert_eq!(free_pair(&taken, 5), None);
        let last: HashSet<Pair> = taken.into_iter().filter(|pair| pair.high > 1).collect();
        assert_eq!(free_pair(&last, 5), Some(Pair { low: 0, high: 1 }));
    }
}
