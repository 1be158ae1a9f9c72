//! The seccomp filter of a task: the default one, or a profile file of the host.

mod default;
mod profile;

use std::path::Path;

use switchyard_core::spec::{SeccompProfile, Security};
use switchyard_core::{Error, Result};

use crate::host_fs::HostFs;
use crate::input::Host;
use crate::oci::{Capabilities, LinuxSeccomp};
use profile::{Profile, Setting};

/// The largest profile file that is read, in bytes; usual ones have some ten thousand.
pub const MAX_PROFILE_BYTES: u64 = 4 << 20;

/// The filter of a task; a privileged one has none.
///
/// # Errors
/// `FailedPrecondition` for a profile file on a node that cannot filter; `InvalidArgument`, naming
/// `security.seccomp` and the file, for one that cannot be read or is not valid.
pub fn of_task(
    security: &Security,
    host: &Host,
    capabilities: &Capabilities,
    fs: &dyn HostFs,
    warnings: &mut Vec<String>,
) -> Result<Option<LinuxSeccomp>> {
    if security.privileged {
        return Ok(None);
    }
    match &security.seccomp {
        SeccompProfile::Unconfined => Ok(None),
        SeccompProfile::RuntimeDefault if !host.seccomp => {
            warnings.push(
                "the default seccomp profile is left out: this kernel cannot filter system calls"
                    .to_owned(),
            );
            Ok(None)
        }
        SeccompProfile::RuntimeDefault => Ok(Some(default_filter(host, capabilities))),
        SeccompProfile::Localhost(path) if !host.seccomp => {
            Err(Error::failed_precondition(format!(
                "seccomp profile {} cannot be used: this kernel cannot filter system calls",
                path.display()
            )))
        }
        SeccompProfile::Localhost(path) => from_file(path, host, capabilities, fs).map(Some),
    }
}

/// The default filter for a process with these capabilities.
#[must_use]
pub fn default_filter(host: &Host, capabilities: &Capabilities) -> LinuxSeccomp {
    let mut filter = default::profile()
        .resolved(setting(host, capabilities))
        .expect("the table of the default profile holds known actions and comparisons alone");
    filter.architectures = profile::native_architectures(host.arch)
        .iter()
        .map(|name| (*name).to_owned())
        .collect();
    filter
}

/// The profile file that the filter of a task is made of, if any is read.
pub(crate) fn profile_file<'a>(security: &'a Security, host: &Host) -> Option<&'a Path> {
    match &security.seccomp {
        SeccompProfile::Localhost(path) if !security.privileged && host.seccomp => {
            Some(path.as_path()).filter(|path| path.is_absolute())
        }
        SeccompProfile::Localhost(_)
        | SeccompProfile::Unconfined
        | SeccompProfile::RuntimeDefault => None,
    }
}

fn from_file(
    path: &Path,
    host: &Host,
    capabilities: &Capabilities,
    fs: &dyn HostFs,
) -> Result<LinuxSeccomp> {
    let refused = |why: &str| {
        Error::invalid(
            "security.seccomp",
            format!("profile {} {why}", path.display()),
        )
    };
    if !path.is_absolute() {
        return Err(refused("is not an absolute path"));
    }
    let bytes = fs
        .read(path, MAX_PROFILE_BYTES)
        .map_err(|error| refused("cannot be read").with_source(error))?;
    let profile: Profile = serde_json::from_slice(&bytes)
        .map_err(|error| refused("is no profile").with_source(error))?;
    profile
        .resolved(setting(host, capabilities))
        .map_err(|why| refused(&format!("cannot be used: {why}")))
}

fn setting<'a>(host: &Host, capabilities: &'a Capabilities) -> Setting<'a> {
    Setting {
        arch: host.arch,
        kernel: host.kernel,
        capabilities: &capabilities.bounding,
    }
}

#[cfg(test)]
mod tests;
