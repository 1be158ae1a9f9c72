//! What was written about a container that something went wrong with, so that a run that cannot be repeated explains itself.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::node::Node;

/// The most lines of one log that are told.
const MOST: usize = 30;

/// The end of a container's own log, and what the daemon and containerd have logged of it.
pub(super) fn of(node: &Node, id: &str, log: &Path) -> String {
    let mut text = String::new();
    tell(&mut text, log, |_| true);
    for of_all in [node.root().daemon_log(), node.root().state().join("containerd/containerd.log")] {
        tell(&mut text, &of_all, |line| line.contains(id));
    }
    text
}

/// Adds the last of the lines that `of` picks.
fn tell(text: &mut String, log: &Path, of: impl Fn(&str) -> bool) {
    // What containers write need not be text, and a log need not be there.
    let whole = fs::read(log).map_or_else(
        |fault| format!("it cannot be read: {fault}"),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    );
    let lines: Vec<_> = whole.lines().filter(|line| of(line)).collect();
    let last = &lines[lines.len().saturating_sub(MOST)..];
    // A string takes all that is written to it.
    let _ = write!(text, "\n    {} (the last {} of {} lines):", log.display(), last.len(), lines.len());
    for line in last {
        let _ = write!(text, "\n      {line}");
    }
}
