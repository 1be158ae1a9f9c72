//! Shims and bundles that containerd has forgotten: a kill of containerd or of a shim at the wrong moment leaves them, and no call
//! finds them.
//!
//! A shim is forgotten if it serves our containerd and namespace, and neither the id it was started for nor any child of it is a task
//! that containerd knows. (A shim that serves a whole pod may outlive the container it was started for.) If containerd has deleted
//! its bundle, its working directory, that is certain at once. If the bundle stands, somebody may just be making the task: beside a
//! containerd of our own the shim is forgotten if that stays so and none of us is at it; beside one that others use it is left alone.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use switchyard_cgroup::Group;
use switchyard_core::{Error, Result};
use switchyard_process::{ProcessId, Stat};
use tokio_util::sync::CancellationToken;

use crate::backend::Inner;
use crate::client::{QUICK, call};
use crate::config::Mode;
use crate::container_id::ContainerId;
use crate::health::Contact;
use crate::text::blocking;

/// How long a shim may take to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// A shim of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shim {
    pub(crate) process: ProcessId,
    /// The container it was started for.
    pub(crate) id: ContainerId,
    /// Its children: main processes of containers, and processes that outlived their parents in one.
    pub(crate) children: Vec<ProcessId>,
    /// Its bundle has been deleted.
    pub(super) homeless: bool,
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

/// What a process of the node's own root says of itself. Whoever else calls itself a shim is not believed.
#[derive(Debug, Clone)]
pub(super) struct Said {
    pub(super) process: ProcessId,
    pub(super) command: Vec<String>,
    /// Its working directory has been deleted.
    pub(super) homeless: bool,
}

/// What containerd does not know, at one look.
#[derive(Debug, Default)]
struct Forgotten {
    shims: Vec<Shim>,
    bundles: BTreeSet<ContainerId>,
}

impl Inner {
    /// Looks for what containerd has forgotten, when recovery is done and every few minutes after, until `stop`.
    pub(crate) async fn watch_forgotten(self: Arc<Self>, stop: CancellationToken) {
        let recovery = self.settings.recovery.clone();
        tokio::select! {
            () = self.recovered.cancelled() => {}
            () = stop.cancelled() => return,
        }
        let (mut before, mut failures) = (Forgotten::default(), 0);
        loop {
            if matches!(self.health.now(), Contact::Up { .. }) {
                match self.look_for_forgotten(&before).await {
                    Ok(now) => (before, failures) = (now, 0),
                    Err(error) => {
                        failures += 1;
                        if failures == 1 {
                            tracing::warn!(
                                error = error.report(),
                                "forgotten shims are looked for again later"
                            );
                        } else {
                            tracing::debug!(
                                error = error.report(),
                                failures,
                                "forgotten shims are not found"
                            );
                        }
                    }
                }
            }
            // What is suspect is looked at again soon.
            let calm = before.shims.is_empty() && before.bundles.is_empty();
            let soon = recovery.grace().saturating_mul(1_u32 << failures.min(10)).min(recovery.look());
            let pause = if calm { recovery.look() } else { soon };
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
            let again = before.shims.iter().any(|seen| seen.process == shim.process);
            let certain = shim.homeless || (managed && again && !busy.contains(&*shim.id));
            if certain {
                tracing::warn!(pid = shim.process.pid, id = %shim.id, "ending a shim that containerd has forgotten");
            }
            // What fails is looked for again, and holds up nothing else.
            if (certain && !done(&shim.id, self.clear_shim(&shim).await)) || (managed && !certain) {
                suspect.shims.push(shim);
            }
        }
        for id in bundles.into_iter().filter(|id| !ids.contains(&**id)) {
            let with_shim = suspect.shims.iter().any(|shim| shim.id == id);
            let certain = before.bundles.contains(&id) && !busy.contains(&*id) && !with_shim;
            if certain {
                tracing::warn!(%id, "removing a bundle that containerd has forgotten");
            }
            if !certain || !done(&id, self.clear_bundle(&id).await) {
                suspect.bundles.insert(id);
            }
        }
        Ok(suspect)
    }

    /// Ends a shim and removes its bundle.
    async fn clear_shim(&self, shim: &Shim) -> Result<()> {
        self.end_shim(shim.clone()).await?;
        self.clear_bundle(&shim.id).await
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

    /// Ends a shim and what it runs, and removes the cgroups of that. Idempotent.
    pub(crate) async fn end_shim(&self, shim: Shim) -> Result<()> {
        let id = shim.id.clone();
        for group in blocking(move || end_now(&shim)).await? {
            self.remove_cgroup(&id, Some(group), None).await?;
        }
        Ok(())
    }

    /// The shims that serve our containerd and namespace.
    pub(crate) async fn shims(&self) -> Result<Vec<Shim>> {
        let address = self.client.address().to_path_buf();
        let namespace = self.settings.containerd.namespace.clone();
        blocking(move || {
            let (all, said) = look();
            Ok(ours(&all, &said, &address, &namespace))
        })
        .await
    }
}

/// Whether something has been cleared away; else it is told.
fn done(id: &ContainerId, outcome: Result<()>) -> bool {
    if let Err(error) = &outcome {
        tracing::warn!(%id, error = error.report(), "what containerd has forgotten is cleared away later");
    }
    outcome.is_ok()
}

// === impl Shim ===

impl Shim {
    /// Its children as they are now. Blocks as `/proc` does, which is not for long.
    pub(crate) fn look_at_children(&self) -> Vec<Child> {
        let look = |child: &ProcessId| {
            let stat = Stat::of(child.pid).filter(|stat| stat.id == *child)?;
            let groups = fs::read_to_string(format!("/proc/{}/cgroup", child.pid)).ok()?;
            Some(Child { pid: child.pid, runs: !stat.ended, groups })
        };
        self.children.iter().filter_map(look).collect()
    }

    /// The exit code of a child that has ended and of which it has not taken note.
    pub(crate) fn code_of(&self, child: i32) -> Option<i32> {
        Stat::of(child).filter(|stat| stat.parent == self.process.pid)?.code()
    }

    /// Kills it alone. Nothing if it is not there any more.
    pub(crate) fn kill(&self) -> Result<()> {
        signal(self.process, Signal::SIGKILL)
    }
}

/// Decides which of those that have said something are shims of ours, with their children among all processes. Pure.
pub(super) fn ours(all: &[Stat], said: &[Said], address: &Path, namespace: &str) -> Vec<Shim> {
    let mut children: BTreeMap<i32, Vec<ProcessId>> = BTreeMap::new();
    for stat in all {
        children.entry(stat.parent).or_default().push(stat.id);
    }
    said.iter()
        .filter(|said| is_shim_of(said, address, namespace) && !is_helper(said))
        .filter_map(|said| {
            Some(Shim {
                process: said.process,
                id: flag(said, "-id")?.parse().ok()?,
                children: children.get(&said.process.pid).cloned().unwrap_or_default(),
                homeless: said.homeless,
            })
        })
        .collect()
}

/// Whether a process is a shim, or a helper of one, that works for this containerd and namespace. Pure.
pub(super) fn is_shim_of(said: &Said, address: &Path, namespace: &str) -> bool {
    let program = said.command.first().map(PathBuf::from).unwrap_or_default();
    program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("containerd-shim"))
        && flag(said, "-address").is_some_and(|found| Path::new(&found) == address)
        && flag(said, "-namespace").as_deref() == Some(namespace)
}

/// Whether a shim is the helper that starts or deletes one: it has a verb at its end and is gone in a moment. Pure.
pub(super) fn is_helper(said: &Said) -> bool {
    said.command.last().is_some_and(|last| matches!(last.as_str(), "start" | "delete"))
}

/// The word after this one in a process's command. Pure.
pub(super) fn flag(said: &Said, name: &str) -> Option<String> {
    let mut words = said.command.iter();
    words.find(|word| *word == name)?;
    words.next().cloned()
}

/// Those whose id and children are no task that containerd knows. Pure.
fn orphans(shims: Vec<Shim>, ids: &HashSet<String>, pids: &HashSet<i32>) -> Vec<Shim> {
    let known =
        |shim: &Shim| ids.contains(&*shim.id) || shim.children.iter().any(|child| pids.contains(&child.pid));
    shims.into_iter().filter(|shim| !known(shim)).collect()
}

/// All processes, and what those say of themselves that are to be believed. Blocks as `/proc` does.
pub(super) fn look() -> (Vec<Stat>, Vec<Said>) {
    let all = switchyard_process::all();
    let said = all.iter().filter_map(|stat| said(stat.id)).collect();
    (all, said)
}

/// What a process says of itself, if it is to be believed.
fn said(process: ProcessId) -> Option<Said> {
    if !switchyard_process::is_own_root(process.pid) {
        return None;
    }
    let proc = PathBuf::from(format!("/proc/{}", process.pid));
    let command = fs::read(proc.join("cmdline")).ok()?;
    let command = command
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    // Its link tells of that in words, which may also be a directory's name. One that is deleted has no names.
    let homeless = fs::metadata(proc.join("cwd")).is_ok_and(|home| home.nlink() == 0);
    // Looked at last: all of this is of one process.
    process.is_alive().then_some(Said { process, command, homeless })
}

/// Ends a shim and what it runs; gives the cgroups of that.
fn end_now(shim: &Shim) -> Result<HashSet<Group>> {
    let groups: HashSet<Group> =
        shim.children.iter().flat_map(|child| groups_of(child.pid, &shim.id)).collect();
    for child in &shim.children {
        signal(*child, Signal::SIGKILL)?;
    }
    signal(shim.process, Signal::SIGTERM)?;
    let deadline = Instant::now() + PATIENCE;
    while shim.process.is_alive() {
        if Instant::now() > deadline {
            signal(shim.process, Signal::SIGKILL)?;
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(groups)
}

/// The cgroups of a process that bear this id.
fn groups_of(pid: i32, id: &str) -> Vec<Group> {
    groups_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default(), id)
}

/// The same in the text of such a file. A container may have groups of its own inside of its group, which go with that. Pure.
fn groups_in(text: &str, id: &str) -> Vec<Group> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths
        .filter_map(|path| {
            let named =
                |path: &&Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(id));
            Path::new(path).ancestors().filter(named).last()
        })
        .filter_map(|path| Group::from_path(path).ok())
        .collect()
}

fn signal(process: ProcessId, signal: Signal) -> Result<()> {
    let fail =
        |fault| Error::internal(format!("send {signal} to process {}", process.pid)).with_source(fault);
    process.signal(signal).map_err(fail)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use super::*;

    const AA: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn stat(pid: i32, parent: i32) -> Stat {
        Stat { id: ProcessId { pid, started: 1 }, parent, ended: false, status: None }
    }

    fn said(pid: i32, command: &str) -> Said {
        let command = command.split(' ').map(str::to_owned).collect();
        Said { process: stat(pid, 1).id, command, homeless: true }
    }

    fn shim(pid: i32, id: &str, address: &str) -> Said {
        said(pid, &format!("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id {id} -address {address}"))
    }

    #[test]
    fn the_groups_of_a_container_are_those_that_bear_its_id_and_not_those_inside() {
        let text = "12:memory:/pods/aa/init.scope\n3:cpu,cpuacct:/pods/aa\n1:name=systemd:/pods/bb\n0::/\n";
        let found: HashSet<String> = groups_in(text, "aa").iter().map(ToString::to_string).collect();
        assert_eq!(found, HashSet::from(["/pods/aa".to_owned()]));
    }

    #[track_caller]
    fn check(said: &[Said], ids: &[&str], pids: &[i32], expected: &[i32]) {
        let ids = ids.iter().map(ToString::to_string).collect();
        let all = [stat(10, 1), stat(11, 10)];
        let shims = ours(&all, said, Path::new("/run/c.sock"), "k8s.io");
        let found = orphans(shims, &ids, &pids.iter().copied().collect());
        assert_eq!(found.iter().map(|orphan| orphan.process.pid).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_shim_is_forgotten_if_neither_its_id_nor_a_child_is_a_known_task() {
        let all = [shim(10, AA, "/run/c.sock"), said(11, "sleep 5")];
        check(&all, &[], &[], &[10]);
        check(&all, &[AA], &[], &[]);
        check(&all, &[], &[11], &[]);
    }

    #[test]
    fn the_shims_of_others_and_what_is_no_shim_are_left_alone() {
        let other = shim(10, AA, "/run/containerd/containerd.sock");
        let word = |words: &str| format!("{words} -id {AA} -address /run/c.sock");
        let foreign = said(12, &word("/usr/bin/containerd-shim-runc-v2 -namespace moby"));
        let helper =
            said(13, &format!("{} delete", word("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io")));
        let editor = said(14, &word("vi -namespace k8s.io"));
        check(&[other, foreign, helper, editor], &[], &[], &[]);
    }

    #[test]
    fn a_shim_for_what_is_no_container_of_ours_is_none_of_ours() {
        for id in ["/etc", "../../..", "nginx", "..", &AA[1..]] {
            check(&[shim(10, id, "/run/c.sock")], &[], &[], &[]);
        }
    }

    /// A process that calls itself a shim, and ends when this is dropped.
    struct Pretender(Child);

    impl Pretender {
        fn start(uid: u32, dir: &Path) -> Self {
            let mut command = Command::new("sh");
            let words = ["-namespace", "k8s.io", "-id", AA, "-address", "/run/c.sock"];
            command.args(["-c", "read nothing"]).args(words).arg0("containerd-shim-runc-v2");
            Self(command.uid(uid).current_dir(dir).stdin(std::process::Stdio::piped()).spawn().unwrap())
        }

        /// The shims that it is taken for.
        fn taken_for(&self) -> Vec<Shim> {
            let process = ProcessId::of(i32::try_from(self.0.id()).unwrap()).unwrap();
            let said: Vec<_> = super::said(process).into_iter().collect();
            ours(&[], &said, Path::new("/run/c.sock"), "k8s.io")
        }
    }

    impl Drop for Pretender {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_users_process_is_not_believed_and_a_name_makes_no_directory_deleted() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (named, gone) = (dir.path().join("named (deleted)"), dir.path().join("gone"));
        for path in [&named, &gone] {
            fs::create_dir(path).unwrap();
        }
        assert_eq!(Pretender::start(65_534, &gone).taken_for(), []);
        let homeless = |pretender: &Pretender| match &pretender.taken_for()[..] {
            [shim] => shim.homeless,
            others => panic!("{others:?}"),
        };
        let (in_named, in_gone) = (Pretender::start(0, &named), Pretender::start(0, &gone));
        assert!(!homeless(&in_named) && !homeless(&in_gone));
        fs::remove_dir(&gone).unwrap();
        assert!(!homeless(&in_named) && homeless(&in_gone));
    }

    #[test]
    fn a_number_that_another_process_bears_by_now_is_not_killed() {
        let dir = tempfile::tempdir().unwrap();
        let mut stranger = Pretender::start(0, dir.path());
        let pid = i32::try_from(stranger.0.id()).unwrap();
        let ended = ProcessId { pid, started: ProcessId::of(pid).unwrap().started.wrapping_sub(1) };
        let shim = Shim { process: ended, id: AA.parse().unwrap(), children: vec![ended], homeless: true };
        end_now(&shim).unwrap();
        shim.kill().unwrap();
        assert!(stranger.0.try_wait().unwrap().is_none(), "a stranger was killed");
    }
}
