//! Makes metrics as the table describes them, and registers them.

use prometheus::core::Collector;
use prometheus::{
    Counter, Error, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry,
};

use super::table::{Description, Kind};

/// A count as a gauge has it.
pub(super) fn signed(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// Raises a counter to a count that somebody else keeps.
pub(super) fn take_over(counter: &IntCounter, count: u64) {
    counter.inc_by(count.saturating_sub(counter.get()));
}

/// Name and help text of a metric of this kind.
fn options(metric: Description, kind: Kind) -> prometheus::Result<Opts> {
    if metric.kind == kind {
        Ok(Opts::new(metric.name, metric.help))
    } else {
        Err(Error::Msg(format!(
            "{} is no {}",
            metric.name,
            kind.as_str()
        )))
    }
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// A new counter without labels.
pub(super) fn counter(registry: &Registry, metric: Description) -> prometheus::Result<IntCounter> {
    registered(
        registry,
        IntCounter::with_opts(options(metric, Kind::Counter)?)?,
    )
}

/// A new counter of time, without labels.
pub(super) fn seconds_counter(
    registry: &Registry,
    metric: Description,
) -> prometheus::Result<Counter> {
    registered(
        registry,
        Counter::with_opts(options(metric, Kind::Counter)?)?,
    )
}

/// A new gauge without labels.
pub(super) fn gauge(registry: &Registry, metric: Description) -> prometheus::Result<IntGauge> {
    registered(
        registry,
        IntGauge::with_opts(options(metric, Kind::Gauge)?)?,
    )
}

/// A new gauge of fractions, without labels.
pub(super) fn float_gauge(registry: &Registry, metric: Description) -> prometheus::Result<Gauge> {
    registered(registry, Gauge::with_opts(options(metric, Kind::Gauge)?)?)
}

/// A new family of counters.
pub(super) fn counters(
    registry: &Registry,
    metric: Description,
) -> prometheus::Result<IntCounterVec> {
    registered(
        registry,
        IntCounterVec::new(options(metric, Kind::Counter)?, metric.labels)?,
    )
}

/// A new family of gauges.
pub(super) fn gauges(registry: &Registry, metric: Description) -> prometheus::Result<IntGaugeVec> {
    registered(
        registry,
        IntGaugeVec::new(options(metric, Kind::Gauge)?, metric.labels)?,
    )
}

/// A new family of gauges of fractions.
pub(super) fn float_gauges(
    registry: &Registry,
    metric: Description,
) -> prometheus::Result<GaugeVec> {
    registered(
        registry,
        GaugeVec::new(options(metric, Kind::Gauge)?, metric.labels)?,
    )
}

/// A new family of histograms.
pub(super) fn histograms(
    registry: &Registry,
    metric: Description,
    buckets: Vec<f64>,
) -> prometheus::Result<HistogramVec> {
    let options = HistogramOpts::from(options(metric, Kind::Histogram)?).buckets(buckets);
    registered(registry, HistogramVec::new(options, metric.labels)?)
}

/// The kubelet's own buckets for operations of a runtime: 5 ms to 745 s.
pub(super) fn runtime_buckets() -> prometheus::Result<Vec<f64>> {
    prometheus::exponential_buckets(0.005, 2.5, 14)
}

/// The buckets of operations. From 20 ms to 2.5 s, where starts are, each is about 1.5 times the one before it, so that a
/// quantile shows a start that takes half as long again.
pub(super) fn operation_buckets() -> Vec<f64> {
    vec![
        0.005, 0.01, 0.02, 0.03, 0.045, 0.07, 0.1, 0.15, 0.225, 0.34, 0.5, 0.75, 1.1, 1.7, 2.5,
        5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    ]
}

/// The buckets of steps. There are many steps, of which sums and numbers are used: the buckets only distinguish quick
/// ones from slow ones.
pub(super) fn step_buckets() -> Vec<f64> {
    vec![0.1, 1.0, 10.0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_resolve_starts_of_20_ms_to_2_s() {
        let buckets = operation_buckets();
        let fine: Vec<f64> = buckets
            .iter()
            .copied()
            .filter(|bound| (0.02..=2.5).contains(bound))
            .collect();
        assert!(fine[0] == 0.02 && fine[fine.len() - 1] >= 2.0, "{fine:?}");
        for pair in fine.windows(2) {
            let ratio = pair[1] / pair[0];
            assert!((1.4..1.6).contains(&ratio), "{pair:?}");
        }
        assert!(buckets.is_sorted(), "{buckets:?}");
    }
}
