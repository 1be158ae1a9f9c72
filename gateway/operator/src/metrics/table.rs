//! The name, type, labels and help text of each metric of the daemon. `docs/metrics.md` is generated from this table.

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows, from the start of the daemon.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// Counts of observations by their size.
    Histogram,
}

impl Kind {
    /// The word for it in Prometheus text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The description of a metric.
#[derive(Debug, Clone, Copy)]
pub struct Description {
    /// The name, which ends with the unit.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The meaning, as sentences.
    pub help: &'static str,
}

/// Defines a constant for each metric, and the list of all by section.
macro_rules! metrics {
    ($($section:literal {
        $($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*
    })*) => {
        $($(
            #[doc = $help]
            pub(super) const $constant: Description =
                Description { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )*)*

        /// The metrics of each section of `docs/metrics.md`, in their order. Those of the section `former` are what the
        /// version before this one served under other names, and continue for one release.
        pub const SECTIONS: &[(&str, &[Description])] = &[$(($section, &[$($constant),*])),*];
    };
}

metrics! {
    "process" {
        BUILD: Gauge "switchyard_build_info" ["version", "revision"] "The build that runs; always 1.";
        CPU: Counter "process_cpu_seconds_total" [] "Processor time of the daemon, user and system.";
        RESIDENT_MEMORY: Gauge "process_resident_memory_bytes" [] "Memory of the daemon that is in RAM.";
        VIRTUAL_MEMORY: Gauge "process_virtual_memory_bytes" [] "Address space of the daemon.";
        OPEN_FDS: Gauge "process_open_fds" [] "Open file descriptors.";
        MAX_FDS: Gauge "process_max_fds" [] "Limit on open file descriptors.";
        THREADS: Gauge "process_threads" [] "Threads.";
        STARTED: Gauge "process_start_time_seconds" [] "When the daemon started, in seconds since 1970.";
        WORKERS: Gauge "switchyard_runtime_workers" [] "Threads of the asynchronous runtime.";
        ALIVE_TASKS: Gauge "switchyard_runtime_alive_tasks" [] "Asynchronous tasks that have not ended; growth without end is a leak.";
        QUEUED_TASKS: Gauge "switchyard_runtime_global_queue_depth" [] "Asynchronous tasks that are ready and in the queue of no thread yet. If it stays above 0, the threads are overloaded or blocked.";
        BUSY: Counter "switchyard_runtime_busy_seconds_total" [] "Time that the threads of the asynchronous runtime worked, of all together; its rate divided by the workers is their load.";
        PARKS: Counter "switchyard_runtime_parks_total" [] "How often a thread of the asynchronous runtime went to sleep for want of work.";
    }
    "calls" {
        RPC_REQUESTS: Counter "switchyard_rpc_requests_total" ["protocol", "method", "code"] "Calls that ended, by gRPC status code; methods that do not exist are counted as other.";
        RPC_DURATION: Histogram "switchyard_rpc_duration_seconds" ["protocol", "method"] "Time from request to status.";
        RPC_IN_FLIGHT: Gauge "switchyard_rpc_in_flight" ["protocol"] "Calls that have begun and not ended.";
        STREAMING_SESSIONS: Gauge "switchyard_streaming_sessions" ["kind"] "Open sessions of exec, attach and portforward.";
        LAUNCHERS: Gauge "switchyard_nomad_launchers" [] "Driver plugins of Nomad agents that have a session.";
    }
    "operations" {
        OPERATION_DURATION: Histogram "switchyard_operation_duration_seconds" ["owner", "operation", "result"] "Time that operations took, by result: ok, failed or dropped. The owner of the daemon's own is node.";
        OPERATION_FAILURES: Counter "switchyard_operation_failures_total" ["owner", "operation", "kind"] "Operations that failed, by the kind of the error.";
        STEP_DURATION: Histogram "switchyard_operation_step_duration_seconds" ["operation", "step"] "Time of the steps of operations, which may overlap; those named wait_for_… wait for something else.";
        STEP_FAILURES: Counter "switchyard_operation_step_failures_total" ["operation", "step", "kind"] "Steps of operations that failed, by the kind of the error; cancelled if the step was given up.";
        OPERATIONS_IN_FLIGHT: Gauge "switchyard_operations_in_flight" ["owner", "operation"] "Operations that have begun and not ended.";
        OLDEST_OPERATION: Gauge "switchyard_operation_oldest_age_seconds" ["operation"] "Age of the oldest operation in flight; 0 if there is none.";
        DAEMON_LOG_LINES: Counter "switchyard_daemon_log_lines_total" ["result"] "Lines of the daemon's own log, by result: written or lost.";
        AUDIT_LINES: Counter "switchyard_audit_lines_total" ["result"] "Lines of the audit log, by result: written or lost.";
        HISTORY_EVENTS: Counter "switchyard_history_events_total" ["result"] "Events of the history, by result: written or lost.";
        TRACE_SPANS: Counter "switchyard_trace_spans_total" ["result"] "Spans of traces, by result: sent or lost. Absent as long as nothing is traced.";
    }
    "objects" {
        SANDBOXES: Gauge "switchyard_sandboxes" ["owner", "state"] "Sandboxes.";
        TASKS: Gauge "switchyard_tasks" ["owner", "state"] "Tasks.";
        UNENDED_TASKS: Gauge "switchyard_unended_tasks" ["owner"] "Tasks that were sent SIGKILL and did not end in time: a process of theirs waits in the kernel, or their end is not reported.";
        OOM_KILLS: Counter "switchyard_oom_kills_total" ["owner"] "Processes of tasks that the kernel killed for want of memory, main processes and others. With cgroup v1, at least one of each task, when it ends.";
        TASK_EXITS: Counter "switchyard_task_exits_total" ["owner", "cause"] "Tasks that ended, by cause: exited, oom_killed, stopped, unhealthy, withdrawn, start_failed or lost.";
        IMAGES: Gauge "switchyard_images" [] "Images.";
        IMAGE_PULLS: Counter "switchyard_image_pulls_total" ["registry", "result"] "Pulls that ended, by result: ok, or the kind of the error.";
        PULL_BYTES: Counter "switchyard_image_pull_bytes_total" ["registry"] "Bytes of layers that have arrived for pulls.";
        DEVICE_CAPACITY: Gauge "switchyard_ledger_device_capacity_slots" ["resource"] "Slots of a device group that the ledger may give.";
        DEVICE_CLAIMS: Gauge "switchyard_ledger_device_claimed_slots" ["owner", "resource"] "Slots of it that an owner holds.";
        PORT_CLAIMS: Gauge "switchyard_ledger_claimed_ports" ["owner"] "Ports of the host that an owner holds.";
        CPU_CAPACITY: Gauge "switchyard_ledger_cpu_capacity_cores" [] "Processors of the node. Absent if that is not known.";
        CPU_CLAIMS: Gauge "switchyard_ledger_cpu_claimed_cores" ["owner"] "Processors that running tasks of an owner have reserved.";
        EXCLUSIVE_CORES: Gauge "switchyard_ledger_exclusive_cores" ["owner"] "Processor cores that tasks of an owner have for themselves.";
        MEMORY_CAPACITY: Gauge "switchyard_ledger_memory_capacity_bytes" [] "Memory of the node. Absent if that is not known.";
        MEMORY_CLAIMS: Gauge "switchyard_ledger_memory_claimed_bytes" ["owner"] "Memory that running tasks of an owner have reserved.";
        LEDGER_REFUSALS: Counter "switchyard_ledger_refusals_total" ["owner", "resource", "reason"] "Allocations that the ledger refused.";
        PLUGINS: Gauge "switchyard_device_host_plugins" ["state"] "Resources of vendors' device plugins, by state: connected, silent, ended, or gone a day after it ended.";
        PLUGIN_DEVICES: Gauge "switchyard_device_host_devices" ["resource", "health"] "Devices that these plugins have listed: healthy or unhealthy.";
        PLUGIN_SINCE: Gauge "switchyard_device_host_state_since_timestamp_seconds" ["resource", "state"] "Since when a plugin is in its state, in seconds since 1970.";
        PLUGIN_FAILURES: Counter "switchyard_device_host_failures_total" ["reason"] "Failures of these plugins.";
    }
    "network" {
        CNI_RUNS: Counter "switchyard_cni_runs_total" ["plugin", "command", "result"] "Runs of CNI plugins, by command (ADD, DEL, STATUS or GC) and result: ok, failed, or dropped if the run was given up.";
        CNI_DURATION: Histogram "switchyard_cni_run_duration_seconds" ["plugin", "command"] "Time of these runs.";
    }
    "node" {
        DISK_SIZE: Gauge "switchyard_filesystem_size_bytes" ["of", "mountpoint"] "Size of a file system that has the state or run directory, containerd's root (containerd) or logs of containers (logs), without what is kept for root.";
        DISK_AVAIL: Gauge "switchyard_filesystem_avail_bytes" ["of", "mountpoint"] "Space on it that programs without privileges can still take.";
        DISK_INODES: Gauge "switchyard_filesystem_inodes" ["of", "mountpoint"] "Its inodes. Absent if it makes them as it needs them.";
        DISK_FREE_INODES: Gauge "switchyard_filesystem_free_inodes" ["of", "mountpoint"] "Its free inodes.";
        NODE_LIMITS: Gauge "switchyard_node_limit_used_ratio" ["limit"] "Part of a limit of the node that is in use, from 0 to 1.";
        HOST_FEATURES: Gauge "switchyard_host_feature" ["feature"] "Whether the daemon can use something that the kernel or the node offers; what needs it is left out where it is 0. `switchyard status` says why.";
    }
    "parts" {
        UP: Gauge "switchyard_backend_up" ["part"] "Whether a part works, as in `switchyard status`.";
        READY: Gauge "switchyard_ready" [] "Whether all parts that the daemon needs work, as `/readyz` says.";
        RUNTIME_DOWN: Gauge "switchyard_runtime_down" ["reason"] "1 while the runtime cannot be used, by the reason that `crictl info` shows; absent otherwise.";
        TROUBLES: Gauge "switchyard_troubles" ["kind"] "Objects in a condition that the daemon cannot end: silent_shim, unrecorded_exit, left_cgroup, tree_set_aside or damaged_image. `switchyard status` names them.";
        REPLACED_PROGRAMS: Gauge "switchyard_replaced_programs" ["part"] "Whether a process still runs a program whose file was replaced: daemon, containerd or logkeeper.";
        FORMER_CONFIGURATIONS: Gauge "switchyard_former_configurations" ["part"] "Whether a process has read another configuration than this daemon generates for it: containerd. Absent if that is not known.";
        PROGRAM_VERSIONS: Gauge "switchyard_program_versions" ["part", "version"] "Processes by the version that they report: daemon, containerd, logkeeper and nomad-launcher.";
        RESTARTS: Counter "switchyard_managed_restarts_total" ["part", "cause"] "Restarts of the managed containerd and of the logkeeper, by cause: failure if the process ended, hung or failed to start; request; other if a logkeeper that the daemon does not start was replaced. The first start and an adoption do not count.";
        RELOADS: Counter "switchyard_config_reloads_total" ["result"] "Reloads of the configuration, by result: applied or refused.";
        LAST_RELOAD: Gauge "switchyard_config_last_reload_successful" [] "Whether the last reload took effect; 1 if there was none.";
        LAST_LOAD: Gauge "switchyard_config_last_load_success_timestamp_seconds" [] "When the configuration was last read and accepted, in seconds since 1970.";
        PENDING_CHANGES: Gauge "switchyard_config_pending_changes" [] "Changes of the configuration that wait for something else, such as a restart.";
        IGNORED_KEYS: Gauge "switchyard_config_ignored_keys" [] "Keys and values of the configuration that this version does not know and ignored at its start; 0 after a reload.";
    }
    "swarm" {
        SWARM_MEMBER: Gauge "switchyard_swarm_member" [] "Whether the node has joined a swarm and not left it; 1 also if it was removed from the swarm, or its certificate has expired.";
        SWARM_ENDED: Gauge "switchyard_swarm_ended" [] "Whether a member can work no more until somebody acts: it was removed from the swarm, or its certificate cannot be used.";
        SWARM_DUPLICATE: Gauge "switchyard_swarm_duplicate" [] "Whether another machine seems to be the same node of the swarm, as a clone is: they end each other's sessions.";
        SWARM_SESSION: Gauge "switchyard_swarm_session_open" [] "Whether the node has a session with one of the managers.";
        SWARM_SESSIONS: Counter "switchyard_swarm_sessions_total" [] "Sessions that were opened. Besides the first, each is a reconnection.";
        SWARM_FAILURES: Counter "switchyard_swarm_session_failures_total" [] "Sessions that have failed, or could not be opened; not one that ends for a new certificate.";
        SWARM_BEGIN: Gauge "switchyard_swarm_certificate_begin_timestamp_seconds" [] "From when on the certificate of a member is valid, in seconds since 1970.";
        SWARM_END: Gauge "switchyard_swarm_certificate_end_timestamp_seconds" [] "Until when it is valid, in seconds since 1970. It is renewed between half and four fifths of that time.";
    }
    "containerd" {
        CONTAINERD_CALLS: Counter "switchyard_containerd_calls_total" ["method", "code"] "Calls to containerd, and to shims that are called directly (containerd.task.v2.Task/… or v3), by the status of their end: UNAVAILABLE without an answer, CANCELLED if the daemon gave the call up, usually because its time was over.";
        CONTAINERD_DURATION: Histogram "switchyard_containerd_call_duration_seconds" ["method"] "Time from request to status.";
        CONTAINERD_RECONNECTS: Counter "switchyard_containerd_reconnects_total" [] "Connections that were made after an earlier one was lost.";
    }
    "recovery" {
        RECOVERY_OBJECTS: Counter "switchyard_recovery_objects_total" ["kind", "result"] "Objects that an earlier daemon left, at this daemon's start.";
        UNREADABLE: Gauge "switchyard_unreadable_objects" [] "Sandboxes and tasks that cannot be read, perhaps because a later version wrote them. They are left alone, and what they hold is given to nobody.";
        RECOVERY_DURATION: Gauge "switchyard_recovery_duration_seconds" [] "Time from the start of this daemon until it served requests, with its wait for containerd and the logkeeper; 0 until then.";
        RECOVERY_FAILURES: Counter "switchyard_recovery_failures_total" [] "Tries of recovery that failed. It is tried until it succeeds, and no request is served before.";
        CLEANUP_QUEUE: Gauge "switchyard_cleanup_queue" [] "Undos and removals that are left to do, those that run included. Each is tried until it succeeds: one that stays has an obstacle, which the log names.";
        CLEANUP_FAILURES: Counter "switchyard_cleanup_failures_total" [] "Tries of undos and removals that failed.";
    }
    "logs" {
        LOG_CONTAINERS: Gauge "switchyard_log_containers" [] "Containers whose output is logged.";
        LOG_LINES: Counter "switchyard_log_lines_total" [] "Log lines written.";
        LOG_BYTES: Counter "switchyard_log_bytes_total" [] "Bytes of output written.";
        LOG_DROPPED_LINES: Counter "switchyard_log_dropped_lines_total" [] "Log lines that could not be written.";
        LOG_DROPPED_BYTES: Counter "switchyard_log_dropped_bytes_total" [] "Bytes of output that could not be written.";
        LOG_STALLED_FILE_SYSTEMS: Gauge "switchyard_log_stalled_file_systems" [] "File systems that have not answered for two seconds or more, and hold up the logs on them.";
        LOG_STALLED_CONTAINERS: Gauge "switchyard_log_stalled_containers" [] "Containers whose logs they hold up: these containers block as soon as their pipes are full.";
        LOG_STALL_AGE: Gauge "switchyard_log_stall_age_seconds" [] "How long the one that has held up logs for longest has not answered; 0 if none does.";
        LOG_WRITE_DURATION: Histogram "switchyard_log_write_duration_seconds" ["mountpoint"] "Time of the writes to logs on a file system, since this daemon first asked the logkeeper.";
        LOG_FULL_PIPES: Gauge "switchyard_log_full_pipes" ["mountpoint"] "Containers that write faster than their logs take it: their pipes were full after the latest write.";
        LOG_FILE_SYSTEM_STALLED: Gauge "switchyard_log_file_system_stalled_seconds" ["mountpoint"] "How long a file system with logs has not answered; 0 if it answers.";
        LOG_STALLS: Counter "switchyard_log_stalls_total" [] "How often a file system did not answer for two seconds or more.";
    }
    "former" {
        LEDGER_CAPACITY: Gauge "switchyard_ledger_capacity" ["resource"] "Now switchyard_ledger_device_capacity_slots, …_cpu_capacity_cores (here cpu_milli) and …_memory_capacity_bytes (memory_bytes).";
        LEDGER_CLAIMS: Gauge "switchyard_ledger_claims" ["owner", "resource"] "Now switchyard_ledger_device_claimed_slots, …_claimed_ports (here port), …_cpu_claimed_cores (cpu_milli), …_exclusive_cores (core) and …_memory_claimed_bytes (memory_bytes).";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Its metrics have been renamed since the former version.
    const FORMER: &str = "former";

    /// The former version's metrics: name, type, and labels.
    fn former_version() -> impl Iterator<Item = (&'static str, &'static str, Vec<&'static str>)> {
        let lines = include_str!("../golden/metrics.txt").lines();
        lines.filter(|line| !line.starts_with('#')).map(|line| {
            let mut words = line.split(' ');
            let name = words.next().unwrap();
            (name, words.next().unwrap(), words.collect())
        })
    }

    #[test]
    fn metrics_of_the_former_version_are_there_with_their_type_and_labels() {
        let all: Vec<_> = SECTIONS.iter().flat_map(|(_, metrics)| *metrics).collect();
        for (name, kind, labels) in former_version() {
            let found = all.iter().find(|metric| metric.name == name);
            let metric = found.unwrap_or_else(|| {
                panic!("{name} is missing: it continues for one release after it was renamed")
            });
            assert_eq!(metric.kind.as_str(), kind, "{name}");
            for label in labels {
                assert!(metric.labels.contains(&label), "{name} has lost {label}");
            }
        }
    }

    #[test]
    fn former_names_are_those_of_the_former_version() {
        let (_, former) = SECTIONS.iter().find(|(name, _)| *name == FORMER).unwrap();
        for metric in *former {
            let is_of_former_version = former_version().any(|(name, _, _)| name == metric.name);
            assert!(
                is_of_former_version,
                "{} has continued for one release: delete it",
                metric.name
            );
        }
    }

    /// The units of names, which are base units or say what is counted.
    #[test]
    fn no_unit_is_a_part_or_a_multiple_of_another() {
        let wrong = [
            "milli",
            "millis",
            "ms",
            "us",
            "ns",
            "milliseconds",
            "microseconds",
            "minutes",
            "hours",
            "days",
            "kb",
            "mb",
            "kilobytes",
            "megabytes",
            "kib",
            "mib",
            "percent",
        ];
        for metric in SECTIONS.iter().flat_map(|(_, metrics)| *metrics) {
            let unit = metric.name.split('_').find(|word| wrong.contains(word));
            assert_eq!(unit, None, "{}", metric.name);
        }
    }

    #[test]
    fn names_are_unique_and_have_the_suffix_of_their_type() {
        let all: Vec<_> = SECTIONS.iter().flat_map(|(_, metrics)| *metrics).collect();
        let names: BTreeSet<_> = all.iter().map(|metric| metric.name).collect();
        assert!(names.len() == all.len() && all.len() > 50, "{}", all.len());
        for metric in all {
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == Kind::Counter,
                "{metric:?}"
            );
            assert!(
                metric.help.ends_with('.') && !metric.help.contains('|'),
                "{metric:?}"
            );
        }
    }
}
