//! Tests of waits: for another writer of a blob, and for a disk that takes its time.

use switchyard_registry::Digest;

use super::*;
use crate::client::model::{HeldCalls, ModelContainerd};

const COMMIT: &str = "Content/Write COMMIT";

#[test]
fn a_writer_is_waited_for_while_it_gets_on_and_a_lock_without_one_is_not() {
    let pause = Duration::from_secs(2);
    let begin = Instant::now();
    let after = |seconds: u64| begin + Duration::from_secs(seconds);
    let mut wait = LockWait::new(1000, begin);
    for round in 0..10_u64 {
        assert!(wait.should_retry(Some(round * 100), after(round * 50), pause));
    }
    assert!(
        !wait.should_retry(Some(900), after(9 * 50 + 59), pause),
        "it makes no progress"
    );
    let mut wait = LockWait::new(1000, begin);
    assert!(wait.should_retry(Some(5), begin, pause));
    let rounds = (0..1000_u64)
        .take_while(|round| wait.should_retry(None, after(round * 2), pause))
        .count();
    assert_eq!(rounds, 30);
    let mut wait = LockWait::new(1000, begin);
    assert!(wait.should_retry(Some(1000), begin, pause));
    assert!(
        wait.should_retry(Some(1000), after(20 * 60 - 2), pause),
        "it commits"
    );
    assert!(!wait.should_retry(Some(1000), after(20 * 60), pause));
}

/// A layer in a file, and a containerd whose commits are held.
struct SlowDisk {
    model: ModelContainerd,
    file: Arc<File>,
    layer: Descriptor,
    held: HeldCalls,
}

impl SlowDisk {
    fn new() -> Self {
        let bytes = vec![7; 3 * CHUNK + 1];
        let layer = Descriptor::new(
            "x",
            Digest::sha256(&bytes),
            u64::try_from(bytes.len()).unwrap(),
        );
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let model = ModelContainerd::default();
        let held = model.hold(COMMIT);
        Self {
            model,
            file: Arc::new(file),
            layer,
            held,
        }
    }

    fn write(&self) -> tokio::task::JoinHandle<Result<()>> {
        let client = self.model.client();
        let file = Arc::clone(&self.file);
        let layer = self.layer.clone();
        tokio::spawn(async move { write_from_file(&client, &file, 0, &layer, Labels::new()).await })
    }
}

#[tokio::test(start_paused = true)]
async fn commit_is_waited_for_while_containerd_answers() {
    let disk = SlowDisk::new();
    let writing = disk.write();
    disk.held.arrived(1).await;
    tokio::time::sleep(20 * QUICK).await;
    assert!(!writing.is_finished());
    drop(disk.held);
    writing.await.unwrap().unwrap();
    assert!(
        disk.model
            .store()
            .blobs
            .contains_key(&disk.layer.digest.to_string())
    );

    let disk = SlowDisk::new();
    let writing = disk.write();
    disk.held.arrived(1).await;
    disk.model.refuse(
        "Content/Status",
        Some(Status::unavailable("containerd is away")),
    );
    assert_eq!(
        writing.await.unwrap().unwrap_err().kind(),
        ErrorKind::Unavailable
    );

    let disk = SlowDisk::new();
    let began = Instant::now();
    let error = disk.write().await.unwrap().unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::DeadlineExceeded,
        "{}",
        error.report()
    );
    assert!(began.elapsed() >= COMMIT_LIMIT);
}

#[tokio::test(start_paused = true)]
async fn retry_joins_the_commit_that_was_given_up() {
    let disk = SlowDisk::new();
    let given_up = disk.write();
    disk.held.arrived(1).await;
    given_up.abort();
    let retries: Vec<_> = (0..16).map(|_| disk.write()).collect();
    tokio::time::sleep(10 * LOCK_TIMEOUT).await;
    assert!(retries.iter().all(|retry| !retry.is_finished()));
    drop(disk.held);
    for retry in retries {
        retry.await.unwrap().unwrap();
    }
    assert_eq!(disk.model.calls(COMMIT).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn small_blob_waits_for_a_slow_disk_too() {
    let model = ModelContainerd::default();
    let held = model.hold(COMMIT);
    let client = model.client();
    let digest = Digest::sha256(b"config");
    let descriptor = Descriptor::new("x", digest, 6);
    let data = Bytes::from_static(b"config");
    let writing = tokio::spawn(async move {
        write_small(&client, "config", &descriptor, data, Labels::new()).await
    });
    held.arrived(1).await;
    tokio::time::sleep(3 * QUICK).await;
    drop(held);
    assert!(writing.await.unwrap().unwrap());
}
