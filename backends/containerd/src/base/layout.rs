//! The backend's directories and files. Those of an object are named after its id.
//!
//! ```text
//! <state>/sandboxes/<id>/   hostname, hosts, resolv.conf, cni.json,        outlives a reboot
//!                           net-admin
//! <state>/infra/            root file system of infra processes            written at each start
//!                           switchyard-helper, if memory is not executable
//! <state>/tasks/<id>/       volumes/<n>/, checkpoint/                      outlives a reboot
//! <state>/volumes/          named volumes, by owner and name               outlives a reboot
//! <state>/set-aside/        trees that could not be removed                until an operator removes them
//! <state>/ranges.json       address ranges of owners                       outlives a reboot
//! <state>/network/          the gateway's own network, for inspection      written at each start
//! <state>/network/*.pods    pods have had a bridge of this name            until it is deleted
//! <state>/network/*.ipv6    the range that the own bridge of this name has by itself, or is made without
//! <state>/write-test        written to learn whether the disk can be       every few seconds
//! <run>/sandboxes/<id>/     shm/                                           gone after a reboot
//! <run>/ns/<id>/            user, net, ipc, uts, pid: pinned namespaces    gone after a reboot
//! <run>/tasks/<id>/         stdout, stderr, stdin: FIFOs; started, …       gone after a reboot
//! <run>/stage/<id>/         mounts for the runtime during a create         gone after a reboot
//! <run>/views/<key>/        mount points of image views                    gone after a reboot
//! <run>/groups/<id>.left    busy cgroups of removed objects                gone after a reboot
//! <run>/set-aside/          trees that could not be removed                gone after a reboot
//! <run>/networks/<bridge>/  network.json, holders/<id>, addresses/: bridges of clusters   gone after a reboot
//! <run>/epoch               a random word, as old as the other files       gone after a reboot
//! <run>/probe.json          detected features of runtimes                  gone after a reboot
//! <run>/write-test          as that of <state>                             gone after a reboot
//! ```
//!
//! Every user may traverse `<run>`, for the sockets in it; only root may traverse the directories named here.
//! Pods see parts of them through mounts, which runtimes make as root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use switchyard_core::Result;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_namespaces::Ns;

use crate::base::fs::{create_private_dir_blocking, io_error};

/// The directories of one gateway.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    state: PathBuf,
    run: PathBuf,
}

/// The directories of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct SandboxDirs {
    pub(crate) state: PathBuf,
    pub(crate) run: PathBuf,
    pub(crate) pins: PathBuf,
}

/// The directories of one task.
#[derive(Debug, Clone)]
pub(crate) struct TaskDirs {
    pub(crate) state: PathBuf,
    pub(crate) run: PathBuf,
    /// The mounts that the runtime uses while it creates the container.
    pub(crate) stage: PathBuf,
}

impl Layout {
    pub(crate) fn new(state: &Path, run: &Path) -> Self {
        Self {
            state: state.to_path_buf(),
            run: run.to_path_buf(),
        }
    }

    /// Creates the directories below `<run>` with mode 0700, and sets that mode on existing ones that an
    /// earlier version created with another. Blocks. Idempotent.
    ///
    /// # Errors
    /// `Internal` or `ResourceExhausted`, naming the directory.
    pub(crate) fn create_private_dirs(&self) -> Result<()> {
        fs::create_dir_all(&self.run)
            .map_err(|fault| io_error("make directory", &self.run, fault))?;
        let all = [
            self.all_sandbox_run(),
            self.all_pins(),
            self.all_task_run(),
            self.waits(),
            self.all_stages(),
            self.views(),
            self.cluster_bridges(),
        ];
        for dir in all {
            create_private_dir_blocking(&dir)?;
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))
                .map_err(|fault| io_error("set the mode of", &dir, fault))?;
        }
        Ok(())
    }

    pub(crate) fn all_sandbox_state(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    pub(crate) fn all_task_state(&self) -> PathBuf {
        self.state.join("tasks")
    }

    pub(crate) fn all_sandbox_run(&self) -> PathBuf {
        self.run.join("sandboxes")
    }

    pub(crate) fn all_task_run(&self) -> PathBuf {
        self.run.join("tasks")
    }

    pub(crate) fn all_pins(&self) -> PathBuf {
        self.run.join("ns")
    }

    /// One file for each container with a predecessor call whose outcome is not known yet.
    pub(crate) fn waits(&self) -> PathBuf {
        self.run.join("waits")
    }

    /// One file for each cgroup that could not be removed with its object.
    pub(crate) fn busy_cgroups(&self) -> PathBuf {
        self.run.join("groups")
    }

    pub(crate) fn all_stages(&self) -> PathBuf {
        self.run.join("stage")
    }

    pub(crate) fn run(&self) -> &Path {
        &self.run
    }

    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// Secrets and configs, which the frontend of Swarm writes for its tasks.
    pub(crate) fn swarm_files(&self) -> PathBuf {
        self.run.join("swarm")
    }

    pub(crate) fn views(&self) -> PathBuf {
        self.run.join("views")
    }

    pub(crate) fn infra(&self) -> PathBuf {
        self.state.join("infra")
    }

    pub(crate) fn volumes(&self) -> PathBuf {
        self.state.join("volumes")
    }

    pub(crate) fn ranges(&self) -> PathBuf {
        self.state.join("ranges.json")
    }

    /// The configuration list of the gateway's own network, written for inspection.
    pub(crate) fn bridge(&self, name: &str) -> PathBuf {
        self.state.join("network").join(format!("{name}.conflist"))
    }

    /// Exists from the first start with pods on the bridge of this name until the bridge is deleted.
    pub(crate) fn pod_mark(&self, bridge: &str) -> PathBuf {
        self.state.join("network").join(format!("{bridge}.pods"))
    }

    /// One directory for each bridge that is made for a network of a cluster.
    pub(crate) fn cluster_bridges(&self) -> PathBuf {
        self.run.join("networks")
    }

    pub(crate) fn sandbox(&self, id: SandboxId) -> SandboxDirs {
        let name = id.to_string();
        SandboxDirs {
            state: self.all_sandbox_state().join(&name),
            run: self.all_sandbox_run().join(&name),
            pins: self.all_pins().join(&name),
        }
    }

    /// The sandbox that has its own network namespace pinned at this path; `None` for a namespace of other programs.
    pub(crate) fn owner_of_network(&self, netns: &Path) -> Option<SandboxId> {
        let name = netns.parent()?.file_name()?.to_str()?;
        let id = name.parse::<SandboxId>().ok()?;
        (self.sandbox(id).pin(Ns::Net) == netns).then_some(id)
    }

    pub(crate) fn task(&self, id: TaskId) -> TaskDirs {
        let name = id.to_string();
        TaskDirs {
            state: self.all_task_state().join(&name),
            run: self.all_task_run().join(&name),
            stage: self.all_stages().join(&name),
        }
    }
}

impl SandboxDirs {
    pub(crate) fn hostname(&self) -> PathBuf {
        self.state.join("hostname")
    }

    pub(crate) fn hosts(&self) -> PathBuf {
        self.state.join("hosts")
    }

    pub(crate) fn resolv_conf(&self) -> PathBuf {
        self.state.join("resolv.conf")
    }

    pub(crate) fn cni_journal(&self) -> PathBuf {
        self.state.join("cni.json")
    }

    /// The pin of a namespace of this kind, if the sandbox has one of its own.
    pub(crate) fn pin(&self, ns: Ns) -> PathBuf {
        self.pins.join(ns.file_name())
    }

    /// Without content: it is there from the time at which a task with NET_ADMIN was created in a sandbox that was pinned, or at which a
    /// sandbox that has such a task was started again.
    pub(crate) fn net_admin_mark(&self) -> PathBuf {
        self.state.join("net-admin")
    }

    /// The pin of the process namespace, if the sandbox has a shared one.
    pub(crate) fn pid_namespace(&self) -> PathBuf {
        self.pins.join("pid")
    }

    /// The pin of the user namespace, if the sandbox has one.
    pub(crate) fn user_namespace(&self) -> PathBuf {
        self.pin(Ns::User)
    }

    pub(crate) fn shm(&self) -> PathBuf {
        self.run.join("shm")
    }
}

impl TaskDirs {
    pub(crate) fn volumes(&self) -> PathBuf {
        self.state.join("volumes")
    }

    /// Exists while a checkpoint is made: until it is removed the task may be frozen.
    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.state.join("checkpoint")
    }

    pub(crate) fn stdin(&self) -> PathBuf {
        self.run.join("stdin")
    }

    /// Written before a client gets the input of a task whose input can be attached only once.
    pub(crate) fn input_taken(&self) -> PathBuf {
        self.run.join("input-taken")
    }

    pub(crate) fn stdout(&self) -> PathBuf {
        self.run.join("stdout")
    }

    pub(crate) fn stderr(&self) -> PathBuf {
        self.run.join("stderr")
    }

    /// Written before the process of an interrupted start is ended: a process with this file is never
    /// adopted.
    pub(crate) fn discarded(&self) -> PathBuf {
        self.run.join("discarded")
    }

    /// Written when an exit could not be persisted in containerd and its process is removed, as after a start
    /// that failed: the exit, in the form of the label.
    pub(crate) fn exit_note(&self) -> PathBuf {
        self.run.join("failed")
    }

    /// Exists while the limits in force may differ from the record.
    pub(crate) fn limits_pending(&self) -> PathBuf {
        self.run.join("limiting")
    }

    /// Written once the main process runs: its start time in ns since the epoch, and its process id.
    pub(crate) fn started(&self) -> PathBuf {
        self.run.join("started")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_open_is_shut_but_not_the_way_to_the_sockets() {
        let temp = tempfile::tempdir().unwrap();
        let run = temp.path().join("run");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let layout = Layout::new(&temp.path().join("state"), &run);
        fs::create_dir_all(layout.all_stages()).unwrap();
        for (path, open) in [(run.as_path(), 0o711), (&layout.all_stages(), 0o755)] {
            fs::set_permissions(path, fs::Permissions::from_mode(open)).unwrap();
        }
        layout.create_private_dirs().unwrap();
        layout.create_private_dirs().unwrap();
        assert_eq!(mode(&run), 0o711);
        for below in [
            "sandboxes",
            "ns",
            "tasks",
            "waits",
            "stage",
            "views",
            "networks",
        ] {
            assert_eq!(mode(&run.join(below)), 0o700, "{below}");
        }
    }

    #[test]
    fn network_belongs_to_the_sandbox_that_has_it_pinned() {
        let layout = Layout::new(Path::new("/state"), Path::new("/run/gateway"));
        let id = SandboxId::random();
        let pins = layout.sandbox(id).pins;
        let elsewhere = Path::new("/run/other/ns").join(id.to_string());
        for (path, expected) in [
            (pins.join("net"), Some(id)),
            (pins.join("ipc"), None),
            (pins.join("net/net"), None),
            (pins, None),
            (elsewhere.join("net"), None),
            (PathBuf::from("/var/run/netns/web"), None),
            (PathBuf::from("/proc/7/ns/net"), None),
            (PathBuf::from("/"), None),
        ] {
            assert_eq!(layout.owner_of_network(&path), expected, "{path:?}");
        }
    }
}
