//! Paths of cgroups below the root, and the paths to which systemd expands slices and scopes.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

/// A cgroup other than the root, identified by its path below the root of every hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group {
    relative: PathBuf,
}

impl Group {
    /// The cgroup that a runtime creates for `linux.cgroupsPath`: a path, or `slice:prefix:id`, for which
    /// systemd creates the scope `prefix-id.scope` and all slices above it.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`] for the root, a path with `..`, or three parts that systemd would not accept.
    pub fn from_cgroups_path(text: &str) -> Result<Self> {
        let invalid = |why| Error::InvalidGroup {
            text: text.to_owned(),
            why,
        };
        if text.starts_with('/') {
            return Self::from_path(Path::new(text));
        }
        let parts: Vec<&str> = text.split(':').collect();
        let [slice, prefix, id] = parts.as_slice() else {
            return Err(invalid(
                "it is neither an absolute path nor slice:prefix:id",
            ));
        };
        if id.is_empty() || id.contains('/') || prefix.contains('/') {
            return Err(invalid("prefix and id must be names"));
        }
        let mut relative =
            expanded_slice(slice).ok_or_else(|| invalid("its first part is not a slice"))?;
        relative.push(if prefix.is_empty() {
            format!("{id}.scope")
        } else {
            format!("{prefix}-{id}.scope")
        });
        Ok(Self { relative })
    }

    /// The cgroup at `path` below the root.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`] for the root or a path with `..`.
    pub fn from_path(path: &Path) -> Result<Self> {
        let invalid = |why| Error::InvalidGroup {
            text: path.display().to_string(),
            why,
        };
        let mut relative = PathBuf::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => relative.push(name),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
                Component::ParentDir => return Err(invalid("it contains `..`")),
            }
        }
        if relative.as_os_str().is_empty() {
            return Err(invalid("it is the root cgroup"));
        }
        Ok(Self { relative })
    }

    /// The path below the root, without a leading slash.
    #[must_use]
    pub fn relative(&self) -> &Path {
        &self.relative
    }

    /// The parent; `None` if that is the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let relative = self
            .relative
            .parent()
            .filter(|path| !path.as_os_str().is_empty())?;
        Some(Self {
            relative: relative.to_owned(),
        })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.relative.display())
    }
}

/// The path of a slice: `a-b.slice` is in `a.slice`, and `-.slice` is the root. `None` if the name is not
/// that of a slice.
fn expanded_slice(slice: &str) -> Option<PathBuf> {
    let stem = slice
        .strip_suffix(".slice")
        .filter(|stem| !stem.is_empty() && !stem.contains('/'))?;
    let mut path = PathBuf::new();
    if stem == "-" {
        return Some(path);
    }
    let mut name = String::new();
    for part in stem.split('-') {
        if part.is_empty() {
            return None;
        }
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(part);
        path.push(format!("{name}.slice"));
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(
            Group::from_cgroups_path(text).unwrap().to_string(),
            expected
        );
    }

    #[test]
    fn cgroup_path_is_verbatim_and_slice_is_expanded() {
        check(
            "/kubepods/burstable//pod1/abc",
            "/kubepods/burstable/pod1/abc",
        );
        check(
            "a-b.slice:switchyard:x1",
            "/a.slice/a-b.slice/switchyard-x1.scope",
        );
        check(
            "kubepods.slice:switchyard:x",
            "/kubepods.slice/switchyard-x.scope",
        );
        check("-.slice:switchyard:x", "/switchyard-x.scope");
        check("a.slice::x", "/a.slice/x.scope");
    }

    #[test]
    fn root_and_escaping_paths_are_rejected() {
        for bad in [
            "/",
            "",
            "/a/../..",
            "a:b:c",
            "a.slice:b",
            "a--b.slice:p:i",
            "a.slice:p:../x",
            ".slice:p:i",
        ] {
            assert!(Group::from_cgroups_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn top_level_cgroup_has_no_parent() {
        let group = Group::from_cgroups_path("/a/b").unwrap();
        assert_eq!(group.parent().unwrap().to_string(), "/a");
        assert_eq!(group.parent().unwrap().parent(), None);
    }

    proptest! {
        #[test]
        fn cgroup_names_cannot_escape_the_hierarchy(text in "[a-c/.:-]{0,16}(slice)?[:./a]{0,8}") {
            if let Ok(group) = Group::from_cgroups_path(&text) {
                prop_assert!(group.relative().components().all(|part| matches!(part, Component::Normal(_))));
            }
        }
    }
}
