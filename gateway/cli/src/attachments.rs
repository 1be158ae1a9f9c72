//! The sandboxes whose network was made without CNI plugins, by their journals: no earlier version ends it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use switchyard_cni as cni;
use switchyard_config::{Config, PathsConfig};
use switchyard_linux::report;
use switchyard_node_files::{self as node_files, ReadError};

/// The most sandboxes of a state directory that are looked at.
const SANDBOXES_MAX: usize = 100_000;

/// The longest journal that is read, in bytes.
const JOURNAL_MAX: u64 = 16 << 20;

/// Sandboxes whose network was made without CNI plugins, as the journals of state directories say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NativeSandboxes {
    /// The ids of these sandboxes.
    pub(super) ids: BTreeSet<String>,
    /// Reasons why it is not known of others, which then count as such.
    pub(super) unknown: Vec<String>,
}

impl NativeSandboxes {
    /// Looks in the state directories of these configurations, or in the default one if there are none. Blocks.
    pub(super) fn of(configurations: &[Config]) -> Self {
        let states: BTreeSet<PathBuf> = configurations
            .iter()
            .map(|config| config.paths.state.clone())
            .collect();
        if states.is_empty() {
            return Self::below([PathsConfig::default().state.as_path()]);
        }
        Self::below(states.iter().map(PathBuf::as_path))
    }

    /// Looks in these state directories. Blocks.
    fn below<'p>(states: impl IntoIterator<Item = &'p Path>) -> Self {
        let mut found = Self::default();
        for state in states {
            let dir = state.join("sandboxes");
            match present(node_files::list(&dir, SANDBOXES_MAX)) {
                Ok(sandboxes) => {
                    for sandbox in sandboxes.unwrap_or_default() {
                        found.add(&sandbox);
                    }
                }
                Err(error) => found.unknown.push(unread(&dir, &error)),
            }
        }
        found
    }

    /// Adds a sandbox by its directory.
    fn add(&mut self, sandbox: &Path) {
        let journal = sandbox.join("cni.json");
        match present(node_files::read(&journal, JOURNAL_MAX)) {
            Ok(None) => {}
            // One of any driver but plugins is ended by no earlier version.
            Ok(Some(bytes)) => match cni::driver_of_journal(&bytes) {
                Ok(Some(_)) => {
                    let id = sandbox.file_name().unwrap_or_default();
                    self.ids.insert(id.to_string_lossy().into_owned());
                }
                Ok(None) => {}
                Err(error) => self.unknown.push(unread(&journal, &error)),
            },
            Err(error) => self.unknown.push(unread(&journal, &error)),
        }
    }

    /// Returns these sandboxes as a part of a sentence; `None` if there are none. Pure.
    pub(super) fn text(&self) -> Option<String> {
        match (self.ids.first(), self.ids.len(), self.unknown.first()) {
            (Some(id), 1, _) => Some(format!("sandbox {id}")),
            (Some(id), count, _) => Some(format!("{count} sandboxes, as {id}")),
            (None, _, Some(why)) => Some(format!("perhaps a sandbox ({why})")),
            (None, _, None) => None,
        }
    }
}

/// Returns what was read; `None` if there is no such file, or no such directory.
fn present<T>(outcome: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match outcome {
        Err(ReadError::Io(fault))
            if matches!(fault.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        other => other.map(Some),
    }
}

fn unread(path: &Path, error: &(dyn std::error::Error + 'static)) -> String {
    format!("cannot read {}: {}", path.display(), report(error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const BEGIN: &str = r#"{"version":2,"network":{"name":"switchyard0","plugins":[]"#;

    #[test]
    fn what_cannot_be_read_is_not_taken_for_absent() {
        let dir = tempfile::tempdir().unwrap();
        let state = |name: &str| dir.path().join(name);
        let journal = |state: &Path, id: &str, text: &str| {
            let sandbox = state.join("sandboxes").join(id);
            fs::create_dir_all(&sandbox).unwrap();
            fs::write(sandbox.join("cni.json"), text).unwrap();
        };
        let native = format!("{BEGIN},\"switchyard.driver\":\"native\"}}}}");
        assert_eq!(
            NativeSandboxes::below([state("none").as_path()]),
            NativeSandboxes::default()
        );
        let plugins = state("plugins");
        journal(&plugins, "a1", &format!("{BEGIN}}}}}"));
        fs::create_dir_all(plugins.join("sandboxes/without")).unwrap();
        fs::write(plugins.join("sandboxes/file"), "").unwrap();
        assert_eq!(NativeSandboxes::below([plugins.as_path()]).text(), None);
        let unknown = state("unknown");
        journal(&unknown, "b1", "nonsense");
        let found = NativeSandboxes::below([unknown.as_path()]);
        let text = found.text().unwrap();
        assert!(text.contains("b1/cni.json"), "{text}");
        let one = state("one");
        journal(&one, "c1", &native);
        let found = NativeSandboxes::below([unknown.as_path(), one.as_path()]);
        assert_eq!(found.text().as_deref(), Some("sandbox c1"));
        let two = state("two");
        journal(&two, "d1", &native);
        let found = NativeSandboxes::below([plugins.as_path(), two.as_path(), one.as_path()]);
        assert_eq!(found.text().as_deref(), Some("2 sandboxes, as c1"));
        assert!(found.unknown.is_empty(), "{found:?}");
    }
}
