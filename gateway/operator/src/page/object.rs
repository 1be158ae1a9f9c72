//! The page of a sandbox or task: its state and times, resources, network and devices, what happened to it, and the
//! last lines of its log. It shows no environment, no arguments, labels or annotations.

use askama::Template;
use jiff::Timestamp;
use switchyard_operator_api::text::{age, processors, size};
use switchyard_operator_api::{EventView, InspectionView, MountView, OperationView, TaskView};

use super::frame::{Address, Frame};
use super::happenings::{EventRow, OperationRow};
use super::log_tail::LogTail;
use super::node::Fact;
use super::text;
use super::usage::NodeUsage;
use super::work::{Tone, WorkRow, task_row};

/// Maximum number of mounts and of tasks that are listed.
const ROWS_MAX: usize = 200;

/// Everything from which the page is made.
#[derive(Debug)]
pub(crate) struct ObjectFacts {
    pub(crate) node: String,
    pub(crate) object: InspectionView,
    /// The tasks of a sandbox.
    pub(crate) tasks: Vec<TaskView>,
    pub(crate) usage: NodeUsage,
    /// Its events, the newest first.
    pub(crate) events: Vec<EventView>,
    pub(crate) operations: Vec<OperationView>,
    /// The end of its log, if it is a task.
    pub(crate) log: Option<LogTail>,
}

#[derive(Template)]
#[template(path = "object.html")]
struct ObjectPage<'a> {
    frame: Frame,
    kind: &'a str,
    name: String,
    state: String,
    tone: Tone,
    reason: String,
    /// Sentences on what holds it up.
    held_up: Vec<String>,
    /// The page of the sandbox of a task; empty for a sandbox.
    sandbox_href: String,
    facts: Vec<Fact>,
    resources: Vec<(String, String)>,
    tasks: Vec<WorkRow>,
    more_tasks: usize,
    usage: String,
    mounts: Vec<MountRow>,
    more_mounts: usize,
    events: Vec<EventRow>,
    operations: Vec<OperationRow>,
    log: Option<&'a LogTail>,
    unavailable: String,
}

/// A mount.
struct MountRow {
    target: String,
    source: String,
    file_system: String,
}

/// The page as HTML.
pub(crate) fn object(facts: &ObjectFacts, refresh: Option<u64>) -> askama::Result<String> {
    let now = Timestamp::now();
    let ObjectFacts {
        node,
        object,
        tasks,
        usage,
        events,
        operations,
        log,
    } = facts;
    let section = if object.kind == "task" {
        "tasks"
    } else {
        "sandboxes"
    };
    let path = format!("/{section}/{}", object.id);
    let name = text::name(&object.display_name);
    let rows = tasks
        .iter()
        .take(ROWS_MAX)
        .map(|task| task_row(task, None, usage, now));
    ObjectPage {
        frame: Frame::inside(
            format!("{name} · Switchyard"),
            text::name(node),
            &Address {
                path,
                query: Vec::new(),
                refresh,
            },
        ),
        kind: &object.kind,
        state: match object.exit_code {
            Some(code) => format!("{} ({code})", object.state),
            None => object.state.clone(),
        },
        tone: Tone::of(&object.state, object.exit_code),
        reason: object
            .reason
            .as_deref()
            .map(text::sentence)
            .unwrap_or_default(),
        held_up: held_up(object),
        sandbox_href: object
            .sandbox
            .as_ref()
            .map(|id| format!("/sandboxes/{id}"))
            .unwrap_or_default(),
        facts: object_facts(object, usage, now),
        resources: resources(object),
        tasks: rows.collect(),
        more_tasks: tasks.len().saturating_sub(ROWS_MAX),
        usage: usage.caption(std::time::SystemTime::now()),
        mounts: object
            .mounts
            .iter()
            .take(ROWS_MAX)
            .map(MountRow::of)
            .collect(),
        more_mounts: object.mounts.len().saturating_sub(ROWS_MAX),
        events: events
            .iter()
            .map(|event| EventRow::of(event, now))
            .collect(),
        operations: operations.iter().map(OperationRow::of).collect(),
        log: log.as_ref(),
        unavailable: object
            .unavailable
            .as_deref()
            .map(text::sentence)
            .unwrap_or_default(),
        name,
    }
    .render()
}

/// Sentences on the processes that hold it up, and on the file system that holds up its output.
fn held_up(object: &InspectionView) -> Vec<String> {
    let processes = object.blockers.iter().map(|line| text::sentence(line));
    let log = object.slow_log.iter().map(|mount| {
        text::sentence(&format!(
            "its output waits for its log: the file system on {mount} is slower"
        ))
    });
    processes.chain(log).collect()
}

/// The object's identification, and the times of its states.
fn object_facts(object: &InspectionView, usage: &NodeUsage, now: Timestamp) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut add = |name: &'static str, value: Option<String>| {
        let value = value.filter(|value| !value.is_empty());
        facts.extend(value.map(|value| Fact { name, value }));
    };
    let moment = |at: &String| format!("{at} ({} ago)", age(at, now));
    let joined = |values: Vec<String>| Some(text::sentence(&values.join(", ")));
    add("Id", Some(object.id.clone()));
    add("Owner", Some(object.owner.clone()));
    add("Requested as", Some(text::name(&object.name)));
    let created = Some(&object.created_at).filter(|at| !at.is_empty());
    add("Created", created.map(moment));
    add("Started", object.started_at.as_ref().map(moment));
    add("Ended", object.finished_at.as_ref().map(moment));
    if object.kind == "task" && object.finished_at.is_none() {
        let used = usage.of(&object.id);
        add(
            "Uses",
            Some(format!("processor {}, memory {}", used.cpu, used.memory)),
        );
    }
    if let Some(image) = &object.image {
        add("Image", Some(text::name(&image.name)));
        add("Image by digest", Some(text::name(&image.reference)));
        add("Snapshot", Some(text::name(&image.snapshot)));
    }
    add("Process", object.pid.map(|pid| pid.to_string()));
    add(
        "User",
        object
            .user
            .as_ref()
            .map(|user| format!("{}:{}", user.uid, user.gid)),
    );
    add("Runtime", Some(text::name(&object.runtime)));
    add("Handler", Some(text::name(&object.handler)));
    add(
        "Addresses",
        joined(object.network.ips.iter().map(ToString::to_string).collect()),
    );
    add("Host ports", joined(object.network.host_ports.clone()));
    add(
        "Network namespace",
        object.network.namespace.as_deref().map(text::name),
    );
    add("Devices", joined(object.device_nodes.clone()));
    let leases = object
        .leases
        .iter()
        .flat_map(|lease| lease.slots.iter().cloned())
        .collect();
    add("Leased slots", joined(leases));
    add("Cgroup", object.cgroup.as_deref().map(text::name));
    add("Log", object.log.as_deref().map(text::name));
    add("What to do", object.remedy.as_deref().map(text::sentence));
    facts
}

/// The limits in force and what is reserved.
fn resources(object: &InspectionView) -> Vec<(String, String)> {
    let mut rows: Vec<_> = object
        .resources
        .iter()
        .map(|(name, value)| {
            let bytes = value
                .parse()
                .ok()
                .filter(|_| name.ends_with("_bytes"))
                .map(size);
            (
                text::words(name),
                text::name(&bytes.unwrap_or_else(|| value.clone())),
            )
        })
        .collect();
    if let Some(reserved) = &object.reserved {
        rows.push((
            "reserved processors".to_owned(),
            processors(reserved.cpu_milli),
        ));
        rows.push(("reserved memory".to_owned(), size(reserved.memory_bytes)));
        let exclusive = if reserved.exclusive_cpus { "yes" } else { "no" };
        rows.push(("exclusive processors".to_owned(), exclusive.to_owned()));
    }
    rows
}

// === impl MountRow ===

impl MountRow {
    fn of(mount: &MountView) -> Self {
        Self {
            target: text::name(&mount.target),
            source: text::name(&mount.source),
            file_system: text::name(&mount.file_system),
        }
    }
}
