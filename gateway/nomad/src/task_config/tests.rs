//! Tests of the options of a task: valid ones are decoded, and each malformed one is refused by name.

use rmpv::Value;
use switchyard_core::ErrorKind;
use switchyard_core::spec::{Propagation, Relabel};
use switchyard_docker_options::tmpfs::Tmpfs;

use super::*;
use crate::configs::{config, list, map, pairs, texts};

#[track_caller]
fn decode<const N: usize>(entries: [(&str, Value); N]) -> TaskOptions {
    TaskOptions::decode(&config(entries)).unwrap()
}

/// Checks that a key with this value is refused with this error.
#[track_caller]
fn refused(key: &str, value: Value, kind: ErrorKind, text: &str) {
    let error = TaskOptions::decode(&config([(key, value)])).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
}

#[track_caller]
fn invalid(key: &str, value: impl Into<Value>, text: &str) {
    refused(key, value.into(), ErrorKind::InvalidArgument, text);
}

#[track_caller]
fn impossible(key: &str, value: impl Into<Value>, text: &str) {
    refused(key, value.into(), ErrorKind::Unimplemented, text);
}

#[test]
fn task_needs_only_an_image() {
    let options = decode([
        ("image", "busybox:1".into()),
        ("args", Value::Nil),
        ("auth", Value::Nil),
    ]);
    assert_eq!(
        options,
        TaskOptions {
            image: "busybox:1".to_owned(),
            ..TaskOptions::default()
        }
    );
    for nothing in ["".into(), Value::Nil] {
        invalid("image", nothing, "image: image name required");
    }
}

#[test]
fn auth_is_password_or_identity_token() {
    let auth = |username: &str, password: &str| {
        let entries = [
            ("username", username.into()),
            ("password", password.into()),
            ("email", "a@b".into()),
        ];
        decode([("auth", map(entries))]).auth
    };
    assert_eq!(auth("", ""), None);
    let basic = Credentials::Basic {
        username: "me".to_owned(),
        password: "secret".to_owned(),
    };
    assert_eq!(auth("me", "secret"), Some(basic));
    assert_eq!(
        auth("<token>", "secret"),
        Some(Credentials::IdentityToken("secret".to_owned()))
    );
}

#[test]
fn debug_shows_no_secrets() {
    let options = decode([(
        "auth",
        map([("username", "me".into()), ("password", "hunter2".into())]),
    )]);
    assert!(!format!("{options:?}").contains("hunter2"));
    let wrong = config([("auth", map([("password", list(["hunter2".into()]))]))]);
    let error = TaskOptions::decode(&wrong).unwrap_err();
    assert!(!error.report().contains("hunter2"), "{}", error.report());
}

#[test]
fn mount_blocks_and_mounts_list_are_merged() {
    let tmpfs = map([
        ("type", "tmpfs".into()),
        ("target", "/t".into()),
        (
            "tmpfs_options",
            map([("size", "65536".into()), ("mode", 0o700.into())]),
        ),
    ]);
    let bind = map([
        ("type", "bind".into()),
        ("target", "/b".into()),
        ("source", "local/x".into()),
        ("readonly", true.into()),
        ("bind_options", map([("propagation", "rslave".into())])),
    ]);
    let volume = map([
        ("target", "/v".into()),
        ("source", "data".into()),
        (
            "volume_options",
            map([
                ("labels", pairs(&[("a", "b")])),
                ("driver_config", map([("name", "local".into())])),
            ]),
        ),
    ]);
    let options = decode([("mounts", list([volume])), ("mount", list([tmpfs, bind]))]);
    let mount = |field: &str, target: &str, readonly, kind| MountOptions {
        field: field.to_owned(),
        target: target.to_owned(),
        readonly,
        kind,
    };
    assert_eq!(
        options.mounts,
        [
            mount(
                "mount[0]",
                "/t",
                false,
                MountKind::Tmpfs {
                    size_bytes: 65536,
                    mode: 0o700
                }
            ),
            mount(
                "mount[1]",
                "/b",
                true,
                MountKind::Bind {
                    source: "local/x".to_owned(),
                    propagation: "rslave".to_owned()
                }
            ),
            mount(
                "mounts[0]",
                "/v",
                false,
                MountKind::Volume {
                    name: "data".to_owned(),
                    copied: true,
                }
            ),
        ]
    );
}

#[test]
fn volumes_parse_as_in_docker() {
    let options = decode([(
        "volumes",
        texts(&["local/a:/a", "/srv:/b:ro,z,rshared", "c:/c:delegated,rw"]),
    )]);
    let volume = |index: usize, source: &str, destination: &str| Volume {
        field: format!("volumes[{index}]"),
        source: source.to_owned(),
        destination: destination.to_owned(),
        readonly: false,
        propagation: Propagation::Private,
        relabel: Relabel::Keep,
        copied: true,
    };
    let shared = Volume {
        readonly: true,
        propagation: Propagation::Bidirectional,
        relabel: Relabel::Shared,
        ..volume(1, "/srv", "/b")
    };
    assert_eq!(
        options.volumes,
        [volume(0, "local/a", "/a"), shared, volume(2, "c", "/c")]
    );
    for (text, why) in [
        (
            "/data",
            "invalid docker volume \"/data\": not <src>:<destination> format",
        ),
        (
            "a:b:c:d",
            "invalid docker volume \"a:b:c:d\": not <src>:<destination> format",
        ),
        (
            ":/b",
            "invalid docker volume \":/b\": source and destination cannot be empty",
        ),
        (
            "a:/b:nocp",
            "\"nocp\" is no option of a mount that can be set here",
        ),
    ] {
        invalid("volumes", texts(&[text]), &format!("volumes[0]: {why}"));
    }
}

#[test]
fn tmpfs_parses_as_in_the_docker_cli() {
    let options = decode([("tmpfs", texts(&["/run", "/tmp:size=64m,mode=700,exec,ro"]))]);
    let plain = TmpfsEntry {
        field: "tmpfs[0]".to_owned(),
        destination: "/run".to_owned(),
        tmpfs: Tmpfs::default(),
    };
    let mut tmpfs = Tmpfs::default();
    for option in ["size=64m", "mode=700", "exec", "ro"] {
        tmpfs.set(option).unwrap();
    }
    let set = TmpfsEntry {
        field: "tmpfs[1]".to_owned(),
        destination: "/tmp".to_owned(),
        tmpfs,
    };
    assert_eq!(options.tmpfs, [plain, set]);
    for option in ["size=big", "mode=9", "mode=77777", "uid=x", "mpol=bind:0"] {
        let text = format!("tmpfs[0]: {option:?} is no option of a tmpfs that can be set here");
        invalid("tmpfs", texts(&[&format!("/run:{option}")]), &text);
    }
}

#[test]
fn storage_has_a_size_as_in_docker() {
    // A block, or an object, as an agent encodes them, and a list of maps as from earlier versions of the schema.
    for value in [map([("size", "10G".into())]), pairs(&[("size", "10G")])] {
        assert_eq!(
            decode([("storage_opt", value)]).storage_bytes,
            Some(10 << 30)
        );
    }
    invalid(
        "storage_opt",
        pairs(&[("size", "0")]),
        "storage_opt.size: \"0\" is no size such as \"10G\"",
    );
    impossible(
        "storage_opt",
        pairs(&[("dm.basesize", "1G")]),
        "storage_opt.dm.basesize: only size can be set here",
    );
}

#[test]
fn options_without_effect_are_warnings() {
    let warnings = |key: &str, value: Value| decode([(key, value)]).warnings;
    assert_eq!(
        warnings("logging", map([("type", "journald".into())])),
        ["logging \"journald\" has no effect: output goes to the agent's log files"]
    );
    assert_eq!(
        warnings("logging", map([("driver", "json-file".into())])).len(),
        1
    );
    assert_eq!(warnings("cpuset_cpus", "0-1".into()).len(), 1);
    for (key, value) in [
        ("logging", map([("config", pairs(&[("max-size", "2m")]))])),
        ("healthchecks", map([("disable", true.into())])),
        ("container_exists_attempts", 5.into()),
        ("isolation", "default".into()),
    ] {
        assert_eq!(warnings(key, value), [""; 0], "{key}");
    }
    assert!(decode([("logging", map([("type", "none".into())]))]).discards_output);
}

#[test]
fn zero_values_are_treated_as_unset() {
    let options = decode([
        ("pids_limit", 0.into()),
        ("oom_score_adj", 0.into()),
        ("shm_size", 0.into()),
        ("memory_hard_limit", 0.into()),
        ("cpu_cfs_period", 0.into()),
    ]);
    assert_eq!(options, decode([]));
}

#[test]
fn malformed_task_option_is_rejected_by_name() {
    invalid(
        "image_pull_timeout",
        "5",
        "image_pull_timeout: \"5\" is no length of time such as \"5m\" or \"1m30s\"",
    );
    invalid(
        "image_pull_timeout",
        "0s",
        "image_pull_timeout: it cannot be 0",
    );
    invalid("shm_size", -1, "shm_size: -1 is negative");
    invalid("memory_hard_limit", -1, "memory_hard_limit: -1 is negative");
    invalid("cpu_cfs_period", -1, "cpu_cfs_period: -1 is negative");
    invalid(
        "oom_score_adj",
        1001,
        "oom_score_adj: 1001 is not between -1000 and 1000",
    );
    invalid(
        "pids_limit",
        "many",
        "pids_limit: it is not a whole number of 64 bits",
    );
    invalid("args", "one", "args: a list is wanted here, not a text");
    invalid(
        "command",
        texts(&["sh"]),
        "command: a text is wanted here, not a list",
    );
    invalid(
        "privileged",
        "true",
        "privileged: true or false is wanted here, not a text",
    );
    invalid(
        "args",
        list(["a\0b".into()]),
        "args[0]: it contains a NUL byte",
    );
    let mount = |entries: &[(&str, Value)]| {
        let entries = entries
            .iter()
            .map(|(key, value)| ((*key).into(), value.clone()))
            .collect();
        list([Value::Map(entries)])
    };
    invalid(
        "mount",
        mount(&[("type", "npipe".into())]),
        "mount[0].type: \"npipe\" is none of volume, bind and tmpfs",
    );
    invalid(
        "mount",
        mount(&[("type", "bind".into())]),
        "mount[0].source: a bind needs it",
    );
    invalid(
        "mount",
        mount(&[("type", "tmpfs".into()), ("source", "x".into())]),
        "mount[0].source: a tmpfs has none",
    );
    let mode = [
        ("type", "tmpfs".into()),
        ("tmpfs_options", map([("mode", 0o10000.into())])),
    ];
    invalid(
        "mount",
        mount(&mode),
        "mount[0].tmpfs_options.mode: 10000 (octal) is no mode",
    );
    impossible(
        "mounts",
        mount(&[("type", "volume".into())]),
        "mounts[0].source: a volume needs a name here: an unnamed one could never be removed",
    );
}

#[test]
fn unsupported_task_option_is_rejected_by_name() {
    impossible(
        "isolation",
        "hyperv",
        "isolation: \"hyperv\" is for Windows",
    );
    let error = TaskOptions::decode(&config([("network_aliases", texts(&["db"]))])).unwrap_err();
    assert!(
        error.to_string().starts_with("network_aliases: "),
        "{error}"
    );
    impossible(
        "ipv6_address",
        "fe80::1",
        "ipv6_address: an address of its own can only be asked for in IPv4",
    );
    impossible(
        "advertise_ipv6_address",
        true,
        "advertise_ipv6_address: services find tasks at the address that their ports are published on",
    );
    let volume =
        |entries: Value| list([map([("source", "v".into()), ("volume_options", entries)])]);
    let kind = |entries: Value| decode([("mount", volume(entries))]).mounts[0].kind.clone();
    assert_eq!(
        kind(map([("no_copy", true.into())])),
        MountKind::Volume {
            name: "v".to_owned(),
            copied: false,
        }
    );
    let options =
        |options: &[(&str, &str)]| map([("driver_config", map([("options", pairs(options))]))]);
    assert_eq!(
        kind(options(&[
            ("type", "none"),
            ("device", "/srv"),
            ("o", "bind,ro"),
        ])),
        MountKind::FileSystem(LocalVolume::Bind {
            path: "/srv".into(),
            readonly: true,
            options: vec!["bind".to_owned()],
        })
    );
    impossible(
        "mount",
        volume(map([("driver_config", map([("name", "rexray".into())]))])),
        "mount[0].volume_options.driver_config.name: there is no volume driver \"rexray\"",
    );
    impossible(
        "mount",
        volume(map([(
            "driver_config",
            map([("options", pairs(&[("type", "ext4"), ("device", "/a")]))]),
        )])),
        "mount[0].volume_options.driver_config.options.type: \"ext4\" cannot be mounted here: it can be \"nfs\", \"tmpfs\", or \"none\" with the option \"bind\"; mount other file systems on the host, and bind them",
    );
}
