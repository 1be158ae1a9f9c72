//! Discards the output of an exec that nobody waits for.

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::process::Exec;

/// Bytes of output that are discarded at a time.
const CHUNK: usize = 16 << 10;

impl Exec {
    /// Keeps its FIFOs open, and discards what comes out of them; never returns. A shim that opens a FIFO for which there is no reader
    /// waits, with a lock that all calls about its pod need.
    pub(super) async fn discard_output(&self) {
        tokio::join!(self.discard("stdout"), self.discard("stderr"));
    }

    async fn discard(&self, name: &str) {
        // Opened for both, so that it has no end of file. It is not there if the exec was not created, has none, or is deleted.
        let fifo = pipe::OpenOptions::new()
            .read_write(true)
            .open_receiver(self.dir.join(name));
        if let Ok(mut fifo) = fifo {
            let mut chunk = vec![0; CHUNK];
            while fifo.read(&mut chunk).await.is_ok() {}
        }
        std::future::pending().await
    }
}
