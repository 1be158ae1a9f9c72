//! Choice of the files of the host that get an SELinux label for a task, and of those that never do. Pure.

use std::path::{Path, PathBuf};

use switchyard_core::spec::{MountSource, Relabel, Security};
use switchyard_core::{Error, Result, SpecPart};

use crate::input::{Host, Namespace, SandboxFacts};
use crate::labels::{self, Labels};
use crate::resolved::{ImageVolume, ResolvedMount, ResolvedSource, Staging};

/// Directories and files that programs of the system need with the labels that they have: those to which container
/// runtimes give none, and where distributions have them by other names.
const SYSTEM: [&str; 45] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/etc/passwd",
    "/etc/pki",
    "/etc/shadow",
    "/etc/ssh",
    "/etc/ssl",
    "/etc/systemd",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/nix",
    "/opt",
    "/ostree",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sysroot",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local",
    "/usr/sbin",
    "/usr/share",
    "/var",
    "/var/cache",
    "/var/home",
    "/var/lib",
    "/var/log",
    "/var/mnt",
    "/var/opt",
    "/var/roothome",
    "/var/spool",
    "/var/srv",
    "/var/tmp",
    "/var/usrlocal",
];

/// File systems of the kernel, below which nothing gets a label either.
const KERNEL: [&str; 2] = ["/proc", "/sys"];

/// Directories whose files containers may use with the labels that they have, as programs, libraries, time zones and devices.
const FOR_ALL: [&str; 2] = ["/dev", "/usr"];

/// Part of [`FOR_ALL`] that is not of the system.
const NOT_FOR_ALL: &str = "/usr/local";

/// Facts on which the labels for a task depend.
#[derive(Debug, Clone, Copy)]
pub struct RelabelInput<'a> {
    /// The task's security settings.
    pub security: &'a Security,
    /// The facts of its sandbox.
    pub sandbox: &'a SandboxFacts,
    /// The abilities of the node.
    pub host: &'a Host,
    /// The mounts that the task requests.
    pub mounts: &'a [ResolvedMount],
    /// Directories for the volumes that its image declares.
    pub volumes: &'a [ImageVolume],
    /// The gateway's own directories, where its sockets and records are.
    pub own_dirs: &'a [&'a Path],
    /// The directory in them with the files that a frontend has written for this task, if it may be given any.
    pub given_dir: Option<&'a Path>,
}

/// A file or tree of the host, and the label that it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relabelled {
    /// The mount that asks for it; `None` for files of the gateway's own.
    pub part: Option<SpecPart>,
    /// A directory that tasks cannot replace.
    pub root: PathBuf,
    /// The path below it, where no symlink is followed; empty for the directory itself.
    pub below: PathBuf,
    /// The label.
    pub label: String,
    /// True if the task cannot be created without it. False for what the operator's configuration alone asks for.
    pub required: bool,
}

/// Owner of the source of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    /// A volume of the gateway's.
    Gateway,
    /// A path of the host.
    Other,
}

/// The gateway's own directories, and what of them is made for the task.
#[derive(Debug, Clone, Copy)]
struct OwnDirs<'a> {
    dirs: &'a [&'a Path],
    given: Option<&'a Path>,
}

impl OwnDirs<'_> {
    /// Returns whether a path is one of them, contains one or is in one, save for what is made for the task.
    fn keep_label(self, path: &Path) -> bool {
        let is_given = |given: PathBuf| path.starts_with(&given) && path != given;
        let mut dirs = self.dirs.iter().map(|own| without_link(own));
        dirs.any(|own| own.starts_with(path) || path.starts_with(&own))
            && !self.given.map(without_link).is_some_and(is_given)
    }
}

/// A directory of the configuration as sources of mounts have it, whose links are resolved: `/var/run` is one to `/run`.
fn without_link(dir: &Path) -> PathBuf {
    match dir.strip_prefix("/var/run") {
        Ok(rest) => Path::new("/run").join(rest),
        Err(_) => dir.to_owned(),
    }
}

/// Lists what gets a label before a task is created; nothing where SELinux is off.
///
/// Volumes of the gateway can be used by all tasks that name them, and those that an image declares by their task alone.
/// A task whose label is another one than its sandbox's gets the sandbox's files with its own: they have that of the
/// task that was created last.
///
/// # Errors
/// `InvalidArgument` for a directory that the system needs with its labels, or with a part that is not valid in a label.
pub fn of_task(input: &RelabelInput<'_>) -> Result<Vec<Relabelled>> {
    let RelabelInput {
        security,
        sandbox,
        host,
        mounts,
        volumes,
        own_dirs,
        given_dir,
    } = *input;
    let own = OwnDirs {
        dirs: own_dirs,
        given: given_dir,
    };
    let labels_of = |security: &Security| {
        labels::selinux(security, sandbox.selinux.as_ref(), host)
            .map_err(|error| error.about(SpecPart::Selinux))
    };
    let Some(labels) = labels_of(security)? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for (number, mount) in mounts.iter().enumerate() {
        let part = SpecPart::Mount(number);
        let made = of_mount(mount, &labels, own).map_err(|error| error.about(part))?;
        all.extend(made.map(|made| Relabelled {
            part: Some(part),
            ..made
        }));
    }
    all.extend(volumes.iter().filter_map(|volume| {
        let (root, below) = place(&volume.source, Maker::Gateway)?;
        Some(unasked(root, below, &labels.mount))
    }));
    let of_sandbox = labels_of(&Security::default())?;
    if of_sandbox.is_some_and(|of_sandbox| of_sandbox.mount != labels.mount) {
        all.extend(sandbox_files(sandbox, &labels.mount));
    }
    Ok(all)
}

/// The label that the source of a mount gets, if it gets one.
fn of_mount(
    mount: &ResolvedMount,
    labels: &Labels,
    own: OwnDirs<'_>,
) -> Result<Option<Relabelled>> {
    let maker = match &mount.requested.source {
        MountSource::Host { .. } | MountSource::Beneath { .. } => Maker::Other,
        MountSource::Volume { .. } => Maker::Gateway,
        // They are mounted with a label, or have none that could be changed.
        MountSource::Image { .. } | MountSource::Nfs { .. } | MountSource::Tmpfs { .. } => {
            return Ok(None);
        }
    };
    let relabel = mount.requested.selinux_relabel;
    let label = match (relabel, maker) {
        (Relabel::Keep, Maker::Other) => return Ok(None),
        (Relabel::Keep, Maker::Gateway) | (Relabel::Shared | Relabel::SharedByDefault, _) => {
            &labels.shared
        }
        (Relabel::Private | Relabel::PrivateByDefault, _) => &labels.mount,
    };
    let required = !matches!(
        relabel,
        Relabel::SharedByDefault | Relabel::PrivateByDefault
    );
    if maker == Maker::Other {
        let path = mount.source.host_path();
        let checked = check(&path, own);
        if !required && (checked.is_err() || is_for_all(&path)) {
            return Ok(None);
        }
        checked?;
    }
    Ok(place(&mount.source, maker).map(|(root, below)| Relabelled {
        required,
        ..unasked(root, below, label)
    }))
}

/// Returns whether containers may use what is at a path although nobody has labelled it.
fn is_for_all(path: &Path) -> bool {
    FOR_ALL.iter().any(|dir| path.starts_with(dir)) && !path.starts_with(NOT_FOR_ALL)
}

/// Refuses a path that never gets another label.
///
/// # Errors
/// `InvalidArgument`, naming it.
fn check(path: &Path, own: OwnDirs<'_>) -> Result<()> {
    let why = if SYSTEM.iter().any(|system| path == Path::new(system)) {
        "programs of the system need it with the SELinux labels that it has: mount a directory below it"
    } else if KERNEL.iter().any(|kernel| path.starts_with(kernel)) {
        "files of the kernel keep their SELinux labels: mount it without relabelling"
    } else if own.keep_label(path) {
        "sockets and records of the daemon are there, which no container may use: mount another directory"
    } else {
        return Ok(());
    };
    Err(Error::invalid(
        "mounts.selinux_relabel",
        format!("{} cannot be relabelled: {why}", path.display()),
    ))
}

/// The place of a source on the host: a directory, and the path below it. `None` for what is mounted only when the task
/// is started.
fn place(source: &ResolvedSource, maker: Maker) -> Option<(PathBuf, PathBuf)> {
    let path = match &source.staging {
        Staging::Nothing => &source.path,
        Staging::IdMapped { path, .. } => path,
        Staging::Beneath { root, path, .. } => return Some((root.clone(), path.clone())),
        Staging::Nfs { .. } | Staging::Image { .. } => return None,
    };
    match maker {
        Maker::Gateway => Some((path.clone(), PathBuf::new())),
        // Its symlinks were resolved before, and it must have none now.
        Maker::Other => Some((PathBuf::from("/"), path.strip_prefix("/").ok()?.to_owned())),
    }
}

/// The files that tasks get from their sandbox, and its shared memory.
fn sandbox_files(sandbox: &SandboxFacts, label: &str) -> Vec<Relabelled> {
    let SandboxFacts {
        hostname_file,
        hosts_file,
        resolv_conf,
        shm,
        ipc,
        ..
    } = sandbox;
    let own_shm = match ipc {
        Namespace::Path(_) => shm.as_ref(),
        Namespace::Host => None,
    };
    let files = [hostname_file, hosts_file, resolv_conf];
    let file = |path: &PathBuf| {
        let root = path.parent()?;
        Some(unasked(root.to_owned(), path.file_name()?.into(), label))
    };
    let shm = own_shm.map(|dir| unasked(dir.clone(), PathBuf::new(), label));
    let files = files.into_iter().flatten().filter_map(file);
    files.chain(shm).collect()
}

fn unasked(root: PathBuf, below: PathBuf, label: &str) -> Relabelled {
    Relabelled {
        part: None,
        root,
        below,
        label: label.to_owned(),
        required: true,
    }
}
