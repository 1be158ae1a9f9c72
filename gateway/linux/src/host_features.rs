//! Features of the kernel for this process, found by trying them: a seccomp filter, a container or a mount option may take them away.
//!
//! Without a feature that is needed the daemon does not start. One that is optional is left out where somebody asks for it, with the
//! reason that is given here. A crate that tries more adds it by [`HostFeatures::add`].

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{
    CWD, MemfdFlags, Mode, OFlags, ResolveFlags, StatVfsMountFlags, memfd_create, openat2, statvfs,
};
use rustix::io::Errno;

use crate::report;

/// The inode number of the user namespace that the kernel has begun with (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// The directory of AppArmor, of the node or of the container that the node is.
const APPARMOR: &str = "/sys/kernel/security/apparmor";

/// The file by which SELinux is recognised.
const SELINUX: &str = "/sys/fs/selinux/enforce";

/// A feature with the finding about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFeature {
    /// Its name, one of a few.
    pub name: &'static str,
    /// The reason why it cannot be used, and what is left out without it; `None` if it can be.
    pub fault: Option<String>,
}

/// The features of a node, in the order in which they were tried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFeatures(Vec<HostFeature>);

/// A feature is missing without which the daemon cannot work.
#[derive(Debug, thiserror::Error)]
#[error(
    "openat2 cannot be used on this node, whose kernel is Linux {release}: Linux 5.6 or later is needed, and a seccomp filter \
     around the daemon, if there is one, that allows the call"
)]
pub struct MissingFeature {
    release: String,
    #[source]
    source: io::Error,
}

/// Facts that decide whether this process can load and use AppArmor profiles.
#[derive(Debug, Clone, Default)]
struct AppArmorState {
    /// The kernel has it, and it is on.
    is_enabled: bool,
    /// Its directory is there.
    has_directory: bool,
    /// Processes here have profiles of their own beside those of the host (`.ns_stacked`).
    is_stacked: bool,
    /// The variable `container` of this process, by which managers of containers say what they are.
    container: OsString,
    in_user_namespace: bool,
}

/// Checks the features that the daemon needs.
///
/// # Errors
/// [`MissingFeature`], with the version of the kernel and the one that is needed.
pub fn check_needed() -> Result<(), MissingFeature> {
    try_openat2().map_err(|errno| MissingFeature {
        release: fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(
            |_| "of an unknown version".to_owned(),
            |text| text.trim().to_owned(),
        ),
        source: errno.into(),
    })
}

/// Returns whether this process is in another user namespace than the one that the kernel has begun with. There it cannot do what
/// a capability allows on the whole node, such as lowering OOM scores. It is found once: the daemon never changes its own.
#[must_use]
pub fn in_user_namespace() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    // A kernel without user namespaces does not have the file.
    *FOUND.get_or_init(|| {
        fs::metadata("/proc/self/ns/user").is_ok_and(|file| file.ino() != INITIAL_USER_NAMESPACE)
    })
}

/// Returns whether the kernel has AppArmor, and it is on, wherever this process is.
#[must_use]
pub fn has_apparmor() -> bool {
    begins_with("/sys/module/apparmor/parameters/enabled", "Y")
}

/// Returns the reason why AppArmor profiles can be neither loaded nor used here; `None` if they can be. A parser that is missing is
/// no such reason: it is told when a profile has to be loaded.
#[must_use]
pub fn apparmor_unusable() -> Option<String> {
    let state = AppArmorState {
        is_enabled: has_apparmor(),
        has_directory: Path::new(APPARMOR).is_dir(),
        is_stacked: begins_with(&format!("{APPARMOR}/.ns_stacked"), "yes"),
        container: std::env::var_os("container").unwrap_or_default(),
        in_user_namespace: in_user_namespace(),
    };
    state.fault()
}

fn begins_with(path: &str, word: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.starts_with(word))
}

/// An empty file in memory with this name. What is written to it can be executed through its descriptor, which is closed on exec.
///
/// # Errors
/// `PermissionDenied` where the sysctl `vm.memfd_noexec` is 2; those of memfd_create(2).
pub fn executable_memory(name: &str) -> io::Result<File> {
    let file = create_executable(|flags| memfd_create(name, flags))?;
    Ok(File::from(file))
}

/// Creates it by `create`. From Linux 6.3 on a file without `MFD_EXEC` cannot be executed where `vm.memfd_noexec` is 1; before, the
/// flag is unknown.
fn create_executable(
    create: impl Fn(MemfdFlags) -> Result<OwnedFd, Errno>,
) -> Result<OwnedFd, Errno> {
    match create(MemfdFlags::CLOEXEC | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => create(MemfdFlags::CLOEXEC),
        created => created,
    }
}

fn try_openat2() -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        Err(errno) if !is_short(errno) => Err(errno),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Returns whether a call failed for something that is short now, which says nothing of the kernel.
fn is_short(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

/// Returns whether programs below `dir` cannot be executed. One that does not exist yet is like the directory above it.
fn is_noexec(dir: &Path) -> bool {
    dir.ancestors()
        .find_map(|dir| statvfs(dir).ok())
        .is_some_and(|found| found.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

// === impl HostFeatures ===

impl HostFeatures {
    /// Tries what any process can try, with the daemon's run directory `run`. Changes nothing on the node. Blocks for a moment.
    #[must_use]
    pub fn find(run: &Path) -> Self {
        let mut found = Self::default();
        found.add("openat2", check_needed().err().map(|error| report(&error)));
        let memory = executable_memory("switchyard-trial")
            .err()
            .filter(|error| Errno::from_io_error(error).is_none_or(|errno| !is_short(errno)));
        found.add(
            "executable_memory",
            memory.map(|error| {
                format!("{error} (vm.memfd_noexec): the helper for namespaces is executed from the state directory")
            }),
        );
        found.add(
            "executable_run",
            is_noexec(run).then(|| {
                format!(
                    "{} is mounted with noexec: runtimes are tried on a tmpfs of their own",
                    run.display()
                )
            }),
        );
        found.add(
            "initial_user_namespace",
            in_user_namespace().then(|| {
                "this node is a container in a user namespace: OOM scores and hard limits are not better than the daemon's own, no default \
                 of net.ipv4.ping_group_range is set, and the kernel refuses pods with user namespaces, disk quotas and volumes of NFS"
                    .to_owned()
            }),
        );
        // A kernel has one of the two.
        if !Path::new(SELINUX).exists() {
            found.add(
                "apparmor",
                apparmor_unusable()
                    .map(|why| format!("{why}: containers have no AppArmor profile")),
            );
        }
        found
    }

    /// Adds a feature; `fault` as in [`HostFeature`].
    pub fn add(&mut self, name: &'static str, fault: Option<String>) {
        self.0.push(HostFeature { name, fault });
    }

    /// The features, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = &HostFeature> {
        self.0.iter()
    }

    /// The features that cannot be used, with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.iter()
            .filter_map(|feature| Some((feature.name, feature.fault.as_deref()?)))
    }
}

impl Extend<HostFeature> for HostFeatures {
    fn extend<T: IntoIterator<Item = HostFeature>>(&mut self, more: T) {
        self.0.extend(more);
    }
}

impl IntoIterator for HostFeatures {
    type Item = HostFeature;
    type IntoIter = std::vec::IntoIter<HostFeature>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

// === impl AppArmorState ===

impl AppArmorState {
    fn fault(&self) -> Option<String> {
        if !self.is_enabled {
            return Some("AppArmor is off in this kernel".to_owned());
        }
        if !self.has_directory {
            return Some(format!(
                "{APPARMOR} does not exist: securityfs is not mounted"
            ));
        }
        // A container that has been given a namespace of profiles loads its own there.
        if self.is_stacked {
            return None;
        }
        if !self.container.is_empty() {
            return Some(format!(
                "this node is a container (container={}), and the profiles belong to its host",
                self.container.display()
            ));
        }
        self.in_user_namespace.then(|| {
            "this node is in a user namespace, from which no profile can be loaded".to_owned()
        })
    }
}

#[cfg(test)]
mod tests;
