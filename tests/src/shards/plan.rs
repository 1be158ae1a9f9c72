//! The slow items of a run of the tests.

use std::collections::BTreeSet;

use super::{EVERY_RUN, KILL_LISTS, RootPart, SLOW, Shard, Suite, What};

/// The extent of the slow items in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent {
    /// Everything.
    All,
    /// One shard, and what these source files decide, named from the root of the repository.
    Shard {
        /// The shard.
        shard: Shard,
        /// The files that were changed lately.
        changed: BTreeSet<String>,
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
    /// The tests in other suites of Debian.
    pub roots: Vec<(Suite, RootPart)>,
    /// True if the documentation is built.
    pub documentation: bool,
    /// The items left to the other shards.
    pub left_out: Vec<What>,
}

impl Plan {
    /// Makes the plan of a run of this extent.
    #[must_use]
    pub fn new(extent: &Extent) -> Self {
        let mut plan = Self::default();
        for what in EVERY_RUN {
            plan.add(*what);
        }
        for slow in SLOW {
            let is_wanted = match extent {
                Extent::All => true,
                Extent::Shard { shard, changed } => {
                    slow.shard == shard.number()
                        || slow.what.file().is_some_and(|file| changed.contains(&file))
                }
            };
            if is_wanted {
                plan.add(slow.what);
            } else {
                plan.leave_out(slow.what);
            }
        }
        if let Extent::Shard { shard, changed } = extent {
            plan.shard = Some(*shard);
            plan.whole = KILL_LISTS
                .iter()
                .map(|(_, file)| *file)
                .filter(|file| changed.contains(*file))
                .collect();
        }
        plan
    }

    fn add(&mut self, what: What) {
        match what {
            // All tests run that are not skipped.
            What::Test(_) => {}
            What::Fact(_, name) => self.facts.push(name),
            What::Smoke(name) => self.smoke.push(name),
            What::PowerCut => self.power_cut = true,
            What::Root(suite, part) => self.roots.push((suite, part)),
            What::Documentation => self.documentation = true,
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
