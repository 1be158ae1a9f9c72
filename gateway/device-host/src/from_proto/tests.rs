//! Tests of which messages of plugins are accepted, and which are not.

use switchyard_core::ErrorKind;

use super::*;

const GPU: &str = "acme.com/gpu";

fn request(version: &str, resource: &str, endpoint: &str) -> v1beta1::RegisterRequest {
    v1beta1::RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    }
}

fn device(id: &str, health: &str, nodes: &[i64]) -> v1beta1::Device {
    let nodes = nodes
        .iter()
        .map(|id| v1beta1::NumaNode { id: *id })
        .collect();
    v1beta1::Device {
        id: id.to_owned(),
        health: health.to_owned(),
        topology: Some(v1beta1::TopologyInfo { nodes }),
    }
}

fn list(devices: Vec<v1beta1::Device>) -> ListedDevices {
    listed(GPU, v1beta1::ListAndWatchResponse { devices })
}

fn answer(
    change: impl FnOnce(&mut v1beta1::ContainerAllocateResponse),
) -> v1beta1::AllocateResponse {
    let mut one = v1beta1::ContainerAllocateResponse::default();
    change(&mut one);
    v1beta1::AllocateResponse {
        container_responses: vec![one],
    }
}

#[test]
fn registration_needs_a_resource_and_a_socket_in_the_directory() {
    let taken = registration(request("v1beta1", GPU, "gpu-1.sock")).unwrap();
    assert_eq!((&*taken.resource, &*taken.endpoint), (GPU, "gpu-1.sock"));
    let refused = [
        (
            request("v1alpha", GPU, "gpu.sock"),
            "version: \"v1alpha\" is not supported",
        ),
        (
            request("v1beta1", "gpu", "gpu.sock"),
            "resource_name: \"gpu\"",
        ),
        (
            request("v1beta1", "kubernetes.io/gpu", "gpu.sock"),
            "resource_name",
        ),
        (request("v1beta1", &"x".repeat(100_000), "gpu.sock"), "…"),
        (request("v1beta1", GPU, ""), "endpoint"),
        (request("v1beta1", GPU, "."), "endpoint"),
        (request("v1beta1", GPU, ".."), "endpoint"),
        (request("v1beta1", GPU, "../gpu.sock"), "endpoint"),
        (request("v1beta1", GPU, "a/gpu.sock"), "endpoint"),
        (request("v1beta1", GPU, "gpu.sock/"), "endpoint"),
        (request("v1beta1", GPU, "/run/gpu.sock"), "endpoint"),
        (request("v1beta1", GPU, "kubelet.sock"), "endpoint"),
        (request("v1beta1", GPU, "gpu\0.sock"), "endpoint"),
        (request("v1beta1", GPU, &"x".repeat(256)), "endpoint"),
    ];
    for (request, text) in refused {
        let error = registration(request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.report().contains(text) && error.report().len() < 400,
            "{error}"
        );
    }
}

#[test]
fn device_list_has_health_and_numa_nodes() {
    let listed = list(vec![
        device("device-number-2", "Unhealthy", &[]),
        device("device-number-1", "Healthy", &[3, 1, -1]),
        device("device-number-3", "on fire", &[-1]),
    ]);
    let seen: Vec<_> = listed
        .devices
        .iter()
        .map(|device| {
            (
                &*device.id,
                device.health == Health::Healthy,
                device.numa_node,
            )
        })
        .collect();
    let expected = [
        ("device-number-1", true, Some(1)),
        ("device-number-2", false, None),
        ("device-number-3", false, None),
    ];
    assert_eq!(seen, expected);
    assert_eq!(listed.left_out, None);
}

#[test]
fn invalid_device_list_entries_are_skipped() {
    let listed = list(vec![
        device("0", "Healthy", &[]),
        device("", "Healthy", &[]),
        device(&"x".repeat(10_000), "Healthy", &[]),
        device("0", "Unhealthy", &[]),
    ]);
    let [one] = &listed.devices[..] else {
        panic!("{:?}", listed.devices)
    };
    assert_eq!(listed.vendors, [(one.id.clone(), "0".to_owned())].into());
    assert_ne!(one.health, Health::Healthy, "it is listed as unwell once");
    let (count, why) = listed.left_out.unwrap();
    assert_eq!(count, 3);
    assert!(why.contains("1 to 512 bytes"), "{why}");
}

#[test]
fn device_list_is_limited_in_length() {
    let listed = list(
        (0..10_000)
            .map(|number| device(&format!("{number}"), "Healthy", &[]))
            .collect(),
    );
    assert_eq!(
        (listed.devices.len(), listed.vendors.len()),
        (DEVICES_MAX, DEVICES_MAX)
    );
    assert_eq!(listed.left_out.unwrap().0, 10_000 - DEVICES_MAX);
}

#[test]
fn allocate_response_translates_to_container_edits() {
    let given = allocated(answer(|answer| {
        answer.envs.insert("GPU".to_owned(), "0".to_owned());
        answer.mounts.push(v1beta1::Mount {
            container_path: "/usr/lib/acme/".to_owned(),
            host_path: "/opt/acme/lib".to_owned(),
            read_only: true,
        });
        answer.devices.push(v1beta1::DeviceSpec {
            container_path: "/dev/gpu0".to_owned(),
            host_path: "/dev/acme/0".to_owned(),
            permissions: "mrw".to_owned(),
        });
        answer.annotations.insert(
            "cdi.k8s.io/acme_0".to_owned(),
            "acme.com/gpu=0, acme.com/gpu=1".to_owned(),
        );
        answer
            .annotations
            .insert("acme.com/note".to_owned(), "anything".to_owned());
        answer.cdi_devices.push(v1beta1::CdiDevice {
            name: "acme.com/gpu=0".to_owned(),
        });
    }))
    .unwrap();
    assert_eq!(given.env, [("GPU".to_owned(), "0".to_owned())].into());
    let [node] = &given.nodes[..] else {
        panic!("{given:?}")
    };
    assert_eq!(
        (node.host_path.as_path(), node.container_path.as_path()),
        ("/dev/acme/0".as_ref(), "/dev/gpu0".as_ref())
    );
    assert_eq!(node.permissions, "mrw");
    let [mount] = &given.mounts[..] else {
        panic!("{given:?}")
    };
    assert_eq!(
        (mount.destination.to_str(), mount.readonly),
        (Some("/usr/lib/acme"), true)
    );
    let MountSource::Host {
        path,
        missing: MissingSource::Fail,
    } = &mount.source
    else {
        panic!("{mount:?}")
    };
    assert_eq!(path, Path::new("/opt/acme/lib"));
    assert_eq!(given.cdi, ["acme.com/gpu=0", "acme.com/gpu=1"]);
}

#[track_caller]
fn check_refused(field: &str, change: impl FnOnce(&mut v1beta1::ContainerAllocateResponse)) {
    let error = allocated(answer(change)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert!(
        error.to_string().starts_with(field) && error.to_string().len() < 400,
        "{error}"
    );
}

#[test]
fn what_a_node_leaves_out_has_a_default() {
    for (inside, permissions, expected) in [
        ("/dev/gpu0", "", ("/dev/gpu0", "rw")),
        ("", "", ("/dev/acme/0", "rw")),
        ("", "r", ("/dev/acme/0", "r")),
        ("/dev/gpu0", "m", ("/dev/gpu0", "m")),
        ("/dev/gpu0", "rwm", ("/dev/gpu0", "rwm")),
    ] {
        let answer = answer(|answer| {
            answer.devices.push(v1beta1::DeviceSpec {
                container_path: inside.to_owned(),
                host_path: "/dev/acme/0".to_owned(),
                permissions: permissions.to_owned(),
            });
        });
        let given = allocated(answer).unwrap();
        let node = &given.nodes[0];
        assert_eq!(node.host_path, Path::new("/dev/acme/0"));
        assert_eq!(
            (node.container_path.as_path(), node.permissions.as_str()),
            (Path::new(expected.0), expected.1)
        );
    }
}

fn mount(host: &str, inside: &str) -> v1beta1::Mount {
    v1beta1::Mount {
        container_path: inside.to_owned(),
        host_path: host.to_owned(),
        read_only: false,
    }
}

#[test]
fn allocate_response_with_bad_paths_or_permissions_is_rejected() {
    let node = |host: &str, inside: &str, permissions: &str| v1beta1::DeviceSpec {
        container_path: inside.to_owned(),
        host_path: host.to_owned(),
        permissions: permissions.to_owned(),
    };
    for bad in [
        "",
        "opt",
        "/opt/../etc",
        "/a\0b",
        &format!("/{}", "x".repeat(5000)),
    ] {
        check_refused("mounts.host_path", |answer| {
            answer.mounts.push(mount(bad, "/opt"))
        });
        check_refused("mounts.container_path", |answer| {
            answer.mounts.push(mount("/opt", bad))
        });
        check_refused("devices.host_path", |answer| {
            answer.devices.push(node(bad, "/dev/a", "rw"))
        });
        if bad.is_empty() {
            // The path of the host is used.
            continue;
        }
        check_refused("devices.container_path", |answer| {
            answer.devices.push(node("/dev/a", bad, "rw"))
        });
    }
    check_refused("devices.host_path", |answer| {
        answer.devices.push(node("", "", "rw"))
    });
    check_refused("mounts.container_path", |answer| {
        answer.mounts.push(mount("/opt", "/"))
    });
    for bad in ["x", "rwx", "rr", "rwmrwm", "RW"] {
        check_refused("devices.permissions", |answer| {
            answer.devices.push(node("/dev/a", "/dev/a", bad))
        });
    }
}

#[test]
fn allocate_response_with_bad_names_or_size_is_rejected() {
    for bad in ["", "A=B", "A B", "A\0", "Ä", &"X".repeat(300)] {
        check_refused("envs", |answer| {
            drop(answer.envs.insert(bad.to_owned(), String::new()))
        });
    }
    check_refused("envs", |answer| {
        drop(answer.envs.insert("A".to_owned(), "a\0b".to_owned()))
    });
    check_refused("envs", |answer| {
        drop(answer.envs.insert("A".to_owned(), "x".repeat(200_000)))
    });
    check_refused("mounts", |answer| {
        answer.mounts = vec![mount("/opt", "/opt"); 257]
    });
    for bad in [
        "",
        "gpu",
        "acme.com/gpu",
        "=0",
        "acme.com/=0",
        "acme.com/gpu=",
        "acme.com/gpu=a b",
    ] {
        check_refused("cdi_devices", |answer| {
            answer.cdi_devices.push(v1beta1::CdiDevice {
                name: bad.to_owned(),
            })
        });
    }
    for count in [0, 2, 1000] {
        let container_responses = vec![v1beta1::ContainerAllocateResponse::default(); count];
        let error = allocated(v1beta1::AllocateResponse {
            container_responses,
        })
        .unwrap_err();
        assert!(
            error.to_string().starts_with("container_responses: "),
            "{error}"
        );
    }
}

#[test]
fn preference_for_other_devices_is_ignored() {
    let [zero, one, two] = ["zero", "one", "two"].map(|id| SlotId::new(id).unwrap());
    let ours: BTreeMap<&str, &SlotId> = [("0", &zero), ("1", &one), ("2", &two)].into();
    let must: BTreeSet<SlotId> = [one.clone()].into();
    let preferred = |ids: &[&str]| {
        let device_i_ds = ids.iter().map(|id| (*id).to_owned()).collect();
        let one = v1beta1::ContainerPreferredAllocationResponse { device_i_ds };
        preferred(
            v1beta1::PreferredAllocationResponse {
                container_responses: vec![one],
            },
            &ours,
            &must,
            2,
        )
    };
    assert_eq!(preferred(&["2", "1"]), Some(vec![one.clone(), two.clone()]));
    for wrong in [
        &["0", "2"][..],
        &["1"],
        &["1", "1"],
        &["0", "1", "2"],
        &["1", "7"],
        &[],
    ] {
        assert_eq!(preferred(wrong), None, "{wrong:?}");
    }
}
