//! Whole plans: what a plain task gets, names, labels, credentials, logs and templates.

use std::time::Duration;

use proptest::prelude::*;
use prost::Message;
use switchyard_core::image::Credentials;
use switchyard_core::spec::{HostAddress, Output, SandboxNetwork, SeccompProfile};

use super::*;
use crate::plan::{HealthCheck, LogRotation};
use crate::template::any_bytes::facts;
use crate::template::expand_field;

#[test]
fn plain_task_has_dockers_defaults() {
    let made = planned(container());
    let id = crate::sample_tasks::task_id(1);
    assert_eq!(
        (made.task.meta.name.as_str(), made.task.meta.owner),
        (id.as_str(), Owner::Swarm)
    );
    assert_eq!(made.sandbox.hostname, id[..12]);
    assert!(matches!(made.sandbox.network, SandboxNetwork::Pod(_)));
    assert_eq!(
        made.sandbox.sysctls["net.ipv4.ip_unprivileged_port_start"],
        "0"
    );
    assert_eq!(made.stop_grace, Duration::from_secs(10));
    assert_eq!(
        made.rotation,
        LogRotation {
            max_size: Some(20 << 20),
            max_files: 5
        }
    );
    assert_eq!(made.health, HealthCheck::default());
    assert_eq!(
        made.task.stdio.output,
        Output::Log(node().log_dir.join(&id).join("output.log"))
    );
    let security = &made.task.security;
    assert_eq!(
        (security.seccomp.clone(), security.apparmor.clone()),
        (SeccompProfile::RuntimeDefault, None)
    );
    assert!(security.capabilities.add.contains(&"NET_RAW".to_owned()) && !security.privileged);
    assert!(!security.masked_paths.is_empty() && !security.readonly_paths.is_empty());
    assert_eq!(
        made.task.resources.oom_score_adj.map(|score| score.get()),
        Some(0)
    );
}

#[test]
fn labels_of_docker_override_those_of_task_and_service() {
    let mut given = container();
    for (name, value) in [
        ("a", "service"),
        ("b", "service"),
        ("com.docker.swarm.task.id", "forged"),
    ] {
        given.labels.insert(name.into(), value.into());
    }
    let mut asked = task(1, given);
    let labels = [("b".to_owned(), "task".to_owned())].into();
    asked.annotations = Some(swarm::Annotations {
        labels,
        ..Default::default()
    });
    let labels = planned_task(&asked).task.meta.labels;
    let label = |name: &str| labels.get(name).map(String::as_str);
    assert_eq!((label("a"), label("b")), (Some("service"), Some("task")));
    assert_eq!(label("com.docker.swarm.task.id"), Some(asked.id.as_str()));
    assert_eq!(
        label("com.docker.swarm.task.name"),
        Some(format!("web.3.{}", asked.id).as_str())
    );
    assert_eq!(label("com.docker.swarm.cluster.id"), Some("cluster1"));
    assert_eq!(label("com.docker.swarm.task"), Some(""));
    for name in ["", "switchyard.io/owner", "x.switchyard.io/y", "a\nb"] {
        let mut given = container();
        given.labels.insert(name.into(), String::new());
        let error = refusal(&task(1, given)).to_string();
        assert!(error.starts_with("container.labels: "), "{error}");
    }
}

#[test]
fn ids_that_are_no_parts_of_paths_are_refused() {
    for id in ["", "..", "a/b", "a.b", "ü", &"a".repeat(65)] {
        let asked = swarm::Task {
            id: (*id).to_owned(),
            ..task(1, container())
        };
        assert!(refusal(&asked).to_string().starts_with("id: "), "{id:?}");
    }
}

#[test]
fn only_containers_are_run() {
    let with = |runtime| {
        let mut asked = task(1, container());
        asked.spec.as_mut().unwrap().runtime = runtime;
        refusal(&asked).report()
    };
    let attachment = swarm::NetworkAttachmentSpec::default();
    let text = with(Some(swarm::task_spec::Runtime::Attachment(attachment)));
    assert!(
        text.contains("unsupported runtime \"attachment\""),
        "{text}"
    );
    let generic = swarm::GenericRuntimeSpec::default();
    assert!(with(Some(swarm::task_spec::Runtime::Generic(generic))).contains("\"generic\""));
    assert_eq!(with(None), "spec.runtime: it is missing");
    let mut asked = task(1, container());
    asked.volumes = vec![swarm::VolumeAttachment::default()];
    assert!(
        refusal(&asked)
            .report()
            .starts_with("volumes: volumes of the cluster (CSI)")
    );
    assert_eq!(
        refusal(&swarm::Task {
            spec: None,
            ..task(1, container())
        })
        .report(),
        "spec: it is missing"
    );
}

#[test]
fn hosts_and_resolver_are_those_of_the_service() {
    let dns = swarm::container_spec::DnsConfig {
        nameservers: strings(&["9.9.9.9"]),
        search: strings(&["example.test"]),
        options: strings(&["ndots:2"]),
    };
    let made = planned(swarm::ContainerSpec {
        dns_config: Some(dns.clone()),
        hosts: strings(&["10.0.0.1 db db.local", "host-gateway gw"]),
        ..container()
    });
    let resolver = made.sandbox.dns.unwrap();
    assert_eq!(
        (resolver.servers, resolver.host_defaults),
        (dns.nameservers.clone(), true)
    );
    let hosts = made.sandbox.extra_hosts;
    assert_eq!(
        (hosts[0].ip, hosts[0].names.len()),
        (HostAddress::Ip("10.0.0.1".parse().unwrap()), 2)
    );
    assert_eq!(hosts[1].ip, HostAddress::Gateway);
    let wrong = swarm::container_spec::DnsConfig {
        nameservers: strings(&["dns.test"]),
        ..dns
    };
    invalid(
        swarm::ContainerSpec {
            dns_config: Some(wrong),
            ..container()
        },
        "container.dns_config.nameservers[0]: \"dns.test\" is no IP address",
    );
    invalid(
        swarm::ContainerSpec {
            hosts: strings(&["10.0.0.1"]),
            ..container()
        },
        "container.hosts[0]: \"10.0.0.1\" is not of the form \"address name\"",
    );
}

#[test]
fn log_driver_of_the_task_takes_precedence_and_has_rotation() {
    let driver = |name: &str, options: &[(&str, &str)]| {
        let options = options
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Some(swarm::Driver {
            name: name.to_owned(),
            options,
        })
    };
    let mut asked = task(1, container());
    asked.spec.as_mut().unwrap().log_driver = driver("none", &[]);
    assert_eq!(planned_task(&asked).task.stdio.output, Output::Discard);
    asked.log_driver = driver(
        "json-file",
        &[("max-size", "10m"), ("max-file", "3"), ("tag", "x")],
    );
    assert_eq!(
        planned_task(&asked).rotation,
        LogRotation {
            max_size: Some(10 << 20),
            max_files: 3
        }
    );
    asked.log_driver = driver("local", &[("max-size", "-1")]);
    assert_eq!(planned_task(&asked).rotation.max_size, None);
    asked.log_driver = driver("syslog", &[]);
    assert!(
        refusal(&asked)
            .report()
            .starts_with("log_driver.name: there is no log driver \"syslog\"")
    );
    for (option, value) in [
        ("max-size", "0"),
        ("max-file", "0"),
        ("max-file", "x"),
        ("syslog-address", "y"),
    ] {
        asked.log_driver = driver("json-file", &[(option, value)]);
        assert!(
            refusal(&asked).report().starts_with("log_driver.options["),
            "{option}"
        );
    }
}

#[test]
fn credentials_of_the_service_are_for_its_pull_alone() {
    // {"username":"u","password":"hunter2"}
    let registry_auth = "eyJ1c2VybmFtZSI6InUiLCJwYXNzd29yZCI6Imh1bnRlcjIifQ==";
    let options = Some(swarm::container_spec::PullOptions {
        registry_auth: registry_auth.into(),
    });
    let image = format!("r.test/a:1@sha256:{}", "0".repeat(64));
    let made = planned(swarm::ContainerSpec {
        image,
        pull_options: options,
        ..container()
    });
    assert!(made.image.has_digest && matches!(made.image.credentials, Credentials::Basic { .. }));
    assert!(!format!("{made:?}").contains("hunter2"));
    let options = Some(swarm::container_spec::PullOptions {
        registry_auth: "hunter2!".into(),
    });
    invalid(
        swarm::ContainerSpec {
            pull_options: options,
            ..container()
        },
        "container.pull_options.registry_auth: it is not base64",
    );
}

#[test]
fn templates_know_what_docker_documents() {
    let facts = facts();
    assert_eq!(
        expand_field("{{.Task.Name}}", &facts).unwrap(),
        "web.3.task1"
    );
    let global = swarm::Task {
        slot: 0,
        ..task(1, container())
    };
    assert_eq!(identity(&global, &node()).unwrap().slot, "node1");
}

proptest! {
    #[test]
    fn any_bytes_as_a_task_are_planned_alike_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        any_bytes::check(&bytes);
    }

    #[test]
    fn any_container_is_planned_without_more_access_than_a_container_has(
        words in proptest::collection::vec("[ -~]{0,12}", 12),
        numbers in proptest::collection::vec(-2..4_i64, 6),
    ) {
        let text = |index: usize| words[index].clone();
        let number = |index: usize| i32::try_from(numbers[index]).unwrap();
        let mount = swarm::Mount {
            r#type: number(0),
            source: text(0),
            target: format!("/{}", text(1)),
            tmpfs_options: Some(swarm::mount::TmpfsOptions { options: text(2), ..Default::default() }),
            volume_options: Some(swarm::mount::VolumeOptions { subpath: text(3), ..Default::default() }),
            ..Default::default()
        };
        let given = swarm::ContainerSpec {
            mounts: vec![mount],
            user: text(4),
            dir: format!("/{}", text(5)),
            env: vec![format!("A={}", text(6))],
            hostname: text(7),
            hosts: vec![text(8)],
            stop_signal: text(9),
            pids_limit: numbers[1],
            oom_score_adj: numbers[2],
            capability_add: vec![text(10)],
            ..container()
        };
        any_bytes::check(&task(1, given).encode_to_vec());
    }
}
