//! Limits that all processes of the node share, and how much of them is in use.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::cgroups;

/// The link of the descriptor of an inotify instance.
const INOTIFY: &str = "anon_inode:inotify";

/// The directories of the cgroup hierarchies in which processes are limited, of version 2 and of version 1.
const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/pids"];

/// A limit with its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLimit {
    /// Its name, one of a few.
    pub name: &'static str,
    /// The number in use.
    pub used: u64,
    /// The most that may be in use.
    pub most: u64,
}

// === impl NodeLimit ===

impl NodeLimit {
    /// The part in use: 1 if nothing is left.
    #[must_use]
    pub fn ratio(self) -> f64 {
        if self.most == 0 {
            return 1.0;
        }
        self.used as f64 / self.most as f64
    }
}

/// The limits whose use the kernel counts: of `processes` with their threads, of `open_files`, and of tracked `connections`. `text`
/// reads a file below `/proc`. What the node does not have is left out.
pub fn counted(text: impl Fn(&str) -> Option<String>) -> Vec<NodeLimit> {
    let number = |path: &str| text(path)?.trim().parse::<u64>().ok();
    let processes = || {
        let threads = threads(&text("/proc/loadavg")?)?;
        let most = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
        let most = most.into_iter().filter_map(number).min()?;
        Some(NodeLimit {
            name: "processes",
            used: threads,
            most,
        })
    };
    let open_files = || {
        let text = text("/proc/sys/fs/file-nr")?;
        let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().ok());
        Some(NodeLimit {
            name: "open_files",
            used: numbers.next()??,
            most: numbers.nth(1)??,
        })
    };
    let connections = || {
        Some(NodeLimit {
            name: "connections",
            used: number("/proc/sys/net/netfilter/nf_conntrack_count")?,
            most: number("/proc/sys/net/netfilter/nf_conntrack_max").filter(|most| *most > 0)?,
        })
    };
    [processes(), open_files(), connections()]
        .into_iter()
        .flatten()
        .collect()
}

/// The number of threads in the content of `/proc/loadavg` (proc(5)): those that run, a slash, and all.
fn threads(loadavg: &str) -> Option<u64> {
    let (_, all) = loadavg.split_whitespace().nth(3)?.split_once('/')?;
    all.parse().ok()
}

/// The `inotify_instances` of root, which programs in containers share. Looks at each descriptor of its processes, which takes a
/// while on a node with many. An instance that a child has inherited is counted twice.
///
/// # Errors
/// If the limit or the list of processes cannot be read.
pub fn inotify_instances() -> io::Result<NodeLimit> {
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_user_instances")?;
    let most = most.trim().parse::<u64>().map_err(io::Error::other)?;
    let mut used = 0;
    for process in fs::read_dir("/proc")?.flatten() {
        let is_process = process
            .file_name()
            .to_str()
            .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        if !is_process || !process.metadata().is_ok_and(|found| found.uid() == 0) {
            continue;
        }
        // It may have ended.
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        let links = descriptors
            .flatten()
            .filter_map(|link| fs::read_link(link.path()).ok());
        used += links.filter(|link| link == Path::new(INOTIFY)).count() as u64;
    }
    Ok(NodeLimit {
        name: "inotify_instances",
        used,
        most,
    })
}

/// The limit of processes, `group_processes`, that is nearest to its end among those of cgroups which several sandboxes share.
/// Takes the main processes of containers, each with what its sandbox is known by. `None` if no such group has a limit.
#[must_use]
pub fn group_processes<S: PartialEq>(processes: &[(S, u32)]) -> Option<NodeLimit> {
    let hierarchy = |text: &str| {
        let [unified, own] = HIERARCHIES.map(Path::new);
        let own = if cgroups::is_unified() { unified } else { own };
        group_of(text).map(|path| own.join(path))
    };
    let groups = processes.iter().filter_map(|(sandbox, pid)| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        Some((sandbox, hierarchy(&text)?))
    });
    let limit = |group: &PathBuf| {
        let number = |name: &str| {
            let text = fs::read_to_string(group.join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        Some(NodeLimit {
            name: "group_processes",
            used: number("pids.current")?,
            // Without a limit it is a word.
            most: number("pids.max")?,
        })
    };
    shared(groups)
        .iter()
        .filter_map(limit)
        .max_by(|one, other| one.ratio().total_cmp(&other.ratio()))
}

/// The path of a group below its hierarchy, in the content of `/proc/<pid>/cgroup` (cgroups(7)): that of the controller `pids` in
/// version 1, else the one of version 2. `None` of a group outside of what this process sees.
fn group_of(text: &str) -> Option<&Path> {
    let lines = text.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        Some((controllers, path))
    });
    let has_pids = |controllers: &str| controllers.split(',').any(|name| name == "pids");
    let (_, path) = lines
        .clone()
        .find(|(controllers, _)| has_pids(controllers))
        .or_else(|| {
            lines
                .clone()
                .find(|(controllers, _)| controllers.is_empty())
        })?;
    path.strip_prefix('/')
        .filter(|path| !path.starts_with(".."))
        .map(Path::new)
}

/// The groups above the given ones that have processes of several sandboxes.
fn shared<'s, S: PartialEq + 's>(groups: impl Iterator<Item = (&'s S, PathBuf)>) -> Vec<PathBuf> {
    let mut above: BTreeMap<PathBuf, (&S, bool)> = BTreeMap::new();
    for (sandbox, group) in groups {
        for ancestor in group.ancestors().skip(1) {
            let (first, is_shared) = above.entry(ancestor.to_owned()).or_insert((sandbox, false));
            *is_shared |= **first != *sandbox;
        }
    }
    above
        .into_iter()
        .filter(|(_, (_, is_shared))| *is_shared)
        .map(|(group, _)| group)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let files = |path: &str| {
            let text = match path {
                "/proc/loadavg" => "0.20 0.18 0.12 3/1024 11206\n",
                "/proc/sys/kernel/pid_max" => "4194304\n",
                "/proc/sys/kernel/threads-max" => "2048\n",
                "/proc/sys/fs/file-nr" => "1984\t0\t9223372036854775807\n",
                "/proc/sys/net/netfilter/nf_conntrack_count" => "90\n",
                "/proc/sys/net/netfilter/nf_conntrack_max" => "100\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let found = counted(files);
        let names: Vec<_> = found
            .iter()
            .map(|limit| (limit.name, limit.used, limit.most))
            .collect();
        assert_eq!(
            names,
            [
                ("processes", 1024, 2048),
                ("open_files", 1984, 9_223_372_036_854_775_807),
                ("connections", 90, 100)
            ]
        );
        assert!((found[0].ratio() - 0.5).abs() < 1e-9 && found[1].ratio() < 1e-9);
        assert!(counted(|_| None).is_empty());
        let own = counted(|path| fs::read_to_string(path).ok());
        assert!(own.len() >= 2, "{own:?}");
    }

    #[test]
    fn inotify_instances_of_root_are_counted() {
        let before = inotify_instances().unwrap();
        assert!(before.most > 0 && before.name == "inotify_instances");
    }

    #[test]
    fn group_of_a_process_is_that_of_the_hierarchy_with_the_limit() {
        let group = |text| group_of(text).map(|path| path.display().to_string());
        let unified = "0::/kubepods/pod1/abc\n";
        assert_eq!(group(unified).as_deref(), Some("kubepods/pod1/abc"));
        let first = "11:pids:/kubepods/pod2\n4:cpu,cpuacct:/other\n0::/init.scope\n";
        assert_eq!(group(first).as_deref(), Some("kubepods/pod2"));
        let both = "3:memory,pids:/a:b\n";
        assert_eq!(group(both).as_deref(), Some("a:b"));
        assert_eq!(group("0::/../outside\n"), None);
        assert_eq!(group("1:name=systemd:/x\n"), None);
    }

    #[test]
    fn groups_are_shared_from_the_first_one_that_has_two_sandboxes() {
        let sandboxes = ["one", "two", "two"];
        let paths = ["/g/pods/one/a", "/g/pods/two/a", "/g/pods/two/b"];
        let groups = sandboxes.iter().zip(paths.map(PathBuf::from));
        let found = shared(groups);
        assert_eq!(found, ["/", "/g", "/g/pods"].map(PathBuf::from));
        let own = std::process::id();
        // Two sandboxes with one process: the groups above that of this process, most of which have no limit.
        if let Some(limit) = group_processes(&[("one", own), ("two", own)]) {
            assert!(limit.used > 0 && limit.most > 0, "{limit:?}");
        }
        assert_eq!(group_processes(&[("one", own)]), None);
    }
}
