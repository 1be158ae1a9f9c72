//! Which namespace a sysctl belongs to, and writing one from inside it.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::ns::Ns;

/// A sysctl name, taken apart into the path of its file below `/proc/sys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysctlPath {
    parts: Vec<String>,
}

impl SysctlPath {
    /// Reads a name in either spelling of sysctl(8): the first separator decides, so `net.ipv4.conf.eth0/1.forwarding`
    /// and `net/ipv4/conf/eth0.1/forwarding` are the same.
    ///
    /// # Errors
    /// [`Error::SysctlName`] if it is no name, or would lead out of `/proc/sys`.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let invalid = || Error::SysctlName { name: name.to_owned() };
        if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(invalid());
        }
        let dotted = name.chars().find(|c| matches!(c, '.' | '/')) == Some('.');
        let parts: Vec<String> = if dotted {
            name.split('.').map(|part| part.replace('/', ".")).collect()
        } else {
            name.split('/').map(str::to_owned).collect()
        };
        // One component alone is a directory of /proc/sys, not a sysctl.
        let sound = parts.len() > 1 && parts.iter().all(|part| !matches!(part.as_str(), "" | "." | ".."));
        if sound { Ok(Self { parts }) } else { Err(invalid()) }
    }

    /// The namespace it belongs to, or `None` if it belongs to the host as a whole.
    #[must_use]
    pub fn namespace(&self) -> Option<Ns> {
        let mut parts = self.parts.iter().map(String::as_str);
        match (parts.next()?, parts.next()?, parts.next()) {
            ("net", _, _) => Some(Ns::Net),
            ("kernel", "hostname" | "domainname", None) => Some(Ns::Uts),
            ("kernel", "sem", None) => Some(Ns::Ipc),
            ("kernel", name, None) if name.starts_with("shm") || name.starts_with("msg") => Some(Ns::Ipc),
            ("fs", "mqueue", Some(_)) => Some(Ns::Ipc),
            _ => None,
        }
    }

    /// Its file below `/proc/sys`. Which namespace the file speaks of depends on the thread that opens it.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        let mut path = Path::new("/proc/sys").to_path_buf();
        path.extend(&self.parts);
        path
    }
}

/// The namespace that the sysctl `name` (in either spelling) belongs to; `None` if it is host-wide or no name at all.
#[must_use]
pub fn sysctl_namespace(name: &str) -> Option<Ns> {
    SysctlPath::parse(name).ok().and_then(|path| path.namespace())
}

/// A sysctl that has been checked against the namespaces a sandbox owns.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    name: String,
    value: String,
    path: SysctlPath,
}

impl Checked {
    /// Checks that setting `name` stays inside the namespaces for which `owns` is true.
    pub(crate) fn new(name: &str, value: &str, owns: impl Fn(Ns) -> bool) -> Result<Self, Error> {
        let path = SysctlPath::parse(name)?;
        let Some(namespace) = path.namespace() else {
            return Err(Error::SysctlHost { name: name.to_owned() });
        };
        if !owns(namespace) {
            return Err(Error::SysctlShared { name: name.to_owned(), namespace });
        }
        Ok(Self { name: name.to_owned(), value: value.to_owned(), path })
    }

    /// Writes it from the calling thread, whose namespaces are the ones that change.
    pub(crate) fn apply(&self) -> Result<(), Error> {
        // No O_CREAT and no O_TRUNC, and one write: procfs takes a value only at offset 0.
        OpenOptions::new()
            .write(true)
            .open(self.path.file())
            .and_then(|mut file| file.write_all(self.value.as_bytes()))
            .map_err(|source| Error::SysctlWrite {
                name: self.name.clone(),
                value: self.value.clone(),
                source,
            })
    }
}

#[cfg(test)]
mod tests;
