//! The drill: incidents that are made for real on a private node, one at a time, to see what the node says of them.
//!
//! [`list::INCIDENTS`] has the incidents. [`measure`] makes one, waits until it shows, and gives its row of the table.
//! [`hold`] makes one and leaves it standing for somebody who is to find its cause: what it shows of the incident is
//! what a user would report, from a file of `tests/drill.d`. Names of pods, jobs, images, files and processes do not reveal
//! the cause either.

use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use incident::{Incident, ListedIncident, Place, Setup};
use node::{DrillNode, SharedCluster};
use observe::Baseline;
use parking_lot::Mutex;
use row::Row;

use crate::swarm::SwarmCluster;

pub mod incident;
pub mod list;
pub mod node;
pub mod report;
pub mod row;

/// The file system of the logkeeper's own tests.
#[allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of other tests too, which may fail"
)]
#[path = "../../gateway/logkeeper/tests/it/fuse.rs"]
mod fuse;
mod incidents;
mod load;
mod observe;

/// The file with the symptom of an incident.
#[must_use]
pub fn symptom_file(number: u8) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("drill.d/{number:02}.md"))
}

/// The report of a user about an incident.
///
/// # Panics
/// When it has no file.
#[must_use]
pub fn symptom(number: u8) -> String {
    let file = symptom_file(number);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The heading of that report, a line.
///
/// # Panics
/// As [`symptom`].
#[must_use]
pub fn title(number: u8) -> String {
    let text = symptom(number);
    let heading = text.lines().next().unwrap_or_default();
    heading.trim_start_matches('#').trim().to_owned()
}

/// An incident with its node.
#[derive(Debug)]
pub struct StandingIncident {
    // It ends before its node.
    incident: Incident,
    node: DrillNode,
}

/// Starts a node and makes an incident on it, which needs no swarm.
///
/// # Panics
/// When a prerequisite is missing, or the incident cannot be made.
#[must_use]
pub fn make(setup: &Setup) -> StandingIncident {
    make_beside(setup, None)
}

fn make_beside(setup: &Setup, cluster: Option<SharedCluster>) -> StandingIncident {
    let node = DrillNode::start(setup, cluster);
    let incident = (setup.make)(&node);
    StandingIncident { incident, node }
}

/// Does something where the node of an incident has to be: for one in a swarm, on a thread in the network namespace of the
/// manager, so that whatever it starts is there too. A panic is the error.
fn in_place<T: Send + 'static>(
    setup: Setup,
    work: impl FnOnce(Option<SharedCluster>) -> T + Send + 'static,
) -> thread::Result<T> {
    if !setup.is_in_swarm {
        return catch_unwind(AssertUnwindSafe(|| work(None)));
    }
    let cluster = Arc::new(Mutex::new(catch_unwind(SwarmCluster::new)?));
    let given = Arc::clone(&cluster);
    let thread = cluster.lock().within(move || work(Some(given)));
    thread.join()
}

// === impl StandingIncident ===

impl StandingIncident {
    /// Waits until it shows; `false` if it does not within three minutes.
    #[must_use]
    pub fn wait_sign(&self) -> bool {
        observe::wait_for(&self.node, self.incident.sign)
    }

    /// Its node.
    #[must_use]
    pub const fn node(&self) -> &DrillNode {
        &self.node
    }
}

/// Makes an incident, and looks at its node until it shows. An incident that cannot be made has a row that says why.
#[must_use]
pub fn measure(listed: &ListedIncident) -> Row {
    let ListedIncident {
        number,
        place,
        elsewhere,
    } = *listed;
    let symptom = title(number);
    let setup = match place {
        Place::Elsewhere(why) => return Row::not_made(number, &symptom, why),
        Place::Here(setup) => setup,
    };
    let measured = in_place(setup, move |cluster| {
        let node = DrillNode::start(&setup, cluster);
        let before = Baseline::of(&node);
        let incident = (setup.make)(&node);
        before.row(&node, &incident)
    });
    match measured {
        Ok(row) => Row {
            number,
            symptom,
            made: match elsewhere {
                None => row.made,
                Some(elsewhere) => format!("{}; {elsewhere}", row.made),
            },
            ..row
        },
        Err(panic) => {
            let why = format!("it failed: {}", panic_text(panic.as_ref()));
            Row::not_made(number, &symptom, &why)
        }
    }
}

/// The text of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Makes an incident and leaves it standing while `show` runs, which gets the symptom and the ways to the node.
///
/// # Errors
/// The incident belongs elsewhere: where, and why.
///
/// # Panics
/// When it cannot be made.
pub fn hold(
    listed: &ListedIncident,
    show: impl FnOnce(&str) + Send + 'static,
) -> Result<(), &'static str> {
    let ListedIncident { number, place, .. } = *listed;
    let setup = match place {
        Place::Elsewhere(why) => return Err(why),
        Place::Here(setup) => setup,
    };
    let held = in_place(setup, move |cluster| {
        let standing = make_beside(&setup, cluster);
        // One that does not show yet may do so later.
        let _ = standing.wait_sign();
        show(&format!(
            "{}\n{}",
            symptom(number),
            directions(standing.node())
        ));
    });
    match held {
        Ok(()) => Ok(()),
        Err(panic) => resume_unwind(panic),
    }
}

/// The ways to a node, and the way to end it.
fn directions(node: &DrillNode) -> String {
    let root = node.root();
    let dir = root.path().display();
    let containerd = root
        .containerd_socket()
        .map_or_else(|| "none".to_owned(), |socket| socket.display().to_string());
    let namespace = node.cluster().map_or_else(String::new, |cluster| {
        let cluster = cluster.lock();
        format!(
            "  network        nsenter --net={}: the node and Prometheus are in this namespace\n  \
             docker         docker --host unix://{}, the manager of the swarm\n",
            cluster.netns().display(),
            cluster.socket(0).display()
        )
    });
    format!(
        "The node is in {dir}. In its times, a minute of a real node lasts two seconds.\n\
         \n  export PATH={dir}:$PATH SWITCHYARD_ADMIN_SOCKET={run}/admin.sock\n\
         \n  switchyard     `switchyard doctor --config {config}`, and the same after `switchyard config check`\n\
         \x20 crictl         --config {dir}/crictl.yaml, or any client of {cri}\n\
         \x20 ctr            --namespace k8s.io --address {containerd}\n\
         \x20 Nomad agents   {run}/nomad.sock\n\
         \x20 journal        {log}: what the unit would write there\n\
         \x20 orchestrators  {report}: events of pods, logs of agents\n\
         \x20 Prometheus     http://{prometheus}\n{namespace}\
         \nEnter, SIGINT or SIGTERM ends it and removes everything.\n",
        run = root.run().display(),
        config = root.config().display(),
        cri = root.cri_socket().display(),
        log = root.daemon_log().display(),
        report = node.report().file().display(),
        prometheus = node.prometheus().address(),
    )
}
