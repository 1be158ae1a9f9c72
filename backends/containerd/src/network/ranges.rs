//! The address ranges that owners set for their sandboxes, stored in one file, which outlives a reboot.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use switchyard_core::Result;
use switchyard_core::id::Owner;
use switchyard_core::spec::Subnet;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{draft_of, if_present};
use tokio::sync::Semaphore;

use crate::base::fs::{blocking, write_durable};

/// The contents of the file: a list of ranges for each owner that has set any. A value of another form is of a later
/// version.
type RangesFile = BTreeMap<String, Value>;

/// The ranges of all owners.
#[derive(Debug)]
pub(crate) struct Ranges {
    path: PathBuf,
    by_owner: Mutex<BTreeMap<Owner, Vec<Subnet>>>,
    /// The entries that this version does not understand; written again as they are.
    unknown: RangesFile,
    /// One permit: writers take it in the order of their calls. Readers do not take it.
    writing: Arc<Semaphore>,
}

// === impl Ranges ===

impl Ranges {
    /// Loads the file. One that cannot be read or parsed is logged and counts as empty: the owners set their
    /// ranges again.
    pub(crate) fn load(path: PathBuf) -> Self {
        clear_draft(&path);
        let file = match if_present(std::fs::read(&path)) {
            Ok(None) => RangesFile::new(),
            Err(fault) => {
                tracing::error!(path = %path.display(), error = %fault, "the file of address ranges cannot be read");
                RangesFile::new()
            }
            Ok(Some(text)) => serde_json::from_slice(&text).unwrap_or_else(|fault| {
                tracing::error!(path = %path.display(), error = %fault, "the file of address ranges cannot be parsed");
                RangesFile::new()
            }),
        };
        let ParsedRanges { named, unknown } = parse(file);
        if !unknown.is_empty() {
            let owners: Vec<_> = unknown.keys().collect();
            tracing::warn!(path = %path.display(), ?owners, "the file of address ranges has entries that are not understood: they stay in it");
        }
        Self {
            path,
            by_owner: Mutex::new(named),
            unknown,
            writing: Arc::new(Semaphore::new(1)),
        }
    }

    /// The ranges of one owner; empty if it has set none.
    pub(crate) fn of(&self, owner: Owner) -> Vec<Subnet> {
        self.lock().get(&owner).cloned().unwrap_or_default()
    }

    /// The ranges of all owners, for the status; `None` if there are none.
    pub(crate) fn summary(&self) -> Option<String> {
        let named = self.lock();
        let lines = named
            .iter()
            .map(|(owner, ranges)| format!("{owner}: {}", texts(ranges).join(", ")));
        (!named.is_empty()).then(|| lines.collect::<Vec<_>>().join("; "))
    }

    /// Replaces the ranges of an owner, on disk before in memory. Of two calls at once the later one has the last
    /// word. Idempotent. Cancel-safe: the ranges are replaced or not; a later call waits until that is settled.
    pub(crate) async fn set(self: &Arc<Self>, owner: Owner, ranges: Vec<Subnet>) -> Result<()> {
        // The semaphore is never closed.
        let turn = Arc::clone(&self.writing).acquire_owned().await.ok();
        // Compared in its turn: a write that is on its way would replace ranges that are in force now.
        if self.of(owner) == ranges {
            return Ok(());
        }
        let ranges_of_all = Arc::clone(self);
        blocking(move || {
            let _until_it_ends = turn;
            ranges_of_all.set_blocking(owner, ranges)
        })
        .await
    }

    fn set_blocking(&self, owner: Owner, ranges: Vec<Subnet>) -> Result<()> {
        let mut named = self.lock().clone();
        named.insert(owner, ranges);
        let mut file = self.unknown.clone();
        file.extend(
            named
                .iter()
                .map(|(owner, ranges)| (owner.as_str().to_owned(), texts(ranges).into())),
        );
        let text = serde_json::to_vec(&file).expect("words and lists of words are JSON");
        write_durable(&self.path, &text, 0o600)?;
        reach(CrashPoint::RangesKept);
        *self.lock() = named;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Owner, Vec<Subnet>>> {
        self.by_owner.lock()
    }
}

/// Removes the temporary file of a predecessor that was killed while it wrote.
fn clear_draft(path: &Path) {
    let draft = draft_of(path);
    match std::fs::remove_file(&draft) {
        // A read-only file system refuses also what is not there.
        Err(fault) if !matches!(draft.try_exists(), Ok(false)) => {
            tracing::warn!(path = %draft.display(), error = %fault, "a temporary file cannot be removed: it stays until ranges are set");
        }
        Ok(()) | Err(_) => {}
    }
}

fn texts(ranges: &[Subnet]) -> Vec<String> {
    ranges.iter().map(ToString::to_string).collect()
}

/// The entries of the file.
#[derive(Debug, Default, PartialEq)]
struct ParsedRanges {
    named: BTreeMap<Owner, Vec<Subnet>>,
    /// Those that this version does not understand.
    unknown: RangesFile,
}

fn parse(file: RangesFile) -> ParsedRanges {
    let ranges = |value: &Value| -> Option<Vec<Subnet>> {
        let texts = value.as_array()?.iter();
        texts.map(|text| text.as_str()?.parse().ok()).collect()
    };
    let mut parsed = ParsedRanges::default();
    for (owner, value) in file {
        match Owner::parse(&owner).zip(ranges(&value)) {
            Some((owner, ranges)) => {
                parsed.named.insert(owner, ranges);
            }
            None => {
                parsed.unknown.insert(owner, value);
            }
        }
    }
    parsed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_an_owner_named_last_is_there_after_a_restart() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("ranges");
        let subnets = |texts: &[&str]| -> Vec<Subnet> {
            texts
                .iter()
                .map(|text| text.parse().expect("it is a range"))
                .collect()
        };
        let ranges = Arc::new(Ranges::load(path.clone()));
        assert_eq!(
            (ranges.of(Owner::Kubernetes), ranges.summary()),
            (Vec::new(), None)
        );
        for texts in [&["10.1.0.0/24"][..], &["10.2.0.0/24", "fd00::/64"]] {
            ranges
                .set(Owner::Kubernetes, subnets(texts))
                .await
                .expect("the file can be written");
        }
        ranges
            .set(Owner::Nomad, subnets(&["10.3.0.0/16"]))
            .await
            .expect("the file can be written");
        let again = Ranges::load(path.clone());
        assert_eq!(
            again.of(Owner::Kubernetes),
            subnets(&["10.2.0.0/24", "fd00::/64"])
        );
        assert_eq!(again.of(Owner::Swarm), []);
        let told = "kubernetes: 10.2.0.0/24, fd00::/64; nomad: 10.3.0.0/16";
        assert_eq!(again.summary().as_deref(), Some(told));
        std::fs::write(&path, "{").expect("the file can be written");
        assert_eq!(Ranges::load(path).summary(), None);
    }

    #[tokio::test]
    async fn file_of_the_first_version_is_read_and_written() {
        let golden = include_str!("golden/ranges.json").trim_end();
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("ranges");
        std::fs::write(&path, golden).expect("the file can be written");
        let ranges = Arc::new(Ranges::load(path.clone()));
        let told = "kubernetes: 10.2.0.0/24, fd00::/64; nomad: 10.3.0.0/16";
        assert_eq!(ranges.summary().as_deref(), Some(told));
        let of_nomad = ranges.of(Owner::Nomad);
        for set in [Vec::new(), of_nomad] {
            ranges
                .set(Owner::Nomad, set)
                .await
                .expect("the file can be written");
        }
        let written = std::fs::read_to_string(&path).expect("the file can be read");
        assert_eq!(written, golden);
    }

    #[tokio::test]
    async fn entries_of_a_later_version_take_nobody_elses_ranges_and_stay() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("ranges");
        let file = r#"{"kubernetes":["10.1.0.0/24"],"mesos":["10.2.0.0/24"],"nomad":{"v4":"10.3.0.0/24"}}"#;
        std::fs::write(&path, file).expect("the file can be written");
        let ranges = Arc::new(Ranges::load(path.clone()));
        let range = |text: &str| vec![text.parse::<Subnet>().expect("it is a range")];
        assert_eq!(ranges.of(Owner::Kubernetes), range("10.1.0.0/24"));
        assert_eq!(ranges.of(Owner::Nomad), []);
        ranges
            .set(Owner::Kubernetes, range("10.9.0.0/24"))
            .await
            .expect("the file can be written");
        let written = std::fs::read_to_string(&path).expect("the file can be read");
        assert_eq!(written, file.replace("10.1", "10.9"));
    }

    #[tokio::test]
    async fn of_two_calls_at_once_the_later_one_has_the_last_word() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("ranges");
        let ranges = Arc::new(Ranges::load(path.clone()));
        let [one, two] =
            ["10.1.0.0/24", "10.2.0.0/24"].map(|text| vec![text.parse().expect("it is a range")]);
        ranges
            .set(Owner::Kubernetes, one.clone())
            .await
            .expect("the file can be written");
        let turn = Arc::clone(&ranges.writing)
            .acquire_owned()
            .await
            .expect("it is never closed");
        let mut other = Box::pin(ranges.set(Owner::Kubernetes, two));
        let mut back = Box::pin(ranges.set(Owner::Kubernetes, one.clone()));
        assert!(futures::poll!(&mut other).is_pending());
        assert!(
            futures::poll!(&mut back).is_pending(),
            "the ranges in force are about to be replaced"
        );
        drop(turn);
        let (other, back) = tokio::join!(other, back);
        other.and(back).expect("the file can be written");
        assert_eq!(ranges.of(Owner::Kubernetes), one);
        assert_eq!(Ranges::load(path).of(Owner::Kubernetes), one);
    }
}
