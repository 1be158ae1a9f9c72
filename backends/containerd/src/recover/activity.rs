//! Who is at work on a container just now, seen in `/proc`: helpers of shims, runtimes, and shims that have nothing to show yet.
//!
//! containerd goes on working after it has answered, or without anybody who waits for an answer, and tells nobody. What it works with
//! are processes that name the container. A shim that serves the whole pod names only the first container of it, for as long as the pod
//! stands: that it runs says nothing. A runtime that it runs for another container names that one.

use std::path::Path;
use std::time::{Duration, Instant};

use switchyard_core::Result;
use switchyard_process::Stat;

use super::shims::{RootProcess, flag, is_helper, is_shim_of, own_shims, scan_processes};
use crate::backend::Inner;
use crate::fs::blocking;

/// What a runtime is told to do with a container that is made or taken away.
const RUNTIME_VERBS: [&str; 3] = ["create", "start", "delete"];

/// How long nobody must be seen at work until the work is over: containerd takes the bundle away after its helper has ended.
const QUIET_PERIOD: Duration = Duration::from_millis(200);
/// How long somebody may be at work until it is not waited for any more.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Who is at work on a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// Nobody is seen.
    None,
    /// A helper of a shim, or a runtime.
    RuntimeOrHelper,
    /// A shim that was started for it, and has nothing yet or any more.
    IdleShim,
}

impl Inner {
    /// Whether somebody makes a container or takes it away. That nobody is seen means little: containerd itself is at it in between.
    pub(super) async fn has_activity(&self, id: &str) -> Result<bool> {
        Ok(self.activity_on(id).await? != Activity::None)
    }

    /// Waits until containerd has cleared up after an earlier process of a container, for as long as that can be seen: what it takes
    /// away then bears the same name as what is made next. Cancel-safe.
    pub(crate) async fn wait_containerd_cleanup(&self, id: &str) -> Result<()> {
        let deadline = Instant::now() + CLEANUP_TIMEOUT;
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < QUIET_PERIOD {
            if self.activity_on(id).await? == Activity::RuntimeOrHelper {
                quiet_since = Instant::now();
            }
            if Instant::now() > deadline {
                tracing::warn!(
                    id,
                    "somebody is still at work on an earlier process of this container: going on"
                );
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn activity_on(&self, id: &str) -> Result<Activity> {
        let address = self.client.address().to_path_buf();
        let namespace = self.settings.containerd.namespace.clone();
        let id = id.to_owned();
        blocking(move || {
            let (all, said) = scan_processes();
            Ok(detect_activity(&all, &said, &address, &namespace, &id))
        })
        .await
    }
}

/// Decides who is at work on a container, by all processes and by what those say that are to be believed. Pure.
fn detect_activity(
    all: &[Stat],
    said: &[RootProcess],
    address: &Path,
    namespace: &str,
    id: &str,
) -> Activity {
    let helps = |said: &RootProcess| {
        is_helper(said) && is_shim_of(said, address, namespace) && flag(said, "-id").as_deref() == Some(id)
    };
    let shims = own_shims(all, said, address, namespace);
    let runs = |said: &RootProcess| {
        shims.iter().any(|shim| shim.children.contains(&said.process))
            && said.command.last().is_some_and(|last| last == id)
            && said.command.iter().any(|word| RUNTIME_VERBS.contains(&word.as_str()))
    };
    if said.iter().any(|said| helps(said) || runs(said)) {
        return Activity::RuntimeOrHelper;
    }
    let idle = shims.iter().any(|shim| *shim.id == *id && !shim.bundle_deleted && shim.children.is_empty());
    if idle { Activity::IdleShim } else { Activity::None }
}

#[cfg(test)]
mod tests {
    use switchyard_process::ProcessId;

    use super::*;

    const SOCKET: &str = "/run/c.sock";
    const AA: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const BB: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    /// A process, and what it says.
    type Seen = (Stat, RootProcess);

    fn process(pid: i32, parent: i32, command: &str) -> Seen {
        let command = command.split(' ').map(str::to_owned).collect();
        let id = ProcessId { pid, started: 1 };
        (
            Stat { id, parent, ended: false, status: None },
            RootProcess { process: id, command, cwd_deleted: false },
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
        let (all, said): (Vec<_>, Vec<_>) = processes.iter().cloned().unzip();
        assert_eq!(detect_activity(&all, &said, Path::new(SOCKET), "k8s.io", AA), expected);
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
        let runtime = process(12, 10, &format!("runc --root /run/runc create --bundle /run/x {AA}"));
        check(&[of_pod.clone(), serving.clone(), runtime], Activity::RuntimeOrHelper);
        let another = process(12, 10, &format!("runc --root /run/runc create --bundle /run/x {BB}"));
        check(&[of_pod, serving, another], Activity::None);
        let nobodys = process(12, 1, &format!("runc create {AA}"));
        check(&[nobodys], Activity::None);
    }

    #[test]
    fn a_shim_that_was_started_for_a_container_counts_until_it_serves_somebody() {
        let own = shim(10, "k8s.io", AA, "");
        check(std::slice::from_ref(&own), Activity::IdleShim);
        check(&[own.clone(), process(11, 10, "sleep 1000")], Activity::None);
        check(&[(own.0, RootProcess { cwd_deleted: true, ..own.1 })], Activity::None);
        check(&[shim(10, "moby", AA, "")], Activity::None);
        let command = format!("containerd-shim-runc-v2 -namespace k8s.io -id {AA} -address /run/other.sock");
        check(&[process(10, 1, &command)], Activity::None);
    }
}
