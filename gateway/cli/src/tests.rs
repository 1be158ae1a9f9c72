//! Tests of how the daemon ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use switchyard_daemon::lock::{DirLock, LockError};

use super::*;

/// Records that it was dropped.
struct Work(Arc<AtomicBool>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn end_of_the_daemon_drops_no_work_and_keeps_the_locks() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut locks = DirLocks::default();
    locks.acquire([dirs[0].path(), dirs[1].path()]).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let (began, begun) = tokio::sync::oneshot::channel();
    let work = Work(Arc::clone(&dropped));
    runtime.spawn(async move {
        let _work = work;
        began.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    runtime.block_on(begun).unwrap();
    leave(runtime, locks);
    assert!(!dropped.load(Ordering::SeqCst), "it is cut off as it works");
    for dir in &dirs {
        assert!(matches!(
            DirLock::acquire(dir.path()),
            Err(LockError::Held { .. })
        ));
    }
}
