//! Calls, numbers of fields and counts of the followed versions.

/// The unary calls of `runtime.v1.RuntimeService` in Kubernetes 1.37.
pub(super) const RUNTIME_UNARY: [&str; 31] = [
    "Attach",
    "CheckpointContainer",
    "CheckpointPod",
    "ContainerStats",
    "ContainerStatus",
    "CreateContainer",
    "Exec",
    "ExecSync",
    "ListContainerStats",
    "ListContainers",
    "ListMetricDescriptors",
    "ListPodSandbox",
    "ListPodSandboxMetrics",
    "ListPodSandboxStats",
    "PodSandboxStats",
    "PodSandboxStatus",
    "PortForward",
    "RemoveContainer",
    "RemovePodSandbox",
    "ReopenContainerLog",
    "RestorePod",
    "RunPodSandbox",
    "RuntimeConfig",
    "StartContainer",
    "Status",
    "StopContainer",
    "StopPodSandbox",
    "UpdateContainerResources",
    "UpdatePodSandboxResources",
    "UpdateRuntimeConfig",
    "Version",
];

/// Its calls that stream answers.
pub(super) const RUNTIME_STREAMS: [&str; 6] = [
    "GetContainerEvents",
    "StreamContainerStats",
    "StreamContainers",
    "StreamPodSandboxMetrics",
    "StreamPodSandboxStats",
    "StreamPodSandboxes",
];

/// The unary calls of `runtime.v1.ImageService`.
pub(super) const IMAGE_UNARY: [&str; 5] = [
    "ImageFsInfo",
    "ImageStatus",
    "ListImages",
    "PullImage",
    "RemoveImage",
];

/// Its call that streams answers.
pub(super) const IMAGE_STREAMS: [&str; 1] = ["StreamImages"];

/// Messages whose numbers have holes, differ from their sisters', or grew in many versions.
pub(super) const TRAPS: &[(&str, &[(&str, u32)])] = &[
    (
        "opentelemetry.proto.trace.v1.Span",
        &[
            ("trace_id", 1),
            ("span_id", 2),
            ("trace_state", 3),
            ("parent_span_id", 4),
            ("name", 5),
            ("kind", 6),
            ("start_time_unix_nano", 7),
            ("end_time_unix_nano", 8),
            ("attributes", 9),
            ("status", 15),
            ("flags", 16),
        ],
    ),
    (
        "opentelemetry.proto.trace.v1.Status",
        &[("message", 2), ("code", 3)],
    ),
    (
        "runtime.v1.ImageSpec",
        &[
            ("image", 1),
            ("annotations", 2),
            ("user_specified_image", 18),
            ("runtime_handler", 19),
            ("image_ref", 20),
        ],
    ),
    ("runtime.v1.Namespace", &[("options", 2)]),
    ("runtime.v1.KeyValue", &[("key", 1), ("value", 2)]),
    ("runtime.v1.PsiStats", &[("Full", 1), ("Some", 2)]),
    (
        "runtime.v1.PsiData",
        &[("Total", 1), ("Avg10", 2), ("Avg60", 3), ("Avg300", 4)],
    ),
    (
        "runtime.v1.LinuxSandboxSecurityContext",
        &[
            ("namespace_options", 1),
            ("selinux_options", 2),
            ("run_as_user", 3),
            ("readonly_rootfs", 4),
            ("supplemental_groups", 5),
            ("privileged", 6),
            ("seccomp_profile_path", 7),
            ("run_as_group", 8),
            ("seccomp", 9),
            ("apparmor", 10),
            ("supplemental_groups_policy", 11),
        ],
    ),
    (
        "runtime.v1.LinuxContainerSecurityContext",
        &[
            ("capabilities", 1),
            ("privileged", 2),
            ("namespace_options", 3),
            ("selinux_options", 4),
            ("run_as_user", 5),
            ("run_as_username", 6),
            ("readonly_rootfs", 7),
            ("supplemental_groups", 8),
            ("apparmor_profile", 9),
            ("seccomp_profile_path", 10),
            ("no_new_privs", 11),
            ("run_as_group", 12),
            ("masked_paths", 13),
            ("readonly_paths", 14),
            ("seccomp", 15),
            ("apparmor", 16),
            ("supplemental_groups_policy", 17),
        ],
    ),
    (
        "runtime.v1.Mount",
        &[
            ("container_path", 1),
            ("host_path", 2),
            ("readonly", 3),
            ("selinux_relabel", 4),
            ("propagation", 5),
            ("uidMappings", 6),
            ("gidMappings", 7),
            ("recursive_read_only", 8),
            ("image", 9),
            ("image_sub_path", 10),
            ("mount_options", 11),
        ],
    ),
    (
        "runtime.v1.ContainerConfig",
        &[
            ("metadata", 1),
            ("image", 2),
            ("command", 3),
            ("args", 4),
            ("working_dir", 5),
            ("envs", 6),
            ("mounts", 7),
            ("devices", 8),
            ("labels", 9),
            ("annotations", 10),
            ("log_path", 11),
            ("stdin", 12),
            ("stdin_once", 13),
            ("tty", 14),
            ("linux", 15),
            ("windows", 16),
            ("CDI_devices", 17),
            ("stop_signal", 18),
        ],
    ),
    (
        "runtime.v1.ContainerStatus",
        &[
            ("id", 1),
            ("metadata", 2),
            ("state", 3),
            ("created_at", 4),
            ("started_at", 5),
            ("finished_at", 6),
            ("exit_code", 7),
            ("image", 8),
            ("image_ref", 9),
            ("reason", 10),
            ("message", 11),
            ("labels", 12),
            ("annotations", 13),
            ("mounts", 14),
            ("log_path", 15),
            ("resources", 16),
            ("image_id", 17),
            ("user", 18),
            ("stop_signal", 19),
        ],
    ),
    (
        "runtime.v1.RestorePodRequest",
        &[
            ("checkpoint_path", 1),
            ("config", 2),
            ("runtime_handler", 3),
            ("options", 4),
            ("container_configs", 5),
        ],
    ),
    ("runtime.v1.ExecRequest", &EXEC),
    ("runtime.v1.AttachRequest", &ATTACH),
    (
        "containerd.runc.v1.Options",
        &[
            ("no_pivot_root", 1),
            ("no_new_keyring", 2),
            ("shim_cgroup", 3),
            ("io_uid", 4),
            ("io_gid", 5),
            ("binary_name", 6),
            ("root", 7),
            ("systemd_cgroup", 9),
            ("criu_image_path", 10),
            ("criu_work_path", 11),
            ("task_api_address", 12),
            ("task_api_version", 13),
        ],
    ),
    (
        "containerd.runc.v1.CheckpointOptions",
        &[
            ("exit", 1),
            ("open_tcp", 2),
            ("external_unix_sockets", 3),
            ("terminal", 4),
            ("file_locks", 5),
            ("empty_namespaces", 6),
            ("cgroups_mode", 7),
            ("image_path", 8),
            ("work_path", 9),
        ],
    ),
    ("containerd.runc.v1.ProcessDetails", &[("exec_id", 1)]),
    (
        "containerd.services.content.v1.WriteContentRequest",
        &[
            ("action", 1),
            ("ref", 2),
            ("total", 3),
            ("expected", 4),
            ("offset", 5),
            ("data", 6),
            ("labels", 7),
        ],
    ),
    (
        "containerd.services.content.v1.WriteContentResponse",
        &[("action", 1), ("offset", 4), ("total", 5), ("digest", 6)],
    ),
    (
        "containerd.services.snapshots.v1.CommitSnapshotRequest",
        &[
            ("snapshotter", 1),
            ("name", 2),
            ("key", 3),
            ("labels", 4),
            ("parent", 5),
        ],
    ),
    (
        "containerd.task.v2.ExecProcessRequest",
        &[
            ("id", 1),
            ("exec_id", 2),
            ("terminal", 3),
            ("stdin", 4),
            ("stdout", 5),
            ("stderr", 6),
            ("spec", 7),
        ],
    ),
    (
        "containerd.task.v2.StartRequest",
        &[("id", 1), ("exec_id", 2)],
    ),
    (
        "containerd.task.v2.WaitRequest",
        &[("id", 1), ("exec_id", 2)],
    ),
    (
        "containerd.task.v2.WaitResponse",
        &[("exit_status", 1), ("exited_at", 2)],
    ),
    (
        "containerd.task.v2.DeleteRequest",
        &[("id", 1), ("exec_id", 2)],
    ),
    (
        "v1beta1.DevicePluginOptions",
        &[
            ("pre_start_required", 1),
            ("get_preferred_allocation_available", 2),
        ],
    ),
    (
        "v1beta1.RegisterRequest",
        &[
            ("version", 1),
            ("endpoint", 2),
            ("resource_name", 3),
            ("options", 4),
        ],
    ),
    (
        "v1beta1.Device",
        &[("ID", 1), ("health", 2), ("topology", 3)],
    ),
    (
        "v1beta1.ContainerPreferredAllocationRequest",
        &[
            ("available_deviceIDs", 1),
            ("must_include_deviceIDs", 2),
            ("allocation_size", 3),
        ],
    ),
    (
        "v1beta1.ContainerPreferredAllocationResponse",
        &[("deviceIDs", 1)],
    ),
    (
        "v1beta1.ContainerAllocateResponse",
        &[
            ("envs", 1),
            ("mounts", 2),
            ("devices", 3),
            ("annotations", 4),
            ("cdi_devices", 5),
        ],
    ),
    (
        "v1beta1.Mount",
        &[("container_path", 1), ("host_path", 2), ("read_only", 3)],
    ),
    (
        "v1beta1.DeviceSpec",
        &[("container_path", 1), ("host_path", 2), ("permissions", 3)],
    ),
    (
        "pluginregistration.PluginInfo",
        &[
            ("type", 1),
            ("name", 2),
            ("endpoint", 3),
            ("supported_versions", 4),
        ],
    ),
    (
        "pluginregistration.RegistrationStatus",
        &[("plugin_registered", 1), ("error", 2)],
    ),
    (
        "v1.PodResources",
        &[
            ("name", 1),
            ("namespace", 2),
            ("containers", 3),
            ("cpu_ids", 4),
        ],
    ),
    (
        "v1.ContainerResources",
        &[
            ("name", 1),
            ("devices", 2),
            ("cpu_ids", 3),
            ("dynamic_resources", 5),
        ],
    ),
    (
        "v1.DynamicResource",
        &[
            ("claim_name", 2),
            ("claim_namespace", 3),
            ("claim_resources", 4),
        ],
    ),
    (
        "v1.ClaimResource",
        &[
            ("cdi_devices", 1),
            ("driver_name", 2),
            ("pool_name", 3),
            ("device_name", 4),
        ],
    ),
    (
        "v1.ContainerDevices",
        &[("resource_name", 1), ("device_ids", 2)],
    ),
    (
        "ttrpc.Request",
        &[
            ("service", 1),
            ("method", 2),
            ("payload", 3),
            ("timeout_nano", 4),
            ("metadata", 5),
        ],
    ),
    ("ttrpc.Response", &[("status", 1), ("payload", 2)]),
    ("ttrpc.Status", &[("code", 1), ("message", 2)]),
    ("ttrpc.KeyValue", &[("key", 1), ("value", 2)]),
];

/// Exec has the command and a terminal before stdin.
const EXEC: [(&str, u32); 6] = [
    ("container_id", 1),
    ("cmd", 2),
    ("tty", 3),
    ("stdin", 4),
    ("stdout", 5),
    ("stderr", 6),
];

/// Attach has stdin before the terminal.
const ATTACH: [(&str, u32); 5] = [
    ("container_id", 1),
    ("stdin", 2),
    ("tty", 3),
    ("stdout", 4),
    ("stderr", 5),
];

/// Messages, their fields, enums and their values in `runtime.v1` of Kubernetes 1.37.
pub(super) const COUNTS: (usize, usize, usize, usize) = (175, 478, 11, 95);
