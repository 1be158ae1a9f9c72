//! The conventional `process_*` metrics of this process, read from `/proc/self` (proc(5)).

use std::fs;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};
use prometheus::{Counter, Gauge, Registry};
use switchyard_linux::process::stat_fields;

use super::families::{float_gauge, seconds_counter};
use super::table;

/// Gauges of this process.
#[derive(Debug)]
pub(super) struct ProcessMetrics {
    resident: Gauge,
    virtual_memory: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    threads: Gauge,
    started: Gauge,
    cpu: Counter,
}

impl ProcessMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |metric| float_gauge(registry, metric);
        Ok(Self {
            resident: gauge(table::RESIDENT_MEMORY)?,
            virtual_memory: gauge(table::VIRTUAL_MEMORY)?,
            open_fds: gauge(table::OPEN_FDS)?,
            max_fds: gauge(table::MAX_FDS)?,
            threads: gauge(table::THREADS)?,
            started: gauge(table::STARTED)?,
            cpu: seconds_counter(registry, table::CPU)?,
        })
    }

    /// Updates all values; a value that cannot be read stays unchanged.
    pub(super) fn refresh(&self) {
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // One of the descriptors is that of the directory being read.
            self.open_fds
                .set(float(entries.count().saturating_sub(1) as u64));
        }
        if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
            self.max_fds.set(float(soft));
        }
        let (Some(stat), Some(ticks), Some(page)) = (
            fs::read_to_string("/proc/self/stat").ok(),
            number(SysconfVar::CLK_TCK),
            number(SysconfVar::PAGE_SIZE),
        ) else {
            return;
        };
        // proc(5) numbers the fields from 1; this list begins with the third.
        let fields = stat_fields(&stat);
        let field = |index: usize| {
            fields
                .get(index - 3)
                .and_then(|text| text.parse::<f64>().ok())
        };
        if let (Some(user), Some(system)) = (field(14), field(15)) {
            let used = (user + system) / ticks;
            self.cpu.inc_by((used - self.cpu.get()).max(0.0));
        }
        if let Some(threads) = field(20) {
            self.threads.set(threads);
        }
        if let (Some(started), Some(booted)) = (field(22), boot_time()) {
            self.started.set(booted + started / ticks);
        }
        if let (Some(size), Some(resident)) = (field(23), field(24)) {
            self.virtual_memory.set(size);
            self.resident.set(resident * page);
        }
    }
}

fn boot_time() -> Option<f64> {
    fs::read_to_string("/proc/stat")
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.parse().ok())
}

fn number(variable: SysconfVar) -> Option<f64> {
    let value = sysconf(variable).ok()??;
    u64::try_from(value).ok().map(float)
}

/// A gauge is a float: values beyond 2^53 are rounded, which is acceptable.
const fn float(value: u64) -> f64 {
    value as f64
}
