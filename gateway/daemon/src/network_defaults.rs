//! Settles which defaults the networks of this node have, before anything else of a daemon is in its state directory (ADR 117).

use std::io;
use std::path::{Path, PathBuf};

use switchyard_config::{self as config, Effective, FoundDefaults, NetworkDefaults, SettleError};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{self, Durable};
use switchyard_linux::report;

/// Reason why a daemon does not start without knowing them.
#[derive(Debug, thiserror::Error)]
pub enum NetworkDefaultsError {
    /// They are not known, or the configuration is invalid with them.
    #[error(transparent)]
    Settle(#[from] SettleError),
    /// They cannot be written down, and the next start would decide otherwise.
    #[error(
        "cannot write {}, which is to say that this node began with a version whose bridges are made without plugins and kept apart: make the directory writable, or set network.bridge.driver, network.isolation and network.direct_routing, and try again",
        path.display()
    )]
    Write {
        /// The record.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Sets the keys that no source sets to what they are on this node. The first start writes down what it decides. The caller holds the
/// lock of the state directory. Blocks.
///
/// A kill before the record is written leaves nothing by which the next start would decide otherwise, since it comes before all other files.
///
/// # Errors
/// [`NetworkDefaultsError`]; the record is as it was then.
pub(crate) fn settle(effective: &mut Effective) -> Result<(), NetworkDefaultsError> {
    let state = effective.config.paths.state.clone();
    let needs = effective.config.network.depends_on_defaults();
    let found = config::find_network_defaults(&state);
    match &found {
        Ok(FoundDefaults::Recorded(_)) => {}
        Ok(FoundDefaults::Undecided(defaults)) => record(&state, *defaults, needs)?,
        Err(error) if !needs => {
            tracing::warn!(
                error = report(error),
                "the configuration sets all that depends on the defaults of this node's networks, which are not known"
            );
        }
        // The start ends with it.
        Err(_) => {}
    }
    Ok(effective.settle_as(found)?)
}

/// Writes down what was decided. Where that is not possible, a start goes on if the next one decides the same, or if nothing depends on it.
fn record(
    state: &Path,
    defaults: NetworkDefaults,
    needs: bool,
) -> Result<(), NetworkDefaultsError> {
    let path = config::network_defaults_file(state);
    let driver = defaults.driver().name();
    match (write(&path, defaults), defaults) {
        (Ok(()), _) => {
            tracing::info!(file = %path.display(), driver, "this node has these defaults of network.bridge.driver, network.isolation and network.direct_routing from now on");
        }
        (Err(source), NetworkDefaults::Native) if needs => {
            return Err(NetworkDefaultsError::Write { path, source });
        }
        (Err(error), _) => {
            tracing::warn!(file = %path.display(), driver, %error, "cannot write down which defaults the networks of this node have: the next start tries it again");
        }
    }
    Ok(())
}

fn write(path: &Path, defaults: NetworkDefaults) -> io::Result<()> {
    let text = config::encode_network_defaults(defaults);
    files::replace(path, text.as_bytes(), 0o600, Durable::Yes, || {
        reach(CrashPoint::DefaultsDrafted)
    })?;
    reach(CrashPoint::DefaultsRecorded);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use switchyard_config::{Sources, load};

    use super::*;

    /// The configuration in a daemon with this state directory.
    fn settled(state: &Path, keys: &str) -> Result<Effective, NetworkDefaultsError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        fs::write(
            &file,
            format!("version = 1\n[paths]\nstate = {state:?}\n{keys}"),
        )
        .unwrap();
        let sources = Sources {
            file: Some(file),
            ..Sources::default()
        };
        let mut effective = load(&sources).unwrap().effective;
        settle(&mut effective)?;
        Ok(effective)
    }

    fn is_native(state: &Path) -> bool {
        let effective = settled(state, "").unwrap();
        effective.config.network.bridge.is_native()
    }

    fn recorded(state: &Path) -> String {
        fs::read_to_string(config::network_defaults_file(state)).unwrap()
    }

    const KEPT: &str = "[network.bridge]\ndriver = \"cni\"\n";

    #[test]
    fn first_start_decides_and_later_ones_read_it_whatever_they_find() {
        let new = tempfile::tempdir().unwrap();
        let former = tempfile::tempdir().unwrap();
        fs::create_dir(former.path().join("sandboxes")).unwrap();
        for (dir, native) in [(&new, true), (&former, false)] {
            assert_eq!(is_native(dir.path()), native);
            let record = recorded(dir.path());
            // Its own objects come, and those of the former version go.
            let _ = fs::remove_dir(dir.path().join("sandboxes"));
            assert_eq!(is_native(dir.path()), native);
            fs::write(dir.path().join("instance"), "a").unwrap();
            assert_eq!(is_native(dir.path()), native);
            assert_eq!(recorded(dir.path()), record);
        }
    }

    #[test]
    fn keys_that_are_set_win_and_change_no_record() {
        let dir = tempfile::tempdir().unwrap();
        let effective = settled(dir.path(), KEPT).unwrap();
        assert!(!effective.config.network.bridge.is_native());
        // The decision is of the node, not of its configuration.
        assert!(is_native(dir.path()));
        let record = recorded(dir.path());
        let effective = settled(dir.path(), KEPT).unwrap();
        assert!(!effective.config.network.bridge.is_native());
        assert_eq!(recorded(dir.path()), record);
    }

    #[test]
    fn draft_of_a_killed_start_is_no_decision() {
        let dir = tempfile::tempdir().unwrap();
        let draft = files::draft_of(&config::network_defaults_file(dir.path()));
        fs::write(&draft, "version = 1\ndriver = \"c").unwrap();
        assert!(is_native(dir.path()));
        assert!(!draft.exists());
    }

    #[test]
    fn damaged_record_is_kept_and_ends_a_start_that_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = config::network_defaults_file(dir.path());
        for damaged in ["", "version = 2\n", "version = 1\ndriver = \"x\"\n"] {
            fs::write(&file, damaged).unwrap();
            let error = settled(dir.path(), "").unwrap_err();
            assert!(report(&error).contains("network-defaults.toml"), "{error}");
            assert!(settled(dir.path(), KEPT).is_ok());
            assert_eq!(recorded(dir.path()), damaged);
        }
    }

    /// A directory in the place of the draft: root may write anywhere else.
    #[test]
    fn start_that_cannot_write_goes_on_where_the_next_one_decides_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let draft = files::draft_of(&config::network_defaults_file(dir.path()));
        fs::create_dir(&draft).unwrap();
        let error = settled(dir.path(), "").unwrap_err();
        assert!(
            matches!(error, NetworkDefaultsError::Write { .. }),
            "{error}"
        );
        assert!(settled(dir.path(), KEPT).is_ok());
        fs::create_dir(dir.path().join("sandboxes")).unwrap();
        assert!(!is_native(dir.path()));
        fs::remove_dir(&draft).unwrap();
        assert!(!is_native(dir.path()));
        assert!(recorded(dir.path()).contains("cni"));
    }
}
