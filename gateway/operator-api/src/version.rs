//! The version of this build.

/// The version of this build: that of the commit, as the build script has found it, or of `SWITCHYARD_VERSION`; in
/// builds for tests, and without a checkout, Cargo's.
pub const VERSION: &str = match option_env!("SWITCHYARD_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The source revision of this build, by the same rules; `unknown` where the version is Cargo's.
pub const REVISION: &str = match option_env!("SWITCHYARD_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

#[cfg(test)]
#[path = "../build/identity.rs"]
mod identity;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::identity::{Checkout, is_of_commit, release, revision, version};

    fn checkout(time: &str, release: Option<&str>, is_changed: bool) -> Checkout {
        Checkout {
            commit: "0123456789ab".into(),
            time: time.into(),
            release: release.map(str::to_owned),
            is_changed,
        }
    }

    #[test]
    fn build_has_the_version_of_its_tag_or_of_its_commit() {
        let time = "20261129.184500";
        for (release, is_changed, expected, of_commit) in [
            (
                None,
                false,
                "0.1.0+git20261129.184500.0123456789ab",
                "0123456789ab",
            ),
            (
                None,
                true,
                "0.1.0+git20261129.184500.0123456789ab.changed",
                "0123456789ab-dirty",
            ),
            (Some("0.2.0"), false, "0.2.0", "0123456789ab"),
            (
                Some("0.2.0"),
                true,
                "0.2.0+git20261129.184500.0123456789ab.changed",
                "0123456789ab-dirty",
            ),
        ] {
            let checkout = checkout(time, release, is_changed);
            assert_eq!(version("0.1.0", &checkout), expected);
            assert_eq!(revision(&checkout), of_commit);
        }
    }

    #[test]
    fn release_builds_and_those_for_trying_have_the_version_of_their_commit() {
        assert!(is_of_commit("release") && !is_of_commit("debug"));
        let workspace = include_str!("../../../Cargo.toml");
        let quick = "[profile.quick]\ninherits = \"release\"\n";
        assert!(workspace.contains(quick), "deploy/quickstart builds it");
    }

    #[test]
    fn release_tag_is_a_v_and_a_version() {
        assert_eq!(release("v1.2.0\n"), Some("1.2.0"));
        assert_eq!(release("v1.2.0-rc.1"), Some("1.2.0-rc.1"));
        for other in ["1.2.0", "version", "v", ""] {
            assert_eq!(release(other), None, "{other:?}");
        }
    }

    /// As `deploy/debian/build` does it.
    fn of_package(version: &str) -> String {
        format!("{}-1", version.replace('-', "~"))
    }

    #[test]
    fn versions_of_packages_rise_with_commits_and_releases() {
        let rising = [
            "0.1.0-1".to_owned(),
            of_package(&version("0.1.0", &checkout("20261129.090000", None, false))),
            of_package(&version("0.1.0", &checkout("20261129.184500", None, false))),
            of_package(&version("0.1.0", &checkout("20261201.000000", None, false))),
            of_package("0.2.0-rc.1"),
            of_package(&version(
                "0.2.0-rc.1",
                &checkout("20261202.000000", None, false),
            )),
            of_package("0.2.0-rc.2"),
            of_package("0.2.0"),
            of_package(&version("0.2.0", &checkout("20261203.000000", None, false))),
            of_package("0.2.1"),
        ];
        for pair in rising.windows(2) {
            let compared = Command::new("dpkg")
                .args(["--compare-versions", &pair[0], "lt", &pair[1]])
                .status()
                .expect("the Debian package dpkg has it");
            assert!(compared.success(), "{pair:?}");
        }
    }
}
