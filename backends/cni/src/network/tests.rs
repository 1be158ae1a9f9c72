//! The chain of plugins, with stand-in plugins.
//!
//! Longer than 500 lines because all tests share the stand-in plugins.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::kill;
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::attachment::{Bandwidth, Capabilities, Dns, IpRange, PortMapping, Protocol};
use crate::plugin::{Limits, PluginObserver, RunEnd};
use crate::testing::{Bench, SHORT, attachment, list, result};
use switchyard_linux::report;

mod processes;
mod status;

#[tokio::test]
async fn add_runs_the_chain_in_order_passing_results() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    bench.good("two", "10.0.0.3/24");
    let network = bench.network(&list("1.0.0", &["one", "two"]));
    let mut attachment = attachment();
    attachment.args = vec![
        ("IgnoreUnknown".to_owned(), "1".to_owned()),
        ("K8S_POD_NAME".to_owned(), "web=1".to_owned()),
    ];
    let made = network.add(&attachment).await.unwrap();

    assert_eq!(bench.order(), ["ADD one", "ADD two"]);
    assert_eq!(made.raw, result("1.0.0", "10.0.0.3/24"));
    assert_eq!(
        bench.stdin("one", "ADD"),
        json!({"cniVersion": "1.0.0", "name": "net", "type": "one"})
    );
    assert_eq!(
        bench.stdin("two", "ADD")["prevResult"],
        result("1.0.0", "10.0.0.2/24")
    );
    let env = |name| bench.env("one", "ADD", name);
    assert_eq!(env("CNI_CONTAINERID").as_deref(), Some("c0ffee"));
    assert_eq!(env("CNI_NETNS").as_deref(), Some("/run/netns/x"));
    assert_eq!(env("CNI_IFNAME").as_deref(), Some("eth0"));
    assert_eq!(
        env("CNI_ARGS").as_deref(),
        Some("IgnoreUnknown=1;K8S_POD_NAME=web=1")
    );
    let dirs = format!(
        "{}:{}",
        bench.path("no-such-bin").display(),
        bench.path("bin").display()
    );
    assert_eq!(env("CNI_PATH"), Some(dirs));
    assert!(env("PATH").is_some());
    assert_eq!(
        env("CARGO_MANIFEST_DIR"),
        None,
        "the daemon's environment is not the plugins'"
    );
}

/// Writes down the runs of plugins.
#[derive(Debug, Clone, Default)]
struct Runs(Arc<Mutex<Vec<String>>>);

impl PluginObserver for Runs {
    fn began(&self, plugin: &str, verb: Verb) -> RunEnd {
        let run = format!("{verb} {plugin}");
        self.0.lock().push(format!("{run}: begun"));
        let runs = Self::clone(self);
        Box::new(move |failure| {
            let end = failure.map_or_else(|| "done".to_owned(), Error::report);
            runs.0.lock().push(format!("{run}: {end}"));
        })
    }
}

#[tokio::test]
async fn observer_gets_the_begin_and_the_end_of_each_run() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    bench.plugin(
        "two",
        r#"[ $CNI_COMMAND != ADD ] || { echo '{"code":7,"msg":"no"}'; exit 1; }"#,
    );
    let runs = Runs::default();
    let plugins = bench.plugins().observed(Arc::new(runs.clone()));
    let list = bench.network(&list("1.0.0", &["one", "two"])).list;
    Network::new(list, plugins)
        .add(&attachment())
        .await
        .unwrap_err();
    let expected = [
        "ADD one: begun",
        "ADD one: done",
        "ADD two: begun",
        "ADD two: plugin two refused ADD with code 7: no",
        "DEL two: begun",
        "DEL two: done",
        "DEL one: begun",
        "DEL one: done",
    ];
    assert_eq!(*runs.0.lock(), expected);
}

#[tokio::test]
async fn del_runs_in_reverse_with_the_add_result() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    bench.good("two", "10.0.0.2/24");
    for (version, given) in [("0.3.1", false), ("0.4.0", true)] {
        let network = bench.network(&list(version, &["one", "two"]));
        let made = network.add(&attachment()).await.unwrap();
        fs::remove_file(bench.path("log/order")).unwrap();
        network.del(&attachment(), Some(&made)).await.unwrap();
        assert_eq!(bench.order(), ["DEL two", "DEL one"]);
        for plugin in ["one", "two"] {
            let previous = bench.stdin(plugin, "DEL").get("prevResult").cloned();
            assert_eq!(
                previous,
                given.then(|| made.raw.clone()),
                "{plugin} in {version}"
            );
        }
    }
}

#[tokio::test]
async fn del_works_without_namespace_and_result() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    let network = bench.network(&list("1.0.0", &["one"]));
    let gone = Attachment {
        netns: None,
        ..attachment()
    };
    network.del(&gone, None).await.unwrap();
    assert_eq!(bench.env("one", "DEL", "CNI_NETNS").as_deref(), Some(""));
    assert!(bench.stdin("one", "DEL").get("prevResult").is_none());
    let error = network.add(&gone).await.unwrap_err();
    assert!(
        matches!(error, Error::Attachment { .. }) && !error.left_something(),
        "{error}"
    );
}

#[tokio::test]
async fn del_continues_after_a_failure_and_reports_the_first() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    bench.plugin("two", "echo 'second to fail' >&2; exit 1");
    bench.plugin(
        "three",
        r#"echo '{"code":5,"msg":"first to fail","details":"here"}'; exit 1"#,
    );
    let network = bench.network(&list("1.0.0", &["one", "two", "missing", "three"]));
    let error = network.del(&attachment(), None).await.unwrap_err();
    assert_eq!(bench.order(), ["DEL three", "DEL two", "DEL one"]);
    assert_eq!(
        error.to_string(),
        "plugin three refused DEL with code 5: first to fail (here)"
    );
}

#[tokio::test]
async fn del_of_an_unknown_container_succeeds() {
    let bench = Bench::new();
    bench.plugin(
        "one",
        r#"echo '{"code":3,"msg":"unknown container"}'; exit 1"#,
    );
    bench
        .network(&list("1.0.0", &["one"]))
        .del(&attachment(), None)
        .await
        .unwrap();
}

#[tokio::test]
async fn failure_in_the_chain_rolls_back_all_plugins() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    bench.plugin(
        "two",
        r#"[ $CNI_COMMAND != ADD ] || { echo '{"code":7,"msg":"no"}'; exit 1; }"#,
    );
    bench.good("three", "10.0.0.2/24");
    let network = bench.network(&list("1.0.0", &["one", "two", "three"]));
    let error = network.add(&attachment()).await.unwrap_err();
    assert_eq!(
        bench.order(),
        ["ADD one", "ADD two", "DEL three", "DEL two", "DEL one"]
    );
    for plugin in ["one", "two", "three"] {
        assert_eq!(
            bench.stdin(plugin, "DEL")["prevResult"],
            result("1.0.0", "10.0.0.2/24"),
            "{plugin}"
        );
    }
    assert!(!error.left_something() && !error.is_retryable());
    let line = report(&error);
    assert_eq!(
        line,
        "cannot attach container c0ffee to network net: plugin two refused ADD with code 7: no"
    );
}

#[tokio::test]
async fn failed_rollback_is_reported_with_the_first_failure() {
    let bench = Bench::new();
    bench.plugin("one", "echo $CNI_COMMAND is not today >&2; exit 4");
    let error = bench
        .network(&list("1.0.0", &["one"]))
        .add(&attachment())
        .await
        .unwrap_err();
    assert!(error.left_something());
    let line = report(&error);
    assert!(
        line.contains("DEL is not today") && line.ends_with("exit status: 4: ADD is not today"),
        "{line}"
    );
}

#[tokio::test]
async fn missing_plugin_fails_before_any_other_runs() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    let network = bench.network(&list("1.0.0", &["one", "lost"]));
    let error = network.add(&attachment()).await.unwrap_err();
    assert!(
        matches!(&error, Error::PluginNotFound { plugin, .. } if plugin == "lost"),
        "{error}"
    );
    assert!(bench.order().is_empty() && !error.left_something());
}

#[tokio::test]
async fn cni_code_11_is_retryable() {
    let bench = Bench::new();
    bench.plugin(
        "one",
        r#"[ $CNI_COMMAND != ADD ] || { echo '{"code":11,"msg":"not yet"}'; exit 1; }"#,
    );
    let error = bench
        .network(&list("1.0.0", &["one"]))
        .add(&attachment())
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn invalid_output_names_the_plugin_and_is_rolled_back() {
    let bench = Bench::new();
    for body in ["echo all went well", "true", "echo '[]'"] {
        bench.plugin("one", body);
        let error = bench
            .network(&list("1.0.0", &["one"]))
            .add(&attachment())
            .await
            .unwrap_err();
        assert!(
            report(&error).contains("plugin one wrote no usable result"),
            "{}",
            report(&error)
        );
        assert_eq!(bench.order().last().map(String::as_str), Some("DEL one"));
    }
}

#[tokio::test]
async fn endless_output_is_truncated() {
    let bench = Bench::new();
    bench.plugin(
        "one",
        "[ $CNI_COMMAND != ADD ] || head -c 2097152 /dev/zero",
    );
    bench.plugin("two", "[ $CNI_COMMAND != ADD ] || exec cat /dev/zero");
    for plugin in ["one", "two"] {
        let error = bench
            .network(&list("1.0.0", &[plugin]))
            .add(&attachment())
            .await
            .unwrap_err();
        assert!(
            report(&error).contains("wrote more than 1048576 bytes"),
            "{}",
            report(&error)
        );
    }
}

#[tokio::test]
async fn large_stderr_does_not_block_and_its_tail_is_kept() {
    let bench = Bench::new();
    bench.plugin(
        "one",
        "head -c 2097152 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1",
    );
    let error = bench
        .network(&list("1.0.0", &["one"]))
        .del(&attachment(), None)
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(text.ends_with("the end") && text.len() < 2000, "{text}");
}

#[tokio::test]
async fn capability_args_go_to_plugins_that_request_them() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    bench.good("two", "10.0.0.2/24");
    let all = [
        "portMappings",
        "bandwidth",
        "dns",
        "ipRanges",
        "ips",
        "mac",
        "cgroupPath",
        "io.example/notes",
    ];
    let mut wanted: Map<_, _> = all
        .iter()
        .map(|name| ((*name).to_owned(), json!(true)))
        .collect();
    wanted.insert("aliases".to_owned(), json!(true));
    let network = bench.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "one", "name": "other", "cniVersion": "0.1.0", "capabilities": wanted, "cni.dev/x": 1, "own": 1},
        {"type": "two", "capabilities": {"mac": true, "ips": false}},
    ]}));
    let mut attachment = attachment();
    let port = |host_port, protocol, host_ip: Option<&str>| PortMapping {
        host_port,
        container_port: 80,
        protocol,
        host_ip: host_ip.map(|ip| ip.parse().unwrap()),
    };
    attachment.capabilities = Capabilities {
        port_mappings: vec![
            port(8080, Protocol::Tcp, None),
            port(0, Protocol::Tcp, None),
            port(53, Protocol::Udp, Some("::1")),
        ],
        bandwidth: Some(Bandwidth {
            ingress_rate: 8000,
            ingress_burst: 16000,
            ..Bandwidth::default()
        }),
        dns: Some(Dns {
            servers: vec!["10.0.0.10".to_owned()],
            ..Dns::default()
        }),
        ip_ranges: vec![vec![IpRange {
            subnet: "10.0.0.0/24".to_owned(),
            gateway: Some("10.0.0.1".parse().unwrap()),
            ..IpRange::default()
        }]],
        ips: vec!["10.0.0.9/24".to_owned()],
        mac: Some("c2:11:22:33:44:55".to_owned()),
        cgroup_path: Some("/pods/x".to_owned()),
        extra: json!({"io.example/notes": {"a": "b"}})
            .as_object()
            .unwrap()
            .clone(),
    };
    network.add(&attachment).await.unwrap();
    let expected = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "one", "own": 1,
        "args": {"cni": {"ips": ["10.0.0.9/24"]}},
        "runtimeConfig": {
            "portMappings": [
                {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                {"hostPort": 53, "containerPort": 80, "protocol": "udp", "hostIP": "::1"},
            ],
            "bandwidth": {"ingressRate": 8000, "ingressBurst": 16000},
            "dns": {"servers": ["10.0.0.10"], "searches": [], "options": []},
            "ipRanges": [[{"subnet": "10.0.0.0/24", "gateway": "10.0.0.1"}]],
            "ips": ["10.0.0.9/24"],
            "mac": "c2:11:22:33:44:55",
            "cgroupPath": "/pods/x",
            "io.example/notes": {"a": "b"},
        },
    });
    assert_eq!(bench.stdin("one", "ADD"), expected);
    assert_eq!(
        bench.stdin("two", "ADD")["runtimeConfig"],
        json!({"mac": "c2:11:22:33:44:55"})
    );
}

#[tokio::test]
async fn requested_addresses_are_added_to_the_args_of_a_configuration() {
    let bench = Bench::new();
    for name in ["one", "two", "three"] {
        bench.good(name, "10.0.0.2/24");
    }
    let network = bench.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "one", "args": {"own": 1, "cni": {"labels": [{"key": "app", "value": "x"}], "ips": ["10.0.0.8"]}}},
        {"type": "two", "args": {"own": 1}},
        {"type": "three", "args": null},
    ]}));
    let mut attachment = attachment();
    network.add(&attachment).await.unwrap();
    assert_eq!(bench.stdin("two", "ADD")["args"], json!({"own": 1}));
    attachment.capabilities.ips = vec!["10.0.0.9".to_owned()];
    network.add(&attachment).await.unwrap();
    let expected = [
        (
            "one",
            json!({"own": 1, "cni": {"labels": [{"key": "app", "value": "x"}], "ips": ["10.0.0.9"]}}),
        ),
        ("two", json!({"own": 1, "cni": {"ips": ["10.0.0.9"]}})),
        ("three", json!({"cni": {"ips": ["10.0.0.9"]}})),
    ];
    for (plugin, args) in expected {
        assert_eq!(bench.stdin(plugin, "ADD")["args"], args, "{plugin}");
    }
}

#[tokio::test]
async fn check_runs_each_plugin_unless_disabled() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    bench.plugin("two", "[ $CNI_COMMAND != CHECK ] || exit 3");
    let made = CniResult::from_value(
        result("1.0.0", "10.0.0.2/24"),
        crate::version::SpecVersion::V1_0_0,
    )
    .unwrap();
    let check = async |list: &Value| bench.network(list).check(&attachment(), &made).await;

    assert_eq!(
        check(&list("1.0.0", &["one"])).await.unwrap(),
        CheckOutcome::Passed
    );
    assert_eq!(bench.stdin("one", "CHECK")["prevResult"], made.raw);
    assert!(matches!(
        check(&list("1.0.0", &["one", "two"])).await,
        Err(Error::Failed { .. })
    ));
    assert_eq!(
        check(&list("0.3.1", &["two"])).await.unwrap(),
        CheckOutcome::NotInVersion
    );
    let mut quiet = list("1.0.0", &["two"]);
    quiet["disableCheck"] = json!(true);
    assert_eq!(check(&quiet).await.unwrap(), CheckOutcome::Disabled);
}

#[tokio::test]
async fn unsafe_attachment_parameters_are_rejected() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    let network = bench.network(&list("1.0.0", &["one"]));
    let good = attachment();
    let args = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
    let mut bad = Vec::new();
    for id in ["", "../x", "a b", "-a"] {
        bad.push(Attachment {
            container_id: id.to_owned(),
            ..good.clone()
        });
    }
    for ifname in ["", ".", "..", "a/b", "a b", "a:b", "sixteen-letters!"] {
        bad.push(Attachment {
            ifname: ifname.to_owned(),
            ..good.clone()
        });
    }
    for args in [
        args("", "x"),
        args("a=b", "x"),
        args("a;b", "x"),
        args("a", "x;K=v"),
    ] {
        bad.push(Attachment {
            args,
            ..good.clone()
        });
    }
    for attachment in bad {
        let add = network.add(&attachment).await.unwrap_err();
        let del = network.del(&attachment, None).await.unwrap_err();
        assert!(
            matches!(
                (&add, &del),
                (Error::Attachment { .. }, Error::Attachment { .. })
            ),
            "{add} {del}"
        );
    }
    assert!(bench.order().is_empty());
}
