//! The page of the node: who runs what, what is given out, what happened and happens, and how the parts are.

use std::time::SystemTime;

use askama::Template;
use jiff::Timestamp;
use switchyard_core::id::Owner;
use switchyard_operator_api::text::age;
use switchyard_operator_api::{
    DevicesView, EventView, Objects, OperationView, StatusReport, SwarmView,
};

use super::frame::{Address, Frame};
use super::happenings::{EventRow, OperationRow, PartRow};
use super::ledger::LedgerTables;
use super::text;
use super::usage::NodeUsage;
use super::work::{Tone, WorkTable, tasks_by_owner};

/// Maximum number of operations in flight that are listed.
const OPERATIONS_MAX: usize = 100;

/// Everything from which the page is made.
#[derive(Debug)]
pub(crate) struct NodeFacts {
    pub(crate) node: String,
    pub(crate) report: StatusReport,
    pub(crate) objects: Objects,
    pub(crate) usage: NodeUsage,
    pub(crate) devices: DevicesView,
    /// The latest events, the newest first.
    pub(crate) events: Vec<EventView>,
    pub(crate) refused: Vec<EventView>,
    pub(crate) operations: Vec<OperationView>,
    pub(crate) swarm: Option<SwarmView>,
}

/// The part of the node's work that is requested.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeQuery {
    pub(crate) owner: Option<Owner>,
    pub(crate) page: usize,
    pub(crate) refresh: Option<u64>,
}

#[derive(Template)]
#[template(path = "node.html")]
struct NodePage {
    frame: Frame,
    is_ready: bool,
    up: String,
    started_at: String,
    tiles: Vec<Tile>,
    attention: Vec<String>,
    attention_tone: Tone,
    filters: Vec<Link>,
    work: WorkTable,
    usage: String,
    former: Option<String>,
    next: Option<String>,
    ledger: LedgerTables,
    events: Vec<EventRow>,
    refused: Vec<EventRow>,
    operations: Vec<OperationRow>,
    more_operations: usize,
    parts: Vec<PartRow>,
    swarm: Vec<Fact>,
}

/// A number at the top of the page.
struct Tile {
    label: &'static str,
    value: String,
    note: String,
}

/// A link, or the name of what is shown now.
struct Link {
    href: String,
    label: String,
    is_current: bool,
}

/// A name with its value.
pub(super) struct Fact {
    pub(super) name: &'static str,
    pub(super) value: String,
}

/// The page as HTML.
pub(crate) fn node(facts: &NodeFacts, query: &NodeQuery) -> askama::Result<String> {
    let now = Timestamp::now();
    let NodeFacts {
        node,
        report,
        objects,
        usage,
        devices,
        events,
        refused,
        operations,
        swarm,
    } = facts;
    let pairs = |owner: Option<Owner>, page: usize| -> Vec<(&'static str, String)> {
        let owner = owner.map(|owner| ("owner", owner.as_str().to_owned()));
        owner
            .into_iter()
            .chain((page > 1).then(|| ("page", page.to_string())))
            .collect()
    };
    let address = Address {
        path: "/".to_owned(),
        query: pairs(query.owner, query.page),
        refresh: query.refresh,
    };
    let shown = match query.owner {
        Some(owner) => &objects.clone().of_owner(owner),
        None => objects,
    };
    let work = WorkTable::new(shown, usage, query.page, now);
    let href_of = |page: usize| address.replaced(pairs(query.owner, page));
    let title = if node.is_empty() {
        "Switchyard".to_owned()
    } else {
        format!("{node} · Switchyard")
    };
    NodePage {
        frame: Frame::inside(title, text::name(node), &address),
        is_ready: report.ready,
        up: age(&report.started_at, now),
        started_at: report.started_at.clone(),
        tiles: tiles(facts),
        attention_tone: if has_failed(facts) {
            Tone::Bad
        } else {
            Tone::Busy
        },
        attention: attention(facts),
        filters: filters(objects, query.owner, |owner| {
            address.replaced(pairs(owner, 1))
        }),
        former: (work.page > 1).then(|| href_of(work.page - 1)),
        next: (work.page < work.pages).then(|| href_of(work.page + 1)),
        work,
        usage: usage.caption(SystemTime::now()),
        ledger: LedgerTables::of(devices),
        events: events
            .iter()
            .map(|event| EventRow::of(event, now))
            .collect(),
        refused: refused
            .iter()
            .map(|event| EventRow::of(event, now))
            .collect(),
        operations: operations
            .iter()
            .take(OPERATIONS_MAX)
            .map(OperationRow::of)
            .collect(),
        more_operations: operations.len().saturating_sub(OPERATIONS_MAX),
        parts: report.parts.iter().map(PartRow::of).collect(),
        swarm: swarm
            .as_ref()
            .map(|swarm| swarm_facts(swarm, now))
            .unwrap_or_default(),
    }
    .render()
}

/// The numbers at the top.
fn tiles(facts: &NodeFacts) -> Vec<Tile> {
    let NodeFacts {
        report,
        objects,
        devices,
        operations,
        ..
    } = facts;
    let running = objects
        .tasks
        .iter()
        .filter(|task| task.state == "running")
        .count();
    let failed = objects
        .tasks
        .iter()
        .filter(|task| Tone::of(&task.state, task.exit_code) == Tone::Bad);
    let slots: usize = devices.groups.iter().map(|group| group.capacity).sum();
    let free: usize = devices.groups.iter().map(|group| group.free).sum();
    let tile = |label, value: usize, note| Tile {
        label,
        value: value.to_string(),
        note,
    };
    let mut tiles = vec![
        tile(
            "sandboxes",
            objects.sandboxes.len(),
            "pods, and groups of tasks".to_owned(),
        ),
        tile(
            "tasks running",
            running,
            format!("{} ended with another code than 0", failed.count()),
        ),
    ];
    if slots > 0 {
        tiles.push(tile("device slots free", free, format!("of {slots}")));
    }
    tiles.push(tile("host ports held", devices.ports.len(), String::new()));
    tiles.push(tile(
        "operations in flight",
        operations.len(),
        String::new(),
    ));
    let images = report
        .images
        .map_or_else(|| "—".to_owned(), |images| images.to_string());
    tiles.push(Tile {
        label: "images",
        value: images,
        note: String::new(),
    });
    tiles
}

/// Returns whether something does not work now.
fn has_failed(NodeFacts { report, swarm, .. }: &NodeFacts) -> bool {
    report.parts.iter().any(|part| !part.up && part.needed)
        || swarm
            .as_ref()
            .is_some_and(|swarm| !swarm.problems.is_empty())
}

/// Sentences on everything that needs attention.
fn attention(facts: &NodeFacts) -> Vec<String> {
    let NodeFacts { report, swarm, .. } = facts;
    let down = report.parts.iter().filter(|part| !part.up);
    let mut sentences: Vec<_> = down
        .map(|part| format!("{}: {}", part.name, text::sentence(&part.detail)))
        .collect();
    let troubles = report.troubles.iter();
    sentences.extend(troubles.map(|trouble| format!("{}: {}", trouble.kind, trouble.listed())));
    let problems = swarm.iter().flat_map(|swarm| &swarm.problems);
    sentences.extend(problems.map(|problem| format!("swarm: {}", text::sentence(problem))));
    if let Some(config) = &report.config {
        let refused = config.refused.iter();
        sentences.extend(
            refused
                .map(|refused| format!("a reload was refused: {}", text::sentence(&refused.why))),
        );
        if !config.pending.is_empty() {
            let count = config.pending.len();
            sentences.push(format!(
                "configuration: {count} changed keys wait for a restart"
            ));
        }
    }
    let replaced = report.programs.iter().filter(|program| program.replaced);
    sentences.extend(replaced.map(|program| {
        format!(
            "{}: an older program runs than the one that is installed: restart it",
            program.part
        )
    }));
    let former = report
        .programs
        .iter()
        .filter(|program| program.has_former_configuration());
    sentences.extend(former.map(|program| {
        format!(
            "{}: it has read a former configuration: restart it",
            program.part
        )
    }));
    sentences.extend(report.advisories.iter().map(|advisory| {
        let ids = text::name(&advisory.ids.join(", "));
        format!(
            "{} {} has known vulnerabilities: {ids}",
            advisory.program,
            text::name(&advisory.version)
        )
    }));
    sentences
}

/// The links that choose an owner.
fn filters(
    objects: &Objects,
    current: Option<Owner>,
    href: impl Fn(Option<Owner>) -> String,
) -> Vec<Link> {
    let counts = tasks_by_owner(objects);
    let all = Link {
        href: href(None),
        label: format!("all ({})", objects.tasks.len()),
        is_current: current.is_none(),
    };
    let of_owner = |owner: Owner| {
        let tasks = counts.get(owner.as_str()).copied();
        let is_current = current == Some(owner);
        (tasks.is_some() || is_current).then(|| Link {
            href: href(Some(owner)),
            label: format!("{owner} ({})", tasks.unwrap_or_default()),
            is_current,
        })
    };
    std::iter::once(all)
        .chain(Owner::ALL.into_iter().filter_map(of_owner))
        .collect()
}

/// The node's part in a swarm.
fn swarm_facts(swarm: &SwarmView, now: Timestamp) -> Vec<Fact> {
    let SwarmView {
        state,
        since,
        cluster,
        node,
        manager,
        session_since,
        certificate_begins: _,
        certificate_ends,
        sessions,
        session_failures,
        problems: _,
        is_duplicate: _,
        is_promoted: _,
        waiting,
        departure,
    } = swarm;
    let mut facts = vec![Fact {
        name: "State",
        value: format!("{}, for {}", text::words(state), age(since, now)),
    }];
    let mut add =
        |name, value: Option<String>| facts.extend(value.map(|value| Fact { name, value }));
    add("Swarm", cluster.as_deref().map(text::name));
    add("Node", node.as_deref().map(text::name));
    add(
        "Session",
        session_since.as_ref().map(|since| match manager {
            Some(manager) => format!("with {}, for {}", text::name(manager), age(since, now)),
            None => format!("none for {}", age(since, now)),
        }),
    );
    add(
        "Sessions",
        node.as_ref()
            .map(|_| format!("{sessions} opened, {session_failures} failed")),
    );
    add(
        "Certificate",
        certificate_ends
            .as_ref()
            .map(|ends| format!("valid until {}", text::name(ends))),
    );
    add(
        "Left before",
        departure
            .as_ref()
            .map(|left| format!("{} ({})", text::name(&left.cluster), left.cause)),
    );
    for service in waiting {
        let words = text::sentence(&service.in_words());
        let since = age(&service.since, now);
        add("Service", Some(format!("{words} (for {since})")));
    }
    facts
}
