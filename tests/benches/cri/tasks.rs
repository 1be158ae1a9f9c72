//! Nomad's tasks: StartTask as an agent calls it, through launcher and daemon, compared with the same
//! container created and started over containerd's own API.

pub(crate) mod bare;
pub(crate) mod cni;
pub(crate) mod nomad;

use std::time::{Duration, Instant};

use containerd_client::services::v1 as api;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::breakdown::Scrape;
use crate::bridge_driver::BridgeDriver;
use crate::failure::Failure;
use crate::memory::{Memory, Resident};
use crate::pair::Pair;
use crate::report::{Report, progress};
use crate::row::{Goal, Row};
use crate::side::channel;
use crate::test_bed::{OUR_NAMESPACE, THEIR_NAMESPACE, TestBed};
use bare::{BareContainer, BareContainerd, BarePlace};
use cni::Cni;
use nomad::{NomadAgent, PreparedTask, TaskNetwork, free_port};

/// Names of the sides.
const NAMES: Pair<&str> = Pair {
    theirs: "bare containerd",
    ours: "Switchyard",
};
/// The bound of a start.
const BOUND: &str = "Beside the bare work: the record of the sandbox, the files that it gives, and its namespaces, all before the task.";
/// Tasks that are started, or removed, concurrently outside of measurements.
pub(crate) const AT_ONCE: usize = 8;
/// The pause between a removal and the next start: the shim's exit and containerd's cleanup belong to no
/// side.
pub(crate) const COOLDOWN: Duration = Duration::from_millis(60);
/// Tasks that run already when memory is looked at first: what the first ones take is of the daemon, as its
/// threads and their arenas.
const BASELINE_TASKS: u32 = 40;
/// Time for which tasks run before their memory is measured.
const IDLE_TIME: Duration = Duration::from_secs(3);

/// The extent of this part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TasksSize {
    /// Starts of each side on each network, one after the other.
    pub(crate) starts: u32,
    /// Those before them that do not count.
    pub(crate) warm_up: u32,
    /// Bursts of each side.
    pub(crate) bursts: u32,
    /// Tasks of a burst.
    pub(crate) burst: u32,
    /// Tasks whose memory is measured.
    pub(crate) running: u32,
    /// Driver that attaches ours to the bridge.
    pub(crate) driver: BridgeDriver,
}

/// Both sides.
pub(crate) struct Sides {
    nomad: NomadAgent,
    bare: BareContainerd,
    /// The task that the bare containers are like; it runs all the while, for the files that they have of it.
    model: PreparedTask,
    /// Below it is what our daemon holds for a start.
    stage: String,
}

/// Growth of the daemon's memory with each task.
struct Growth {
    /// While they run.
    running: Resident,
    /// While an agent waits for each and follows its usage.
    watched: Resident,
}

/// Measures all of it.
pub(crate) async fn measure(
    stand: &TestBed,
    size: TasksSize,
    report: &mut Report,
) -> Result<(), Failure> {
    let sides = Sides::start(stand).await?;
    let mut rows = Vec::new();
    let on_bridge = format!("StartTask, bridge, driver {}", size.driver.name());
    for (name, title, is_own, goal) in [
        (
            "StartTask, host's network",
            "tasks on the host's network",
            false,
            Goal::RatioAtMost(1.1),
        ),
        (
            on_bridge.as_str(),
            "tasks on the bridge",
            true,
            size.driver.goal(1.1),
        ),
    ] {
        let mut pairs = Vec::new();
        for round in 0..size.warm_up + size.starts {
            let pair = sides.round(round, is_own).await?;
            if let Some(done) = (round + 1)
                .checked_sub(size.warm_up)
                .filter(|done| *done > 0)
            {
                pairs.push(pair);
                progress(title, done, size.starts);
            }
        }
        rows.push(Row::times(name, pairs).goal(goal).bound(BOUND));
        if stand.timed.is_some() {
            sides.break_down(stand, size, is_own, report).await?;
        }
    }
    let mut bursts = Vec::new();
    for round in 0..size.bursts {
        bursts.push(sides.burst(round, size.burst).await?);
        progress("bursts of tasks", round + 1, size.bursts);
    }
    rows.push(Row::times(
        &format!("{} tasks at once, until all run", size.burst),
        bursts,
    ));
    let growth = sides.grow(stand, size.running).await?;
    let kib = |resident: Resident| resident.rss_mib() * 1024.0 / f64::from(size.running);
    rows.push(
        Row::ours("daemon, for each task", "KiB", [kib(growth.running)])
            .goal(Goal::OursAtMost(30.0)),
    );
    rows.push(
        Row::ours(
            "the same, followed by an agent",
            "KiB",
            [kib(growth.watched)],
        )
        .goal(Goal::OursAtMost(30.0)),
    );
    sides.end().await?;
    let note = format!(
        "{} starts of each side on each network, and {} bursts. Bare: container, snapshot, task and start over containerd's API, and\n\
         before that a network namespace and the ADD of the same plugins, if it has a network. Ours: StartTask through launcher and\n\
         daemon. The task has one published port. Memory: resident, {} tasks beside {BASELINE_TASKS} others.\n",
        size.starts, size.bursts, size.running
    );
    report.section_between("tasks of Nomad", NAMES, rows, note);
    report.memory("after the tasks", Memory::of(stand)?);
    Ok(())
}

// === impl Sides ===

impl Sides {
    pub(crate) async fn start(stand: &TestBed) -> Result<Self, Failure> {
        let nomad = NomadAgent::start(&stand.root, &stand.image).await?;
        let model = nomad.prepare(TaskNetwork::Host)?;
        nomad.driver().start(&model).await?;
        let alloc = model.alloc().to_owned();
        let is_model = |one: &api::Container| {
            let spec = one
                .spec
                .as_ref()
                .map(|spec| String::from_utf8_lossy(&spec.value).contains(&alloc));
            spec == Some(true)
        };
        let core = channel(&stand.containerd.socket).await?;
        let namespaces = Pair {
            theirs: THEIR_NAMESPACE,
            ours: OUR_NAMESPACE,
        };
        let cni = Cni::of(&stand.root, stand.timed.as_ref().map(|pair| &pair.ours))?;
        let dir = stand.root.path().join("bare");
        let bare = BareContainerd::modelled_on(core, namespaces, is_model, cni, dir).await?;
        let stage = stand.root.path().join("run/stage/").display().to_string();
        Ok(Self {
            nomad,
            bare,
            model,
            stage,
        })
    }

    /// A start of each side. Who comes first alternates.
    async fn round(&self, round: u32, own: bool) -> Result<Pair<Duration>, Failure> {
        Pair::in_turns(round, self.theirs(own), self.ours(own)).await
    }

    async fn theirs(&self, own: bool) -> Result<Duration, Failure> {
        let mut bare = self.bare.clone();
        let task = self.nomad.prepare(next_network(own)?)?;
        let (took, running) = bare_start(&mut bare, &task, self.template()).await?;
        bare.assert_runs(&running).await?;
        bare.remove(running).await?;
        drop(task);
        tokio::time::sleep(COOLDOWN).await;
        Ok(took)
    }

    async fn ours(&self, own: bool) -> Result<Duration, Failure> {
        let task = self.nomad.prepare(next_network(own)?)?;
        let mut driver = self.nomad.driver();
        let took = driver.start(&task).await?;
        driver.remove(&task).await?;
        drop(task);
        tokio::time::sleep(COOLDOWN).await;
        Ok(took)
    }

    /// Breaks down the time of each side's starts: each side for itself, because containerd counts the calls
    /// of both.
    async fn break_down(
        &self,
        stand: &TestBed,
        size: TasksSize,
        own: bool,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let before = Scrape::take(stand)?;
        for _ in 0..size.starts {
            self.ours(own).await?;
        }
        report.breakdown("task", Scrape::take(stand)?.since(&before), size.starts);
        let before = Scrape::take(stand)?;
        for _ in 0..size.starts {
            self.theirs(own).await?;
        }
        report.breakdown(
            "bare task",
            Scrape::take(stand)?.since(&before),
            size.starts,
        );
        Ok(())
    }

    /// Many concurrent starts of each side, until the last is answered. The side that runs first alternates.
    async fn burst(&self, round: u32, tasks: u32) -> Result<Pair<Duration>, Failure> {
        let over = CancellationToken::new();
        Pair::in_turns(round, self.their_burst(tasks, &over), self.our_burst(tasks)).await
    }

    /// Starts many bare containers at once; sends to `over` when the last start is answered, then removes
    /// them.
    pub(crate) async fn their_burst(
        &self,
        tasks: u32,
        over: &CancellationToken,
    ) -> Result<Duration, Failure> {
        let tasks = self.prepared(tasks)?;
        let begin = Instant::now();
        let starts = tasks.into_iter().map(|task| {
            let mut bare = self.bare.clone();
            let template = self.template();
            async move {
                bare_start(&mut bare, &task, template)
                    .await
                    .map(|(_, running)| (task, running))
            }
        });
        let running = all(starts, usize::MAX).await?;
        let took = begin.elapsed();
        over.cancel();
        let removals = running.into_iter().map(|(task, running)| {
            let mut bare = self.bare.clone();
            async move {
                bare.assert_runs(&running).await?;
                bare.remove(running).await?;
                drop(task);
                Ok(())
            }
        });
        all(removals, AT_ONCE).await?;
        tokio::time::sleep(COOLDOWN).await;
        Ok(took)
    }

    async fn our_burst(&self, tasks: u32) -> Result<Duration, Failure> {
        let tasks = self.prepared(tasks)?;
        let begin = Instant::now();
        let running = self.run(tasks, usize::MAX).await?;
        let took = begin.elapsed();
        self.remove(running).await?;
        tokio::time::sleep(COOLDOWN).await;
        Ok(took)
    }

    /// Measures the growth of the daemon's memory with each of many tasks, beside others.
    async fn grow(&self, stand: &TestBed, count: u32) -> Result<Growth, Failure> {
        let daemon = || Resident::of(u32::try_from(stand.daemon.pid())?);
        let first = self.run(self.prepared(BASELINE_TASKS)?, AT_ONCE).await?;
        tokio::time::sleep(IDLE_TIME).await;
        let before = daemon()?;
        let running = self.run(self.prepared(count)?, AT_ONCE).await?;
        tokio::time::sleep(IDLE_TIME).await;
        let full = daemon()?;
        let mut watched = Vec::new();
        for task in &running {
            watched.push(self.nomad.driver().watch(task).await?);
        }
        tokio::time::sleep(IDLE_TIME).await;
        let followed = daemon()?;
        drop(watched);
        self.remove(running.into_iter().chain(first).collect())
            .await?;
        Ok(Growth {
            running: full.since(before),
            watched: followed.since(before),
        })
    }

    fn prepared(&self, count: u32) -> Result<Vec<PreparedTask>, Failure> {
        (0..count)
            .map(|_| self.nomad.prepare(TaskNetwork::Host))
            .collect()
    }

    async fn run(
        &self,
        tasks: Vec<PreparedTask>,
        at_once: usize,
    ) -> Result<Vec<PreparedTask>, Failure> {
        let starts = tasks.into_iter().map(|task| {
            let mut driver = self.nomad.driver();
            async move { driver.start(&task).await.map(|_| task) }
        });
        all(starts, at_once).await
    }

    async fn remove(&self, tasks: Vec<PreparedTask>) -> Result<(), Failure> {
        let removals = tasks.into_iter().map(|task| {
            let mut driver = self.nomad.driver();
            async move { driver.remove(&task).await }
        });
        all(removals, AT_ONCE).await.map(drop)
    }

    fn template(&self) -> Template {
        Template {
            alloc: self.model.alloc().to_owned(),
            stage: self.stage.clone(),
        }
    }

    pub(crate) async fn end(self) -> Result<(), Failure> {
        let Self {
            nomad,
            bare: _,
            model,
            stage: _,
        } = self;
        nomad.driver().remove(&model).await
    }
}

/// The parts of the model's spec that are its own.
struct Template {
    /// The allocation, whose id is in many fields.
    alloc: String,
    /// Below it is what our daemon holds for a start.
    stage: String,
}

/// Starts a bare container in the allocation of this task.
async fn bare_start(
    bare: &mut BareContainerd,
    task: &PreparedTask,
    template: Template,
) -> Result<(Duration, BareContainer), Failure> {
    let place = BarePlace {
        network: task.network,
        stdout: task.stdout(),
        stderr: task.stderr(),
    };
    let change = |text: String| {
        let mut spec: Value = serde_json::from_str(&text.replace(&template.alloc, task.alloc()))?;
        for mount in spec["mounts"]
            .as_array_mut()
            .ok_or("the spec has no mounts")?
        {
            // What a task of ours mounts out of its allocation is held for it in a place that goes once it
            // has started.
            let is_held = mount["source"]
                .as_str()
                .is_some_and(|source| source.starts_with(&template.stage));
            if is_held {
                let inside = mount["destination"].as_str().unwrap_or_default();
                mount["source"] = json!(task.mount_source(inside)?);
            }
        }
        Ok(spec)
    };
    bare.start(place, |model, _, netns| model.spec_of(netns, change))
        .await
}

/// The network of the next task.
pub(crate) fn next_network(own: bool) -> Result<TaskNetwork, Failure> {
    Ok(if own {
        TaskNetwork::Own { port: free_port()? }
    } else {
        TaskNetwork::Host
    })
}

/// Runs all of this, so many at a time.
pub(crate) async fn all<T: Send + 'static>(
    work: impl Iterator<Item = impl Future<Output = Result<T, Failure>> + Send + 'static>,
    at_once: usize,
) -> Result<Vec<T>, Failure> {
    let mut running = JoinSet::new();
    let mut done = Vec::new();
    for one in work {
        if running.len() >= at_once
            && let Some(result) = running.join_next().await
        {
            done.push(result??);
        }
        running.spawn(one);
    }
    while let Some(result) = running.join_next().await {
        done.push(result??);
    }
    Ok(done)
}
