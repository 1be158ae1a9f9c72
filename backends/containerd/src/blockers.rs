//! Processes that hold up operations, and the file systems that they wait for.
//!
//! ```text
//! left in the cgroup of a task ──┐ twice in an uninterruptible wait?
//! its shim, its runtime ─────────┼─► wchan, system call ─► the mount of the file of the call, if it has one
//! containerd, for images ────────┘                     └─► else the first of its mounts that does not answer
//! ```
//!
//! Both may block although nothing here touches the files of a container: a system call is read under a lock of the process,
//! and file systems are asked. So each runs in a small pool with a deadline; what hangs there takes one thread for each
//! process and file system, and nothing else waits for these threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use switchyard_cgroup as cgroup;
use switchyard_cgroup::Group;
use switchyard_core::backend::Blocker;
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::{Error, Result, threads};
use switchyard_linux::kernel_wait::{KernelWait, UsedMount, await_answer};
use switchyard_linux::process::{ProcessId, Stat};
use tokio::time::timeout;

use crate::shims::Shims;
use crate::shims::activity::listener;
use crate::shims::processes::{RootProcess, ShimProcess, own_shims};

/// Limit for one look, and for a file system to answer.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Limit for a scan of all processes, with the pause before it.
const SCAN_LIMIT: Duration = Duration::from_secs(4);

/// Limit for the system call and the mount of one process.
const MOUNT_LIMIT: Duration = Duration::from_secs(4);

/// The time between two looks at one process: a wait that is over at the second one holds up nobody.
const PAUSE: Duration = Duration::from_millis(200);

/// The most processes of a task that are looked at.
const PROCESSES_MAX: usize = 512;

/// The most processes that are described.
const BLOCKERS_MAX: usize = 4;

/// Finds the processes that hold up operations.
#[derive(Debug)]
pub(crate) struct Blockers {
    reader: Arc<cgroup::Reader>,
    shims: Arc<Shims>,
    /// Reads `/proc`.
    processes: BlockingPool,
    /// Waits for the answers of file systems.
    file_systems: BlockingPool,
}

/// The parameters of a search for the programs that start and end a task.
#[derive(Debug)]
struct Servants {
    address: PathBuf,
    namespace: String,
    /// The ids of the task and of its sandbox: a shim has that of the first container that it serves.
    ids: [String; 2],
    /// The processes that are left of the task.
    left: Vec<u32>,
}

impl Blockers {
    pub(crate) fn new(reader: Arc<cgroup::Reader>, shims: Arc<Shims>) -> Self {
        Self {
            reader,
            shims,
            processes: BlockingPool::new(threads::BLOCKER_POOL, LOOK_LIMIT),
            file_systems: BlockingPool::new(threads::ANSWER_POOL, LOOK_LIMIT),
        }
    }

    /// The processes in the cgroup of a task, or of a sandbox. If none of them is in an uninterruptible wait, also those of its
    /// shim and its runtime that are. Cancel-safe.
    pub(crate) async fn of_task(
        &self,
        id: &str,
        sandbox: &str,
        group: Option<Group>,
    ) -> Vec<Blocker> {
        let reader = Arc::clone(&self.reader);
        let look = move || -> Result<Vec<KernelWait>> {
            let Some(group) = group else {
                return Ok(Vec::new());
            };
            let pids = reader.procs(&group).map_err(Error::from)?;
            Ok(settled(pids.unwrap_or_default(), false))
        };
        let mut waits = self.look(format!("the processes of task {id}"), look).await;
        if !waits.iter().any(KernelWait::is_uninterruptible) {
            let servants = Servants {
                address: self.shims.client.address().to_path_buf(),
                namespace: self.shims.client.namespace().to_owned(),
                ids: [id.to_owned(), sandbox.to_owned()],
                left: waits.iter().map(|wait| wait.pid).collect(),
            };
            let mut serving = self.servants(id, servants).await;
            serving.append(&mut waits);
            waits = serving;
        }
        waits.truncate(BLOCKERS_MAX);
        let described = waits.into_iter().map(|wait| self.described(wait, true));
        join_all(described).await
    }

    /// The programs that start and end a task and are in an uninterruptible wait. On a node with very many processes they
    /// may not be found in time.
    async fn servants(&self, id: &str, servants: Servants) -> Vec<KernelWait> {
        let Ok(Ok(scan)) = timeout(SCAN_LIMIT, self.shims.scan()).await else {
            tracing::debug!(
                task = id,
                "cannot look for the programs that serve a task: no scan of all processes has ended in time"
            );
            return Vec::new();
        };
        let look = move || {
            Ok(settled(
                servants.find(&scan.all, &scan.root_processes),
                true,
            ))
        };
        let what = format!("the programs that serve task {id}");
        self.look(what, look).await
    }

    /// containerd, if a thread of it is in an uninterruptible wait. Cancel-safe.
    pub(crate) async fn of_containerd(&self) -> Vec<Blocker> {
        let listener = listener(self.shims.client.address()).await;
        let Some(pid) = listener.and_then(|pid| u32::try_from(pid).ok()) else {
            return Vec::new();
        };
        let look = move || Ok(settled(vec![pid], true));
        let waits = self.look("containerd".to_owned(), look).await;
        // It sees all mounts of the node, most of which have nothing to do with images.
        let described = waits.into_iter().map(|wait| self.described(wait, false));
        join_all(described).await
    }

    /// Looks at processes; what cannot be looked at in time is left out.
    async fn look(
        &self,
        what: String,
        look: impl FnOnce() -> Result<Vec<KernelWait>> + Send + 'static,
    ) -> Vec<KernelWait> {
        self.processes
            .run(what, look)
            .await
            .unwrap_or_else(|error| {
                tracing::debug!(
                    error = error.report(),
                    "cannot look at processes that hold up an operation"
                );
                Vec::new()
            })
    }

    /// A process with its system call and the mount that it waits for.
    async fn described(&self, wait: KernelWait, with_unused: bool) -> Blocker {
        let mut blocker = Blocker {
            wait,
            call: None,
            mount: None,
        };
        if blocker.wait.is_uninterruptible() {
            // What is known when the time is up is kept.
            let _ = timeout(MOUNT_LIMIT, self.add_mount(&mut blocker, with_unused)).await;
        }
        blocker
    }

    async fn add_mount(&self, blocker: &mut Blocker, with_unused: bool) {
        let wait = blocker.wait.clone();
        let what = format!("the system call of process {}", wait.pid);
        let look = move || {
            let call = wait.system_call();
            Ok((call, call.and_then(|call| wait.mount_of(call))))
        };
        if let Ok((call, mount)) = self.processes.run(what, look).await {
            blocker.call = call;
            blocker.mount = mount;
        }
        if blocker.mount.is_none() {
            blocker.mount = self.silent_mount(blocker.wait.clone(), with_unused).await;
        }
    }

    /// The first mount of a process that does not answer, in the order of their use.
    async fn silent_mount(&self, wait: KernelWait, with_unused: bool) -> Option<UsedMount> {
        let what = format!("the mounts of process {}", wait.pid);
        let look = move || {
            let mounts = wait.mounts(with_unused).into_iter();
            let reached = mounts.filter_map(|mount| {
                let point = mount.own_point()?;
                Some((mount, point))
            });
            Ok(reached.collect::<Vec<_>>())
        };
        let mounts = self.processes.run(what, look).await.ok()?;
        let asked = mounts.into_iter().map(|(mount, point)| async move {
            let is_silent = self.is_silent(&mount.device, point).await;
            is_silent.then_some(mount)
        });
        join_all(asked).await.into_iter().flatten().next()
    }

    /// Returns whether a file system does not answer in time. If too many others do not, it is not asked.
    async fn is_silent(&self, device: &str, point: PathBuf) -> bool {
        let what = format!("file system {device}");
        let ask = move || {
            await_answer(&point);
            Ok(())
        };
        let asked = self.file_systems.run(what.clone(), ask).await;
        asked.is_err() && self.file_systems.hangs(&what)
    }
}

// === impl Servants ===

impl Servants {
    /// The processes of the shim and the runtime of the task. A child of a shim is believed to be a runtime by its command line,
    /// as only the node's root user has one that is read. Pure.
    fn find(&self, all: &[Stat], root_processes: &[RootProcess]) -> Vec<u32> {
        let shims = own_shims(all, root_processes, &self.address, &self.namespace);
        let runtimes: Vec<ProcessId> = root_processes
            .iter()
            .filter(|root| root.command.contains(&self.ids[0]))
            .map(|root| root.process)
            .filter(|process| shims.iter().any(|shim| shim.children.contains(process)))
            .collect();
        let is_left = |pid: i32| u32::try_from(pid).is_ok_and(|pid| self.left.contains(&pid));
        let serves = |shim: &&ShimProcess| {
            let mut children = shim.children.iter();
            self.ids.iter().any(|id| *shim.id == **id)
                || children.any(|child| is_left(child.pid) || runtimes.contains(child))
        };
        let serving = shims.iter().filter(serves).map(|shim| shim.process);
        serving
            .chain(runtimes.iter().copied())
            .filter_map(|process| u32::try_from(process.pid).ok())
            .collect()
    }
}

/// The processes with their waits, those in an uninterruptible one first, after a look and another one a little later; with
/// `only_waiting` no others. Blocks for the time in between.
fn settled(pids: Vec<u32>, only_waiting: bool) -> Vec<KernelWait> {
    let looked = pids.into_iter().take(PROCESSES_MAX);
    let mut waits: Vec<_> = looked.filter_map(KernelWait::of).collect();
    if only_waiting {
        waits.retain(KernelWait::is_uninterruptible);
    }
    if waits.is_empty() {
        return waits;
    }
    std::thread::sleep(PAUSE);
    let mut settled: Vec<_> = waits
        .into_iter()
        .filter_map(|before| {
            let after = KernelWait::of(before.pid)?;
            Some(lasting(before, after))
        })
        .collect();
    if only_waiting {
        settled.retain(KernelWait::is_uninterruptible);
    }
    settled.sort_by_key(|wait| !wait.is_uninterruptible());
    settled
}

/// The wait of a process that was looked at twice: an uninterruptible one only if it was in that both times. Pure.
fn lasting(before: KernelWait, after: KernelWait) -> KernelWait {
    if before.is_uninterruptible() {
        after
    } else {
        before
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SOCKET: &str = "/run/c.sock";

    fn wait(state: char) -> KernelWait {
        KernelWait {
            pid: 7,
            name: "a".to_owned(),
            thread: 7,
            state,
            channel: None,
        }
    }

    #[test]
    fn wait_that_is_over_at_the_second_look_holds_up_nobody() {
        let lasts = |before, after| lasting(wait(before), wait(after)).is_uninterruptible();
        assert!(lasts('D', 'D'));
        assert!(!lasts('D', 'S') && !lasts('S', 'D') && !lasts('R', 'R'));
    }

    #[test]
    fn processes_that_are_left_are_described_and_those_that_end_are_not() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let left = settled(vec![child.id(), u32::MAX], false);
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0].pid, child.id());
        assert!(settled(vec![child.id()], true).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(settled(vec![child.id()], false).is_empty());
    }

    #[test]
    fn shim_and_runtime_of_the_task_alone_serve_it() {
        let [task, sandbox, other] = ["aa", "bb", "cc"].map(|id| id.repeat(32));
        let process = |pid| ProcessId { pid, started: 1 };
        let root = |pid, command: &[&str]| RootProcess {
            process: process(pid),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            cwd_deleted: false,
        };
        let stat = |pid, parent| Stat {
            id: process(pid),
            parent,
            ended: false,
            status: None,
        };
        let shim = |pid, id: &str| {
            let command = [
                "containerd-shim-runc-v2",
                "-namespace",
                "n",
                "-address",
                SOCKET,
                "-id",
                id,
            ];
            root(pid, &command)
        };
        let all = [
            stat(1, 0),
            stat(10, 1),
            stat(11, 10),
            stat(12, 10),
            stat(13, 10),
            stat(20, 1),
            stat(21, 1),
            stat(22, 20),
        ];
        let roots = [
            shim(10, &sandbox),
            root(11, &["runc", "create", &task]),
            // The main process of another container of the pod.
            root(12, &["sleep", "1000"]),
            root(13, &["runc", "create", &other]),
            shim(20, &other),
            // No child of a shim.
            root(21, &["runc", "create", &task]),
        ];
        let servants = |ids: [&str; 2], left: &[u32]| Servants {
            address: PathBuf::from(SOCKET),
            namespace: "n".to_owned(),
            ids: ids.map(str::to_owned),
            left: left.to_vec(),
        };
        let found = |ids, left: &[u32]| servants(ids, left).find(&all, &roots);
        assert_eq!(found([task.as_str(), sandbox.as_str()], &[]), [10, 11]);
        assert_eq!(found(["dd", "ee"], &[22]), [20]);
        // The shim of a pod may bear the name of another container of it.
        assert_eq!(found([other.as_str(), "ee"], &[]), [10, 20, 13]);
        assert!(found(["dd", "ee"], &[]).is_empty());
    }
}
