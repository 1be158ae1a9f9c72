//! The rows of sandboxes and their tasks.

use std::collections::BTreeMap;

use jiff::Timestamp;
use switchyard_operator_api::text::{age, short_reference};
use switchyard_operator_api::{Objects, SandboxView, TaskView};

use super::text;
use super::usage::NodeUsage;

/// Maximum number of sandboxes on a page.
pub(super) const SANDBOXES_MAX: usize = 100;

/// Maximum number of tasks that are listed of a sandbox.
const TASKS_MAX: usize = 50;

/// Appearance of a state. The word is always shown too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Busy,
    Quiet,
    Bad,
}

/// A sandbox or task in a table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WorkRow {
    pub(super) href: String,
    pub(super) name: String,
    /// True for a task below the row of its sandbox.
    pub(super) is_below: bool,
    pub(super) owner: String,
    pub(super) state: String,
    pub(super) tone: Tone,
    pub(super) age: String,
    pub(super) created_at: String,
    /// The image of a task, the addresses of a sandbox, and which of both it is.
    pub(super) what: String,
    pub(super) what_label: &'static str,
    pub(super) cpu: String,
    pub(super) memory: String,
}

/// The part of the node's work that a page lists.
#[derive(Debug, Default)]
pub(super) struct WorkTable {
    pub(super) rows: Vec<WorkRow>,
    /// From which sandbox to which, from 1, and how many there are.
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) total: usize,
    /// The page, from 1, and how many there are.
    pub(super) page: usize,
    pub(super) pages: usize,
}

// === impl Tone ===

impl Tone {
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Busy => "busy",
            Self::Quiet => "quiet",
            Self::Bad => "bad",
        }
    }

    /// The tone in which a state of a sandbox or task is shown.
    pub(super) fn of(state: &str, exit_code: Option<i32>) -> Self {
        match (state, exit_code) {
            ("ready" | "running", _) => Self::Good,
            ("exited", Some(0)) | ("stopped", _) => Self::Quiet,
            ("exited" | "unknown", _) => Self::Bad,
            (_, _) => Self::Busy,
        }
    }
}

// === impl WorkTable ===

impl WorkTable {
    /// The page with this number, counted from 1; the last one if there are fewer.
    pub(super) fn new(objects: &Objects, usage: &NodeUsage, page: usize, now: Timestamp) -> Self {
        let total = objects.sandboxes.len();
        let pages = total.div_ceil(SANDBOXES_MAX).max(1);
        let page = page.clamp(1, pages);
        let begin = (page - 1) * SANDBOXES_MAX;
        let end = total.min(begin + SANDBOXES_MAX);
        let shown = &objects.sandboxes[begin..end];
        let mut tasks: BTreeMap<&str, Vec<&TaskView>> = shown
            .iter()
            .map(|sandbox| (sandbox.id.as_str(), Vec::new()))
            .collect();
        for task in &objects.tasks {
            if let Some(of_sandbox) = tasks.get_mut(task.sandbox.as_str()) {
                of_sandbox.push(task);
            }
        }
        let rows_of = |sandbox: &SandboxView| {
            let tasks = tasks
                .get(sandbox.id.as_str())
                .map(Vec::as_slice)
                .unwrap_or_default();
            rows(sandbox, tasks, usage, now)
        };
        let rows = shown.iter().flat_map(rows_of).collect();
        Self {
            rows,
            first: begin + usize::from(end > begin),
            last: end,
            total,
            page,
            pages,
        }
    }
}

/// The rows of a sandbox: one if its only task has its name, as Nomad's and Swarm's have.
fn rows(
    sandbox: &SandboxView,
    tasks: &[&TaskView],
    usage: &NodeUsage,
    now: Timestamp,
) -> Vec<WorkRow> {
    if let [task] = tasks
        && task.display_name == sandbox.display_name
    {
        return vec![task_row(task, None, usage, now)];
    }
    let mut rows = vec![sandbox_row(sandbox, now)];
    rows.extend(
        tasks
            .iter()
            .take(TASKS_MAX)
            .map(|task| task_row(task, Some(sandbox), usage, now)),
    );
    if tasks.len() > TASKS_MAX {
        rows.push(WorkRow {
            name: format!("and {} more tasks", tasks.len() - TASKS_MAX),
            is_below: true,
            state: String::new(),
            age: String::new(),
            what: String::new(),
            ..sandbox_row(sandbox, now)
        });
    }
    rows
}

fn sandbox_row(sandbox: &SandboxView, now: Timestamp) -> WorkRow {
    let addresses: Vec<_> = sandbox.ips.iter().map(ToString::to_string).collect();
    WorkRow {
        href: format!("/sandboxes/{}", sandbox.id),
        name: text::name(&sandbox.display_name),
        is_below: false,
        owner: sandbox.owner.clone(),
        state: sandbox.state.clone(),
        tone: Tone::of(&sandbox.state, None),
        age: age(&sandbox.created_at, now),
        created_at: sandbox.created_at.clone(),
        what_label: "Addresses",
        what: if addresses.is_empty() {
            "host network".to_owned()
        } else {
            addresses.join(", ")
        },
        cpu: String::new(),
        memory: String::new(),
    }
}

/// The row of a task, below that of its sandbox if there is one.
pub(super) fn task_row(
    task: &TaskView,
    below: Option<&SandboxView>,
    usage: &NodeUsage,
    now: Timestamp,
) -> WorkRow {
    let used = usage.of(&task.id);
    let own_name = below.and_then(|sandbox| {
        task.display_name
            .strip_prefix(&sandbox.display_name)
            .and_then(|rest| rest.strip_prefix('/'))
    });
    let state = match task.exit_code {
        Some(code) => format!("{} ({code})", task.state),
        None => task.state.clone(),
    };
    WorkRow {
        href: format!("/tasks/{}", task.id),
        name: text::name(own_name.unwrap_or(&task.display_name)),
        is_below: below.is_some(),
        owner: task.owner.clone(),
        state,
        tone: Tone::of(&task.state, task.exit_code),
        age: age(&task.created_at, now),
        created_at: task.created_at.clone(),
        what_label: "Image",
        what: text::name(&short_reference(
            task.names.get("image").unwrap_or(&task.image),
        )),
        cpu: used.cpu,
        memory: used.memory,
    }
}

/// Number of tasks by owner, for each owner that has a sandbox.
pub(super) fn tasks_by_owner(objects: &Objects) -> BTreeMap<&str, usize> {
    let mut counts: BTreeMap<&str, usize> = objects
        .sandboxes
        .iter()
        .map(|sandbox| (sandbox.owner.as_str(), 0))
        .collect();
    for task in &objects.tasks {
        *counts.entry(&task.owner).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(number: usize, name: &str) -> SandboxView {
        SandboxView {
            id: format!("{number:064x}"),
            owner: "kubernetes".into(),
            name: name.into(),
            display_name: name.into(),
            names: BTreeMap::new(),
            state: "ready".into(),
            handler: String::new(),
            ips: Vec::new(),
            created_at: "2026-11-26T11:55:00Z".into(),
        }
    }

    fn task(of: usize, name: &str) -> TaskView {
        TaskView {
            id: format!("{of:063x}f"),
            sandbox: format!("{of:064x}"),
            owner: "kubernetes".into(),
            name: name.into(),
            display_name: name.into(),
            names: BTreeMap::new(),
            state: "exited".into(),
            image: "docker.io/library/nginx:1".into(),
            pid: None,
            exit_code: Some(1),
            created_at: "2026-11-26T11:55:00Z".into(),
        }
    }

    fn now() -> Timestamp {
        "2026-11-26T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn tasks_are_below_their_sandboxes_and_one_of_the_same_name_is_in_its_place() {
        let sandboxes = vec![sandbox(1, "shop/web"), sandbox(2, "job/group/task (1a2b)")];
        let tasks = vec![task(1, "shop/web/nginx"), task(2, "job/group/task (1a2b)")];
        let table = WorkTable::new(
            &Objects {
                sandboxes,
                tasks,
                ..Objects::default()
            },
            &NodeUsage::default(),
            1,
            now(),
        );
        let rows: Vec<_> = table
            .rows
            .iter()
            .map(|row| (row.name.as_str(), row.is_below))
            .collect();
        assert_eq!(
            rows,
            [
                ("shop/web", false),
                ("nginx", true),
                ("job/group/task (1a2b)", false)
            ]
        );
        assert_eq!(
            (table.rows[1].state.as_str(), table.rows[1].tone),
            ("exited (1)", Tone::Bad)
        );
        assert_eq!(
            (table.rows[1].what.as_str(), table.rows[1].age.as_str()),
            ("nginx:1", "5m")
        );
        assert!(table.rows[2].href.starts_with("/tasks/"));
    }

    #[test]
    fn page_has_a_bounded_number_of_rows() {
        let sandboxes: Vec<_> = (0..250)
            .map(|number| sandbox(number, &format!("p{number:03}")))
            .collect();
        let tasks = (0..200).map(|_| task(0, "x")).collect();
        let objects = Objects {
            sandboxes,
            tasks,
            ..Objects::default()
        };
        let table = |page| WorkTable::new(&objects, &NodeUsage::default(), page, now());
        let first = table(0);
        assert_eq!(
            (first.first, first.last, first.page, first.pages),
            (1, 100, 1, 3)
        );
        assert_eq!(first.rows.len(), SANDBOXES_MAX + TASKS_MAX + 1);
        let more = first
            .rows
            .iter()
            .find(|row| row.name == "and 150 more tasks")
            .unwrap();
        assert!(
            more.state.is_empty() && more.href.starts_with("/sandboxes/"),
            "{more:?}"
        );
        let last = table(usize::MAX);
        assert_eq!((last.first, last.last, last.rows.len()), (201, 250, 50));
        assert_eq!(
            WorkTable::new(&Objects::default(), &NodeUsage::default(), 1, now()).first,
            0
        );
    }
}
