//! The list of all crash points.
//!
//! Longer than 500 lines because all crash points are in one list, in the order of their operations.

use crate::define::Fault;

crash_points! {
    /// Creating a sandbox; but for its first step, also starting one that was stopped.
    CreateSandbox {
        /// The container object of a sandbox is written.
        SandboxRecorded: Fail,
        /// Its directories and files are created.
        SandboxFiles: Fail,
        /// The files that namespaces are pinned to are created.
        PinsPlaced: Kill,
        /// One namespace is pinned.
        PinMounted: Kill,
        /// Its namespaces are pinned.
        SandboxPinned: Fail,
        /// The directory of a `/dev/shm` is created.
        ShmPlaced: Kill,
        /// Its `/dev/shm` is mounted.
        SandboxShm: Fail,
        /// The file of a journal is created, and is empty.
        JournalDrafted: Kill,
        /// The journal records that an attachment begins.
        JournalWritten: Kill,
        /// A plugin's ADD has completed.
        PluginAdded: Kill,
        /// The journal has the result of a plugin.
        ResultSaved: Kill,
        /// Its network is attached.
        SandboxAttached: Fail,
        /// Its hosts file is written.
        SandboxHosts: Fail,
        /// Its infra process is created.
        InfraCreated: Fail,
        /// Its infra process runs.
        InfraStarted: Fail,
        /// The file that the infra process's pid namespace is pinned to is created.
        InfraPinPlaced: Kill,
        /// The pid namespace of its infra process is pinned.
        InfraPinned: Fail,
        /// It is marked ready.
        SandboxMarked: Fail,
    }
    /// Starting a sandbox that was stopped, before the crash points that it shares with creating one.
    StartSandbox {
        /// It was stopped, and is marked as being started again.
        SandboxStarting: Fail,
    }
    /// Stopping a sandbox. If its plugins end behind the answer, `SandboxUnmounted` and `SandboxStopped` come before
    /// `PluginDeleted`.
    StopSandbox {
        /// A process was killed and has exited, and containerd still has it.
        ProcessKilled: Kill,
        /// A stop has killed its infra process.
        SandboxInfraEnded: Fail,
        /// A plugin's DEL has completed.
        PluginDeleted: Kill,
        /// The journal is removed.
        JournalRemoved: Kill,
        /// A stop has detached its network.
        SandboxDetached: Fail,
        /// One namespace pin is released.
        PinReleased: Kill,
        /// A stop has released its namespaces.
        SandboxUnpinned: Fail,
        /// A stop has unmounted its `/dev/shm`.
        SandboxUnmounted: Fail,
        /// It is marked stopped.
        SandboxStopped: Fail,
    }
    /// Removing a sandbox.
    RemoveSandbox {
        /// Its record marks it for removal.
        SandboxDoomed: Fail,
        /// A removal has deleted its files.
        SandboxFilesGone: Fail,
        /// A removal has deleted the cgroups that were created for it.
        SandboxGroupsGone: Fail,
        /// A removal has deleted its container object.
        SandboxForgotten: Fail,
    }
    /// Storing a frontend's note about a sandbox.
    AmendSandbox {
        /// The frontend's note is in its record.
        SandboxAmended: Fail,
    }
    /// Creating a task.
    CreateTask {
        /// The container object of a task is written.
        TaskRecorded: Fail,
        /// The views of its image volumes are created.
        TaskViewed: Fail,
        /// A view of an image is created.
        ViewMade: Kill,
        /// A view of an image is mounted.
        ViewMounted: Kill,
        /// A view of an image is unmounted.
        ViewUnmounted: Kill,
        /// The directories of its image volumes are created.
        TaskVolumes: Fail,
        /// Its snapshot is prepared.
        TaskPrepared: Fail,
    }
    /// Starting a task.
    StartTask {
        /// Its FIFOs are created.
        TaskFifos: Fail,
        /// The logkeeper has opened its FIFOs.
        TaskLogged: Fail,
        /// The mounts that the runtime needs are mounted.
        TaskStaged: Fail,
        /// containerd has created its process.
        TaskCreated: Fail,
        /// The mounts that the runtime needed are unmounted.
        TaskUnstaged: Fail,
        /// Its process runs.
        TaskStarted: Fail,
        /// Its start time is written.
        TaskMarked: Fail,
    }
    /// A start of a task that fails.
    FailStart {
        /// The failure of a start is persisted, and what the start created still exists.
        StartRefused: Kill,
        /// The exit of a task is noted in a file because containerd cannot store it.
        ExitNoted: Kill,
    }
    /// Waiting for the outcome of a start that a killed predecessor had requested.
    AwaitStart {
        /// The begin of the wait for a killed daemon's call is recorded.
        WaitNoted: Kill,
        /// A predecessor's interrupted start is marked as to be cleaned up.
        StartDiscarded: Kill,
        /// The outcome of the call is known, and the record of the wait is removed.
        WaitOver: Kill,
    }
    /// Changing the limits of a task.
    UpdateTask {
        /// It is marked that the effective limits may differ from the recorded ones.
        TaskLimitsMarked: Fail,
        /// Its new block device limits are in effect.
        TaskThrottled: Fail,
        /// Its processes have their new OOM score adjustment.
        TaskScored: Fail,
        /// Its new limits are in effect, and not recorded.
        TaskLimited: Fail,
        /// Its new limits are recorded.
        TaskLimitsRecorded: Fail,
        /// The effective limits are the recorded ones, and the mark is removed.
        LimitsUnmarked: Kill,
    }
    /// Rolling back a failed change of limits.
    RollBackUpdate {
        /// A failed update is rolled back: the old limits are in effect and recorded again, also if the new
        /// ones had been recorded although that call failed.
        LimitsPutBack: Kill,
    }
    /// The exit of a task.
    EndTask {
        /// Its exit is persisted.
        TaskExitPersisted: Fail,
        /// containerd has deleted its process.
        TaskDeleted: Fail,
        /// The logkeeper has finished its log.
        TaskLogFinished: Fail,
    }
    /// Removing a task.
    RemoveTask {
        /// A removal has deleted the content of its writable layer.
        TaskEmptied: Fail,
        /// A removal has deleted its snapshot.
        TaskSnapshotGone: Fail,
        /// A removal has deleted its files.
        TaskFilesGone: Fail,
        /// A removal has deleted its container object.
        TaskForgotten: Fail,
    }
    /// Writing a checkpoint of a task into an archive.
    CheckpointTask {
        /// The directory of a checkpoint is created, and marks that the checkpoint is in progress.
        CheckpointBegun: Fail,
        /// The processes of the task are frozen.
        CheckpointPaused: Fail,
        /// Their images are written.
        CheckpointDumped: Fail,
        /// The changes in the task's writable layer are written.
        CheckpointLayered: Fail,
        /// The processes are thawed.
        CheckpointResumed: Fail,
        /// The archive is written, and has its final name.
        CheckpointNamed: Fail,
    }
    /// Killing a shim that does not answer.
    KillHungShim {
        /// An unresponsive shim is killed, after the exits of all its processes were persisted.
        HungShimKilled: Kill,
    }
    /// Protecting the exit of a task from garbage collection in containerd.
    ProtectExit {
        /// The exit of a task is protected from garbage collection in containerd.
        ExitProtected: Kill,
        /// It is no longer protected.
        ExitUnprotected: Kill,
    }
    /// Removing a cgroup that is busy.
    RemoveBusyGroup {
        /// It is recorded that a cgroup could not be removed because it is busy.
        GroupNoted: Kill,
        /// Such a cgroup is removed, and still recorded.
        GroupGone: Kill,
        /// It is no longer recorded.
        GroupForgotten: Kill,
    }
    /// Creating a named volume.
    FillVolume {
        /// A named volume is filled, and does not have its name yet.
        VolumeDrafted: Kill,
        /// A named volume has its name.
        VolumeNamed: Kill,
    }
    /// Removing a named volume.
    RemoveVolume {
        /// A removal has renamed a volume away from its name.
        VolumeUnnamed: Kill,
    }
    /// Setting and lifting the disk limits of a task's directories.
    LimitDisk {
        /// The projects of a task are recorded, and no directory is in them.
        QuotaRecorded: Kill,
        /// Its directories are in its projects.
        QuotaJoined: Kill,
        /// Its limits are set.
        QuotaLimited: Kill,
        /// It is recorded that they are set, which completes the task's creation.
        QuotaMarked: Kill,
        /// A removal has lifted its limits.
        QuotaLifted: Kill,
    }
    /// Attaching a client to the input of a task with `stdin_once`.
    AttachOnce {
        /// It is recorded that a client has taken the input of a task with `stdin_once`.
        InputTaken: Kill,
        /// The input has ended with that client.
        InputEnded: Kill,
    }
    /// Starting a further process in a task.
    StartExec {
        /// The FIFOs of an exec are created.
        ExecFifos: Kill,
        /// Its shim has created it.
        ExecCreated: Kill,
        /// Its shim was called to start it, and has not answered.
        ExecAsked: Kill,
        /// Its process runs.
        ExecStarted: Kill,
    }
    /// The exit of such a process.
    EndExec {
        /// Its shim has deleted it.
        ExecDeleted: Kill,
        /// Its directory is gone.
        ExecGone: Kill,
    }
    /// Pulling an image.
    PullImage {
        /// A pull has its lease.
        PullLeased: Kill,
        /// The configuration is written.
        ConfigWritten: Kill,
        /// The manifest is written.
        ManifestWritten: Kill,
        /// An index is written.
        IndexWritten: Kill,
        /// A part of a layer is written.
        LayerBegun: Kill,
        /// A layer is committed to the content store.
        LayerCommitted: Kill,
        /// The snapshot to unpack a layer into is prepared.
        LayerPrepared: Kill,
        /// The layer is unpacked into it.
        LayerApplied: Kill,
        /// The snapshot is committed.
        LayerUnpacked: Kill,
        /// One name of an image is written.
        ImageNamed: Kill,
        /// The lease is deleted.
        PullReleased: Kill,
    }
    /// Replacing a damaged blob, before it is written again as by a pull.
    ReplaceBlob {
        /// A damaged blob is deleted, and its file may still be there.
        BlobDropped: Kill,
        /// There is a lease whose deletion has containerd collect garbage.
        CollectionLeased: Kill,
    }
    /// Unpacking an image that is stored already, before the crash points that it shares with pulling one.
    UnpackImage {
        /// An image that exists already has a lease to be unpacked under.
        UnpackLeased: Kill,
    }
    /// Syncing the layers of an image to disk.
    SyncLayers {
        /// The layers of an image are synced to disk, and not recorded as synced.
        LayersSynced: Kill,
    }
    /// Removing one of several owners of an image.
    ReleaseImage {
        /// An owner is no longer a holder of one name of an image.
        ImageLetGo: Kill,
    }
    /// Removing an image.
    RemoveImage {
        /// One name of an image is removed.
        ImageUnnamed: Kill,
    }
    /// Storing the address ranges that an owner has set.
    SetRanges {
        /// The address ranges that an owner has set are on disk.
        RangesKept: Kill,
    }
    /// Attaching a sandbox to a bridge network of a cluster, before plugins or the daemon connect it.
    HoldClusterBridge {
        /// It is stored what the network is, and its bridge does not exist yet.
        ClusterBridgeDefined: Kill,
        /// It is stored that the sandbox holds the network.
        ClusterBridgeHeld: Kill,
    }
    /// Detaching one, after it was disconnected.
    LeaveClusterBridge {
        /// It is no longer stored that the sandbox holds the network.
        ClusterBridgeLeft: Kill,
        /// The tables have nothing more of the bridge, which nobody holds.
        ClusterBridgeRulesRemoved: Kill,
        /// The bridge is deleted.
        ClusterBridgeDeleted: Kill,
        /// The network is no longer stored.
        ClusterBridgeForgotten: Kill,
    }
    /// The start of a daemon that decides which range of IPv6 its own bridge has by itself.
    RecordOwnIpv6 {
        /// It is stored, and the bridge does not have it yet.
        OwnIpv6Recorded: Kill,
    }
    /// The start of a daemon whose pods are on a bridge of the gateway.
    MarkPodBridge {
        /// It is stored that pods of this gateway are on their bridge.
        PodBridgeMarked: Kill,
    }
    /// Deleting that bridge, by a daemon whose pods have the network of CNI again.
    DeletePodBridge {
        /// The tables have nothing more of the bridge, on which no pod is left.
        PodBridgeRulesRemoved: Kill,
        /// The bridge is deleted.
        PodBridgeDeleted: Kill,
        /// It is no longer stored that pods are on it.
        PodBridgeUnmarked: Kill,
    }
    /// Attaching a sandbox to a bridge of the gateway without plugins.
    AttachToBridge {
        /// The sandbox has addresses in the directory of host-local.
        AddressesAssigned: Kill,
        /// The bridge, which was missing, is made, and has no address yet.
        BridgeMade: Kill,
        /// The pair of devices is made.
        PairMade: Kill,
        /// Addresses and routes inside are set.
        ContainerConfigured: Kill,
        /// Its ports are published.
        PortsPublished: Kill,
    }
    /// Detaching one.
    DetachFromBridge {
        /// Its ports lead nowhere any more.
        PortsWithdrawn: Kill,
        /// The host's end of its pair of devices is down.
        HostEndDown: Kill,
        /// Its addresses are free.
        AddressesReleased: Kill,
    }
    /// Creating a task with NET_ADMIN, before its first step, in a sandbox that sends with its own addresses alone. The first point is also one of
    /// a start of a stopped sandbox that has such a task, before its first step; the second one of an attachment or a recovery that comes at the same time.
    AllowNetAdmin {
        /// It is stored that the sandbox sends with any address from now on.
        NetAdminNoted: Kill,
        /// It does.
        PinsWithdrawn: Kill,
    }
    /// Joining a swarm.
    JoinSwarm {
        /// The temporary file of one of the membership's files is written.
        SwarmFileDrafted: Kill,
        /// The manager has made a node, and the wait for its certificate is stored.
        JoinRequestSaved: Kill,
        /// The managers of the swarm are stored.
        SwarmManagersSaved: Kill,
        /// The roots of the swarm are stored.
        SwarmRootsSaved: Kill,
        /// It is no longer stored which swarm the node was in before.
        SwarmDepartureForgotten: Kill,
        /// The certificate of the node is stored with its key, so that the node is a member.
        NodeCertificateSaved: Kill,
        /// The wait for the certificate is no longer stored.
        JoinRequestForgotten: Kill,
    }
    /// Leaving a swarm.
    LeaveSwarm {
        /// It is stored which swarm the node leaves, or was removed from.
        SwarmDepartureSaved: Kill,
        /// The certificate of the node is removed, and other files of the membership are not.
        NodeCertificateRemoved: Kill,
    }
    /// Leasing a device without a container.
    ReserveDevice {
        /// A lease is recorded.
        LeaseStored: Kill,
    }
    /// Ending such a lease, or handing it to a task.
    ReleaseDevice {
        /// It is recorded that leases have ended, or that tasks have them.
        LeaseEnded: Kill,
    }
    /// Recovering the state that a predecessor left.
    Recover {
        /// The inventory is read.
        RecoveryLooked: Kill,
        /// Tasks are recovered.
        RecoveryTasks: Kill,
        /// The garbage is found, and requests are about to be served.
        RecoverySandboxes: Kill,
        /// Objects without an owner are removed.
        RecoveryDebris: Kill,
    }
    /// Recovering from a power failure: removing layers whose files it may have lost.
    RecoverLayers {
        /// A snapshot is removed whose files a power failure may have lost.
        RecoveryLayerGone: Kill,
    }
    /// Updating a container object that an earlier version has written.
    RenewObject {
        /// A container object is updated from an earlier version: reserved labels of its client, or a spec
        /// without a process, are removed.
        ObjectRenewed: Kill,
    }
    /// The first start of the daemon in a directory. Later operations reach some of these too.
    FirstStart {
        /// The temporary file of the record that says which defaults the networks of the node have is written.
        DefaultsDrafted: Kill,
        /// That record is in its place.
        DefaultsRecorded: Kill,
        /// The temporary file of a small file is written.
        FileDrafted: Kill,
        /// It is renamed to its path.
        FileNamed: Kill,
        /// The temporary file of the infra program is written.
        InfraDrafted: Kill,
        /// The infra program is in its place.
        InfraInstalled: Kill,
        /// The temporary file of the rewritten lease journal is written.
        LeasesDrafted: Kill,
        /// It is renamed to its path, without the ended leases.
        LeasesRewritten: Kill,
    }
    /// Any start of the daemon.
    StartDaemon {
        /// The lock of a directory is held, and contains the holder's process id, unless the disk is full.
        DirLocked: Kill,
        /// A socket is bound, or taken from the predecessor, and does not have its owner and mode yet.
        SocketBound: Kill,
        /// The files of the sockets stay when the daemon ends, and the logkeeper does not have their listeners yet.
        SocketsLeft: Kill,
        /// The temporary file of an address, or of the daemon's record, is written.
        AddressDrafted: Kill,
        /// That file is in its place.
        AddressWritten: Kill,
    }
    /// Starting containerd and the logkeeper.
    StartManaged {
        /// The log of a managed process is rotated.
        LogPutAside: Kill,
        /// The temporary file of managed containerd's configuration is written.
        ContainerdDrafted: Kill,
        /// The configuration of managed containerd is in its place.
        ContainerdConfigured: Kill,
        /// A managed process is started, and may not have executed its program yet.
        ProcessSpawned: Kill,
    }
    /// Becoming a managed process.
    Detach {
        /// The temporary pid file is written.
        PidDrafted: Kill,
        /// The pid file is in its place.
        PidWritten: Kill,
    }
    /// The start of the logkeeper.
    StartLogkeeper {
        /// The socket of the logkeeper has its temporary name.
        KeeperBound: Kill,
    }
    /// Opening the log of a container.
    OpenLog {
        /// The FIFOs of a container are open.
        FifosOpened: Kill,
        /// The log file of a container is created.
        LogMade: Kill,
        /// Its position record is created.
        PositionMade: Kill,
        /// One of its spools is created.
        SpoolMade: Kill,
        /// The temporary file of its entry is written.
        EntryDrafted: Kill,
        /// Its entry is stored.
        EntryStored: Kill,
    }
    /// Writing output into the log.
    WriteLog {
        /// Output is in the spool.
        OutputSpooled: Kill,
        /// Lines are in the log.
        LinesWritten: Kill,
        /// The position is stored.
        PositionStored: Kill,
        /// Space of the spool is released.
        SpoolReleased: Kill,
    }
    /// Reopening the log after a rotation.
    ReopenLog {
        /// A reopen was requested, and has not begun.
        ReopenAsked: Kill,
        /// The log is created again, and the position record still refers to the old one.
        LogReopened: Kill,
    }
    /// Rotating a log, by the daemon.
    RotateLog {
        /// The file of the log is renamed, and the logkeeper still writes it.
        LogSetAside: Kill,
        /// The oldest file of the log is removed.
        RotatedLogRemoved: Kill,
    }
    /// Finishing the log of a container that has exited.
    FinishLog {
        /// A finish waits for the end of a FIFO.
        EndAwaited: Kill,
        /// All output is in the log.
        LogFinished: Kill,
        /// The entry is removed, and other files of the container are not.
        EntryForgotten: Kill,
        /// All files of the container are removed.
        EntryGone: Kill,
    }
    /// Recovering the logs of a killed logkeeper.
    RecoverLog {
        /// A partially written batch is truncated from the log.
        LogCutBack: Kill,
        /// A container is recovered.
        LogTakenUp: Kill,
    }
}
