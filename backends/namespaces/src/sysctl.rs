//! Kernel parameters of a sandbox, written from inside the namespaces that they belong to.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use switchyard_core::sysctl::{SysctlName, SysctlNamespace};

use crate::error::Error;
use crate::ns::Ns;

/// A kernel parameter that has been checked against the namespaces a sandbox owns.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    name: String,
    value: String,
    /// Which namespace the file speaks of depends on the thread that opens it.
    file: PathBuf,
}

impl Checked {
    /// Checks that setting `name` stays inside the namespaces for which `owns` is true.
    pub(crate) fn new(name: &str, value: &str, owns: impl Fn(Ns) -> bool) -> Result<Self, Error> {
        let parsed = SysctlName::parse(name).ok_or_else(|| Error::SysctlName { name: name.to_owned() })?;
        let namespace = match parsed.namespace() {
            Some(SysctlNamespace::Network) => Ns::Net,
            Some(SysctlNamespace::Ipc) => Ns::Ipc,
            Some(SysctlNamespace::Uts) => Ns::Uts,
            None => return Err(Error::SysctlHost { name: name.to_owned() }),
        };
        if !owns(namespace) {
            return Err(Error::SysctlShared { name: name.to_owned(), namespace });
        }
        let mut file = PathBuf::from("/proc/sys");
        file.extend(parsed.parts());
        Ok(Self { name: name.to_owned(), value: value.to_owned(), file })
    }

    /// Writes it from the calling thread, whose namespaces are the ones that change.
    pub(crate) fn apply(&self) -> Result<(), Error> {
        // No O_CREAT and no O_TRUNC, and one write: procfs takes a value only at offset 0.
        OpenOptions::new()
            .write(true)
            .open(&self.file)
            .and_then(|mut file| file.write_all(self.value.as_bytes()))
            .map_err(|source| Error::SysctlWrite {
                name: self.name.clone(),
                value: self.value.clone(),
                source,
            })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_parameter_of_a_shared_namespace_or_of_the_node_is_refused_by_name() {
        let error = Checked::new("net.core.somaxconn", "1", |ns| ns != Ns::Net).unwrap_err();
        assert!(matches!(error, Error::SysctlShared { namespace: Ns::Net, .. }), "{error}");
        assert!(error.to_string().contains("net.core.somaxconn"), "{error}");
        assert!(matches!(Checked::new("vm.swappiness", "1", |_| true), Err(Error::SysctlHost { .. })));
        assert!(matches!(Checked::new("net/../vm", "1", |_| true), Err(Error::SysctlName { .. })));
        let checked = Checked::new("net.ipv4.conf.eth0/1.forwarding", "1", |_| true).unwrap();
        assert_eq!(checked.file, Path::new("/proc/sys/net/ipv4/conf/eth0.1/forwarding"));
    }
}
