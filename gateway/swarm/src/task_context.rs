//! State that the workers of all tasks share, and the settings that are a part of it.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_core::gateway::Scope;
use switchyard_core::keyed_lock::KeyedLock;
use switchyard_core::reload::Reloadable;
use switchyard_logkeeper as logkeeper;
use tokio::sync::watch;

use crate::dependencies::Dependencies;
use crate::executor::MemberName;
use crate::health::CheckRunner;
use crate::offer::{DeviceKinds, Reservations};
use crate::plan::{AllowedDevices, PlanContext};
use crate::secrets::SecretFiles;
use crate::session::description::NodeFacts;
use crate::session::reports::Reports;
use crate::waiting::WaitingServices;

/// The settings of a task executor.
#[derive(Debug, Clone)]
pub struct TaskExecutorSettings {
    /// The directory below which each task has one for its log.
    pub log_dir: PathBuf,
    /// The directory for the files of secrets and configs, on which a tmpfs is mounted for them.
    pub files_dir: PathBuf,
    /// The ports from which those are chosen that a service publishes without a number.
    pub port_range: RangeInclusive<u16>,
    /// Limit for a pull.
    pub pull_timeout: Duration,
    /// The logkeeper, which knows whether it still writes the log of a task that has ended. `None`: it writes none.
    pub logkeeper: Option<Arc<logkeeper::Client>>,
    /// The CDI names of the devices that services may name.
    pub allowed_devices: Reloadable<AllowedDevices>,
    /// The kinds under which groups of devices are offered.
    pub device_kinds: Reloadable<DeviceKinds>,
    /// The services whose tasks cannot begin.
    pub waiting: WaitingServices,
}

/// State that the workers share.
#[derive(Debug)]
pub(crate) struct TaskContext {
    pub(crate) scope: Scope,
    pub(crate) settings: TaskExecutorSettings,
    pub(crate) files: SecretFiles,
    pub(crate) checks: CheckRunner,
    pub(crate) dependencies: Mutex<Dependencies>,
    pub(crate) reports: Arc<Reports>,
    /// Serialises the workers of one task: an id that is removed and assigned again has a second one.
    pub(crate) locks: KeyedLock<String>,
    pub(crate) facts: watch::Receiver<NodeFacts>,
    /// The membership whose tasks are assigned; `None` before the first.
    pub(crate) member: Mutex<Option<MemberName>>,
    /// Reservations of the assigned tasks.
    pub(crate) reservations: Arc<Mutex<Reservations>>,
}

impl TaskContext {
    /// The cluster whose tasks alone are touched; without one, those of every cluster are removed.
    pub(crate) fn cluster(&self) -> Option<String> {
        self.member
            .lock()
            .as_ref()
            .map(|member| member.cluster.clone())
    }

    /// Returns the context in which plans are made.
    pub(crate) fn plan_context(&self) -> PlanContext {
        let (hostname, architecture) = {
            let facts = self.facts.borrow();
            (facts.hostname.clone(), facts.architecture.clone())
        };
        let handlers = self.scope.handlers();
        let MemberName {
            cluster: cluster_id,
            node: node_id,
        } = self.member.lock().clone().unwrap_or_default();
        PlanContext {
            cluster_id,
            node_id,
            hostname,
            architecture,
            log_dir: self.settings.log_dir.clone(),
            recursive_readonly_mounts: handlers
                .first()
                .is_some_and(|handler| handler.recursive_readonly_mounts),
            allowed_devices: self.settings.allowed_devices.get(),
        }
    }
}
