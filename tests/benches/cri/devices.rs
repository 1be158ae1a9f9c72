//! Devices: the latency that a kubelet and a Nomad agent see, and what the device ledger adds to the start of
//! a pod and of a task.

pub(crate) mod device_bench;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::{Duration, Instant};

use switchyard_proto::cri::v1 as cri;

use crate::failure::Failure;
use crate::pair::Pair;
use crate::pods::{self, StartedPod};
use crate::report::{Report, progress};
use crate::requests::Requests;
use crate::row::{Goal, Row, milliseconds, quantile};
use crate::side::Side;
use crate::tasks::COOLDOWN;
use crate::tasks::nomad::{NomadAgent, PreparedTask, TaskNetwork, free_port};
use crate::test_bed::TestBed;
use device_bench::{AllocateClient, DEVICES, DeviceBench, LARGE, RESOURCES, give, large, nodes};

/// Names of the sides of a lease: a lease is written to the journal before it is answered.
const WRITES: Pair<&str> = Pair {
    theirs: "fdatasync",
    ours: "Switchyard",
};
/// Names of the sides of a start.
const STARTS: Pair<&str> = Pair {
    theirs: "no devices",
    ours: "with devices",
};
/// Between two leases. A kubelet admits one pod after the other.
const PACE: Duration = Duration::from_millis(5);
/// As many bytes as a lease has in the journal.
const RECORD: [u8; 160] = [b'x'; 160];

/// The extent of this part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DevicesSize {
    /// Batches of leases of each frontend.
    pub(crate) batches: u32,
    /// Restarts of the kubelet, and changes of the large list.
    pub(crate) changes: u32,
    /// Pods and tasks of each side.
    pub(crate) starts: u32,
    /// Those before them that do not count.
    pub(crate) warm_up: u32,
}

/// Measures all of it.
pub(crate) async fn measure(
    stand: &mut TestBed,
    bench: &mut DeviceBench,
    size: DevicesSize,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut rows = leases(bench, size).await?;
    let mut restarts = Vec::new();
    for round in 0..size.changes {
        restarts.push(milliseconds(bench.restart_kubelet().await?));
        progress("restarts of the kubelet", round + 1, size.changes);
    }
    let name = format!("until {} resources are registered", RESOURCES + 2);
    rows.push(Row::ours(&name, "ms", restarts));
    let updates = updates(bench, size.changes).await?;
    let name = format!("one of {LARGE} devices changes");
    rows.push(Row::ours(&name, "ms", updates).goal(Goal::OursAtMost(10.0)));
    rows.push(
        Row::ours(
            &format!("memory, {RESOURCES} x {DEVICES} devices"),
            "MiB",
            [bench.growth.rss_mib()],
        )
        .goal(Goal::OursAtMost(3.0)),
    );
    let note = format!(
        "{} x {DEVICES} leases of each frontend, one each {} ms, in turns with an append and an fdatasync beside the journal; a lease is in the\n\
         journal before it is answered. Percentiles: of each {DEVICES}. Registered: from the kubelet's socket to the last answer. A\n\
         change: from Reserve of one device until the kubelet has the new list.\n",
        size.batches,
        PACE.as_millis()
    );
    report.section_between("devices", WRITES, rows, note);

    let rows = starts(stand, bench, size).await?;
    let note = format!(
        "{} pods and tasks of each side on the host's network: of a daemon without devices, and of one that has {} of them, where a\n\
         pod claims a host port, its container has a device of the Container Device Interface, and the task one that is a node.\n",
        size.starts,
        RESOURCES * DEVICES + LARGE
    );
    report.section_between("what the ledger adds", STARTS, rows, note);
    report.leftovers(&bench.leftovers());
    Ok(())
}

/// Leases of both frontends, each beside a write to the disk.
async fn leases(bench: &mut DeviceBench, size: DevicesSize) -> Result<Vec<Row>, Failure> {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(bench.file("bench"))?;
    let mut pods = Vec::new();
    let mut tasks = Vec::new();
    for batch in 0..size.batches {
        let (mut allocate, _) = AllocateClient::connect(&bench.unused()?).await?;
        let reservable = AllocateClient::connect(&bench.unused()?).await?.0.ids;
        for id in reservable {
            tokio::time::sleep(PACE).await;
            let theirs = write(&mut file)?;
            pods.push(Pair {
                theirs,
                ours: allocate.take().await?.1,
            });
            tokio::time::sleep(PACE).await;
            let theirs = write(&mut file)?;
            tasks.push(Pair {
                theirs,
                ours: bench.reserve.take(&id).await?.1,
            });
        }
        progress("leases", batch + 1, size.batches);
    }
    let mut rows = Vec::new();
    for (name, pairs) in [("Allocate", pods), ("Reserve", tasks)] {
        let worst = |of: fn(&Pair<Duration>) -> Duration| {
            pairs
                .chunks(DEVICES)
                .map(|batch| {
                    let times: Vec<f64> = batch.iter().map(|pair| milliseconds(of(pair))).collect();
                    quantile(&times, 0.99)
                })
                .collect::<Vec<f64>>()
        };
        let worst: Vec<Pair<f64>> = worst(|pair| pair.theirs)
            .into_iter()
            .zip(worst(|pair| pair.ours))
            .map(|(theirs, ours)| Pair { theirs, ours })
            .collect();
        rows.push(Row::times(name, pairs));
        let row = Row::numbers(&format!("{name}, 99th percentile"), "ms", worst);
        rows.push(if name == "Allocate" {
            row.goal(Goal::OursAtMost(1.0))
        } else {
            row
        });
    }
    Ok(rows)
}

/// Appends as much as a lease takes, and waits until it is on the disk.
fn write(file: &mut File) -> Result<Duration, Failure> {
    let begin = Instant::now();
    file.write_all(&RECORD)?;
    file.sync_data()?;
    Ok(begin.elapsed())
}

/// Changes of one device of many: from the call of Nomad that causes it until a kubelet has the list.
async fn updates(bench: &mut DeviceBench, count: u32) -> Result<Vec<f64>, Failure> {
    let (allocate, mut follow) = AllocateClient::connect(&bench.endpoint(&large())?).await?;
    let mut took = Vec::new();
    for (round, id) in (0..count).zip(allocate.ids) {
        // By then the last change has been sent to all watchers.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begin = Instant::now();
        let mut reserve = bench.reserve.clone();
        let (reserved, list) = tokio::join!(reserve.take(&id), follow.next());
        let elapsed = begin.elapsed();
        reserved?;
        if list?.get(&id) != Some(&false) {
            return Err(format!("a kubelet sees {id} as free, which was reserved").into());
        }
        took.push(milliseconds(elapsed));
        progress("changes", round + 1, count);
    }
    Ok(took)
}

/// Pods and tasks with a port and devices, and the same without.
async fn starts(
    stand: &mut TestBed,
    bench: &mut DeviceBench,
    size: DevicesSize,
) -> Result<Vec<Row>, Failure> {
    let plain = Requests::new(stand);
    let nomad = NomadAgent::start(&stand.root, &stand.image).await?;
    let (mut allocate, _) = AllocateClient::connect(&bench.unused()?).await?;
    let mut ids = AllocateClient::connect(&bench.endpoint(&nodes())?)
        .await?
        .0
        .ids;
    let mut pods = Vec::new();
    let mut tasks = Vec::new();
    for round in 0..size.warm_up + size.starts {
        let name = format!("devices-{round}");
        let without = (sandbox(&plain, &stand.ours, &name), plain.container("main"));
        let mut with = (
            sandbox(&bench.requests, &bench.side, &name),
            bench.requests.container("main"),
        );
        let port = i32::from(free_port()?);
        with.0.port_mappings = vec![cri::PortMapping {
            container_port: port,
            host_port: port,
            ..Default::default()
        }];
        give(&mut with.1, allocate.take().await?.0);
        let pair = Pair::in_turns(
            round,
            pod(&mut stand.ours, without),
            pod(&mut bench.side, with),
        )
        .await?;

        let without = nomad.prepare(TaskNetwork::Host)?;
        let mut with = bench.nomad.prepare(TaskNetwork::Host)?;
        with.give(
            bench
                .reserve
                .take(&ids.pop().ok_or("all devices were reserved")?)
                .await?
                .0,
        );
        let task_pair =
            Pair::in_turns(round, task(&nomad, without), task(&bench.nomad, with)).await?;
        if round >= size.warm_up {
            pods.push(pair);
            tasks.push(task_pair);
            progress(
                "pods and tasks with devices",
                round + 1 - size.warm_up,
                size.starts,
            );
        }
    }
    let times = |of: fn(&StartedPod) -> Duration| {
        pods.iter()
            .map(|pair| Pair {
                theirs: of(&pair.theirs),
                ours: of(&pair.ours),
            })
            .collect::<Vec<_>>()
    };
    let goal = Goal::MoreAtMost(1.0);
    Ok(vec![
        Row::times("RunPodSandbox", times(|up| up.run)).goal(goal),
        Row::times("CreateContainer", times(|up| up.create)),
        Row::times("StartContainer", times(|up| up.start)),
        Row::times("StartTask", tasks).goal(goal),
    ])
}

/// A pod on the host's network.
pub(crate) fn sandbox(requests: &Requests, side: &Side, name: &str) -> cri::PodSandboxConfig {
    let mut sandbox = requests.sandbox(side, name);
    let security = sandbox
        .linux
        .get_or_insert_default()
        .security_context
        .get_or_insert_default();
    security.namespace_options.get_or_insert_default().network = cri::NamespaceMode::Node as i32;
    sandbox
}

async fn pod(
    side: &mut Side,
    (sandbox, container): (cri::PodSandboxConfig, cri::ContainerConfig),
) -> Result<StartedPod, Failure> {
    let up = pods::start_pod_with(side, sandbox, container).await?;
    pods::remove_pod(side, &up.pod).await?;
    tokio::time::sleep(COOLDOWN).await;
    Ok(up)
}

async fn task(nomad: &NomadAgent, task: PreparedTask) -> Result<Duration, Failure> {
    let mut driver = nomad.driver();
    let took = driver.start(&task).await?;
    driver.remove(&task).await?;
    drop(task);
    tokio::time::sleep(COOLDOWN).await;
    Ok(took)
}
