//! A file per attachment, written before plugins run, from which the attachment can be undone after a crash
//! at any line.
//!
//! It contains JSON documents: the request, which is synced before the first plugin runs, and the result of
//! each plugin's ADD, appended before the next one runs. DEL is given the last result: some plugins, such as
//! `firewall`, know only from it what to undo, also if ADD was interrupted later in the chain. Results are
//! not synced: after a power cut an attachment can be undone without them. So a truncated result counts as
//! unknown; and if the request itself is truncated or missing, no plugin has run.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{self, if_present};
use switchyard_linux::{self as linux, beginning};

use crate::attachment::{Attachment, Capabilities};
use crate::conf::NetworkList;
use crate::error::Error;
use crate::result::CniResult;

/// The version of the file format. Version 1 is read as well: one document with the request, the result and a word for
/// the phase.
const VERSION: u32 = 2;

/// The key of the saved network by which an attachment names the driver that has made it. Without it plugins have. Versions before it
/// ignore it, as plugins would: they undo the attachment by the plugins of the network.
const DRIVER: &str = "switchyard.driver";
/// The key beside it by which the attachment is one of a container that sends with its own addresses alone. Versions before it ignore it:
/// they undo the attachment all the same.
const PINNED: &str = "switchyard.pinned";
/// The most characters of a driver's name that are shown.
const DRIVER_MAX: usize = 40;

/// Maker of an attachment that is not made by plugins, and the way in which it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver<'a> {
    /// Its name.
    pub name: &'a str,
    /// True if the container sends with its own addresses alone.
    pub is_pinned: bool,
}

/// The contents of a journal file. It does not depend on the configuration directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    intent: Intent,
    result: Option<Value>,
}

/// The request: the network and the attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Intent {
    version: u32,
    network: Value,
    attachment: SavedAttachment,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SavedAttachment {
    container_id: String,
    netns: Option<PathBuf>,
    ifname: String,
    args: Vec<(String, String)>,
    capabilities: Map<String, Value>,
}

impl Intent {
    /// The request of an attachment by plugins, or by a driver.
    fn new(list: &NetworkList, attachment: &Attachment, driver: Option<Driver<'_>>) -> Self {
        let mut network = list.to_document();
        if let Some(Driver { name, is_pinned }) = driver {
            network[DRIVER] = name.into();
            if is_pinned {
                network[PINNED] = true.into();
            }
        }
        Self {
            version: VERSION,
            network,
            attachment: SavedAttachment {
                container_id: attachment.container_id.clone(),
                netns: attachment.netns.clone(),
                ifname: attachment.ifname.clone(),
                args: attachment.args.clone(),
                capabilities: attachment.capabilities.to_map(),
            },
        }
    }
}

impl Saved {
    /// Reads a journal file; `None` if there is none, or no plugin has run for it.
    ///
    /// # Errors
    /// [`Error::Journal`], [`Error::JournalDamaged`], [`Error::JournalContent`].
    pub fn read(path: &Path) -> Result<Option<Self>, Error> {
        let bytes = if_present(fs::read(path)).map_err(|source| Error::Journal {
            doing: "read",
            path: path.to_owned(),
            source,
        })?;
        bytes.map_or(Ok(None), |bytes| Self::parse(path, &bytes))
    }

    /// Reads the contents of a journal file; `None` if no plugin has run for it. `path` is for error
    /// messages.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Option<Self>, Error> {
        let damaged = |source| Error::JournalDamaged {
            path: path.to_owned(),
            source,
        };
        let mut documents = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
        let Some(intent) = request_of(&mut documents).map_err(damaged)? else {
            return Ok(None);
        };
        if intent.get("version").is_some_and(|version| *version == 1) {
            return Self::of_version_1(intent).map(Some).map_err(damaged);
        }
        // Each version writes its number there.
        if let Some(version) = intent.get("version").filter(|version| **version != VERSION) {
            let source = serde::de::Error::custom(format!("version {version} is not {VERSION}"));
            return Err(Error::JournalContent {
                path: path.to_owned(),
                source,
            });
        }
        let intent = Intent::deserialize(intent).map_err(damaged)?;
        // The last one may be truncated; the iterator ends at the first failure.
        Ok(Some(Self {
            intent,
            result: documents.map_while(Result::ok).last(),
        }))
    }

    fn of_version_1(mut document: Value) -> serde_json::Result<Self> {
        let mut result = None;
        if let Some(fields) = document.as_object_mut() {
            result = fields.remove("result").filter(|result| !result.is_null());
            // The result says as much.
            fields.remove("phase");
            fields.insert("version".to_owned(), VERSION.into());
        }
        let intent = Intent::deserialize(document)?;
        Ok(Self { intent, result })
    }

    /// The attachment, with its capability arguments as they were passed to plugins.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        let saved = self.intent.attachment.clone();
        Attachment {
            container_id: saved.container_id,
            netns: saved.netns,
            ifname: saved.ifname,
            args: saved.args,
            capabilities: Capabilities {
                extra: saved.capabilities,
                ..Capabilities::default()
            },
        }
    }

    /// The name of the driver that has made the attachment, or was about to; `None` for plugins. One that is no text has the name "",
    /// which no driver has.
    #[must_use]
    pub fn driver(&self) -> Option<&str> {
        driver_of(&self.intent.network)
    }

    /// Returns whether the container sends with its own addresses alone. It does not if nothing is said of it, as by versions before it; a
    /// word that is not understood says that it does.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        let said = self.intent.network.get(PINNED);
        said.is_some_and(|said| *said != Value::Bool(false))
    }

    /// Checks that plugins have made the attachment. `path` is the journal file, for error messages.
    ///
    /// # Errors
    /// [`Error::JournalDriver`].
    pub fn check_made_by_plugins(&self, path: &Path) -> Result<(), Error> {
        self.driver().map_or(Ok(()), |driver| {
            Err(Error::JournalDriver {
                path: path.to_owned(),
                driver: driver.to_owned(),
            })
        })
    }

    /// The network as it was configured at the time of the attachment. `path` is the journal file, for error
    /// messages.
    ///
    /// # Errors
    /// [`Error::Conf`].
    pub fn list(&self, path: &Path) -> Result<NetworkList, Error> {
        NetworkList::parse(path, self.intent.network.to_string().as_bytes())
    }

    /// The network and the attachment, checked as for plugins. `path` is the journal file, for error messages.
    ///
    /// # Errors
    /// [`Error::JournalDamaged`] if one of them cannot be passed to plugins.
    pub(crate) fn checked(&self, path: &Path) -> Result<(NetworkList, Attachment), Error> {
        let checked = || {
            let attachment = self.attachment();
            attachment.check()?;
            Ok((self.list(path)?, attachment))
        };
        checked().map_err(|error: Error| Error::JournalDamaged {
            path: path.to_owned(),
            source: serde::de::Error::custom(error.report()),
        })
    }

    /// The result of the last plugin whose ADD has finished, if it is known; that is the result of the whole
    /// chain if it was completed. `path` is the journal file, for error messages.
    ///
    /// # Errors
    /// [`Error::Conf`], [`Error::Result`].
    pub fn result(&self, path: &Path) -> Result<Option<CniResult>, Error> {
        let Some(raw) = &self.result else {
            return Ok(None);
        };
        CniResult::from_value(raw.clone(), self.list(path)?.cni_version)
            .map(Some)
            .map_err(|source| Error::Result {
                plugin: path.display().to_string(),
                source,
            })
    }
}

/// The name of the driver that has made the attachment of a journal, as [`Saved::driver`] has it, or would have it of another version of the
/// format. `None` also if nothing was made. Pure.
///
/// # Errors
/// The request is no JSON.
pub fn driver_of_journal(journal: &[u8]) -> serde_json::Result<Option<String>> {
    let mut documents = serde_json::Deserializer::from_slice(journal).into_iter::<Value>();
    let request = request_of(&mut documents)?;
    let network = request.as_ref().and_then(|request| request.get("network"));
    Ok(network.and_then(driver_of).map(str::to_owned))
}

/// The request, which is the first document of a journal; `None` if it is missing, or truncated: a kill or a full disk has interrupted the
/// write.
fn request_of(
    documents: &mut impl Iterator<Item = serde_json::Result<Value>>,
) -> serde_json::Result<Option<Value>> {
    match documents.next() {
        None => Ok(None),
        Some(Err(fault)) if fault.is_eof() => Ok(None),
        Some(request) => request.map(Some),
    }
}

/// The driver that a saved network names.
fn driver_of(network: &Value) -> Option<&str> {
    let driver = network.get(DRIVER)?;
    Some(beginning(driver.as_str().unwrap_or_default(), DRIVER_MAX))
}

async fn blocking<T: Send + 'static>(
    doing: &'static str,
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    linux::blocking("a call on a journal", work)
        .await
        .map_err(|source| Error::Journal {
            doing,
            path: path.to_owned(),
            source,
        })
}

fn encode(path: &Path, document: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(document).map_err(|source| Error::JournalContent {
        path: path.to_owned(),
        source,
    })
}

/// Creates the file and syncs it and its directory: addresses stay reserved on disk, so the file must survive
/// a power cut. If interrupted, there is no file, an empty one, or one with the beginning of the request.
fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    reach(CrashPoint::JournalDrafted);
    file.write_all(bytes)?;
    file.sync_all()?;
    // On common file systems the sync of a new file also syncs its directory entry; this sync is then cheap.
    files::sync_dir(files::parent(path))?;
    reach(CrashPoint::JournalWritten);
    Ok(())
}

/// Writes the request to a new file, and syncs it: for plugins, or for a driver.
///
/// # Errors
/// [`Error::JournalExists`], [`Error::Journal`].
pub(crate) async fn write(
    path: &Path,
    list: &NetworkList,
    attachment: &Attachment,
    driver: Option<Driver<'_>>,
) -> Result<(), Error> {
    let bytes = encode(path, &Intent::new(list, attachment, driver))?;
    let target = path.to_owned();
    match blocking("write", path, move || write_durably(&target, &bytes)).await {
        Err(Error::Journal { source, path, .. }) if source.kind() == ErrorKind::AlreadyExists => {
            Err(Error::JournalExists { path })
        }
        other => other,
    }
}

/// As [`Saved::read`], without blocking.
///
/// # Errors
/// Those of [`Saved::read`].
pub(crate) async fn read(path: &Path) -> Result<Option<Saved>, Error> {
    let file = path.to_owned();
    blocking("read", path, move || Ok(Saved::read(&file))).await?
}

/// Appends a plugin's result, in one write.
pub(crate) async fn append(path: &Path, result: &Value) -> Result<(), Error> {
    let bytes = encode(path, result)?;
    let target = path.to_owned();
    blocking("write", path, move || {
        OpenOptions::new()
            .append(true)
            .open(target)?
            .write_all(&bytes)
    })
    .await?;
    reach(CrashPoint::ResultSaved);
    Ok(())
}

/// Removes the file. Idempotent.
pub(crate) async fn remove(path: &Path) -> Result<(), Error> {
    let target = path.to_owned();
    blocking("remove", path, move || {
        if if_present(fs::remove_file(target))?.is_some() {
            reach(CrashPoint::JournalRemoved);
        }
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests;
