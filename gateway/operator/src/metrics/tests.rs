//! Tests of the text of the metrics.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use prometheus::Opts;
use switchyard_core::backend::{PluginResult, PluginRun, Trouble};
use switchyard_core::id::Owner;
use switchyard_core::operation::{
    EndedOperation, EndedStep, OperationId, OperationKind, Outcome, Subject,
};
use switchyard_core::{Error, ErrorKind};
use switchyard_linux::FileSystemSpace;
use switchyard_logkeeper::protocol::{Counters, LogFileSystem};

use super::*;
use crate::status::Condition;

fn text(metrics: &Metrics, counts: &NodeCounts) -> String {
    String::from_utf8(metrics.render(counts).unwrap()).unwrap()
}

#[test]
fn scrape_shows_current_node_metrics() {
    let metrics = Metrics::new().unwrap();
    let totals = Counters {
        dropped_lines: 5,
        ..Counters::default()
    };
    let logs = Stats {
        containers: 3,
        stalled_containers: 2,
        stall_age_ms: 2500,
        stalls: 4,
        pid: 7,
        totals,
        ..Stats::default()
    };
    let part = Part::needed("containerd", Condition::Down("gone".into()));
    let counts = NodeCounts {
        sandboxes: BTreeMap::from([((Owner::Kubernetes, "ready"), 2)]),
        images: Some(7),
        unreadable: 2,
        logs: Some(logs),
        reported: ReportedFigures {
            streaming: vec![("exec", 3), ("attach", 0)],
            ..ReportedFigures::default()
        },
        parts: vec![part],
        ..NodeCounts::default()
    };
    let earlier = NodeCounts {
        logs: Some(Stats {
            pid: 7,
            ..Stats::default()
        }),
        ..NodeCounts::default()
    };
    drop(text(&metrics, &earlier));
    let first = text(&metrics, &counts);
    assert!(
        first.contains("switchyard_sandboxes{owner=\"kubernetes\",state=\"ready\"} 2"),
        "{first}"
    );
    assert!(first.contains("switchyard_images 7"), "{first}");
    assert!(first.contains("switchyard_unreadable_objects 2"), "{first}");
    assert!(
        first.contains("switchyard_streaming_sessions{kind=\"exec\"} 3"),
        "{first}"
    );
    assert!(
        first.contains("switchyard_streaming_sessions{kind=\"attach\"} 0"),
        "{first}"
    );
    assert!(
        first.contains("switchyard_backend_up{part=\"containerd\"} 0"),
        "{first}"
    );
    assert!(first.contains("\nswitchyard_ready 0\n"), "{first}");
    assert!(first.contains("switchyard_build_info{"), "{first}");
    assert!(first.contains("switchyard_log_containers 3"), "{first}");
    assert!(
        first.contains("switchyard_log_dropped_lines_total 5"),
        "{first}"
    );
    assert!(
        first.contains("switchyard_log_stalled_containers 2"),
        "{first}"
    );
    assert!(
        first.contains("switchyard_log_stall_age_seconds 2.5"),
        "{first}"
    );
    assert!(first.contains("switchyard_log_stalls_total 4"), "{first}");
    let second = text(&metrics, &NodeCounts::default());
    assert!(!second.contains("switchyard_sandboxes{"), "{second}");
    assert!(second.contains("\nswitchyard_ready 1\n"), "{second}");
}

#[test]
fn scrape_shows_what_is_wrong_and_0_for_what_is_not() {
    let metrics = Metrics::new().unwrap();
    let counts = NodeCounts {
        unended: BTreeMap::from([(Owner::Kubernetes, 2)]),
        runtime_fault: Some("LogkeeperUnavailable".to_owned()),
        troubles: BTreeMap::from([(Trouble::SilentShim, vec!["a".to_owned()])]),
        ..NodeCounts::default()
    };
    let wrong = text(&metrics, &counts);
    for line in [
        "switchyard_unended_tasks{owner=\"kubernetes\"} 2",
        "switchyard_unended_tasks{owner=\"nomad\"} 0",
        "switchyard_runtime_down{reason=\"LogkeeperUnavailable\"} 1",
        "switchyard_troubles{kind=\"silent_shim\"} 1",
        "switchyard_troubles{kind=\"left_cgroup\"} 0",
    ] {
        assert!(wrong.contains(line), "{line}: {wrong}");
    }
    let well = text(&metrics, &NodeCounts::default());
    assert!(!well.contains("switchyard_runtime_down{"), "{well}");
    for line in [
        "switchyard_unended_tasks{owner=\"kubernetes\"} 0",
        "switchyard_troubles{kind=\"silent_shim\"} 0",
    ] {
        assert!(well.contains(line), "{line}: {well}");
    }
}

/// Reports the end of an operation of Nomad's.
fn end(metrics: &Metrics, kind: OperationKind, argument: &str, outcome: Outcome<'_>) {
    let subject = Subject::argument(argument);
    metrics.operations.ended(&EndedOperation {
        id: OperationId::default(),
        trace: None,
        kind,
        owner: Some(Owner::Nomad),
        subject: &subject,
        caller: None,
        began_at: SystemTime::now(),
        took: Duration::from_secs(1),
        outcome,
    });
}

#[test]
fn failures_are_counted_by_kind_and_pulls_by_registry() {
    let metrics = Metrics::new().unwrap();
    let refused = Error::new(ErrorKind::Unauthenticated, "no");
    let pull = |reference: &str, outcome| {
        end(&metrics, OperationKind::PullImage, reference, outcome);
    };
    pull("quay.io:5000/shop/cart:1", Outcome::Failed(&refused));
    pull("busybox", Outcome::Succeeded);
    pull("docker.io/library/busybox:1", Outcome::Dropped);
    // It is cut in the middle of its digest.
    let cut = format!("quay.io:5000/{}@sha256:{}", "a".repeat(200), "0".repeat(64));
    pull(&cut, Outcome::Succeeded);
    pull("No such thing\n", Outcome::Succeeded);
    let observer = metrics.backend_observer();
    observer.layer_received("quay.io:5000", 3);
    observer.layer_received("quay.io:5000", 4);
    end(
        &metrics,
        OperationKind::StartTask,
        "",
        Outcome::Failed(&Error::unavailable("containerd is away")),
    );
    for failure in [None, Some(ErrorKind::DeadlineExceeded)] {
        metrics.operations.step_ended(EndedStep {
            operation: OperationKind::ExecSync,
            name: "start_command",
            took: Duration::from_secs(30),
            failure,
        });
    }
    let run = |result| PluginRun {
        plugin: "bridge",
        command: "ADD",
        result,
        took: Duration::from_secs(1),
    };
    observer.plugin_ended(run(PluginResult::Succeeded));
    observer.plugin_ended(run(PluginResult::Failed));
    let text = text(&metrics, &NodeCounts::default());
    for line in [
        "image_pulls_total{registry=\"quay.io:5000\",result=\"unauthenticated\"} 1",
        "image_pulls_total{registry=\"quay.io:5000\",result=\"ok\"} 1",
        "image_pulls_total{registry=\"docker.io\",result=\"ok\"} 1",
        "image_pulls_total{registry=\"docker.io\",result=\"cancelled\"} 1",
        "image_pulls_total{registry=\"other\",result=\"ok\"} 1",
        "image_pull_bytes_total{registry=\"quay.io:5000\"} 7",
        "operation_failures_total{kind=\"unavailable\",operation=\"start_task\",owner=\"nomad\"} 1",
        "operation_failures_total{kind=\"unauthenticated\",operation=\"pull_image\",owner=\"nomad\"} 1",
        "operation_step_failures_total{kind=\"deadline_exceeded\",operation=\"exec_sync\",step=\"start_command\"} 1",
        "operation_step_duration_seconds_count{operation=\"exec_sync\",step=\"start_command\"} 2",
        "cni_runs_total{command=\"ADD\",plugin=\"bridge\",result=\"ok\"} 1",
        "cni_runs_total{command=\"ADD\",plugin=\"bridge\",result=\"failed\"} 1",
        "cni_run_duration_seconds_count{command=\"ADD\",plugin=\"bridge\"} 2",
    ] {
        let line = format!("switchyard_{line}");
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn every_metric_of_the_table_is_registered() {
    let metrics = Metrics::new().unwrap();
    for metric in table::SECTIONS.iter().flat_map(|(_, metrics)| *metrics) {
        let same = IntGaugeVec::new(Opts::new(metric.name, metric.help), metric.labels).unwrap();
        let again = metrics.registry.register(Box::new(same));
        assert!(
            matches!(again, Err(prometheus::Error::AlreadyReg)),
            "{metric:?}: {again:?}"
        );
    }
}

#[test]
fn scrape_shows_process_metrics() {
    let metrics = Metrics::new().unwrap();
    let text = text(&metrics, &NodeCounts::default());
    let value = |name: &str| -> f64 {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")))
            .expect(name);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("process_resident_memory_bytes") > 100_000.0);
    assert!(value("process_open_fds") >= 3.0);
    assert!(value("process_max_fds") >= value("process_open_fds"));
    assert!(value("process_threads") >= 1.0);
    assert!(value("process_start_time_seconds") > 1e9);
    assert!(value("process_cpu_seconds_total") >= 0.0);
}

#[test]
fn plugins_that_are_hosted_no_more_leave_no_values() {
    let metrics = Metrics::new().unwrap();
    let hosting = |plugins| {
        let reported = ReportedFigures {
            plugins,
            ..ReportedFigures::default()
        };
        let counts = NodeCounts {
            reported,
            ..NodeCounts::default()
        };
        text(&metrics, &counts)
    };
    let ended = PluginFigures {
        states: vec![("ended", 1)],
        ..PluginFigures::default()
    };
    let value = "switchyard_device_host_plugins{state=\"ended\"}";
    assert!(hosting(Some(ended)).contains(value));
    assert!(!hosting(None).contains(value));
}

#[test]
fn disks_and_limits_have_series_only_while_they_are_known() {
    let metrics = Metrics::new().unwrap();
    let disk = |of, mount_point: &str, inodes| WatchedDisk {
        of,
        space: FileSystemSpace {
            mount_point: mount_point.into(),
            size_bytes: 1000,
            avail_bytes: 40,
            inodes,
            free_inodes: inodes / 2,
        },
    };
    let limit = NodeLimit {
        name: "processes",
        used: 3,
        most: 4,
    };
    let mut features = HostFeatures::default();
    features.add("openat2", None);
    features.add("apparmor", Some("it is off".to_owned()));
    let counts = NodeCounts {
        disks: vec![disk("containerd", "/data", 10), disk("logs", "/logs", 0)],
        limits: vec![limit],
        features,
        ..NodeCounts::default()
    };
    let first = text(&metrics, &counts);
    for line in [
        "switchyard_filesystem_size_bytes{mountpoint=\"/data\",of=\"containerd\"} 1000",
        "switchyard_filesystem_avail_bytes{mountpoint=\"/logs\",of=\"logs\"} 40",
        "switchyard_filesystem_inodes{mountpoint=\"/data\",of=\"containerd\"} 10",
        "switchyard_filesystem_free_inodes{mountpoint=\"/data\",of=\"containerd\"} 5",
        "switchyard_node_limit_used_ratio{limit=\"processes\"} 0.75",
        "switchyard_host_feature{feature=\"openat2\"} 1",
        "switchyard_host_feature{feature=\"apparmor\"} 0",
    ] {
        assert!(first.contains(line), "{line}: {first}");
    }
    let of_logs = "switchyard_filesystem_inodes{mountpoint=\"/logs\"";
    assert!(!first.contains(of_logs), "{first}");
    let second = text(&metrics, &NodeCounts::default());
    assert!(!second.contains("\nswitchyard_filesystem_"), "{second}");
    assert!(!second.contains("\nswitchyard_node_limit_"), "{second}");
}

#[test]
fn file_systems_with_logs_are_named() {
    let metrics = Metrics::new().unwrap();
    let counts = |stats| NodeCounts {
        logs: Some(stats),
        ..NodeCounts::default()
    };
    let slow = LogFileSystem {
        mount_point: "/logs".into(),
        full_pipes: 2,
        stall_age_ms: 2500,
        ..LogFileSystem::default()
    };
    let named = counts(Stats {
        stall_age_ms: 2500,
        file_systems: vec![slow],
        ..Stats::default()
    });
    let first = text(&metrics, &named);
    for line in [
        "switchyard_log_full_pipes{mountpoint=\"/logs\"} 2",
        "switchyard_log_file_system_stalled_seconds{mountpoint=\"/logs\"} 2.5",
        "switchyard_log_write_duration_seconds_count{mountpoint=\"/logs\"} 0",
    ] {
        assert!(first.contains(line), "{line}: {first}");
    }
    // A logkeeper of a former version names none.
    let unnamed = counts(Stats {
        stall_age_ms: 3000,
        ..Stats::default()
    });
    let second = text(&metrics, &unnamed);
    let line = "switchyard_log_file_system_stalled_seconds{mountpoint=\"unknown\"} 3";
    assert!(second.contains(line), "{second}");
    assert!(!second.contains("/logs"), "{second}");
    // Without an answer, none is known to hang.
    let third = text(&metrics, &NodeCounts::default());
    assert!(!third.contains("stalled_seconds{"), "{third}");
}
