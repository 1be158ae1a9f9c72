//! The requests of a kubelet: pods and containers, the same for both sides.

use std::path::PathBuf;

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::root::PrivateRoot;

use crate::side::{Side, image_spec};
use crate::test_bed::TestBed;

/// Paths that a kubelet hides from a container that is not privileged.
const MASKED: [&str; 10] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
/// Paths that such a container can only read.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// The common parts of all requests of a series.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    /// Directory of the logs of pods.
    pub(crate) logs: PathBuf,
    /// The control group of all pods.
    pub(crate) parent: String,
    /// Image of the containers.
    pub(crate) image: String,
    /// True if containers have the limits that a kubelet always sends. Without controllers there can be none.
    pub(crate) limits: bool,
    /// True if pods and containers are privileged.
    pub(crate) privileged: bool,
}

// === impl Requests ===

impl Requests {
    /// Those of pods of this stand.
    pub(crate) fn new(stand: &TestBed) -> Self {
        Self::of(&stand.root, &stand.image)
    }

    /// Those of pods of the daemon of this root, which run this image.
    pub(crate) fn of(root: &PrivateRoot, image: &str) -> Self {
        Self {
            logs: root.log_dir(),
            parent: root.cgroup_parent(),
            image: image.to_owned(),
            limits: true,
            privileged: false,
        }
    }

    /// A pod with its own network and no shared process namespace.
    pub(crate) fn sandbox(&self, side: &Side, name: &str) -> cri::PodSandboxConfig {
        let uid = format!("{}-{name}", side.namespace);
        let profile = cri::SecurityProfile {
            profile_type: cri::security_profile::ProfileType::RuntimeDefault as i32,
            ..Default::default()
        };
        cri::PodSandboxConfig {
            log_directory: self.logs.join(&uid).display().to_string(),
            metadata: Some(cri::PodSandboxMetadata {
                name: name.to_owned(),
                uid,
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            hostname: name.to_owned(),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: self.parent.clone(),
                security_context: Some(cri::LinuxSandboxSecurityContext {
                    privileged: self.privileged,
                    namespace_options: Some(namespaces()),
                    seccomp: Some(profile),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    /// A container of a pod without requests and limits: it prints a line and sleeps.
    pub(crate) fn container(&self, name: &str) -> cri::ContainerConfig {
        let resources = cri::LinuxContainerResources {
            cpu_period: 100_000,
            cpu_shares: 2,
            oom_score_adj: 1000,
            ..Default::default()
        };
        cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            image: Some(image_spec(&self.image)),
            command: words(&["sh", "-c", "echo up; exec sleep 100000"]),
            log_path: format!("{name}/0.log"),
            linux: Some(cri::LinuxContainerConfig {
                resources: self.limits.then_some(resources),
                security_context: Some(cri::LinuxContainerSecurityContext {
                    privileged: self.privileged,
                    namespace_options: Some(namespaces()),
                    masked_paths: words(if self.privileged { &[] } else { &MASKED }),
                    readonly_paths: words(if self.privileged { &[] } else { &READ_ONLY }),
                    seccomp: Some(cri::SecurityProfile {
                        profile_type: cri::security_profile::ProfileType::Unconfined as i32,
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
            }),
            ..Default::default()
        }
    }
}

fn namespaces() -> cri::NamespaceOption {
    cri::NamespaceOption {
        pid: cri::NamespaceMode::Container as i32,
        ..Default::default()
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
