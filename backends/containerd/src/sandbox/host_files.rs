//! The host's files that sandboxes get: its resolver configuration and `/etc/hosts`.

use std::path::Path;
use std::time::Duration;

use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::{Result, threads};
use switchyard_namespaces::files as content;

use crate::base::error::from_namespaces;

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The configuration with the upstream servers of systemd-resolved.
const RESOLVED_RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";
const HOSTS: &str = "/etc/hosts";

/// Limit for reading a file.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Reads the files on one thread: the file system that one is on, or leads to, may hang.
#[derive(Debug)]
pub(crate) struct HostFiles {
    thread: BlockingPool,
}

impl HostFiles {
    pub(crate) fn new() -> Self {
        Self {
            thread: BlockingPool::new(threads::FILES_POOL, READ_LIMIT),
        }
    }

    /// The host's resolver configuration. With `away`, for another network namespace than the host's, servers at
    /// loopback addresses cannot be reached: if it names no other, the upstream servers of systemd-resolved are
    /// used instead, if that runs. Cancel-safe.
    pub(super) async fn resolv_conf(&self, away: bool) -> Result<Vec<u8>> {
        let own = self.read(RESOLV_CONF).await?;
        if !away || !content::is_local_alone(&own) {
            return Ok(own);
        }
        let behind = self.read(RESOLVED_RESOLV_CONF).await?;
        Ok(if behind.is_empty() { own } else { behind })
    }

    /// The host's `/etc/hosts`. Cancel-safe.
    pub(super) async fn hosts(&self) -> Result<Vec<u8>> {
        self.read(HOSTS).await
    }

    async fn read(&self, path: &'static str) -> Result<Vec<u8>> {
        let read = move || content::host_file(Path::new(path)).map_err(from_namespaces);
        self.thread.run(format!("the host's {path}"), read).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use switchyard_core::ErrorKind;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn host_has_its_files() {
        let files = HostFiles::new();
        assert_eq!(
            files.hosts().await.unwrap(),
            content::host_file(Path::new(HOSTS)).unwrap()
        );
        assert_eq!(
            files.resolv_conf(false).await.unwrap(),
            content::host_file(Path::new(RESOLV_CONF)).unwrap()
        );
    }

    /// The clock stands still: nothing here waits for real time.
    #[tokio::test(start_paused = true)]
    async fn file_that_hangs_costs_one_thread_and_is_named() {
        let files = HostFiles::new();
        let (began, begins) = oneshot::channel();
        let (answers, answer) = mpsc::channel::<()>();
        let hangs = files.thread.run(format!("the host's {HOSTS}"), move || {
            began.send(()).expect("the test waits for it");
            let _ = answer.recv();
            Ok(())
        });
        let passes = async {
            begins.await.unwrap();
            tokio::time::advance(READ_LIMIT).await;
        };
        let (hung, ()) = tokio::join!(hangs, passes);
        hung.unwrap_err();
        for _ in 0..2 {
            let error = files.hosts().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(
                error.report().contains("still hangs") && error.report().contains(HOSTS),
                "{}",
                error.report()
            );
        }
        drop(answers);
    }
}
