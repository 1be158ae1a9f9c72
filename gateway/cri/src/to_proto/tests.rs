//! Conversions to the wire: echoes of the request, and the substitutes for a record that cannot be decoded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;
use switchyard_core::backend::{
    BackendStatus, CgroupDriver, Condition, Handler, Inspection, SandboxStats, Trouble,
};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::ImageId;
use switchyard_core::object::{ResolvedUser, Sandbox, SandboxDetails, Task, TaskDetails};
use switchyard_core::spec::{
    ComputeClaim, CpuShares, HostPorts, HugepageLimit, HugepageSize, MemoryLimit, Meta, Resources,
    Signal,
};
use switchyard_core::state::{SandboxState, TaskState};
use switchyard_core::stats::{
    CpuUsage, InterfaceStats, IoUsage, Pressure, PressureLine, TaskStats, Usage,
};
use switchyard_proto::cri::v1 as cri;

use super::*;
use crate::record::{ContainerRecord, SandboxRecord};

mod network_info;
mod node_status;

fn meta(labels: &[(&str, &str)]) -> Arc<Meta> {
    Arc::new(Meta {
        owner: Owner::Kubernetes,
        name: "the-name".into(),
        labels: labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        created_at: UNIX_EPOCH + Duration::from_nanos(5),
        record: Vec::new(),
    })
}

pub(crate) fn sandbox(state: SandboxState) -> Sandbox {
    Sandbox {
        id: SandboxId::from_bytes([1; 32]),
        meta: meta(&[
            ("io.kubernetes.pod.name", "pod"),
            ("io.kubernetes.pod.namespace", "ns"),
        ]),
        handler: "crun".into(),
        details: SandboxDetails {
            ips: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            netns: Some("/run/netns/x".into()),
            pid: None,
            note: Vec::new(),
            host_ports: HostPorts::default(),
        },
        state,
    }
}

pub(crate) fn task() -> Task {
    Task {
        id: TaskId::from_bytes([2; 32]),
        sandbox: SandboxId::from_bytes([1; 32]),
        meta: meta(&[("io.kubernetes.container.name", "app")]),
        details: TaskDetails {
            image_id: ImageId::new("sha256:id"),
            image_ref: "reg/app@sha256:digest".into(),
            throttles: Vec::new(),
            image_volumes: Vec::new(),
            volume_images: Vec::new(),
            user: ResolvedUser {
                uid: 1,
                gid: 2,
                groups: Vec::new(),
            },
            stop_signal: Signal::TERM,
            resources: Resources {
                cpu_shares: Some(CpuShares::clamped(512)),
                memory_limit_bytes: MemoryLimit::new(1 << 20).ok(),
                hugepages: vec![HugepageLimit {
                    page_size: HugepageSize::new("2MB").unwrap(),
                    limit_bytes: 4,
                }],
                ..Resources::default()
            },
            log_path: Some("/logs/app/0.log".into()),
            project: None,
            leases: Vec::new(),
            compute: ComputeClaim::default(),
            warnings: Vec::new(),
        },
        state: TaskState::Created,
    }
}

pub(super) fn record(image: &str, user_specified_image: &str) -> ContainerRecord {
    ContainerRecord {
        config: Some(cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: "app".into(),
                attempt: 3,
            }),
            image: Some(cri::ImageSpec {
                image: image.into(),
                user_specified_image: user_specified_image.into(),
                ..Default::default()
            }),
            annotations: BTreeMap::from([("a".into(), "b".into())]),
            mounts: vec![cri::Mount {
                container_path: "/x".into(),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn only_ready_sandbox_reports_addresses() {
    let status = sandbox_status(&sandbox(SandboxState::Ready), None);
    let network = status.network.expect("it is ready");
    assert_eq!(network.ip, "10.0.0.2");
    assert_eq!(
        network.additional_ips,
        [cri::PodIp {
            ip: "fd00::2".into()
        }]
    );
    for state in [
        SandboxState::Stopping,
        SandboxState::Stopped,
        SandboxState::Starting,
        SandboxState::Removing,
        SandboxState::Unknown { reason: "x".into() },
    ] {
        let status = sandbox_status(&sandbox(state), None);
        assert_eq!(
            (status.network, status.state),
            (None, cri::PodSandboxState::SandboxNotready.into())
        );
    }
}

#[test]
fn sandbox_status_echoes_its_request() {
    let options = cri::NamespaceOption {
        pid: 1,
        ..Default::default()
    };
    let metadata = cri::PodSandboxMetadata {
        name: "p".into(),
        uid: "u".into(),
        namespace: "n".into(),
        attempt: 4,
    };
    let record = SandboxRecord {
        config: Some(cri::PodSandboxConfig {
            metadata: Some(metadata.clone()),
            annotations: BTreeMap::from([("a".into(), "b".into())]),
            linux: Some(cri::LinuxPodSandboxConfig {
                security_context: Some(cri::LinuxSandboxSecurityContext {
                    namespace_options: Some(options.clone()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        runtime_handler: "crun".into(),
    };
    let status = sandbox_status(&sandbox(SandboxState::Ready), Some(&record));
    assert_eq!(status.metadata, Some(metadata));
    assert_eq!(
        status.annotations,
        BTreeMap::from([("a".into(), "b".into())])
    );
    assert_eq!(
        status
            .linux
            .and_then(|linux| linux.namespaces)
            .and_then(|n| n.options),
        Some(options)
    );
    assert_eq!(
        (status.created_at, status.runtime_handler.as_str()),
        (5, "crun")
    );
}

#[test]
fn sandbox_with_unreadable_record_is_described_by_labels() {
    let status = sandbox_status(&sandbox(SandboxState::Ready), None);
    let metadata = status.metadata.expect("clients insist on it");
    assert_eq!(
        (metadata.name.as_str(), metadata.namespace.as_str()),
        ("pod", "ns")
    );
    assert_eq!(status.labels.len(), 2);
}

#[test]
fn container_status_echoes_its_request() {
    let record = record("sha256:id", "nginx:1");
    let status = container_status(&task(), Some(&record));
    assert_eq!(
        status.metadata,
        Some(cri::ContainerMetadata {
            name: "app".into(),
            attempt: 3
        })
    );
    assert_eq!(status.image.expect("clients insist on it").image, "nginx:1");
    assert_eq!(status.mounts.len(), 1);
    assert_eq!(
        (status.image_ref.as_str(), status.image_id.as_str()),
        ("reg/app@sha256:digest", "sha256:id")
    );
    assert_eq!(
        (status.log_path.as_str(), status.stop_signal),
        ("/logs/app/0.log", 23)
    );
    let limits = status
        .resources
        .and_then(|resources| resources.linux)
        .expect("they are always reported");
    assert_eq!(
        (
            limits.cpu_shares,
            limits.memory_limit_in_bytes,
            limits.cpu_quota
        ),
        (512, 1 << 20, 0)
    );
    assert_eq!(
        limits.hugepage_limits,
        [cri::HugepageLimit {
            page_size: "2MB".into(),
            limit: 4
        }]
    );
}

#[test]
fn container_image_is_never_empty() {
    let image = |record: Option<&ContainerRecord>| {
        container(&task(), record).image.expect("it is set").image
    };
    assert_eq!(image(Some(&record("busybox", ""))), "busybox");
    assert_eq!(image(None), "reg/app@sha256:digest");
}

#[test]
fn container_with_unreadable_record_is_described_by_labels() {
    let listed = container(&task(), None);
    assert_eq!(
        listed.metadata,
        Some(cri::ContainerMetadata {
            name: "app".into(),
            attempt: 0
        })
    );
}

#[test]
fn container_without_stats_has_only_attributes() {
    let stats = container_stats(&task(), None, None, None);
    assert!(stats.attributes.is_some());
    assert_eq!(
        (stats.cpu, stats.memory, stats.writable_layer),
        (None, None, None)
    );
}

#[test]
fn stall_times_become_nanoseconds() {
    let line = |total_us| PressureLine {
        total_us,
        avg10: 1.5,
        ..PressureLine::default()
    };
    let psi = |full| {
        let io = IoUsage {
            at: UNIX_EPOCH,
            pressure: Some(Pressure {
                some: line(7),
                full,
            }),
        };
        let stats = TaskStats {
            usage: Usage {
                io: Some(io),
                ..Usage::default()
            },
            writable_layer: None,
        };
        container_stats(&task(), None, Some(&stats), None)
            .io
            .and_then(|io| io.psi)
            .expect("it is read")
    };
    let both = psi(Some(line(3)));
    let some = both.some.expect("it is set");
    let full = both.full.expect("it is set");
    assert_eq!((some.total, full.total, some.avg10), (7_000, 3_000, 1.5));
    assert_eq!(psi(None).full, None);
}

#[test]
fn sandbox_stats_list_all_interfaces_with_the_default_one() {
    let named = |name: &str| InterfaceStats {
        name: name.into(),
        rx_bytes: 1,
        ..InterfaceStats::default()
    };
    let network = |names: &[&str]| {
        let stats = SandboxStats {
            usage: Usage::default(),
            processes: None,
            interfaces: names.iter().map(|name| named(name)).collect(),
        };
        let stats = sandbox_stats(
            &sandbox(SandboxState::Ready),
            None,
            &stats,
            None,
            Vec::new(),
            UNIX_EPOCH,
        );
        stats.linux.and_then(|linux| linux.network).map(|network| {
            let all: Vec<_> = network
                .interfaces
                .into_iter()
                .map(|interface| interface.name)
                .collect();
            (
                network.default_interface.expect("it is set").name,
                all.join(" "),
            )
        })
    };
    assert_eq!(
        network(&["lo", "net1", "eth0"]),
        Some(("eth0".into(), "net1 eth0".into()))
    );
    assert_eq!(
        network(&["lo", "net1", "net2"]),
        Some(("net1".into(), "net1 net2".into()))
    );
    assert_eq!(
        network(&["eth0", "lo"]),
        Some(("eth0".into(), "eth0".into()))
    );
    assert_eq!(network(&["lo"]), None);
}

#[test]
fn cpu_usage_includes_its_rate() {
    let cpu = CpuUsage {
        at: UNIX_EPOCH,
        total_ns: 9,
        user_ns: None,
        system_ns: None,
        periods: None,
        throttled_periods: None,
        throttled_ns: None,
        pressure: None,
    };
    let stats = TaskStats {
        usage: Usage {
            cpu: Some(cpu),
            ..Usage::default()
        },
        writable_layer: None,
    };
    let cpu = container_stats(&task(), None, Some(&stats), Some(4))
        .cpu
        .expect("it is read");
    assert_eq!(
        cpu.usage_core_nano_seconds,
        Some(cri::UInt64Value { value: 9 })
    );
    assert_eq!(cpu.usage_nano_cores, Some(cri::UInt64Value { value: 4 }));
}

#[test]
fn verbose_info_has_the_whole_container_request() {
    let config = request_with_every_kind_of_field();
    let record = ContainerRecord {
        config: Some(config),
        ..Default::default()
    };
    let info = container_info(&task(), Some(&record), &Inspection::default());
    let info: serde_json::Value = serde_json::from_str(&info["info"]).expect("it is JSON");
    let mount = &info["config"]["mounts"][0];
    assert_eq!(
        (&mount["image"]["image"], &mount["image_sub_path"]),
        (&json!("shown:1"), &json!("sub"))
    );
    assert_eq!(
        (
            &mount["gidMappings"][0]["host_id"],
            &mount["mount_options"][0]
        ),
        (&json!(7), &json!("noexec"))
    );
    let context = &info["config"]["linux"]["security_context"];
    assert_eq!(
        context["capabilities"]["add_ambient_capabilities"],
        json!(["NET_RAW"])
    );
    assert_eq!(context["selinux_options"]["level"], "s0:c1");
    assert_eq!(
        (&context["masked_paths"][0], &context["readonly_paths"][0]),
        (&json!("/proc/kcore"), &json!("/proc/sys"))
    );
    assert_eq!(context["supplemental_groups_policy"], 1);
    assert_eq!(
        context["namespace_options"]["userns_options"]["uids"][0]["host_id"],
        9
    );
}

fn request_with_every_kind_of_field() -> cri::ContainerConfig {
    let words = |word: &str| vec![word.to_owned()];
    let context = cri::LinuxContainerSecurityContext {
        capabilities: Some(cri::Capability {
            add_ambient_capabilities: words("NET_RAW"),
            ..Default::default()
        }),
        selinux_options: Some(cri::SeLinuxOption {
            level: "s0:c1".into(),
            ..Default::default()
        }),
        masked_paths: words("/proc/kcore"),
        readonly_paths: words("/proc/sys"),
        supplemental_groups_policy: cri::SupplementalGroupsPolicy::Strict.into(),
        namespace_options: Some(cri::NamespaceOption {
            userns_options: Some(cri::UserNamespace {
                uids: vec![cri::IdMapping {
                    host_id: 9,
                    container_id: 0,
                    length: 1,
                }],
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    cri::ContainerConfig {
        mounts: vec![cri::Mount {
            container_path: "/image".into(),
            image: Some(cri::ImageSpec {
                image: "shown:1".into(),
                ..Default::default()
            }),
            image_sub_path: "sub".into(),
            gid_mappings: vec![cri::IdMapping {
                host_id: 7,
                container_id: 0,
                length: 1,
            }],
            mount_options: words("noexec"),
            ..Default::default()
        }],
        linux: Some(cri::LinuxContainerConfig {
            security_context: Some(context),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn later_pod_resources_are_reported() {
    let note = crate::record::SandboxNote {
        resources: Some(cri::LinuxContainerResources {
            cpu_shares: 700,
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut pod = sandbox(SandboxState::Ready);
    pod.details.note = crate::record::encode(&note);
    let record = SandboxRecord {
        config: Some(cri::PodSandboxConfig::default()),
        ..Default::default()
    };
    let info = sandbox_info(&pod, Some(&record), &Inspection::default());
    let info: serde_json::Value = serde_json::from_str(&info["info"]).expect("it is JSON");
    assert_eq!(info["config"]["linux"]["resources"]["cpu_shares"], 700);
}
