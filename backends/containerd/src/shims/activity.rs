//! Activity on a container, as seen in `/proc`: helpers of shims, runtimes, and shims without children.
//!
//! containerd may still work on a container after it has answered a call, or when the caller is gone, and no
//! API reports it. Visible are the processes that it uses, which have the id of the container on their
//! command lines. A shim that serves a whole pod has the id of the pod's first container there for as long as
//! the pod exists, so that its existence says nothing about that container. A runtime that this shim runs for
//! another container has the id of that container.

use std::path::Path;
use std::time::{Duration, Instant};

use switchyard_core::Result;
use switchyard_linux::process::Stat;

use crate::base::fs::blocking;
use crate::shims::Shims;
use crate::shims::processes::{
    RootProcess, flag, is_helper, is_shim_of, own_shims, scan_processes,
};

/// The subcommands of a runtime that create, start or delete a container.
const RUNTIME_VERBS: [&str; 3] = ["create", "start", "delete"];

/// Time without visible activity after which a cleanup counts as finished: containerd removes the bundle
/// after its helper has exited.
const QUIET_PERIOD: Duration = Duration::from_millis(200);
/// Limit for which a cleanup is waited for.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two scans of `/proc`.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

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
        Ok(self.activity_on(id).await? != Activity::None)
    }

    /// Waits until containerd has finished the cleanup after an earlier process of a container, as far as
    /// that can be seen: the objects that it removes have the same names as those that the next start
    /// creates. Continues after [`CLEANUP_TIMEOUT`]. Cancel-safe.
    pub(crate) async fn wait_containerd_cleanup(&self, id: &str) -> Result<()> {
        let deadline = Instant::now() + CLEANUP_TIMEOUT;
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < QUIET_PERIOD {
            if self.activity_on(id).await? == Activity::RuntimeOrHelper {
                quiet_since = Instant::now();
            }
            if Instant::now() > deadline {
                tracing::warn!(
                    object = id,
                    "containerd has not finished the cleanup of this container's earlier process in time: continuing without it"
                );
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn activity_on(&self, id: &str) -> Result<Activity> {
        let address = self.client.address().to_path_buf();
        let namespace = self.context.settings().containerd.namespace.clone();
        let id = id.to_owned();
        blocking(move || {
            let (all, root_processes) = scan_processes();
            Ok(detect_activity(
                &all,
                &root_processes,
                &address,
                &namespace,
                &id,
            ))
        })
        .await
    }
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
    use switchyard_linux::process::ProcessId;

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
}
