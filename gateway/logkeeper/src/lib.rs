//! `switchyard logkeeper`: one small process per node that owns the output FIFOs of containers and writes CRI logs.
//!
//! A container's output must neither wait for the daemon nor be lost with it, so a process of its own reads the
//! FIFOs. It is driven over a unix socket ([`protocol`], [`client::Client`]) and survives restarts of the daemon;
//! its own restarts cost time but no output.
//!
//! ```text
//! container -> shim -> FIFO --splice--> spool --frame--> log file
//!                                  (state dir)  `--> position record (state dir)
//! ```
//!
//! Invariants:
//! - Every byte that left a FIFO is in a spool until it is in the log. splice(2) takes and stores in one call, so
//!   there is no moment at which a kill finds a byte only in the keeper's memory. Copying with tee(2) first and
//!   consuming later leaves such a moment: after a kill nobody can tell whether the consuming call was made.
//! - The position record is stored after each write to the log. What a log holds beyond it is cut off at recovery
//!   and written again, so no line is lost, doubled or torn.
//! - A FIFO is empty when it is waited for. An unfinished line waits in the spool, since a writer that fills a
//!   FIFO which is not empty raises no edge before it sleeps, and edge-triggered waiting would hang.
//! - A FIFO's content lives as long as someone has it open. The shim closes it when the container ends, so the
//!   daemon takes a [`Hold`] from before the container is created until its finish has returned; without one, a
//!   container that ends while the keeper is dead loses what its FIFOs hold.
//! - A container never waits for a full disk: lines that cannot be written are dropped, counted, and told of in the
//!   log. If the state directory is full, output is logged without its spool.
//! - Clients that are attached read the spool along, each at its own pace; nobody waits for one that does not ([`LiveOutput`]).
//! - A socket that the daemon hands over stays open for a while after the daemon was killed; nothing passes through here.
//! - One task per container touches its files. It runs on the thread of the file system that has its log, whose containers share the
//!   buffers: file I/O blocks that thread, as each batch is short, and a file system that hangs stops its own logs alone (`lane`).
//!
//! Vocabulary: *container* stands for whatever has output, `spec` for what the daemon said about it, *batch* for
//! what is read or written at once, *finish* for the end of its output.

pub mod client;
mod clock;
mod container;
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
mod mounts;
mod output;
mod position;
pub mod protocol;
mod sandbox;
pub mod server;
mod sink;
mod socket_holder;
mod spool;
mod start;
mod state_dir;
mod wire;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

pub use crate::client::Client;
pub use crate::clock::{STAMP_LEN, Stamp};
pub use crate::error::Error;
pub use crate::fifo_hold::FifoHold;
pub use crate::lifeline::Lifeline;
pub use crate::output::LiveOutput;
pub use crate::protocol::LogSpec;
pub use crate::server::{Config, Server};

/// Runs a keeper until SIGTERM, SIGINT or a client's `Shutdown`; the body of `switchyard logkeeper`.
///
/// Needs a tokio runtime with I/O and time enabled; one thread is enough, see [`run`]. Calls `ready` once it answers.
///
/// # Errors
/// As [`Server::start`], and [`Error::Process`] if signals cannot be listened to.
pub async fn serve(config: Config, ready: impl FnOnce()) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Process)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Process)?;
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

/// Confines this process, if so configured, and runs [`serve`] on a runtime of one thread, besides those of file systems, which keeps the process small.
///
/// # Errors
/// As [`serve`], and [`Error::Process`] if the runtime cannot be built.
pub fn run(config: Config, ready: impl FnOnce()) -> Result<(), Error> {
    raise_file_limit();
    if config.sandbox
        && let Err(error) = sandbox::enter()
    {
        // Logs that are written by a process with more rights than it needs are better than none.
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        tracing::error!(%error, cause, "the logkeeper is not confined");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Error::Process)?.block_on(serve(config, ready))
}

/// Allows this process as many descriptors as it may have: a container takes six.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}
