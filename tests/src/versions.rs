//! The programs of other versions, with which `tests/it/upgrades` runs this one: a *former* one, of the commit in
//! `tests/former`, and a *newer* one, of this source with the feature `newer`. `tests/versions` builds both.

use std::env;
use std::path::PathBuf;

use crate::daemon::binary;

/// The fact of the guest that needs the package of the former version.
pub const FORMER_FACT: &str = "former_version_is_upgraded_and_put_back_by_the_packages_of_both";

/// A version that is not the one of this source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherVersion {
    /// The commit that `tests/former` names.
    Former,
    /// This source with the feature `newer`.
    Newer,
}

impl OtherVersion {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Former, Self::Newer];

    /// The version whose program a test of `tests/it` needs. Such a test is not run among the others.
    #[must_use]
    pub fn of_test(test: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|version| test.starts_with(version.tests()))
    }

    /// Its name for `tests/versions`, and that of its program in `target/versions`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Former => "former",
            Self::Newer => "newer",
        }
    }

    /// The variable with its program.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Former => "SWITCHYARD_OTHER_BIN",
            Self::Newer => "SWITCHYARD_NEWER_BIN",
        }
    }

    /// The beginning of the names of the tests of `tests/it` that need its program.
    #[must_use]
    pub const fn tests(self) -> &'static str {
        match self {
            Self::Former => "upgrades::former::",
            Self::Newer => "upgrades::newer::",
        }
    }

    /// The fact of the guest that needs its package.
    #[must_use]
    pub const fn fact(self) -> Option<&'static str> {
        match self {
            Self::Former => Some(FORMER_FACT),
            Self::Newer => None,
        }
    }
}

/// The former program. Without its variable it is the tested one, so that what is tested is the replacement of the
/// program alone.
///
/// # Panics
/// If neither is there.
#[track_caller]
#[must_use]
pub fn former() -> PathBuf {
    env::var_os(OtherVersion::Former.variable()).map_or_else(binary, PathBuf::from)
}

/// The newer program.
///
/// # Panics
/// Without its variable: a test of it must not pass without it.
#[track_caller]
#[must_use]
pub fn newer() -> PathBuf {
    let variable = OtherVersion::Newer.variable();
    env::var_os(variable).map_or_else(
        || panic!("{variable} is not set: tests/versions newer builds target/versions/newer"),
        PathBuf::from,
    )
}
