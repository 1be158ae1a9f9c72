//! The tests that run in a root of another suite of Debian: a part of `tests/it` in a shard, the whole of it where everything is run.

use std::fmt;

use super::{RootPart, Suite, is_in};

/// The suite in whose root `tests/run --all` runs the whole of `tests/it`.
pub const WHOLE_SUITE: Suite = Suite::Sid;

/// The modules of `tests/it` that do not run there, each with the reason. All others do: `tests/root` has the packages that they need.
pub const LEFT_OUT: &[(&str, &str)] = &[
    (
        "architecture",
        "reads the source, documents and licences, and asks cargo, which the root does not have; starts no container",
    ),
    (
        "debian_packages",
        "compares lists of packages with dpkg's database of the machine that the scripts install them on; starts no container",
    ),
    (
        "distributions",
        "compiles, and packs the tree of the package with programs that the root does not have; starts no container",
    ),
    (
        "fuzzing",
        "calls functions of the crates in the process of the test; starts neither the daemon nor containerd",
    ),
    (
        "nomad::go_host",
        "builds a Go program in a root made of the packages that tests/run installs on the machine; the other modules of `nomad` \
         start the same tasks",
    ),
    (
        "shards",
        "reads the tables of the tests; starts no container",
    ),
    (
        "status_page",
        "needs Chromium, which would double the size of the root; the page shows what the command line prints in `objects`",
    ),
    (
        "support_works::roots",
        "enters roots by `tests/root`, which is not in one of them; starts no container",
    ),
];

/// The tests that run in a root of another suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootTests {
    /// One of the parts that shards run.
    Part(RootPart),
    /// All but the modules of [`LEFT_OUT`].
    Whole,
}

// === impl RootTests ===

impl RootTests {
    /// Returns whether a test of `tests/it` is one of them.
    #[must_use]
    pub fn has(self, test: &str) -> bool {
        match self {
            Self::Part(part) => part.has(test),
            Self::Whole => !LEFT_OUT.iter().any(|(module, _)| is_in(module, test)),
        }
    }

    /// The options of `tests/root` for a root with the packages that they need.
    #[must_use]
    pub const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Part(_) => &[],
            Self::Whole => &["--whole"],
        }
    }
}

impl fmt::Display for RootTests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part(part) => write!(f, "part {part:?}"),
            Self::Whole => f.write_str("whole"),
        }
    }
}
