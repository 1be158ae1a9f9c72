//! Golden bytes: messages encode to exactly what other implementations of the same protocols read.
//!
//! The expected bytes were worked out by hand from the protobuf encoding: a key is `number << 3 | wire type`,
//! as a varint, and the wire types are 0 (varint), 1 (64 bits), 2 (length and bytes).

use std::collections::BTreeMap;
use std::fmt::Debug;

use prost::Message;
use switchyard_proto::containerd::runc::v1 as runc;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::switchyard::nomad::v1 as sessions;

/// Asserts that `message` encodes to `bytes` and that `bytes` decode to `message`.
#[track_caller]
fn check<M: Message + Default + PartialEq + Debug>(message: M, bytes: &[u8]) {
    assert_eq!(message.encode_to_vec(), bytes, "encoding of {message:?}");
    assert_eq!(
        M::decode(bytes).expect("the golden bytes are valid"),
        message
    );
}

#[test]
fn image_spec_jumps_from_field_2_to_18() {
    check(
        cri::ImageSpec {
            image: "a".into(),
            annotations: BTreeMap::from([("k".into(), "v".into())]),
            user_specified_image: "b".into(),
            runtime_handler: "c".into(),
            image_ref: "d".into(),
        },
        &[
            0x0a, 1, b'a', // 1, bytes
            0x12, 6, 0x0a, 1, b'k', 0x12, 1, b'v', // 2, an entry of the map
            0x92, 0x01, 1, b'b', // 18 << 3 | 2 = 146
            0x9a, 0x01, 1, b'c', // 19 << 3 | 2 = 154
            0xa2, 0x01, 1, b'd', // 20 << 3 | 2 = 162
        ],
    );
}

#[test]
fn options_are_field_2_of_namespace() {
    let options = cri::NamespaceOption {
        network: cri::NamespaceMode::Node.into(),
        pid: cri::NamespaceMode::Container.into(),
        ipc: cri::NamespaceMode::Pod.into(),
        target_id: String::new(),
        userns_options: Some(cri::UserNamespace {
            mode: cri::NamespaceMode::Pod.into(),
            uids: vec![cri::IdMapping {
                host_id: 65536,
                container_id: 0,
                length: 1,
            }],
            gids: Vec::new(),
        }),
    };
    check(
        cri::LinuxPodSandboxStatus {
            namespaces: Some(cri::Namespace {
                options: Some(options),
            }),
        },
        &[
            0x0a, 16, 0x12, 14, // namespaces = 1, options = 2
            0x08, 2, 0x10, 1, // network NODE, pid CONTAINER; ipc POD is 0 and absent
            0x2a, 8, 0x12, 6, // userns_options = 5, uids = 2
            0x08, 0x80, 0x80, 0x04, 0x18, 1, // 65536, 0 absent, 1
        ],
    );
}

#[test]
fn environment_value_may_be_non_utf8() {
    check(
        cri::KeyValue {
            key: "K".into(),
            value: vec![0xff, 0x00, 0xc3],
        },
        &[0x0a, 1, b'K', 0x12, 3, 0xff, 0x00, 0xc3],
    );
}

#[test]
fn container_config_with_non_utf8_environment_decodes() {
    let bytes = [0x32, 6, 0x0a, 1, b'K', 0x12, 1, 0xfe];
    let config = cri::ContainerConfig::decode(&bytes[..]).expect("envs are bytes");
    assert_eq!(
        config.envs,
        [cri::KeyValue {
            key: "K".into(),
            value: vec![0xfe]
        }]
    );
}

#[test]
fn cdi_devices_and_stop_signal_are_fields_17_and_18() {
    check(
        cri::ContainerConfig {
            cdi_devices: vec![cri::CdiDevice {
                name: "v/c=d".into(),
            }],
            stop_signal: cri::Signal::Sigterm.into(),
            ..Default::default()
        },
        &[
            0x8a, 0x01, 7, 0x0a, 5, b'v', b'/', b'c', b'=', b'd', 0x90, 0x01, 23,
        ],
    );
}

#[test]
fn signals_are_numbered_by_name_and_not_as_linux_does() {
    for (signal, number, name) in [
        (cri::Signal::RuntimeDefault, 0, "SIGNAL_RUNTIME_DEFAULT"),
        (cri::Signal::Sigabrt, 1, "SIGNAL_SIGABRT"),
        (cri::Signal::Sighup, 8, "SIGNAL_SIGHUP"),
        (cri::Signal::Sigint, 10, "SIGNAL_SIGINT"),
        (cri::Signal::Sigkill, 13, "SIGNAL_SIGKILL"),
        (cri::Signal::Sigquit, 18, "SIGNAL_SIGQUIT"),
        (cri::Signal::Sigterm, 23, "SIGNAL_SIGTERM"),
        (cri::Signal::Sigusr1, 29, "SIGNAL_SIGUSR1"),
        (cri::Signal::Sigwinch, 32, "SIGNAL_SIGWINCH"),
        (cri::Signal::Sigrtmin, 35, "SIGNAL_SIGRTMIN"),
        (cri::Signal::Sigrtminplus15, 50, "SIGNAL_SIGRTMINPLUS15"),
        (cri::Signal::Sigrtmaxminus14, 51, "SIGNAL_SIGRTMAXMINUS14"),
        (cri::Signal::Sigrtmaxminus1, 64, "SIGNAL_SIGRTMAXMINUS1"),
        (cri::Signal::Sigrtmax, 65, "SIGNAL_SIGRTMAX"),
    ] {
        assert_eq!(i32::from(signal), number, "{name}");
        assert_eq!(signal.as_str_name(), name);
        assert_eq!(cri::Signal::try_from(number), Ok(signal));
    }
    assert!(cri::Signal::try_from(66).is_err());
}

#[test]
fn pressure_puts_full_before_some() {
    let full = cri::PsiData {
        total: 300,
        avg10: 0.5,
        avg60: 0.0,
        avg300: 1.0,
    };
    let some = cri::PsiData {
        total: 1,
        ..Default::default()
    };
    check(
        cri::IoUsage {
            timestamp: 7,
            psi: Some(cri::PsiStats {
                full: Some(full),
                some: Some(some),
            }),
        },
        &[
            0x08, 7, 0x12, 27, // timestamp = 1, psi = 2
            0x0a, 21, 0x08, 0xac, 0x02, // Full = 1, Total = 1: 300
            0x11, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f, // Avg10 = 2: 0.5
            0x21, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, // Avg300 = 4: 1.0
            0x12, 2, 0x08, 1, // Some = 2, Total = 1: 1
        ],
    );
}

#[test]
fn the_two_security_contexts_number_run_as_group_differently() {
    let group = Some(cri::Int64Value { value: 5 });
    check(
        cri::LinuxSandboxSecurityContext {
            run_as_group: group,
            ..Default::default()
        },
        &[0x42, 2, 0x08, 5], // 8
    );
    check(
        cri::LinuxContainerSecurityContext {
            run_as_group: group,
            ..Default::default()
        },
        &[0x62, 2, 0x08, 5], // 12
    );
}

#[test]
fn present_zero_differs_from_absent() {
    check(
        cri::MemoryUsage {
            usage_bytes: Some(cri::UInt64Value { value: 0 }),
            ..Default::default()
        },
        &[0x22, 0],
    );
    check(cri::MemoryUsage::default(), &[]);
}

#[test]
fn negative_numbers_take_ten_bytes() {
    check(
        cri::LinuxContainerResources {
            cpu_quota: -1,
            ..Default::default()
        },
        &[
            0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
        ],
    );
}

#[test]
fn forwarded_ports_are_packed() {
    check(
        cri::PortForwardRequest {
            pod_sandbox_id: "p".into(),
            port: vec![80, 8080],
        },
        &[0x0a, 1, b'p', 0x12, 3, 80, 0x90, 0x3f],
    );
}

#[test]
fn encoding_is_independent_of_label_order() {
    let entry = |key: u8| [0x32, 5, 0x0a, 1, key, 0x12, 0]; // labels = 6, an empty value
    let forward = [entry(b'a'), entry(b'b'), entry(b'c')].concat();
    let backward = [entry(b'c'), entry(b'b'), entry(b'a')].concat();
    let decode =
        |bytes: &[u8]| cri::PodSandboxConfig::decode(bytes).expect("the entries are valid");
    assert_eq!(decode(&backward).labels.len(), 3);
    assert_eq!(
        decode(&forward).encode_to_vec(),
        decode(&backward).encode_to_vec()
    );
}

#[test]
fn fields_of_a_later_version_are_skipped() {
    let bytes = [0x0a, 1, b'u', 0xfa, 0x3f, 1, b'x']; // 1023 is not a field
    let response = cri::ExecResponse::decode(&bytes[..]).expect("unknown fields are legal");
    assert_eq!(response, cri::ExecResponse { url: "u".into() });
}

#[test]
fn runc_options_skip_number_8() {
    check(
        runc::Options {
            no_pivot_root: true,
            no_new_keyring: true,
            shim_cgroup: "s".into(),
            io_uid: 1,
            io_gid: 2,
            binary_name: "crun".into(),
            root: "/r".into(),
            systemd_cgroup: true,
            ..Default::default()
        },
        &[
            0x08, 1, 0x10, 1, 0x1a, 1, b's', 0x20, 1, 0x28, 2, // 1 to 5
            0x32, 4, b'c', b'r', b'u', b'n', 0x3a, 2, b'/', b'r', // 6 and 7
            0x48, 1, // 9
        ],
    );
}

#[test]
fn runc_process_details_hold_the_exec_id() {
    check(
        runc::ProcessDetails {
            exec_id: "e".into(),
        },
        &[0x0a, 1, b'e'],
    );
}

#[test]
fn services_answer_under_the_names_clients_call() {
    assert_eq!(
        cri::runtime_service_server::SERVICE_NAME,
        "runtime.v1.RuntimeService"
    );
    assert_eq!(
        cri::image_service_server::SERVICE_NAME,
        "runtime.v1.ImageService"
    );
}

#[test]
fn root_ca_of_a_session_message_is_field_5() {
    let manager = swarm::WeightedPeer {
        peer: Some(swarm::Peer {
            node_id: "n".into(),
            addr: "a".into(),
        }),
        weight: 10,
    };
    check(
        swarm::SessionMessage {
            session_id: "s".into(),
            managers: vec![manager],
            root_ca: vec![0x2d],
            ..Default::default()
        },
        &[
            0x0a, 1, b's', // session_id = 1
            0x1a, 10, 0x0a, 6, 0x0a, 1, b'n', 0x12, 1, b'a', 0x10,
            10, // managers = 3: peer = 1, weight = 2
            0x2a, 1, 0x2d, // RootCA = 5
        ],
    );
}

#[test]
fn status_update_of_a_task_skips_field_2() {
    let status = swarm::TaskStatus {
        state: swarm::TaskState::Rejected.into(),
        err: "e".into(),
        runtime_status: Some(swarm::task_status::RuntimeStatus::Container(
            swarm::ContainerStatus {
                exit_code: 3,
                ..Default::default()
            },
        )),
        ..Default::default()
    };
    let update = swarm::update_task_status_request::TaskStatusUpdate {
        task_id: "t".into(),
        status: Some(status),
    };
    check(
        swarm::UpdateTaskStatusRequest {
            session_id: "s".into(),
            updates: vec![update],
        },
        &[
            0x0a, 1, b's', 0x1a, 15, // session_id = 1, updates = 3
            0x0a, 1, b't', 0x12, 10, // task_id = 1, status = 2
            0x10, 0x80, 0x06, 0x22, 1, b'e', 0x2a, 2, 0x18,
            3, // state = 2: 768; err = 4; container = 5: exit_code = 3
        ],
    );
}

#[test]
fn registry_password_of_a_swarm_is_field_64() {
    check(
        swarm::container_spec::PullOptions {
            registry_auth: "x".into(),
        },
        &[0x82, 0x04, 1, b'x'], // 64 << 3 | 2 = 514
    );
}

#[test]
fn sessions_of_launchers_are_those_of_the_first_version() {
    check(
        sessions::OpenRequest {
            role: sessions::Role::Driver.into(),
            name: "switchyard".into(),
            msgpack_config: vec![0x80],
            nomad_config: vec![0x0a, 0],
            version: "0.1.0".into(),
        },
        &[
            0x08, 1, // role = 1
            0x12, 10, b's', b'w', b'i', b't', b'c', b'h', b'y', b'a', b'r', b'd', // name = 2
            0x1a, 1, 0x80, // msgpack_config = 3
            0x22, 2, 0x0a, 0, // nomad_config = 4
            0x2a, 5, b'0', b'.', b'1', b'.', b'0', // version = 5
        ],
    );
    check(
        sessions::OpenResponse {
            session_id: "s".into(),
        },
        &[0x0a, 1, b's'],
    );
}
