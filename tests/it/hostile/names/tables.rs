//! The fields of pods, containers and tasks that get arbitrary texts.

use super::*;

pub(super) const PODS: &[Field<PodSandboxConfig>] = &[
    ("config.metadata.name", |pod, text| {
        pod.metadata.get_or_insert_default().name = text.into()
    }),
    ("config.metadata.namespace", |pod, text| {
        pod.metadata.get_or_insert_default().namespace = text.into()
    }),
    ("config.metadata.uid", |pod, text| {
        pod.metadata.get_or_insert_default().uid = text.into()
    }),
    ("config.hostname", |pod, text| pod.hostname = text.into()),
    ("config.log_directory", |pod, text| {
        pod.log_directory = text.into()
    }),
    ("config.log_directory", |pod, text| {
        pod.log_directory = format!("{}/{text}", pod.log_directory)
    }),
    ("cgroup_parent", |pod, text| {
        pod.linux.get_or_insert_default().cgroup_parent = text.into()
    }),
    ("cgroup_parent", |pod, text| {
        pod.linux
            .get_or_insert_default()
            .cgroup_parent
            .push_str(&format!("/{text}"))
    }),
    ("label", |pod, text| {
        drop(pod.labels.insert(text.into(), text.into()))
    }),
    ("annotation", |pod, text| {
        drop(pod.annotations.insert(text.into(), text.into()))
    }),
    ("search", |pod, text| {
        pod.dns_config = Some(DnsConfig {
            searches: vec![text.into()],
            ..Default::default()
        });
    }),
    ("sysctl", |pod, text| {
        drop(
            pod.linux
                .get_or_insert_default()
                .sysctls
                .insert(text.into(), "1".into()),
        );
    }),
    ("selinux_options", |pod, text| {
        security(pod).selinux_options = Some(SeLinuxOption {
            level: text.into(),
            ..Default::default()
        });
    }),
];

pub(super) const CONTAINERS: &[Field<ContainerConfig>] = &[
    ("config.metadata.name", |container, text| {
        container.metadata.get_or_insert_default().name = text.into()
    }),
    ("image", |container, text| {
        container.image = Some(image_spec(text))
    }),
    ("config.log_path", |container, text| {
        container.log_path = text.into()
    }),
    ("config.working_dir", |container, text| {
        container.working_dir = text.into()
    }),
    ("label", |container, text| {
        drop(container.labels.insert(text.into(), text.into()))
    }),
    ("annotation", |container, text| {
        drop(container.annotations.insert(text.into(), text.into()))
    }),
    ("config.command", |container, text| {
        container.command = vec!["true".into(), text.into()]
    }),
    ("config.envs", |container, text| {
        container.envs = vec![KeyValue {
            key: text.into(),
            value: text.into(),
        }];
    }),
    ("mounts", |container, text| {
        container.mounts = vec![Mount {
            host_path: "/tmp".into(),
            container_path: text.into(),
            ..Default::default()
        }];
    }),
    ("user", |container, text| {
        context(container).run_as_username = text.into()
    }),
    ("devices", |container, text| {
        container.cdi_devices = vec![switchyard_proto::cri::v1::CdiDevice { name: text.into() }];
    }),
    ("apparmor", |container, text| {
        context(container).apparmor_profile = text.into()
    }),
];

pub(super) const TASKS: &[Field<nomad::TaskConfig>] = &[
    ("task.id", |task, text| task.id = text.into()),
    ("task.", |task, text| task.name = text.into()),
    ("task.alloc_id|cgroup", |task, text| {
        task.alloc_id = text.into()
    }),
    ("task.alloc_dir", |task, text| task.alloc_dir = text.into()),
    ("stdout_path|output", |task, text| {
        task.stdout_path = text.into()
    }),
    ("job_name", |task, text| task.job_name = text.into()),
    ("namespace", |task, text| task.namespace = text.into()),
    ("user", |task, text| task.user = text.into()),
    ("env", |task, text| {
        drop(task.env.insert(text.into(), text.into()))
    }),
];

/// Keys of a task's `config`.
pub(super) const OPTIONS: [&str; 6] = [
    "image",
    "hostname",
    "work_dir",
    "runtime",
    "network_mode",
    "load",
];
