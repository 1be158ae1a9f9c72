//! Network priorities of a task's traffic, by interface of the host.

use std::io;
use std::path::Path;

use switchyard_core::spec::TaskSpec;
use switchyard_core::{Error, Result};

use crate::host_fs::HostFs;
use crate::input::{Host, Namespace, SandboxFacts};
use crate::oci::{InterfacePriority, LinuxNetwork};

/// The kernel's directory of the interfaces in the reader's network namespace.
const INTERFACES: &str = "/sys/class/net";
/// Number of levels of stacked interfaces that are followed.
const LAYERS: usize = 8;

/// The network priorities of a task; `None` if it requests none.
///
/// The kernel has them only for interfaces of the host. They are set for the current interfaces with hardware
/// behind them: the others are created and removed with pods, and a removed interface would make the start
/// fail.
///
/// # Errors
/// `Unimplemented`, naming `net_priority`, for a sandbox with a network of its own and where the node lacks
/// the controller `net_prio`; `Internal` if the interfaces cannot be listed.
pub fn priorities(
    task: &TaskSpec,
    sandbox: &SandboxFacts,
    host: &Host,
    fs: &dyn HostFs,
) -> Result<Option<LinuxNetwork>> {
    let Some(priority) = task.net_priority else {
        return Ok(None);
    };
    let unsupported =
        |why: &str| Error::unimplemented(format!("net_priority: is not supported: {why}"));
    if sandbox.network != Namespace::Host {
        return Err(unsupported(
            "the kernel has priorities for the host's network alone, and this pod has its own: ask for rates by its annotations \
             kubernetes.io/ingress-bandwidth and kubernetes.io/egress-bandwidth",
        ));
    }
    if !host.net_priorities {
        return Err(unsupported(
            "this node has no controller net_prio, which needs cgroup v1 and is mounted at /sys/fs/cgroup/net_prio",
        ));
    }
    let names = interfaces(fs).map_err(|fault| {
        Error::internal("net_priority: the interfaces of the host cannot be listed")
            .with_source(fault)
    })?;
    let priorities = names
        .into_iter()
        .map(|name| InterfacePriority { name, priority })
        .collect();
    Ok(Some(LinuxNetwork { priorities }))
}

/// The names of the interfaces with hardware behind them.
fn interfaces(fs: &dyn HostFs) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = fs
        .list(Path::new(INTERFACES))?
        .iter()
        .filter_map(|path| name(path))
        .collect();
    names.retain(|name| has_hardware(name, fs, LAYERS));
    names.sort();
    Ok(names)
}

/// Returns whether an interface has a hardware device, or is stacked on one that has. `false` for one that
/// was just removed.
fn has_hardware(interface: &str, fs: &dyn HostFs, layers: usize) -> bool {
    let Ok(parts) = fs.list(&Path::new(INTERFACES).join(interface)) else {
        return false;
    };
    let mut parts = parts.iter().filter_map(|path| name(path));
    parts.any(|part| {
        part == "device"
            || layers > 0
                && part
                    .strip_prefix("lower_")
                    .is_some_and(|lower| has_hardware(lower, fs, layers - 1))
    })
}

fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}
