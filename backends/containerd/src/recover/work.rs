//! Who is at work on a container just now, seen in `/proc`: helpers of shims, runtimes, and shims that have nothing to show yet.
//!
//! containerd goes on working after it has answered, or without anybody who waits for an answer, and tells nobody. What it works with
//! are processes that name the container. A shim that serves the whole pod names only the first container of it, for as long as the pod
//! stands: that it runs says nothing. A runtime that it runs for another container names that one.

use std::path::Path;
use std::time::{Duration, Instant};

use switchyard_core::Result;
use switchyard_process::Stat;

use super::shims::{Said, flag, is_helper, is_shim_of, look, ours};
use crate::backend::Inner;
use crate::text::blocking;

/// What a runtime is told to do with a container that is made or taken away.
const VERBS: [&str; 3] = ["create", "start", "delete"];

/// How long nobody must be seen at work until the work is over: containerd takes the bundle away after its helper has ended.
const QUIET: Duration = Duration::from_millis(200);
/// How long somebody may be at work until it is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Who is at work on a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Nobody is seen.
    None,
    /// A helper of a shim, or a runtime.
    Hands,
    /// A shim that was started for it, and has nothing yet or any more.
    Shim,
}

impl Inner {
    /// Whether somebody makes a container or takes it away. That nobody is seen means little: containerd itself is at it in between.
    pub(super) async fn is_worked_on(&self, id: &str) -> Result<bool> {
        Ok(self.work_on(id).await? != Work::None)
    }

    /// Waits until containerd has cleared up after an earlier process of a container, for as long as that can be seen: what it takes
    /// away then bears the same name as what is made next. Cancel-safe.
    pub(crate) async fn cleared_up(&self, id: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < QUIET {
            if self.work_on(id).await? == Work::Hands {
                quiet_since = Instant::now();
            }
            if Instant::now() > deadline {
                tracing::warn!(
                    id,
                    "somebody is still at work on an earlier process of this container: going on"
                );
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn work_on(&self, id: &str) -> Result<Work> {
        let address = self.client.address().to_path_buf();
        let namespace = self.settings.containerd.namespace.clone();
        let id = id.to_owned();
        blocking(move || {
            let (all, said) = look();
            Ok(work(&all, &said, &address, &namespace, &id))
        })
        .await
    }
}

/// Decides who is at work on a container, by all processes and by what those say that are to be believed. Pure.
fn work(all: &[Stat], said: &[Said], address: &Path, namespace: &str, id: &str) -> Work {
    let helps = |said: &Said| {
        is_helper(said) && is_shim_of(said, address, namespace) && flag(said, "-id").as_deref() == Some(id)
    };
    let shims = ours(all, said, address, namespace);
    let runs = |said: &Said| {
        shims.iter().any(|shim| shim.children.contains(&said.process))
            && said.command.last().is_some_and(|last| last == id)
            && said.command.iter().any(|word| VERBS.contains(&word.as_str()))
    };
    if said.iter().any(|said| helps(said) || runs(said)) {
        return Work::Hands;
    }
    let idle = shims.iter().any(|shim| *shim.id == *id && !shim.homeless && shim.children.is_empty());
    if idle { Work::Shim } else { Work::None }
}

#[cfg(test)]
mod tests {
    use switchyard_process::ProcessId;

    use super::*;

    const SOCKET: &str = "/run/c.sock";
    const AA: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const BB: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    /// A process, and what it says.
    type Seen = (Stat, Said);

    fn process(pid: i32, parent: i32, command: &str) -> Seen {
        let command = command.split(' ').map(str::to_owned).collect();
        let id = ProcessId { pid, started: 1 };
        (Stat { id, parent, ended: false, status: None }, Said { process: id, command, homeless: false })
    }

    fn shim(pid: i32, namespace: &str, id: &str, rest: &str) -> Seen {
        let command = format!(
            "/usr/bin/containerd-shim-runc-v2 -namespace {namespace} -id {id} -address {SOCKET}{rest}"
        );
        process(pid, 1, &command)
    }

    #[track_caller]
    fn check(processes: &[Seen], expected: Work) {
        let (all, said): (Vec<_>, Vec<_>) = processes.iter().cloned().unzip();
        assert_eq!(work(&all, &said, Path::new(SOCKET), "k8s.io", AA), expected);
    }

    #[test]
    fn helpers_of_a_shim_are_at_work_on_the_container_that_they_name() {
        for verb in [" start", " delete"] {
            check(&[shim(9, "k8s.io", AA, verb)], Work::Hands);
            check(&[shim(9, "k8s.io", BB, verb)], Work::None);
            check(&[shim(9, "moby", AA, verb)], Work::None);
        }
    }

    #[test]
    fn a_shim_that_serves_a_pod_is_at_work_on_the_container_that_its_runtime_names() {
        let of_pod = shim(10, "k8s.io", BB, "");
        let serving = process(11, 10, "sleep 1000");
        check(&[of_pod.clone(), serving.clone()], Work::None);
        let runtime = process(12, 10, &format!("runc --root /run/runc create --bundle /run/x {AA}"));
        check(&[of_pod.clone(), serving.clone(), runtime], Work::Hands);
        let another = process(12, 10, &format!("runc --root /run/runc create --bundle /run/x {BB}"));
        check(&[of_pod, serving, another], Work::None);
        let nobodys = process(12, 1, &format!("runc create {AA}"));
        check(&[nobodys], Work::None);
    }

    #[test]
    fn a_shim_that_was_started_for_a_container_counts_until_it_serves_somebody() {
        let own = shim(10, "k8s.io", AA, "");
        check(std::slice::from_ref(&own), Work::Shim);
        check(&[own.clone(), process(11, 10, "sleep 1000")], Work::None);
        check(&[(own.0, Said { homeless: true, ..own.1 })], Work::None);
        check(&[shim(10, "moby", AA, "")], Work::None);
        let command = format!("containerd-shim-runc-v2 -namespace k8s.io -id {AA} -address /run/other.sock");
        check(&[process(10, 1, &command)], Work::None);
    }
}
