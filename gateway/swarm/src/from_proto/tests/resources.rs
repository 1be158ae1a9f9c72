//! Resources, limits, devices and confinement.

use std::sync::Arc;

use swarm::privileges::{AppArmorOpts, SeLinuxContext, SeccompOpts};
use switchyard_core::spec::{AppArmorProfile, MemoryLimit, Reserved, SeccompProfile};

use super::*;

fn amounts(nano_cpus: i64, memory_bytes: i64) -> Option<swarm::Resources> {
    Some(swarm::Resources {
        nano_cpus,
        memory_bytes,
        ..Default::default()
    })
}

/// A task with limits, and with reservations of half a processor and 64 MiB.
fn with_resources(
    limits: Option<swarm::Resources>,
    swap_bytes: Option<i64>,
    memory_swappiness: Option<i64>,
) -> swarm::Task {
    let mut asked = task(1, container());
    let requirements = swarm::ResourceRequirements {
        limits,
        reservations: amounts(500_000_000, 64 << 20),
        swap_bytes,
        memory_swappiness,
    };
    asked.spec.as_mut().unwrap().resources = Some(requirements);
    asked
}

#[test]
fn resources_become_limits_and_reservations() {
    let asked = with_resources(amounts(1_500_000_000, 128 << 20), None, Some(-1));
    let made = planned_task(&asked).task;
    let bytes = |limit: Option<MemoryLimit>| limit.map(MemoryLimit::signed);
    assert_eq!(
        made.resources.cpu_quota_us.map(|quota| quota.signed()),
        Some(150_000)
    );
    assert_eq!(bytes(made.resources.memory_limit_bytes), Some(128 << 20));
    assert_eq!(
        bytes(made.resources.memory_swap_limit_bytes),
        Some(256 << 20)
    );
    assert_eq!(
        bytes(made.resources.memory_reservation_bytes),
        Some(64 << 20)
    );
    assert_eq!(made.resources.memory_swappiness, None);
    assert_eq!(
        made.compute.reserved,
        Reserved {
            cpu_milli: 500,
            memory_bytes: 64 << 20
        }
    );
    for (swap, expected) in [(0, 128 << 20), (1 << 20, 129 << 20), (-1, -1)] {
        let asked = with_resources(amounts(0, 128 << 20), Some(swap), None);
        assert_eq!(
            bytes(planned_task(&asked).task.resources.memory_swap_limit_bytes),
            Some(expected)
        );
    }
}

#[test]
fn malformed_resources_are_refused_by_field() {
    for (limits, swap, swappiness, text) in [
        (
            amounts(-1, 0),
            None,
            None,
            "resources.limits.nano_cpus: -1 is negative",
        ),
        (
            amounts(0, -1),
            None,
            None,
            "resources.limits.memory_bytes: -1 is negative",
        ),
        (
            amounts(0, 0),
            Some(5),
            None,
            "resources.swap_bytes: it needs a limit of memory beside it",
        ),
        (
            amounts(0, 1),
            Some(-2),
            None,
            "resources.swap_bytes: -2 is negative; -1 is for no limit",
        ),
        (
            amounts(0, 0),
            None,
            Some(101),
            "resources.memory_swappiness: 101 is not between 0 and 100",
        ),
    ] {
        let asked = with_resources(limits, swap, swappiness);
        assert_eq!(refusal(&asked).report(), text);
    }
}

#[test]
fn ulimits_and_sysctls_are_checked() {
    let ulimit = |name: &str, soft, hard| swarm::container_spec::Ulimit {
        name: name.into(),
        soft,
        hard,
    };
    let with = |ulimits| swarm::ContainerSpec {
        ulimits,
        ..container()
    };
    let made = planned(with(vec![ulimit("nofile", 1024, -1)])).task.rlimits;
    assert_eq!(
        (made[0].name.as_str(), made[0].soft, made[0].hard),
        ("RLIMIT_NOFILE", 1024, u64::MAX)
    );
    invalid(
        with(vec![ulimit("nofile", -1, 5)]),
        "container.ulimits.nofile: the soft limit of \"-1:5\" is over the hard one",
    );
    invalid(
        with(vec![ulimit("nproc", 1, 1), ulimit("nproc", 2, 2)]),
        "container.ulimits.nproc: it is there twice",
    );
    assert!(
        refusal(&task(1, with(vec![ulimit("x", 1, 1)])))
            .report()
            .contains("there is no such limit")
    );
    let sysctl = |name: &str| {
        let sysctls = [(name.to_owned(), "1".to_owned())].into();
        swarm::ContainerSpec {
            sysctls,
            ..container()
        }
    };
    assert_eq!(
        planned(sysctl("net.core.somaxconn")).sandbox.sysctls["net.core.somaxconn"],
        "1"
    );
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
            seccomp: Some(SeccompOpts {
                mode: 1,
                profile: Vec::new(),
            }),
            apparmor: Some(AppArmorOpts { mode: 1 }),
            selinux_context: Some(SeLinuxContext {
                disable: true,
                ..Default::default()
            }),
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
    let with = |privileges| swarm::ContainerSpec {
        privileges: Some(privileges),
        ..container()
    };
    let custom = SeccompOpts {
        mode: 2,
        profile: b"{}".to_vec(),
    };
    unsupported(
        with(swarm::Privileges {
            seccomp: Some(custom),
            ..Default::default()
        }),
        "container.privileges.seccomp: custom profiles",
    );
    unsupported(
        with(swarm::Privileges {
            credential_spec: Some(Default::default()),
            ..Default::default()
        }),
        "container.privileges.credential_spec: it is for Windows",
    );
    let label = SeLinuxContext {
        r#type: "a\"b".into(),
        ..Default::default()
    };
    let error = refusal(&task(
        1,
        with(swarm::Privileges {
            selinux_context: Some(label),
            ..Default::default()
        }),
    ));
    assert!(
        error
            .to_string()
            .starts_with("container.privileges.selinux_context.type: "),
        "{error}"
    );
    invalid(
        swarm::ContainerSpec {
            capability_add: strings(&["CAP_FLY"]),
            ..container()
        },
        "container.capability_add[0]: \"FLY\" is no capability of Linux",
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
    let env: Vec<_> = env
        .iter()
        .map(|variable| (variable.name.as_str(), variable.value.as_slice()))
        .collect();
    assert_eq!(env, [("DOCKER_RESOURCE_GPU", &b"GPU-1,GPU-0"[..])]);
    asked.assigned_generic_resources = vec![named("GPU-1"); 1025];
    assert!(refusal(&asked).to_string().contains("may have 1024"));
}

#[test]
fn devices_are_named_in_one_label_and_only_those_that_the_node_allows() {
    let names = ["acme.com/tpu=a", "acme.com/tpu=b"].map(str::to_owned);
    let allowed_devices = Arc::new(names.clone().into());
    let allowing = PlanContext {
        allowed_devices,
        ..node()
    };
    let planned = |label: &str, value: &str| {
        let labels = [(label.to_owned(), value.to_owned())].into();
        let asked = task(
            1,
            swarm::ContainerSpec {
                labels,
                ..container()
            },
        );
        plan(&asked, &allowing, &Dependencies::default())
    };
    let made = planned(
        "switchyard.io/device",
        "acme.com/tpu=b, acme.com/tpu=a,acme.com/tpu=b",
    )
    .unwrap();
    assert_eq!(made.task.cdi_devices, [names[1].as_str(), &names[0]]);
    assert!(
        made.task
            .meta
            .labels
            .keys()
            .all(|name| !name.contains("switchyard.io"))
    );
    for value in [
        "",
        "acme.com/tpu=c",
        "acme.com/tpu=a,",
        "/dev/null",
        "acme.com/tpu=*",
    ] {
        let error = planned("switchyard.io/device", value)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("container.labels[\"switchyard.io/device\"]: "),
            "{error}"
        );
    }
    let many = ["acme.com/tpu=a"; 5000].join(",");
    assert_eq!(
        planned("switchyard.io/device", &many)
            .unwrap()
            .task
            .cdi_devices
            .len(),
        1
    );
    let error = planned("switchyard.io/devices", "acme.com/tpu=a")
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("container.labels: "), "{error}");
}
