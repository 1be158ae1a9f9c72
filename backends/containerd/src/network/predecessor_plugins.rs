//! CNI plugins that a predecessor ran and that outlived it. The daemon waits until they have exited before it
//! works on the network of their sandbox.
//!
//! A plugin that is killed while it removes a network leaves rules that no later run of it finds. So plugins
//! are left to finish; only one that hangs is killed. GC is killed at once: it knows the attachments of its daemon, and would
//! take those of the next one for left over. The next GC does all of it again.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use switchyard_cni as cni;
use switchyard_core::id::SandboxId;
use switchyard_core::{Error, Result};
use switchyard_linux::process::ProcessId;

use crate::base::fs::blocking;
use crate::network::Network;

/// Limit for killed plugins to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two checks whether plugins have exited.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Network {
    /// Finds the running plugins of predecessors. Has to be called before this daemon runs plugins of its
    /// own.
    ///
    /// # Errors
    /// The processes of the node cannot be read.
    pub(crate) async fn find_predecessor_plugins(&self) -> Result<()> {
        self.end_predecessor_gc().await?;
        let pins = self.context.layout.all_pins();
        let found = blocking(move || Ok(find_plugin_processes(&pins))).await?;
        let mut plugins: HashMap<SandboxId, Vec<ProcessId>> = HashMap::new();
        for (process, id) in found {
            plugins.entry(id).or_default().push(process);
        }
        *self.predecessor_plugins() = plugins;
        Ok(())
    }

    /// Kills GC that a predecessor has begun, with the programs that it runs. One that hangs in a call of the kernel, as on a bad disk, is
    /// left: it does nothing more of its own when the call ends.
    async fn end_predecessor_gc(&self) -> Result<()> {
        let deadline = Instant::now() + KILL_TIMEOUT;
        loop {
            let run = self.context.layout.run().to_path_buf();
            let all = blocking(move || Ok(find_gc_processes(&run))).await?;
            if all.is_empty() {
                return Ok(());
            }
            let pids: Vec<_> = all.iter().map(|process| process.pid).collect();
            tracing::warn!(
                ?pids,
                "killing GC of CNI plugins that a predecessor has begun"
            );
            kill_all(&all)?;
            // One that was started meanwhile is found when the others have exited.
            if Instant::now() > deadline || !wait_all_exited(&all, KILL_TIMEOUT).await {
                tracing::warn!(
                    ?pids,
                    "GC of CNI plugins that a predecessor has begun has not ended after SIGKILL: it ends with the call of the kernel that it is in"
                );
                return Ok(());
            }
        }
    }

    /// Waits until the plugins that predecessors ran for this sandbox have exited, and kills those that do
    /// not within the configured timeout of a plugin. Idempotent.
    ///
    /// # Errors
    /// `Unavailable` if one does not exit even after SIGKILL.
    pub(crate) async fn wait_predecessor_plugins(&self, id: SandboxId) -> Result<()> {
        let Some(all) = self.predecessor_plugins().get(&id).cloned() else {
            return Ok(());
        };
        let limit = Duration::from_secs(
            self.context
                .settings()
                .network
                .plugin_timeout_seconds
                .max(1),
        );
        if !wait_all_exited(&all, limit).await {
            let late: Vec<_> = all.iter().filter(|process| process.is_alive()).collect();
            let pids: Vec<_> = late.iter().map(|process| process.pid).collect();
            tracing::warn!(sandbox = %id, ?pids, "killing CNI plugins of a predecessor that did not exit in time");
            kill_all(late)?;
            if !wait_all_exited(&all, KILL_TIMEOUT).await {
                return Err(Error::unavailable(format!(
                    "CNI plugins of sandbox {id} have not exited after SIGKILL"
                )));
            }
        }
        self.predecessor_plugins().remove(&id);
        Ok(())
    }
}

fn kill_all<'p>(processes: impl IntoIterator<Item = &'p ProcessId>) -> Result<()> {
    for process in processes {
        process.signal(Signal::SIGKILL).map_err(|fault| {
            Error::internal(format!("kill the CNI plugin {}", process.pid)).with_source(fault)
        })?;
    }
    Ok(())
}

/// Returns whether all of these processes have exited within `limit`.
async fn wait_all_exited(all: &[ProcessId], limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while all.iter().any(ProcessId::is_alive) {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    true
}

/// Processes that work on the network of a sandbox, with its id. A plugin gets the path of the namespace, which is pinned
/// below `pins`, in its environment, and the programs that it runs inherit that. Without a namespace, as after a reboot,
/// it gets the id alone.
fn find_plugin_processes<I: FromStr>(pins: &Path) -> Vec<(ProcessId, I)> {
    find_processes(|environment| sandbox_of(environment, pins))
}

/// Processes of GC that the instance with this run directory has begun, and the programs that they run.
fn find_gc_processes(run: &Path) -> Vec<ProcessId> {
    let found = find_processes(|environment| is_gc_of(environment, run).then_some(()));
    found.into_iter().map(|(process, ())| process).collect()
}

/// Processes with an environment in which `wanted` finds something, with that. Only processes of the node's own root user are
/// considered: a user's or a container's process can have any environment.
fn find_processes<T>(wanted: impl Fn(&[u8]) -> Option<T>) -> Vec<(ProcessId, T)> {
    let look = |process: ProcessId| {
        let environment = switchyard_linux::process::is_own_root(process.pid)
            .then(|| environment_of(process.pid))??;
        let found = wanted(&environment)?;
        // Checked last: if the pid still belongs to the same process, so did the environment that was read.
        process.is_alive().then_some((process, found))
    };
    switchyard_linux::process::all()
        .into_iter()
        .filter_map(|stat| look(stat.id))
        .collect()
}

/// The environment of a process; `None` if it is gone.
fn environment_of(pid: i32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/environ")).ok()
}

/// The sandbox that a plugin with this environment works on; `None` for any other process, and for a zombie. Pure.
fn sandbox_of<I: FromStr>(environment: &[u8], pins: &Path) -> Option<I> {
    let value = |name: &str| value_of(environment, name).map(OsStr::from_bytes);
    let id = match Path::new(value("CNI_NETNS")?) {
        none if none.as_os_str().is_empty() => value("CNI_CONTAINERID")?,
        namespace => namespace.strip_prefix(pins).ok()?.iter().next()?,
    };
    id.to_str()?.parse().ok()
}

/// Returns whether a process with this environment is GC of the instance with this run directory, or was started by it. Pure.
fn is_gc_of(environment: &[u8], run: &Path) -> bool {
    let is_gc = value_of(environment, "CNI_COMMAND") == Some(b"GC".as_slice());
    // Other runtimes have GC too.
    is_gc && value_of(environment, cni::GC_OF) == Some(run.as_os_str().as_bytes())
}

/// The value of a variable. Pure.
fn value_of<'e>(environment: &'e [u8], name: &str) -> Option<&'e [u8]> {
    let mut lines = environment.split(|byte| *byte == 0);
    lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use super::*;

    /// A process of this user with the environment of a plugin.
    fn start(uid: u32, netns: &Path) -> (Child, ProcessId) {
        let child = Command::new("sleep")
            .arg("1000")
            .env("CNI_NETNS", netns)
            .uid(uid)
            .spawn()
            .unwrap();
        let process = ProcessId::of(i32::try_from(child.id()).unwrap()).unwrap();
        // Until the child has called `execve`, its environment is that of the test process.
        let deadline = Instant::now() + KILL_TIMEOUT;
        let begun = || {
            environment_of(process.pid)
                .is_some_and(|text| sandbox_of::<String>(&text, Path::new("/")).is_some())
        };
        while !begun() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        (child, process)
    }

    #[tokio::test]
    async fn a_plugin_is_found_by_the_namespace_it_works_on_and_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let netns = dir.path().join("abc/net");
        let (mut plugin, process) = start(0, &netns);
        let (mut foreign, other) = start(65_534, &netns);
        let environment = environment_of(other.pid).unwrap();
        let named = sandbox_of::<String>(&environment, dir.path());
        assert_eq!(
            named.as_deref(),
            Some("abc"),
            "it has the environment of a plugin"
        );
        assert_eq!(
            find_plugin_processes::<String>(dir.path()),
            [(process, "abc".to_owned())]
        );
        assert!(find_plugin_processes::<String>(&dir.path().join("other")).is_empty());
        assert!(!wait_all_exited(&[process], Duration::ZERO).await);
        plugin.kill().unwrap();
        plugin.wait().unwrap();
        assert!(wait_all_exited(&[process], Duration::ZERO).await);
        foreign.kill().unwrap();
        foreign.wait().unwrap();
    }

    #[test]
    fn a_plugin_is_known_by_its_namespace_or_without_one_by_its_sandbox() {
        let check = |lines: &[&str], expected: Option<u32>| {
            let environment = lines
                .iter()
                .map(|line| format!("{line}\0"))
                .collect::<String>();
            assert_eq!(
                sandbox_of(environment.as_bytes(), Path::new("/pins")),
                expected,
                "{lines:?}"
            );
        };
        check(
            &["PATH=/bin", "CNI_NETNS=/pins/7/net", "CNI_CONTAINERID=8"],
            Some(7),
        );
        check(&["CNI_NETNS=/elsewhere/7/net", "CNI_CONTAINERID=8"], None);
        check(&["CNI_NETNS=", "CNI_CONTAINERID=8"], Some(8));
        check(&["CNI_NETNS=", "CNI_CONTAINERID=no-id"], None);
        check(&["CNI_NETNS="], None);
        check(&["CNI_CONTAINERID=8", "CNI_NETNSX=/pins/7/net"], None);
        check(&[], None);
    }

    #[test]
    fn gc_is_known_by_the_instance_that_has_begun_it() {
        for (lines, expected) in [
            (
                &["PATH=/bin", "CNI_COMMAND=GC", "SWITCHYARD_GC=/run/a"][..],
                true,
            ),
            // Of another instance, of another runtime, and what is no GC.
            (&["CNI_COMMAND=GC", "SWITCHYARD_GC=/run/b"], false),
            (&["CNI_COMMAND=GC", "SWITCHYARD_GC=/run/a/b"], false),
            (&["CNI_COMMAND=GC", "SWITCHYARD_GC="], false),
            (&["CNI_COMMAND=GC"], false),
            (&["CNI_COMMAND=DEL", "SWITCHYARD_GC=/run/a"], false),
            (&["SWITCHYARD_GC=/run/a"], false),
            (&[], false),
        ] {
            let environment = lines
                .iter()
                .map(|line| format!("{line}\0"))
                .collect::<String>();
            let is_gc = is_gc_of(environment.as_bytes(), Path::new("/run/a"));
            assert_eq!(is_gc, expected, "{lines:?}");
        }
    }

    #[tokio::test]
    async fn a_plugin_that_has_ended_is_not_taken_for_another_that_bears_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let (mut other, process) = start(0, &dir.path().join("abc/net"));
        let ended = ProcessId {
            started: process.started.wrapping_sub(1),
            ..process
        };
        assert!(wait_all_exited(&[ended], Duration::ZERO).await);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
