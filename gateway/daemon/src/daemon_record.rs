//! The record of the daemon: where it and its logkeeper serve, in a file at a fixed place. A process reads it that
//! must find them although the configuration is invalid, or is not the one that the daemon was started with.
//!
//! A daemon that a unit has started writes it into the runtime directory of the unit, which is the logkeeper's too,
//! before it contacts the logkeeper. The file stays when the daemon ends, until the next boot.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use switchyard_config::Config;
use switchyard_linux::files::if_present;
use switchyard_linux::process::ProcessId;

use crate::run_file::RunFile;
use crate::service_manager;

/// The name of the file.
const FILE: &str = "daemon.json";

/// The version of its format.
const VERSION: u32 = 1;

/// The largest file, in bytes.
const MAX: u64 = 64 << 10;

/// The record that a daemon writes at its start. Fields that a later version adds are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonRecord {
    version: u32,
    /// Its process id and start time.
    process: String,
    /// Its admin socket.
    pub admin_socket: PathBuf,
    /// Its logkeeper.
    pub logkeeper: RecordedLogkeeper,
}

/// The logkeeper of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedLogkeeper {
    /// Its socket.
    pub socket: PathBuf,
    /// Its spool directory.
    pub state_dir: PathBuf,
    /// True if it confines itself.
    pub sandbox: bool,
}

/// The record of this process, and where it is written.
#[derive(Debug, Clone)]
pub struct PublishedRecord {
    /// The runtime directory; `None` if no unit has started this process.
    dir: Option<PathBuf>,
    record: DaemonRecord,
}

// === impl DaemonRecord ===

impl DaemonRecord {
    /// The record of this process with this configuration.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let own = i32::try_from(std::process::id())
            .ok()
            .and_then(ProcessId::of);
        Self {
            version: VERSION,
            process: own.map(|own| own.to_string()).unwrap_or_default(),
            admin_socket: config.paths.admin_socket(),
            logkeeper: RecordedLogkeeper {
                socket: config.logkeeper_socket(),
                state_dir: config.logkeeper_state(),
                sandbox: config.logkeeper.sandbox,
            },
        }
    }

    /// Returns whether the daemon that wrote it runs.
    #[must_use]
    pub fn is_of_running(&self) -> bool {
        self.process
            .parse::<ProcessId>()
            .is_ok_and(|process| process.is_alive())
    }

    /// Reads the record in a directory; `None` if there is none. Blocks.
    ///
    /// # Errors
    /// Those of the file, and `InvalidData` if it is no record of this version.
    pub fn read(dir: &Path) -> io::Result<Option<Self>> {
        let Some(file) = if_present(File::open(dir.join(FILE)))? else {
            return Ok(None);
        };
        let mut text = Vec::new();
        file.take(MAX).read_to_end(&mut text)?;
        decode(&text).map(Some)
    }

    /// The file of the record in a directory.
    ///
    /// # Errors
    /// `InvalidData` if a path is no text.
    fn file(&self, dir: &Path) -> io::Result<RunFile> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        let without = "a logkeeper that has to start again needs a valid configuration";
        Ok(RunFile::new(dir.join(FILE), text, without))
    }
}

fn decode(text: &[u8]) -> io::Result<DaemonRecord> {
    let record: DaemonRecord = serde_json::from_slice(text)?;
    if record.version == VERSION {
        Ok(record)
    } else {
        let why = format!("version {} is not {VERSION}", record.version);
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

// === impl PublishedRecord ===

impl PublishedRecord {
    /// The record of this process, to be written.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            dir: service_manager::runtime_dir(),
            record: DaemonRecord::of(config),
        }
    }

    /// The file of the record; `None` if no unit has started this process, or if a path is no text, which is logged.
    pub(crate) fn file(&self) -> Option<RunFile> {
        let file = self.record.file(self.dir.as_deref()?);
        file.inspect_err(|error| {
            tracing::warn!(%error, "cannot write down where this daemon and its logkeeper serve");
        })
        .ok()
    }

    /// Returns whether a process of the unit that starts now finds it. Blocks.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.dir.as_deref().is_some_and(
            |dir| matches!(DaemonRecord::read(dir), Ok(Some(found)) if found == self.record),
        )
    }

    /// A record that is written in a directory.
    #[cfg(test)]
    pub(crate) fn at(dir: Option<&Path>, config: &Config) -> Self {
        let record = DaemonRecord::of(config);
        if let Some(dir) = dir {
            record.file(dir).unwrap().write().unwrap();
        }
        Self {
            dir: dir.map(Path::to_owned),
            record,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let mut config = Config::default();
        config.paths.run = "/run/other".into();
        config
    }

    #[test]
    fn record_of_the_first_version_is_read_and_written_as_it_is() {
        let golden = include_str!("golden/daemon-1.json");
        let record = decode(golden.as_bytes()).unwrap();
        let own = DaemonRecord::of(&config());
        assert_eq!(
            record,
            DaemonRecord {
                process: "1 0".into(),
                ..own
            }
        );
        let dir = tempfile::tempdir().unwrap();
        record.file(dir.path()).unwrap().write().unwrap();
        let written = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(written, golden);
    }

    #[test]
    fn unknown_fields_are_ignored_and_other_versions_refused() {
        let golden = include_str!("golden/daemon-1.json");
        let longer = golden.replacen('{', "{ \"later\": [1], ", 1);
        assert_eq!(
            decode(longer.as_bytes()).unwrap(),
            decode(golden.as_bytes()).unwrap()
        );
        let later = golden.replace("\"version\": 1", "\"version\": 2");
        for refused in [later.as_str(), "", "{}", "[]"] {
            assert!(decode(refused.as_bytes()).is_err(), "{refused}");
        }
    }

    #[test]
    fn record_tells_whether_its_daemon_runs() {
        let own = DaemonRecord::of(&config());
        assert!(own.is_of_running());
        // The first id is larger than those of the kernel.
        for process in ["4194305 1", "", "x"] {
            let ended = DaemonRecord {
                process: process.into(),
                ..own.clone()
            };
            assert!(!ended.is_of_running(), "{process}");
        }
    }

    #[test]
    fn record_is_in_place_until_another_one_is() {
        let dir = tempfile::tempdir().unwrap();
        assert!(DaemonRecord::read(dir.path()).unwrap().is_none());
        let published = PublishedRecord::at(Some(dir.path()), &config());
        assert!(published.is_in_place());
        PublishedRecord::at(Some(dir.path()), &Config::default());
        assert!(!published.is_in_place());
        std::fs::write(dir.path().join(FILE), "torn").unwrap();
        assert!(!published.is_in_place());
        assert!(!PublishedRecord::at(None, &config()).is_in_place());
    }
}
