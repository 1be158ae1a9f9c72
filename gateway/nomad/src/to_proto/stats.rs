//! Usage of a task, with rates between two samples.

use std::collections::BTreeMap;
use std::time::SystemTime;

use switchyard_core::stats::{CpuUsage, MemoryUsage, Usage};
use switchyard_proto::nomad::drivers::proto as nomad;

use crate::session::Processors;

/// The usage of a task at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// Time at which it was read.
    pub(crate) at: SystemTime,
    /// The values.
    pub(crate) usage: Usage,
}

// === impl Sample ===

impl Sample {
    /// The usage of a task when it was started: none yet.
    pub(crate) fn beginning(at: SystemTime) -> Self {
        let cpu = CpuUsage {
            at,
            total_ns: 0,
            user_ns: Some(0),
            system_ns: Some(0),
            periods: None,
            throttled_periods: None,
            throttled_ns: None,
            pressure: None,
        };
        Self {
            at,
            usage: Usage {
                cpu: Some(cpu),
                ..Usage::default()
            },
        }
    }
}

/// The usage of a task. A value that is not available, such as a rate without an earlier sample, is not
/// listed in the measured fields.
pub(crate) fn stats(
    id: &str,
    before: Option<&Sample>,
    now: &Sample,
    processors: Processors,
) -> nomad::TaskStats {
    let cpu = now.usage.cpu.as_ref();
    let earlier = before.and_then(|before| before.usage.cpu.as_ref());
    let usage = nomad::TaskResourceUsage {
        cpu: Some(
            cpu.map(|cpu| cpu_usage(earlier, cpu, processors))
                .unwrap_or_default(),
        ),
        memory: Some(
            now.usage
                .memory
                .as_ref()
                .map(|memory| memory_usage(memory, now))
                .unwrap_or_default(),
        ),
    };
    nomad::TaskStats {
        id: id.to_owned(),
        timestamp: Some(now.at.into()),
        agg_resource_usage: Some(usage),
        resource_usage_by_pid: BTreeMap::new(),
    }
}

fn cpu_usage(before: Option<&CpuUsage>, now: &CpuUsage, processors: Processors) -> nomad::CpuUsage {
    use nomad::cpu_usage::Fields;
    let mut measured = Vec::new();
    let mut known = |field: Fields, value: Option<f64>| {
        if value.is_some() {
            measured.push(field.into());
        }
        value.unwrap_or_default()
    };
    let elapsed = before.and_then(|before| now.at.duration_since(before.at).ok());
    let elapsed = elapsed
        .map(|elapsed| elapsed.as_secs_f64() * 1e9)
        .filter(|ns| *ns > 0.0);
    let rate = |of: fn(&CpuUsage) -> Option<u64>| {
        let used = of(now)?.checked_sub(of(before?)?)?;
        Some(float(used) / elapsed? * 100.0)
    };
    let percent = rate(|cpu| Some(cpu.total_ns));
    let per_core = (processors.cores > 0 && processors.total_mhz > 0)
        .then(|| float(processors.total_mhz) / f64::from(processors.cores));
    let usage = nomad::CpuUsage {
        percent: known(Fields::Percent, percent),
        system_mode: known(Fields::SystemMode, rate(|cpu| cpu.system_ns)),
        user_mode: known(Fields::UserMode, rate(|cpu| cpu.user_ns)),
        total_ticks: known(
            Fields::TotalTicks,
            percent.zip(per_core).map(|(used, mhz)| used / 100.0 * mhz),
        ),
        throttled_periods: now.throttled_periods.unwrap_or_default(),
        throttled_time: now.throttled_ns.unwrap_or_default(),
        measured_fields: Vec::new(),
    };
    if now.throttled_periods.is_some() {
        measured.push(Fields::ThrottledPeriods.into());
    }
    if now.throttled_ns.is_some() {
        measured.push(Fields::ThrottledTime.into());
    }
    nomad::CpuUsage {
        measured_fields: measured,
        ..usage
    }
}

fn memory_usage(memory: &MemoryUsage, now: &Sample) -> nomad::MemoryUsage {
    use nomad::memory_usage::Fields;
    let mut measured = Vec::new();
    let mut known = |field: Fields, value: Option<u64>| {
        if value.is_some() {
            measured.push(field.into());
        }
        value.unwrap_or_default()
    };
    let usage = nomad::MemoryUsage {
        rss: known(Fields::Rss, memory.rss_bytes),
        cache: known(Fields::Cache, memory.cache_bytes),
        max_usage: known(Fields::MaxUsage, memory.peak_bytes),
        kernel_usage: known(Fields::KernelUsage, memory.kernel_bytes),
        kernel_max_usage: 0,
        usage: known(Fields::Usage, Some(memory.usage_bytes)),
        swap: known(
            Fields::Swap,
            now.usage.swap.as_ref().map(|swap| swap.usage_bytes),
        ),
        measured_fields: Vec::new(),
    };
    nomad::MemoryUsage {
        measured_fields: measured,
        ..usage
    }
}

/// As a floating-point number, which is exact up to 2^53: 104 days of nanoseconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "what is lost is far below what is shown"
)]
const fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nomad::cpu_usage::Fields;

    use super::*;

    fn sample(seconds: u64, used_ms: u64) -> Sample {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let cpu = CpuUsage {
            at,
            total_ns: used_ms * 1_000_000,
            user_ns: Some(used_ms * 750_000),
            system_ns: Some(used_ms * 250_000),
            periods: None,
            throttled_periods: Some(3),
            throttled_ns: None,
            pressure: None,
        };
        Sample {
            at,
            usage: Usage {
                cpu: Some(cpu),
                ..Usage::default()
            },
        }
    }

    fn cpu(before: Option<&Sample>, now: &Sample, processors: Processors) -> nomad::CpuUsage {
        let stats = stats("id", before, now, processors);
        stats
            .agg_resource_usage
            .and_then(|usage| usage.cpu)
            .expect("it is always set")
    }

    #[test]
    fn cpu_percent_is_per_core_and_ticks_scale_with_speed() {
        let processors = Processors {
            cores: 4,
            total_mhz: 8000,
        };
        let usage = cpu(Some(&sample(10, 500)), &sample(12, 3500), processors);
        assert_eq!(
            (usage.percent, usage.user_mode, usage.system_mode),
            (150.0, 112.5, 37.5)
        );
        assert_eq!((usage.total_ticks, usage.throttled_periods), (3000.0, 3));
        let measured = [
            Fields::Percent,
            Fields::SystemMode,
            Fields::UserMode,
            Fields::TotalTicks,
            Fields::ThrottledPeriods,
        ];
        assert_eq!(usage.measured_fields, measured.map(i32::from));
    }

    #[test]
    fn first_sample_has_the_averages_since_the_start() {
        let processors = Processors {
            cores: 4,
            total_mhz: 8000,
        };
        let started = |seconds| Sample::beginning(sample(seconds, 0).at);
        for (began, seconds, used_ms, percent, user) in [
            (10, 12, 1000, 50.0, 37.5),
            (10, 12, 0, 0.0, 0.0),
            // One that is adopted after hours.
            (0, 7200, 3_600_000, 50.0, 37.5),
            // The clock was set back.
            (12, 10, 1000, 0.0, 0.0),
        ] {
            let usage = cpu(Some(&started(began)), &sample(seconds, used_ms), processors);
            assert_eq!(
                (usage.percent, usage.user_mode),
                (percent, user),
                "{began} {seconds}"
            );
            assert_eq!(
                usage.measured_fields.contains(&Fields::Percent.into()),
                began < seconds,
                "{began} {seconds}"
            );
        }
    }

    #[test]
    fn unavailable_stats_are_not_listed_as_measured() {
        let first = cpu(
            None,
            &sample(10, 500),
            Processors {
                cores: 4,
                total_mhz: 8000,
            },
        );
        assert_eq!(first.measured_fields, [i32::from(Fields::ThrottledPeriods)]);
        let unsaid = cpu(
            Some(&sample(10, 500)),
            &sample(12, 3500),
            Processors::default(),
        );
        assert!(!unsaid.measured_fields.contains(&Fields::TotalTicks.into()));
        // The clock was set back.
        let back = cpu(
            Some(&sample(12, 500)),
            &sample(10, 3500),
            Processors::default(),
        );
        assert_eq!(back.percent, 0.0);
    }

    #[test]
    fn stats_without_samples_have_all_messages() {
        let nothing = Sample {
            at: SystemTime::UNIX_EPOCH,
            usage: Usage::default(),
        };
        let stats = stats("id", None, &nothing, Processors::default());
        let usage = stats.agg_resource_usage.expect("it is always set");
        assert!(stats.timestamp.is_some() && usage.cpu.is_some() && usage.memory.is_some());
    }
}
