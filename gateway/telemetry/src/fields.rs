//! The names of the fields of log lines: one for each thing, whichever part logs it. `docs/log.md` has the table.

/// A field that says what a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogField {
    /// Its name. In the journal it is in capitals, after `SWITCHYARD_`.
    pub name: &'static str,
    /// The meaning of its value.
    pub meaning: &'static str,
}

const fn field(name: &'static str, meaning: &'static str) -> LogField {
    LogField { name, meaning }
}

/// The fields that say what a line is about. A line of the work of an operation has those of the operation.
pub const FIELDS: &[LogField] = &[
    field(
        "operation",
        "the kind of the operation, as in the audit log",
    ),
    field(
        "operation_id",
        "its id, unique on the node; the audit log and spans have the same",
    ),
    field(
        "owner",
        "the orchestrator: `kubernetes`, `nomad` or `swarm`",
    ),
    field("sandbox", "the id of a sandbox"),
    field("task", "the id of a task"),
    field(
        "object",
        "the id of a container of containerd, which may be a sandbox or a task",
    ),
    field(
        "name",
        "the name under which its orchestrator created a sandbox or task",
    ),
    field("pod", "the name of a pod"),
    field("namespace", "its namespace"),
    field("pod_uid", "its uid"),
    field("container", "the name of a container in its pod"),
    field("image", "the reference of an image"),
    field("nomad_namespace", "the namespace of a job of Nomad"),
    field("nomad_job", "the job"),
    field("nomad_group", "its task group"),
    field("nomad_alloc", "the id of an allocation"),
    field("nomad_task", "the name of a task in its job"),
    field("swarm_service", "the name of a service"),
    field("swarm_task", "the id that a swarm gave a task"),
    field(
        "trace",
        "the id of the trace, if [traces](tracing.md) are on",
    ),
    field(
        "protocol",
        "the protocol of a call: `cri`, `nomad` or another listener",
    ),
    field("rpc", "the method of a call"),
    field("error", "the error with its causes"),
    field(
        "error_kind",
        "the kind of the error of an operation, as in `switchyard_operation_failures_total`",
    ),
    field("reason", "what is wrong, where it is no error of a call"),
    field("seconds", "how long something took"),
    field("target", "the module that logged the line"),
];

/// Further names, of details that the text of a line explains.
#[rustfmt::skip]
pub const DETAILS: &[&str] = &[
    "address", "adopted", "after", "again_in", "applied", "attributes", "backtrace", "before", "binary", "bound", "by",
    "bytes", "can", "cause", "cluster", "code", "containers", "cores", "daemon", "descriptor", "devices", "digest", "dir",
    "directory", "driver", "dropped", "dropped_bytes", "dropped_lines", "durations", "empty_spec", "endpoint", "entries", "feature",
    "fifo", "file", "files", "first", "freed", "generation", "group", "holder", "holds_all", "host", "interface", "key",
    "keys", "kind", "known", "labels", "layer", "lease", "leases", "left", "left_out", "level", "limit", "line", "lines",
    "location", "locked_after", "log", "lost", "manager", "missed", "mode", "most", "network", "node", "of_this_process", "offset",
    "one", "open", "other", "outcome", "output", "owners", "panic", "part", "path", "paths_of", "pause", "phases", "pid",
    "pid_file", "pids", "place", "pod_cidr", "point", "port", "processes", "processes_after", "profile", "program",
    "project", "refusal", "registry", "removed", "resource", "run", "sandboxes", "served_after", "session", "set_aside",
    "shims_asked", "shims_silent", "signal", "sink", "snapshot", "snapshotter", "socket", "state", "status", "stream",
    "subscription", "tasks", "temporary", "thread", "time", "tls", "took", "trees", "trial", "tries", "uid", "upper",
    "version", "volume", "vulnerabilities", "warning", "what", "without",
];
