//! A file per attachment, written before plugins run, from which the attachment can be undone after a crash at any line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use switchyard_steps::{Step, reach};
use tokio::task::spawn_blocking;

use crate::attachment::{Attachment, Capabilities};
use crate::conf::NetworkList;
use crate::error::Error;
use crate::network::Network;
use crate::plugin::Plugins;
use crate::result::CniResult;

/// The form of the file that this program writes and reads.
const VERSION: u32 = 1;

/// How far an attachment had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// ADD may have been run, in part or in full; the result is not known.
    Adding,
    /// ADD succeeded; the result is known.
    Added,
}

/// The content of a journal file. It does not depend on the configuration directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    version: u32,
    phase: Phase,
    network: Value,
    attachment: SavedAttachment,
    result: Option<Value>,
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

/// Whether the name of the file has to be on disk as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durability {
    /// A new file: after a power cut it has to be there, because addresses stay reserved on disk.
    Name,
    /// A newer content of a durable file: the old one would do, so the directory need not be synced.
    Content,
}

impl Saved {
    fn new(list: &NetworkList, attachment: &Attachment) -> Self {
        Self {
            version: VERSION,
            phase: Phase::Adding,
            network: list.to_document(),
            attachment: SavedAttachment {
                container_id: attachment.container_id.clone(),
                netns: attachment.netns.clone(),
                ifname: attachment.ifname.clone(),
                args: attachment.args.clone(),
                capabilities: attachment.capabilities.to_map(),
            },
            result: None,
        }
    }

    /// Reads a journal file; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Journal`], [`Error::JournalContent`].
    pub fn read(path: &Path) -> Result<Option<Self>, Error> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Journal { doing: "read", path: path.to_owned(), source }),
        };
        let damaged = |source| Error::JournalContent { path: path.to_owned(), source };
        let saved: Self = serde_json::from_slice(&bytes).map_err(damaged)?;
        if saved.version == VERSION {
            Ok(Some(saved))
        } else {
            let text = format!("version {} is not {VERSION}", saved.version);
            Err(damaged(serde::de::Error::custom(text)))
        }
    }

    /// How far the attachment had come.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The attachment, with its capability arguments as they were passed on.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        let saved = self.attachment.clone();
        Attachment {
            container_id: saved.container_id,
            netns: saved.netns,
            ifname: saved.ifname,
            args: saved.args,
            capabilities: Capabilities { extra: saved.capabilities, ..Capabilities::default() },
        }
    }

    /// The network as it was configured then. `path` is where this was read from, for error messages.
    ///
    /// # Errors
    /// [`Error::Conf`].
    pub fn list(&self, path: &Path) -> Result<NetworkList, Error> {
        NetworkList::parse(path, self.network.to_string().as_bytes())
    }

    /// The result of ADD, if it is known. `path` is where this was read from, for error messages.
    ///
    /// # Errors
    /// [`Error::Conf`], [`Error::Result`].
    pub fn result(&self, path: &Path) -> Result<Option<CniResult>, Error> {
        let Some(raw) = &self.result else { return Ok(None) };
        CniResult::from_value(raw.clone(), self.list(path)?.cni_version)
            .map(Some)
            .map_err(|source| Error::Result { plugin: path.display().to_string(), source })
    }
}

impl Network {
    /// [`Network::add`], with a journal file at `path` (in a directory that exists) that is on disk before the first
    /// plugin runs, and has the result before this returns.
    ///
    /// After a failure the file is gone if nothing is left of the attachment, else it stays for [`del_saved`].
    /// Cancel-safety: none, as for `add`; but whenever it is cut short, [`del_saved`] undoes what it did.
    ///
    /// # Errors
    /// [`Error::JournalExists`] if an earlier attachment was not undone; [`Error::Journal`]; those of `add`.
    pub async fn add_saved(&self, path: &Path, attachment: &Attachment) -> Result<CniResult, Error> {
        let saved = Saved::new(self.list(), attachment);
        write(path, saved.clone(), Durability::Name).await?;
        reach(Step::JournalWritten);
        let error = match self.add(attachment).await {
            Ok(result) => {
                let added = Saved { phase: Phase::Added, result: Some(result.raw.clone()), ..saved };
                match write(path, added, Durability::Content).await {
                    Ok(()) => {
                        reach(Step::ResultSaved);
                        return Ok(result);
                    }
                    Err(error) => self.undo(attachment, Some(&result), error).await,
                }
            }
            Err(error) => error,
        };
        if !error.left_something()
            && let Err(error) = remove(path).await
        {
            // The file then leads to one DEL more than needed, which does no harm.
            tracing::warn!(%error, "cannot remove the journal of a network attachment that was undone");
        }
        Err(error)
    }
}

/// Detaches what the journal file at `path` says, and removes the file once that succeeded.
///
/// Idempotent: without a file there is nothing to do. It needs neither the configuration directory nor the daemon's
/// memory. `netns` is the namespace if it still exists, `None` if it is gone. Cancel-safety: call it again.
///
/// # Errors
/// [`Error::Journal`], [`Error::JournalContent`], [`Error::Conf`], [`Error::Result`], or those of [`Network::del`]; the
/// file stays then.
pub async fn del_saved(path: &Path, plugins: &Plugins, netns: Option<&Path>) -> Result<(), Error> {
    let file = path.to_owned();
    let Some(saved) = blocking("read", path, move || Ok(Saved::read(&file))).await?? else {
        return remove(path).await;
    };
    let network = Network::new(Arc::new(saved.list(path)?), plugins.clone());
    let attachment = Attachment { netns: netns.map(Path::to_owned), ..saved.attachment() };
    network.del(&attachment, saved.result(path)?.as_ref()).await?;
    remove(path).await?;
    reach(Step::JournalRemoved);
    Ok(())
}

async fn blocking<T: Send + 'static>(
    doing: &'static str,
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    spawn_blocking(work)
        .await
        .unwrap_or_else(|lost| Err(io::Error::other(lost)))
        .map_err(|source| Error::Journal { doing, path: path.to_owned(), source })
}

/// Writes the file whole or not at all.
async fn write(path: &Path, saved: Saved, durability: Durability) -> Result<(), Error> {
    let bytes = serde_json::to_vec(&saved)
        .map_err(|source| Error::JournalContent { path: path.to_owned(), source })?;
    let target = path.to_owned();
    let written = blocking("write", path, move || write_now(&target, &bytes, durability)).await;
    match written {
        Err(Error::Journal { source, path, .. }) if source.kind() == ErrorKind::AlreadyExists => {
            Err(Error::JournalExists { path })
        }
        other => other,
    }
}

fn write_now(path: &Path, bytes: &[u8], durability: Durability) -> io::Result<()> {
    if durability == Durability::Name && path.try_exists()? {
        return Err(ErrorKind::AlreadyExists.into());
    }
    let temporary = temporary(path);
    // A leftover of a crash is overwritten: the name is this attachment's alone.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    reach(Step::JournalDrafted);
    fs::rename(&temporary, path)?;
    match durability {
        Durability::Name => File::open(parent(path))?.sync_all(),
        Durability::Content => Ok(()),
    }
}

/// Removes the file and a leftover of a crash. Idempotent.
async fn remove(path: &Path) -> Result<(), Error> {
    let target = path.to_owned();
    blocking("remove", path, move || {
        for file in [temporary(&target), target] {
            match fs::remove_file(file) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    })
    .await
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests;
