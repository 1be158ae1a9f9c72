//! Mount points of a node's cgroup hierarchies.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use switchyard_linux::cgroups;
use switchyard_linux::mounts::{self, MountTable};

use crate::error::{Error, Result};
use crate::group::Group;

/// The cgroup version of the hierarchies that have the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupMode {
    /// One hierarchy per controller; also the hybrid layout, which has a v2 tree without controllers besides.
    V1,
    /// The unified hierarchy; in one of v1 that is mounted besides, such as that of `net_cls`, groups are at most removed.
    V2,
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Its controllers, or `name=...`; empty for a v2 tree.
    pub controllers: Vec<String>,
    /// The cgroup that is mounted at the mount point; `/` unless this process runs in a container.
    pub root: PathBuf,
    /// The mount point.
    pub path: PathBuf,
}

/// The hierarchies of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    mode: CgroupMode,
    mounts: Vec<Mount>,
}

impl Hierarchy {
    /// The hierarchies that are mounted in this process's mount namespace.
    ///
    /// # Errors
    /// [`Error::File`] if the mounts cannot be read, [`Error::NoHierarchy`] if none is mounted.
    pub fn detect() -> Result<Self> {
        let table = MountTable::of_this_process().map_err(|source| Error::File {
            path: mounts::OWN_MOUNTS.into(),
            source,
        })?;
        Self::of_mounts(&table, cgroups::is_unified())
    }

    /// The hierarchies among these mounts, on a node where v2 has the controllers or has not ([`cgroups::is_unified`]). Pure.
    ///
    /// # Errors
    /// [`Error::NoHierarchy`] if there is none.
    pub fn of_mounts(table: &MountTable, is_unified: bool) -> Result<Self> {
        let mut mounts: Vec<Mount> = table.iter().filter_map(|mount| hierarchy(&mount)).collect();
        // A hierarchy may be mounted several times, also for containers: the node's own mount takes
        // precedence.
        mounts.sort_by_key(|mount| {
            (
                mount.root != Path::new("/"),
                !mount.path.starts_with("/sys/fs/cgroup"),
            )
        });
        let mut distinct: Vec<Mount> = Vec::new();
        for mount in mounts {
            if !distinct
                .iter()
                .any(|other| other.controllers == mount.controllers)
            {
                distinct.push(mount);
            }
        }
        Self::new(distinct, is_unified)
    }

    /// The hierarchies in a directory: v2 if it contains `cgroup.controllers`, else one v1 hierarchy for each
    /// subdirectory.
    ///
    /// # Errors
    /// [`Error::File`] if `root` cannot be read, [`Error::NoHierarchy`] if it is empty.
    pub fn at(root: &Path) -> Result<Self> {
        if root.join("cgroup.controllers").exists() {
            let mount = Mount {
                controllers: Vec::new(),
                root: PathBuf::from("/"),
                path: root.to_owned(),
            };
            return Self::new(vec![mount], true);
        }
        let entries = fs::read_dir(root)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(|source| Error::File {
                path: root.to_owned(),
                source,
            })?;
        let mut mounts: Vec<Mount> = entries
            .into_iter()
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let controllers = match name.as_str() {
                    "unified" => Vec::new(),
                    "systemd" => vec!["name=systemd".to_owned()],
                    names => names.split(',').map(str::to_owned).collect(),
                };
                Some(Mount {
                    controllers,
                    root: PathBuf::from("/"),
                    path: entry.path(),
                })
            })
            .collect();
        mounts.sort_by(|a, b| a.path.cmp(&b.path));
        Self::new(mounts, false)
    }

    fn new(mounts: Vec<Mount>, is_unified: bool) -> Result<Self> {
        let has_v1 = mounts
            .iter()
            .flat_map(|mount| &mount.controllers)
            .any(|name| !name.starts_with("name="));
        let has_v2 = mounts.iter().any(|mount| mount.controllers.is_empty());
        let mode = match (has_v1, has_v2) {
            (_, true) if is_unified => CgroupMode::V2,
            // A hybrid layout has both, and its resource controllers in v1.
            (true, _) => CgroupMode::V1,
            (false, true) => CgroupMode::V2,
            (false, false) => return Err(Error::NoHierarchy),
        };
        Ok(Self { mode, mounts })
    }

    /// The cgroup version that has the controllers.
    #[must_use]
    pub fn mode(&self) -> CgroupMode {
        self.mode
    }

    /// All mounted hierarchies, also those without controllers.
    #[must_use]
    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// The directory of `group` in the hierarchy of a controller; on v2 it is the same for all controllers.
    #[must_use]
    pub fn dir(&self, controller: &str, group: &Group) -> Option<PathBuf> {
        let mount = match self.mode {
            CgroupMode::V2 => self
                .mounts
                .iter()
                .find(|mount| mount.controllers.is_empty()),
            CgroupMode::V1 => self
                .mounts
                .iter()
                .find(|mount| mount.controllers.iter().any(|name| name == controller)),
        };
        mount.map(|mount| mount.dir(group))
    }

    /// The directory of `group` in the v2 tree, if one is mounted; in the hybrid layout that has no
    /// controllers.
    #[must_use]
    pub fn unified(&self, group: &Group) -> Option<PathBuf> {
        self.mounts
            .iter()
            .find(|mount| mount.controllers.is_empty())
            .map(|mount| mount.dir(group))
    }

    /// The directories of `group` in all hierarchies, whether they exist or not.
    pub fn dirs(&self, group: &Group) -> impl Iterator<Item = PathBuf> {
        self.mounts.iter().map(|mount| mount.dir(group))
    }

    /// Returns whether `group` exists in any hierarchy.
    #[must_use]
    pub fn exists(&self, group: &Group) -> bool {
        self.dirs(group).any(|dir| dir.is_dir())
    }
}

impl Mount {
    /// The directory of `group` in this hierarchy.
    #[must_use]
    pub fn dir(&self, group: &Group) -> PathBuf {
        let absolute = Path::new("/").join(group.relative());
        let below = absolute
            .strip_prefix(&self.root)
            .unwrap_or(group.relative());
        self.path.join(below)
    }
}

/// The cgroup hierarchy of a mount; `None` for another file system.
fn hierarchy(mount: &mounts::Mount<'_>) -> Option<Mount> {
    let controllers = match &*mount.fs_type {
        "cgroup2" => Vec::new(),
        "cgroup" => {
            let options = mount.fs_options.iter().map(|option| option.into_owned());
            let names = options.filter(|option| is_controller(option));
            Some(names.collect::<Vec<_>>()).filter(|names| !names.is_empty())?
        }
        _ => return None,
    };
    Some(Mount {
        controllers,
        root: mount.root.to_path_buf(),
        path: mount.point.to_path_buf(),
    })
}

/// Returns whether a mount option of a v1 hierarchy is a controller, or the name of a hierarchy without one. Names of controllers
/// are words: an option with a value is none, nor is a part of a value in quotes, as of SELinux' `context`.
fn is_controller(option: &str) -> bool {
    let is_word = !option.is_empty()
        && option
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    option.starts_with("name=") || (is_word && !NO_CONTROLLERS.contains(&option))
}

/// The mount options of a v1 hierarchy without a value that are not controllers: its own, of every file system, and of SELinux.
const NO_CONTROLLERS: [&str; 12] = [
    "rw",
    "ro",
    "xattr",
    "noprefix",
    "clone_children",
    "cpuset_v2_mode",
    "favordynmods",
    "sync",
    "dirsync",
    "mand",
    "lazytime",
    "seclabel",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
99 23 0:30 /docker/x /var/lib/rootfs/cg/cpu rw - cgroup cgroup rw,cpu,cpuacct
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,xattr,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn found_in(text: &str) -> Result<Hierarchy> {
        Hierarchy::of_mounts(&MountTable::from_text(text), false)
    }

    /// The mount of a node whose controllers are all in v2.
    const UNIFIED: &str =
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    /// Mounts beside that one, as nodes have them, and the controllers of all hierarchies that are found.
    const RECORDED: &[(&str, &str, &[&[&str]])] = &[
        (
            "a VPN's net_cls under v2",
            "412 30 0:61 / /sys/fs/cgroup/net_cls rw,relatime shared:201 - cgroup net_cls rw,net_cls",
            &[&[], &["net_cls"]],
        ),
        (
            "a traffic shaper's net_cls elsewhere, with net_prio",
            "413 23 0:62 / /run/shaper/net rw,relatime - cgroup none rw,seclabel,net_cls,net_prio",
            &[&[], &["net_cls", "net_prio"]],
        ),
        (
            "systemd's own hierarchy for old containers",
            "414 30 0:63 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,seclabel,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd",
            &[&[], &["name=systemd"]],
        ),
        (
            "options alone: no hierarchy",
            "415 30 0:64 / /sys/fs/cgroup/none rw - cgroup cgroup rw,favordynmods,release_agent=/bin/a,clone_children",
            &[&[]],
        ),
        (
            "quoted context of SELinux, with favordynmods",
            "416 30 0:65 / /run/freezer rw - cgroup cgroup rw,context=\"system_u:object_r:cgroup_t:s0:c1,c2\",favordynmods,freezer",
            &[&[], &["freezer"]],
        ),
        (
            "a second mount of v2, as of a network plugin",
            "417 23 0:26 / /run/cilium/cgroupv2 rw,relatime shared:4 - cgroup2 none rw,nsdelegate",
            &[&[]],
        ),
        (
            "a tmpfs at the same point, as of an init script for v1",
            "418 23 0:66 / /sys/fs/cgroup rw,relatime - tmpfs cgroup_root rw,size=8192k,mode=755",
            &[&[]],
        ),
        (
            "v2 twice at the same point, by a manager of containers and by OpenRC in one",
            "419 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 none rw",
            &[&[]],
        ),
    ];

    #[test]
    fn hierarchies_of_version_1_beside_version_2_do_not_change_the_version() {
        for (name, beside, hierarchies) in RECORDED {
            // In both orders: whoever mounted first.
            for text in [
                format!("{UNIFIED}\n{beside}\n"),
                format!("{beside}\n{UNIFIED}\n"),
            ] {
                let found = Hierarchy::of_mounts(&MountTable::from_text(text), true).unwrap();
                assert_eq!(found.mode(), CgroupMode::V2, "{name}");
                let mut controllers: Vec<_> = found
                    .mounts()
                    .iter()
                    .map(|mount| mount.controllers.clone())
                    .collect();
                controllers.sort();
                assert_eq!(controllers, *hierarchies, "{name}");
                for controller in ["", "memory", "cpuset", "net_cls", "freezer"] {
                    assert_eq!(
                        found.dir(controller, &group()).unwrap(),
                        Path::new("/sys/fs/cgroup/a/b"),
                        "{name}"
                    );
                }
                // What a runtime made there is removed all the same.
                assert_eq!(found.dirs(&group()).count(), hierarchies.len(), "{name}");
            }
        }
    }

    #[test]
    fn controllers_that_nobody_has_mounted_do_not_make_a_hybrid_node_one_of_version_2() {
        // Its v2 has hugetlb, and what is at the root is a tmpfs.
        let with_more = format!(
            "{HYBRID}42 31 0:39 / /sys/fs/cgroup/net_cls rw,relatime - cgroup cgroup rw,seclabel,net_cls,favordynmods\n"
        );
        let found = found_in(&with_more).unwrap();
        assert_eq!(found.mode(), CgroupMode::V1);
        assert_eq!(found.dirs(&group()).count(), 5);
        assert_eq!(
            found.dir("net_cls", &group()).unwrap(),
            Path::new("/sys/fs/cgroup/net_cls/a/b")
        );
    }

    fn group() -> Group {
        Group::from_cgroups_path("/a/b").unwrap()
    }

    #[test]
    fn hybrid_node_is_v1_with_all_hierarchies() {
        let found = found_in(HYBRID).unwrap();
        assert_eq!(found.mode(), CgroupMode::V1);
        assert_eq!(
            found.dir("cpuacct", &group()).unwrap(),
            Path::new("/sys/fs/cgroup/cpu,cpuacct/a/b")
        );
        assert_eq!(found.dir("hugetlb", &group()), None);
        assert_eq!(found.dirs(&group()).count(), 4);
    }

    #[test]
    fn v2_node_has_one_hierarchy_for_all_controllers() {
        let found =
            found_in("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate").unwrap();
        assert_eq!(found.mode(), CgroupMode::V2);
        assert_eq!(
            found.dir("memory", &group()).unwrap(),
            Path::new("/sys/fs/cgroup/a/b")
        );
    }

    #[test]
    fn node_with_only_a_named_v1_hierarchy_is_v2() {
        let text = "1 0 0:1 / /s rw - cgroup c rw,name=systemd\n2 0 0:2 / /u rw - cgroup2 c rw\n";
        assert_eq!(found_in(text).unwrap().mode(), CgroupMode::V2);
        assert!(matches!(found_in(""), Err(Error::NoHierarchy)));
    }

    #[test]
    fn paths_in_a_container_start_at_its_own_root() {
        let found = found_in("1 0 0:1 /a /cg/memory rw - cgroup c rw,memory").unwrap();
        assert_eq!(
            found.dir("memory", &group()).unwrap(),
            Path::new("/cg/memory/b")
        );
    }

    #[test]
    fn hierarchy_of_this_node_is_detected() {
        assert!(!Hierarchy::detect().unwrap().mounts().is_empty());
    }

    proptest! {
        #[test]
        fn any_text_parses_without_panic(text in "([0-9a-z/:, -]|cgroup2?| - |\n|\\\\0|\\PC){0,80}") {
            let table = MountTable::from_text(text);
            let _ = (Hierarchy::of_mounts(&table, false), Hierarchy::of_mounts(&table, true));
        }
    }
}
