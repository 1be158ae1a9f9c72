//! The options: the parts to measure, and their extent.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::big::BigSize;
use crate::bridge_driver::BridgeDriver;
use crate::bridges;
use crate::crowd::CrowdSize;
use crate::far::FarSize;
use crate::scale::ScaleSize;
use crate::swarm::SwarmSize;
use crate::tasks::TasksSize;

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Pods, one after the other, step by step.
    Pods,
    /// Pulls of small images.
    Pulls,
    /// Pulls of large images.
    Image,
    /// Pulls from a registry that is far away, over a modelled link.
    Far,
    /// Logs of a container that prints much.
    Logs,
    /// Pods, all concurrently.
    Burst,
    /// Pods per second of several clients.
    Rate,
    /// Many containers at rest: memory, lists, starts.
    Crowd,
    /// The usage of many containers: what the answers cost.
    Usage,
    /// Commands in containers, and ports of pods.
    Streams,
    /// Our pods with crun, theirs with runc.
    Crun,
    /// Nomad's tasks, beside bare containers.
    Tasks,
    /// Attaching and detaching alone: our driver beside the plugins.
    Network,
    /// Tasks of a Docker swarm, beside bare containers and beside dockerd.
    Swarm,
    /// Devices of the ledger.
    Devices,
    /// The calls of one orchestrator while another one starts many containers.
    Storm,
    /// Restarts of the daemon under load: how long clients wait.
    Upgrade,
    /// A node with very many processes, files, mounts and FIFOs without readers; only if it is named.
    Big,
    /// A node with up to 1,000 pods, one side after the other; only if it is named.
    Scale,
}

/// Measures Switchyard and containerd's own CRI plugin, in turns, on the same containerd.
#[derive(Debug, Parser)]
#[command(
    bin_name = "tests/bench",
    after_help = "tests/bench --root DIRECTORY [...] measures both sides with the containerd, runc and crun of another system, in a directory \
                  with its files: see docs/benchmark.md"
)]
pub(crate) struct Args {
    /// Pods of each side that are measured one after the other
    #[arg(default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: u32,
    /// Parts to measure, instead of everything
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Part>,
    /// Measures everything, but little of it: to see that it works, not for figures
    #[arg(long)]
    pub(crate) quick: bool,
    /// Pods of each side before the first measured one, besides one that shows that logs work
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) warm_up: u32,
    /// Pulls of each side; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) pulls: u32,
    /// Layers of a pulled image
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) layers: usize,
    /// Size of each layer in MiB; random bytes, which do not compress
    #[arg(long, value_name = "MIB", default_value_t = 4)]
    pub(crate) layer_mib: usize,
    /// Pulls of each side of a large image
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) image_pulls: u32,
    /// Layers of a large image
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) image_layers: usize,
    /// Size of a large image in MB
    #[arg(long, value_name = "MB", default_value_t = 200)]
    pub(crate) image_mb: usize,
    /// Pulls of each side and kind from a registry that is far away; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) far_pulls: u32,
    /// Size of an image with one layer that is pulled from there, in MB; it is made in memory, which takes four times as much
    #[arg(long, value_name = "MB", default_value_t = 2000)]
    pub(crate) far_mb: usize,
    /// Round trip to it, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub(crate) far_round_trip: u64,
    /// Rate of the link to it, in Mbit/s
    #[arg(long, value_name = "MBIT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) far_mbit: u64,
    /// Rate of one connection where it does not fill the link, in Mbit/s
    #[arg(long, value_name = "MBIT", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) far_connection_mbit: u64,
    /// Logs of each side; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub(crate) logs: u32,
    /// Size of what a container prints, in MB
    #[arg(long, value_name = "MB", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) log_mb: u32,
    /// Commands of each side
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) commands: u32,
    /// Transfers of each side through commands and ports, of 100 MB; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) transfers: u32,
    /// Bursts of each side
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) bursts: u32,
    /// Pods of a burst
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) burst_pods: u32,
    /// Seconds for which each side creates and removes pods, for pods per second
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) rate_seconds: u64,
    /// Concurrent clients that do so
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) clients: u32,
    /// Pods of each side that hold many containers
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) crowd_pods: usize,
    /// Containers of each side that run in them
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) crowd_running: usize,
    /// All containers of each side in them; those that do not run are only created
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) crowd_all: usize,
    /// Seconds for which their rest is watched
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub(crate) rest_seconds: u64,
    /// Minutes for which the daemon's anonymous memory is watched behind all parts, without work; 0 leaves it out
    #[arg(long, value_name = "MINUTES", default_value_t = 0)]
    pub(crate) afterwards: u64,
    /// Containers of each side whose usage is queried
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) usage_containers: u32,
    /// Calls per round
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) usage_calls: u32,
    /// Pods of each side, ours with crun
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) crun_pods: u32,
    /// Tasks of Nomad that are started one after the other on each network, and as many bare containers
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(crate) tasks: u32,
    /// Bursts of tasks of each side
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) task_bursts: u32,
    /// Tasks of a burst
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) task_burst: u32,
    /// Concurrent tasks, for the memory of each
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tasks_running: u32,
    /// What attaches our tasks of Nomad and Swarm to the gateway's own bridge; the bare containers beside them have plugins. With
    /// `native`, our pods are on a bridge of the gateway too if one of the parts `pods` and `scale` is named
    #[arg(long, value_name = "DRIVER", value_enum, default_value_t = BridgeDriver::Cni)]
    pub(crate) bridge_driver: BridgeDriver,
    /// Attachments of each side
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attachments: u32,
    /// Tasks that a swarm assigns, one after the other on each network, and as many bare containers
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) swarm_tasks: u32,
    /// Joins of a swarm
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) swarm_joins: u32,
    /// Services of each worker of a swarm
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) swarm_services: u32,
    /// Concurrent tasks of a swarm, for the memory of each
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) swarm_running: u32,
    /// Leases of each frontend, in hundreds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) leases: u32,
    /// Restarts of the kubelet, and changes of many devices
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) device_changes: u32,
    /// Pods and tasks of each side, ours with devices
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) device_starts: u32,
    /// Storms of each side and kind
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub(crate) storms: u32,
    /// Containers of a storm
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) storm: u32,
    /// Restarts of the daemon; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) restarts: u32,
    /// Processes of a big node
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..))]
    pub(crate) big_processes: u32,
    /// Files of the directory that each pod of a big node mounts
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) big_files: u32,
    /// Mounts of a big node
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) big_mounts: u32,
    /// FIFOs without a reader on a big node, two for each task
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub(crate) big_fifos: u32,
    /// Pods of each side in each state of a big node
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) big_pods: u32,
    /// Pods of a side beside which is measured, in turn; 1,000 at most, for a bridge has 1,023 ports
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "10,100,500,1000",
        value_parser = clap::value_parser!(u16).range(1..=1000)
    )]
    pub(crate) scale: Vec<u16>,
    /// Pods that are measured beside each of these counts
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) scale_pods: u32,
    /// Also writes every sample to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also shows where the time of our pods, pulls and commands goes, as containerd and the daemon count it
    #[arg(long)]
    pub(crate) breakdown: bool,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

// === impl Args ===

impl Args {
    /// Returns whether a part is measured.
    pub(crate) fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Returns whether a part is measured that is measured only if it is named.
    pub(crate) fn names(&self, part: Part) -> bool {
        self.only.contains(&part)
    }

    /// Returns the extent of the part for a big node.
    pub(crate) fn big_size(&self) -> BigSize {
        BigSize {
            processes: self.big_processes,
            files: self.big_files,
            mounts: self.big_mounts,
            fifos: self.big_fifos,
            pods: self.big_pods,
            warm_up: self.warm_up,
            rest: Duration::from_secs(self.rest_seconds),
        }
    }

    /// Returns the extent of the part for many pods.
    pub(crate) fn scale_size(&self) -> ScaleSize {
        let mut counts: Vec<usize> = self.scale.iter().copied().map(usize::from).collect();
        counts.sort_unstable();
        counts.dedup();
        ScaleSize {
            counts,
            pods: self.scale_pods,
            rest: Duration::from_secs(self.rest_seconds),
        }
    }

    /// Returns the settings of our daemon that follow from the options. Those of its own bridge are the first.
    pub(crate) fn daemon_settings(&self) -> String {
        let mut settings = self.bridge_driver.settings();
        if self.names(Part::Scale) {
            settings.push_str(&format!("subnets = [{:?}]\n", bridges::BRIDGE_SUBNET));
        }
        if self.has_pods_on_bridge() {
            settings.push_str(&bridges::pod_settings());
        }
        settings
    }

    /// Returns whether our pods are on a bridge of the gateway, those of all parts.
    pub(crate) fn has_pods_on_bridge(&self) -> bool {
        let is_named = self.names(Part::Pods) || self.names(Part::Scale);
        is_named && self.bridge_driver == BridgeDriver::Native
    }

    /// Returns the number of pods that are kept, and the time for which they are watched.
    pub(crate) fn crowd_size(&self) -> CrowdSize {
        CrowdSize {
            pods: self.crowd_pods,
            running: self.crowd_running,
            all: self.crowd_all,
            rest: Duration::from_secs(self.rest_seconds),
        }
    }

    /// Returns the extent of the part for a registry that is far away.
    pub(crate) fn far_size(&self) -> FarSize {
        FarSize {
            pulls: self.far_pulls,
            image_layers: self.image_layers,
            image_mb: self.image_mb,
            layer_mb: self.far_mb,
            round_trip: Duration::from_millis(self.far_round_trip),
            link_mbit: self.far_mbit,
            connection_mbit: self.far_connection_mbit,
        }
    }

    /// Returns the extent of the part for Nomad's tasks.
    pub(crate) fn tasks_size(&self) -> TasksSize {
        TasksSize {
            starts: self.tasks,
            warm_up: self.warm_up,
            bursts: self.task_bursts,
            burst: self.task_burst,
            running: self.tasks_running,
            driver: self.bridge_driver,
        }
    }

    /// Returns the extent of the part for the tasks of a swarm.
    pub(crate) fn swarm_size(&self) -> SwarmSize {
        SwarmSize {
            starts: self.swarm_tasks,
            warm_up: self.warm_up,
            joins: self.swarm_joins,
            services: self.swarm_services,
            running: self.swarm_running,
            driver: self.bridge_driver,
        }
    }

    /// Little of everything, if that is wanted.
    pub(crate) fn sized(mut self) -> Self {
        if self.quick {
            self.iterations = self.iterations.min(5);
            self.warm_up = self.warm_up.min(1);
            self.pulls = self.pulls.min(2);
            self.logs = self.logs.min(2);
            self.commands = self.commands.min(3);
            self.transfers = self.transfers.min(1);
            self.bursts = self.bursts.min(2);
            self.rate_seconds = self.rate_seconds.min(12);
            self.image_pulls = self.image_pulls.min(1);
            self.far_pulls = self.far_pulls.min(1);
            self.far_mb = self.far_mb.min(100);
            self.crowd_pods = self.crowd_pods.min(4);
            self.crowd_running = self.crowd_running.min(20);
            self.crowd_all = self.crowd_all.min(50);
            self.rest_seconds = self.rest_seconds.min(5);
            self.afterwards = self.afterwards.min(1);
            self.usage_containers = self.usage_containers.min(20);
            self.usage_calls = self.usage_calls.min(5);
            self.crun_pods = self.crun_pods.min(4);
            self.tasks = self.tasks.min(4);
            self.restarts = self.restarts.min(5);
            self.task_bursts = self.task_bursts.min(1);
            self.task_burst = self.task_burst.min(10);
            self.tasks_running = self.tasks_running.min(20);
            self.attachments = self.attachments.min(5);
            self.swarm_tasks = self.swarm_tasks.min(3);
            self.swarm_joins = self.swarm_joins.min(1);
            self.swarm_services = self.swarm_services.min(2);
            self.swarm_running = self.swarm_running.min(10);
            self.leases = self.leases.min(1);
            self.device_changes = self.device_changes.min(3);
            self.device_starts = self.device_starts.min(3);
            self.storms = self.storms.min(1);
            self.storm = self.storm.min(10);
            self.big_processes = self.big_processes.min(500);
            self.big_files = self.big_files.min(1000);
            self.big_mounts = self.big_mounts.min(200);
            self.big_fifos = self.big_fifos.min(8);
            self.big_pods = self.big_pods.min(3);
            for count in &mut self.scale {
                *count = (*count).min(20);
            }
            self.scale_pods = self.scale_pods.min(3);
        }
        self
    }
}
