//! Fuzz targets: properties that hold for any bytes in the files of images and vendors, and in profiles.
//! Called only by fuzzers and tests.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use switchyard_core::ErrorKind;
use switchyard_core::spec::{
    GroupPolicy, MissingSource, SeccompProfile, Security, UserRef, UserSpec,
};

use crate::host::bare_host;
use crate::host_fs::{DeviceInfo, HostFs, HostNode, HostPropagation};
use crate::input::{Arch, Host};
use crate::oci::Capabilities;
use crate::user::{self, Accounts};
use crate::{cdi, seccomp};

/// A host with one file.
struct OneFile<'d> {
    name: &'static str,
    data: &'d [u8],
}

impl HostFs for OneFile<'_> {
    fn source(&self, path: &Path, _: MissingSource) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    fn propagation(&self, _: &Path) -> io::Result<HostPropagation> {
        Ok(HostPropagation::Private)
    }

    fn node(&self, _: &Path) -> io::Result<HostNode> {
        Ok(HostNode::Other)
    }

    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>> {
        Ok(Vec::new())
    }

    fn read(&self, _: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let fits = u64::try_from(self.data.len()).is_ok_and(|length| length <= limit);
        if fits {
            Ok(self.data.to_vec())
        } else {
            Err(io::ErrorKind::FileTooLarge.into())
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(vec![dir.join(self.name)])
    }
}

/// Resolves a user: a text, `/etc/passwd` and `/etc/group` of an image, with NUL bytes between. The resulting
/// ids are valid on Linux, and each group appears once.
///
/// # Panics
/// If that does not hold.
pub fn accounts(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default().to_vec();
    let text = String::from_utf8_lossy(&part()).into_owned();
    let files = Accounts {
        passwd: part(),
        group: part(),
    };
    let users = [
        None,
        Some(UserRef::Name(text.clone())),
        Some(UserRef::Uid(1000)),
    ];
    for (user, policy) in users.into_iter().flat_map(|user| {
        [
            (user.clone(), GroupPolicy::Merge),
            (user, GroupPolicy::Strict),
        ]
    }) {
        let spec = UserSpec {
            user,
            policy,
            named: vec![text.clone()],
            ..UserSpec::default()
        };
        let plain = UserSpec {
            named: Vec::new(),
            ..spec.clone()
        };
        for spec in [spec, plain] {
            let _ = user::needs_rootfs(&spec, &text);
            match user::resolve(&spec, &text, &files) {
                Ok(user) => {
                    assert_eq!(user.additional_gids.first(), Some(&user.gid));
                    let distinct: BTreeSet<_> = user.additional_gids.iter().collect();
                    assert_eq!(distinct.len(), user.additional_gids.len());
                    assert!(
                        user.uid != u32::MAX && !distinct.contains(&u32::MAX),
                        "{user:?}"
                    );
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
            }
        }
    }
}

/// Looks up devices in a CDI spec file, parsed as JSON and as YAML. A file that cannot be used makes only its
/// own devices unavailable and is named; a device that is listed without a fault can be resolved.
///
/// # Panics
/// If that does not hold.
pub fn cdi(data: &[u8]) {
    for name in ["vendor.json", "vendor.yaml"] {
        let file = OneFile { name, data };
        let listing = cdi::list(&[PathBuf::from("/etc/cdi")], &file);
        assert!(
            listing.kinds.is_empty() != listing.bad.is_empty(),
            "{listing:?}"
        );
        let usable = listing
            .devices()
            .filter(|(_, device)| device.fault.is_none());
        let usable: Vec<String> = usable
            .take(100)
            .map(|(kind, device)| device.name(kind))
            .collect();
        assert!(
            cdi::resolve(&usable, &[PathBuf::from("/etc/cdi")], &file).is_ok(),
            "{usable:?}"
        );
        let names = [
            "vendor.com/gpu=0".to_owned(),
            "vendor.com/gpu=all".to_owned(),
        ];
        let found = cdi::resolve(&names, &[PathBuf::from("/etc/cdi")], &file);
        match found {
            Ok(edits) => {
                assert!(edits.net_devices.is_empty(), "{edits:?}");
                assert!(
                    edits
                        .device_nodes
                        .iter()
                        .all(|node| node.path.starts_with('/')),
                    "{edits:?}"
                );
                assert!(
                    edits.hooks.iter().all(|hook| hook.path.starts_with('/')),
                    "{edits:?}"
                );
                assert!(
                    edits
                        .mounts
                        .iter()
                        .all(|mount| mount.container_path.starts_with('/')),
                    "{edits:?}"
                );
            }
            Err(error) => {
                let known = matches!(
                    error.kind(),
                    ErrorKind::InvalidArgument | ErrorKind::Unimplemented
                );
                assert!(known, "{:?} {error}", error.kind());
            }
        }
    }
}

/// Reads bytes as a seccomp profile: the resulting filter has only names of the runtime spec.
///
/// # Panics
/// If that does not hold.
pub fn seccomp(data: &[u8]) {
    let security = Security {
        seccomp: SeccompProfile::Localhost(PathBuf::from("/profile.json")),
        ..Security::default()
    };
    for arch in [Arch::X86_64, Arch::Aarch64, Arch::Other] {
        let host = Host {
            arch,
            ..bare_host()
        };
        let mut warnings = Vec::new();
        let file = OneFile {
            name: "profile.json",
            data,
        };
        let capabilities = Capabilities::default();
        match seccomp::of_task(&security, &host, &capabilities, &file, &mut warnings) {
            Ok(filter) => {
                let filter = filter.expect("a profile was asked for");
                assert!(filter.default_action.starts_with("SCMP_ACT_"), "{filter:?}");
                for rule in &filter.syscalls {
                    assert!(
                        rule.action.starts_with("SCMP_ACT_") && !rule.names.is_empty(),
                        "{rule:?}"
                    );
                    assert!(
                        rule.args.iter().all(|argument| argument.index <= 5),
                        "{rule:?}"
                    );
                }
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
        }
    }
}
