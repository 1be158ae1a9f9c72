//! 8xx: the daemon, its configuration, and what an upgrade leaves to be done.

use super::super::finding::FindingCode;

pub(in super::super) const DAEMON_DOWN: FindingCode = FindingCode::error(
    "SY801",
    "the daemon does not answer",
    "Orchestrators can neither start nor stop anything. Running containers and their logs continue.",
    "Start the daemon; the last line of its log says why it ended.",
);
pub(in super::super) const PART_DOWN: FindingCode = FindingCode::error(
    "SY802",
    "a part of the daemon does not work",
    "A part that is needed makes the node not ready; without another one, the requests that use it fail.",
    "docs/alerts.md says for each part what to do.",
);
pub(in super::super) const STALE_SOCKET: FindingCode = FindingCode::error(
    "SY803",
    "clients reach nobody at a socket of the daemon",
    "They get \"connection refused\", or \"no such file\" if its file is gone. Connections that were made before go on.",
    "Start the daemon, which replaces the file. If it runs and the file is gone, restart it, which makes the file again, and find out what has removed it: a script or a timer that cleans /run.",
);
pub(in super::super) const CONFIG_INVALID: FindingCode = FindingCode::error(
    "SY804",
    "the configuration is invalid",
    "A reload is refused, and the daemon does not start the next time. Containers and their logs continue.",
    "Correct the file at the line that is named.",
);
pub(in super::super) const CONFIG_DOUBTFUL: FindingCode = FindingCode::warning(
    "SY805",
    "a value of the configuration is probably not intended",
    "It is valid, and in force, unless the finding says that nothing reads its key any more.",
    "Correct the value, remove a key that nothing reads, or leave it if it is intended.",
);
pub(in super::super) const CONFIG_OVERRIDDEN: FindingCode = FindingCode::note(
    "SY806",
    "a value of a configuration file has no effect",
    "A variable in the daemon's environment, or a flag, sets the same key to another value.",
    "Remove the value from the file, or the variable from the unit.",
);
pub(in super::super) const RELOAD_REFUSED: FindingCode = FindingCode::warning(
    "SY807",
    "the last reload of the configuration was refused",
    "The configuration from before is in force. With the present files the daemon does not start, or ignores unknown keys and values.",
    "Correct the file, then reload.",
);
pub(in super::super) const CONFIG_PENDING: FindingCode = FindingCode::note(
    "SY808",
    "changes of the configuration are not in force yet",
    "The daemon runs with the former values of these keys.",
    "Do what the effect of the key says, such as a restart of the daemon; containers continue.",
);
pub(in super::super) const FORMER_PROGRAM: FindingCode = FindingCode::warning(
    "SY809",
    "a process still runs a former program",
    "Faults that an upgrade has corrected are still in effect in this process.",
    "Restart the part; containers keep running.",
);
pub(in super::super) const OTHER_LOGKEEPER: FindingCode = FindingCode::warning(
    "SY810",
    "the logkeeper is of another version than the daemon",
    "Both work together over one version of difference. What a newer logkeeper adds is not used.",
    "Restart the logkeeper; containers keep running, and their output waits for the moment in between.",
);
pub(in super::super) const NO_GROUP: FindingCode = FindingCode::error(
    "SY811",
    "the group of a socket does not exist",
    "The daemon does not start.",
    "Create the group with groupadd, or correct the key.",
);
pub(in super::super) const ADMIN_EXPOSED: FindingCode = FindingCode::warning(
    "SY812",
    "the admin pages are served beyond loopback, without authentication",
    "Whoever reaches the address sees the state of the node and its metrics.",
    "Set admin.listen to a loopback address, and serve metrics by admin.metrics_listen with TLS.",
);
pub(in super::super) const SHARED_BY_INSTANCES: FindingCode = FindingCode::error(
    "SY813",
    "two instances share what each must have alone",
    "The second one does not start, or both give out the same addresses.",
    "Give each instance its own paths.state, paths.run, admin.listen, network.bridge and network.pods.",
);
pub(in super::super) const OTHER_VERSION: FindingCode = FindingCode::note(
    "SY814",
    "this command is of another version than the daemon",
    "The command may not understand all answers of the daemon. After an upgrade the daemon continues with the former version if the new one refuses the configuration.",
    "Restart the daemon, or use the command of the installed version.",
);
pub(in super::super) const CONFIG_UNKNOWN: FindingCode = FindingCode::warning(
    "SY815",
    "the configuration has a key or value that this version does not know",
    "A start ignores it: the default is in force, or the value of another file. A reload is refused.",
    "Correct its name, or remove it if it is for a later version.",
);

pub(in super::super) const UNREADABLE: FindingCode = FindingCode::error(
    "SY816",
    "objects cannot be read",
    "A later version wrote them, or they are damaged. They run on, and are in no orchestrator's list; their names, ports, devices and processors are given to nobody, and the node is not ready.",
    "Install the version that wrote them again, or remove them: docs/alerts.md says how, under SwitchyardUnreadable.",
);

pub(in super::super) const CANNOT_START: FindingCode = FindingCode::error(
    "SY817",
    "the daemon cannot use what it reads when it starts",
    "It does not start the next time. A running one continues with the certificates and tokens that it has read.",
    "Correct the file or the variable that is named; `switchyard config check --unit` repeats the check.",
);
pub(in super::super) const FORMER_CONFIGURATION: FindingCode = FindingCode::warning(
    "SY818",
    "a process has read a former configuration",
    "The daemon generates another configuration for it, as after an upgrade or a change of a key. What that changes, such as a plugin that is turned off, is not in effect yet.",
    "Restart the part; containers keep running.",
);
pub(in super::super) const SILENT_SHIM: FindingCode = FindingCode::warning(
    "SY819",
    "a shim does not answer",
    "Its containers run on, and cannot be stopped, changed or entered. The daemon does not kill it while one of them runs.",
    "Stop the pod or task. If that fails, the process of the shim (`ps -ef | grep containerd-shim`, with the id) may be killed, which ends its containers; state `D` in `ps` shows that a disk does not answer.",
);
pub(in super::super) const UNRECORDED_EXIT: FindingCode = FindingCode::warning(
    "SY820",
    "an exit is not persisted yet",
    "It was reported. If the daemon, containerd and the node all end before it is persisted, its code is lost.",
    "Make space on the disk of containerd, or bring containerd back: it is persisted then.",
);
pub(in super::super) const LEFT_CGROUP: FindingCode = FindingCode::warning(
    "SY821",
    "processes of a removed container run on",
    "They use memory and processors that nobody accounts for. The cgroup is removed within five minutes of being empty.",
    "Look at its cgroup.procs, and end what is in it; a process in state `D` ends when its disk answers, or with a reboot.",
);
pub(in super::super) const TREE_SET_ASIDE: FindingCode = FindingCode::warning(
    "SY822",
    "a directory could not be removed",
    "It was set aside, uses space, and is not removed by itself.",
    "Remove it by hand: `lsattr -R` shows immutable files in it, `findmnt -R` mounts.",
);
pub(in super::super) const DAMAGED_IMAGE: FindingCode = FindingCode::warning(
    "SY823",
    "an image is damaged",
    "It is reported as absent, and containers that need what is damaged are not created.",
    "The next pull replaces what is damaged. Look for errors of the disk: `dmesg -T`.",
);
pub(in super::super) const UNENDED_TASK: FindingCode = FindingCode::warning(
    "SY824",
    "a task was sent SIGKILL and does not end",
    "Its orchestrator repeats the stop for ever, and its successor may wait for it. A process that waits in the kernel ends with that wait alone.",
    "Bring back the server or disk of the mount that is named: the process ends by itself then. If it cannot come back, drain the node and reboot it.",
);
pub(in super::super) const FULL_PIPE: FindingCode = FindingCode::warning(
    "SY825",
    "the log of a container is written more slowly than its output",
    "It waits in each write to its output.",
    "Look at the disk of the log: `iostat -x 1`. Move the logs, or let the container write less.",
);
pub(in super::super) const FAILING_OPERATIONS: FindingCode = FindingCode::warning(
    "SY826",
    "most operations of a kind have failed in the last ten minutes",
    "Orchestrators repeat them: pods, jobs and services do not start, or do not end.",
    "The last error names the cause. `switchyard events` has each failure, docs/troubleshooting.md leads from errors to cures.",
);

/// Codes of what holds up work now. These come before other findings of the same severity.
pub(in super::super) const ACUTE: &[&FindingCode] = &[
    &DAEMON_DOWN,
    &PART_DOWN,
    &STALE_SOCKET,
    &SILENT_SHIM,
    &UNENDED_TASK,
    &FULL_PIPE,
    &FAILING_OPERATIONS,
];

pub(super) const ALL: &[&FindingCode] = &[
    &DAEMON_DOWN,
    &PART_DOWN,
    &STALE_SOCKET,
    &CONFIG_INVALID,
    &CONFIG_DOUBTFUL,
    &CONFIG_OVERRIDDEN,
    &RELOAD_REFUSED,
    &CONFIG_PENDING,
    &FORMER_PROGRAM,
    &OTHER_LOGKEEPER,
    &NO_GROUP,
    &ADMIN_EXPOSED,
    &SHARED_BY_INSTANCES,
    &OTHER_VERSION,
    &CONFIG_UNKNOWN,
    &UNREADABLE,
    &CANNOT_START,
    &FORMER_CONFIGURATION,
    &SILENT_SHIM,
    &UNRECORDED_EXIT,
    &LEFT_CGROUP,
    &TREE_SET_ASIDE,
    &DAMAGED_IMAGE,
    &UNENDED_TASK,
    &FULL_PIPE,
    &FAILING_OPERATIONS,
];
