//! A task as a manager sends it, taken apart and with the facts that its templates can name.

use std::cell::Cell;

use swarm::container_spec::Isolation;
use swarm::task_spec::Runtime;
use switchyard_core::{Error, Result};
use switchyard_linux::beginning;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use crate::plan::PlanContext;
use crate::template::{Facts, TemplateError, expand_field};

/// The longest name of a service or task that is kept, in bytes.
const NAME_MAX: usize = 1024;

/// By how many bytes templates may make all fields of a task longer: the kernel takes no more arguments and variables.
const GROWTH_MAX: usize = 6 << 20;

/// By what a task is known, in the cluster and on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskIdentity {
    pub(crate) cluster_id: String,
    pub(crate) node_id: String,
    pub(crate) service_id: String,
    pub(crate) service_name: String,
    pub(crate) task_id: String,
    /// `<service>.<slot or node>.<task>`.
    pub(crate) task_name: String,
    /// The slot, or the id of the node for a task of a global service.
    pub(crate) slot: String,
}

/// The input of a plan.
pub(super) struct TaskRequest<'a> {
    pub(super) task: &'a swarm::Task,
    pub(super) container: &'a swarm::ContainerSpec,
    pub(super) resources: Option<&'a swarm::ResourceRequirements>,
    pub(super) log_driver: Option<&'a swarm::Driver>,
    pub(super) node: &'a PlanContext,
    pub(super) identity: TaskIdentity,
    pub(super) facts: Facts,
    /// Bytes by which its fields have grown through the expansion of their templates.
    growth: Cell<usize>,
}

/// Checks an id of the cluster, which becomes a part of paths and names: 1 to 64 letters and digits.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub(crate) fn check_id(field: &str, id: &str) -> Result<()> {
    if (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let shown = beginning(id, 80);
    Err(Error::invalid(field, format!("{shown:?} is no id")))
}

/// By what this task is known.
///
/// # Errors
/// `InvalidArgument`, naming the field, if an id is malformed.
pub(crate) fn identity(task: &swarm::Task, node: &PlanContext) -> Result<TaskIdentity> {
    check_id("id", &task.id)?;
    // A task that an engine makes by itself has no service.
    if !task.service_id.is_empty() {
        check_id("service_id", &task.service_id)?;
    }
    let service = task
        .service_annotations
        .as_ref()
        .map(|annotations| annotations.name.as_str());
    let service_name = service.unwrap_or_default().to_owned();
    // The first slot of a job is 0 as well, and docker names it after the node too.
    let slot = if task.slot == 0 {
        node.node_id.clone()
    } else {
        task.slot.to_string()
    };
    let own = task
        .annotations
        .as_ref()
        .map(|annotations| annotations.name.as_str())
        .unwrap_or_default();
    let task_name = if own.is_empty() {
        format!("{service_name}.{slot}.{}", task.id)
    } else {
        own.to_owned()
    };
    for (field, name) in [
        ("service_annotations.name", &service_name),
        ("annotations.name", &task_name),
    ] {
        if name.len() > NAME_MAX || name.chars().any(char::is_control) {
            let why = format!("it is longer than {NAME_MAX} bytes, or has control characters");
            return Err(Error::invalid(field, why));
        }
    }
    Ok(TaskIdentity {
        cluster_id: node.cluster_id.clone(),
        node_id: node.node_id.clone(),
        service_id: task.service_id.clone(),
        service_name,
        task_id: task.id.clone(),
        task_name,
        slot,
    })
}

impl<'a> TaskRequest<'a> {
    /// Takes a task apart.
    pub(super) fn new(task: &'a swarm::Task, node: &'a PlanContext) -> Result<Self> {
        let identity = identity(task, node)?;
        let swarm::Task {
            id: _,
            meta: _,
            spec,
            service_id: _,
            slot: _,
            node_id: _,
            annotations: _,
            service_annotations,
            // The life of the task, not what is made.
            status: _,
            desired_state: _,
            networks: _,
            endpoint: _,
            log_driver: _,
            spec_version: _,
            assigned_generic_resources: _,
            job_iteration: _,
            volumes,
        } = task;
        let spec = spec
            .as_ref()
            .ok_or_else(|| Error::invalid("spec", "it is missing"))?;
        let swarm::TaskSpec {
            runtime,
            resources,
            // Managers restart and place tasks.
            restart: _,
            placement: _,
            log_driver,
            // Those of the task say what became of these.
            networks: _,
            force_update: _,
            resource_references: _,
        } = spec;
        let container = match runtime {
            Some(Runtime::Container(container)) => container,
            Some(Runtime::Attachment(_)) => return Err(unsupported("attachment")),
            Some(Runtime::Generic(_)) => return Err(unsupported("generic")),
            None => return Err(Error::invalid("spec.runtime", "it is missing")),
        };
        if !volumes.is_empty() {
            let why = "volumes of the cluster (CSI) are not supported; use a volume of the node";
            return Err(Error::unimplemented(format!("volumes: {why}")));
        }
        check_container(container)?;
        let labels = service_annotations
            .as_ref()
            .map(|annotations| annotations.labels.clone());
        let facts = Facts {
            service_id: identity.service_id.clone(),
            service_name: identity.service_name.clone(),
            service_labels: labels.unwrap_or_default(),
            node_id: identity.node_id.clone(),
            node_hostname: node.hostname.clone(),
            architecture: node.architecture.clone(),
            os: "linux".to_owned(),
            task_id: identity.task_id.clone(),
            task_name: identity.task_name.clone(),
            task_slot: identity.slot.clone(),
        };
        Ok(Self {
            task,
            container,
            resources: resources.as_ref(),
            log_driver: log_driver.as_ref(),
            node,
            identity,
            facts,
            growth: Cell::default(),
        })
    }

    /// Expands the templates of a field.
    pub(super) fn expand(&self, field: &str, template: &str) -> Result<String> {
        let made =
            expand_field(template, &self.facts).map_err(|error| not_expanded(field, error))?;
        let growth = self.growth.get() + made.len().saturating_sub(template.len());
        if growth > GROWTH_MAX {
            let why = format!(
                "templates make the fields of the task more than {GROWTH_MAX} bytes longer"
            );
            return Err(Error::invalid(field, why));
        }
        self.growth.set(growth);
        Ok(made)
    }
}

/// The error for a field whose template cannot be expanded.
pub(super) fn not_expanded(field: &str, error: TemplateError) -> Error {
    Error::invalid(field, "it cannot be expanded").with_source(error)
}

fn unsupported(runtime: &str) -> Error {
    Error::unimplemented(format!(
        "spec.runtime: unsupported runtime {runtime:?}: only containers can be run"
    ))
}

/// Refuses what no other part of the plan looks at. Each field of a container is named here, so that a new one
/// is not overlooked.
fn check_container(container: &swarm::ContainerSpec) -> Result<()> {
    let swarm::ContainerSpec {
        isolation,
        image: _,
        labels: _,
        command: _,
        args: _,
        env: _,
        dir: _,
        user: _,
        mounts: _,
        stop_grace_period: _,
        pull_options: _,
        groups: _,
        secrets: _,
        tty: _,
        hostname: _,
        dns_config: _,
        healthcheck: _,
        hosts: _,
        open_stdin: _,
        read_only: _,
        stop_signal: _,
        configs: _,
        privileges: _,
        init: _,
        pids_limit: _,
        sysctls: _,
        capability_add: _,
        capability_drop: _,
        ulimits: _,
        oom_score_adj: _,
    } = container;
    match Isolation::try_from(*isolation) {
        Ok(Isolation::Default) => Ok(()),
        Ok(Isolation::Process | Isolation::Hyperv) | Err(_) => Err(Error::unimplemented(
            "container.isolation: it is for Windows",
        )),
    }
}
