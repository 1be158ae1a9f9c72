//! Kernel parameters of a sandbox, written from inside the namespaces that they belong to.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use switchyard_core::sysctl::{SysctlName, SysctlNamespace};

use crate::error::Error;
use crate::ns::Ns;
use crate::within::run_in_netns;

/// A kernel parameter that has been checked against the namespaces a sandbox owns.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    name: String,
    value: String,
    /// The file below `/proc/sys`; it refers to the namespaces of the thread that opens it.
    file: PathBuf,
}

impl Checked {
    /// Checks that setting `name` stays inside the namespaces for which `owns` is true.
    pub(crate) fn new(name: &str, value: &str, owns: impl Fn(Ns) -> bool) -> Result<Self, Error> {
        let parsed = SysctlName::parse(name).ok_or_else(|| Error::SysctlName {
            name: name.to_owned(),
        })?;
        let namespace = match parsed.namespace() {
            Some(SysctlNamespace::Network) => Ns::Net,
            Some(SysctlNamespace::Ipc) => Ns::Ipc,
            Some(SysctlNamespace::Uts) => Ns::Uts,
            None => {
                return Err(Error::SysctlHost {
                    name: name.to_owned(),
                });
            }
        };
        if !owns(namespace) {
            return Err(Error::SysctlShared {
                name: name.to_owned(),
                namespace,
            });
        }
        let mut file = PathBuf::from("/proc/sys");
        file.extend(parsed.parts());
        Ok(Self {
            name: name.to_owned(),
            value: value.to_owned(),
            file,
        })
    }

    /// Writes it from the calling thread, whose namespaces are the ones that change.
    pub(crate) fn apply(&self) -> Result<(), Error> {
        // No O_CREAT and no O_TRUNC, and one write: procfs accepts a value only at offset 0.
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

/// Sets kernel parameters of a network namespace that another program created. Blocks.
///
/// # Errors
/// [`Error::SysctlName`], [`Error::SysctlHost`] and [`Error::SysctlShared`] before anything is set, the last
/// also if `netns` is the namespace of this process; [`Error::SysctlWrite`] if the kernel refuses a value;
/// those of [`run_in_netns`].
pub fn set_in_netns(netns: &Path, sysctls: &BTreeMap<String, String>) -> Result<(), Error> {
    let own =
        |path: &Path| std::fs::metadata(path).map_err(Error::file("stat the namespace", path));
    let ours = Path::new("/proc/self/ns/net");
    // In the node's own namespace, a sandbox must not change the parameters of the node.
    let shared = own(netns)?.ino() == own(ours)?.ino();
    let checked = sysctls
        .iter()
        .map(|(name, value)| Checked::new(name, value, |ns| ns == Ns::Net && !shared));
    let checked: Vec<Checked> = checked.collect::<Result<_, _>>()?;
    if checked.is_empty() {
        return Ok(());
    }
    run_in_netns(netns, || checked.iter().try_for_each(Checked::apply))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctl_of_a_shared_namespace_or_the_node_is_rejected_by_name() {
        let error = Checked::new("net.core.somaxconn", "1", |ns| ns != Ns::Net).unwrap_err();
        assert!(
            matches!(
                error,
                Error::SysctlShared {
                    namespace: Ns::Net,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("net.core.somaxconn"), "{error}");
        assert!(matches!(
            Checked::new("vm.swappiness", "1", |_| true),
            Err(Error::SysctlHost { .. })
        ));
        assert!(matches!(
            Checked::new("net/../vm", "1", |_| true),
            Err(Error::SysctlName { .. })
        ));
        let ours = Path::new("/proc/self/ns/net");
        let asked = BTreeMap::from([("net.core.somaxconn".to_owned(), "1".to_owned())]);
        assert!(
            matches!(set_in_netns(ours, &asked), Err(Error::SysctlShared { .. })),
            "it would be the host's"
        );
        let checked = Checked::new("net.ipv4.conf.eth0/1.forwarding", "1", |_| true).unwrap();
        assert_eq!(
            checked.file,
            Path::new("/proc/sys/net/ipv4/conf/eth0.1/forwarding")
        );
    }
}
