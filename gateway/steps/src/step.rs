//! The list of all steps.

/// Generates the enums from a list of areas and their steps.
macro_rules! steps {
    ($($(#[$about:meta])* $area:ident { $($(#[$doc:meta])* $step:ident,)+ })+) => {
        /// The area of a step.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Area {
            $($(#[$about])* $area,)+
        }

        /// A point in a sequence, named after the effect just before it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Step {
            $($($(#[$doc])* $step,)+)+
        }

        impl Step {
            /// All steps.
            pub const ALL: &[Self] = &[$($(Self::$step,)+)+];

            /// The area of the step.
            #[must_use]
            pub const fn area(self) -> Area {
                match self {
                    $($(Self::$step)|+ => Area::$area,)+
                }
            }
        }
    };
}

steps! {
    /// Creating, stopping and removing a sandbox. A sequence can be made to fail at each of these.
    Sandbox {
        /// The container object of a sandbox is written.
        SandboxRecorded,
        /// Its directories and files are created.
        SandboxFiles,
        /// Its namespaces are pinned.
        SandboxPinned,
        /// Its `/dev/shm` is mounted.
        SandboxShm,
        /// Its network is attached.
        SandboxAttached,
        /// Its hosts file is written.
        SandboxHosts,
        /// Its infra process is created.
        InfraCreated,
        /// Its infra process runs.
        InfraStarted,
        /// The pid namespace of its infra process is pinned.
        InfraPinned,
        /// It is marked ready.
        SandboxMarked,
        /// It was stopped, and is marked as being started again.
        SandboxStarting,
        /// A stop has killed its infra process.
        SandboxInfraEnded,
        /// A stop has detached its network.
        SandboxDetached,
        /// A stop has released its namespaces.
        SandboxUnpinned,
        /// A stop has unmounted its `/dev/shm`.
        SandboxUnmounted,
        /// It is marked stopped.
        SandboxStopped,
        /// The frontend's note is in its record.
        SandboxAmended,
        /// Its record marks it for removal.
        SandboxDoomed,
        /// A removal has deleted its files.
        SandboxFilesGone,
        /// A removal has deleted the cgroups that were created for it.
        SandboxGroupsGone,
        /// A removal has deleted its container object.
        SandboxForgotten,
    }
    /// Creating, starting, updating, stopping and removing a task. A sequence can be made to fail at each of
    /// these.
    Task {
        /// The container object of a task is written.
        TaskRecorded,
        /// The views of its image volumes are created.
        TaskViewed,
        /// The directories of its image volumes are created.
        TaskVolumes,
        /// Its snapshot is prepared.
        TaskPrepared,
        /// Its FIFOs are created.
        TaskFifos,
        /// The logkeeper has opened its FIFOs.
        TaskLogged,
        /// The mounts that the runtime needs are mounted.
        TaskStaged,
        /// containerd has created its process.
        TaskCreated,
        /// The mounts that the runtime needed are unmounted.
        TaskUnstaged,
        /// Its process runs.
        TaskStarted,
        /// Its start time is written.
        TaskMarked,
        /// It is marked that the effective limits may differ from the recorded ones.
        TaskLimitsMarked,
        /// Its new block device limits are in effect.
        TaskThrottled,
        /// Its processes have their new OOM score adjustment.
        TaskScored,
        /// Its new limits are in effect, and not recorded.
        TaskLimited,
        /// Its new limits are recorded.
        TaskLimitsRecorded,
        /// Its exit is persisted.
        TaskExitRecorded,
        /// containerd has deleted its process.
        TaskDeleted,
        /// The logkeeper has finished its log.
        TaskLogFinished,
        /// A removal has deleted the content of its writable layer.
        TaskEmptied,
        /// A removal has deleted its snapshot.
        TaskSnapshotGone,
        /// A removal has deleted its files.
        TaskFilesGone,
        /// A removal has deleted its container object.
        TaskForgotten,
    }
    /// Parts of the sequences of sandboxes and tasks.
    Part {
        /// The files that namespaces are pinned to are created.
        PinsPlaced,
        /// One namespace is pinned.
        PinMounted,
        /// The file that the infra process's pid namespace is pinned to is created.
        InfraPinPlaced,
        /// One namespace pin is released.
        PinReleased,
        /// The directory of a `/dev/shm` is created.
        ShmPlaced,
        /// A process was killed and has exited, and containerd still has it.
        ProcessKilled,
        /// An unresponsive shim is killed, after the exits of all its processes were persisted.
        HungShimKilled,
        /// It is recorded that a cgroup could not be removed because it is busy.
        GroupNoted,
        /// Such a cgroup is removed, and still recorded.
        GroupGone,
        /// It is no longer recorded.
        GroupForgotten,
        /// The failure of a start is recorded, and what the start created still exists.
        StartRefused,
        /// The failure of a start is stored in a file, because containerd cannot be called.
        FailureNoted,
        /// A predecessor's interrupted start is marked as to be cleaned up.
        StartDiscarded,
        /// A failed update is rolled back: the old limits are in effect and recorded again, also if the new
        /// ones had been recorded although that call failed.
        LimitsPutBack,
        /// The effective limits are the recorded ones, and the mark is removed.
        LimitsUnmarked,
        /// The exit of a task is protected from garbage collection in containerd.
        ExitKept,
        /// It is no longer protected.
        ExitForgotten,
        /// A view of an image is created.
        ViewMade,
        /// A view of an image is mounted.
        ViewMounted,
        /// A view of an image is unmounted.
        ViewUnmounted,
        /// A named volume is filled, and does not have its name yet.
        VolumeDrafted,
        /// A named volume has its name.
        VolumeNamed,
        /// A removal has renamed a volume away from its name.
        VolumeUnnamed,
    }
    /// Disk limits of a task's directories.
    Quota {
        /// The projects of a task are recorded, and no directory is in them.
        QuotaRecorded,
        /// Its directories are in its projects.
        QuotaJoined,
        /// Its limits are set.
        QuotaLimited,
        /// It is recorded that they are set, which completes the task's creation.
        QuotaMarked,
        /// A removal has lifted its limits.
        QuotaLifted,
    }
    /// Clients that are attached to a task.
    Attach {
        /// It is recorded that a client has taken the input of a task with `stdin_once`.
        InputTaken,
        /// The input has ended with that client.
        InputEnded,
    }
    /// Checkpoints of a task.
    Checkpoint {
        /// The directory of a checkpoint is created, and marks that the checkpoint is in progress.
        CheckpointBegun,
        /// The processes of the task are frozen.
        CheckpointPaused,
        /// Their images are written.
        CheckpointDumped,
        /// The changes in the task's writable layer are written.
        CheckpointLayered,
        /// The processes are thawed.
        CheckpointResumed,
        /// The archive is written, and has its final name.
        CheckpointNamed,
    }
    /// Further processes in a task.
    Exec {
        /// The FIFOs of an exec are created.
        ExecFifos,
        /// Its shim has created it.
        ExecCreated,
        /// Its shim was called to start it, and has not answered.
        ExecAsked,
        /// Its process runs.
        ExecStarted,
        /// Its shim has deleted it.
        ExecDeleted,
        /// Its directory is gone.
        ExecGone,
    }
    /// Pulling, unpacking and removing an image.
    Image {
        /// A pull has its lease.
        PullLeased,
        /// The configuration is written.
        ConfigWritten,
        /// The manifest is written.
        ManifestWritten,
        /// An index is written.
        IndexWritten,
        /// A part of a layer is written.
        LayerBegun,
        /// A layer is committed to the content store.
        LayerCommitted,
        /// The snapshot to unpack a layer into is prepared.
        LayerPrepared,
        /// The layer is unpacked into it.
        LayerApplied,
        /// The snapshot is committed.
        LayerUnpacked,
        /// The layers of an image are synced to disk, and not recorded as synced.
        LayersSynced,
        /// An image that exists already has a lease to be unpacked under.
        UnpackLeased,
        /// One name of an image is written.
        ImageNamed,
        /// The lease is deleted.
        PullReleased,
        /// An owner is no longer a holder of one name of an image.
        ImageLetGo,
        /// One name of an image is removed.
        ImageUnnamed,
    }
    /// Attaching and detaching networks.
    Network {
        /// The file of a journal is created, and is empty.
        JournalDrafted,
        /// The journal records that an attachment begins.
        JournalWritten,
        /// A plugin's ADD has completed.
        PluginAdded,
        /// The journal has the result of a plugin.
        ResultSaved,
        /// A plugin's DEL has completed.
        PluginDeleted,
        /// The journal is removed.
        JournalRemoved,
        /// The address ranges that an owner has set are on disk.
        RangesKept,
    }
    /// Device leases without a container.
    Lease {
        /// A lease is recorded.
        LeaseStored,
        /// It is recorded that leases have ended, or that tasks have them.
        LeaseEnded,
        /// The temporary file of the rewritten lease journal is written.
        LeasesDrafted,
        /// It is renamed to its path, without the ended leases.
        LeasesRewritten,
    }
    /// Recovery of the state that a predecessor left.
    Recovery {
        /// The inventory is read.
        RecoveryLooked,
        /// The begin of the wait for a killed daemon's call is recorded.
        WaitNoted,
        /// The outcome of the call is known, and the record of the wait is removed.
        WaitOver,
        /// A snapshot is removed whose files a power failure may have lost.
        RecoveryLayerGone,
        /// Tasks are recovered.
        RecoveryTasks,
        /// The garbage is found, and requests are about to be served.
        RecoverySandboxes,
        /// Objects without an owner are removed.
        RecoveryDebris,
        /// A container object is updated from an earlier version: reserved labels of its client, or a spec
        /// without a process, are removed.
        ObjectRenewed,
    }
    /// Files and processes of the daemon.
    Daemon {
        /// The temporary file of a small file is written.
        FileDrafted,
        /// It is renamed to its path.
        FileNamed,
        /// The temporary file of the infra program is written.
        InfraDrafted,
        /// The infra program is in its place.
        InfraInstalled,
        /// The temporary file of managed containerd's configuration is written.
        ContainerdDrafted,
        /// The configuration of managed containerd is in its place.
        ContainerdConfigured,
        /// The log of a managed process is rotated.
        LogPutAside,
        /// A managed process is started, and may not have executed its program yet.
        ProcessSpawned,
        /// The lock of a directory is held, and contains the holder's process id.
        DirLocked,
        /// A socket is bound, and does not have its owner and mode yet.
        SocketBound,
        /// The temporary file of the admin address is written.
        AddressDrafted,
        /// The admin address is in its place.
        AddressWritten,
    }
    /// The process that becomes a managed process.
    Detach {
        /// The temporary pid file is written.
        PidDrafted,
        /// The pid file is in its place.
        PidWritten,
    }
    /// The logkeeper.
    Log {
        /// The socket of the logkeeper has its temporary name.
        KeeperBound,
        /// The FIFOs of a container are open.
        FifosOpened,
        /// The log file of a container is created.
        LogMade,
        /// Its position record is created.
        PositionMade,
        /// One of its spools is created.
        SpoolMade,
        /// The temporary file of its entry is written.
        EntryDrafted,
        /// Its entry is stored.
        EntryStored,
        /// Output is in the spool.
        OutputSpooled,
        /// Lines are in the log.
        LinesWritten,
        /// The position is stored.
        PositionStored,
        /// Space of the spool is released.
        SpoolReleased,
        /// A reopen was requested, and has not begun.
        ReopenAsked,
        /// The log is created again, and the position record still refers to the old one.
        LogReopened,
        /// A finish waits for the end of a FIFO.
        EndAwaited,
        /// All output is in the log.
        LogFinished,
        /// The entry is removed, and other files of the container are not.
        EntryForgotten,
        /// All files of the container are removed.
        EntryGone,
        /// A partially written batch is truncated from the log.
        LogCutBack,
        /// A container is recovered.
        LogTakenUp,
    }
}
