//! Mounts of a task: those that every task has, the sandbox's files, and the requested ones, in the order
//! they are made.
//!
//! Longer than 500 lines because the order of all mounts of a task is decided here.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use switchyard_core::spec::{self, DEFAULT_SHM_BYTES, MissingSource, MountSource, Propagation};
use switchyard_core::{Error, Reason, Result, SpecPart};

use crate::environment::INIT_PATH;
use crate::host_fs::{HostFs, HostPropagation};
use crate::input::{Input, Namespace, SandboxFacts};
use crate::oci::Mount;
use crate::resolved::ResolvedMount;
use crate::text;

/// Mounts of a task, and what goes with them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mounts {
    /// In the order they are made.
    pub mounts: Vec<Mount>,
    /// Propagation of the root mount, if one of the mounts needs it.
    pub rootfs_propagation: Option<&'static str>,
}

/// View of `/sys` that a process has.
///
/// All mounts of sysfs in a network namespace share one superblock of the kernel, which is read-only for all of them if
/// the first one was mounted so. Where privileged tasks may be in the namespace nobody mounts it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sysfs {
    /// Mounted read-only.
    ReadOnly,
    /// Mounted read-only above a writable mount that nobody sees.
    Covered,
    /// Mounted writable.
    Writable,
    /// The host's own mount, with this option: to mount a new one needs privileges over the network namespace, which
    /// a user namespace does not have over the host's.
    Bound(&'static str),
}

impl Sysfs {
    /// Returns the view of a process of a sandbox, which is that of a privileged task or another one. `recursive` is true if
    /// the runtime handler knows the mount option `rro`.
    pub(crate) const fn of(sandbox: &SandboxFacts, privileged: bool, recursive: bool) -> Self {
        let others = sandbox.privileged || sandbox.network_shared;
        match (privileged, others, &sandbox.network) {
            (_, _, Namespace::Host) if sandbox.users.is_some() => {
                Self::Bound(if recursive { "rro" } else { "ro" })
            }
            (true, _, _) => Self::Writable,
            (false, true, Namespace::Path(_)) => Self::Covered,
            // The host has mounted its own writable.
            (false, true, Namespace::Host) | (false, false, _) => Self::ReadOnly,
        }
    }

    /// The mounts at `/sys`, in the order they are made.
    fn mounts(self) -> Vec<Mount> {
        let mount = |kind: &str, source: &str, further: &[&str]| Mount {
            destination: "/sys".to_owned(),
            kind: kind.to_owned(),
            source: source.to_owned(),
            options: options(&[&["nosuid", "noexec", "nodev"][..], further].concat()),
        };
        let sysfs = |access: &str| mount("sysfs", "sysfs", &[access]);
        match self {
            Self::ReadOnly => vec![sysfs("ro")],
            Self::Writable => vec![sysfs("rw")],
            // The kernel mounts no file system right above itself.
            Self::Covered => vec![
                sysfs("rw"),
                mount("tmpfs", "tmpfs", &["mode=555", "size=4k"]),
                sysfs("ro"),
            ],
            Self::Bound(access) => vec![mount("bind", "/sys", &["rbind", "rprivate", access])],
        }
    }
}

/// Options that a bind mount may have besides those that other fields express.
const BIND_OPTIONS: [&str; 16] = [
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noexec",
    "exec",
    "noatime",
    "atime",
    "nodiratime",
    "diratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "sync",
    "dirsync",
];

/// Options that other fields express.
const FIELD_OPTIONS: [&str; 13] = [
    "ro",
    "rw",
    "rro",
    "rbind",
    "private",
    "rprivate",
    "slave",
    "rslave",
    "shared",
    "rshared",
    "unbindable",
    "runbindable",
    "remount",
];

/// The mounts of a task.
///
/// A mount of the task replaces the default one at the same destination, and one at `/dev` also those below
/// it. Of two mounts of the task at one destination the later one is made, which would hide the other. The rest are
/// sorted by the depth of their destination, so that none hides another.
///
/// # Errors
/// `InvalidArgument`, naming `mounts`, for an invalid destination, source, option or propagation;
/// `Unimplemented` with [`Reason::RecursiveReadonlyMount`] where the runtime handler cannot mount
/// recursively read-only.
pub fn of_task(input: &Input<'_>) -> Result<Mounts> {
    let mut made = Mounts::default();
    let mut asked: IndexMap<String, Mount> = IndexMap::with_capacity(input.mounts.len());
    for (index, mount) in input.mounts.iter().enumerate() {
        let mount = of_request(mount, input, &mut made)
            .map_err(|error| error.about(SpecPart::Mount(index)))?;
        asked.insert(mount.destination.clone(), mount);
    }
    let dev_replaced = asked.contains_key("/dev");
    let replaced = |mount: &Mount| {
        asked.contains_key(&mount.destination)
            || (dev_replaced && mount.destination.starts_with("/dev/"))
    };
    let privileged = input.task.security.privileged;
    let sysfs = Sysfs::of(input.sandbox, privileged, input.recursive_readonly);
    let mut defaults = kernel_mounts(sysfs);
    defaults.push(cgroup_mount(privileged));
    defaults.extend(sandbox_files(input)?);
    if input.task.init {
        let source = text::utf8("init", input.init)?.to_owned();
        defaults.push(bind(
            INIT_PATH.to_owned(),
            source,
            options(&["bind", "rprivate", "ro"]),
        ));
    }
    for volume in input.volumes {
        let source = text::utf8("image volumes", &volume.source.path)?.to_owned();
        let destination = text::absolute("image volumes", &volume.destination)?;
        defaults.push(bind(
            destination,
            source,
            options(&["rbind", "rprivate", "rw"]),
        ));
    }
    defaults.retain(|mount| !replaced(mount));
    made.mounts = defaults;
    made.mounts.extend(asked.into_values());
    made.mounts
        .sort_by_key(|mount| text::depth(&mount.destination));
    Ok(made)
}

/// The kernel file systems that every task gets.
pub(crate) fn kernel_mounts(sysfs: Sysfs) -> Vec<Mount> {
    let mount = |destination: &str, kind: &str, source: &str, list: &[&str]| Mount {
        destination: destination.to_owned(),
        kind: kind.to_owned(),
        source: source.to_owned(),
        options: options(list),
    };
    let mut mounts = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount(
            "/dev",
            "tmpfs",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=65536k"],
        ),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &[
                "nosuid",
                "noexec",
                "newinstance",
                "ptmxmode=0666",
                "mode=0620",
                "gid=5",
            ],
        ),
        mount(
            "/dev/mqueue",
            "mqueue",
            "mqueue",
            &["nosuid", "noexec", "nodev"],
        ),
    ];
    mounts.extend(sysfs.mounts());
    mounts
}

fn cgroup_mount(privileged: bool) -> Mount {
    let access = if privileged { "rw" } else { "ro" };
    Mount {
        destination: "/sys/fs/cgroup".to_owned(),
        kind: "cgroup".to_owned(),
        source: "cgroup".to_owned(),
        options: options(&["nosuid", "noexec", "nodev", "relatime", access]),
    }
}

/// The files that tasks of a sandbox share, and its `/dev/shm`.
fn sandbox_files(input: &Input<'_>) -> Result<Vec<Mount>> {
    let sandbox = input.sandbox;
    let access = if input.task.security.readonly_rootfs {
        "ro"
    } else {
        "rw"
    };
    let files = [
        ("/etc/hostname", &sandbox.hostname_file),
        ("/etc/hosts", &sandbox.hosts_file),
        ("/etc/resolv.conf", &sandbox.resolv_conf),
    ];
    let mut mounts = Vec::with_capacity(files.len() + 1);
    for (destination, source) in files {
        if let Some(source) = source {
            let source = text::utf8("sandbox files", source)?.to_owned();
            mounts.push(bind(
                destination.to_owned(),
                source,
                options(&["rbind", "rprivate", access]),
            ));
        }
    }
    // Shared memory belongs to the IPC namespace: without a directory of the sandbox it is the host's, or the
    // task's own.
    let shm = match (&sandbox.shm, &sandbox.ipc) {
        (Some(path), _) => Some(path.as_path()),
        (None, Namespace::Host) => Some(Path::new("/dev/shm")),
        (None, Namespace::Path(_)) => None,
    };
    mounts.push(match shm {
        Some(path) => {
            let source = text::utf8("sandbox files", path)?.to_owned();
            // Since 1.2 runc clears the flags of the source that are not named here. The host's permits programs.
            let mut flags = options(&["rbind", "rprivate", "rw", "nosuid", "nodev"]);
            if !matches!(sandbox.ipc, Namespace::Host) {
                flags.push("noexec".to_owned());
            }
            bind("/dev/shm".to_owned(), source, flags)
        }
        None => Mount {
            destination: "/dev/shm".to_owned(),
            kind: "tmpfs".to_owned(),
            source: "shm".to_owned(),
            options: options(&[
                "nosuid",
                "noexec",
                "nodev",
                "mode=1777",
                &format!("size={DEFAULT_SHM_BYTES}"),
            ]),
        },
    });
    Ok(mounts)
}

fn bind(destination: String, source: String, options: Vec<String>) -> Mount {
    Mount {
        destination,
        kind: "bind".to_owned(),
        source,
        options,
    }
}

fn options(list: &[&str]) -> Vec<String> {
    list.iter().map(|option| (*option).to_owned()).collect()
}

/// The source of a mount of a host path, with symlinks resolved; created first if it is missing and `missing`
/// requests that. May block on the file system.
///
/// # Errors
/// `InvalidArgument`, naming `mounts`, for an invalid destination or source.
pub fn host_source(
    destination: &Path,
    path: &Path,
    missing: MissingSource,
    fs: &dyn HostFs,
) -> Result<PathBuf> {
    let destination = clean_destination(destination)?;
    let asked = text::absolute("mounts", path)?;
    fs.source(Path::new(&asked), missing).map_err(|error| {
        Error::invalid(
            "mounts",
            format!("source {asked} of {destination} cannot be used"),
        )
        .with_source(error)
    })
}

fn clean_destination(path: &Path) -> Result<String> {
    let destination = text::absolute("mounts", path)?;
    if destination == "/" {
        return Err(Error::invalid(
            "mounts",
            "the root itself cannot be a destination",
        ));
    }
    Ok(destination)
}

fn of_request(mount: &ResolvedMount, input: &Input<'_>, made: &mut Mounts) -> Result<Mount> {
    let ResolvedMount {
        requested,
        source: found,
        volume: _,
    } = mount;
    let spec::Mount {
        destination,
        source,
        readonly,
        recursive_readonly,
        propagation,
        id_mapped,
        selinux_relabel: _,
        options: extra,
    } = requested;
    let destination = clean_destination(destination)?;
    check_propagation(requested, &destination)?;
    let readonly_option = readonly_option(
        &destination,
        *readonly,
        *recursive_readonly,
        *propagation,
        input,
    )?;
    match source {
        MountSource::Volume { name, sub_path, .. }
            if *id_mapped && !sub_path.as_os_str().is_empty() =>
        {
            Err(Error::unimplemented(format!(
                "mounts: ids cannot be mapped below the volume {name} at {destination}"
            )))
        }
        MountSource::Beneath { .. } if *id_mapped => Err(Error::unimplemented(format!(
            "mounts: ids cannot be mapped at {destination}, where tasks can change what is there"
        ))),
        MountSource::Host { .. } | MountSource::Beneath { .. } | MountSource::Volume { .. } => {
            let host_path = found.host_path();
            let flag = propagated(&destination, &host_path, *propagation, input.found, made)?;
            let list = bind_options(&destination, flag, readonly_option, extra)?;
            Ok(bind(
                destination,
                text::utf8("mounts", &found.path)?.to_owned(),
                list,
            ))
        }
        MountSource::Image { .. } => {
            let access = if *readonly { readonly_option } else { "ro" };
            let list = bind_options(&destination, "rprivate", access, extra)?;
            Ok(bind(
                destination,
                text::utf8("mounts", &found.path)?.to_owned(),
                list,
            ))
        }
        MountSource::Nfs { .. } if *id_mapped => Err(Error::unimplemented(format!(
            "mounts: ids of the network file system at {destination} cannot be mapped"
        ))),
        MountSource::Nfs { .. } => {
            let list = bind_options(&destination, "rprivate", readonly_option, extra)?;
            Ok(bind(
                destination,
                text::utf8("mounts", &found.path)?.to_owned(),
                list,
            ))
        }
        MountSource::Tmpfs { size_bytes, mode } => {
            tmpfs(destination, *size_bytes, *mode, readonly_option, extra)
        }
    }
}

/// Refuses shared propagation for a mount whose source is not a path of the host.
fn check_propagation(mount: &spec::Mount, destination: &str) -> Result<()> {
    let what = match &mount.source {
        MountSource::Host { .. } | MountSource::Beneath { .. } => return Ok(()),
        MountSource::Image { .. } => format!("the image at {destination}"),
        MountSource::Volume { name, .. } => format!("the volume {name} at {destination}"),
        MountSource::Nfs { .. } => format!("the network file system at {destination}"),
        MountSource::Tmpfs { .. } => format!("the tmpfs at {destination}"),
    };
    match mount.propagation {
        Propagation::Private => Ok(()),
        Propagation::HostToTask | Propagation::Bidirectional => Err(Error::invalid(
            "mounts",
            format!("{what} can only be private"),
        )),
    }
}

fn tmpfs(
    destination: String,
    size_bytes: u64,
    mode: u32,
    access: &str,
    extra: &[String],
) -> Result<Mount> {
    if mode > 0o7777 {
        let text = format!("{mode:o} is no mode for the tmpfs at {destination}");
        return Err(Error::invalid("mounts", text));
    }
    let mut list = options(&["nosuid", "nodev", "rprivate", access]);
    list.push(format!("mode={mode:04o}"));
    if size_bytes > 0 {
        list.push(format!("size={size_bytes}"));
    }
    for option in extra {
        list.push(checked_option(&destination, option, false)?);
    }
    Ok(Mount {
        destination,
        kind: "tmpfs".to_owned(),
        source: "tmpfs".to_owned(),
        options: list,
    })
}

/// The options of a bind mount, the request's further ones last.
fn bind_options(
    destination: &str,
    flag: &str,
    access: &str,
    extra: &[String],
) -> Result<Vec<String>> {
    let recursion = if extra.iter().any(|option| option == "bind") {
        "bind"
    } else {
        "rbind"
    };
    let mut list = options(&[recursion, flag, access]);
    for option in extra.iter().filter(|option| *option != "bind") {
        list.push(checked_option(destination, option, true)?);
    }
    Ok(list)
}

fn readonly_option(
    destination: &str,
    readonly: bool,
    recursive: bool,
    propagation: Propagation,
    input: &Input<'_>,
) -> Result<&'static str> {
    match (readonly, recursive) {
        (false, false) => Ok("rw"),
        (true, false) => Ok("ro"),
        (false, true) => Err(Error::invalid(
            "mounts",
            format!("{destination} must be readonly to be recursively read-only"),
        )),
        (true, true) if propagation != Propagation::Private => Err(Error::invalid(
            "mounts",
            format!("{destination} must be private to be recursively read-only"),
        )),
        (true, true) if !input.recursive_readonly => Err(Error::unimplemented(format!(
            "the runtime handler cannot mount {destination} recursively read-only: its OCI runtime does not know rro, or this kernel lacks \
             mount_setattr (Linux 5.12)"
        ))
        .with_reason(Reason::RecursiveReadonlyMount)),
        (true, true) => Ok("rro"),
    }
}

/// The propagation flag; whether the host's mount allows it is checked, and the root mount's propagation
/// noted.
fn propagated(
    destination: &str,
    source: &Path,
    propagation: Propagation,
    fs: &dyn HostFs,
    made: &mut Mounts,
) -> Result<&'static str> {
    let host = |fs: &dyn HostFs| {
        fs.propagation(source).map_err(|error| {
            Error::internal(format!(
                "the mount that {} is on cannot be looked up",
                source.display()
            ))
            .with_source(error)
        })
    };
    match propagation {
        Propagation::Private => Ok("rprivate"),
        Propagation::HostToTask => match host(fs)? {
            HostPropagation::Shared | HostPropagation::Slave => {
                // Not if another mount needs `rshared`.
                made.rootfs_propagation.get_or_insert("rslave");
                Ok("rslave")
            }
            HostPropagation::Private => Err(Error::invalid(
                "mounts",
                format!(
                    "{destination} follows the host, but {} is on a private mount: `mount --make-rshared` makes it a shared one",
                    source.display()
                ),
            )),
        },
        Propagation::Bidirectional => match host(fs)? {
            HostPropagation::Shared => {
                made.rootfs_propagation = Some("rshared");
                Ok("rshared")
            }
            HostPropagation::Slave | HostPropagation::Private => Err(Error::invalid(
                "mounts",
                format!(
                    "{destination} is bidirectional, but {} is not on a shared mount: `mount --make-rshared` makes it one",
                    source.display()
                ),
            )),
        },
    }
}

fn checked_option(destination: &str, option: &str, bind: bool) -> Result<String> {
    let refused = |why: &str| {
        Error::invalid(
            "mounts",
            format!("option {option:?} of {destination} {why}"),
        )
    };
    if FIELD_OPTIONS.contains(&option) {
        return Err(refused("is a field of the mount itself"));
    }
    if option.is_empty()
        || option.contains(|c: char| c == ',' || c.is_whitespace() || c.is_control())
    {
        return Err(refused("is not a single mount option"));
    }
    if bind && !BIND_OPTIONS.contains(&option) {
        return Err(refused("cannot be used with a bind mount"));
    }
    Ok(option.to_owned())
}
