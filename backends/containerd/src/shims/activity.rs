//! Activity on a container, as seen in `/proc`: helpers of shims, runtimes, and shims without children.
//!
//! containerd may still work on a container after it has answered a call, or when the caller is gone, and no
//! API reports it. Visible are the processes that it uses, which have the id of the container on their
//! command lines. A shim that serves a whole pod has the id of the pod's first container there for as long as
//! the pod exists, so that its existence says nothing about that container. A runtime that this shim runs for
//! another container has the id of that container.
//!
//! A scan of all processes shows them, and takes long on a node with many. Whoever waits for an end of activity scans them
//! once; while nothing is seen after that, the children of containerd and of the shims are looked at instead, because each
//! helper and runtime is one of these.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use switchyard_core::Result;
use switchyard_linux::process::{ProcessId, Stat};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::base::fs::blocking;
use crate::shims::Shims;
use crate::shims::process_scans::ShimScan;
use crate::shims::processes::{
    RootProcess, flag, is_helper, is_shim_of, own_shims, read_root_process,
};

/// The subcommands of a runtime that create, start or delete a container.
const RUNTIME_VERBS: [&str; 3] = ["create", "start", "delete"];

/// Time without visible activity after which a cleanup counts as finished: containerd removes the bundle
/// after its helper has exited. It begins with a look that shows no activity.
const QUIET_PERIOD: Duration = Duration::from_millis(200);
/// Limit for which a cleanup is waited for.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit for connecting to containerd's socket, which tells its process.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// The shortest pause between two looks at `/proc`.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Since when looks have shown no activity. Between two looks there may be a long pause, in which activity may have ended at
/// any time.
#[derive(Debug, Default)]
struct Quiet(Option<Instant>);

/// The activity on a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// Nothing is seen.
    None,
    /// A shim's helper, or a runtime.
    RuntimeOrHelper,
    /// A shim that was started for this container and has no children: not yet, or not any more.
    IdleShim,
}

impl Shims {
    /// Returns whether activity on a container is seen. Its absence proves little: between the processes that
    /// it runs, containerd itself works on the container.
    pub(crate) async fn has_activity(&self, id: &str) -> Result<bool> {
        let scan = self.scan().await?;
        Ok(self.activity_in(&scan, id) != Activity::None)
    }

    /// Waits until containerd has finished the cleanup after an earlier process of a container, as far as
    /// that can be seen: the objects that it removes have the same names as those that the next start
    /// creates. Continues after [`CLEANUP_TIMEOUT`]. Cancel-safe.
    pub(crate) async fn wait_containerd_cleanup(&self, id: &str) -> Result<()> {
        timeout(CLEANUP_TIMEOUT, self.wait_quiet(id))
            .await
            .unwrap_or_else(|_| {
                tracing::warn!(
                    object = id,
                    "containerd has not finished the cleanup of this container's earlier process in time: continuing without it"
                );
                Ok(())
            })
    }

    async fn wait_quiet(&self, id: &str) -> Result<()> {
        let containerd = self.containerd().await;
        let mut scan = self.scan().await?;
        let mut quiet = Quiet::default();
        loop {
            let is_active = self.activity_in(&scan, id) == Activity::RuntimeOrHelper;
            if quiet.is_over_after(is_active, Instant::now()) {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            // What is active may start a shim that is not known yet.
            let again = match containerd.filter(|_| !is_active) {
                Some(containerd) => self.look_again(containerd).await?,
                None => None,
            };
            scan = match again {
                Some(again) => again,
                None => self.scan().await?,
            };
        }
    }

    /// The activity after the last scan, by a look that begins after this call and is one for all who wait. `None` if only a
    /// scan shows it.
    async fn look_again(&self, containerd: ProcessId) -> Result<Option<Arc<ShimScan>>> {
        let scans = Arc::clone(&self.scans);
        let address = self.client.address().to_path_buf();
        let namespace = self.client.namespace().to_owned();
        let look = self.looks.next(move || {
            let again = scans.latest()?.again(containerd, &address, &namespace)?;
            Some((containerd, Arc::new(again)))
        });
        let looked = look.await?;
        // Another one who waits may know another containerd.
        let own = (*looked).as_ref().filter(|(of, _)| *of == containerd);
        Ok(own.map(|(_, again)| Arc::clone(again)))
    }

    /// The process of containerd; `None` if what listens at its socket is another program, as a service manager that has
    /// made the socket, or is not visible.
    async fn containerd(&self) -> Option<ProcessId> {
        let pid = listener(self.client.address()).await?;
        let look = move || Ok(ProcessId::of(pid).and_then(read_root_process));
        let found = blocking(look).await.ok()??;
        is_containerd(&found).then_some(found.process)
    }

    fn activity_in(&self, scan: &ShimScan, id: &str) -> Activity {
        detect_activity(
            &scan.all,
            &scan.root_processes,
            self.client.address(),
            self.client.namespace(),
            id,
        )
    }
}

// === impl Quiet ===

impl Quiet {
    /// Notes what a look has shown that ended at this time. Returns whether there has been no activity for [`QUIET_PERIOD`].
    /// Pure.
    fn is_over_after(&mut self, is_active: bool, now: Instant) -> bool {
        if is_active {
            self.0 = None;
            return false;
        }
        let since = *self.0.get_or_insert(now);
        now.saturating_duration_since(since) >= QUIET_PERIOD
    }
}

/// The process that listens at a socket.
pub(crate) async fn listener(address: &Path) -> Option<i32> {
    let connected = timeout(CONNECT_LIMIT, UnixStream::connect(address)).await;
    connected.ok()?.ok()?.peer_cred().ok()?.pid()
}

/// Returns whether a process is a containerd, by its program. Pure.
fn is_containerd(process: &RootProcess) -> bool {
    let program = process.command.first().map(PathBuf::from);
    program.is_some_and(|program| {
        program
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("containerd"))
    })
}

/// The activity on a container, from all processes and the command lines of those that are believed. Pure.
fn detect_activity(
    all: &[Stat],
    root_processes: &[RootProcess],
    address: &Path,
    namespace: &str,
    id: &str,
) -> Activity {
    let is_helper_of_id = |root: &RootProcess| {
        is_helper(root)
            && is_shim_of(root, address, namespace)
            && flag(root, "-id").as_deref() == Some(id)
    };
    let shims = own_shims(all, root_processes, address, namespace);
    let is_runtime_of_id = |root: &RootProcess| {
        shims
            .iter()
            .any(|shim| shim.children.contains(&root.process))
            && root.command.last().is_some_and(|last| last == id)
            && root
                .command
                .iter()
                .any(|word| RUNTIME_VERBS.contains(&word.as_str()))
    };
    if root_processes
        .iter()
        .any(|root| is_helper_of_id(root) || is_runtime_of_id(root))
    {
        return Activity::RuntimeOrHelper;
    }
    let idle = shims
        .iter()
        .any(|shim| *shim.id == *id && !shim.bundle_deleted && shim.children.is_empty());
    if idle {
        Activity::IdleShim
    } else {
        Activity::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET: &str = "/run/c.sock";
    const AA: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const BB: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    /// A process and its command line.
    type Seen = (Stat, RootProcess);

    fn process(pid: i32, parent: i32, command: &str) -> Seen {
        let command = command.split(' ').map(str::to_owned).collect();
        let id = ProcessId { pid, started: 1 };
        (
            Stat {
                id,
                parent,
                ended: false,
                status: None,
            },
            RootProcess {
                process: id,
                command,
                cwd_deleted: false,
            },
        )
    }

    fn shim(pid: i32, namespace: &str, id: &str, rest: &str) -> Seen {
        let command = format!(
            "/usr/bin/containerd-shim-runc-v2 -namespace {namespace} -id {id} -address {SOCKET}{rest}"
        );
        process(pid, 1, &command)
    }

    #[track_caller]
    fn check(processes: &[Seen], expected: Activity) {
        let (all, root_processes): (Vec<_>, Vec<_>) = processes.iter().cloned().unzip();
        assert_eq!(
            detect_activity(&all, &root_processes, Path::new(SOCKET), "k8s.io", AA),
            expected
        );
    }

    #[test]
    fn helpers_of_a_shim_are_at_work_on_the_container_that_they_name() {
        for verb in [" start", " delete"] {
            check(&[shim(9, "k8s.io", AA, verb)], Activity::RuntimeOrHelper);
            check(&[shim(9, "k8s.io", BB, verb)], Activity::None);
            check(&[shim(9, "moby", AA, verb)], Activity::None);
        }
    }

    #[test]
    fn a_shim_that_serves_a_pod_is_at_work_on_the_container_that_its_runtime_names() {
        let of_pod = shim(10, "k8s.io", BB, "");
        let serving = process(11, 10, "sleep 1000");
        check(&[of_pod.clone(), serving.clone()], Activity::None);
        let runtime = process(
            12,
            10,
            &format!("runc --root /run/runc create --bundle /run/x {AA}"),
        );
        check(
            &[of_pod.clone(), serving.clone(), runtime],
            Activity::RuntimeOrHelper,
        );
        let another = process(
            12,
            10,
            &format!("runc --root /run/runc create --bundle /run/x {BB}"),
        );
        check(&[of_pod, serving, another], Activity::None);
        let nobodys = process(12, 1, &format!("runc create {AA}"));
        check(&[nobodys], Activity::None);
    }

    #[test]
    fn a_shim_that_was_started_for_a_container_counts_until_it_serves_somebody() {
        let own = shim(10, "k8s.io", AA, "");
        check(std::slice::from_ref(&own), Activity::IdleShim);
        check(
            &[own.clone(), process(11, 10, "sleep 1000")],
            Activity::None,
        );
        check(
            &[(
                own.0,
                RootProcess {
                    cwd_deleted: true,
                    ..own.1
                },
            )],
            Activity::None,
        );
        check(&[shim(10, "moby", AA, "")], Activity::None);
        let command =
            format!("containerd-shim-runc-v2 -namespace k8s.io -id {AA} -address /run/other.sock");
        check(&[process(10, 1, &command)], Activity::None);
    }

    #[test]
    fn quiet_period_begins_with_a_look_that_shows_no_activity() {
        let cases: [(&[(u64, bool)], bool); 7] = [
            (&[(0, false)], false),
            (&[(0, false), (199, false)], false),
            (&[(0, false), (200, false)], true),
            // The activity may have ended only just now.
            (&[(0, true), (5_000, false)], false),
            (&[(0, true), (5_000, false), (5_200, false)], true),
            (&[(0, false), (150, true), (300, false)], false),
            (
                &[(0, false), (150, true), (300, false), (10_000, false)],
                true,
            ),
        ];
        let begin = Instant::now();
        for (looks, expected) in cases {
            let mut quiet = Quiet::default();
            let mut last = false;
            for (at, is_active) in looks {
                last = quiet.is_over_after(*is_active, begin + Duration::from_millis(*at));
            }
            assert_eq!(last, expected, "{looks:?}");
        }
    }

    #[test]
    fn containerd_is_known_by_its_program() {
        for (command, expected) in [
            (
                "/usr/bin/containerd --config /etc/containerd/config.toml",
                true,
            ),
            ("containerd", true),
            ("/opt/bin/containerd-1.7 --log-level warn", true),
            ("/usr/lib/systemd/systemd --system", false),
            ("/usr/bin/dockerd --containerd /run/containerd.sock", false),
            ("", false),
        ] {
            assert_eq!(
                is_containerd(&process(9, 1, command).1),
                expected,
                "{command}"
            );
        }
    }
}
