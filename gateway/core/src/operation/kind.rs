//! The kinds of operations.

use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $word:literal,)*) => {
        /// The kind of an operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum OperationKind {
            $($(#[$doc])* $kind,)*
        }

        impl OperationKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// The kind in words, joined by underscores.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $word,)*
                }
            }
        }
    };
}

kinds! {
    /// Creates a sandbox and makes it ready.
    CreateSandbox = "create_sandbox",
    /// Makes a stopped sandbox ready again.
    StartSandbox = "start_sandbox",
    /// Stops a sandbox and its tasks.
    StopSandbox = "stop_sandbox",
    /// Removes a sandbox and its tasks.
    RemoveSandbox = "remove_sandbox",
    /// Creates a task.
    CreateTask = "create_task",
    /// Starts a task.
    StartTask = "start_task",
    /// Stops a task.
    StopTask = "stop_task",
    /// Sends a signal to a task.
    SignalTask = "signal_task",
    /// Changes the limits of a task.
    UpdateTask = "update_task",
    /// Removes a task.
    RemoveTask = "remove_task",
    /// Starts a command in a task, with streams to a client.
    Exec = "exec",
    /// Runs a command in a task to its end, as probes do.
    ExecSync = "exec_sync",
    /// Connects a client to the streams of a task.
    Attach = "attach",
    /// Connects a client to a port of a sandbox.
    PortForward = "port_forward",
    /// Shows somebody what a sandbox or task may keep secret, such as the environment.
    ShowSecrets = "show_secrets",
    /// Gives somebody a session of the status page, which shows the objects of all owners.
    OpenPage = "open_page",
    /// Writes a checkpoint of a task.
    Checkpoint = "checkpoint",
    /// Pulls an image.
    PullImage = "pull_image",
    /// Loads an image from an archive.
    LoadImage = "load_image",
    /// Releases an image and removes it if nobody else holds it.
    RemoveImage = "remove_image",
    /// Removes a volume.
    RemoveVolume = "remove_volume",
    /// Leases devices to an owner.
    LeaseDevices = "lease_devices",
    /// Ends a lease at an operator's request.
    ReleaseLease = "release_lease",
    /// Sets the address ranges of an owner.
    SetRanges = "set_ranges",
    /// Reloads the configuration of the daemon.
    ReloadConfig = "reload_config",
    /// Sets the level of the daemon's log.
    SetLogLevel = "set_log_level",
    /// Restarts a process that the daemon manages.
    RestartProcess = "restart_process",
    /// Makes the node a worker of a Docker swarm.
    JoinSwarm = "join_swarm",
    /// Ends the node's part in its swarm.
    LeaveSwarm = "leave_swarm",
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
