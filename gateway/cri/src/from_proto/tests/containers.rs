//! Containers.

use switchyard_core::device::node;

use super::*;

mod rich;

use rich::{rich, rich_task};

#[test]
fn container_config_translates_to_a_task() {
    let expected = rich_task(&rich());
    assert_eq!(container_of(rich()).expect("it is well formed"), expected);
}

#[test]
fn container_with_only_an_image_gets_the_defaults() {
    let mut config = app();
    config.linux = None;
    let spec = container_of(config).expect("it is well formed");
    assert_eq!(
        spec.resources,
        Resources {
            oom_score_adj: Some(OomScoreAdj::default()),
            ..Resources::default()
        }
    );
    assert_eq!(spec.security, Security::default());
    assert_eq!(spec.user, UserSpec::default());
    assert_eq!(
        spec.stdio,
        Stdio {
            output: Output::Live,
            ..Stdio::default()
        }
    );
    assert_eq!(spec.stop_signal, None);
}

#[test]
fn pid_namespace_defaults_to_the_pods() {
    use cri::NamespaceMode as Mode;
    let pid = |of_pod: Option<Mode>, own: Option<Mode>| {
        let options = |mode: Mode| cri::NamespaceOption {
            pid: mode.into(),
            target_id: "there".into(),
            ..Default::default()
        };
        let mut sandbox = pod();
        pod_context(&mut sandbox).namespace_options = of_pod.map(options);
        let mut config = app();
        context(&mut config).namespace_options = own.map(options);
        container_in(&sandbox, config, &Config::default())
            .expect("it is well formed")
            .pid
    };
    assert_eq!(pid(None, None), PidMode::Sandbox);
    assert_eq!(pid(Some(Mode::Pod), Some(Mode::Pod)), PidMode::Sandbox);
    assert_eq!(
        pid(Some(Mode::Container), Some(Mode::Pod)),
        PidMode::Private
    );
    assert_eq!(pid(Some(Mode::Node), None), PidMode::Host);
    assert_eq!(
        pid(Some(Mode::Pod), Some(Mode::Container)),
        PidMode::Private
    );
    assert_eq!(pid(Some(Mode::Pod), Some(Mode::Node)), PidMode::Host);
    assert_eq!(
        pid(None, Some(Mode::Target)),
        PidMode::Target(TaskId::from_bytes([9; 32]))
    );
}

#[test]
fn no_log_without_directory_or_path() {
    let mut sandbox = pod();
    sandbox.log_directory.clear();
    let mut config = app();
    config.log_path = "a.log".into();
    let spec = container_in(&sandbox, config, &Config::default()).expect("it is well formed");
    assert_eq!(spec.stdio.output, Output::Live);
}

#[test]
fn new_seccomp_field_overrides_the_old_one_and_default_applies() {
    let profile = |new: Option<(i32, &str)>, old: &str, settings: &Config| {
        let mut config = app();
        let context = context(&mut config);
        context.seccomp = new.map(|(profile_type, localhost_ref)| cri::SecurityProfile {
            profile_type,
            localhost_ref: localhost_ref.into(),
        });
        context.seccomp_profile_path = old.into();
        container_in(&pod(), config, settings)
            .expect("it is well formed")
            .security
            .seccomp
    };
    let config = Config::default();
    assert_eq!(profile(None, "", &config), SeccompProfile::Unconfined);
    let strict = Config {
        unset_seccomp: UnsetSeccomp::RuntimeDefault,
        ..Config::default()
    };
    assert_eq!(profile(None, "", &strict), SeccompProfile::RuntimeDefault);
    assert_eq!(
        profile(None, "unconfined", &strict),
        SeccompProfile::Unconfined
    );
    assert_eq!(
        profile(None, "docker/default", &config),
        SeccompProfile::RuntimeDefault
    );
    assert_eq!(
        profile(None, "localhost//a/b.json", &config),
        SeccompProfile::Localhost("/a/b.json".into())
    );
    assert_eq!(
        profile(Some((1, "")), "runtime/default", &config),
        SeccompProfile::Unconfined
    );
    assert_eq!(
        profile(Some((2, "/p.json")), "", &config),
        SeccompProfile::Localhost("/p.json".into())
    );
}

#[test]
fn malformed_container_is_rejected_by_field() {
    use ErrorKind::InvalidArgument as Invalid;
    let env = |key: &str, value: &[u8]| {
        vec![cri::KeyValue {
            key: key.into(),
            value: value.to_vec(),
        }]
    };
    refuses(
        |c| c.metadata = None,
        Invalid,
        "config.metadata: it is missing",
    );
    refuses(
        |c| c.metadata.as_mut().unwrap().name.clear(),
        Invalid,
        "config.metadata.name: it is empty",
    );
    refuses(|c| c.image = None, Invalid, "config.image: it is missing");
    refuses(
        |c| c.image.as_mut().unwrap().image.clear(),
        Invalid,
        "config.image.image: it is empty",
    );
    refuses(
        |c| c.command = strings(&["a", "b\0"]),
        Invalid,
        "config.command[1]: it contains a NUL byte",
    );
    refuses(
        |c| c.working_dir = "srv".into(),
        Invalid,
        "config.working_dir: \"srv\" is not an absolute path",
    );
    refuses(
        |c| c.envs = env("", b""),
        Invalid,
        "config.envs[0].key: \"\" is not a variable's name",
    );
    refuses(
        |c| c.envs = env("a=b", b""),
        Invalid,
        "config.envs[0].key: \"a=b\" is not a variable's name",
    );
    refuses(
        |c| c.envs = env("a", b"\0"),
        Invalid,
        "config.envs[0].value: it contains a NUL byte",
    );
    refuses(
        |c| c.log_path = "/x.log".into(),
        Invalid,
        "config.log_path: \"/x.log\" must be relative to the sandbox's log directory",
    );
    refuses(
        |c| c.log_path = "../x.log".into(),
        Invalid,
        "config.log_path: \"../x.log\" contains \"..\"",
    );
    refuses(
        |c| c.log_path = "x/".into(),
        Invalid,
        "config.log_path: \"x/\" names no file",
    );
    refuses(
        |c| c.stop_signal = 99,
        Invalid,
        "config.stop_signal: 99 is not one of its values",
    );
    refuses(
        |c| c.cdi_devices = vec![cri::CdiDevice { name: " ".into() }],
        Invalid,
        "config.CDI_devices[0]: it names no device",
    );
    refuses(
        |c| c.annotations = map(&[("cdi.k8s.io/x", "a/b=c,")]),
        Invalid,
        "config.annotations[\"cdi.k8s.io/x\"]: it names no device",
    );
}

#[test]
fn place_of_a_mount_is_resolved_from_the_root() {
    for (asked, place) in [
        ("/a/", "/a"),
        ("/a/../b", "/b"),
        ("data", "/data"),
        ("./x/../../y", "/y"),
        ("//d/.", "/d"),
    ] {
        let mut config = app();
        config.mounts = vec![cri::Mount {
            container_path: asked.into(),
            host_path: "/h".into(),
            ..Default::default()
        }];
        let task = container_of(config).expect("it is well formed");
        assert_eq!(task.mounts[0].destination.to_str(), Some(place), "{asked}");
    }
}

#[test]
fn malformed_mount_or_device_is_rejected_by_field() {
    use ErrorKind::{InvalidArgument as Invalid, Unimplemented};
    let mount = |change: fn(&mut cri::Mount), kind, message: &str| {
        let change = |config: &mut cri::ContainerConfig| {
            let mut mount = cri::Mount {
                container_path: "/a".into(),
                host_path: "/b".into(),
                ..Default::default()
            };
            change(&mut mount);
            config.mounts = vec![mount];
        };
        refuses(change, kind, message);
    };
    let at = "config.mounts[0]";
    mount(
        |m| m.container_path = "/a\0".into(),
        Invalid,
        &format!("{at}.container_path: it contains a NUL byte"),
    );
    mount(
        |m| m.host_path.clear(),
        Invalid,
        &format!("{at}.host_path: \"\" is not an absolute path"),
    );
    mount(
        |m| m.propagation = 3,
        Invalid,
        &format!("{at}.propagation: 3 is not one of its values"),
    );
    mount(
        |m| m.recursive_read_only = true,
        Invalid,
        &format!("{at}.recursive_read_only: it needs readonly"),
    );
    mount(
        |m| (m.recursive_read_only, m.readonly, m.propagation) = (true, true, 1),
        Invalid,
        &format!("{at}.recursive_read_only: it needs PROPAGATION_PRIVATE"),
    );
    mount(
        |m| (m.recursive_read_only, m.readonly) = (true, true),
        Unimplemented,
        &format!("{at}.recursive_read_only: the handler or the kernel of this node cannot do it"),
    );
    mount(
        |m| m.image = Some(cri::ImageSpec::default()),
        Invalid,
        &format!("{at}.image.image: it is empty"),
    );
    mount(
        |m| m.image_sub_path = "x".into(),
        Invalid,
        &format!("{at}.image_sub_path: it is for image volumes only"),
    );
    mount(
        |m| m.gid_mappings = vec![cri::IdMapping::default()],
        Invalid,
        &format!("{at}.uids: there must be one mapping, not 0"),
    );
    let device = |permissions: &str, message: &str| {
        let device = cri::Device {
            container_path: "/dev/a".into(),
            host_path: "/dev/a".into(),
            permissions: permissions.into(),
        };
        refuses(|config| config.devices = vec![device], Invalid, message);
    };
    device(
        "rwx",
        "config.devices[0].permissions: \"rwx\" is not made of r, w and m",
    );
    device(
        "",
        "config.devices[0].permissions: \"\" is not made of r, w and m",
    );
}

#[test]
fn device_lease_annotations_are_consumed() {
    let token = |digit: &str| digit.repeat(32);
    let key = |token: &str| format!("devices.switchyard.io/{token}");
    let leases = |keys: &[String]| {
        let mut config = app();
        config.annotations = keys
            .iter()
            .map(|key| (key.clone(), "ignored".to_owned()))
            .collect();
        container_of(config)
    };
    let spec = leases(&[key(&token("b")), key(&token("1")), "switchyard.io/x".into()])
        .expect("it is well formed");
    let tokens: Vec<String> = spec
        .leases
        .iter()
        .map(|claim| claim.token.to_string())
        .collect();
    assert_eq!(tokens, [token("1"), token("b")]);
    assert!(spec.leases.iter().all(|claim| claim.slots.is_empty()));
    assert!(
        !spec
            .annotations
            .keys()
            .any(|key| key.starts_with("devices.")),
        "{:?}",
        spec.annotations
    );
    for wrong in [
        "",
        "x",
        "0123",
        &token("A"),
        &token("1")[1..],
        &format!("{}1", token("1")),
        &format!("../{}", token("1")),
    ] {
        let error = leases(&[key(&token("1")), key(wrong)]).expect_err("it is no token");
        let text = format!(
            "config.annotations[{:?}]: it names no lease of devices: expected 32 lower-case hexadecimal digits",
            key(wrong)
        );
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::InvalidArgument, text)
        );
    }
    let many: Vec<String> = (0..100_000)
        .map(|number| key(&format!("{number:032x}")))
        .collect();
    assert_eq!(
        leases(&many[..256])
            .expect("it may have as many")
            .leases
            .len(),
        256
    );
    let error = leases(&many).expect_err("they are too many");
    assert!(
        error
            .to_string()
            .ends_with("the container has 256 leases of devices without it, and may have no more")
    );
}
