//! Tests of the text of the metrics.

use std::collections::BTreeMap;

use prometheus::Opts;
use switchyard_core::id::Owner;
use switchyard_logkeeper::protocol::Counters;

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
        totals,
        ..Stats::default()
    };
    let part = Part::needed("containerd", Condition::Down("gone".into()));
    let counts = NodeCounts {
        sandboxes: BTreeMap::from([((Owner::Kubernetes, "ready"), 2)]),
        images: Some(7),
        unreadable: 2,
        pulls: BTreeMap::from([("not_found", 1)]),
        logs: Some(logs),
        reported: ReportedFigures {
            streaming: vec![("exec", 3), ("attach", 0)],
            ..ReportedFigures::default()
        },
        parts: vec![part],
        ..NodeCounts::default()
    };
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
    assert!(
        first.contains("switchyard_image_pulls_total{result=\"not_found\"} 1"),
        "{first}"
    );
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
