//! Tests of the plugin's configuration.

use rmpv::Value;

use super::*;
use crate::configs::{bytes, list, map, pairs, texts};

fn decode<const N: usize>(entries: [(&str, Value); N]) -> (PluginConfig, Vec<String>) {
    PluginConfig::decode(&bytes(&map(entries))).unwrap()
}

#[track_caller]
fn refused<const N: usize>(entries: [(&str, Value); N], text: &str) {
    let error = PluginConfig::decode(&bytes(&map(entries))).unwrap_err();
    assert_eq!(error.to_string(), text);
}

#[test]
fn empty_plugin_configuration_has_docker_driver_defaults() {
    let nothing = (PluginConfig::default(), Vec::new());
    assert_eq!(PluginConfig::decode(b"").unwrap(), nothing);
    assert_eq!(
        decode([
            ("gc", Value::Nil),
            ("allow_caps", Value::Nil),
            ("allow_privileged", Value::Nil)
        ]),
        nothing
    );
    // A block does not set the keys that it does not contain.
    assert_eq!(
        decode([(
            "gc",
            map([("image", Value::Nil), ("dangling_containers", map([]))])
        )]),
        nothing
    );
}

#[test]
fn every_plugin_key_is_decoded() {
    let dangling = map([
        ("enabled", false.into()),
        ("dry_run", true.into()),
        ("period", "10m".into()),
        ("creation_grace", "20m".into()),
    ]);
    let (config, warnings) = decode([
        ("allow_privileged", true.into()),
        ("allow_caps", texts(&["cap_net_admin", "ALL"])),
        ("allow_runtimes", texts(&["runc", "kata"])),
        ("allow_devices", false.into()),
        ("allow_security_opt", texts(&["seccomp=*"])),
        ("nvidia_runtime", "nvidia".into()),
        (
            "allowed_modes",
            map([
                ("pid", texts(&["host"])),
                ("ipc", texts(&["host"])),
                ("uts", texts(&["host"])),
                ("network", texts(&[])),
            ]),
        ),
        (
            "auth",
            map([
                ("config", "/etc/docker.json".into()),
                ("helper", "ecr-login".into()),
            ]),
        ),
        (
            "volumes",
            map([
                ("enabled", true.into()),
                ("selinuxlabel", "z".into()),
                ("driver_options", texts(&["tmpfs"])),
            ]),
        ),
        (
            "gc",
            map([
                ("image", false.into()),
                ("image_delay", "1h".into()),
                ("container", false.into()),
                ("dangling_containers", dangling),
            ]),
        ),
        ("disable_log_collection", true.into()),
        ("image_pull_timeout", "10m".into()),
        ("pull_activity_timeout", "1m".into()),
        ("extra_labels", texts(&["job_*", "node_id"])),
        ("pids_limit", 100.into()),
        ("oom_score_adj", 7.into()),
        ("must_create_network", true.into()),
    ]);
    let expected = config_with_every_key();
    assert_eq!((config, warnings), (expected, Vec::new()));
}

/// The settings that [`every_plugin_key_is_decoded`] gives to the keys.
fn config_with_every_key() -> PluginConfig {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let host = || vec!["host".to_owned()];
    PluginConfig {
        allow_privileged: true,
        allow_caps: vec!["NET_ADMIN".to_owned(), "ALL".to_owned()],
        allow_runtimes: vec!["runc".to_owned(), "kata".to_owned()],
        nvidia_runtime: "nvidia".to_owned(),
        allow_devices: false,
        allow_security_opt: vec!["seccomp=*".to_owned()],
        allowed_modes: AllowedModes {
            pid: host(),
            ipc: host(),
            userns: Vec::new(),
            uts: host(),
            network: Vec::new(),
            cgroupns: host(),
        },
        auth: AuthConfig {
            config: "/etc/docker.json".to_owned(),
            helper: "ecr-login".to_owned(),
        },
        volumes: VolumesConfig {
            enabled: true,
            selinuxlabel: "z".to_owned(),
            driver_options: vec!["tmpfs".to_owned()],
        },
        gc: GcConfig {
            image: false,
            image_delay: minutes(60),
            container: false,
            dangling: DanglingConfig {
                enabled: false,
                dry_run: true,
                period: minutes(10),
                creation_grace: minutes(20),
            },
        },
        disable_log_collection: true,
        image_pull_timeout: minutes(10),
        pull_activity_timeout: minutes(1),
        extra_labels: vec!["job_*".to_owned(), "node_id".to_owned()],
        pids_limit: PidsLimit::new(100).ok(),
        oom_score_adj: OomScoreAdj::new(7).unwrap(),
        must_create_network: true,
    }
}

#[test]
fn zero_or_negative_pids_limit_is_none() {
    for limit in [0, -1, -2] {
        assert_eq!(
            decode([("pids_limit", limit.into())]).0.pids_limit,
            None,
            "{limit}"
        );
    }
}

#[test]
fn docker_only_keys_are_warnings() {
    let (config, warnings) = decode([
        ("endpoint", "unix:///var/run/docker.sock".into()),
        ("tls", map([("cert", "/c".into())])),
        (
            "logging",
            map([
                ("type", "json-file".into()),
                ("config", pairs(&[("max-size", "2m")])),
            ]),
        ),
        ("infra_image", "pause:3".into()),
        ("infra_image_pull_timeout", "no duration".into()),
        ("container_exists_attempts", 5.into()),
        ("windows_allow_insecure_container_admin", true.into()),
    ]);
    assert_eq!(config, PluginConfig::default());
    assert_eq!(warnings.len(), 7, "{warnings:?}");
    assert!(
        warnings[0].starts_with("endpoint has no effect: "),
        "{warnings:?}"
    );
}

#[test]
fn invalid_plugin_value_is_rejected_by_key() {
    refused(
        [("image_pull_timeout", "soon".into())],
        "image_pull_timeout: \"soon\" is no length of time such as \"5m\" or \"1m30s\"",
    );
    refused(
        [("image_pull_timeout", "0s".into())],
        "image_pull_timeout: it cannot be 0",
    );
    refused(
        [("pull_activity_timeout", "59s".into())],
        "pull_activity_timeout: it is less than minimum, 1m0s",
    );
    let dangling =
        |key: &str, value: &str| map([("dangling_containers", map([(key, value.into())]))]);
    refused(
        [("gc", dangling("creation_grace", "10s"))],
        "gc.dangling_containers.creation_grace: it is less than minimum, 1m0s",
    );
    refused(
        [("gc", dangling("period", "0s"))],
        "gc.dangling_containers.period: it cannot be 0",
    );
    refused(
        [("allow_caps", texts(&["CHOWN", "a b"]))],
        "allow_caps[1]: \"a b\" is not the name of a capability",
    );
    refused(
        [("volumes", map([("selinuxlabel", "y".into())]))],
        "volumes.selinuxlabel: \"y\" is neither \"z\" nor \"Z\"",
    );
    refused(
        [("auth", map([("helper", "../sh".into())]))],
        "auth.helper: \"../sh\" is no end of a name docker-credential-…",
    );
    refused(
        [("oom_score_adj", 1001.into())],
        "oom_score_adj: 1001 is not between -1000 and 1000",
    );
    refused(
        [("allow_privileged", "yes".into())],
        "allow_privileged: true or false is wanted here, not a text",
    );
    refused(
        [("extra_labels", "job_name".into())],
        "extra_labels: a list is wanted here, not a text",
    );
    refused(
        [("gc", list([map([]), map([])]))],
        "gc: a block is wanted here, not a list",
    );
}

#[test]
fn labels_that_do_not_exist_are_warnings() {
    for (labels, unknown) in [
        (&["job_name", "job-*"][..], &[(1, "job-*")][..]),
        (&["owner"], &[(0, "owner")]),
        (&["", "Job_Name"], &[(0, ""), (1, "Job_Name")]),
        (&["alloc_id", "node_*", "*"], &[(0, "alloc_id")]),
        (&["task_*", "namespace"], &[]),
    ] {
        let (config, warnings) = decode([("extra_labels", texts(labels))]);
        assert_eq!(config.extra_labels, labels);
        let expected: Vec<String> = unknown
            .iter()
            .map(|(index, name)| {
                format!(
                    "extra_labels[{index}] has no effect: {name:?} names none of job_name, job_id, parent_job_id, \
                     task_group_name, task_name, namespace, node_name, node_id"
                )
            })
            .collect();
        assert_eq!(warnings, expected, "{labels:?}");
    }
}

#[test]
fn kinds_of_volumes_that_do_not_exist_are_warnings() {
    let with = |kinds: &[&str]| decode([("volumes", map([("driver_options", texts(kinds))]))]);
    for kinds in [&["bind"][..], &[], &["nfs", "*"], &["b*"]] {
        let (config, warnings) = with(kinds);
        assert_eq!(config.volumes.driver_options, kinds);
        assert!(warnings.is_empty(), "{warnings:?}");
    }
    let (_, warnings) = with(&["bind", "cifs"]);
    assert_eq!(
        warnings,
        ["volumes.driver_options[1] has no effect: \"cifs\" names none of bind, nfs, tmpfs"]
    );
}

#[test]
fn label_patterns_match_names() {
    for (pattern, name, fits) in [
        ("*", "job_name", true),
        ("job_*", "job_name", true),
        ("*_name", "job_name", true),
        ("*b_n*", "job_name", true),
        ("j*b*e", "job_name", true),
        ("job_name", "job_name", true),
        ("job", "job_name", false),
        ("*job", "job_name", false),
        ("job*job*", "job_name", false),
        ("", "job_name", false),
    ] {
        assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
    }
}
