//! The in-memory state of a sandbox.

use std::path::PathBuf;

use switchyard_core::Result;
use switchyard_core::object::SandboxDetails;
use switchyard_core::spec::{CgroupPlacement, SelinuxLabel};
use switchyard_namespaces::Ns;
use switchyard_runtime_spec::cgroups_path::CgroupLocation;
use switchyard_runtime_spec::{Namespace, SandboxFacts, SandboxUsers};

use super::lifecycle::{SandboxChange, SandboxLifecycle};
use crate::base::layout::SandboxDirs;
use crate::context::Context;
use crate::record::{NetworkRecord, SandboxRecord};

/// A sandbox as the backend knows it.
#[derive(Debug)]
pub(crate) struct SandboxEntry {
    pub(crate) record: SandboxRecord,
    pub(crate) dirs: SandboxDirs,
    pub(crate) lifecycle: SandboxLifecycle,
}

impl SandboxEntry {
    /// A new sandbox, or one that is started again.
    pub(super) const fn new(record: SandboxRecord, dirs: SandboxDirs) -> Self {
        Self {
            record,
            dirs,
            lifecycle: SandboxLifecycle::NEW,
        }
    }

    /// The same sandbox after a change.
    pub(crate) fn changed(&self, change: SandboxChange) -> Self {
        let lifecycle = self.lifecycle.after(change);
        Self {
            record: self.record.clone(),
            dirs: self.dirs.clone(),
            lifecycle,
        }
    }

    /// The pid of its infra process, if that is known to run.
    pub(crate) const fn infra_pid(&self) -> Option<u32> {
        self.lifecycle.infra()
    }

    /// The path of the network namespace that tasks join; `None` for the host's.
    pub(crate) fn netns(&self) -> Option<PathBuf> {
        match &self.record.network {
            NetworkRecord::Host => None,
            NetworkRecord::Pod | NetworkRecord::Isolated => self.pin(Ns::Net),
            NetworkRecord::Joined(path) => Some(path.clone()),
        }
    }

    /// The pin of the sandbox's own namespace of this kind; `None` if it has none of its own.
    pub(super) fn pin(&self, ns: Ns) -> Option<PathBuf> {
        self.record.owns(ns).then(|| self.dirs.pin(ns))
    }

    /// The pins of all of the sandbox's own namespaces.
    pub(crate) fn pins(&self) -> impl Iterator<Item = PathBuf> {
        Ns::ALL.into_iter().filter_map(|ns| self.pin(ns))
    }

    /// The namespace of this kind that tasks join; for the network see [`SandboxEntry::netns`].
    pub(super) fn namespace(&self, ns: Ns) -> Namespace {
        self.pin(ns).map_or(Namespace::Host, Namespace::Path)
    }

    /// The sandbox's user namespace, if it has one of its own.
    pub(crate) fn users(&self) -> Option<SandboxUsers> {
        let map = self.record.users.as_ref()?.to_core()?;
        Some(SandboxUsers {
            path: self.dirs.user_namespace(),
            map,
        })
    }

    /// Returns the facts of the sandbox for the OCI specs of its tasks.
    pub(crate) fn facts(&self) -> SandboxFacts {
        let record = &self.record;
        let shared = self.infra_pid().is_some() && record.shared_pid;
        SandboxFacts {
            network: self.netns().map_or(Namespace::Host, Namespace::Path),
            ipc: self.namespace(Ns::Ipc),
            uts: self.namespace(Ns::Uts),
            pid: shared.then(|| Namespace::Path(self.dirs.pid_namespace())),
            hostname: record.hostname.clone(),
            hostname_file: Some(self.dirs.hostname()),
            hosts_file: Some(self.dirs.hosts()),
            resolv_conf: Some(self.dirs.resolv_conf()),
            shm: Some(if record.owns(Ns::Ipc) {
                self.dirs.shm()
            } else {
                PathBuf::from("/dev/shm")
            }),
            privileged: record.privileged,
            network_shared: matches!(record.network, NetworkRecord::Joined(_)),
            selinux: record
                .selinux
                .as_ref()
                .map(|[user, role, type_, level]| SelinuxLabel {
                    user: user.clone(),
                    role: role.clone(),
                    type_: type_.clone(),
                    level: level.clone(),
                }),
            users: self.users(),
        }
    }

    /// Returns whether recovery can detect that the sandbox was stopped although its label does not say so:
    /// its infra process or its pins are gone.
    pub(crate) fn is_stop_detectable(&self) -> bool {
        self.record.infra || self.pins().next().is_some()
    }

    pub(crate) fn details(&self) -> SandboxDetails {
        self.record.details(self.netns(), self.infra_pid())
    }

    /// The cgroup location of the object `id`, a task or the infra process, of this sandbox.
    ///
    /// # Errors
    /// `InvalidArgument` for a parent that the cgroup driver cannot have.
    pub(crate) fn cgroup_location(&self, context: &Context, id: &str) -> Result<CgroupLocation> {
        context.cgroup_at(&self.cgroup(&context.settings().cgroup.default_parent), id)
    }

    pub(crate) fn cgroup(&self, default_parent: &str) -> CgroupPlacement {
        let parent = self
            .record
            .cgroup_parent
            .clone()
            .filter(|parent| !parent.as_os_str().is_empty());
        CgroupPlacement::Parent(parent.unwrap_or_else(|| PathBuf::from(default_parent)))
    }
}
