//! Collects what was logged about a container that violated an expectation, as the run cannot be repeated
//! exactly.

use std::fs;
use std::path::Path;

use super::outcome::RunRecorder;
use crate::node::TestNode;

/// The most lines that are quoted of one log.
const MAX_LINES: usize = 60;
/// The number of lines that are quoted before and after each line about the container: the line that explains
/// its exit may not name it.
const CONTEXT_LINES: usize = 4;

/// The answers that clients got about a container, the end of its own log, and the lines about it in the logs
/// of the daemon and of containerd, with context; of the daemon's log also all warnings, which may name
/// another container of the pod.
pub(super) fn collect(node: &TestNode, notes: &RunRecorder, id: &str, log: &Path) -> String {
    let mut text = String::new();
    append_lines(&mut text, "answers and kills", &notes.history_of(id));
    append_lines(&mut text, &log.display().to_string(), &lines_of(log));
    let daemon = node.root().daemon_log();
    let containerd = node.root().state().join("containerd/containerd.log");
    append_lines(
        &mut text,
        &daemon.display().to_string(),
        &around(lines_of(&daemon), |line| {
            line.contains(id) || line.contains(" WARN ") || line.contains(" ERROR ")
        }),
    );
    append_lines(
        &mut text,
        &containerd.display().to_string(),
        &around(lines_of(&containerd), |line| line.contains(id)),
    );
    text
}

/// The lines of a log, or one line with the error if the log cannot be read.
fn lines_of(log: &Path) -> Vec<String> {
    match fs::read(log) {
        // Containers may write bytes that are not UTF-8.
        Ok(bytes) => String::from_utf8_lossy(&bytes)
            .lines()
            .map(str::to_owned)
            .collect(),
        Err(fault) => vec![format!("it cannot be read: {fault}")],
    }
}

/// The lines that `of` selects, with their neighbouring lines.
fn around(lines: Vec<String>, of: impl Fn(&str) -> bool) -> Vec<String> {
    let picked: Vec<bool> = lines.iter().map(|line| of(line)).collect();
    let near = |at: usize| {
        picked[at.saturating_sub(CONTEXT_LINES)..picked.len().min(at + CONTEXT_LINES + 1)]
            .contains(&true)
    };
    lines
        .into_iter()
        .enumerate()
        .filter(|(at, _)| near(*at))
        .map(|(_, line)| line)
        .collect()
}

/// Adds the last lines.
fn append_lines(text: &mut String, name: &str, lines: &[String]) {
    let last = &lines[lines.len().saturating_sub(MAX_LINES)..];
    text.push_str(&format!(
        "\n    {name} (the last {} of {} lines):",
        last.len(),
        lines.len()
    ));
    for line in last {
        text.push_str("\n      ");
        text.push_str(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_includes_lines_next_to_those_of_a_container() {
        let lines = (0..20).map(|at| at.to_string()).collect();
        let lines_around = around(lines, |line| line == "2" || line == "12");
        let want: Vec<String> = (0..=6).chain(8..=16).map(|at| at.to_string()).collect();
        assert_eq!(lines_around, want);
        assert!(around(vec!["a".to_owned()], |_| false).is_empty());
    }
}
