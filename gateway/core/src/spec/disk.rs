//! Limits on a task's disk usage: which of its directories are counted together, and their limit.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A limit on the disk usage of some of a task's directories, for the life of the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskLimit {
    /// The directories.
    pub places: LimitedPlaces,
    /// Bytes; not 0.
    pub bytes: u64,
    /// The quota project that they are counted under.
    pub project: Project,
    /// The request field of the limit, as the caller spells it, for errors.
    pub field: String,
}

/// Directories of a task: its root file system, which is `/`, and its volumes, each by its path in the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitedPlaces {
    /// These, counted together.
    These(Vec<PathBuf>),
    /// All that no other limit names, counted together.
    Rest,
    /// All that no other limit names, each counted separately with this limit.
    RestApart,
}

/// The quota project that directories are counted under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Project {
    /// A new project of their own.
    New,
    /// This one, which may contain other directories as well. The last limit set on a project applies.
    Given(ProjectId),
}

/// A project number, under which file systems count the disk usage of directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProjectId(u32);

/// A part of a task's directories with one common limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPart {
    /// At least one; sorted.
    pub places: Vec<PathBuf>,
    /// Bytes; not 0.
    pub bytes: u64,
    /// The quota project that they are counted under.
    pub project: Project,
    /// The request field of the limit.
    pub field: String,
}

/// Divides a task's directories into parts according to its limits, the part of the root file system first.
/// No directory is in two parts.
///
/// # Errors
/// `InvalidArgument` for a path at which the task has no volume, and for a path that two limits name.
pub fn disk_parts(limits: &[DiskLimit], volumes: &[PathBuf]) -> Result<Vec<DiskPart>> {
    let mut rest: BTreeSet<&Path> = volumes.iter().map(PathBuf::as_path).collect();
    rest.insert(Path::new("/"));
    let mut named = BTreeSet::new();
    let mut parts = Vec::new();
    let mut add = |places: Vec<&Path>, limit: &DiskLimit| {
        let places: Vec<_> = places.into_iter().map(Path::to_path_buf).collect();
        if !places.is_empty() {
            let DiskLimit {
                places: _,
                bytes,
                project,
                field,
            } = limit.clone();
            parts.push(DiskPart {
                places,
                bytes,
                project,
                field,
            });
        }
    };
    for limit in limits {
        let LimitedPlaces::These(places) = &limit.places else {
            continue;
        };
        for place in places {
            if !named.insert(place.as_path()) {
                return Err(refusal(limit, place, "is limited twice: name it once"));
            }
            if !rest.remove(place.as_path()) {
                let why = "is neither the root file system, which is \"/\", nor where the container has a volume; \
                    directories of the host and of the image itself cannot be limited";
                return Err(refusal(limit, place, why));
            }
        }
        add(
            places
                .iter()
                .map(PathBuf::as_path)
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            limit,
        );
    }
    for limit in limits {
        match limit.places {
            LimitedPlaces::These(_) => {}
            LimitedPlaces::Rest => add(std::mem::take(&mut rest).into_iter().collect(), limit),
            LimitedPlaces::RestApart => {
                for place in std::mem::take(&mut rest) {
                    add(vec![place], limit);
                }
            }
        }
    }
    parts.sort_by(|one, other| one.places.cmp(&other.places));
    Ok(parts)
}

fn refusal(limit: &DiskLimit, place: &Path, why: &str) -> Error {
    Error::invalid(&limit.field, format!("{} {why}", place.display()))
}

// === impl ProjectId ===

impl ProjectId {
    /// The first number of those that the gateway assigns itself.
    pub const FIRST: Self = Self(1 << 24);

    /// The project with this number; `None` below [`ProjectId::FIRST`] and for a number that is no project.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number >= Self::FIRST.0 && number < u32::MAX {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The next number; `None` after the last.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl fmt::Display for ProjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limit(places: LimitedPlaces, bytes: u64) -> DiskLimit {
        DiskLimit {
            places,
            bytes,
            project: Project::New,
            field: "quota".to_owned(),
        }
    }

    fn these(paths: &[&str]) -> LimitedPlaces {
        LimitedPlaces::These(paths.iter().map(PathBuf::from).collect())
    }

    #[track_caller]
    fn check(limits: &[DiskLimit], volumes: &[&str], expected: &[(&[&str], u64)]) {
        let volumes: Vec<_> = volumes.iter().map(PathBuf::from).collect();
        let parts = disk_parts(limits, &volumes).expect("the limits are valid");
        let found: Vec<_> = parts
            .into_iter()
            .map(|part| (part.places, part.bytes))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(paths, bytes)| (paths.iter().map(PathBuf::from).collect::<Vec<_>>(), *bytes))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn quota_on_a_named_path_overrides_the_rest() {
        check(&[limit(these(&["/"]), 1)], &["/a"], &[(&["/"], 1)]);
        check(
            &[limit(these(&["/a", "/"]), 1)],
            &["/a", "/b"],
            &[(&["/", "/a"], 1)],
        );
        let apart = limit(LimitedPlaces::RestApart, 2);
        check(
            std::slice::from_ref(&apart),
            &["/b", "/a"],
            &[(&["/"], 2), (&["/a"], 2), (&["/b"], 2)],
        );
        let both = [apart, limit(these(&["/a"]), 1)];
        check(
            &both,
            &["/a", "/b"],
            &[(&["/"], 2), (&["/a"], 1), (&["/b"], 2)],
        );
        check(
            &[limit(LimitedPlaces::Rest, 3)],
            &["/a"],
            &[(&["/", "/a"], 3)],
        );
        check(
            &[limit(LimitedPlaces::Rest, 3), limit(these(&["/"]), 1)],
            &[],
            &[(&["/"], 1)],
        );
        check(&[], &["/a"], &[]);
    }

    #[test]
    fn unknown_or_duplicate_volume_is_rejected() {
        for (limits, path) in [
            (vec![limit(these(&["/a"]), 1)], "/a is neither"),
            (vec![limit(these(&["/", "/"]), 1)], "/ is limited twice"),
            (
                vec![limit(these(&["/"]), 1), limit(these(&["/", "/v"]), 1)],
                "/ is limited twice",
            ),
        ] {
            let error = disk_parts(&limits, &["/v".into()]).expect_err("the limits are invalid");
            assert!(
                error.to_string().starts_with(&format!("quota: {path}")),
                "{error}"
            );
        }
    }

    #[test]
    fn generated_project_id_is_outside_the_manual_range() {
        assert_eq!(ProjectId::new((1 << 24) - 1), None);
        assert_eq!(ProjectId::new(1 << 24), Some(ProjectId::FIRST));
        assert_eq!(ProjectId::new(u32::MAX), None);
        assert_eq!(ProjectId::new(u32::MAX - 1).and_then(ProjectId::next), None);
    }

    proptest! {
        #[test]
        fn each_directory_is_limited_at_most_once(
            volumes in prop::collection::btree_set("/[a-d]", 0..4),
            named in prop::collection::vec(prop::collection::vec("/[a-e]?", 1..3), 0..3),
            rest in 0..3_u8,
        ) {
            let volumes: Vec<_> = volumes.into_iter().map(PathBuf::from).collect();
            let mut limits: Vec<_> = named
                .iter()
                .map(|paths| limit(LimitedPlaces::These(paths.iter().map(PathBuf::from).collect()), 1))
                .collect();
            match rest {
                1 => limits.push(limit(LimitedPlaces::Rest, 2)),
                2 => limits.push(limit(LimitedPlaces::RestApart, 2)),
                _ => {}
            }
            let known = |path: &PathBuf| path == Path::new("/") || volumes.contains(path);
            let asked: Vec<_> = named.iter().flatten().map(PathBuf::from).collect();
            match disk_parts(&limits, &volumes) {
                Err(_) => {
                    let once = asked.iter().collect::<BTreeSet<_>>().len() == asked.len();
                    prop_assert!(!once || !asked.iter().all(known));
                }
                Ok(parts) => {
                    let all: Vec<_> = parts.iter().flat_map(|part| &part.places).collect();
                    let apart: BTreeSet<_> = all.iter().collect();
                    prop_assert_eq!(apart.len(), all.len());
                    prop_assert!(all.iter().all(|path| known(path)));
                    prop_assert!(asked.iter().all(|path| all.contains(&path)));
                    prop_assert!(rest == 0 || all.len() == volumes.len() + 1);
                    prop_assert!(parts.iter().all(|part| !part.places.is_empty()));
                }
            }
        }
    }
}
