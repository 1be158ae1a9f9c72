//! Cgroups v1 and v2 that the caller created for a task: they are used and not changed.

use std::fs;
use std::path::{Path, PathBuf};

use switchyard_core::ErrorKind;
use switchyard_core::backend::ExecPlace;
use switchyard_core::id::TaskId;
use switchyard_core::spec::{
    CgroupPlacement, CpuList, CpuShares, MemoryLimit, PidMode, Resources, TaskSpec,
};
use switchyard_core::state::ExitCause;

use super::CallerFixture;

const ROOT: &str = "/sys/fs/cgroup";
const MIB: i64 = 1 << 20;

/// Cgroups that an agent makes for one task, and removes.
struct CallerCgroups {
    /// Below the root of each hierarchy.
    path: PathBuf,
    /// On v1, the cgroup of the cpuset controller.
    cpuset: Option<PathBuf>,
    created: Vec<PathBuf>,
}

fn unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

fn controllers(names: &[&'static str]) -> Vec<PathBuf> {
    if unified() {
        vec![ROOT.into()]
    } else {
        names
            .iter()
            .map(|name| Path::new(ROOT).join(name))
            .collect()
    }
}

impl CallerCgroups {
    /// As Nomad makes them: on v1 the group of the cpuset controller is another, which tasks may share.
    fn make(caller: &CallerFixture, name: &str, share: &str) -> Self {
        let parent = PathBuf::from("/").join(caller.fixture.root().cgroup_name());
        let path = parent.join(name);
        let cpuset = (!unified()).then(|| parent.join(share));
        let mut made: Vec<PathBuf> = controllers(&["freezer", "memory", "cpu"])
            .iter()
            .map(|root| below(root, &path))
            .collect();
        made.extend(
            cpuset
                .iter()
                .map(|cpuset| below(&Path::new(ROOT).join("cpuset"), cpuset)),
        );
        for dir in &made {
            fs::create_dir_all(dir).expect("root can make control groups");
        }
        Self {
            path,
            cpuset,
            created: made,
        }
    }

    fn placement(&self) -> CgroupPlacement {
        CgroupPlacement::Leaf {
            path: self.path.clone(),
            cpuset: self.cpuset.clone(),
        }
    }

    fn applied(&self) -> impl FnOnce(&mut TaskSpec) {
        let placement = self.placement();
        |spec| spec.cgroup = Some(placement)
    }

    fn file(&self, v1: (&str, &str), v2: &str) -> String {
        let path = match unified() {
            true => below(Path::new(ROOT), &self.path).join(v2),
            false => below(&Path::new(ROOT).join(v1.0), &self.path).join(v1.1),
        };
        let text = fs::read_to_string(&path);
        text.unwrap_or_else(|fault| panic!("{}: {fault}", path.display()))
            .trim()
            .to_owned()
    }

    /// It is as it was, and can be removed; nothing else is there.
    fn remove(self) {
        for dir in self.created.iter().rev() {
            let inside = fs::read_dir(dir).expect("it is still there").flatten();
            let groups: Vec<_> = inside
                .filter(|entry| entry.path().is_dir())
                .map(|entry| entry.path())
                .collect();
            assert!(groups.is_empty(), "{groups:?} are left");
            fs::remove_dir(dir)
                .unwrap_or_else(|fault| panic!("{} cannot be removed: {fault}", dir.display()));
        }
    }
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").expect("it is absolute"))
}

/// The cgroups of a process, by the beginning of their line.
fn group(text: &str, controller: &str) -> String {
    let line = text.lines().find(|line| {
        let names = line.split(':').nth(1).unwrap_or_default();
        if unified() {
            names.is_empty()
        } else {
            names.split(',').any(|name| name == controller)
        }
    });
    line.and_then(|line| line.splitn(3, ':').nth(2))
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn task_runs_in_its_leaf_cgroup_and_leaves_it_unchanged() {
    let mut caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let leaf = CallerCgroups::make(&caller, "a.web.scope", "share");
    let path = leaf.path.display().to_string();
    let cpuset = leaf
        .cpuset
        .as_ref()
        .map_or(path.clone(), |cpuset| cpuset.display().to_string());
    let limits = Resources {
        cpu_shares: Some(CpuShares::clamped(512)),
        memory_limit_bytes: MemoryLimit::new(64 * MIB).ok(),
        memory_reservation_bytes: MemoryLimit::new(32 * MIB).ok(),
        ..Resources::default()
    };
    let placed = leaf.applied();
    let task = caller
        .task(sandbox, "exec sleep 1000", |spec| {
            placed(spec);
            spec.resources = limits;
            // From outside, namespaces that it shares with the host are visible too.
            spec.pid = PidMode::Private;
        })
        .await;
    assert_limits_are_in_force(&leaf);
    let pid = caller
        .backend
        .inspect_task(task)
        .await
        .expect("it runs")
        .pid
        .expect("it has a process");
    let seen = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    assert_eq!(
        (group(&seen, "memory"), group(&seen, "freezer")),
        (path.clone(), path.clone()),
        "{seen}"
    );
    assert_eq!(group(&seen, "cpuset"), cpuset, "{seen}");
    assert_later_process_is_beside(&caller, &leaf, task, pid, [&path, &cpuset]).await;
    let stats = caller
        .backend
        .task_stats(&[task])
        .await
        .expect("it has stats");
    assert!(stats[&task].usage.memory.is_some(), "{stats:?}");
    caller.reopen().await;
    caller
        .backend
        .signal_task(task, switchyard_core::spec::Signal::KILL)
        .await
        .expect("it can be killed");
    assert_eq!(caller.end(task).await.code, 137);
    assert_eq!(
        leaf.file(("memory", "cgroup.procs"), "cgroup.procs"),
        "",
        "nothing is in it"
    );
    // Another start in the same group, as a restart of the task is.
    let again = caller.task(sandbox, "exit 3", leaf.applied()).await;
    assert_eq!(caller.end(again).await.code, 3);
    caller
        .backend
        .remove_task(again)
        .await
        .expect("it can be removed");
    caller
        .backend
        .remove_task(task)
        .await
        .expect("so can the first");
    leaf.remove();
    caller.close().await;
}

fn assert_limits_are_in_force(leaf: &CallerCgroups) {
    assert_eq!(
        leaf.file(("memory", "memory.limit_in_bytes"), "memory.max"),
        (64 * MIB).to_string()
    );
    assert_eq!(
        leaf.file(("memory", "memory.soft_limit_in_bytes"), "memory.low"),
        (32 * MIB).to_string()
    );
    let weight = if unified() {
        (1 + (512 - 2) * 9999 / 262_142).to_string()
    } else {
        "512".to_owned()
    };
    assert_eq!(leaf.file(("cpu", "cpu.shares"), "cpu.weight"), weight);
}

/// A process that is started in the task later goes into the cgroups of the first one.
async fn assert_later_process_is_beside(
    caller: &CallerFixture,
    leaf: &CallerCgroups,
    task: TaskId,
    pid: u32,
    [memory, cpuset]: [&str; 2],
) {
    let mut later = caller
        .backend
        .exec(
            task,
            &switchyard_contract::specs::exec(&["sleep", "1000"]),
            ExecPlace::uncounted(),
        )
        .await
        .expect("exec");
    let listed = leaf.file(("memory", "cgroup.procs"), "cgroup.procs");
    let other = listed
        .lines()
        .find(|line| *line != pid.to_string())
        .expect("there are two");
    let seen = fs::read_to_string(format!("/proc/{other}/cgroup")).expect("it runs");
    assert_eq!(
        (
            group(&seen, "memory").as_str(),
            group(&seen, "cpuset").as_str()
        ),
        (memory, cpuset),
        "{seen}"
    );
    drop(later.stdout.take());
    drop(later);
}

#[tokio::test(flavor = "multi_thread")]
async fn cpu_limits_are_set_on_the_leaf_cgroup() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let leaf = CallerCgroups::make(&caller, "b.web.scope", "reserve");
    let placed = leaf.applied();
    let task = caller
        .task(sandbox, "exec sleep 1000", |spec| {
            placed(spec);
            spec.resources.cpuset_cpus = CpuList::new("0").ok();
        })
        .await;
    assert_eq!(
        caller
            .shell_output(task, "grep Cpus_allowed_list /proc/1/status")
            .await
            .split_whitespace()
            .last(),
        Some("0")
    );
    let dir = leaf.created.last().expect("there is one");
    assert_eq!(
        fs::read_to_string(dir.join("cpuset.cpus"))
            .expect("it is there")
            .trim(),
        "0"
    );
    if !unified() {
        // The command began where the runtime puts it.
        let begun = below(&Path::new(ROOT).join("cpuset"), &leaf.path).join("cpuset.cpus");
        assert_eq!(fs::read_to_string(begun).expect("it is there").trim(), "0");
    }
    caller
        .backend
        .signal_task(task, switchyard_core::spec::Signal::KILL)
        .await
        .expect("it can be killed");
    caller.end(task).await;
    leaf.remove();
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oom_kill_in_leaf_cgroup_is_reported() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let leaf = CallerCgroups::make(&caller, "c.web.scope", "share");
    let placed = leaf.applied();
    let task = caller
        .task(
            sandbox,
            "exec dd if=/dev/zero of=/dev/null bs=200M count=10",
            |spec| {
                placed(spec);
                spec.resources.memory_limit_bytes = MemoryLimit::new(20 * MIB).ok();
            },
        )
        .await;
    let exit = caller.end(task).await;
    assert_eq!((exit.code, exit.cause), (137, ExitCause::OomKilled));
    leaf.remove();
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_start_leaves_the_leaf_cgroup_unchanged() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let leaf = CallerCgroups::make(&caller, "d.web.scope", "share");
    let placed = leaf.applied();
    let failed = caller.try_task(sandbox, "", |spec| {
        placed(spec);
        spec.command = vec![switchyard_contract::MISSING_EXECUTABLE.to_owned()];
    });
    failed.await.expect_err("there is nothing to run");
    if let Some(cpuset) = &leaf.cpuset {
        let nowhere = CgroupPlacement::Leaf {
            path: leaf.path.clone(),
            cpuset: Some(cpuset.join("nowhere")),
        };
        let refused = caller
            .try_task(sandbox, "true", |spec| spec.cgroup = Some(nowhere))
            .await;
        let refused = refused.expect_err("nobody has made it");
        assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
        assert!(refused.report().contains("nowhere"), "{}", refused.report());
    }
    leaf.remove();
    caller.close().await;
}
