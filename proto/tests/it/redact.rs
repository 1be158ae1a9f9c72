//! `Debug` of messages that carry credentials.

use std::collections::BTreeMap;

use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::{cri, nomad, switchyard};

#[test]
fn debug_of_credentials_shows_only_which_are_set() {
    let auth = cri::v1::AuthConfig {
        username: "hunter".into(),
        password: "two".into(),
        server_address: "registry.example".into(),
        ..Default::default()
    };
    let request = cri::v1::PullImageRequest {
        auth: Some(auth),
        ..Default::default()
    };
    let shown = format!("{request:?}");
    assert!(
        !shown.contains("hunter") && !shown.contains("two"),
        "{shown}"
    );
    assert!(
        shown.contains("password: redacted") && shown.contains("identity_token: unset"),
        "{shown}"
    );
    assert!(shown.contains("registry.example"), "{shown}");
}

#[test]
fn debug_of_a_task_hides_environment_values_and_configuration() {
    let env = BTreeMap::from([("VAULT_TOKEN".to_owned(), "hunter2".to_owned())]);
    let msgpack_driver_config = b"password hunter2".to_vec();
    let task = nomad::drivers::proto::TaskConfig {
        env,
        msgpack_driver_config,
        ..Default::default()
    };
    let shown = format!("{task:?}");
    assert!(
        shown.contains("VAULT_TOKEN") && shown.contains("16 bytes"),
        "{shown}"
    );
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn debug_of_a_plugin_configuration_shows_only_its_length() {
    let bytes = b"hunter2".to_vec();
    let set = nomad::base::proto::SetConfigRequest {
        msgpack_config: bytes.clone(),
        ..Default::default()
    };
    let open = switchyard::nomad::v1::OpenRequest {
        msgpack_config: bytes,
        ..Default::default()
    };
    for shown in [format!("{set:?}"), format!("{open:?}")] {
        assert!(
            shown.contains("7 bytes") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}

#[test]
fn debug_of_what_a_swarm_sends_shows_no_secret() {
    let data = b"hunter2".to_vec();
    let pull_options = Some(swarm::container_spec::PullOptions {
        registry_auth: "hunter2".into(),
    });
    let env = vec!["TOKEN=hunter2".to_owned(), "EMPTY=".to_owned()];
    let context = BTreeMap::from([("password".to_owned(), "hunter2".to_owned())]);
    let shown = [
        format!(
            "{:?}",
            swarm::SecretSpec {
                data: data.clone(),
                ..Default::default()
            }
        ),
        format!(
            "{:?}",
            swarm::ConfigSpec {
                data: data.clone(),
                ..Default::default()
            }
        ),
        format!(
            "{:?}",
            swarm::EncryptionKey {
                key: data.clone(),
                ..Default::default()
            }
        ),
        format!(
            "{:?}",
            swarm::LogMessage {
                data: data.clone(),
                ..Default::default()
            }
        ),
        format!(
            "{:?}",
            swarm::ContainerSpec {
                pull_options,
                env,
                ..Default::default()
            }
        ),
        format!(
            "{:?}",
            swarm::IssueNodeCertificateRequest {
                token: "hunter2".into(),
                ..Default::default()
            }
        ),
        format!(
            "{:?}",
            swarm::VolumeAssignment {
                publish_context: context,
                ..Default::default()
            }
        ),
    ];
    for (shown, sign) in shown.iter().zip([
        "7 bytes", "7 bytes", "7 bytes", "7 bytes", "TOKEN", "redacted", "password",
    ]) {
        assert!(
            shown.contains(sign) && !shown.contains("hunter2"),
            "{shown}"
        );
    }
    assert!(
        shown[4].contains("EMPTY") && shown[4].contains("registry_auth: redacted"),
        "{}",
        shown[4]
    );
}
