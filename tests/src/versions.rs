//! The programs of other versions, with which `tests/it/upgrades` runs this one: a *former* one, of the commit in
//! `tests/former`, and a *newer* one, of this source with the feature `newer`. `tests/versions` builds both.

use std::env;
use std::path::PathBuf;

use crate::daemon::binary;

/// The variable with the former program.
pub const FORMER_VARIABLE: &str = "SWITCHYARD_OTHER_BIN";

/// The variable with the newer program.
pub const NEWER_VARIABLE: &str = "SWITCHYARD_NEWER_BIN";

/// The tests that are run with both programs, by how their names begin, and not among the others.
const TESTS: [&str; 2] = ["upgrades::former::", "upgrades::newer::"];

/// Returns whether a test of `tests/it` is run with the programs of other versions.
#[must_use]
pub fn is_of_versions(test: &str) -> bool {
    TESTS.iter().any(|begin| test.starts_with(begin))
}

/// Returns whether a test of `tests/it` cannot be run without the newer program.
#[must_use]
pub fn needs_newer(test: &str) -> bool {
    test.starts_with(TESTS[1])
}

/// The former program. Without [`FORMER_VARIABLE`] it is the tested one, so that what is tested is the replacement of the
/// program alone.
///
/// # Panics
/// If neither is there.
#[track_caller]
#[must_use]
pub fn former() -> PathBuf {
    env::var_os(FORMER_VARIABLE).map_or_else(binary, PathBuf::from)
}

/// The newer program.
///
/// # Panics
/// Without [`NEWER_VARIABLE`]: a test of it must not pass without it.
#[track_caller]
#[must_use]
pub fn newer() -> PathBuf {
    env::var_os(NEWER_VARIABLE).map_or_else(
        || panic!("{NEWER_VARIABLE} is not set: tests/versions newer builds target/versions/newer"),
        PathBuf::from,
    )
}
