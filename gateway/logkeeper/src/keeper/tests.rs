//! Requests about containers whose tasks ended without an answer.

use std::fs::{File, OpenOptions};
use std::io::Write;

use nix::sys::stat::Mode;
use tempfile::TempDir;

use super::*;

/// A keeper with the entry of one container, and the container's FIFO.
struct Setup {
    keeper: Keeper,
    spec: LogSpec,
    fifo: File,
    dir: TempDir,
}

impl Setup {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let fifo = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let spec = LogSpec {
            id: "c1".into(),
            stdout: Some(path),
            stderr: None,
            log: Some(dir.path().join("0.log")),
            tty: false,
            max_line: 16384,
        };
        let keeper = Keeper::recover(&dir.path().join("state")).await.unwrap();
        keeper.table.lock().shared.state.write(&spec).unwrap();
        Self {
            keeper,
            spec,
            fifo,
            dir,
        }
    }

    /// Gives the container a task that ends amid its first command, as one that panics does.
    async fn give_dying_task(&self) {
        let before = self.keeper.table.lock().live.remove(&self.spec.id);
        if let Some(ContainerTask { handle, task, .. }) = before {
            drop(handle);
            task.await.unwrap();
        }
        let (commands, mut receiver) = mpsc::channel(COMMANDS);
        let task = tokio::spawn(async move { drop(receiver.recv().await) });
        let handle = ContainerHandle::new(commands);
        let (spec, counters) = (self.spec.clone(), Arc::default());
        let dying = ContainerTask {
            spec,
            handle,
            counters,
            task,
            finishing: false,
        };
        self.keeper
            .table
            .lock()
            .live
            .insert(self.spec.id.clone(), dying);
    }
}

#[tokio::test]
async fn request_takes_up_a_container_whose_task_has_died() {
    let mut setup = Setup::new().await;
    setup.fifo.write_all(b"one\n").unwrap();
    setup.give_dying_task().await;
    setup.keeper.reopen("c1").await.unwrap();
    setup.give_dying_task().await;
    drop(
        setup
            .keeper
            .attach("c1", Stream::Stdout, None)
            .await
            .unwrap(),
    );
    setup.give_dying_task().await;
    assert_eq!(setup.keeper.finish("c1", 0).await.unwrap().lines, 1);
    assert_eq!(
        setup.keeper.finish("c1", 0).await.unwrap(),
        Finished::default()
    );
    let text = std::fs::read_to_string(setup.dir.path().join("0.log")).unwrap();
    assert!(text.ends_with(" stdout F one\n"), "{text}");
}

#[tokio::test]
async fn container_whose_task_has_died_is_listed_until_its_output_is_logged() {
    let setup = Setup::new().await;
    setup.give_dying_task().await;
    let handle = setup.keeper.table.lock().live["c1"].handle.clone();
    let (done, answer) = oneshot::channel();
    assert_eq!(
        handle
            .ask("c1", Command::Started(done), answer, COMMAND_LIMIT)
            .await,
        Ok(None)
    );
    let listed = || {
        setup
            .keeper
            .list(None)
            .unwrap()
            .entries
            .into_iter()
            .map(|entry| entry.id)
            .collect::<Vec<_>>()
    };
    assert_eq!(listed(), ["c1"]);
    setup.keeper.finish("c1", 0).await.unwrap();
    assert_eq!(listed(), [""; 0]);
}

/// Its files are read meanwhile, and removed after it.
#[tokio::test]
async fn id_of_a_container_that_is_given_up_is_taken_until_its_output_is_counted() {
    let setup = Setup::new().await;
    let (commands, _) = mpsc::channel(COMMANDS);
    let container = ContainerTask {
        spec: setup.spec.clone(),
        handle: ContainerHandle::new(commands),
        counters: Arc::default(),
        task: tokio::spawn(async {}),
        finishing: false,
    };
    assert!(container.handle.is_closed(), "the task has ended");
    let counting = Arc::new(());
    let abandoned = AbandonedContainer {
        container,
        counting: Arc::downgrade(&counting),
    };
    setup
        .keeper
        .table
        .lock()
        .abandoned
        .insert("c1".into(), abandoned);
    let is_busy = |fault: Fault| fault.kind == FaultKind::Busy;
    assert!(
        setup
            .keeper
            .open(setup.spec.clone())
            .await
            .is_err_and(is_busy)
    );
    assert!(setup.keeper.abandon("c1").await.is_err_and(is_busy));
    assert_eq!(
        setup.keeper.finish("c1", 0).await.unwrap(),
        Finished::default()
    );
    assert!(setup.keeper.table.lock().shared.state.contains("c1"));
    drop(counting);
    setup.keeper.open(setup.spec.clone()).await.unwrap();
    assert_eq!(setup.keeper.list(None).unwrap().entries.len(), 1);
}
