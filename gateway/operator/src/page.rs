//! The status page for browsers: what runs on the node, who holds what, what happened, and how the parts are.
//!
//! ```text
//! status::*View, events, operations ─► rows (pure) ─► askama templates ─► HTML
//! switchyard page ─► ticket ─► session ─► the whole page; without a session: health and counts
//! ```
//!
//! It has no script, and loads nothing but its style sheet, which is a part of the binary. Names, reasons and lines of
//! logs are hostile text: they are bounded and without control characters here, and the templates escape them. It never
//! shows environment variables, arguments, labels or credentials.

mod frame;
mod happenings;
mod ledger;
mod log_tail;
mod node;
mod object;
mod outside;
mod sessions;
mod site;
mod text;
mod usage;
mod work;

pub(crate) use log_tail::LogTail;
pub(crate) use node::{NodeFacts, NodeQuery, node};
pub(crate) use object::{ObjectFacts, object};
pub(crate) use outside::{message, outside};
pub(crate) use sessions::TICKET_TIME;
pub use site::StatusPage;

/// The style sheet of all pages.
pub(crate) const STYLE: &str = include_str!("../templates/style.css");
