//! Metrics of the ledger. Labels are names from the configuration and a fixed set of words.

use std::collections::BTreeMap;

use prometheus::{IntCounterVec, IntGaugeVec, Registry};
use switchyard_operator_api::{
    AmountView, ComputeView, DevicesView, ExclusiveView, PortView, RefusalView, ReservedView,
};

use super::families::{counters, gauges};
use super::table;

/// The value of the label `resource` for all host ports.
const PORT: &str = "port";

/// The values of the label `resource` for processors and memory: exclusive cores, and the reservations of all
/// tasks.
const CORE: &str = "core";
const CPU: &str = "cpu_milli";
const MEMORY: &str = "memory_bytes";

/// Gauges of the ledger, and its own counter of refusals.
#[derive(Debug)]
pub(super) struct LedgerMetrics {
    capacity: IntGaugeVec,
    claims: IntGaugeVec,
    refusals: IntCounterVec,
}

impl LedgerMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            capacity: gauges(registry, table::LEDGER_CAPACITY)?,
            claims: gauges(registry, table::LEDGER_CLAIMS)?,
            refusals: counters(registry, table::LEDGER_REFUSALS)?,
        })
    }

    pub(super) fn set(&self, devices: &DevicesView) {
        self.capacity.reset();
        self.claims.reset();
        for group in &devices.groups {
            let title = group.title();
            self.capacity
                .with_label_values(&[&title])
                .set(signed(group.capacity));
            for held in &group.held {
                self.claims
                    .with_label_values(&[&held.owner, &title])
                    .set(signed(held.slots));
            }
        }
        let mut ports: BTreeMap<&str, usize> = BTreeMap::new();
        for PortView { owner, .. } in &devices.ports {
            *ports.entry(owner).or_default() += 1;
        }
        for (owner, count) in ports {
            self.claims
                .with_label_values(&[owner, PORT])
                .set(signed(count));
        }
        self.set_compute(&devices.compute);
        for RefusalView {
            owner,
            resource,
            reason,
            count,
        } in &devices.refusals
        {
            let counter = self.refusals.with_label_values(&[owner, resource, reason]);
            // The ledger counts; this counter only takes over its value.
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }
}

impl LedgerMetrics {
    fn set_compute(&self, compute: &ComputeView) {
        if let Some(AmountView {
            cpu_milli,
            memory_bytes,
        }) = compute.capacity
        {
            self.capacity
                .with_label_values(&[CPU])
                .set(signed(cpu_milli));
            self.capacity
                .with_label_values(&[MEMORY])
                .set(signed(memory_bytes));
        }
        for ReservedView { owner, amount } in &compute.reserved {
            self.claims
                .with_label_values(&[owner.as_str(), CPU])
                .set(signed(amount.cpu_milli));
            self.claims
                .with_label_values(&[owner.as_str(), MEMORY])
                .set(signed(amount.memory_bytes));
        }
        for ExclusiveView { owner, count, .. } in &compute.exclusive {
            self.claims
                .with_label_values(&[owner.as_str(), CORE])
                .add(signed(*count));
        }
    }
}

fn signed(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}
