//! A file per attachment, written before plugins run, from which the attachment can be undone after a crash at any line.
//!
//! It holds JSON documents: what is asked for, on disk before the first plugin runs, and the result of each plugin's ADD, appended before
//! the next one runs. The last of these is what DEL is given: some plugins, as `firewall`, know by it alone what to undo, also where ADD
//! was cut off later in the chain. It need not be on disk: an attachment that a power cut has ended can be undone without. So a result
//! that is cut short is one that is not known; and where what is asked for is cut short itself, or is not there, no plugin has run.

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
use crate::host_local;
use crate::network::Network;
use crate::plugin::Plugins;
use crate::result::CniResult;

/// The form of the file that this program writes and reads.
const VERSION: u32 = 2;

/// The content of a journal file. It does not depend on the configuration directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    intent: Intent,
    result: Option<Value>,
}

/// What is asked for.
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
    fn new(list: &NetworkList, attachment: &Attachment) -> Self {
        Self {
            version: VERSION,
            network: list.to_document(),
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
    /// Reads a journal file; `None` if there is none, or none that a plugin has run for.
    ///
    /// # Errors
    /// [`Error::Journal`], [`Error::JournalContent`].
    pub fn read(path: &Path) -> Result<Option<Self>, Error> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Journal { doing: "read", path: path.to_owned(), source }),
        };
        Self::parse(path, &bytes)
    }

    /// Reads the content of a journal file; `None` if no plugin has run for it. `path` is for error messages.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Option<Self>, Error> {
        let damaged = |source| Error::JournalContent { path: path.to_owned(), source };
        let mut documents = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
        let intent = match documents.next() {
            None => return Ok(None),
            // A kill or a full disk has cut the writing short.
            Some(Err(fault)) if fault.is_eof() => return Ok(None),
            Some(intent) => intent,
        };
        let intent: Intent = intent.and_then(Intent::deserialize).map_err(damaged)?;
        if intent.version != VERSION {
            let text = format!("version {} is not {VERSION}", intent.version);
            return Err(damaged(serde::de::Error::custom(text)));
        }
        // The last may be cut short; after a failure the iterator ends.
        Ok(Some(Self { intent, result: documents.map_while(Result::ok).last() }))
    }

    /// The attachment, with its capability arguments as they were passed on.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        let saved = self.intent.attachment.clone();
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
        NetworkList::parse(path, self.intent.network.to_string().as_bytes())
    }

    /// The result of the last plugin whose ADD has ended, if it is known: that of the whole, where the chain was run to its end. `path` is
    /// where this was read from, for error messages.
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
    /// Puts on disk, at `path` in a directory that exists, what is to be attached: [`Network::add_saved`] does it. It may be called
    /// before there is a namespace to attach.
    ///
    /// Cancel-safety: none; call [`del_saved`], which removes the file.
    ///
    /// # Errors
    /// [`Error::JournalExists`] if an earlier attachment was not undone; [`Error::Journal`].
    pub async fn save(&self, path: &Path, attachment: &Attachment) -> Result<(), Error> {
        let bytes = encode(path, &Intent::new(self.list(), attachment))?;
        let target = path.to_owned();
        match blocking("write", path, move || write_durably(&target, &bytes)).await {
            Err(Error::Journal { source, path, .. }) if source.kind() == ErrorKind::AlreadyExists => {
                Err(Error::JournalExists { path })
            }
            other => other,
        }
    }

    /// [`Network::add`], of what [`Network::save`] has put on disk at `path`. The file has the result of each plugin before the next runs,
    /// and before this returns.
    ///
    /// After a failure the file is gone if nothing is left of the attachment, else it stays for [`del_saved`].
    /// Cancel-safety: none, as for `add`; but whenever it is cut short, [`del_saved`] undoes what it did.
    ///
    /// # Errors
    /// [`Error::Journal`]; those of `add`.
    pub async fn add_saved(&self, path: &Path, attachment: &Attachment) -> Result<CniResult, Error> {
        let error = match self.add_noting(attachment, Some(path)).await {
            Ok(result) => return Ok(result),
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
    if netns.is_none() {
        free_unowned(network.list().clone()).await;
    }
    remove(path).await?;
    reach(Step::JournalRemoved);
    Ok(())
}

/// A namespace that is gone went with a reboot, perhaps one by a power cut, and with it may have gone what DEL would know an
/// address by. What cannot be given back now is so after the next such DEL.
async fn free_unowned(list: NetworkList) {
    let name = list.name.clone();
    let freed = spawn_blocking(move || host_local::free_unowned(&list)).await;
    match freed.unwrap_or_else(|lost| Err(io::Error::other(lost))) {
        Ok(0) => {}
        Ok(freed) => tracing::info!(network = name, freed, "addresses that named no holder are given back"),
        Err(error) => tracing::warn!(network = name, %error, "cannot look for addresses that name no holder"),
    }
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

fn encode(path: &Path, document: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(document).map_err(|source| Error::JournalContent { path: path.to_owned(), source })
}

/// Makes the file and has it on disk, its name as well: addresses stay reserved on disk, so after a power cut it has to be there.
/// Cut short it leaves no file, an empty one, or the beginning of what is asked for.
fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    reach(Step::JournalDrafted);
    file.write_all(bytes)?;
    file.sync_all()?;
    // The sync of a new file brings its name along on the usual file systems; this one then finds nothing left to do.
    File::open(parent(path))?.sync_all()?;
    reach(Step::JournalWritten);
    Ok(())
}

/// Adds a plugin's result, in one write.
pub(crate) async fn append(path: &Path, result: &Value) -> Result<(), Error> {
    let bytes = encode(path, result)?;
    let target = path.to_owned();
    blocking("write", path, move || OpenOptions::new().append(true).open(target)?.write_all(&bytes)).await?;
    reach(Step::ResultSaved);
    Ok(())
}

/// Removes the file. Idempotent.
async fn remove(path: &Path) -> Result<(), Error> {
    let target = path.to_owned();
    blocking("remove", path, move || match fs::remove_file(target) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    })
    .await
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests;
