//! Clients of the daemon that behave badly.

use std::time::Duration;

use switchyard_proto::cri::v1 as cri;

use crate::drill::incident::{Incident, Sign};
use crate::drill::load::Load;
use crate::drill::node::DrillNode;
use crate::streams::{OUTPUTS, StreamSession};

/// Sessions that a client leaves open at most.
const SESSIONS: usize = 400;
/// Clients that ask without pause.
const FLOODING: usize = 4;

/// A client opens sessions, reads nothing and closes none.
pub(crate) fn leaks_sessions(node: &DrillNode) -> Incident {
    let script = "while :; do head -c 4000 /dev/zero | tr '\\0' .; echo; sleep 0.2; done";
    let pod = node.app("ops", "console-1", script);
    let cri = node.cri().clone();
    let mut held = Vec::new();
    let opens = Load::start(Duration::from_millis(100), move || {
        if held.len() < SESSIONS {
            held.push(StreamSession::attach(&cri, &pod.container, OUTPUTS));
        }
    });
    Incident::new("console-1", Sign::Lasts(Duration::from_secs(60))).with(opens)
}

/// Clients ask for everything again and again, without a pause.
pub(crate) fn floods(node: &DrillNode) -> Incident {
    let floods: Vec<Load> = (0..FLOODING)
        .map(|_| {
            let cri = node.cri().with_timeout(Duration::from_secs(10));
            Load::start(Duration::ZERO, move || {
                // What they are answered does not matter.
                drop(cri.containers());
                let request = cri::StatusRequest { verbose: true };
                drop(cri.runtime(async |mut client| client.status(request).await));
            })
        })
        .collect();
    Incident::new("web-1", Sign::Lasts(Duration::from_secs(30))).with_all(floods)
}
