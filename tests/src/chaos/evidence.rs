//! What was written about a container that something went wrong with, so that a run that cannot be repeated explains itself.

use std::fs;
use std::path::Path;

use super::outcome::Notes;
use crate::node::Node;

/// The most lines of one log that are told.
const MOST: usize = 30;

/// What a container's clients were told, the end of its own log, and what the daemon and containerd have logged of it.
pub(super) fn of(node: &Node, notes: &Notes, id: &str, log: &Path) -> String {
    let mut text = String::new();
    tell(&mut text, "answers and kills", &notes.past_of(id));
    tell(&mut text, &log.display().to_string(), &lines_of(log, |_| true));
    for of_all in [node.root().daemon_log(), node.root().state().join("containerd/containerd.log")] {
        tell(&mut text, &of_all.display().to_string(), &lines_of(&of_all, |line| line.contains(id)));
    }
    text
}

/// The lines of a log that `of` picks; why there are none if it cannot be read.
fn lines_of(log: &Path, of: impl Fn(&str) -> bool) -> Vec<String> {
    match fs::read(log) {
        // What containers write need not be text.
        Ok(bytes) => {
            String::from_utf8_lossy(&bytes).lines().filter(|line| of(line)).map(str::to_owned).collect()
        }
        Err(fault) => vec![format!("it cannot be read: {fault}")],
    }
}

/// Adds the last lines.
fn tell(text: &mut String, name: &str, lines: &[String]) {
    let last = &lines[lines.len().saturating_sub(MOST)..];
    text.push_str(&format!("\n    {name} (the last {} of {} lines):", last.len(), lines.len()));
    for line in last {
        text.push_str("\n      ");
        text.push_str(line);
    }
}
