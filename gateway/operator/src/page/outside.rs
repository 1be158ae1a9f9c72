//! The page without a session: health and counts, as the metrics have them.

use askama::Template;
use switchyard_operator_api::StatusReport;

use super::frame::Frame;
use super::happenings::PartRow;

/// The page of somebody without a session.
#[derive(Template)]
#[template(path = "outside.html")]
struct OutsidePage {
    frame: Frame,
    is_ready: bool,
    started_at: String,
    parts: Vec<PartRow>,
    counts: Vec<CountRow>,
    images: String,
}

/// A page with one message.
#[derive(Template)]
#[template(path = "message.html")]
struct MessagePage<'a> {
    frame: Frame,
    message: &'a str,
    hint: &'a str,
}

/// Number of an owner's objects in a state.
struct CountRow {
    kind: &'static str,
    owner: String,
    state: String,
    count: u64,
}

/// The page of somebody without a session; the report is one for the network.
pub(crate) fn outside(report: &StatusReport) -> askama::Result<String> {
    let kinds = [("sandboxes", &report.sandboxes), ("tasks", &report.tasks)];
    let counts = kinds
        .into_iter()
        .flat_map(|(kind, counts)| counts.iter().map(move |count| (kind, count)));
    OutsidePage {
        frame: Frame::outside("Switchyard"),
        is_ready: report.ready,
        started_at: report.started_at.clone(),
        parts: report.parts.iter().map(PartRow::of).collect(),
        counts: counts
            .map(|(kind, count)| CountRow {
                kind,
                owner: count.owner.clone(),
                state: count.state.clone(),
                count: count.count,
            })
            .collect(),
        images: report
            .images
            .map_or_else(|| "unknown".to_owned(), |images| images.to_string()),
    }
    .render()
}

/// A page with a title, a message and what to do.
pub(crate) fn message(title: &str, message: &str, hint: &str) -> askama::Result<String> {
    MessagePage {
        frame: Frame::outside(title),
        message,
        hint,
    }
    .render()
}
