//! The options of Docker's volume driver `local`: `type`, `device` and `o`, as mount(8) takes them.
//!
//! Docker mounts the file system on the volume's directory while containers use it. Here a volume with such options is no
//! directory of the gateway: the task gets the file system itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use switchyard_core::{Error, Result};

use crate::fields::absolute;
use crate::tmpfs::Tmpfs;

/// The kinds of file systems, by the names by which an operator allows them.
pub const KINDS: [&str; 3] = ["bind", "nfs", "tmpfs"];

/// Kind of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalVolume {
    /// A directory of the gateway.
    Directory,
    /// A path of the host.
    Bind {
        /// Absolute path.
        path: PathBuf,
        /// Read-only.
        readonly: bool,
        /// Further options of the mount: names of this module alone.
        options: Vec<String>,
    },
    /// An NFS export.
    Nfs(NfsVolume),
    /// A tmpfs.
    Tmpfs(Tmpfs),
}

/// An NFS export, with checked words alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NfsVolume {
    /// `server:/path` or `:/path`.
    pub export: String,
    /// The server, by name or address.
    pub server: String,
    /// Read-only.
    pub readonly: bool,
    /// Options of the file system, each a name of this module, or `name=value`.
    pub options: Vec<String>,
    /// Further options of the mount: names of this module alone.
    pub flags: Vec<String>,
}

/// The longest name of an export, in bytes.
const EXPORT_MAX: usize = 1024;

/// The longest value of an option of NFS, in bytes.
const VALUE_MAX: usize = 64;

/// Options of NFS without a value, of the kernel's client, which ignores some that mount.nfs(8) knows, such as `bg`.
const NFS_FLAGS: [&str; 41] = [
    "ac",
    "acl",
    "async",
    "bg",
    "cto",
    "dirsync",
    "fg",
    "fsc",
    "hard",
    "intr",
    "lock",
    "migration",
    "noac",
    "noacl",
    "nocto",
    "nofsc",
    "nointr",
    "nolock",
    "nomigration",
    "noposix",
    "nordirplus",
    "noresvport",
    "nosharecache",
    "nosoftreval",
    "posix",
    "rdirplus",
    "rdma",
    "resvport",
    "sharecache",
    "sloppy",
    "soft",
    "softerr",
    "softreval",
    "sync",
    "tcp",
    "udp",
    "v3",
    "v4",
    "v4.0",
    "v4.1",
    "v4.2",
];

/// Options of NFS with a value.
const NFS_VALUES: [&str; 30] = [
    "acdirmax",
    "acdirmin",
    "acregmax",
    "acregmin",
    "actimeo",
    "bsize",
    "clientaddr",
    "local_lock",
    "lookupcache",
    "max_connect",
    "minorversion",
    "mountaddr",
    "mounthost",
    "mountport",
    "mountproto",
    "mountvers",
    "namlen",
    "nconnect",
    "nfsvers",
    "port",
    "proto",
    "retrans",
    "retry",
    "rsize",
    "sec",
    "timeo",
    "vers",
    "write",
    "wsize",
    "xprtsec",
];

/// Flags of a bind mount besides `ro` and `rw`, which the runtime takes as they are.
const BIND_FLAGS: [&str; 14] = [
    "noexec",
    "exec",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noatime",
    "atime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "nodiratime",
    "diratime",
];

/// The volume that these options of the driver are for. `field` is the path of the options, for errors.
///
/// # Errors
/// `InvalidArgument`, naming the option, for one that is malformed or missing; `Unimplemented` for a file system that cannot
/// be mounted here.
pub fn local_volume(field: &str, options: &BTreeMap<String, String>) -> Result<LocalVolume> {
    if options.is_empty() {
        return Ok(LocalVolume::Directory);
    }
    if let Some(unknown) = options
        .keys()
        .find(|name| !matches!(name.as_str(), "type" | "device" | "o"))
    {
        let why = "the driver local has the options type, device and o here";
        return Err(Error::unimplemented(format!("{field}.{unknown}: {why}")));
    }
    // Docker requires both as well.
    let required = |name: &str| {
        options
            .get(name)
            .map(String::as_str)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| Error::invalid(format_args!("{field}.{name}"), "it is missing"))
    };
    let kind = required("type")?;
    let device = required("device")?;
    let flags: Vec<&str> = options
        .get("o")
        .map(String::as_str)
        .unwrap_or_default()
        .split(',')
        .filter(|flag| !flag.is_empty())
        .collect();
    let is_bind = flags.iter().any(|flag| matches!(*flag, "bind" | "rbind"));
    let wrong = |flag: &str, of: &str| {
        let why = format!("{flag:?} is no option of {of} that can be set here");
        Error::invalid(format_args!("{field}.o"), why)
    };
    match kind {
        _ if is_bind => {
            let path = absolute(format_args!("{field}.device"), device)?;
            bind(path, &flags).map_err(|flag| wrong(flag, "a bind mount"))
        }
        "nfs" | "nfs4" => nfs(field, (kind, device), &flags),
        "tmpfs" => {
            let mut tmpfs = Tmpfs::default();
            // mount(8) allows programs unless it is told otherwise.
            for flag in ["exec"].into_iter().chain(flags) {
                tmpfs.set(flag).ok_or_else(|| wrong(flag, "a tmpfs"))?;
            }
            Ok(LocalVolume::Tmpfs(tmpfs))
        }
        other => {
            let why = format!(
                "{other:?} cannot be mounted here: it can be \"nfs\", \"tmpfs\", or \"none\" with the option \"bind\"; mount other file systems on the host, and bind them"
            );
            Err(Error::unimplemented(format!("{field}.type: {why}")))
        }
    }
}

/// A bind mount with these flags; fails with the first that it cannot have.
fn bind<'f>(path: PathBuf, flags: &[&'f str]) -> Result<LocalVolume, &'f str> {
    let mut readonly = false;
    let mut recursive = false;
    let mut options = Vec::new();
    for flag in flags {
        match *flag {
            "ro" => readonly = true,
            "rw" => readonly = false,
            "rbind" => recursive = true,
            // A bind mount has the last two from its file system.
            "bind" | "defaults" | "sync" | "async" => {}
            flag if BIND_FLAGS.contains(&flag) => options.push(flag.to_owned()),
            other => return Err(other),
        }
    }
    if !recursive {
        options.push("bind".to_owned());
    }
    Ok(LocalVolume::Bind {
        path,
        readonly,
        options,
    })
}

/// An NFS export with these options.
fn nfs(field: &str, (kind, device): (&str, &str), flags: &[&str]) -> Result<LocalVolume> {
    // A path may have spaces.
    let is_plain = !device.chars().any(char::is_control) && device.len() <= EXPORT_MAX;
    let of_device = device.split_once(":/").filter(|_| is_plain);
    let (host, _) = of_device.ok_or_else(|| {
        let why = format!("{device:?} is no export such as \"server:/path\" or \":/path\"");
        Error::invalid(format_args!("{field}.device"), why)
    })?;
    let mut volume = NfsVolume {
        export: device.to_owned(),
        server: host.trim_matches(['[', ']']).to_owned(),
        readonly: false,
        options: Vec::new(),
        flags: Vec::new(),
    };
    for flag in flags {
        volume.set(flag).ok_or_else(|| {
            let why = format!("{flag:?} is no option of NFS that can be set here");
            Error::invalid(format_args!("{field}.o"), why)
        })?;
    }
    if volume.server.is_empty() {
        let why = "it lacks addr=SERVER, and the device names no server";
        return Err(Error::invalid(format_args!("{field}.o"), why));
    }
    let has_version = |option: &String| {
        ["vers=", "nfsvers=", "v3", "v4"]
            .iter()
            .any(|name| option.starts_with(name))
    };
    if kind == "nfs4" && !volume.options.iter().any(has_version) {
        volume.options.push("vers=4".to_owned());
    }
    Ok(LocalVolume::Nfs(volume))
}

// === impl NfsVolume ===

impl NfsVolume {
    /// Sets an option; `None` if there is no such one, or its value is malformed.
    fn set(&mut self, option: &str) -> Option<()> {
        let Some((name, value)) = option.split_once('=') else {
            match option {
                "ro" => self.readonly = true,
                "rw" => self.readonly = false,
                "defaults" => {}
                flag if BIND_FLAGS.contains(&flag) => self.flags.push(flag.to_owned()),
                flag if NFS_FLAGS.contains(&flag) => self.options.push(flag.to_owned()),
                _ => return None,
            }
            return Some(());
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let is_value = !value.is_empty() && value.len() <= VALUE_MAX && value.bytes().all(is_plain);
        match name {
            // A name of a host may be longer.
            "addr" if value.len() <= EXPORT_MAX && value.bytes().all(is_plain) => {
                value.clone_into(&mut self.server);
            }
            name if is_value && NFS_VALUES.contains(&name) => self.options.push(option.to_owned()),
            _ => return None,
        }
        Some(())
    }
}

// === impl LocalVolume ===

impl LocalVolume {
    /// The kind of its file system, one of [`KINDS`]; `None` for a directory.
    #[must_use]
    pub const fn kind(&self) -> Option<&'static str> {
        let [bind, nfs, tmpfs] = KINDS;
        match self {
            Self::Directory => None,
            Self::Bind { .. } => Some(bind),
            Self::Nfs(_) => Some(nfs),
            Self::Tmpfs(_) => Some(tmpfs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(options: &[(&str, &str)]) -> Result<LocalVolume> {
        let options = options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        local_volume("f", &options)
    }

    /// The volume of these options, and the kind of its file system.
    fn mounted(kind: &str, device: &str, o: &str) -> (LocalVolume, Option<&'static str>) {
        let options = [("type", kind), ("device", device), ("o", o)];
        let volume = volume(&options).unwrap();
        let kind = volume.kind();
        (volume, kind)
    }

    fn owned(options: &[&str]) -> Vec<String> {
        options.iter().map(|option| (*option).to_owned()).collect()
    }

    #[test]
    fn options_of_the_local_driver_bind_what_docker_binds() {
        assert_eq!(volume(&[]).unwrap(), LocalVolume::Directory);
        assert_eq!(LocalVolume::Directory.kind(), None);
        for (device, o, path, readonly, options) in [
            ("/srv/../data", "bind", "/data", false, &["bind"][..]),
            ("/a", "rbind,ro,noexec", "/a", true, &["noexec"]),
            (
                "/a",
                "defaults,bind,sync,strictatime",
                "/a",
                false,
                &["strictatime", "bind"],
            ),
        ] {
            let expected = LocalVolume::Bind {
                path: path.into(),
                readonly,
                options: owned(options),
            };
            assert_eq!(mounted("none", device, o), (expected, Some("bind")), "{o}");
        }
    }

    #[test]
    fn options_of_the_local_driver_make_the_tmpfs_of_docker() {
        let plain = volume(&[("type", "tmpfs"), ("device", "tmpfs")]).unwrap();
        let mut executable = Tmpfs::default();
        executable.set("exec").unwrap();
        assert_eq!(plain, LocalVolume::Tmpfs(executable));
        for (o, options) in [
            ("size=100m,uid=1000,noexec", ["size=100m", "uid=1000"]),
            ("defaults,ro", ["exec", "ro"]),
        ] {
            let mut expected = Tmpfs::default();
            for option in options {
                expected.set(option).unwrap();
            }
            let expected = LocalVolume::Tmpfs(expected);
            assert_eq!(mounted("tmpfs", "x", o), (expected, Some("tmpfs")), "{o}");
        }
    }

    #[test]
    fn options_of_the_local_driver_mount_the_export_of_docker() {
        let plain = ["tcp", "v4.1", "bg", "async", "retry=1"];
        let by_address = "addr=nas.example,nolock,soft,rw,noatime,timeo=50,defaults";
        for (kind, device, o, server, readonly, options, flags) in [
            (
                "nfs4",
                "nas:/a",
                "tcp,v4.1,bg,async,retry=1",
                "nas",
                false,
                &plain[..],
                &[][..],
            ),
            (
                "nfs",
                ":/export/data",
                by_address,
                "nas.example",
                false,
                &["nolock", "soft", "timeo=50"],
                &["noatime"],
            ),
            (
                "nfs4",
                "[fd00::1]:/a b",
                "ro",
                "fd00::1",
                true,
                &["vers=4"],
                &[],
            ),
        ] {
            let expected = LocalVolume::Nfs(NfsVolume {
                export: device.into(),
                server: server.into(),
                readonly,
                options: owned(options),
                flags: owned(flags),
            });
            assert_eq!(
                mounted(kind, device, o),
                (expected, Some("nfs")),
                "{device}"
            );
        }
    }

    #[test]
    fn what_the_local_driver_cannot_mount_is_refused_by_its_option() {
        for (options, text) in [
            (&[("type", "none")][..], "f.device: it is missing"),
            (&[("device", "/a"), ("o", "bind")], "f.type: it is missing"),
            (
                &[("type", "none"), ("device", "a"), ("o", "bind")],
                "f.device: \"a\" is not an absolute path",
            ),
            (
                &[("type", "none"), ("device", "/a"), ("o", "bind,shared")],
                "f.o: \"shared\" is no option of a bind mount that can be set here",
            ),
            (
                &[("type", "tmpfs"), ("device", "tmpfs"), ("o", "size=x")],
                "f.o: \"size=x\" is no option of a tmpfs that can be set here",
            ),
            (
                &[("type", "nfs"), ("device", "/a"), ("o", "addr=1.2.3.4")],
                "f.device: \"/a\" is no export such as ",
            ),
            (
                &[("type", "nfs"), ("device", ":/a\n"), ("o", "addr=1.2.3.4")],
                "f.device: \":/a\\n\" is no export such as ",
            ),
            (
                &[("type", "nfs"), ("device", ":/a"), ("o", "nolock")],
                "f.o: it lacks addr=SERVER",
            ),
            (
                &[("type", "nfs"), ("device", "n:/a"), ("o", "source=/etc")],
                "f.o: \"source=/etc\" is no option of NFS",
            ),
            (
                &[("type", "nfs"), ("device", "n:/a"), ("o", "vers=4 x")],
                "f.o: \"vers=4 x\" is no option of NFS",
            ),
            (
                &[("type", "ext4"), ("device", "/dev/sda1")],
                "f.type: \"ext4\" cannot be mounted here: ",
            ),
            (
                &[("type", "none"), ("device", "/a")],
                "f.type: \"none\" cannot be mounted here: ",
            ),
            (
                &[("size", "1g")],
                "f.size: the driver local has the options ",
            ),
        ] {
            let report = volume(options).unwrap_err().report();
            assert!(report.starts_with(text), "{options:?}: {report}");
        }
    }
}
