//! Known vulnerabilities of OCI runtimes and containerd, by version, through which a container or an image
//! can affect the host.
//!
//! The list informs operators and decides nothing: a distribution may have fixed a vulnerability without
//! changing the version number. It has the vulnerabilities since 2019 that are exploitable here; those that
//! need containerd's own CRI, a restore from a checkpoint, a virtual machine or a user of the host are left
//! out.

use std::collections::BTreeSet;

use switchyard_core::backend::Advisory;

/// A version: major, minor, patch, and the number of a release candidate or [`RELEASE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32, u32);

/// The last number of a version that is not a release candidate.
const RELEASE: u32 = u32::MAX;

const fn release(major: u32, minor: u32, patch: u32) -> Version {
    Version(major, minor, patch, RELEASE)
}

const fn candidate(major: u32, minor: u32, patch: u32, number: u32) -> Version {
    Version(major, minor, patch, number)
}

/// A version older than all others.
const ANY_VERSION: Version = Version(0, 0, 0, 0);

/// A vulnerability.
struct Vulnerability {
    id: &'static str,
    program: &'static str,
    /// The first affected version.
    since: Version,
    /// The first fixed version of each series that was fixed.
    fixed: &'static [Version],
}

const fn vulnerability(
    id: &'static str,
    program: &'static str,
    since: Version,
    fixed: &'static [Version],
) -> Vulnerability {
    Vulnerability {
        id,
        program,
        since,
        fixed,
    }
}

/// The fixed versions of the three vulnerabilities of November 2025.
const PROCFS: &[Version] = &[release(1, 2, 8), release(1, 3, 3), candidate(1, 4, 0, 3)];

const VULNERABILITIES: [Vulnerability; 17] = [
    // A container overwrites the runtime through /proc/self/exe.
    vulnerability(
        "CVE-2019-5736",
        "runc",
        ANY_VERSION,
        &[candidate(1, 0, 0, 7)],
    ),
    // An image mounts over /proc and so evades AppArmor and SELinux.
    vulnerability(
        "CVE-2019-16884",
        "runc",
        ANY_VERSION,
        &[candidate(1, 0, 0, 9)],
    ),
    // Two containers that share a volume race the mount of /proc; the second CVE is a regression of the
    // first.
    vulnerability(
        "CVE-2019-19921",
        "runc",
        ANY_VERSION,
        &[candidate(1, 0, 0, 10)],
    ),
    vulnerability(
        "CVE-2023-27561",
        "runc",
        candidate(1, 0, 0, 95),
        &[release(1, 1, 5)],
    ),
    // Two containers that share a volume exchange the target of a mount.
    vulnerability(
        "CVE-2021-30465",
        "runc",
        ANY_VERSION,
        &[candidate(1, 0, 0, 95)],
    ),
    // /proc is a symbolic link, which evades AppArmor and SELinux.
    vulnerability("CVE-2023-28642", "runc", ANY_VERSION, &[release(1, 1, 5)]),
    // A file descriptor of the host leaks into the container.
    vulnerability(
        "CVE-2024-21626",
        "runc",
        candidate(1, 0, 0, 93),
        &[release(1, 1, 12)],
    ),
    // Empty files are created on the host.
    vulnerability(
        "CVE-2024-45310",
        "runc",
        ANY_VERSION,
        &[release(1, 1, 14), candidate(1, 2, 0, 3)],
    ),
    // Masked paths, /dev/console, and redirected writes to /proc.
    vulnerability("CVE-2025-31133", "runc", ANY_VERSION, PROCFS),
    vulnerability("CVE-2025-52565", "runc", candidate(1, 0, 0, 3), PROCFS),
    vulnerability("CVE-2025-52881", "runc", ANY_VERSION, PROCFS),
    // /dev is a symbolic link. The 1.2 series got no fix.
    vulnerability(
        "CVE-2026-41579",
        "runc",
        ANY_VERSION,
        &[release(1, 3, 6), release(1, 4, 3), candidate(1, 5, 0, 3)],
    ),
    // Symbolic links in an image redirect a mount to the host.
    vulnerability("CVE-2019-18837", "crun", ANY_VERSION, &[release(0, 10, 5)]),
    // /dev/console, or /dev/null, is a symbolic link.
    vulnerability(
        "CVE-2026-88264, CVE-2026-88265",
        "crun",
        ANY_VERSION,
        &[release(1, 30, 0)],
    ),
    // A container with the host's network reaches the shims.
    vulnerability(
        "CVE-2020-15257",
        "containerd",
        ANY_VERSION,
        &[release(1, 3, 9), release(1, 4, 3)],
    ),
    // Unpacking an image changes modes of files of the host.
    vulnerability(
        "CVE-2021-32760",
        "containerd",
        ANY_VERSION,
        &[release(1, 4, 8), release(1, 5, 4)],
    ),
    // Unpacking an image changes files of the host.
    vulnerability(
        "CVE-2025-47290",
        "containerd",
        release(2, 1, 0),
        &[release(2, 1, 1)],
    ),
];

// === impl Version ===

impl Version {
    /// Parses `1.1.5+ds1`, `v2.1.4`, `1.0.0-rc93`, `1.0.0~rc95+ds1`, `1.4.0-rc.3`; `None` if the text is not
    /// a version.
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text
            .find(|char: char| !char.is_ascii_digit() && char != '.')
            .unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let mut numbers = numbers.split('.').map(|number| number.parse::<u32>().ok());
        let major = numbers.next()??;
        let minor = numbers.next()??;
        let patch = match numbers.next() {
            Some(patch) => patch?,
            None => 0,
        };
        let rest = rest.trim_start_matches(['-', '~']);
        let candidate = match rest.strip_prefix("rc") {
            Some(rest) => {
                let rest = rest.trim_start_matches(['.', '-']);
                let end = rest
                    .find(|char: char| !char.is_ascii_digit())
                    .unwrap_or(rest.len());
                rest[..end].parse().unwrap_or(0)
            }
            None if rest.starts_with("alpha") || rest.starts_with("beta") => 0,
            None => RELEASE,
        };
        Some(Self(major, minor, patch, candidate))
    }

    const fn series(self) -> (u32, u32) {
        (self.0, self.1)
    }
}

impl Vulnerability {
    /// Returns whether a version is affected: if its own series has a fixed version, by that one; else unless
    /// it is newer than all fixed versions.
    fn affects(&self, version: Version) -> bool {
        let own = self
            .fixed
            .iter()
            .find(|fix| fix.series() == version.series());
        let is_fixed = match own {
            Some(fix) => version >= *fix,
            None => self.fixed.iter().all(|fix| version > *fix),
        };
        version >= self.since && !is_fixed
    }
}

/// The name and the version in the first line that a runtime prints, as in `runc version 1.1.5+ds1`.
#[must_use]
pub fn parse_version_output(output: &str) -> Option<(String, String)> {
    let (program, version) = output.lines().next()?.split_once(" version ")?;
    let version = version.split_whitespace().next()?;
    let is_word =
        |text: &str| !text.is_empty() && text.len() <= 100 && !text.contains(char::is_whitespace);
    (is_word(program) && is_word(version)).then(|| (program.to_owned(), version.to_owned()))
}

/// The ids of the known vulnerabilities of a program at this version.
fn vulnerabilities(program: &str, version: &str) -> Vec<String> {
    let Some(parsed) = Version::parse(version) else {
        return Vec::new();
    };
    let of_it = VULNERABILITIES
        .iter()
        .filter(|known| known.program == program && known.affects(parsed));
    of_it
        .flat_map(|known| known.id.split(", "))
        .map(str::to_owned)
        .collect()
}

/// The advisories for those of these programs and versions with known vulnerabilities, except for those to
/// ignore.
#[must_use]
pub fn advisories(
    programs: impl IntoIterator<Item = (String, String)>,
    ignore: &[String],
) -> Vec<Advisory> {
    // Two handlers may run the same program.
    let programs: BTreeSet<_> = programs.into_iter().collect();
    let named = programs
        .into_iter()
        .filter(|(program, version)| !ignore.contains(&format!("{program} {version}")));
    let with_ids = named.map(|(program, version)| Advisory {
        ids: vulnerabilities(&program, &version),
        program,
        version,
    });
    with_ids
        .filter(|advisory| !advisory.ids.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(program: &str, version: &str, ids: &[&str]) {
        assert_eq!(
            vulnerabilities(program, version),
            ids,
            "{program} {version}"
        );
    }

    #[test]
    fn versions_are_read_as_upstream_and_distributions_write_them() {
        for (text, version) in [
            ("1.1.5+ds1", release(1, 1, 5)),
            ("v2.1.4", release(2, 1, 4)),
            ("1.6.20~ds1", release(1, 6, 20)),
            ("1.0-rc6", candidate(1, 0, 0, 6)),
            ("1.0.0~rc93+ds1", candidate(1, 0, 0, 93)),
            ("1.4.0-rc.3", candidate(1, 4, 0, 3)),
            ("1.4.0-rc.3+dev", candidate(1, 4, 0, 3)),
            ("2.0.0-beta.1", candidate(2, 0, 0, 0)),
            ("1.8.1.0.0.0.12-ab12", release(1, 8, 1)),
        ] {
            assert_eq!(Version::parse(text), Some(version), "{text}");
        }
        for text in [
            "",
            "v",
            "unknown",
            "1",
            "1.x.2",
            "99999999999.1.1",
            "1..2",
            "(devel)",
        ] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        assert!(
            candidate(1, 0, 0, 95) < release(1, 0, 0)
                && candidate(1, 0, 0, 9) < candidate(1, 0, 0, 10)
        );
    }

    #[test]
    fn a_version_has_what_its_own_series_has_not_fixed() {
        let procfs = ["CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"];
        check(
            "runc",
            "1.2.7",
            &[&procfs[..], &["CVE-2026-41579"]].concat(),
        );
        check("runc", "1.2.8", &["CVE-2026-41579"]);
        check("runc", "1.3.3", &["CVE-2026-41579"]);
        check("runc", "1.3.6", &[]);
        check(
            "runc",
            "1.4.0-rc.2",
            &[&procfs[..], &["CVE-2026-41579"]].concat(),
        );
        check("runc", "1.4.2", &["CVE-2026-41579"]);
        check("runc", "1.4.3", &[]);
        check("runc", "1.5.0-rc.2", &["CVE-2026-41579"]);
        check("runc", "1.5.0-rc.3", &[]);
        check("runc", "2.0.0", &[]);
        check("crun", "1.8.1", &["CVE-2026-88264", "CVE-2026-88265"]);
        check("crun", "1.30", &[]);
        check("containerd", "1.6.20~ds1", &[]);
        check("containerd", "2.1.0", &["CVE-2025-47290"]);
        check("containerd", "v2.1.1", &[]);
        check("containerd", "1.4.7", &["CVE-2021-32760"]);
        check("youki", "0.0.1", &[]);
        check("runc", "unknown", &[]);
    }

    #[test]
    fn a_version_has_nothing_that_came_after_it() {
        // The leak of CVE-2024-21626 was introduced in rc93, the regression of CVE-2023-27561 in rc95.
        let has = |version: &str, id: &str| {
            vulnerabilities("runc", version)
                .iter()
                .any(|known| known == id)
        };
        assert!(!has("1.0.0-rc92", "CVE-2024-21626") && has("1.0.0-rc93", "CVE-2024-21626"));
        assert!(has("1.1.11", "CVE-2024-21626") && !has("1.1.12", "CVE-2024-21626"));
        assert!(!has("1.0.0-rc94", "CVE-2023-27561") && has("1.1.4", "CVE-2023-27561"));
        assert!(has("1.0-rc6", "CVE-2019-5736") && !has("1.0.0-rc7", "CVE-2019-5736"));
    }

    #[test]
    fn an_exact_version_can_be_ignored_and_each_program_is_named_once() {
        let programs = || {
            ["1.1.5+ds1", "1.1.5+ds1", "1.1.4"]
                .map(|version| ("runc".to_owned(), version.to_owned()))
        };
        let named = |ignore: &[&str]| -> Vec<String> {
            let ignore: Vec<_> = ignore.iter().map(|text| (*text).to_owned()).collect();
            advisories(programs(), &ignore)
                .into_iter()
                .map(|advisory| advisory.version)
                .collect()
        };
        assert_eq!(named(&[]), ["1.1.4", "1.1.5+ds1"]);
        assert_eq!(named(&["runc 1.1.5+ds1"]), ["1.1.4"]);
        assert_eq!(named(&["runc 1.1.5", "crun 1.1.4"]), ["1.1.4", "1.1.5+ds1"]);
    }

    #[test]
    fn what_runtimes_tell_of_themselves_is_read() {
        let told = |text: &str| {
            parse_version_output(text).map(|(program, version)| format!("{program} {version}"))
        };
        assert_eq!(
            told("runc version 1.1.5+ds1\ncommit: 1\n").as_deref(),
            Some("runc 1.1.5+ds1")
        );
        assert_eq!(told("crun version 1.8.1\n").as_deref(), Some("crun 1.8.1"));
        for text in [
            "",
            "kata-runtime  : 3.2.0\n",
            " version \n",
            "a b version 1\n",
        ] {
            assert_eq!(told(text), None, "{text:?}");
        }
    }
}
