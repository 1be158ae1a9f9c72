//! A big node: the processor time of the daemon at rest and the starts of pods while the node has very many processes, files,
//! mounts, and FIFOs without a reader, beside the same node without them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;

use crate::c_program::compile;
use crate::failure::Failure;
use crate::memory::Memory;
use crate::pair::Pair;
use crate::pods;
use crate::processor;
use crate::report::{Report, progress};
use crate::requests::Requests;
use crate::row::{Goal, Row};
use crate::side::Side;
use crate::tasks::nomad::{NomadAgent, PreparedTask, TaskNetwork};
use crate::tasks::{AT_ONCE, COOLDOWN, all};
use crate::test_bed::TestBed;

/// The names of the columns where the same side is compared with itself.
const NAMES: Pair<&str> = Pair {
    theirs: "empty node",
    ours: "big node",
};
/// Time after a change of the node, in which the daemon finds FIFOs without a reader.
const SETTLE: Duration = Duration::from_secs(15);
/// Limit for the processes to end.
const END: Duration = Duration::from_secs(120);
/// The processes below one.
const LEAVES: u32 = 99;
/// The files of a directory.
const FILES_PER_DIRECTORY: u32 = 1000;

/// A tree of processes that sleep and end with the first one.
const PROCESSES: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static void wait_for_end(void) {
    for (;;) pause();
}

int main(int argc, char **argv) {
    int nodes = argc > 1 ? atoi(argv[1]) : 0, leaves = argc > 2 ? atoi(argv[2]) : 0, done[2];
    char failed;
    if (pipe(done)) return 1;
    for (int node = 0; node < nodes; node++) {
        pid_t child = fork();
        if (child < 0) { perror("fork"); return 1; }
        if (child > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        failed = 0;
        for (int leaf = 0; leaf < leaves && !failed; leaf++) {
            pid_t below = fork();
            if (below == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                wait_for_end();
            }
            failed = below < 0;
        }
        if (write(done[1], &failed, 1) == 1) wait_for_end();
        return 1;
    }
    for (int node = 0; node < nodes; node++) {
        if (read(done[0], &failed, 1) != 1 || failed) return 1;
    }
    puts("ready");
    fflush(stdout);
    wait_for_end();
}
"#;

/// The extent of this part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BigSize {
    /// Processes of the node.
    pub(crate) processes: u32,
    /// Files of the directory that pods mount.
    pub(crate) files: u32,
    /// Mounts of the node.
    pub(crate) mounts: u32,
    /// FIFOs that are full and have no reader.
    pub(crate) fifos: u32,
    /// Pods of each side in each state of the node.
    pub(crate) pods: u32,
    /// Those before them that do not count.
    pub(crate) warm_up: u32,
    /// The time for which the rest is watched.
    pub(crate) rest: Duration,
}

/// Results of the measurement in one state of the node.
struct Measured {
    /// The processor time of daemon and logkeeper at rest, in % of a core.
    at_rest: f64,
    /// From the first call until a container runs.
    starts: Vec<Pair<Duration>>,
}

/// Processes that sleep. Dropping it ends them.
struct ManyProcesses(Child);

/// A directory with many files, which is removed with the root of the benchmark.
struct ManyFiles(PathBuf);

/// Mounts below a directory. Dropping it unmounts them.
struct ManyMounts(PathBuf);

/// Measures all of it.
pub(crate) async fn measure(
    stand: &mut TestBed,
    size: BigSize,
    report: &mut Report,
) -> Result<(), Failure> {
    let empty = look(stand, size, "on the empty node", None).await?;
    let files = ManyFiles::make(&stand.root.path().join("files"), size.files)?;
    let processes = ManyProcesses::start(stand.root.path(), size.processes)?;
    let agent = NomadAgent::start(&stand.root, &stand.image).await?;
    let tasks = abandoned_tasks(&agent, size.fifos / 2).await?;
    let crowded = look(stand, size, "among processes", Some(&files.0)).await?;
    let mounts = ManyMounts::make(&stand.root.path().join("mounts"), size.mounts)?;
    let mounted = look(stand, size, "among mounts as well", Some(&files.0)).await?;
    drop(mounts);
    drop(processes);
    let removals = tasks.into_iter().map(|task| {
        let mut driver = agent.driver();
        async move { driver.remove(&task).await }
    });
    all(removals, AT_ONCE).await?;
    fs::remove_dir_all(&files.0)?;

    report.section_between(
        "a big node",
        NAMES,
        beside_empty(&empty, &crowded, &mounted),
        format!(
            "{} pods of each side in each state, one after the other. The big node has {} more processes, {} FIFOs that are full and\n\
             have no reader, of tasks of Nomad, and each pod mounts a directory with {} files. At rest: daemon and logkeeper, for {:?}.\n",
            size.pods, size.processes, size.fifos, size.files, size.rest
        ),
    );
    report.section(
        "and very many mounts",
        beside_containerd(&crowded, &mounted),
        format!(
            "The big node with {} more mounts. Each runtime copies them and reads their table, on both sides alike.\n",
            size.mounts
        ),
    );
    Ok(())
}

/// Our starts, and the rest, in each state beside those on the empty node.
fn beside_empty(empty: &Measured, crowded: &Measured, mounted: &Measured) -> Vec<Row> {
    let starts = |of: fn(&Pair<Duration>) -> Duration| {
        let pairs = empty.starts.iter().zip(&crowded.starts);
        pairs.map(move |(empty, crowded)| Pair {
            theirs: of(empty),
            ours: of(crowded),
        })
    };
    let rest = |name, state: &Measured| {
        let pair = Pair {
            theirs: empty.at_rest,
            ours: state.at_rest,
        };
        Row::numbers(name, "% of a core", [pair]).goal(Goal::OursAtMost(0.5))
    };
    vec![
        Row::times("pod up, Switchyard", starts(|pair| pair.ours)).goal(Goal::RatioAtMost(1.2)),
        Row::times("pod up, containerd's CRI", starts(|pair| pair.theirs)),
        rest("processor at rest", crowded),
        rest("the same with very many mounts", mounted),
    ]
}

/// The starts of both sides, and how they rise with mounts.
fn beside_containerd(crowded: &Measured, mounted: &Measured) -> Vec<Row> {
    let rises = crowded.starts.iter().zip(&mounted.starts);
    let rises = rises.map(|(before, after)| Pair {
        theirs: after.theirs.as_secs_f64() / before.theirs.as_secs_f64(),
        ours: after.ours.as_secs_f64() / before.ours.as_secs_f64(),
    });
    vec![
        Row::times("pod up", mounted.starts.iter().copied()),
        Row::numbers("pod up, beside the one without mounts", "times", rises)
            .goal(Goal::RatioAtMost(1.0)),
    ]
}

/// Watches the rest, and starts pods of each side in turns; each mounts the directory, if there is one.
async fn look(
    stand: &mut TestBed,
    size: BigSize,
    state: &str,
    directory: Option<&Path>,
) -> Result<Measured, Failure> {
    tokio::time::sleep(SETTLE).await;
    let at_rest = watch_rest(stand, size.rest).await?;
    let requests = Requests::new(stand);
    let TestBed { theirs, ours, .. } = stand;
    let mut starts = Vec::new();
    for round in 0..size.warm_up + size.pods {
        let name = format!("big-{}-{round}", state.replace(' ', "-"));
        let of_theirs = start_once(theirs, &requests, &name, directory);
        let of_ours = start_once(ours, &requests, &name, directory);
        let pair = Pair::in_turns(round, of_theirs, of_ours).await?;
        if let Some(done) = (round + 1)
            .checked_sub(size.warm_up)
            .filter(|done| *done > 0)
        {
            starts.push(pair);
            progress(&format!("pods {state}"), done, size.pods);
        }
    }
    Ok(Measured { at_rest, starts })
}

async fn watch_rest(stand: &TestBed, rest: Duration) -> Result<f64, Failure> {
    let own = [
        u32::try_from(stand.daemon.pid())?,
        Memory::logkeeper_of(stand)?,
    ];
    processor::watch(&own, rest).await
}

/// Takes one pod up and down; returns how long its start took.
async fn start_once(
    side: &mut Side,
    requests: &Requests,
    name: &str,
    directory: Option<&Path>,
) -> Result<Duration, Failure> {
    let mut container = requests.container("main");
    container.mounts.extend(directory.map(|dir| cri::Mount {
        container_path: "/files".to_owned(),
        host_path: dir.display().to_string(),
        ..Default::default()
    }));
    let sandbox = requests.sandbox(side, name);
    let up = pods::start_pod_with(side, sandbox, container).await?;
    pods::remove_pod(side, &up.pod).await?;
    tokio::time::sleep(COOLDOWN).await;
    Ok(up.run + up.create + up.start)
}

/// Tasks whose FIFOs are full and have no reader.
async fn abandoned_tasks(agent: &NomadAgent, count: u32) -> Result<Vec<PreparedTask>, Failure> {
    let tasks = (0..count).map(|_| agent.prepare(TaskNetwork::Host));
    let tasks: Vec<PreparedTask> = tasks.collect::<Result<_, Failure>>()?;
    let starts = tasks.into_iter().map(|mut task| {
        let mut driver = agent.driver();
        async move {
            driver.start(&task).await?;
            task.abandon_output()?;
            Ok(task)
        }
    });
    all(starts, AT_ONCE).await
}

// === impl ManyProcesses ===

impl ManyProcesses {
    fn start(dir: &Path, count: u32) -> Result<Self, Failure> {
        let program = compile(dir, "many-processes", PROCESSES)?;
        let nodes = count / (LEAVES + 1);
        let mut child = Command::new(program)
            .args([nodes, LEAVES].map(|number| number.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let stdout = child.stdout.take();
        let started = Self(child);
        let mut line = String::new();
        BufReader::new(stdout.ok_or("it is piped")?).read_line(&mut line)?;
        if line == "ready\n" {
            return Ok(started);
        }
        let most = fs::read_to_string("/proc/sys/kernel/pid_max")?;
        Err(format!(
            "cannot start {count} processes: the node allows process ids up to {}, and a control group may allow less",
            most.trim()
        )
        .into())
    }
}

impl Drop for ManyProcesses {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.0.id().cast_signed());
        // The group may be gone if the processes could not be started.
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.0.wait();
        let _ = eventually(END, || killpg(group, None).is_err());
    }
}

// === impl ManyFiles ===

impl ManyFiles {
    fn make(dir: &Path, count: u32) -> Result<Self, Failure> {
        for number in 0..count {
            let below = dir.join((number / FILES_PER_DIRECTORY).to_string());
            if number.is_multiple_of(FILES_PER_DIRECTORY) {
                fs::create_dir_all(&below)?;
            }
            fs::write(below.join(number.to_string()), "")?;
        }
        Ok(Self(dir.to_owned()))
    }
}

// === impl ManyMounts ===

impl ManyMounts {
    fn make(dir: &Path, count: u32) -> Result<Self, Failure> {
        fs::create_dir_all(dir)?;
        let none = None::<&Path>;
        mount(Some("many"), dir, Some("tmpfs"), MsFlags::empty(), none)?;
        let made = Self(dir.to_owned());
        mount(none, dir, none, MsFlags::MS_PRIVATE, none)?;
        let source = dir.join("source");
        fs::create_dir(&source)?;
        for number in 0..count {
            let point = dir.join(number.to_string());
            fs::create_dir(&point)?;
            mount(Some(&source), &point, none, MsFlags::MS_BIND, none)?;
        }
        Ok(made)
    }
}

impl Drop for ManyMounts {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.0, MntFlags::MNT_DETACH) {
            eprintln!("cannot unmount {}: {error}", self.0.display());
        }
    }
}
