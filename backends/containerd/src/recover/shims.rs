//! Shims and bundles that containerd has forgotten: a kill of containerd or of a shim at the wrong moment leaves them, and no call
//! finds them.
//!
//! A shim is forgotten if it serves our containerd and namespace, and neither the id it was started for nor any child of it is a task
//! that containerd knows. (A shim that serves a whole pod may outlive the container it was started for.) If containerd has deleted
//! its bundle, its working directory, that is certain at once. If the bundle stands, somebody may just be making the task: beside a
//! containerd of our own the shim is forgotten if that stays so and none of us is at it; beside one that others use it is left alone.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_cgroup::Group;
use switchyard_core::{Error, Result};
use tokio_util::sync::CancellationToken;

use crate::backend::Inner;
use crate::client::{QUICK, call};
use crate::config::Mode;
use crate::health::Contact;
use crate::text::blocking;

/// How long a shim may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// A shim of ours.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shim {
    pub(crate) pid: i32,
    /// When it was started, in ticks since boot: with its process id that names it.
    started: u64,
    /// The container it was started for.
    pub(crate) id: String,
    /// Its children: main processes of containers, and processes that outlived their parents in one.
    pub(crate) children: Vec<i32>,
    /// Its bundle has been deleted.
    homeless: bool,
}

/// A child of a shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) pid: i32,
    /// It has not ended.
    pub(crate) runs: bool,
    /// The text of its `/proc/<pid>/cgroup`, which has the id of its container in it.
    pub(crate) groups: String,
}

/// A process as `/proc` shows it.
#[derive(Debug, Clone)]
struct Process {
    pid: i32,
    parent: i32,
    started: u64,
    command: Vec<String>,
    /// Its working directory has been deleted.
    homeless: bool,
}

/// What containerd does not know, at one look.
#[derive(Debug, Default)]
struct Forgotten {
    shims: Vec<Shim>,
    bundles: BTreeSet<String>,
}

impl Inner {
    /// Looks for what containerd has forgotten, when recovery is done and every few minutes after, until `stop`.
    pub(crate) async fn watch_forgotten(self: Arc<Self>, stop: CancellationToken) {
        let recovery = self.settings.recovery.clone();
        tokio::select! {
            () = self.recovered.cancelled() => {}
            () = stop.cancelled() => return,
        }
        let mut before = Forgotten::default();
        loop {
            if matches!(self.health.now(), Contact::Up { .. }) {
                match self.look_for_forgotten(&before).await {
                    Ok(now) => before = now,
                    Err(error) => {
                        tracing::warn!(error = error.report(), "forgotten shims are looked for again later");
                    }
                }
            }
            // What is suspect is looked at again soon.
            let calm = before.shims.is_empty() && before.bundles.is_empty();
            let pause = if calm { recovery.look() } else { recovery.grace() };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// One look: clears what is certain, and gives what is suspect.
    async fn look_for_forgotten(&self, before: &Forgotten) -> Result<Forgotten> {
        // Processes first: whatever is started after this look is not in it.
        let (shims, bundles) = (self.shims().await?, self.list_bundles()?);
        let mut busy = self.making.now();
        busy.extend(self.inherited().iter().cloned());
        let (ids, pids) = self.known_tasks().await?;
        let managed = self.settings.containerd.mode == Mode::Managed;
        let mut suspect = Forgotten::default();
        for shim in orphans(shims, &ids, &pids) {
            let again = before.shims.iter().any(|seen| (seen.pid, seen.started) == (shim.pid, shim.started));
            if shim.homeless || (managed && again && !busy.contains(&shim.id)) {
                tracing::warn!(pid = shim.pid, id = shim.id, "ending a shim that containerd has forgotten");
                let id = shim.id.clone();
                end(shim, Arc::clone(&self.cgroups)).await?;
                self.clear_bundle(&id).await?;
            } else if managed {
                suspect.shims.push(shim);
            }
        }
        for id in bundles.into_iter().filter(|id| !ids.contains(id)) {
            let with_shim = suspect.shims.iter().any(|shim| shim.id == id);
            if before.bundles.contains(&id) && !busy.contains(&id) && !with_shim {
                tracing::warn!(id, "removing a bundle that containerd has forgotten");
                self.clear_bundle(&id).await?;
            } else {
                suspect.bundles.insert(id);
            }
        }
        Ok(suspect)
    }

    /// The shims of ours that serve no task that containerd knows.
    pub(crate) async fn forgotten_shims(&self) -> Result<Vec<Shim>> {
        // Processes first: whatever is started after this look is not in it.
        let shims = self.shims().await?;
        let (ids, pids) = self.known_tasks().await?;
        Ok(orphans(shims, &ids, &pids))
    }

    /// The tasks that containerd knows: their ids, and their processes.
    async fn known_tasks(&self) -> Result<(HashSet<String>, HashSet<i32>)> {
        let request = containerd_client::services::v1::ListTasksRequest::default();
        let tasks = call("list tasks", QUICK, self.client.waits().list(request)).await?.tasks;
        let pids = tasks.iter().filter_map(|task| i32::try_from(task.pid).ok()).collect();
        Ok((tasks.into_iter().map(|task| task.id).collect(), pids))
    }

    /// The shims that serve our containerd and namespace.
    pub(crate) async fn shims(&self) -> Result<Vec<Shim>> {
        let address = self.client.address().to_path_buf();
        let namespace = self.settings.containerd.namespace.clone();
        blocking(move || Ok(ours(&processes(), &address, &namespace))).await
    }
}

// === impl Shim ===

impl Shim {
    /// Its children as they are now. Blocks as `/proc` does, which is not for long.
    pub(crate) fn look_at_children(&self) -> Vec<Child> {
        let look = |pid: &i32| {
            let state = fields(&stat(*pid)?).first().map(|state| (*state).to_owned())?;
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
            Some(Child { pid: *pid, runs: !matches!(state.as_str(), "Z" | "X"), groups })
        };
        self.children.iter().filter_map(look).collect()
    }

    /// The exit code of a child that has ended and of which it has not taken note.
    pub(crate) fn code_of(&self, child: i32) -> Option<i32> {
        exit_code(&stat(child)?, self.pid)
    }

    /// Kills it alone. Nothing if it is not there any more.
    pub(crate) fn kill(&self) -> Result<()> {
        let same = stat(self.pid)
            .is_some_and(|text| fields(&text).get(19) == Some(&self.started.to_string().as_str()));
        if same { signal(self.pid, Signal::SIGKILL) } else { Ok(()) }
    }
}

fn stat(pid: i32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// The fields of a `/proc/<pid>/stat` after the name, which is in parentheses and may hold anything: the state, the parent, …
pub(crate) fn fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace().collect()).unwrap_or_default()
}

/// The exit code in the `stat` of a process that has ended and whose parent has not taken note of that. Pure.
fn exit_code(stat: &str, parent: i32) -> Option<i32> {
    let fields = fields(stat);
    let dead = fields.first() == Some(&"Z") && fields.get(1)?.parse() == Ok(parent);
    let status: i32 = fields.get(49).filter(|_| dead)?.parse().ok()?;
    let signal = status & 0x7f;
    Some(if signal == 0 { (status >> 8) & 0xff } else { 128 + signal })
}

/// Ends a shim and what it runs, and removes the cgroups of that. Idempotent.
pub(crate) async fn end(shim: Shim, cgroups: Arc<switchyard_cgroup::Reader>) -> Result<()> {
    blocking(move || end_now(&shim, &cgroups)).await
}

/// Decides which processes are shims of ours. Pure.
fn ours(processes: &[Process], address: &Path, namespace: &str) -> Vec<Shim> {
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
        .filter_map(|process| {
            Some(Shim {
                pid: process.pid,
                started: process.started,
                id: flag(process, "-id")?,
                children: children.get(&process.pid).cloned().unwrap_or_default(),
                homeless: process.homeless,
            })
        })
        .collect()
}

/// Those whose id and children are no task that containerd knows. Pure.
fn orphans(shims: Vec<Shim>, ids: &HashSet<String>, pids: &HashSet<i32>) -> Vec<Shim> {
    let known =
        |shim: &Shim| ids.contains(&shim.id) || shim.children.iter().any(|child| pids.contains(child));
    shims.into_iter().filter(|shim| !known(shim)).collect()
}

fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = stat(pid)?;
            let fields = fields(&stat);
            let parent = fields.get(1)?.parse().ok()?;
            let started = fields.get(19)?.parse().ok()?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let command = command
                .split(|byte| *byte == 0)
                .filter(|word| !word.is_empty())
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            let home = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            let homeless = home.to_string_lossy().ends_with(" (deleted)");
            Some(Process { pid, parent, started, command, homeless })
        })
        .collect()
}

fn end_now(shim: &Shim, cgroups: &switchyard_cgroup::Reader) -> Result<()> {
    let groups: HashSet<Group> = shim.children.iter().flat_map(|pid| groups_of(*pid, &shim.id)).collect();
    for child in &shim.children {
        signal(*child, Signal::SIGKILL)?;
    }
    signal(shim.pid, Signal::SIGTERM)?;
    let deadline = Instant::now() + PATIENCE;
    while Path::new(&format!("/proc/{}/cmdline", shim.pid)).exists() {
        if Instant::now() > deadline {
            signal(shim.pid, Signal::SIGKILL)?;
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
        let command = command.split(' ').map(str::to_owned).collect();
        Process { pid, parent, started: 1, command, homeless: true }
    }

    fn shim(pid: i32, id: &str, address: &str) -> Process {
        process(
            pid,
            1,
            &format!("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id {id} -address {address}"),
        )
    }

    #[test]
    fn the_code_of_a_dead_child_is_read_as_a_shell_tells_it() {
        let line = |state: &str, parent: i32, status: i32| {
            format!("7 (a) b) {state} {parent} {} {status}", ["0"; 47].join(" "))
        };
        assert_eq!(exit_code(&line("Z", 5, 9), 5), Some(137));
        assert_eq!(exit_code(&line("Z", 5, 0x700), 5), Some(7));
        assert_eq!(exit_code(&line("Z", 5, 0x8b), 5), Some(139), "with a core");
        assert_eq!(exit_code(&line("S", 5, 0), 5), None);
        assert_eq!(exit_code(&line("Z", 1, 0), 5), None);
        assert_eq!(exit_code("", 5), None);
    }

    #[track_caller]
    fn check(processes: &[Process], ids: &[&str], pids: &[i32], expected: &[i32]) {
        let ids = ids.iter().map(ToString::to_string).collect();
        let shims = ours(processes, Path::new("/run/c.sock"), "k8s.io");
        let found = orphans(shims, &ids, &pids.iter().copied().collect());
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
