//! The state of a checkout in git: the shard of its commit, and the files that were changed lately.

use std::path::Path;
use std::process::Command;

use switchyard_tests::shards::Shard;

/// Number of the last commits that count as recent.
const LATELY: &str = "20";

/// The directories with what is slow.
const TESTS: [&str; 2] = ["tests/it/", "tests/guest/"];

/// Maximum number of files that a recent commit may change. One that changes more, as a renamed fixture does,
/// would make each run a whole one until it is no longer among the last commits.
const SWEEP: usize = 20;

/// The shard of a checkout, and why it is that one.
pub(crate) fn shard(root: &Path) -> (Shard, String) {
    let head = git(root, &["rev-parse", "HEAD"]);
    match head
        .as_deref()
        .and_then(|hash| Some((Shard::of_commit(hash)?, hash)))
    {
        Some((shard, hash)) => (
            shard,
            format!("the one of commit {}", &hash[..hash.len().min(12)]),
        ),
        None => (
            Shard::default(),
            "there is no history to derive another from".to_owned(),
        ),
    }
}

/// The recent changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The files that differ from the last commit, or that the last commits changed, the last changed first; none
    /// without history.
    pub(crate) files: Vec<String>,
    /// The commits among them whose files are not counted, because they are too many.
    pub(crate) sweeps: Vec<String>,
}

/// Returns the recent changes in a checkout.
pub(crate) fn changes(root: &Path) -> Changes {
    // A commit without a parent adds all files: the first one, and where a shallow clone is cut off.
    let log = [
        "log",
        "-n",
        LATELY,
        "--min-parents=1",
        "--name-only",
        "--format=commit %h",
    ];
    // A rename is two files here.
    let status = [
        "status",
        "--porcelain",
        "--no-renames",
        "--untracked-files=all",
    ];
    let mut changes = Changes::default();
    for line in git(root, &status).unwrap_or_default().lines() {
        changes.add(line.get(3..).unwrap_or_default());
    }
    changes.add_commits(&git(root, &log).unwrap_or_default());
    changes
}

impl Changes {
    /// Takes in a log: for each commit a line `commit HASH`, an empty line, and a line for each file.
    fn add_commits(&mut self, log: &str) {
        for commit in log.split("commit ").skip(1) {
            let mut lines = commit.lines().filter(|line| !line.is_empty());
            let Some(hash) = lines.next() else { continue };
            let files: Vec<_> = lines.collect();
            let tests = files
                .iter()
                .filter(|file| TESTS.iter().any(|dir| file.starts_with(dir)))
                .count();
            if tests > SWEEP {
                self.sweeps.push(hash.to_owned());
            } else {
                for file in files {
                    self.add(file);
                }
            }
        }
    }

    /// Adds a file that is not among those that were changed later.
    fn add(&mut self, file: &str) {
        if !self.files.iter().any(|known| known == file) {
            self.files.push(file.to_owned());
        }
    }
}

/// Returns git's output; `None` if it fails, as in an unpacked archive.
fn git(root: &Path, words: &[&str]) -> Option<String> {
    // The checkout may belong to the user who calls sudo.
    let safe = format!("safe.directory={}", root.display());
    let output = Command::new("git")
        .current_dir(root)
        .args(["-c", &safe])
        .args(words)
        .output()
        .ok()?;
    output.status.success().then(|| {
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_commits_are_counted_but_for_those_of_sweeps() {
        let mut log = String::from("commit aaaa\n\ntests/it/one.rs\nREADME.md\ncommit bbbb\n\n");
        for number in 0..=SWEEP {
            log.push_str(&format!("tests/guest/fact_{number}.rs\n"));
        }
        log.push_str("commit cccc\n\ntests/it/two.rs");
        let mut changes = Changes::default();
        changes.add_commits(&log);
        assert_eq!(changes.sweeps, ["bbbb"]);
        assert_eq!(
            changes.files,
            ["tests/it/one.rs", "README.md", "tests/it/two.rs"]
        );
        changes.add_commits("");
        assert_eq!(changes.files.len(), 3);
    }
}
