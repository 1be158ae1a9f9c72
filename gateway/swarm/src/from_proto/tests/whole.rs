//! Processes, users, names, resources and confinement.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use prost::Message;
use prost_types::Duration as WireDuration;
use swarm::privileges::{AppArmorOpts, SeLinuxContext, SeccompOpts};
use switchyard_core::image::Credentials;
use switchyard_core::spec::{
    AppArmorProfile, HostAddress, MemoryLimit, Output, Reserved, SandboxNetwork, SeccompProfile,
};

use super::*;
use crate::plan::{HealthCheck, HealthCommand, LogRotation};
use crate::template::any_bytes::facts;
use crate::template::expand_field;

#[test]
fn plain_task_has_dockers_defaults() {
    let made = planned(container());
    let id = crate::sample_tasks::task_id(1);
    assert_eq!((made.task.meta.name.as_str(), made.task.meta.owner), (id.as_str(), Owner::Swarm));
    assert_eq!(made.sandbox.hostname, id[..12]);
    assert!(matches!(made.sandbox.network, SandboxNetwork::Pod(_)));
    assert_eq!(made.sandbox.sysctls["net.ipv4.ip_unprivileged_port_start"], "0");
    assert_eq!(made.stop_grace, Duration::from_secs(10));
    assert_eq!(made.rotation, LogRotation { max_size: Some(20 << 20), max_files: 5 });
    assert_eq!(made.health, HealthCheck::default());
    assert_eq!(made.task.stdio.output, Output::Log(node().log_dir.join(&id).join("output.log")));
    let security = &made.task.security;
    assert_eq!((security.seccomp.clone(), security.apparmor.clone()), (SeccompProfile::RuntimeDefault, None));
    assert!(security.capabilities.add.contains(&"NET_RAW".to_owned()) && !security.privileged);
    assert!(!security.masked_paths.is_empty() && !security.readonly_paths.is_empty());
    assert_eq!(made.task.resources.oom_score_adj.map(|score| score.get()), Some(0));
}

#[test]
fn labels_of_docker_override_those_of_task_and_service() {
    let mut given = container();
    for (name, value) in [("a", "service"), ("b", "service"), ("com.docker.swarm.task.id", "forged")] {
        given.labels.insert(name.into(), value.into());
    }
    let mut asked = task(1, given);
    let labels = [("b".to_owned(), "task".to_owned())].into();
    asked.annotations = Some(swarm::Annotations { labels, ..Default::default() });
    let labels = planned_task(&asked).task.meta.labels;
    let label = |name: &str| labels.get(name).map(String::as_str);
    assert_eq!((label("a"), label("b")), (Some("service"), Some("task")));
    assert_eq!(label("com.docker.swarm.task.id"), Some(asked.id.as_str()));
    assert_eq!(label("com.docker.swarm.task.name"), Some(format!("web.3.{}", asked.id).as_str()));
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
fn process_is_that_of_the_service() {
    let made = planned(swarm::ContainerSpec {
        command: strings(&["/bin/sh"]),
        args: strings(&["-c", "x"]),
        env: strings(&[
            "B",
            "SLOT={{.Task.Slot}}",
            "EMPTY=",
            "A=old",
            "C=old",
            "A=b=c",
            "B=set",
            "C",
            "PATH",
        ]),
        dir: "/srv/../data".into(),
        user: "app:staff".into(),
        groups: strings(&["audio", "7"]),
        hostname: "{{.Service.Name}}-{{.Task.Slot}}".into(),
        tty: true,
        open_stdin: true,
        init: Some(true),
        read_only: true,
        stop_signal: "SIGQUIT".into(),
        stop_grace_period: Some(WireDuration { seconds: 1, nanos: 500_000_000 }),
        oom_score_adj: 500,
        pids_limit: 100,
        ..container()
    });
    let env: Vec<(String, String)> = made
        .task
        .env
        .iter()
        .map(|variable| (variable.name.clone(), String::from_utf8(variable.value.clone()).unwrap()))
        .collect();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    // The last entry of a name holds, and one without a value removes the image's variable.
    assert_eq!(env, [pair("SLOT", "3"), pair("EMPTY", ""), pair("A", "b=c"), pair("B", "set")]);
    assert_eq!(made.task.unset_env, ["PATH", "C"]);
    assert_eq!((made.task.command, made.task.args), (strings(&["/bin/sh"]), strings(&["-c", "x"])));
    assert_eq!(made.task.cwd.unwrap().to_str(), Some("/data"));
    assert_eq!(made.task.user.user, Some(UserRef::Name("app:staff".into())));
    assert_eq!(made.task.user.named, strings(&["audio", "7"]));
    assert_eq!(made.sandbox.hostname, "web-3");
    assert_eq!(made.task.stop_signal.map(Signal::number), Some(3));
    assert_eq!(made.stop_grace, Duration::from_millis(1500));
    assert!(made.task.init && made.task.security.readonly_rootfs && made.task.stdio.tty);
    assert_eq!(made.task.stdio.stdin, Stdin::Open);
    assert_eq!(made.task.resources.pids_limit.map(|limit| limit.signed()), Some(100));
}

#[test]
fn malformed_process_is_refused_by_field() {
    let given = container;
    invalid(
        swarm::ContainerSpec { image: "a b".into(), ..given() },
        "container.image: \"a b\" names no image",
    );
    invalid(
        swarm::ContainerSpec { dir: "srv".into(), ..given() },
        "container.dir: \"srv\" is not an absolute path",
    );
    invalid(
        swarm::ContainerSpec { user: "a b".into(), ..given() },
        "container.user: \"a b\" is not a user's name",
    );
    invalid(
        swarm::ContainerSpec { groups: strings(&["a:b"]), ..given() },
        "container.groups[0]: \"a:b\" is not a group's name or number",
    );
    invalid(
        swarm::ContainerSpec { args: strings(&["x", "a\0"]), ..given() },
        "container.args[1]: it contains a NUL byte",
    );
    invalid(
        swarm::ContainerSpec { stop_signal: "SIGNONE".into(), ..given() },
        "container.stop_signal: \"SIGNONE\" is no signal",
    );
    invalid(
        swarm::ContainerSpec { hostname: "-x".into(), ..given() },
        "container.hostname: \"-x\" is no host name",
    );
    let negative = Some(WireDuration { seconds: -1, nanos: 0 });
    invalid(
        swarm::ContainerSpec { stop_grace_period: negative, ..given() },
        "container.stop_grace_period: -1 s and 0 ns are no duration",
    );
    invalid(
        swarm::ContainerSpec { env: strings(&["A={{.Node.Foo}}"]), ..given() },
        "container.env[0]: it cannot be expanded: template, byte 2: there is no such field: \"Foo\"",
    );
    invalid(
        swarm::ContainerSpec { env: strings(&["A=b", ""]), ..given() },
        "container.env: \"\" is not a variable's name",
    );
    invalid(
        swarm::ContainerSpec { oom_score_adj: 1001, ..given() },
        "container.oom_score_adj: 1001 is not between -1000 and 1000",
    );
    unsupported(swarm::ContainerSpec { isolation: 2, ..given() }, "container.isolation: it is for Windows");
}

#[test]
fn error_of_a_variable_does_not_show_its_value() {
    let error = refusal(&task(1, swarm::ContainerSpec { env: strings(&["A=hunter2\0"]), ..container() }));
    assert_eq!(error.report(), "container.env[\"A\"]: it contains a NUL byte");
}

#[test]
fn ids_that_are_no_parts_of_paths_are_refused() {
    for id in ["", "..", "a/b", "a.b", "ü", &"a".repeat(65)] {
        let asked = swarm::Task { id: (*id).to_owned(), ..task(1, container()) };
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
    assert!(text.contains("unsupported runtime \"attachment\""), "{text}");
    let generic = swarm::GenericRuntimeSpec::default();
    assert!(with(Some(swarm::task_spec::Runtime::Generic(generic))).contains("\"generic\""));
    assert_eq!(with(None), "spec.runtime: it is missing");
    let mut asked = task(1, container());
    asked.volumes = vec![swarm::VolumeAttachment::default()];
    assert!(refusal(&asked).report().starts_with("volumes: volumes of the cluster (CSI)"));
    assert_eq!(refusal(&swarm::Task { spec: None, ..task(1, container()) }).report(), "spec: it is missing");
}

#[test]
fn resources_become_limits_and_reservations() {
    let mut asked = task(1, container());
    let amounts =
        |nano_cpus, memory_bytes| Some(swarm::Resources { nano_cpus, memory_bytes, ..Default::default() });
    let set = |asked: &mut swarm::Task, resources| asked.spec.as_mut().unwrap().resources = Some(resources);
    let of = |limits, swap_bytes, memory_swappiness| swarm::ResourceRequirements {
        limits,
        reservations: amounts(500_000_000, 64 << 20),
        swap_bytes,
        memory_swappiness,
    };
    set(&mut asked, of(amounts(1_500_000_000, 128 << 20), None, Some(-1)));
    let made = planned_task(&asked).task;
    let bytes = |limit: Option<MemoryLimit>| limit.map(MemoryLimit::signed);
    assert_eq!(made.resources.cpu_quota_us.map(|quota| quota.signed()), Some(150_000));
    assert_eq!(bytes(made.resources.memory_limit_bytes), Some(128 << 20));
    assert_eq!(bytes(made.resources.memory_swap_limit_bytes), Some(256 << 20));
    assert_eq!(bytes(made.resources.memory_reservation_bytes), Some(64 << 20));
    assert_eq!(made.resources.memory_swappiness, None);
    assert_eq!(made.compute.reserved, Reserved { cpu_milli: 500, memory_bytes: 64 << 20 });
    for (swap, expected) in [(0, 128 << 20), (1 << 20, 129 << 20), (-1, -1)] {
        set(&mut asked, of(amounts(0, 128 << 20), Some(swap), None));
        assert_eq!(bytes(planned_task(&asked).task.resources.memory_swap_limit_bytes), Some(expected));
    }
    for (limits, swap, swappiness, text) in [
        (amounts(-1, 0), None, None, "resources.limits.nano_cpus: -1 is negative"),
        (amounts(0, -1), None, None, "resources.limits.memory_bytes: -1 is negative"),
        (amounts(0, 0), Some(5), None, "resources.swap_bytes: it needs a limit of memory beside it"),
        (amounts(0, 1), Some(-2), None, "resources.swap_bytes: -2 is negative; -1 is for no limit"),
        (amounts(0, 0), None, Some(101), "resources.memory_swappiness: 101 is not between 0 and 100"),
    ] {
        set(&mut asked, of(limits, swap, swappiness));
        assert_eq!(refusal(&asked).report(), text);
    }
}

#[test]
fn ulimits_and_sysctls_are_checked() {
    let ulimit = |name: &str, soft, hard| swarm::container_spec::Ulimit { name: name.into(), soft, hard };
    let with = |ulimits| swarm::ContainerSpec { ulimits, ..container() };
    let made = planned(with(vec![ulimit("nofile", 1024, -1)])).task.rlimits;
    assert_eq!((made[0].name.as_str(), made[0].soft, made[0].hard), ("RLIMIT_NOFILE", 1024, u64::MAX));
    invalid(
        with(vec![ulimit("nofile", -1, 5)]),
        "container.ulimits.nofile: the soft limit of \"-1:5\" is over the hard one",
    );
    invalid(
        with(vec![ulimit("nproc", 1, 1), ulimit("nproc", 2, 2)]),
        "container.ulimits.nproc: it is there twice",
    );
    assert!(refusal(&task(1, with(vec![ulimit("x", 1, 1)]))).report().contains("there is no such limit"));
    let sysctl = |name: &str| {
        let sysctls = [(name.to_owned(), "1".to_owned())].into();
        swarm::ContainerSpec { sysctls, ..container() }
    };
    assert_eq!(planned(sysctl("net.core.somaxconn")).sandbox.sysctls["net.core.somaxconn"], "1");
    invalid(
        sysctl("vm.swappiness"),
        "container.sysctls.vm.swappiness: it belongs to the whole node, not to a namespace of the task",
    );
}

#[test]
fn capabilities_and_privileges_are_dockers() {
    let made = planned(swarm::ContainerSpec {
        capability_add: strings(&["CAP_NET_ADMIN"]),
        capability_drop: strings(&["ALL"]),
        privileges: Some(swarm::Privileges {
            no_new_privileges: true,
            seccomp: Some(SeccompOpts { mode: 1, profile: Vec::new() }),
            apparmor: Some(AppArmorOpts { mode: 1 }),
            selinux_context: Some(SeLinuxContext { disable: true, ..Default::default() }),
            ..Default::default()
        }),
        ..container()
    });
    let security = made.task.security;
    assert_eq!(security.capabilities.add, strings(&["NET_ADMIN"]));
    assert_eq!(security.capabilities.drop, strings(&["ALL"]));
    assert!(security.no_new_privileges);
    assert_eq!(security.seccomp, SeccompProfile::Unconfined);
    assert_eq!(security.apparmor, Some(AppArmorProfile::Unconfined));
    assert_eq!(made.sandbox.selinux.unwrap().type_, "spc_t");
    let with = |privileges| swarm::ContainerSpec { privileges: Some(privileges), ..container() };
    let custom = SeccompOpts { mode: 2, profile: b"{}".to_vec() };
    unsupported(
        with(swarm::Privileges { seccomp: Some(custom), ..Default::default() }),
        "container.privileges.seccomp: custom profiles",
    );
    unsupported(
        with(swarm::Privileges { credential_spec: Some(Default::default()), ..Default::default() }),
        "container.privileges.credential_spec: it is for Windows",
    );
    let label = SeLinuxContext { r#type: "a\"b".into(), ..Default::default() };
    let error =
        refusal(&task(1, with(swarm::Privileges { selinux_context: Some(label), ..Default::default() })));
    assert!(error.to_string().starts_with("container.privileges.selinux_context.type: "), "{error}");
    invalid(
        swarm::ContainerSpec { capability_add: strings(&["CAP_FLY"]), ..container() },
        "container.capability_add: \"FLY\" is no capability of Linux",
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
    assert_eq!((resolver.servers, resolver.host_defaults), (dns.nameservers.clone(), true));
    let hosts = made.sandbox.extra_hosts;
    assert_eq!((hosts[0].ip, hosts[0].names.len()), (HostAddress::Ip("10.0.0.1".parse().unwrap()), 2));
    assert_eq!(hosts[1].ip, HostAddress::Gateway);
    let wrong = swarm::container_spec::DnsConfig { nameservers: strings(&["dns.test"]), ..dns };
    invalid(
        swarm::ContainerSpec { dns_config: Some(wrong), ..container() },
        "container.dns_config.nameservers[0]: \"dns.test\" is no IP address",
    );
    invalid(
        swarm::ContainerSpec { hosts: strings(&["10.0.0.1"]), ..container() },
        "container.hosts[0]: \"10.0.0.1\" is not of the form \"address name\"",
    );
}

#[test]
fn health_check_is_kept_as_asked_for() {
    let with = |test: &[&str]| swarm::ContainerSpec {
        healthcheck: Some(swarm::HealthConfig {
            test: strings(test),
            interval: Some(WireDuration { seconds: 5, nanos: 0 }),
            timeout: Some(WireDuration::default()),
            retries: 2,
            ..Default::default()
        }),
        ..container()
    };
    let health = planned(with(&["CMD", "curl", "x"])).health;
    assert_eq!(health.command, HealthCommand::Exec(strings(&["curl", "x"])));
    assert_eq!(
        (health.interval, health.timeout, health.retries),
        (Some(Duration::from_secs(5)), None, Some(2))
    );
    assert_eq!(planned(with(&["CMD-SHELL", "a | b"])).health.command, HealthCommand::Shell("a | b".into()));
    assert_eq!(planned(with(&["NONE"])).health.command, HealthCommand::None);
    assert_eq!(planned(with(&[])).health.command, HealthCommand::Image);
    for wrong in [&["CMD"][..], &["curl"], &["NONE", "x"], &["CMD-SHELL", "a", "b"]] {
        let error = refusal(&task(1, with(wrong))).to_string();
        assert!(error.starts_with("container.healthcheck.test: "), "{error}");
    }
    // Docker's shortest time: without a pause, checks would follow each other as fast as the node can run them.
    let short = Some(WireDuration { seconds: 0, nanos: 999_999 });
    let hasty = swarm::HealthConfig { interval: short, ..Default::default() };
    let error =
        refusal(&task(1, swarm::ContainerSpec { healthcheck: Some(hasty), ..container() })).to_string();
    assert!(error.starts_with("container.healthcheck.interval: 999.999µs is less than 1ms"), "{error}");
}

#[test]
fn log_driver_of_the_task_takes_precedence_and_has_rotation() {
    let driver = |name: &str, options: &[(&str, &str)]| {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Some(swarm::Driver { name: name.to_owned(), options })
    };
    let mut asked = task(1, container());
    asked.spec.as_mut().unwrap().log_driver = driver("none", &[]);
    assert_eq!(planned_task(&asked).task.stdio.output, Output::Discard);
    asked.log_driver = driver("json-file", &[("max-size", "10m"), ("max-file", "3"), ("tag", "x")]);
    assert_eq!(planned_task(&asked).rotation, LogRotation { max_size: Some(10 << 20), max_files: 3 });
    asked.log_driver = driver("local", &[("max-size", "-1")]);
    assert_eq!(planned_task(&asked).rotation.max_size, None);
    asked.log_driver = driver("syslog", &[]);
    assert!(refusal(&asked).report().starts_with("log_driver.name: there is no log driver \"syslog\""));
    for (option, value) in [("max-size", "0"), ("max-file", "0"), ("max-file", "x"), ("syslog-address", "y")]
    {
        asked.log_driver = driver("json-file", &[(option, value)]);
        assert!(refusal(&asked).report().starts_with("log_driver.options["), "{option}");
    }
}

#[test]
fn credentials_of_the_service_are_for_its_pull_alone() {
    // {"username":"u","password":"hunter2"}
    let registry_auth = "eyJ1c2VybmFtZSI6InUiLCJwYXNzd29yZCI6Imh1bnRlcjIifQ==";
    let options = Some(swarm::container_spec::PullOptions { registry_auth: registry_auth.into() });
    let image = format!("r.test/a:1@sha256:{}", "0".repeat(64));
    let made = planned(swarm::ContainerSpec { image, pull_options: options, ..container() });
    assert!(made.image.has_digest && matches!(made.image.credentials, Credentials::Basic { .. }));
    assert!(!format!("{made:?}").contains("hunter2"));
    let options = Some(swarm::container_spec::PullOptions { registry_auth: "hunter2!".into() });
    invalid(
        swarm::ContainerSpec { pull_options: options, ..container() },
        "container.pull_options.registry_auth: it is not base64",
    );
}

#[test]
fn generic_resources_become_dockers_variables() {
    use swarm::generic_resource::Resource;
    let named = |value: &str| swarm::GenericResource {
        resource: Some(Resource::NamedResourceSpec(swarm::NamedGenericResource {
            kind: "gpu".into(),
            value: value.into(),
        })),
    };
    let mut asked = task(1, container());
    asked.assigned_generic_resources = vec![named("GPU-1"), named("GPU-0")];
    let env = planned_task(&asked).task.env;
    let env: Vec<_> =
        env.iter().map(|variable| (variable.name.as_str(), variable.value.as_slice())).collect();
    assert_eq!(env, [("DOCKER_RESOURCE_GPU", &b"GPU-1,GPU-0"[..])]);
    asked.assigned_generic_resources = vec![named("GPU-1"); 1025];
    assert!(refusal(&asked).to_string().contains("may have 1024"));
}

#[test]
fn devices_are_named_in_one_label_and_only_those_that_the_node_allows() {
    let names = ["acme.com/tpu=a", "acme.com/tpu=b"].map(str::to_owned);
    let allowed_devices = Arc::new(names.clone().into());
    let allowing = PlanContext { allowed_devices, ..node() };
    let planned = |label: &str, value: &str| {
        let labels = [(label.to_owned(), value.to_owned())].into();
        let asked = task(1, swarm::ContainerSpec { labels, ..container() });
        plan(&asked, &allowing, &Dependencies::default())
    };
    let made = planned("switchyard.io/device", "acme.com/tpu=b, acme.com/tpu=a,acme.com/tpu=b").unwrap();
    assert_eq!(made.task.cdi_devices, [names[1].as_str(), &names[0]]);
    assert!(made.task.meta.labels.keys().all(|name| !name.contains("switchyard.io")));
    for value in ["", "acme.com/tpu=c", "acme.com/tpu=a,", "/dev/null", "acme.com/tpu=*"] {
        let error = planned("switchyard.io/device", value).unwrap_err().to_string();
        assert!(error.starts_with("container.labels[\"switchyard.io/device\"]: "), "{error}");
    }
    let many = ["acme.com/tpu=a"; 5000].join(",");
    assert_eq!(planned("switchyard.io/device", &many).unwrap().task.cdi_devices.len(), 1);
    let error = planned("switchyard.io/devices", "acme.com/tpu=a").unwrap_err().to_string();
    assert!(error.starts_with("container.labels: "), "{error}");
}

#[test]
fn templates_know_what_docker_documents() {
    let facts = facts();
    assert_eq!(expand_field("{{.Task.Name}}", &facts).unwrap(), "web.3.task1");
    let global = swarm::Task { slot: 0, ..task(1, container()) };
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
