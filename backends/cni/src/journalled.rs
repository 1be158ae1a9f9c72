//! Attachments with a journal: it is written before plugins run, and is all that undoing them needs.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::Value;
use switchyard_linux::report;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::attachment::Attachment;
use crate::conf::NetworkList;
use crate::error::Error;
use crate::host_local;
use crate::journal::{self, Driver};
use crate::network::Network;
use crate::plugin::{Plugins, on_thread};
use crate::result::CniResult;

/// Time for the search for addresses without a holder. Their directory may be on a network file system.
const SEARCH_LIMIT: Duration = Duration::from_secs(10);

/// The maximum of threads that search, so that a directory that hangs takes no more.
pub(crate) const SEARCH_THREADS: usize = 1;

static SEARCHES: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(SEARCH_THREADS)));

impl Network {
    /// Writes the request to `path`, in an existing directory, and syncs it; [`Network::add_saved`] makes the
    /// attachment. May be called before the namespace exists.
    ///
    /// Cancel safety: none; call [`del_saved`], which removes the file.
    ///
    /// # Errors
    /// [`Error::JournalExists`] if an earlier attachment was not undone; [`Error::Journal`].
    pub async fn save(&self, path: &Path, attachment: &Attachment) -> Result<(), Error> {
        journal::write(path, self.list(), attachment, None).await
    }

    /// [`Network::add`], for a request that [`Network::save`] has written to `path`. The result of each
    /// plugin is appended to the file before the next plugin runs, and before this returns.
    ///
    /// After a failure the file is removed if the attachment was undone completely, else it stays for
    /// [`del_saved`]. Cancel safety: none, as for `add`; but [`del_saved`] undoes an interrupted call.
    ///
    /// # Errors
    /// [`Error::Journal`]; those of `add`.
    pub async fn add_saved(
        &self,
        path: &Path,
        attachment: &Attachment,
    ) -> Result<CniResult, Error> {
        let error = match self.add_noting(attachment, Some(path)).await {
            Ok(result) => return Ok(result),
            Err(error) => error,
        };
        if !error.left_something()
            && let Err(error) = journal::remove(path).await
        {
            // The remaining file then causes one DEL more than needed, which is harmless.
            tracing::warn!(
                error = report(&error),
                "cannot remove the journal of a network attachment that was undone"
            );
        }
        Err(error)
    }
}

/// Writes the request of an attachment that a driver makes, and not plugins, as [`Network::save`]. `list` describes the network as
/// plugins would make it. The caller makes and undoes the attachment, and finds the driver by [`crate::Saved::driver`] and
/// [`crate::Saved::is_pinned`].
///
/// Cancel safety: none; what is then at `path` is removed by [`remove_journal`].
///
/// # Errors
/// [`Error::JournalExists`] if an earlier attachment was not undone; [`Error::Journal`].
pub async fn save_for_driver(
    path: &Path,
    list: &NetworkList,
    attachment: &Attachment,
    driver: Driver<'_>,
) -> Result<(), Error> {
    journal::write(path, list, attachment, Some(driver)).await
}

/// Appends the result of an attachment that a driver has made, in the form of the specification.
///
/// # Errors
/// [`Error::Journal`].
pub async fn save_result(path: &Path, result: &Value) -> Result<(), Error> {
    journal::append(path, result).await
}

/// Removes the journal file of an attachment that its driver has undone. Idempotent.
///
/// # Errors
/// [`Error::Journal`].
pub async fn remove_journal(path: &Path) -> Result<(), Error> {
    journal::remove(path).await
}

/// Undoes the attachment that the journal file at `path` describes, and removes the file once that has
/// succeeded. A file that cannot be removed then, as on a read-only file system, is logged and stays: the next
/// call undoes once more what is undone, which CNI allows.
///
/// Idempotent: does nothing without a file. It needs neither the configuration directory nor state of the
/// daemon. `netns` is the namespace if it still exists, else `None`. Cancel safety: call it again.
///
/// A damaged file says of nothing how it is undone, and neither does one whose network or attachment this version
/// refuses. Once the namespace is gone, as after a reboot, most of it is gone as well, and an operator can do no more:
/// the file is removed then, and the damage logged.
///
/// # Errors
/// [`Error::Journal`], [`Error::JournalDamaged`], [`Error::JournalContent`], [`Error::JournalDriver`] if plugins have not made
/// the attachment, [`Error::Result`], or those of [`Network::del`]; the file stays then.
pub async fn del_saved(path: &Path, plugins: &Plugins, netns: Option<&Path>) -> Result<(), Error> {
    let read = journal::read(path).await.and_then(|saved| {
        let Some(saved) = saved else { return Ok(None) };
        saved.check_made_by_plugins(path)?;
        let (list, attachment) = saved.checked(path)?;
        Ok(Some((saved, list, attachment)))
    });
    let (saved, list, attachment) = match read {
        Ok(Some(read)) => read,
        Ok(None) => return journal::remove(path).await,
        Err(error) if netns.is_none() && error.is_journal_lost() => {
            tracing::error!(
                error = report(&error),
                "the network namespace is gone, and what was attached in it is not known: addresses may stay reserved"
            );
            return journal::remove(path).await;
        }
        Err(error) => return Err(error),
    };
    let network = Network::new(Arc::new(list), plugins.clone());
    let attachment = Attachment {
        netns: netns.map(Path::to_owned),
        ..attachment
    };
    let result = match saved.result(path) {
        // As if it were truncated: there is nothing left in a namespace that would need it.
        Err(error) if netns.is_none() => {
            tracing::warn!(
                error = report(&error),
                "a result in a network journal is damaged: detaching without it"
            );
            None
        }
        result => result?,
    };
    network.del(&attachment, result.as_ref()).await?;
    if netns.is_none() {
        free_unowned(network.list().clone()).await;
    }
    if let Err(error) = journal::remove(path).await {
        tracing::warn!(
            error = report(&error),
            "a network attachment is undone, and its journal stays"
        );
    }
    Ok(())
}

/// Frees addresses of `host-local` without a holder, after a DEL for a namespace that does not exist any
/// more. Such a namespace ended with a reboot, perhaps after a power cut, which may have lost the contents of
/// the files by which DEL finds an address. Addresses that cannot be freed now are freed after the next such
/// DEL.
async fn free_unowned(list: NetworkList) {
    let name = list.name.clone();
    let search = move || host_local::free_unowned(&list);
    let searched = on_thread(&SEARCHES, Instant::now() + SEARCH_LIMIT, search);
    match searched.await.flatten() {
        Ok(0) => {}
        Ok(freed) => tracing::info!(
            network = name,
            freed,
            "addresses without a holder are freed"
        ),
        Err(error) => {
            tracing::warn!(network = name, %error, "cannot find addresses without a holder")
        }
    }
}

#[cfg(test)]
mod tests;
