//! The location of a task's cgroup, in the form that runtimes take with each of the two cgroup drivers.

use std::path::Path;

use switchyard_core::spec::CgroupPlacement;
use switchyard_core::{Error, Result};

use crate::input::CgroupDriver;
use crate::text;

/// The location of a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupLocation {
    /// `linux.cgroupsPath`: an absolute path, or `slice:prefix:id`.
    pub path: String,
    /// True if the runtime must ask systemd for it (`SystemdCgroup` of runc's options, `--systemd-cgroup`).
    pub systemd: bool,
}

/// The location of the cgroup of the object `id`.
///
/// - [`CgroupDriver::Fs`]: `<parent>/<id>`; a parent named like a systemd slice is a plain directory here.
/// - [`CgroupDriver::Systemd`]: the scope `<prefix>-<id>.scope` in the slice that the last component of the
///   parent names.
/// - [`CgroupPlacement::Leaf`]: exactly that group, in the file system with either driver, since the client
///   has created it there.
///
/// An empty parent is `prefix` itself: `/<prefix>` or `<prefix>.slice`.
///
/// # Errors
/// `InvalidArgument`, naming `cgroup_parent` or `cgroup`, for a path that contains `..`, is not UTF-8, or is
/// not a slice where one is needed.
pub fn cgroups_path(
    placement: &CgroupPlacement,
    id: &str,
    driver: CgroupDriver,
    prefix: &str,
) -> Result<CgroupLocation> {
    let parent = match placement {
        CgroupPlacement::Leaf { path, cpuset: _ } => {
            let path = text::absolute("cgroup", path)?;
            if path == "/" {
                return Err(Error::invalid("cgroup", "it is the root cgroup"));
            }
            return Ok(CgroupLocation {
                path,
                systemd: false,
            });
        }
        CgroupPlacement::Parent(parent) => parent,
    };
    match driver {
        CgroupDriver::Fs => {
            let parent = if parent.as_os_str().is_empty() {
                Path::new(prefix)
            } else {
                parent
            };
            // A runtime takes a relative path as one below its own cgroup, whose path is not known here.
            let parent = text::absolute("cgroup_parent", &Path::new("/").join(parent))?;
            Ok(CgroupLocation {
                path: format!("{}/{id}", parent.trim_end_matches('/')),
                systemd: false,
            })
        }
        CgroupDriver::Systemd => {
            let slice = if parent.as_os_str().is_empty() {
                format!("{prefix}.slice")
            } else {
                let parent = text::absolute("cgroup_parent", &Path::new("/").join(parent))?;
                parent.rsplit('/').next().unwrap_or_default().to_owned()
            };
            if !is_slice(&slice) {
                return Err(Error::invalid(
                    "cgroup_parent",
                    format!(
                        "{parent:?} is no slice, and this node's cgroups are made by systemd; set the client's cgroup driver to systemd"
                    ),
                ));
            }
            Ok(CgroupLocation {
                path: format!("{slice}:{prefix}:{id}"),
                systemd: true,
            })
        }
    }
}

/// Returns whether systemd accepts this name as a slice below the root slice.
fn is_slice(name: &str) -> bool {
    name.strip_suffix(".slice").is_some_and(|stem| {
        !stem.is_empty() && !stem.contains([':', '/']) && !stem.split('-').any(str::is_empty)
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn parent(path: &str) -> CgroupPlacement {
        CgroupPlacement::Parent(PathBuf::from(path))
    }

    fn leaf(path: &str) -> CgroupPlacement {
        CgroupPlacement::Leaf {
            path: PathBuf::from(path),
            cpuset: None,
        }
    }

    #[track_caller]
    fn check(placement: &CgroupPlacement, driver: CgroupDriver, path: &str, systemd: bool) {
        let made = cgroups_path(placement, "abc", driver, "switchyard").unwrap();
        assert_eq!(
            made,
            CgroupLocation {
                path: path.to_owned(),
                systemd
            }
        );
    }

    #[test]
    fn cgroupfs_path_is_parent_and_id() {
        check(
            &parent("/kubepods/burstable/pod1"),
            CgroupDriver::Fs,
            "/kubepods/burstable/pod1/abc",
            false,
        );
        check(
            &parent("kubepods/"),
            CgroupDriver::Fs,
            "/kubepods/abc",
            false,
        );
        check(&parent("/a.slice"), CgroupDriver::Fs, "/a.slice/abc", false);
        check(&parent("/"), CgroupDriver::Fs, "/abc", false);
        check(&parent(""), CgroupDriver::Fs, "/switchyard/abc", false);
    }

    #[test]
    fn systemd_slice_is_the_last_parent_component() {
        let path = "/kubepods.slice/kubepods-pod1.slice";
        check(
            &parent(path),
            CgroupDriver::Systemd,
            "kubepods-pod1.slice:switchyard:abc",
            true,
        );
        check(
            &parent(""),
            CgroupDriver::Systemd,
            "switchyard.slice:switchyard:abc",
            true,
        );
        check(
            &parent("test.slice"),
            CgroupDriver::Systemd,
            "test.slice:switchyard:abc",
            true,
        );
    }

    #[test]
    fn leaf_cgroup_path_is_verbatim() {
        let leaf = leaf("/nomad.slice/share.slice/x.web.scope");
        for driver in [CgroupDriver::Fs, CgroupDriver::Systemd] {
            check(&leaf, driver, "/nomad.slice/share.slice/x.web.scope", false);
        }
    }

    #[test]
    fn non_slice_or_escaping_parent_is_rejected() {
        for (path, driver) in [
            ("/kubepods", CgroupDriver::Systemd),
            ("/a/-.slice", CgroupDriver::Systemd),
            ("/a--b.slice", CgroupDriver::Systemd),
            ("/a/../b", CgroupDriver::Fs),
        ] {
            let error = cgroups_path(&parent(path), "abc", driver, "switchyard").unwrap_err();
            assert!(error.to_string().starts_with("cgroup_parent: "), "{error}");
        }
        let root = leaf("/");
        assert!(cgroups_path(&root, "abc", CgroupDriver::Fs, "switchyard").is_err());
    }
}
