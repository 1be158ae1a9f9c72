//! The host's files that sandboxes get: its resolver configuration and `/etc/hosts`.

use std::path::Path;
use std::time::Duration;

use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::{Result, threads};
use switchyard_linux::resolv_conf::{self, Families, Reachable};
use switchyard_namespaces::files as content;

use crate::base::error::from_namespaces;

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

    /// The host's resolver configuration. Cancel-safe.
    pub(super) async fn resolv_conf(&self) -> Result<Vec<u8>> {
        let [own, ..] = resolv_conf::FILES;
        self.read(own).await
    }

    /// Returns what another network namespace than the host's, with these families, can use of it. If it names no server that can
    /// be asked there, the files with the upstream servers of local caches are looked at. Cancel-safe.
    pub(super) async fn reachable_resolv_conf(&self, families: Families) -> Result<Reachable> {
        let mut texts = Vec::new();
        for path in resolv_conf::FILES {
            texts.push(self.read(path).await?);
            let found = resolv_conf::choose(&texts, families);
            if !found.servers.is_empty() {
                return Ok(found);
            }
        }
        Ok(resolv_conf::choose(&texts, families))
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
            files.resolv_conf().await.unwrap(),
            content::host_file(Path::new("/etc/resolv.conf")).unwrap()
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
