//! Metrics of the ledger. Labels are names from the configuration and a fixed set of words.

use std::collections::BTreeMap;

use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Registry};
use switchyard_operator_api::{
    AmountView, ComputeView, DevicesView, ExclusiveView, PortView, RefusalView, ReservedView,
};

use super::families::{counters, float_gauges, gauges, signed, take_over};
use super::table;

/// Gauges of the ledger, and its own counter of refusals.
#[derive(Debug)]
pub(super) struct LedgerMetrics {
    device_capacity: IntGaugeVec,
    device_claims: IntGaugeVec,
    ports: IntGaugeVec,
    // Of one series, which is absent while the capacity is not known.
    cpu_capacity: GaugeVec,
    cpu_claims: GaugeVec,
    exclusive: IntGaugeVec,
    // As that of processors.
    memory_capacity: IntGaugeVec,
    memory_claims: IntGaugeVec,
    refusals: IntCounterVec,
    former: FormerGauges,
}

/// The families of the former version, each of which has several units.
#[derive(Debug)]
struct FormerGauges {
    capacity: IntGaugeVec,
    claims: IntGaugeVec,
}

impl LedgerMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            device_capacity: gauges(registry, table::DEVICE_CAPACITY)?,
            device_claims: gauges(registry, table::DEVICE_CLAIMS)?,
            ports: gauges(registry, table::PORT_CLAIMS)?,
            cpu_capacity: float_gauges(registry, table::CPU_CAPACITY)?,
            cpu_claims: float_gauges(registry, table::CPU_CLAIMS)?,
            exclusive: gauges(registry, table::EXCLUSIVE_CORES)?,
            memory_capacity: gauges(registry, table::MEMORY_CAPACITY)?,
            memory_claims: gauges(registry, table::MEMORY_CLAIMS)?,
            refusals: counters(registry, table::LEDGER_REFUSALS)?,
            former: FormerGauges::register(registry)?,
        })
    }

    pub(super) fn set(&self, devices: &DevicesView) {
        self.former.reset();
        self.set_devices(devices);
        self.set_compute(&devices.compute);
        for RefusalView {
            owner,
            resource,
            reason,
            count,
        } in &devices.refusals
        {
            let counter = self.refusals.with_label_values(&[owner, resource, reason]);
            take_over(&counter, *count);
        }
    }

    /// Sets what is held of device groups and host ports.
    fn set_devices(&self, devices: &DevicesView) {
        self.device_capacity.reset();
        self.device_claims.reset();
        self.ports.reset();
        for group in &devices.groups {
            let title = group.title();
            let capacity = signed(group.capacity);
            self.device_capacity
                .with_label_values(&[&title])
                .set(capacity);
            self.former.set_capacity(&title, capacity);
            for held in &group.held {
                let slots = signed(held.slots);
                self.device_claims
                    .with_label_values(&[&held.owner, &title])
                    .set(slots);
                self.former.set_claims(&held.owner, &title, slots);
            }
        }
        let mut ports: BTreeMap<&str, usize> = BTreeMap::new();
        for PortView { owner, .. } in &devices.ports {
            *ports.entry(owner).or_default() += 1;
        }
        for (owner, count) in ports {
            let count = signed(count);
            self.ports.with_label_values(&[owner]).set(count);
            self.former.set_claims(owner, "port", count);
        }
    }

    /// Sets what there is of processors and memory, and what is reserved.
    fn set_compute(&self, compute: &ComputeView) {
        self.cpu_capacity.reset();
        self.cpu_claims.reset();
        self.exclusive.reset();
        self.memory_capacity.reset();
        self.memory_claims.reset();
        if let Some(AmountView {
            cpu_milli,
            memory_bytes,
        }) = compute.capacity
        {
            self.cpu_capacity
                .with_label_values::<&str>(&[])
                .set(cores(cpu_milli));
            self.memory_capacity
                .with_label_values::<&str>(&[])
                .set(signed(memory_bytes));
            self.former.set_capacity("cpu_milli", signed(cpu_milli));
            self.former
                .set_capacity("memory_bytes", signed(memory_bytes));
        }
        for ReservedView { owner, amount } in &compute.reserved {
            let AmountView {
                cpu_milli,
                memory_bytes,
            } = *amount;
            self.cpu_claims
                .with_label_values(&[owner])
                .set(cores(cpu_milli));
            self.memory_claims
                .with_label_values(&[owner])
                .set(signed(memory_bytes));
            self.former
                .set_claims(owner, "cpu_milli", signed(cpu_milli));
            self.former
                .set_claims(owner, "memory_bytes", signed(memory_bytes));
        }
        for ExclusiveView { owner, count, .. } in &compute.exclusive {
            // An owner may have several tasks with cores.
            let exclusive = self.exclusive.with_label_values(&[owner]);
            exclusive.add(signed(*count));
            self.former.set_claims(owner, "core", exclusive.get());
        }
    }
}

impl FormerGauges {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            capacity: gauges(registry, table::LEDGER_CAPACITY)?,
            claims: gauges(registry, table::LEDGER_CLAIMS)?,
        })
    }

    fn reset(&self) {
        self.capacity.reset();
        self.claims.reset();
    }

    fn set_capacity(&self, resource: &str, amount: i64) {
        self.capacity.with_label_values(&[resource]).set(amount);
    }

    fn set_claims(&self, owner: &str, resource: &str, amount: i64) {
        self.claims
            .with_label_values(&[owner, resource])
            .set(amount);
    }
}

/// Thousandths of a processor as processors.
fn cores(milli: u64) -> f64 {
    milli as f64 / 1e3
}
