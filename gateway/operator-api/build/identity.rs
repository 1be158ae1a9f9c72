//! The version and the revision of a build from a git checkout.
//!
//! Versions rise with commits in the order of dpkg and of semantic versioning, which ignores what follows a `+`:
//!
//! ```text
//! 0.2.0-rc.1  <  0.2.0-rc.1+git20261201.101500.abc…  <  0.2.0  <  0.2.0+git20261204.173000.def…  <  0.2.1
//! └ tag          └ a commit after it                    └ tag     └ a commit after it
//! ```

/// A checkout, as git describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checkout {
    /// The commit: the first digits of its hash.
    pub(crate) commit: String,
    /// Time of the commit in UTC, as `20261129.184500`.
    pub(crate) time: String,
    /// The version in the release tag of this commit; `None` if it has no such tag.
    pub(crate) release: Option<String>,
    /// True if sources differ from the commit.
    pub(crate) is_changed: bool,
}

/// Returns whether a build has the version of its commit, by what Cargo calls its profile: `release` for that and all that
/// inherit from it, `debug` for others. Pure.
pub(crate) fn is_of_commit(profile: &str) -> bool {
    profile == "release"
}

/// The version in a release tag such as `v1.2.0`; `None` if the tag names no release. Pure.
pub(crate) fn release(tag: &str) -> Option<&str> {
    let version = tag.trim().strip_prefix('v')?;
    version
        .starts_with(|first: char| first.is_ascii_digit())
        .then_some(version)
}

/// The version of a build whose manifest has the version of the last release. Pure.
pub(crate) fn version(manifest: &str, checkout: &Checkout) -> String {
    match &checkout.release {
        Some(release) if !checkout.is_changed => release.clone(),
        release => {
            let base = release.as_deref().unwrap_or(manifest);
            let Checkout { time, commit, .. } = checkout;
            let changed = if checkout.is_changed { ".changed" } else { "" };
            format!("{base}+git{time}.{commit}{changed}")
        }
    }
}

/// The revision of a build. Pure.
pub(crate) fn revision(checkout: &Checkout) -> String {
    let changed = if checkout.is_changed { "-dirty" } else { "" };
    format!("{}{changed}", checkout.commit)
}
