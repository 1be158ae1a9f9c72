/// The shapes of all messages that are in what calls take and return: see [`shape`].
pub static SHAPES: &[shape::Shape] = &[
    // google.protobuf.Empty
    shape::Shape {
        fields: &[
        ],
    },
    // containerd.services.content.v1.WriteContentRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 2, each: 96 } },
        ],
    },
    // containerd.services.content.v1.WriteContentRequest.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // containerd.services.content.v1.WriteContentResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // containerd.services.snapshots.v1.CommitSnapshotRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 5, each: 96 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // containerd.services.snapshots.v1.CommitSnapshotRequest.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // containerd.services.snapshots.v1.CommitSnapshotResponse
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.AssignmentsMessage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 8, each: 360 } },
        ],
    },
    // docker.swarmkit.v1.AssignmentChange
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 9, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Assignment
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 10, each: 1312 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 75, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 77, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 79, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Task
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 11, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 14, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 57, each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 57, each: 0 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 60, each: 0 } },
            shape::Field { number: 11, kind: shape::Kind::Message { shape: 64, each: 680 } },
            shape::Field { number: 12, kind: shape::Kind::Message { shape: 71, each: 0 } },
            shape::Field { number: 13, kind: shape::Kind::Message { shape: 21, each: 0 } },
            shape::Field { number: 14, kind: shape::Kind::Message { shape: 12, each: 0 } },
            shape::Field { number: 15, kind: shape::Kind::Message { shape: 45, each: 64 } },
            shape::Field { number: 16, kind: shape::Kind::Message { shape: 12, each: 0 } },
            shape::Field { number: 17, kind: shape::Kind::Message { shape: 74, each: 72 } },
        ],
    },
    // docker.swarmkit.v1.Meta
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 12, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 13, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 13, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Version
    shape::Shape {
        fields: &[
        ],
    },
    // google.protobuf.Timestamp
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.TaskSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 15, each: 992 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 43, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 49, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 50, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 21, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 54, each: 96 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 40, each: 0 } },
            shape::Field { number: 10, kind: shape::Kind::Message { shape: 41, each: 0 } },
            shape::Field { number: 11, kind: shape::Kind::Message { shape: 56, each: 32 } },
        ],
    },
    // docker.swarmkit.v1.ContainerSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 16, each: 96 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 17, each: 288 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 24, each: 0 } },
            shape::Field { number: 10, kind: shape::Kind::Message { shape: 25, each: 0 } },
            shape::Field { number: 11, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 12, kind: shape::Kind::Message { shape: 26, each: 144 } },
            shape::Field { number: 14, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 15, kind: shape::Kind::Message { shape: 28, each: 0 } },
            shape::Field { number: 16, kind: shape::Kind::Message { shape: 29, each: 0 } },
            shape::Field { number: 17, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 20, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 21, kind: shape::Kind::Message { shape: 30, each: 144 } },
            shape::Field { number: 22, kind: shape::Kind::Message { shape: 32, each: 0 } },
            shape::Field { number: 23, kind: shape::Kind::Message { shape: 37, each: 0 } },
            shape::Field { number: 26, kind: shape::Kind::Message { shape: 38, each: 96 } },
            shape::Field { number: 27, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 28, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 29, kind: shape::Kind::Message { shape: 39, each: 40 } },
        ],
    },
    // docker.swarmkit.v1.ContainerSpec.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Mount
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 18, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 19, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 23, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Mount.BindOptions
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.Mount.VolumeOptions
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 20, each: 96 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 21, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Mount.VolumeOptions.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Driver
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 22, each: 96 } },
        ],
    },
    // docker.swarmkit.v1.Driver.OptionsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Mount.TmpfsOptions
    shape::Shape {
        fields: &[
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // google.protobuf.Duration
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.ContainerSpec.PullOptions
    shape::Shape {
        fields: &[
            shape::Field { number: 64, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.SecretReference
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 27, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.FileTarget
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.ContainerSpec.DNSConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // docker.swarmkit.v1.HealthConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 24, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 24, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 24, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 24, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.ConfigReference
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 27, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 31, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.RuntimeTarget
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.Privileges
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 33, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 34, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 35, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 36, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Privileges.CredentialSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Privileges.SELinuxContext
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Privileges.SeccompOpts
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Privileges.AppArmorOpts
    shape::Shape {
        fields: &[
        ],
    },
    // google.protobuf.BoolValue
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.ContainerSpec.SysctlsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.ContainerSpec.Ulimit
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NetworkAttachmentSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.GenericRuntimeSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 42, each: 0 } },
        ],
    },
    // google.protobuf.Any
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.ResourceRequirements
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 44, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 44, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 48, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 48, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Resources
    shape::Shape {
        fields: &[
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 45, each: 64 } },
        ],
    },
    // docker.swarmkit.v1.GenericResource
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 46, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 47, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NamedGenericResource
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.DiscreteGenericResource
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // google.protobuf.Int64Value
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.RestartPolicy
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 24, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 24, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Placement
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 51, each: 40 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 53, each: 48 } },
        ],
    },
    // docker.swarmkit.v1.PlacementPreference
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 52, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.SpreadOver
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Platform
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NetworkAttachmentConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 55, each: 96 } },
        ],
    },
    // docker.swarmkit.v1.NetworkAttachmentConfig.DriverAttachmentOptsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.ResourceReference
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Annotations
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 58, each: 96 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 59, each: 48 } },
        ],
    },
    // docker.swarmkit.v1.Annotations.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.IndexEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.TaskStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 13, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 61, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 62, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 13, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.ContainerStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.PortStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 63, each: 56 } },
        ],
    },
    // docker.swarmkit.v1.PortConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NetworkAttachment
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 65, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 70, each: 96 } },
        ],
    },
    // docker.swarmkit.v1.Network
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 11, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 66, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 21, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 67, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 42, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NetworkSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 57, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 21, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 67, each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.IPAMOptions
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 21, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 68, each: 104 } },
        ],
    },
    // docker.swarmkit.v1.IPAMConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 69, each: 96 } },
        ],
    },
    // docker.swarmkit.v1.IPAMConfig.ReservedEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NetworkAttachment.DriverAttachmentOptsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Endpoint
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 72, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 63, each: 56 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 73, each: 48 } },
        ],
    },
    // docker.swarmkit.v1.EndpointSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 63, each: 56 } },
        ],
    },
    // docker.swarmkit.v1.Endpoint.VirtualIP
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.VolumeAttachment
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Secret
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 11, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 76, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.SecretSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 57, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 21, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 21, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Config
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 11, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 78, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.ConfigSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 57, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 21, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.VolumeAssignment
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 21, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 80, each: 96 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 81, each: 96 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 82, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 85, each: 48 } },
        ],
    },
    // docker.swarmkit.v1.VolumeAssignment.VolumeContextEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.VolumeAssignment.PublishContextEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.VolumeAccessMode
    shape::Shape {
        fields: &[
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 83, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 84, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.VolumeAccessMode.BlockVolume
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.VolumeAccessMode.MountVolume
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // docker.swarmkit.v1.VolumeSecret
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.AssignmentsRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.GetRootCACertificateRequest
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.GetRootCACertificateResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.HeartbeatRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.HeartbeatResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 24, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.IssueNodeCertificateRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.IssueNodeCertificateResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.ListenSubscriptionsRequest
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.NodeCertificateStatusRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NodeCertificateStatusResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 96, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 97, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.IssuanceStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Certificate
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 96, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.PublishLogsMessage
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 99, each: 160 } },
        ],
    },
    // docker.swarmkit.v1.LogMessage
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 100, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 13, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 101, each: 48 } },
        ],
    },
    // docker.swarmkit.v1.LogContext
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.LogAttr
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.PublishLogsResponse
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.SessionMessage
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 104, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 116, each: 64 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 118, each: 64 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Node
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 11, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 105, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 106, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 114, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 115, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 64, each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 97, each: 0 } },
            shape::Field { number: 10, kind: shape::Kind::Message { shape: 64, each: 680 } },
        ],
    },
    // docker.swarmkit.v1.NodeSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 57, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NodeDescription
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 53, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 44, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 107, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 110, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 111, each: 88 } },
        ],
    },
    // docker.swarmkit.v1.EngineDescription
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 108, each: 96 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 109, each: 48 } },
        ],
    },
    // docker.swarmkit.v1.EngineDescription.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.PluginDescription
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NodeTLSInfo
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NodeCSIInfo
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 112, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Topology
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 113, each: 96 } },
        ],
    },
    // docker.swarmkit.v1.Topology.SegmentsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.NodeStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.ManagerStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.WeightedPeer
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 117, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.Peer
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.EncryptionKey
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.SessionRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 106, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.SubscriptionMessage
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 121, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 122, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.LogSelector
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // docker.swarmkit.v1.LogSubscriptionOptions
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Numbers { each: 4 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 13, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.TasksMessage
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 10, each: 1312 } },
        ],
    },
    // docker.swarmkit.v1.TasksRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.UpdateTaskStatusRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 126, each: 248 } },
        ],
    },
    // docker.swarmkit.v1.UpdateTaskStatusRequest.TaskStatusUpdate
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 60, each: 0 } },
        ],
    },
    // docker.swarmkit.v1.UpdateTaskStatusResponse
    shape::Shape {
        fields: &[
        ],
    },
    // docker.swarmkit.v1.UpdateVolumeStatusRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 129, each: 32 } },
        ],
    },
    // docker.swarmkit.v1.UpdateVolumeStatusRequest.VolumeStatusUpdate
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // docker.swarmkit.v1.UpdateVolumeStatusResponse
    shape::Shape {
        fields: &[
        ],
    },
    // grpc.health.v1.HealthCheckRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // grpc.health.v1.HealthCheckResponse
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.base.proto.ConfigSchemaRequest
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.base.proto.ConfigSchemaResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 135, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.Spec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 136, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 138, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 139, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 140, each: 40 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 141, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 142, each: 48 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 143, each: 48 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 144, each: 56 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 145, each: 16 } },
            shape::Field { number: 10, kind: shape::Kind::Message { shape: 146, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.Object
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 137, each: 152 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.Object.AttributesEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 135, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.Array
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 135, each: 72 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.Attr
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.Block
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 135, each: 72 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.BlockAttrs
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.BlockList
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 135, each: 72 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.BlockSet
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 135, each: 72 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.BlockMap
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 135, each: 72 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.Default
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 135, each: 72 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 135, each: 72 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.hclspec.Literal
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.base.proto.PluginInfoRequest
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.base.proto.PluginInfoResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.base.proto.SetConfigRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 150, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.base.proto.NomadConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 151, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.base.proto.NomadDriverConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 152, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.base.proto.ClientTopology
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Numbers { each: 4 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 153, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 154, each: 64 } },
        ],
    },
    // hashicorp.nomad.plugins.base.proto.ClientTopologySLIT
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Numbers { each: 4 } },
        ],
    },
    // hashicorp.nomad.plugins.base.proto.ClientTopologyCore
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.base.proto.SetConfigResponse
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.device.FingerprintRequest
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.device.FingerprintResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 158, each: 120 } },
        ],
    },
    // hashicorp.nomad.plugins.device.DeviceGroup
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 159, each: 88 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 161, each: 136 } },
        ],
    },
    // hashicorp.nomad.plugins.device.DetectedDevice
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 160, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.device.DeviceLocality
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.device.DeviceGroup.AttributesEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 162, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.structs.Attribute
    shape::Shape {
        fields: &[
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.device.ReserveRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // hashicorp.nomad.plugins.device.ReserveResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 165, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.device.ContainerReservation
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 166, each: 96 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 167, each: 56 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 168, each: 72 } },
        ],
    },
    // hashicorp.nomad.plugins.device.ContainerReservation.EnvsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.device.Mount
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.device.DeviceSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.device.StatsRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 24, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.device.StatsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 171, each: 96 } },
        ],
    },
    // hashicorp.nomad.plugins.device.DeviceGroupStats
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 172, each: 328 } },
        ],
    },
    // hashicorp.nomad.plugins.device.DeviceGroupStats.InstanceStatsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 173, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.device.DeviceStats
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 174, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 177, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 13, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.structs.StatValue
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 175, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 175, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 48, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 48, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 176, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 37, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // google.protobuf.DoubleValue
    shape::Shape {
        fields: &[
        ],
    },
    // google.protobuf.StringValue
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.structs.StatObject
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 178, each: 128 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 179, each: 240 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.structs.StatObject.NestedEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 177, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.shared.structs.StatObject.AttributesEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 174, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.CapabilitiesRequest
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.CapabilitiesResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 182, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.DriverCapabilities
    shape::Shape {
        fields: &[
            shape::Field { number: 4, kind: shape::Kind::Numbers { each: 4 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.CreateNetworkRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.CreateNetworkResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 185, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.NetworkIsolationSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 186, each: 96 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 187, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.NetworkIsolationSpec.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.HostsConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.DestroyNetworkRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 185, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.DestroyNetworkResponse
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.DestroyTaskRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.DestroyTaskResponse
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.DriverTaskEvent
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 13, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 193, each: 96 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.DriverTaskEvent.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.ExecTaskRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 24, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.ExecTaskResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 196, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.ExitResult
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.ExecTaskStreamingRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 198, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 199, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 200, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.ExecTaskStreamingRequest.Setup
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.ExecTaskStreamingRequest.TerminalSize
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.ExecTaskStreamingIOOperation
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.ExecTaskStreamingResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 200, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 200, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 196, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.FingerprintRequest
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.FingerprintResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 204, each: 136 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.FingerprintResponse.AttributesEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 162, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.InitRequest
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.InitResponse
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.InspectTaskRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.InspectTaskResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 209, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 210, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 212, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 13, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 13, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 196, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskDriverStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 211, each: 96 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskDriverStatus.AttributesEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.NetworkOverride
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 213, each: 80 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.NetworkOverride.PortMapEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.RecoverTaskRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 215, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskHandle
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 216, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 217, each: 96 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 218, each: 96 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 219, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 227, each: 128 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 228, each: 72 } },
            shape::Field { number: 9, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 10, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 11, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 12, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 13, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 14, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 15, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 16, kind: shape::Kind::Message { shape: 185, each: 0 } },
            shape::Field { number: 17, kind: shape::Kind::Message { shape: 229, each: 0 } },
            shape::Field { number: 18, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 19, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 20, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 21, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 22, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskConfig.EnvEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskConfig.DeviceEnvEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.Resources
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 220, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 225, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 226, each: 64 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.AllocatedTaskResources
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 221, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 222, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 223, each: 128 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.AllocatedCpuResources
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.AllocatedMemoryResources
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.NetworkResource
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 224, each: 32 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 224, each: 32 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.NetworkPort
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.LinuxResources
    shape::Shape {
        fields: &[
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 9, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.PortMapping
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.Mount
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.Device
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.DNSConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.RecoverTaskResponse
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.ShutdownRequest
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.ShutdownResponse
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.SignalTaskRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.SignalTaskResponse
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.StartTaskRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 216, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.StartTaskResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 215, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 212, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.StopTaskRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 24, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.StopTaskResponse
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskConfigSchemaRequest
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskConfigSchemaResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 135, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskEventsRequest
    shape::Shape {
        fields: &[
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskStatsRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 24, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskStatsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 244, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskStats
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 13, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 245, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 248, each: 248 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskResourceUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 246, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 247, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.CPUUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 7, kind: shape::Kind::Numbers { each: 4 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.MemoryUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 6, kind: shape::Kind::Numbers { each: 4 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.TaskStats.ResourceUsageByPidEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 245, each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.WaitTaskRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // hashicorp.nomad.plugins.drivers.proto.WaitTaskResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 196, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 252, each: 56 } },
        ],
    },
    // opentelemetry.proto.trace.v1.ResourceSpans
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 253, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 256, each: 80 } },
        ],
    },
    // opentelemetry.proto.resource.v1.Resource
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 254, each: 64 } },
        ],
    },
    // opentelemetry.proto.common.v1.KeyValue
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 255, each: 0 } },
        ],
    },
    // opentelemetry.proto.common.v1.AnyValue
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // opentelemetry.proto.trace.v1.ScopeSpans
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 257, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 258, each: 216 } },
        ],
    },
    // opentelemetry.proto.common.v1.InstrumentationScope
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // opentelemetry.proto.trace.v1.Span
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 254, each: 64 } },
            shape::Field { number: 15, kind: shape::Kind::Message { shape: 259, each: 0 } },
        ],
    },
    // opentelemetry.proto.trace.v1.Status
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // opentelemetry.proto.collector.trace.v1.ExportTraceServiceResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 261, each: 0 } },
        ],
    },
    // opentelemetry.proto.collector.trace.v1.ExportTracePartialSuccess
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // plugin.ConnInfo
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 263, each: 0 } },
        ],
    },
    // plugin.ConnInfo.Knock
    shape::Shape {
        fields: &[
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // plugin.Empty
    shape::Shape {
        fields: &[
        ],
    },
    // plugin.StdioData
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // pluginregistration.InfoRequest
    shape::Shape {
        fields: &[
        ],
    },
    // pluginregistration.PluginInfo
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // pluginregistration.RegistrationStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // pluginregistration.RegistrationStatusResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.AttachRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.AttachResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.CheckpointContainerRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.CheckpointContainerResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.CheckpointPodRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 275, each: 96 } },
        ],
    },
    // runtime.v1.CheckpointPodRequest.OptionsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.CheckpointPodResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.ContainerEventResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 278, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 289, each: 720 } },
        ],
    },
    // runtime.v1.PodSandboxStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 279, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 280, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 282, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 287, each: 96 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 288, each: 96 } },
            shape::Field { number: 9, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxMetadata
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxNetworkStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 281, each: 24 } },
        ],
    },
    // runtime.v1.PodIP
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.LinuxPodSandboxStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 283, each: 0 } },
        ],
    },
    // runtime.v1.Namespace
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 284, each: 0 } },
        ],
    },
    // runtime.v1.NamespaceOption
    shape::Shape {
        fields: &[
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 285, each: 0 } },
        ],
    },
    // runtime.v1.UserNamespace
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 286, each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 286, each: 24 } },
        ],
    },
    // runtime.v1.IDMapping
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.PodSandboxStatus.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxStatus.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ContainerStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 290, each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 291, each: 0 } },
            shape::Field { number: 9, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 10, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 11, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 12, kind: shape::Kind::Message { shape: 293, each: 96 } },
            shape::Field { number: 13, kind: shape::Kind::Message { shape: 294, each: 96 } },
            shape::Field { number: 14, kind: shape::Kind::Message { shape: 295, each: 304 } },
            shape::Field { number: 15, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 16, kind: shape::Kind::Message { shape: 296, each: 0 } },
            shape::Field { number: 17, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 18, kind: shape::Kind::Message { shape: 302, each: 0 } },
        ],
    },
    // runtime.v1.ContainerMetadata
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ImageSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 292, each: 96 } },
            shape::Field { number: 18, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 19, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 20, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ImageSpec.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ContainerStatus.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ContainerStatus.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.Mount
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 286, each: 24 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 286, each: 24 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 291, each: 0 } },
            shape::Field { number: 10, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 11, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // runtime.v1.ContainerResources
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 297, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 300, each: 0 } },
        ],
    },
    // runtime.v1.LinuxContainerResources
    shape::Shape {
        fields: &[
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 298, each: 32 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 299, each: 96 } },
        ],
    },
    // runtime.v1.HugepageLimit
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.LinuxContainerResources.UnifiedEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.WindowsContainerResources
    shape::Shape {
        fields: &[
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 301, each: 16 } },
        ],
    },
    // runtime.v1.WindowsCpuGroupAffinity
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.ContainerUser
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 303, each: 0 } },
        ],
    },
    // runtime.v1.LinuxContainerUser
    shape::Shape {
        fields: &[
            shape::Field { number: 3, kind: shape::Kind::Numbers { each: 8 } },
        ],
    },
    // runtime.v1.ContainerStatsRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ContainerStatsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 306, each: 0 } },
        ],
    },
    // runtime.v1.ContainerStats
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 307, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 310, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 314, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 315, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 317, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 318, each: 0 } },
        ],
    },
    // runtime.v1.ContainerAttributes
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 290, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 308, each: 96 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 309, each: 96 } },
        ],
    },
    // runtime.v1.ContainerAttributes.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ContainerAttributes.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.CpuUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 312, each: 0 } },
        ],
    },
    // runtime.v1.UInt64Value
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.PsiStats
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 313, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 313, each: 0 } },
        ],
    },
    // runtime.v1.PsiData
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.MemoryUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 312, each: 0 } },
        ],
    },
    // runtime.v1.FilesystemUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 316, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 311, each: 0 } },
        ],
    },
    // runtime.v1.FilesystemIdentifier
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.SwapUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 311, each: 0 } },
        ],
    },
    // runtime.v1.IoUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 312, each: 0 } },
        ],
    },
    // runtime.v1.ContainerStatusRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ContainerStatusResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 289, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 321, each: 96 } },
        ],
    },
    // runtime.v1.ContainerStatusResponse.InfoEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.CreateContainerRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 323, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 337, each: 0 } },
        ],
    },
    // runtime.v1.ContainerConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 290, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 291, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 324, each: 48 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 295, each: 304 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 325, each: 72 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 326, each: 96 } },
            shape::Field { number: 10, kind: shape::Kind::Message { shape: 327, each: 96 } },
            shape::Field { number: 11, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 15, kind: shape::Kind::Message { shape: 328, each: 0 } },
            shape::Field { number: 16, kind: shape::Kind::Message { shape: 334, each: 0 } },
            shape::Field { number: 17, kind: shape::Kind::Message { shape: 336, each: 24 } },
        ],
    },
    // runtime.v1.KeyValue
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.Device
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ContainerConfig.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ContainerConfig.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.LinuxContainerConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 297, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 329, each: 0 } },
        ],
    },
    // runtime.v1.LinuxContainerSecurityContext
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 330, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 284, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 331, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 332, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Numbers { each: 8 } },
            shape::Field { number: 9, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 10, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 12, kind: shape::Kind::Message { shape: 332, each: 0 } },
            shape::Field { number: 13, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 14, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 15, kind: shape::Kind::Message { shape: 333, each: 0 } },
            shape::Field { number: 16, kind: shape::Kind::Message { shape: 333, each: 0 } },
        ],
    },
    // runtime.v1.Capability
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // runtime.v1.SELinuxOption
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.Int64Value
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.SecurityProfile
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.WindowsContainerConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 300, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 335, each: 0 } },
        ],
    },
    // runtime.v1.WindowsContainerSecurityContext
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.CDIDevice
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 279, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 338, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 339, each: 48 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 340, each: 96 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 341, each: 96 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 342, each: 0 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 345, each: 0 } },
        ],
    },
    // runtime.v1.DNSConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // runtime.v1.PortMapping
    shape::Shape {
        fields: &[
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxConfig.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxConfig.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.LinuxPodSandboxConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 343, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 344, each: 96 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 297, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 297, each: 0 } },
        ],
    },
    // runtime.v1.LinuxSandboxSecurityContext
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 284, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 331, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 332, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Numbers { each: 8 } },
            shape::Field { number: 7, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 332, each: 0 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 333, each: 0 } },
            shape::Field { number: 10, kind: shape::Kind::Message { shape: 333, each: 0 } },
        ],
    },
    // runtime.v1.LinuxPodSandboxConfig.SysctlsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.WindowsPodSandboxConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 346, each: 0 } },
        ],
    },
    // runtime.v1.WindowsSandboxSecurityContext
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 347, each: 0 } },
        ],
    },
    // runtime.v1.WindowsNamespaceOption
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.CreateContainerResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ExecRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // runtime.v1.ExecResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ExecSyncRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // runtime.v1.ExecSyncResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.GetEventsRequest
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.ImageFsInfoRequest
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.ImageFsInfoResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 315, each: 72 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 315, each: 72 } },
        ],
    },
    // runtime.v1.ImageStatusRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 291, each: 0 } },
        ],
    },
    // runtime.v1.ImageStatusResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 358, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 359, each: 96 } },
        ],
    },
    // runtime.v1.Image
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 332, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 291, each: 0 } },
        ],
    },
    // runtime.v1.ImageStatusResponse.InfoEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ListContainerStatsRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 361, each: 0 } },
        ],
    },
    // runtime.v1.ContainerStatsFilter
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 362, each: 96 } },
        ],
    },
    // runtime.v1.ContainerStatsFilter.LabelSelectorEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ListContainerStatsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 306, each: 688 } },
        ],
    },
    // runtime.v1.ListContainersRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 365, each: 0 } },
        ],
    },
    // runtime.v1.ContainerFilter
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 366, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 367, each: 96 } },
        ],
    },
    // runtime.v1.ContainerStateValue
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.ContainerFilter.LabelSelectorEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ListContainersResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 369, each: 328 } },
        ],
    },
    // runtime.v1.Container
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 290, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 291, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 370, each: 96 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 371, each: 96 } },
            shape::Field { number: 10, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.Container.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.Container.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ListImagesRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 373, each: 0 } },
        ],
    },
    // runtime.v1.ImageFilter
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 291, each: 0 } },
        ],
    },
    // runtime.v1.ListImagesResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 358, each: 256 } },
        ],
    },
    // runtime.v1.ListMetricDescriptorsRequest
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.ListMetricDescriptorsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 377, each: 72 } },
        ],
    },
    // runtime.v1.MetricDescriptor
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // runtime.v1.ListPodSandboxMetricsRequest
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.ListPodSandboxMetricsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 380, each: 72 } },
        ],
    },
    // runtime.v1.PodSandboxMetrics
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 381, each: 80 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 382, each: 48 } },
        ],
    },
    // runtime.v1.Metric
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 311, each: 0 } },
        ],
    },
    // runtime.v1.ContainerMetrics
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 381, each: 80 } },
        ],
    },
    // runtime.v1.ListPodSandboxRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 384, each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxFilter
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 385, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 386, each: 96 } },
        ],
    },
    // runtime.v1.PodSandboxStateValue
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.PodSandboxFilter.LabelSelectorEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ListPodSandboxResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 388, each: 200 } },
        ],
    },
    // runtime.v1.PodSandbox
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 279, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 389, each: 96 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 390, each: 96 } },
            shape::Field { number: 7, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandbox.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandbox.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ListPodSandboxStatsRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 392, each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxStatsFilter
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 393, each: 96 } },
        ],
    },
    // runtime.v1.PodSandboxStatsFilter.LabelSelectorEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ListPodSandboxStatsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 395, each: 1136 } },
        ],
    },
    // runtime.v1.PodSandboxStats
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 396, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 399, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 403, each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxAttributes
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 279, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 397, each: 96 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 398, each: 96 } },
        ],
    },
    // runtime.v1.PodSandboxAttributes.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxAttributes.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.LinuxPodSandboxStats
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 310, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 314, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 400, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 402, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 306, each: 688 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 318, each: 0 } },
        ],
    },
    // runtime.v1.NetworkUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 401, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 401, each: 88 } },
        ],
    },
    // runtime.v1.NetworkInterfaceUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 311, each: 0 } },
        ],
    },
    // runtime.v1.ProcessUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 311, each: 0 } },
        ],
    },
    // runtime.v1.WindowsPodSandboxStats
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 404, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 405, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 406, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 408, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 409, each: 312 } },
        ],
    },
    // runtime.v1.WindowsCpuUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 311, each: 0 } },
        ],
    },
    // runtime.v1.WindowsMemoryUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 311, each: 0 } },
        ],
    },
    // runtime.v1.WindowsNetworkUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 407, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 407, each: 88 } },
        ],
    },
    // runtime.v1.WindowsNetworkInterfaceUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 311, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 311, each: 0 } },
        ],
    },
    // runtime.v1.WindowsProcessUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 311, each: 0 } },
        ],
    },
    // runtime.v1.WindowsContainerStats
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 307, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 404, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 405, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 410, each: 0 } },
        ],
    },
    // runtime.v1.WindowsFilesystemUsage
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 316, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 311, each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxStatsRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxStatsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 395, each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxStatusRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PodSandboxStatusResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 278, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 415, each: 96 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 289, each: 720 } },
        ],
    },
    // runtime.v1.PodSandboxStatusResponse.InfoEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PortForwardRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Numbers { each: 4 } },
        ],
    },
    // runtime.v1.PortForwardResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PullImageRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 291, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 419, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 337, each: 0 } },
        ],
    },
    // runtime.v1.AuthConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.PullImageResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.RemoveContainerRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.RemoveContainerResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.RemoveImageRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 291, each: 0 } },
        ],
    },
    // runtime.v1.RemoveImageResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.RemovePodSandboxRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.RemovePodSandboxResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.ReopenContainerLogRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.ReopenContainerLogResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.RestorePodRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 337, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 430, each: 96 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 323, each: 1344 } },
        ],
    },
    // runtime.v1.RestorePodRequest.OptionsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.RestorePodResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 432, each: 48 } },
        ],
    },
    // runtime.v1.RestoredContainer
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.RunPodSandboxRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 337, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.RunPodSandboxResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.RuntimeConfigRequest
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.RuntimeConfigResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 437, each: 0 } },
        ],
    },
    // runtime.v1.LinuxRuntimeConfiguration
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.StartContainerRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.StartContainerResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.StatusRequest
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.StatusResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 442, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 444, each: 96 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 445, each: 48 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 447, each: 0 } },
        ],
    },
    // runtime.v1.RuntimeStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 443, each: 80 } },
        ],
    },
    // runtime.v1.RuntimeCondition
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.StatusResponse.InfoEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.RuntimeHandler
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 446, each: 0 } },
        ],
    },
    // runtime.v1.RuntimeHandlerFeatures
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.RuntimeFeatures
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.StopContainerRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.StopContainerResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.StopPodSandboxRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.StopPodSandboxResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.StreamContainerStatsRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 361, each: 0 } },
        ],
    },
    // runtime.v1.StreamContainerStatsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 306, each: 688 } },
        ],
    },
    // runtime.v1.StreamContainersRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 365, each: 0 } },
        ],
    },
    // runtime.v1.StreamContainersResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 369, each: 328 } },
        ],
    },
    // runtime.v1.StreamImagesRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 373, each: 0 } },
        ],
    },
    // runtime.v1.StreamImagesResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 358, each: 256 } },
        ],
    },
    // runtime.v1.StreamPodSandboxMetricsRequest
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.StreamPodSandboxMetricsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 380, each: 72 } },
        ],
    },
    // runtime.v1.StreamPodSandboxStatsRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 392, each: 0 } },
        ],
    },
    // runtime.v1.StreamPodSandboxStatsResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 395, each: 1136 } },
        ],
    },
    // runtime.v1.StreamPodSandboxesRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 384, each: 0 } },
        ],
    },
    // runtime.v1.StreamPodSandboxesResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 388, each: 200 } },
        ],
    },
    // runtime.v1.UpdateContainerResourcesRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 297, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 300, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 465, each: 96 } },
        ],
    },
    // runtime.v1.UpdateContainerResourcesRequest.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.UpdateContainerResourcesResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.UpdatePodSandboxResourcesRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 297, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 297, each: 0 } },
        ],
    },
    // runtime.v1.UpdatePodSandboxResourcesResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.UpdateRuntimeConfigRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 470, each: 0 } },
        ],
    },
    // runtime.v1.RuntimeConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 471, each: 0 } },
        ],
    },
    // runtime.v1.NetworkConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.UpdateRuntimeConfigResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1.VersionRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1.VersionResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.ContainerStatusResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 476, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 489, each: 96 } },
        ],
    },
    // runtime.v1alpha2.ContainerStatus
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 290, each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 291, each: 0 } },
            shape::Field { number: 9, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 10, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 11, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 12, kind: shape::Kind::Message { shape: 477, each: 96 } },
            shape::Field { number: 13, kind: shape::Kind::Message { shape: 478, each: 96 } },
            shape::Field { number: 14, kind: shape::Kind::Message { shape: 479, each: 96 } },
            shape::Field { number: 15, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 16, kind: shape::Kind::Message { shape: 480, each: 0 } },
            shape::Field { number: 100, kind: shape::Kind::Message { shape: 487, each: 80 } },
            shape::Field { number: 101, kind: shape::Kind::Message { shape: 481, each: 0 } },
            shape::Field { number: 102, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 103, kind: shape::Kind::Message { shape: 324, each: 48 } },
        ],
    },
    // runtime.v1alpha2.ContainerStatus.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.ContainerStatus.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.Mount
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 100, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.ContainerResources
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 481, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 300, each: 0 } },
        ],
    },
    // runtime.v1alpha2.LinuxContainerResources
    shape::Shape {
        fields: &[
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 298, each: 32 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 482, each: 96 } },
            shape::Field { number: 100, kind: shape::Kind::Message { shape: 483, each: 96 } },
            shape::Field { number: 102, kind: shape::Kind::Message { shape: 484, each: 32 } },
            shape::Field { number: 103, kind: shape::Kind::Message { shape: 485, each: 32 } },
            shape::Field { number: 104, kind: shape::Kind::Message { shape: 485, each: 32 } },
            shape::Field { number: 105, kind: shape::Kind::Message { shape: 485, each: 32 } },
            shape::Field { number: 106, kind: shape::Kind::Message { shape: 485, each: 32 } },
            shape::Field { number: 109, kind: shape::Kind::Message { shape: 332, each: 0 } },
            shape::Field { number: 110, kind: shape::Kind::Message { shape: 486, each: 40 } },
        ],
    },
    // runtime.v1alpha2.LinuxContainerResources.UnifiedEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.LinuxContainerResources.DiskQuotaEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.WeightDevice
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.ThrottleDevice
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.Ulimit
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.ContainerStatus.VolumesEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 488, each: 0 } },
        ],
    },
    // runtime.v1alpha2.Volume
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1alpha2.ContainerStatusResponse.InfoEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.CreateContainerRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 491, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 495, each: 0 } },
        ],
    },
    // runtime.v1alpha2.ContainerConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 290, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 291, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 324, each: 48 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 479, each: 96 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 325, each: 72 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 492, each: 96 } },
            shape::Field { number: 10, kind: shape::Kind::Message { shape: 493, each: 96 } },
            shape::Field { number: 11, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 15, kind: shape::Kind::Message { shape: 494, each: 0 } },
            shape::Field { number: 16, kind: shape::Kind::Message { shape: 334, each: 0 } },
            shape::Field { number: 101, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.ContainerConfig.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.ContainerConfig.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.LinuxContainerConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 481, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 329, each: 0 } },
        ],
    },
    // runtime.v1alpha2.PodSandboxConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 279, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 338, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 339, each: 48 } },
            shape::Field { number: 6, kind: shape::Kind::Message { shape: 496, each: 96 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 497, each: 96 } },
            shape::Field { number: 8, kind: shape::Kind::Message { shape: 498, each: 0 } },
            shape::Field { number: 9, kind: shape::Kind::Message { shape: 345, each: 0 } },
        ],
    },
    // runtime.v1alpha2.PodSandboxConfig.LabelsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.PodSandboxConfig.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.LinuxPodSandboxConfig
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 343, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 499, each: 96 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 481, each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 481, each: 0 } },
        ],
    },
    // runtime.v1alpha2.LinuxPodSandboxConfig.SysctlsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.ImageStatusResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 501, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 503, each: 96 } },
        ],
    },
    // runtime.v1alpha2.Image
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 332, each: 0 } },
            shape::Field { number: 6, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 7, kind: shape::Kind::Message { shape: 291, each: 0 } },
            shape::Field { number: 100, kind: shape::Kind::Message { shape: 502, each: 80 } },
        ],
    },
    // runtime.v1alpha2.Image.VolumesEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 488, each: 0 } },
        ],
    },
    // runtime.v1alpha2.ImageStatusResponse.InfoEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.ListImagesResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 501, each: 280 } },
        ],
    },
    // runtime.v1alpha2.PullImageRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 291, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 419, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 495, each: 0 } },
        ],
    },
    // runtime.v1alpha2.RemoveVolumeRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.RemoveVolumeResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1alpha2.RunPodSandboxRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 495, each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.StartPodSandboxRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // runtime.v1alpha2.StartPodSandboxResponse
    shape::Shape {
        fields: &[
        ],
    },
    // runtime.v1alpha2.UpdateContainerResourcesRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 481, each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 300, each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 512, each: 96 } },
        ],
    },
    // runtime.v1alpha2.UpdateContainerResourcesRequest.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // switchyard.nomad.v1.OpenRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 5, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // switchyard.nomad.v1.OpenResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // v1.ListPodResourcesRequest
    shape::Shape {
        fields: &[
        ],
    },
    // v1.ListPodResourcesResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 517, each: 96 } },
        ],
    },
    // v1.PodResources
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 518, each: 96 } },
            shape::Field { number: 4, kind: shape::Kind::Numbers { each: 8 } },
        ],
    },
    // v1.ContainerResources
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 519, each: 48 } },
            shape::Field { number: 3, kind: shape::Kind::Numbers { each: 8 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 520, each: 72 } },
        ],
    },
    // v1.ContainerDevices
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // v1.DynamicResource
    shape::Shape {
        fields: &[
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 521, each: 96 } },
        ],
    },
    // v1.ClaimResource
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 522, each: 24 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // v1.CDIDevice
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // v1beta1.AllocateRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 524, each: 24 } },
        ],
    },
    // v1beta1.ContainerAllocateRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // v1beta1.AllocateResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 526, each: 120 } },
        ],
    },
    // v1beta1.ContainerAllocateResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 527, each: 96 } },
            shape::Field { number: 2, kind: shape::Kind::Message { shape: 528, each: 56 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 529, each: 72 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 530, each: 96 } },
            shape::Field { number: 5, kind: shape::Kind::Message { shape: 531, each: 24 } },
        ],
    },
    // v1beta1.ContainerAllocateResponse.EnvsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // v1beta1.Mount
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // v1beta1.DeviceSpec
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // v1beta1.ContainerAllocateResponse.AnnotationsEntry
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // v1beta1.CDIDevice
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
        ],
    },
    // v1beta1.DevicePluginOptions
    shape::Shape {
        fields: &[
        ],
    },
    // v1beta1.Empty
    shape::Shape {
        fields: &[
        ],
    },
    // v1beta1.ListAndWatchResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 535, each: 80 } },
        ],
    },
    // v1beta1.Device
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Message { shape: 536, each: 0 } },
        ],
    },
    // v1beta1.TopologyInfo
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 537, each: 8 } },
        ],
    },
    // v1beta1.NUMANode
    shape::Shape {
        fields: &[
        ],
    },
    // v1beta1.PreStartContainerRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // v1beta1.PreStartContainerResponse
    shape::Shape {
        fields: &[
        ],
    },
    // v1beta1.PreferredAllocationRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 541, each: 56 } },
        ],
    },
    // v1beta1.ContainerPreferredAllocationRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // v1beta1.PreferredAllocationResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Message { shape: 543, each: 24 } },
        ],
    },
    // v1beta1.ContainerPreferredAllocationResponse
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 24 } },
        ],
    },
    // v1beta1.RegisterRequest
    shape::Shape {
        fields: &[
            shape::Field { number: 1, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 2, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 3, kind: shape::Kind::Text { each: 0 } },
            shape::Field { number: 4, kind: shape::Kind::Message { shape: 532, each: 0 } },
        ],
    },
];
