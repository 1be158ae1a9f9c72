//! Shims that containerd has forgotten: a kill in the middle of a creation or deletion leaves them, and no call finds them.
//!
//! A shim is one of these if it serves our containerd and namespace, containerd has deleted its bundle (its working directory), and
//! neither the id it was started for nor any child of it is a task that containerd knows. (A shim that serves a whole pod may
//! outlive the container it was started for, and one that somebody is just starting has its bundle.)

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_cgroup::Group;
use switchyard_core::{Error, Result};

use crate::backend::Inner;
use crate::client::{QUICK, call};
use crate::config::Mode;
use crate::text::{blocking, remove_tree};

/// How long a shim may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// A shim that nobody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Orphan {
    pid: i32,
    /// The container it was started for.
    id: String,
    /// Processes of that container.
    children: Vec<i32>,
}

/// A process as `/proc` shows it.
#[derive(Debug, Clone)]
struct Process {
    pid: i32,
    parent: i32,
    command: Vec<String>,
    /// Its working directory has been deleted.
    homeless: bool,
}

impl Inner {
    /// Ends shims that containerd has forgotten, with what they run. Tasks that have ended have been deleted before.
    pub(super) async fn clear_shims(&self) -> Result<()> {
        // Processes first: whatever is started after this look is not in it.
        let found = blocking(|| Ok(processes())).await?;
        let request = containerd_client::services::v1::ListTasksRequest::default();
        let tasks = call("list tasks", QUICK, self.client.tasks().list(request)).await?.tasks;
        let ids: HashSet<String> = tasks.iter().map(|task| task.id.clone()).collect();
        let pids: HashSet<i32> = tasks.iter().filter_map(|task| i32::try_from(task.pid).ok()).collect();
        let orphans =
            orphans(&found, self.client.address(), &self.settings.containerd.namespace, &ids, &pids);
        let oci = (self.settings.containerd.mode == Mode::Managed)
            .then(|| self.settings.run.join("oci").join(&self.settings.containerd.namespace));
        for orphan in orphans {
            tracing::warn!(pid = orphan.pid, id = orphan.id, "ending a shim that containerd has forgotten");
            // What is found now was there before anything new is made; ending it may take a while, and nobody waits for it.
            let (cgroups, oci) = (Arc::clone(&self.cgroups), oci.clone());
            self.tracker.spawn(async move {
                if let Err(error) = clear(orphan.clone(), cgroups, oci).await {
                    tracing::error!(pid = orphan.pid, error = error.report(), "a forgotten shim is left");
                }
            });
        }
        Ok(())
    }
}

async fn clear(orphan: Orphan, cgroups: Arc<switchyard_cgroup::Reader>, oci: Option<PathBuf>) -> Result<()> {
    let id = orphan.id.clone();
    blocking(move || end(&orphan, &cgroups)).await?;
    match oci {
        Some(oci) => remove_tree(&oci.join(id)).await,
        None => Ok(()),
    }
}

/// Decides which processes are forgotten shims. Pure.
fn orphans(
    processes: &[Process],
    address: &Path,
    namespace: &str,
    ids: &HashSet<String>,
    pids: &HashSet<i32>,
) -> Vec<Orphan> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process.pid);
    }
    let flag = |process: &Process, name: &str| {
        let mut words = process.command.iter();
        words.find(|word| *word == name)?;
        words.next().cloned()
    };
    processes
        .iter()
        .filter(|process| {
            let program = process.command.first().map(PathBuf::from).unwrap_or_default();
            program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("containerd-shim"))
        })
        .filter(|process| flag(process, "-address").is_some_and(|found| Path::new(&found) == address))
        .filter(|process| flag(process, "-namespace").as_deref() == Some(namespace))
        // The helper that starts or deletes a shim has a verb at its end and is gone in a moment.
        .filter(|process| {
            !process.command.last().is_some_and(|last| matches!(last.as_str(), "start" | "delete"))
        })
        .filter(|process| process.homeless)
        .filter_map(|process| {
            let id = flag(process, "-id")?;
            let children = children.get(&process.pid).cloned().unwrap_or_default();
            let known = ids.contains(&id) || children.iter().any(|child| pids.contains(child));
            (!known).then_some(Orphan { pid: process.pid, id, children })
        })
        .collect()
}

fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name is in parentheses and may hold anything; the parent is the second field after it.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let command = command
                .split(|byte| *byte == 0)
                .filter(|word| !word.is_empty())
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            let home = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            let homeless = home.to_string_lossy().ends_with(" (deleted)");
            Some(Process { pid, parent, command, homeless })
        })
        .collect()
}

/// Ends a shim and what it runs. Blocks.
fn end(orphan: &Orphan, cgroups: &switchyard_cgroup::Reader) -> Result<()> {
    let groups: HashSet<Group> = orphan.children.iter().flat_map(|pid| groups_of(*pid, &orphan.id)).collect();
    for child in &orphan.children {
        signal(*child, Signal::SIGKILL)?;
    }
    signal(orphan.pid, Signal::SIGTERM)?;
    let deadline = Instant::now() + PATIENCE;
    while Path::new(&format!("/proc/{}/cmdline", orphan.pid)).exists() {
        if Instant::now() > deadline {
            signal(orphan.pid, Signal::SIGKILL)?;
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for group in groups {
        cgroups.remove(&group)?;
    }
    Ok(())
}

/// The cgroups of a process that bear this id.
fn groups_of(pid: i32, id: &str) -> Vec<Group> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .filter(|path| path.contains(id))
        .filter_map(|path| Group::from_path(Path::new(path)).ok())
        .collect()
}

fn signal(pid: i32, signal: Signal) -> Result<()> {
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(fault) => Err(Error::internal(format!("send {signal} to process {pid}")).with_source(fault)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, command: &str) -> Process {
        Process { pid, parent, command: command.split(' ').map(str::to_owned).collect(), homeless: true }
    }

    fn shim(pid: i32, id: &str, address: &str) -> Process {
        process(
            pid,
            1,
            &format!("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id {id} -address {address}"),
        )
    }

    #[track_caller]
    fn check(processes: &[Process], ids: &[&str], pids: &[i32], expected: &[i32]) {
        let ids = ids.iter().map(ToString::to_string).collect();
        let found =
            orphans(processes, Path::new("/run/c.sock"), "k8s.io", &ids, &pids.iter().copied().collect());
        assert_eq!(found.iter().map(|orphan| orphan.pid).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_shim_is_forgotten_if_neither_its_id_nor_a_child_is_a_known_task() {
        let all = [shim(10, "aa", "/run/c.sock"), process(11, 10, "sleep 5")];
        check(&all, &[], &[], &[10]);
        check(&all, &["aa"], &[], &[]);
        check(&all, &[], &[11], &[]);
    }

    #[test]
    fn a_shim_whose_bundle_is_there_is_left_alone() {
        let starting = Process { homeless: false, ..shim(10, "aa", "/run/c.sock") };
        check(&[starting], &[], &[], &[]);
    }

    #[test]
    fn the_shims_of_others_and_what_is_no_shim_are_left_alone() {
        let other = shim(10, "aa", "/run/containerd/containerd.sock");
        let foreign =
            process(12, 1, "/usr/bin/containerd-shim-runc-v2 -namespace moby -id bb -address /run/c.sock");
        let helper = process(
            13,
            1,
            "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id cc -address /run/c.sock delete",
        );
        let editor = process(14, 1, "vi -namespace k8s.io -id dd -address /run/c.sock");
        check(&[other, foreign, helper, editor], &[], &[], &[]);
    }
}
