//! `switchyard logkeeper`: one small process per node that owns the output FIFOs of containers and writes CRI
//! logs.
//!
//! A container's output must neither wait for the daemon nor be lost with it, so a separate process reads the
//! FIFOs. It is controlled over a unix socket ([`protocol`], [`client::Client`]) and survives restarts of the
//! daemon; its own restarts delay output but lose none.
//!
//! ```text
//! container -> shim -> FIFO --splice--> spool --frame--> log file
//!                                  (state dir)  `--> position record (state dir)
//! ```
//!
//! Invariants:
//! - Every byte that was read from a FIFO is in a spool until it is in the log. splice(2) takes and stores in
//!   one call, so a kill never finds a byte only in the logkeeper's memory. Copying with tee(2) first and
//!   consuming later has such a moment: after a kill it is unknown whether the consuming call was made.
//! - The position record is stored after each write to the log. What a log contains beyond the record is
//!   truncated at recovery and written again, so no line is lost, duplicated or torn.
//! - A FIFO is empty whenever the logkeeper waits for it. An unfinished line is kept in the spool, since a
//!   writer that fills a FIFO which is not empty raises no edge before it sleeps, and edge-triggered polling
//!   would hang.
//! - A FIFO's content lives as long as a process has it open. The shim closes it when the container exits, so
//!   the daemon keeps a [`FifoHold`] from before the container is created until its finish has returned.
//!   Without a hold, a container that exits while the logkeeper is dead loses the content of its FIFOs.
//! - A container never waits for a full disk: lines that cannot be written are dropped, counted, and reported
//!   in the log. If the state directory is full, output is logged without the spool.
//! - Attached clients read from the spool, each at its own pace; nothing waits for a slow one
//!   ([`LiveOutput`]), and together they keep no more of the state directory than their budget.
//! - A request that was refused has no effect later, apart from a finish. One whose connection broke while its answer was
//!   on its way may have been carried out.
//! - A socket that the daemon hands over stays open for a while after the daemon was killed; no data passes
//!   through the logkeeper.
//! - A listener that the daemon stores is closed a minute after the last daemon that stored it has ended; the logkeeper
//!   accepts no connection.
//! - One task per container touches its files. It runs on the thread of the file system that has its log; the
//!   containers of a thread share buffers. File I/O blocks that thread, but each batch is short, and a file
//!   system that hangs stops only its own logs (`fs_thread`).
//!
//! Vocabulary: a *container* is anything that has output, its `spec` is what the daemon passed to `open`, a
//! *batch* is what is read or written at once, and *finish* ends a container's output. To
//! *abandon* a container is to forget it without its rest, because the file system of its log hangs.

pub mod client;
mod clock;
#[cfg(test)]
mod compatibility;
mod connection;
mod container;
mod descriptor_store;
mod error;
mod fifo;
mod fifo_hold;
mod follow;
pub mod format;
mod fs_thread;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod journal;
mod keeper;
mod lifeline;
mod log_file;
mod mounts;
mod output;
mod passing;
mod position;
mod progress;
pub mod protocol;
pub mod reader;
pub mod rotate;
mod sandbox;
mod scratch;
pub mod server;
mod sink;
mod socket_holder;
mod spool;
mod start;
mod state_dir;
mod store_client;
mod window_budget;
mod wire;
mod write_timer;

use tokio::signal::unix::{SignalKind, signal};

pub use crate::client::Client;
pub use crate::clock::{STAMP_LEN, Stamp};
pub use crate::error::Error;
pub use crate::fifo_hold::FifoHold;
pub use crate::lifeline::Lifeline;
pub use crate::output::LiveOutput;
pub use crate::protocol::LogSpec;
pub use crate::server::{Config, Server};
pub use crate::store_client::{StoreClient, TakenDescriptor};

/// Runs a logkeeper until SIGTERM, SIGINT or a client's `Shutdown`; the body of `switchyard logkeeper`.
///
/// Needs a tokio runtime with I/O and time enabled; one thread is enough, see [`run`]. Calls `ready` once the
/// socket answers.
///
/// # Errors
/// Those of [`Server::start`], and [`Error::Process`] if signals cannot be handled.
pub async fn serve(config: Config, ready: impl FnOnce()) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Process)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Process)?;
    // SIGHUP conventionally asks for the configuration to be read again. There is nothing to read here, and its
    // default action would end the process while containers write to it.
    let _ignored = signal(SignalKind::hangup()).map_err(Error::Process)?;
    let asked = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let server = Server::start(&config).await?;
    ready();
    server.serve(asked).await;
    Ok(())
}

/// Confines this process, if configured, and runs [`serve`] on a single-threaded runtime, which keeps the
/// process small; the threads of file systems are separate.
///
/// # Errors
/// Those of [`serve`], and [`Error::Process`] if the runtime cannot be built.
pub fn run(config: Config, ready: impl FnOnce()) -> Result<(), Error> {
    raise_file_limit();
    if config.sandbox
        && let Err(error) = sandbox::enter()
    {
        // An unconfined logkeeper is better than no logs.
        let cause = std::error::Error::source(&error)
            .map(ToString::to_string)
            .unwrap_or_default();
        tracing::error!(%error, cause, "cannot confine the logkeeper; it runs with more rights than it needs");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(Error::Process)?
        .block_on(serve(config, ready))
}

/// Raises the soft limit on open files to the hard limit: a container takes six descriptors.
fn raise_file_limit() {
    if let Err(error) = switchyard_linux::raise_open_files_limit() {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}
