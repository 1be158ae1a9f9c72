//! Image volumes, user namespaces, CDI devices.

use switchyard_core::Reason;
use switchyard_core::spec::{IdMap, IdRange, SandboxNetwork, UserNamespace};

use super::*;

/// A user namespace whose root is the host's uid `host`.
pub(super) fn users(host: u32) -> cri::UserNamespace {
    let map = vec![cri::IdMapping {
        host_id: host,
        container_id: 0,
        length: 65_536,
    }];
    cri::UserNamespace {
        mode: cri::NamespaceMode::Pod.into(),
        uids: map.clone(),
        gids: map,
    }
}

fn mapped_pod() -> cri::PodSandboxConfig {
    let mut config = pod();
    let options = pod_context(&mut config)
        .namespace_options
        .get_or_insert_default();
    options.userns_options = Some(users(100_000));
    config
}

fn volume(change: impl FnOnce(&mut cri::Mount)) -> cri::ContainerConfig {
    let mut mount = cri::Mount {
        container_path: "/v".into(),
        readonly: true,
        ..Default::default()
    };
    mount.image = Some(cri::ImageSpec {
        image: "sha256:abc".into(),
        ..Default::default()
    });
    change(&mut mount);
    let mut config = app();
    config.mounts = vec![mount];
    config
}

#[test]
fn image_volume_has_image_and_subpath() {
    let spec = container_of(volume(|mount| mount.image_sub_path = "a/./b".into())).unwrap();
    let expected = MountSource::Image {
        reference: "sha256:abc".into(),
        sub_path: "a/./b".into(),
    };
    assert_eq!(
        (&spec.mounts[0].source, spec.mounts[0].readonly),
        (&expected, true)
    );
    let by_ref = volume(|mount| {
        mount.image = Some(cri::ImageSpec {
            image_ref: "sha256:def".into(),
            ..Default::default()
        });
    });
    let expected = MountSource::Image {
        reference: "sha256:def".into(),
        sub_path: "".into(),
    };
    assert_eq!(container_of(by_ref).unwrap().mounts[0].source, expected);
}

#[test]
fn invalid_image_volume_is_rejected_as_such() {
    let refused = |change: fn(&mut cri::Mount), message: &str| {
        let error = container_of(volume(change)).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::ImageVolume));
        assert_eq!(error.report(), format!("config.mounts[0].{message}"));
    };
    refused(
        |m| m.readonly = false,
        "readonly: it must be set: images cannot be written",
    );
    refused(
        |m| m.host_path = "/x".into(),
        "host_path: an image volume has none",
    );
    refused(
        |m| m.image_sub_path = "/x".into(),
        "image_sub_path: it must be relative to the root of the image",
    );
    refused(
        |m| m.image_sub_path = "a/../b".into(),
        "image_sub_path: \"a/../b\" contains \"..\"",
    );
}

#[test]
fn mount_options_are_passed_on() {
    let mut config = app();
    config.mounts = vec![cri::Mount {
        container_path: "/v".into(),
        host_path: "/h".into(),
        mount_options: strings(&["noexec"]),
        ..Default::default()
    }];
    assert_eq!(container_of(config).unwrap().mounts[0].options, ["noexec"]);
}

#[test]
fn pod_user_namespace_applies_to_containers_and_mounts() {
    let map = IdMap::new(vec![IdRange {
        inside: 0,
        host: 100_000,
        length: 65_536,
    }])
    .unwrap();
    let expected = UserNamespace {
        uids: map.clone(),
        gids: map,
    };
    let spec = sandbox_of(mapped_pod()).unwrap();
    assert_eq!(spec.users, Some(expected));
    assert!(matches!(spec.network, SandboxNetwork::Pod(_)));
    assert!(
        !spec.sysctls.contains_key("net.ipv4.ping_group_range"),
        "{:?}",
        spec.sysctls
    );

    let cri::UserNamespace {
        mode: _,
        uids,
        gids,
    } = users(100_000);
    let mut config = app();
    context(&mut config).namespace_options = Some(cri::NamespaceOption {
        userns_options: Some(users(100_000)),
        ..Default::default()
    });
    config.mounts = vec![cri::Mount {
        container_path: "/v".into(),
        host_path: "/h".into(),
        uid_mappings: uids,
        gid_mappings: gids,
        ..Default::default()
    }];
    let spec = container_in(&mapped_pod(), config.clone(), &Config::default()).unwrap();
    assert!(spec.mounts[0].id_mapped);
    config.mounts[0].uid_mappings[0].host_id = 1;
    let error = container_in(&mapped_pod(), config.clone(), &Config::default())
        .unwrap_err()
        .report();
    assert!(
        error.contains("must be those of the pod's user namespace"),
        "{error}"
    );
    context(&mut config).namespace_options = None;
    let error = container_of(config).unwrap_err().report();
    assert!(error.contains("the pod has no user namespace"), "{error}");
}

#[test]
fn user_namespace_requires_pod_namespaces_apart_from_the_network() {
    let mut config = mapped_pod();
    let options = &mut pod_context(&mut config).namespace_options;
    options.as_mut().unwrap().network = 2;
    let spec = sandbox_of(config).expect("it goes with the host's network");
    assert_eq!(spec.network, SandboxNetwork::Host);
    assert!(spec.users.is_some());
    for change in [
        (|o| o.pid = 2) as fn(&mut cri::NamespaceOption),
        |o| o.ipc = 2,
        |o| (o.network, o.ipc) = (2, 2),
        |o| (o.network, o.pid) = (2, 2),
    ] {
        let mut config = mapped_pod();
        change(pod_context(&mut config).namespace_options.as_mut().unwrap());
        let error = sandbox_of(config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(
            error
                .report()
                .contains("userns_options: a user namespace needs"),
            "{error}"
        );
    }
}

#[test]
fn cdi_devices_from_field_and_annotations_are_deduplicated() {
    let mut config = app();
    config.cdi_devices = ["v/c=b", "v/c=a"]
        .map(|name| cri::CdiDevice { name: name.into() })
        .to_vec();
    config.annotations = map(&[("cdi.k8s.io/p_1", "v/c=a,v/c=z"), ("other", "v/c=no")]);
    assert_eq!(
        container_of(config).unwrap().cdi_devices,
        ["v/c=b", "v/c=a", "v/c=z"]
    );
}

/// With a long key, which is not written for each of them.
#[test]
fn many_cdi_devices_of_an_annotation_keep_their_order() {
    let key = format!("cdi.k8s.io/{}", "k".repeat(100_000));
    for count in [10_000, 100_000] {
        let expected: Vec<String> = (0..count)
            .rev()
            .map(|number| format!("v/c={number}"))
            .collect();
        let mut config = app();
        config.cdi_devices = vec![cri::CdiDevice {
            name: expected[0].clone(),
        }];
        let list = format!("{0},{0}", expected.join(","));
        config.annotations = map(&[(key.as_str(), list.as_str())]);
        assert_eq!(container_of(config).unwrap().cdi_devices, expected);
    }
}
