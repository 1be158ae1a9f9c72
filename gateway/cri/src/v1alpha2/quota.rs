//! Parses disk quotas: directories, sizes and projects.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Component, PathBuf};

use switchyard_core::spec::{DiskLimit, LimitedPlaces, Project, ProjectId};
use switchyard_core::{Error, Result};

/// The key for the root file system and all volumes.
const ALL: &str = ".*";
/// Separator of directories that are counted together.
const JOINT: char = '&';
/// Units of sizes, as exponents of two.
const UNITS: [(&str, u32); 5] = [("k", 10), ("m", 20), ("g", 30), ("t", 40), ("p", 50)];

/// The requested limits. `quota_id` is the project that all of them are counted in; if it is empty, each has
/// its own.
pub(super) fn disk_limits(
    quotas: &BTreeMap<String, String>,
    field: &str,
    quota_id: &str,
) -> Result<Vec<DiskLimit>> {
    let project = project(quota_id)?;
    if project.is_some() && quotas.len() != 1 {
        let why = format!(
            "{quota_id:?} is for exactly one entry of disk_quota, and there are {}",
            quotas.len()
        );
        return Err(Error::invalid("config.quota_id", why));
    }
    let limit = |(key, size): (&String, &String)| {
        let field = format!("{field}.disk_quota[{key:?}]");
        Ok(DiskLimit {
            places: places(&field, key, project.is_some())?,
            bytes: bytes(&field, size)?,
            project: project.unwrap_or(Project::New),
            field,
        })
    };
    quotas.iter().map(limit).collect()
}

/// The project in `quota_id`; `None` if there is none.
fn project(quota_id: &str) -> Result<Option<Project>> {
    match quota_id {
        "" | "0" => Ok(None),
        "-1" => Ok(Some(Project::New)),
        number => match number.parse().ok().and_then(ProjectId::new) {
            Some(id) => Ok(Some(Project::Given(id))),
            None => Err(Error::invalid(
                "config.quota_id",
                format!(
                    "{number:?} is none of: empty or 0 for none, -1 for a new one, and a number from {} on",
                    ProjectId::FIRST
                ),
            )),
        },
    }
}

/// The directories of a key; with `joined` they are counted together in one project.
fn places(field: &str, key: &str, joined: bool) -> Result<LimitedPlaces> {
    if key == ALL {
        return Ok(if joined {
            LimitedPlaces::Rest
        } else {
            LimitedPlaces::RestApart
        });
    }
    key.split(JOINT)
        .map(|part| volume_path(field, part))
        .collect::<Result<_>>()
        .map(LimitedPlaces::These)
}

/// The path of one directory of a key.
fn volume_path(field: &str, part: &str) -> Result<PathBuf> {
    let path = PathBuf::from(part);
    let leads_elsewhere = path.components().any(|part| part == Component::ParentDir);
    if !part.starts_with('/') || leads_elsewhere || part.contains('\0') {
        let why = format!(
            "{part:?} is none of: \"/\" for the root file system, the path of a volume, several of these with \"{JOINT}\" \
                 between them, and \"{ALL}\" alone"
        );
        return Err(Error::invalid(field, why));
    }
    Ok(path)
}

/// Parses a size: a whole number, followed by nothing or `b` for bytes, or by a power of 1024, which is `k`,
/// `m`, `g`, `t` or `p`, optionally followed by `b` or `ib`. Case is ignored.
fn bytes(field: impl Display, size: &str) -> Result<u64> {
    let digits = size.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = size.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let bits = match unit.as_str() {
        "" | "b" => Some(0),
        unit => UNITS
            .iter()
            .find(|(letter, _)| {
                unit.strip_prefix(letter)
                    .is_some_and(|rest| matches!(rest, "" | "b" | "ib"))
            })
            .map(|(_, bits)| *bits),
    };
    let bytes = number
        .parse::<u64>()
        .ok()
        .zip(bits)
        .and_then(|(number, bits)| number.checked_mul(1 << bits));
    match bytes {
        Some(0) => Err(Error::invalid(field, "0 would be no limit: leave it out")),
        Some(bytes) => Ok(bytes),
        None => {
            let why = format!(
                "{size:?} is no size: a whole number with b, k, m, g, t or p after it, as in \"10g\""
            );
            Err(Error::invalid(field, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(quotas: &[(&str, &str)], quota_id: &str) -> Result<Vec<DiskLimit>> {
        let quotas = quotas
            .iter()
            .map(|(key, size)| ((*key).to_owned(), (*size).to_owned()))
            .collect();
        disk_limits(&quotas, "linux", quota_id)
    }

    fn these(paths: &[&str]) -> LimitedPlaces {
        LimitedPlaces::These(paths.iter().map(PathBuf::from).collect())
    }

    #[test]
    fn quota_key_forms_select_directories() {
        let id = ProjectId::new(16_777_300).expect("it is one");
        for (key, quota_id, places, project) in [
            ("/", "", these(&["/"]), Project::New),
            ("/", "0", these(&["/"]), Project::New),
            ("/abc", "-1", these(&["/abc"]), Project::New),
            (
                "/&/abc",
                "16777300",
                these(&["/", "/abc"]),
                Project::Given(id),
            ),
            (".*", "", LimitedPlaces::RestApart, Project::New),
            (".*", "-1", LimitedPlaces::Rest, Project::New),
        ] {
            let limits = asked(&[(key, "10k")], quota_id).expect("it is well formed");
            let field = format!("linux.disk_quota[{key:?}]");
            assert_eq!(
                limits,
                [DiskLimit {
                    places,
                    bytes: 10_240,
                    project,
                    field
                }],
                "{key} {quota_id}"
            );
        }
        assert_eq!(asked(&[], "0").expect("nothing is asked for"), []);
        assert_eq!(
            asked(&[("/", "1g"), ("/abc", "2g")], "")
                .expect("they are well formed")
                .len(),
            2
        );
    }

    #[test]
    fn invalid_quota_entry_is_rejected_by_name() {
        for (quotas, quota_id, field) in [
            (&[("abc", "1g")][..], "", "linux.disk_quota[\"abc\"]"),
            (&[("", "1g")], "", "linux.disk_quota[\"\"]"),
            (&[("/a&", "1g")], "", "linux.disk_quota[\"/a&\"]"),
            (&[("/&.*", "1g")], "", "linux.disk_quota[\"/&.*\"]"),
            (&[("/../a", "1g")], "", "linux.disk_quota[\"/../a\"]"),
            (&[("/", "0")], "", "linux.disk_quota[\"/\"]"),
            (&[("/", "1.5g")], "", "linux.disk_quota[\"/\"]"),
            (&[], "-1", "config.quota_id"),
            (&[("/", "1g"), ("/a", "1g")], "-1", "config.quota_id"),
            (&[("/", "1g")], "-2", "config.quota_id"),
            (&[("/", "1g")], "16777215", "config.quota_id"),
            (&[("/", "1g")], "4294967295", "config.quota_id"),
            (&[("/", "1g")], "mine", "config.quota_id"),
        ] {
            let error = asked(quotas, quota_id).expect_err("it cannot be meant");
            assert!(
                error.to_string().starts_with(&format!("{field}: ")),
                "{error}"
            );
        }
    }

    #[test]
    fn quota_size_is_a_whole_number_with_unit() {
        for (size, expected) in [
            ("1", 1),
            ("7b", 7),
            ("10g", 10 << 30),
            ("10G", 10 << 30),
            ("3MB", 3 << 20),
            ("3MiB", 3 << 20),
            ("2t", 2 << 40),
            ("1P", 1 << 50),
        ] {
            assert_eq!(bytes("x", size).expect(size), expected, "{size}");
        }
        for bad in [
            "",
            "g",
            "-1",
            "+1",
            "1 g",
            "1bb",
            "1kk",
            "1e3",
            "99999999999t",
            "18446744073709551616",
            "\u{661}",
        ] {
            assert!(bytes("x", bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_quota_text_parses_exactly_or_is_rejected(size in "[0-9]{0,22}[a-zA-Z]{0,3}") {
            if let Ok(parsed) = bytes("x", &size) {
                let number: u128 = size.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().unwrap();
                let unit = size.trim_start_matches(|c: char| c.is_ascii_digit()).to_ascii_lowercase();
                let power = "bkmgtp".find(unit.chars().next().unwrap_or('b')).unwrap();
                prop_assert_eq!(u128::from(parsed), number << (10 * power));
            }
        }

        #[test]
        fn any_quota_request_does_not_panic(key in "\\PC{0,12}", size in "\\PC{0,6}", id in "\\PC{0,6}") {
            let _ = asked(&[(&key, &size)], &id);
        }
    }
}
