//! The slow items of a run of the tests.

use std::collections::BTreeSet;

use super::{EVERY_RUN, KILL_LISTS, RootTests, SLOW, Shard, Suite, WHOLE_SUITE, What};
use crate::versions::OtherVersion;

/// By how many seconds the slow items of changed files may lengthen a run, so that a run of any commit stays
/// within its time.
pub const ALLOWANCE: f32 = 60.0;

/// By how many seconds a whole list of kill points lengthens a run, instead of an eighth of it: the mean of a run of all
/// lists on a busy machine.
const WHOLE_LIST: f32 = 25.0;

/// The extent of the slow items in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent {
    /// Everything: all shards, and the whole of the tests in the root of [`WHOLE_SUITE`] in place of its parts.
    All,
    /// One shard, and what these source files decide, named from the root of the repository.
    Shard {
        /// The shard.
        shard: Shard,
        /// The files that were changed lately, the last changed first.
        changed: Vec<String>,
    },
}

/// The slow items of a run of the tests, beside all that is quick.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The shard, if not all of them: lists of kill points take each eighth point.
    pub shard: Option<Shard>,
    /// The sources whose lists of kill points are taken whole nevertheless.
    pub whole: BTreeSet<&'static str>,
    /// The tests of `tests/it` that are not run.
    pub skipped: Vec<&'static str>,
    /// The facts of the guest.
    pub facts: Vec<&'static str>,
    /// The tests of `tests/it` that the guest runs.
    pub smoke: Vec<&'static str>,
    /// True if the power of the guest is cut, and the guest restarted.
    pub power_cut: bool,
    /// True if the guest boots with SELinux.
    pub selinux: bool,
    /// The tests in other suites of Debian.
    pub roots: Vec<(Suite, RootTests)>,
    /// True if the documentation is built.
    pub documentation: bool,
    /// The other versions whose programs are built, and with which tests and facts of the guest are run: these facts are not in
    /// `facts`.
    pub versions: Vec<OtherVersion>,
    /// The items left to the other shards.
    pub left_out: Vec<What>,
    /// The changed files with slow items that did not fit into [`ALLOWANCE`].
    pub postponed: Vec<String>,
}

impl Plan {
    /// Makes the plan of a run of this extent.
    #[must_use]
    pub fn new(extent: &Extent) -> Self {
        let mut plan = Self::default();
        for what in EVERY_RUN {
            plan.add(*what);
        }
        let recent = match extent {
            Extent::All => BTreeSet::new(),
            Extent::Shard { shard, changed } => {
                plan.shard = Some(*shard);
                plan.choose_recent(*shard, changed)
            }
        };
        for slow in SLOW {
            if plan.shard.is_none_or(|shard| slow.is_in(shard)) || recent.contains(&slow.what) {
                plan.add(slow.what);
            } else {
                plan.leave_out(slow.what);
            }
        }
        if *extent == Extent::All {
            plan.roots.retain(|(suite, _)| *suite != WHOLE_SUITE);
            plan.roots.push((WHOLE_SUITE, RootTests::Whole));
        }
        plan
    }

    /// Returns the slow items of changed files that this shard runs too: those that fit into the allowance, of the
    /// last changed file first. Lists of kill points are taken whole in the same way.
    fn choose_recent(&mut self, shard: Shard, changed: &[String]) -> BTreeSet<What> {
        let mut chosen = BTreeSet::new();
        let mut allowance = ALLOWANCE;
        for file in changed {
            let mut is_whole = true;
            let lists: Vec<_> = KILL_LISTS.iter().filter(|(_, list)| list == file).collect();
            if let Some((_, list)) = lists.first() {
                let cost = lists.iter().map(|_| WHOLE_LIST).sum();
                if allowance >= cost {
                    allowance -= cost;
                    self.whole.insert(list);
                } else {
                    is_whole = false;
                }
            }
            let others = SLOW.iter().filter(|slow| !slow.is_in(shard));
            for slow in others.filter(|slow| slow.what.file().as_ref() == Some(file)) {
                if slow.lengthens() <= allowance {
                    allowance -= slow.lengthens();
                    chosen.insert(slow.what);
                } else {
                    is_whole = false;
                }
            }
            if !is_whole {
                self.postponed.push(file.clone());
            }
        }
        chosen
    }

    fn add(&mut self, what: What) {
        match what {
            // All tests run that are not skipped.
            What::Test(_) => {}
            What::Fact(_, name) => self.facts.push(name),
            What::Smoke(name) => self.smoke.push(name),
            What::PowerCut => self.power_cut = true,
            What::Selinux => self.selinux = true,
            What::Root(suite, part) => self.roots.push((suite, RootTests::Part(part))),
            What::Documentation => self.documentation = true,
            What::Version(version) => self.versions.push(version),
        }
    }

    fn leave_out(&mut self, what: What) {
        if let What::Test(name) = what {
            self.skipped.push(name);
        }
        self.left_out.push(what);
    }

    /// The tests whose lists of kill points are taken in part.
    pub fn tests_in_part(&self) -> impl Iterator<Item = &'static str> {
        let lists = if self.shard.is_some() {
            KILL_LISTS
        } else {
            &[]
        };
        lists
            .iter()
            .filter(|(_, file)| !self.whole.contains(file))
            .map(|(test, _)| *test)
    }
}
