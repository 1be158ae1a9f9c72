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
pub const KINDS: [&str; 2] = ["bind", "tmpfs"];

/// What a volume is.
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
    /// A tmpfs.
    Tmpfs(Tmpfs),
}

/// Flags of a bind mount besides `ro` and `rw`, which the runtime takes as they are.
const BIND_FLAGS: [&str; 9] = [
    "noexec",
    "exec",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noatime",
    "relatime",
    "nodiratime",
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
                "{other:?} cannot be mounted here: it can be \"tmpfs\", or \"none\" with the option \"bind\"; mount other file systems on the host, and bind them"
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
            "bind" => {}
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

// === impl LocalVolume ===

impl LocalVolume {
    /// The kind of its file system, one of [`KINDS`]; `None` for a directory.
    #[must_use]
    pub const fn kind(&self) -> Option<&'static str> {
        let [bind, tmpfs] = KINDS;
        match self {
            Self::Directory => None,
            Self::Bind { .. } => Some(bind),
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

    #[test]
    fn options_of_the_local_driver_give_what_docker_mounts() {
        let bind = |path: &str, readonly, options: &[&str]| LocalVolume::Bind {
            path: path.into(),
            readonly,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        let tmpfs = |options: &[&str]| {
            let mut tmpfs = Tmpfs::default();
            for option in options {
                tmpfs.set(option).unwrap();
            }
            LocalVolume::Tmpfs(tmpfs)
        };
        for (options, expected, kind) in [
            (&[][..], LocalVolume::Directory, None),
            (
                &[("type", "none"), ("device", "/srv/../data"), ("o", "bind")],
                bind("/data", false, &["bind"]),
                Some("bind"),
            ),
            (
                &[("type", "none"), ("device", "/a"), ("o", "rbind,ro,noexec")],
                bind("/a", true, &["noexec"]),
                Some("bind"),
            ),
            (
                &[("type", "tmpfs"), ("device", "tmpfs")],
                tmpfs(&["exec"]),
                Some("tmpfs"),
            ),
            (
                &[
                    ("type", "tmpfs"),
                    ("device", "tmpfs"),
                    ("o", "size=100m,uid=1000,noexec"),
                ],
                tmpfs(&["size=100m", "uid=1000"]),
                Some("tmpfs"),
            ),
        ] {
            let volume = volume(options).unwrap();
            assert_eq!(volume.kind(), kind, "{options:?}");
            assert_eq!(volume, expected, "{options:?}");
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
