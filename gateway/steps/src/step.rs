//! The list of all steps.

/// Makes the enums out of a list of areas and their steps.
macro_rules! steps {
    ($($(#[$about:meta])* $area:ident { $($(#[$doc:meta])* $step:ident,)+ })+) => {
        /// What a step is a part of.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Area {
            $($(#[$about])* $area,)+
        }

        /// A point in a sequence; what was done just before is in its name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Step {
            $($($(#[$doc])* $step,)+)+
        }

        impl Step {
            /// All steps.
            pub const ALL: &[Self] = &[$($(Self::$step,)+)+];

            /// What it is a part of.
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
    /// Making, stopping and removing a sandbox. A sequence can be made to fail at each of these.
    Sandbox {
        /// The container object of a sandbox is written.
        SandboxRecorded,
        /// Its directories and files are made.
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
        /// The process namespace of its infra process is pinned.
        InfraPinned,
        /// It is marked ready.
        SandboxMarked,
        /// It was stopped, and is marked as being made ready again.
        SandboxStarting,
        /// A stop has ended its infra process.
        SandboxInfraEnded,
        /// A stop has detached its network.
        SandboxDetached,
        /// A stop has released its namespaces.
        SandboxUnpinned,
        /// A stop has unmounted its `/dev/shm`.
        SandboxUnmounted,
        /// It is marked stopped.
        SandboxStopped,
        /// What its frontend put down is on record.
        SandboxAmended,
        /// It is on record that it is to be removed.
        SandboxDoomed,
        /// A removal has deleted its files.
        SandboxFilesGone,
        /// A removal has deleted the cgroups that were made for it.
        SandboxGroupsGone,
        /// A removal has deleted its container object.
        SandboxForgotten,
    }
    /// Making, starting, changing, ending and removing a task. A sequence can be made to fail at each of these.
    Task {
        /// The container object of a task is written.
        TaskRecorded,
        /// The views of the images that are its volumes are made.
        TaskViewed,
        /// The directories of its image volumes are made.
        TaskVolumes,
        /// Its snapshot is prepared.
        TaskPrepared,
        /// Its FIFOs are made.
        TaskFifos,
        /// The logkeeper holds its FIFOs.
        TaskLogged,
        /// What the runtime is to find is mounted.
        TaskStaged,
        /// containerd has created its process.
        TaskCreated,
        /// What the runtime was to find is unmounted.
        TaskUnstaged,
        /// Its process runs.
        TaskStarted,
        /// Its start time is written.
        TaskMarked,
        /// It is marked that the limits in force may not be those on record.
        TaskLimitsMarked,
        /// Its new limits on block devices are in force.
        TaskThrottled,
        /// Its processes have their new score for the out-of-memory killer.
        TaskScored,
        /// New limits are in force, and not on record.
        TaskLimited,
        /// New limits are on record.
        TaskLimitsRecorded,
        /// Its exit is on record.
        TaskExitRecorded,
        /// containerd has deleted its process.
        TaskDeleted,
        /// The logkeeper has let go of it.
        TaskLogFinished,
        /// A removal has deleted what it had written to its root file system.
        TaskEmptied,
        /// A removal has deleted its snapshot.
        TaskSnapshotGone,
        /// A removal has deleted its files.
        TaskFilesGone,
        /// A removal has deleted its container object.
        TaskForgotten,
    }
    /// What the sequences of sandboxes and tasks are made of.
    Part {
        /// The files that namespaces are pinned on are made.
        PinsPlaced,
        /// One namespace is pinned.
        PinMounted,
        /// The file that the process namespace of an infra process is pinned on is made.
        InfraPinPlaced,
        /// One namespace is released.
        PinReleased,
        /// The directory of a `/dev/shm` is made.
        ShmPlaced,
        /// A process has been killed and has ended, and containerd still knows it.
        ProcessKilled,
        /// A shim that did not answer is killed, after the ends of all that it served were put on record.
        HungShimKilled,
        /// It is on record that a cgroup stays behind, for somebody is in it.
        GroupNoted,
        /// Such a cgroup is gone, and still on record.
        GroupGone,
        /// It is on record no more.
        GroupForgotten,
        /// It is on record that a start has failed, and what it made is still there.
        StartRefused,
        /// It is noted on the node that a start has failed, as containerd cannot be told.
        FailureNoted,
        /// What a predecessor was starting is marked as what must end.
        StartDiscarded,
        /// The limits on record are in force again, and on record whatever came too late.
        LimitsPutBack,
        /// The limits in force are those on record, and no mark says otherwise any more.
        LimitsUnmarked,
        /// containerd will keep the exit of a task.
        ExitKept,
        /// It keeps that no more.
        ExitForgotten,
        /// A view of an image is made.
        ViewMade,
        /// A view of an image is mounted.
        ViewMounted,
        /// A view of an image is unmounted.
        ViewUnmounted,
        /// A named volume is filled, and does not have its name yet.
        VolumeDrafted,
        /// A named volume has its name.
        VolumeNamed,
        /// A removal has taken a volume's name away.
        VolumeUnnamed,
    }
    /// Limits on what a task's directories take on disk.
    Quota {
        /// The projects of a task are on record, and nothing is in them.
        QuotaRecorded,
        /// Its directories are in its projects.
        QuotaJoined,
        /// Its limits are set.
        QuotaLimited,
        /// It is on record that they are, and the task is finished.
        QuotaMarked,
        /// A removal has lifted its limits.
        QuotaLifted,
    }
    /// Clients that are attached to a task.
    Attach {
        /// It is on record that a client had the input of a task that has it once.
        InputTaken,
        /// The input has ended with that client.
        InputEnded,
    }
    /// Checkpoints of a task.
    Checkpoint {
        /// The directory of a checkpoint is made, and marks that one is being made.
        CheckpointBegun,
        /// The processes of the task stand still.
        CheckpointPaused,
        /// Their images are written.
        CheckpointDumped,
        /// What the task has changed of its files is written.
        CheckpointLayered,
        /// They go on.
        CheckpointResumed,
        /// The archive is written, and has its name.
        CheckpointNamed,
    }
    /// Further processes in a task.
    Exec {
        /// The FIFOs of an exec are made.
        ExecFifos,
        /// Its shim knows of it.
        ExecCreated,
        /// Its shim has been told to start it, and has not answered.
        ExecAsked,
        /// Its process runs.
        ExecStarted,
        /// Its shim has forgotten it.
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
        /// A layer is unpacked into it.
        LayerApplied,
        /// It is committed.
        LayerUnpacked,
        /// The layers of an image are on disk, and not on record as that.
        LayersSynced,
        /// An image that was here already has a lease to be unpacked under.
        UnpackLeased,
        /// One name of an image is written.
        ImageNamed,
        /// The lease is deleted.
        PullReleased,
        /// An owner is no longer among the holders of one name of an image.
        ImageLetGo,
        /// One name of an image is removed.
        ImageUnnamed,
    }
    /// Attaching and detaching networks.
    Network {
        /// The file of a journal is made, and is empty.
        JournalDrafted,
        /// The journal says that an attachment begins.
        JournalWritten,
        /// A plugin's ADD is done.
        PluginAdded,
        /// The journal has the result of a plugin.
        ResultSaved,
        /// A plugin's DEL is done.
        PluginDeleted,
        /// The journal is removed.
        JournalRemoved,
        /// The ranges of addresses that an owner named are on disk.
        RangesKept,
    }
    /// Leases of devices that nothing has been made with.
    Lease {
        /// A lease is on record.
        LeaseStored,
        /// It is on record that leases have ended, or that tasks have them.
        LeaseEnded,
        /// The passing file of the record of leases is written.
        LeasesDrafted,
        /// It has its name, and what had ended is cut off.
        LeasesRewritten,
    }
    /// What a predecessor left is taken up.
    Recovery {
        /// It is known what there is.
        RecoveryLooked,
        /// It is on record since when a killed daemon's call is waited for.
        WaitNoted,
        /// What came of it is known, and that record is gone.
        WaitOver,
        /// A snapshot is removed that a power cut may have left without its files.
        RecoveryLayerGone,
        /// Tasks are settled.
        RecoveryTasks,
        /// What is to be cleared away is found, and requests are about to be served.
        RecoverySandboxes,
        /// What no object accounts for is cleared away.
        RecoveryDebris,
        /// A container object has lost what an earlier version wrote on it: reserved labels of its client, a spec without a process.
        ObjectRenewed,
    }
    /// Files and processes of the daemon.
    Daemon {
        /// The passing file of a small file is written.
        FileDrafted,
        /// It has its name.
        FileNamed,
        /// The passing file of the infra program is written.
        InfraDrafted,
        /// The infra program is in its place.
        InfraInstalled,
        /// The passing file of managed containerd's configuration is written.
        ContainerdDrafted,
        /// The configuration of managed containerd is in its place.
        ContainerdConfigured,
        /// The log of a managed process is put aside.
        LogPutAside,
        /// A managed process is started, and has perhaps not yet become the program.
        ProcessSpawned,
        /// The lock of a directory is held and names the holder.
        DirLocked,
        /// A socket is there, and does not have its owner and mode yet.
        SocketBound,
        /// The passing file of the admin address is written.
        AddressDrafted,
        /// The admin address is in its place.
        AddressWritten,
    }
    /// The process that becomes a managed one.
    Detach {
        /// The passing file that names the process is written.
        PidDrafted,
        /// The file names the process.
        PidWritten,
    }
    /// The logkeeper.
    Log {
        /// The socket of the logkeeper has its passing name.
        KeeperBound,
        /// The FIFOs of a container are open.
        FifosOpened,
        /// Its log file is there.
        LogMade,
        /// Its position record is there.
        PositionMade,
        /// One of its spools is there.
        SpoolMade,
        /// The passing file of its entry is written.
        EntryDrafted,
        /// Its entry is stored.
        EntryStored,
        /// Output is in the spool.
        OutputSpooled,
        /// Lines are in the log.
        LinesWritten,
        /// The position is stored.
        PositionStored,
        /// Space of the spool is given back.
        SpoolReleased,
        /// A reopen was asked for and has not begun.
        ReopenAsked,
        /// The log is created anew, and the position still tells of the old one.
        LogReopened,
        /// A finish watches for the end of a FIFO.
        EndAwaited,
        /// All output is in the log.
        LogFinished,
        /// The entry is gone, and files of the container are not.
        EntryForgotten,
        /// All files of the container are gone.
        EntryGone,
        /// A half-written batch is cut off the log.
        LogCutBack,
        /// A container is taken up.
        LogTakenUp,
    }
}
