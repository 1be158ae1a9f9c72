//! A file system that takes long for each write: the statistics name it, and the containers that it holds up.

use std::time::Duration;

use switchyard_logkeeper::LogSpec;
use switchyard_logkeeper::protocol::LogFileSystem;
use tokio::time::Instant;

use crate::fuse::Fuse;
use crate::kill::{Victim, await_hello};
use crate::support::{PATIENCE, Site};

/// The time of a write to the slow file system.
const WRITE: Duration = Duration::from_millis(25);

/// Lines of a thousand bytes: more than a pipe holds, however large it is made.
const LINES: usize = 6000;

/// The statistics of the file system that is mounted here.
async fn mounted_on(site: &Site, name: &str) -> Option<LogFileSystem> {
    let stats = site.client.stats().await.unwrap();
    stats
        .file_systems
        .into_iter()
        .find(|known| known.mount_point.ends_with(name))
}

#[tokio::test]
async fn slow_file_system_is_named_with_its_writes_and_the_container_that_it_holds_up() {
    let site = Site::new();
    let fuse = Fuse::mount(site.dir.path().join("slow"));
    let victim = Victim::start(&site);
    await_hello(&site).await;
    let spec = LogSpec {
        log: Some(site.dir.path().join("slow/c1/0.log")),
        ..site.spec("c1")
    };
    let mut output = site.output(&spec);
    site.client.open(&spec).await.unwrap();
    fuse.delay_writes(WRITE);
    let writer = tokio::task::spawn_blocking(move || {
        output.out(format!("{}\n", "x".repeat(999)).repeat(LINES));
        output
    });
    let deadline = Instant::now() + PATIENCE;
    let slow = loop {
        let found = mounted_on(&site, "/slow").await;
        let is_slow = |known: &LogFileSystem| known.full_pipes == 1 && known.writes.count >= 3;
        if let Some(slow) = found.clone().filter(is_slow) {
            break slow;
        }
        assert!(Instant::now() < deadline, "{found:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(slow.containers, 1, "{slow:?}");
    assert_eq!(slow.full_pipe_ids, ["c1"], "{slow:?}");
    let writes = slow.writes;
    assert!(writes.total_us >= writes.count * 25_000, "{writes:?}");
    let mut quick = writes
        .buckets
        .iter()
        .filter(|bucket| bucket.within_ms <= 20);
    assert!(quick.all(|bucket| bucket.count == 0), "{writes:?}");

    fuse.delay_writes(Duration::ZERO);
    let output = writer.await.unwrap();
    site.await_lines("c1", LINES as u64).await;
    // Its task reports that the pipe is empty a moment after it has counted the lines.
    while mounted_on(&site, "/slow")
        .await
        .is_none_or(|known| known.full_pipes > 0)
    {
        assert!(Instant::now() < deadline, "the pipe never counts as empty");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop((output, victim));
}
