//! All that is known of one sandbox or task, as `/v1/inspect` shows it.
//!
//! What may be secret is shown to root alone, and only if it is asked for: values of environment variables, labels
//! and annotations, and the arguments of a command. Otherwise an answer has their names and number. A container's
//! author chooses how long lists and texts are, so an answer has a bounded size.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use switchyard_core::backend::Inspection;
use switchyard_core::names::Names;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::spec::{LeaseClaim, Meta, Reserved, Resources};
use switchyard_core::state::{Exit, ExitCause, SandboxState, TaskState};

use crate::text::rfc3339;

mod budget;
mod spec;
mod unreadable;

use budget::Budget;
pub use spec::{CommandView, MountView, SecurityView};

/// Selection of the values that an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disclosure {
    /// Names alone, of what may be secret.
    Names,
    /// Secrets too.
    Secrets,
}

/// Names with their values, `None` for values that are withheld.
pub type WithheldValues = BTreeMap<String, Option<String>>;

/// A sandbox or task. What does not apply, or is not known, is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectionView {
    /// `sandbox` or `task`; `container` if it cannot be read and its kind is not known.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// Its owner.
    pub owner: String,
    /// The name under which its owner requested it.
    pub name: String,
    /// The name that its owner's users give it, on one line.
    pub display_name: String,
    /// Its names, by label: its pod, job or the like.
    pub names: BTreeMap<String, String>,
    /// Its state, in one word.
    pub state: String,
    /// Reason of this state, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time of the request that created it, as RFC 3339, as the other times; empty if it cannot be read.
    pub created_at: String,
    /// Start of its main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// End of its main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// The exit code of its main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The pid of its main process, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its runtime handler; empty for the default.
    pub handler: String,
    /// The type of its runtime; empty if it is not known now.
    pub runtime: String,
    /// The sandbox that a task belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The tasks of a sandbox: their ids, and what people call them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tasks: BTreeMap<String, String>,
    /// The image of a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageOfTaskView>,
    /// The command of its main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandView>,
    /// The user and groups of its main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserView>,
    /// The variables in its environment.
    pub environment: WithheldValues,
    /// Its mounts, in the order in which they are made.
    pub mounts: Vec<MountView>,
    /// Its limits in force, by the names of CRI and containerd.
    pub resources: BTreeMap<String, String>,
    /// The processors and memory that the ledger reserves for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<ReservationView>,
    /// Its confinement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<SecurityView>,
    /// The network of the sandbox.
    pub network: NetworkView,
    /// Device nodes in it.
    pub device_nodes: Vec<String>,
    /// Its leases of devices.
    pub leases: Vec<LeaseView>,
    /// Its cgroup, as it is given to the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The file of its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Its labels.
    pub labels: WithheldValues,
    /// Its annotations.
    pub annotations: WithheldValues,
    /// Number of entries that were left out of the lists above, because the answer would be too large.
    pub left_out: u64,
    /// Reason why nothing is known from the runtime at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// The processes that hold it up while it starts or stops, with what they wait for in the kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<String>,
    /// The mount point of its log, if its output fills its pipe because that file system is slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_log: Option<String>,
    /// Advice about an object that cannot be read; `None` for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// True for one that may hold any device, and any processor exclusively, beside what is shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_hold_more: bool,
}

/// The image of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageOfTaskView {
    /// As its author wrote it, or by digest.
    pub name: String,
    /// By digest, or its id if it has no such name.
    pub reference: String,
    /// The digest of its configuration.
    pub id: String,
    /// The snapshotter of its root file system.
    pub snapshotter: String,
    /// The key of the snapshot.
    pub snapshot: String,
}

/// A user, by numeric ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserView {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All supplementary groups.
    pub groups: Vec<u32>,
}

/// The reservation of a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationView {
    /// Thousandths of a processor.
    pub cpu_milli: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// True if the processors of its limits are exclusive.
    pub exclusive_cpus: bool,
}

/// The network of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkView {
    /// Its network namespace; `None` for that of the host.
    pub namespace: Option<String>,
    /// Its addresses, the primary one first.
    pub ips: Vec<IpAddr>,
    /// The host ports that it holds, as `8080/tcp` or `10.0.0.1:8080/tcp`.
    pub host_ports: Vec<String>,
}

/// A lease of devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// Its token.
    pub token: String,
    /// Its slots.
    pub slots: Vec<String>,
}

/// Everything from which a view is made.
#[derive(Debug, Clone, Copy)]
pub struct Inspected<'a> {
    /// The sandbox, or that of the task.
    pub sandbox: &'a Sandbox,
    /// The names of the sandbox or task.
    pub names: &'a Names,
    /// The report of the backend, or why there is none.
    pub inspection: &'a switchyard_core::Result<Inspection>,
    /// The annotations that its owner requested.
    pub annotations: &'a BTreeMap<String, String>,
    /// Selection of the values that are shown.
    pub disclosure: Disclosure,
}

// === impl InspectionView ===

impl InspectionView {
    /// The view of a sandbox with these tasks: their ids, and what people call them.
    #[must_use]
    pub fn of_sandbox(inspected: &Inspected<'_>, tasks: BTreeMap<String, String>) -> Self {
        let sandbox = inspected.sandbox;
        let mut budget = Budget::of(inspected.disclosure);
        let pid = inspected
            .inspection
            .as_ref()
            .ok()
            .and_then(|inspection| inspection.pid);
        let view = Self {
            kind: "sandbox".to_owned(),
            id: sandbox.id.to_string(),
            state: sandbox.state.as_str().to_owned(),
            reason: match &sandbox.state {
                SandboxState::Unknown { reason } => Some(reason.clone()),
                SandboxState::Ready
                | SandboxState::Stopping
                | SandboxState::Stopped
                | SandboxState::Starting
                | SandboxState::Removing => None,
            },
            pid: pid.or(sandbox.details.pid),
            tasks: budget.pairs(tasks),
            ..Self::common(&sandbox.meta, inspected, &mut budget)
        };
        Self {
            left_out: budget.left_out(),
            ..view
        }
    }

    /// The view of a task.
    #[must_use]
    pub fn of_task(inspected: &Inspected<'_>, task: &Task) -> Self {
        let mut budget = Budget::of(inspected.disclosure);
        let common = Self::common(&task.meta, inspected, &mut budget);
        let details = &task.details;
        let (started_at, exit, pid) = times(&task.state);
        let inspection = inspected.inspection.as_ref();
        let stored = |text: fn(&Inspection) -> &String| inspection.map(|found| text(found).clone());
        let image = ImageOfTaskView {
            name: inspected
                .names
                .get("image")
                .unwrap_or(&details.image_ref)
                .to_owned(),
            reference: details.image_ref.clone(),
            id: details.image_id.to_string(),
            snapshotter: stored(|found| &found.snapshotter).unwrap_or_default(),
            snapshot: stored(|found| &found.snapshot_key).unwrap_or_default(),
        };
        let reservation = ReservationView {
            cpu_milli: details.compute.reserved.cpu_milli,
            memory_bytes: details.compute.reserved.memory_bytes,
            exclusive_cpus: details.compute.exclusive_cpus,
        };
        let is_reserved =
            details.compute.reserved != Reserved::default() || reservation.exclusive_cpus;
        let view = Self {
            kind: "task".to_owned(),
            id: task.id.to_string(),
            state: task.state.as_str().to_owned(),
            reason: exit.and_then(reason),
            started_at: started_at.map(rfc3339),
            finished_at: exit.map(|exit| rfc3339(exit.finished_at)),
            exit_code: exit.map(|exit| exit.code),
            pid,
            sandbox: Some(task.sandbox.to_string()),
            image: Some(image),
            user: Some(UserView {
                uid: details.user.uid,
                gid: details.user.gid,
                groups: details.user.groups.clone(),
            }),
            resources: resources(&details.resources, &mut budget),
            reserved: is_reserved.then_some(reservation),
            leases: details.leases.iter().map(LeaseView::of).collect(),
            log: details
                .log_path
                .as_ref()
                .map(|path| path.display().to_string()),
            ..common
        };
        Self {
            left_out: budget.left_out(),
            ..view
        }
    }

    /// Returns a view of the values that sandboxes and tasks have in common.
    fn common(meta: &Meta, inspected: &Inspected<'_>, budget: &mut Budget) -> Self {
        let Inspected {
            sandbox,
            names,
            inspection,
            annotations,
            disclosure: _,
        } = *inspected;
        let ports = &sandbox.details.host_ports.ports;
        let network = NetworkView {
            namespace: sandbox
                .details
                .netns
                .as_ref()
                .map(|path| path.display().to_string()),
            ips: sandbox.details.ips.clone(),
            host_ports: ports.iter().map(ToString::to_string).collect(),
        };
        let view = Self {
            owner: meta.owner.to_string(),
            name: meta.name.clone(),
            display_name: names.to_string(),
            names: names.to_map(),
            created_at: rfc3339(meta.created_at),
            handler: sandbox.handler.clone(),
            network,
            ..Self::default()
        };
        let view = match inspection {
            Ok(found) => spec::add(view, found, budget),
            Err(error) => Self {
                unavailable: Some(error.report()),
                ..view
            },
        };
        Self {
            labels: budget.withheld(&meta.labels),
            annotations: budget.withheld(annotations),
            ..view
        }
    }
}

impl LeaseView {
    fn of(claim: &LeaseClaim) -> Self {
        let LeaseClaim {
            token,
            slots,
            named: _,
        } = claim;
        Self {
            token: token.to_string(),
            slots: slots.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A task's start, its exit, and its pid.
const fn times(state: &TaskState) -> (Option<SystemTime>, Option<&Exit>, Option<u32>) {
    match state {
        TaskState::Created | TaskState::Starting | TaskState::Unattended => (None, None, None),
        TaskState::Running { pid, started_at } | TaskState::Stopping { pid, started_at } => {
            (Some(*started_at), None, Some(*pid))
        }
        TaskState::Exited { started_at, exit } => (*started_at, Some(exit), None),
        TaskState::Removing { started_at, exit } => (*started_at, exit.as_ref(), None),
    }
}

/// Reason of a task's exit, beyond its exit code.
fn reason(exit: &Exit) -> Option<String> {
    match &exit.cause {
        ExitCause::Exited => None,
        ExitCause::OomKilled => Some("killed, because it ran out of memory".to_owned()),
        ExitCause::StartFailed(why) => Some(format!("never started: {why}")),
        ExitCause::Lost => Some("the exit was not observed; the exit code is not known".to_owned()),
    }
}

/// The limits in force, by name.
fn resources(resources: &Resources, budget: &mut Budget) -> BTreeMap<String, String> {
    let Resources {
        cpu_shares,
        cpu_quota_us,
        cpu_period_us,
        cpuset_cpus,
        cpuset_mems,
        memory_limit_bytes,
        memory_swap_limit_bytes,
        memory_reservation_bytes,
        memory_swappiness,
        pids_limit,
        hugepages,
        oom_score_adj,
        unified,
    } = resources;
    let mut limits = BTreeMap::new();
    let mut add = |name: &str, limit: Option<String>| {
        limits.extend(limit.map(|limit| (name.to_owned(), limit)));
    };
    add("cpu_shares", cpu_shares.map(|limit| limit.to_string()));
    add("cpu_quota_us", cpu_quota_us.map(|limit| limit.to_string()));
    add(
        "cpu_period_us",
        cpu_period_us.map(|limit| limit.to_string()),
    );
    add("cpuset_cpus", cpuset_cpus.as_ref().map(ToString::to_string));
    add("cpuset_mems", cpuset_mems.as_ref().map(ToString::to_string));
    add(
        "memory_limit_bytes",
        memory_limit_bytes.map(|limit| limit.to_string()),
    );
    add(
        "memory_swap_limit_bytes",
        memory_swap_limit_bytes.map(|limit| limit.to_string()),
    );
    add(
        "memory_reservation_bytes",
        memory_reservation_bytes.map(|limit| limit.to_string()),
    );
    add(
        "memory_swappiness",
        memory_swappiness.map(|limit| limit.to_string()),
    );
    add("pids_limit", pids_limit.map(|limit| limit.to_string()));
    add(
        "oom_score_adj",
        oom_score_adj.map(|limit| limit.to_string()),
    );
    let pages = hugepages.iter().map(|limit| {
        (
            format!("hugepages_{}_bytes", limit.page_size),
            limit.limit_bytes.to_string(),
        )
    });
    limits.extend(pages);
    limits.extend(
        unified
            .iter()
            .map(|(file, value)| (file.to_string(), value.clone())),
    );
    budget.pairs(limits)
}

#[cfg(test)]
mod tests;
