//! What the ledger has given to whom. Labels are names of the configuration and words of ours.

use std::collections::BTreeMap;

use prometheus::{IntCounterVec, IntGaugeVec, Registry};

use super::{counters, gauges};
use crate::status::{Devices, PortView, RefusalView};

/// The resource that all ports of the host are.
const PORT: &str = "port";

/// Gauges of the ledger, and its own count of refusals.
#[derive(Debug)]
pub(super) struct Ledger {
    capacity: IntGaugeVec,
    claims: IntGaugeVec,
    refusals: IntCounterVec,
}

impl Ledger {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            capacity: gauges(
                registry,
                "switchyard_ledger_capacity",
                "Slots of devices that there are, by group.",
                &["resource"],
            )?,
            claims: gauges(
                registry,
                "switchyard_ledger_claims",
                "Slots of devices, by group, and ports of the host that an owner has.",
                &["owner", "resource"],
            )?,
            refusals: counters(
                registry,
                "switchyard_ledger_refusals_total",
                "Devices and ports that were asked for and not given, by reason.",
                &["owner", "resource", "reason"],
            )?,
        })
    }

    pub(super) fn set(&self, devices: &Devices) {
        self.capacity.reset();
        self.claims.reset();
        for group in &devices.groups {
            let title = group.title();
            self.capacity.with_label_values(&[&title]).set(signed(group.capacity));
            for held in &group.held {
                self.claims.with_label_values(&[&held.owner, &title]).set(signed(held.slots));
            }
        }
        let mut ports: BTreeMap<&str, usize> = BTreeMap::new();
        for PortView { owner, .. } in &devices.ports {
            *ports.entry(owner).or_default() += 1;
        }
        for (owner, count) in ports {
            self.claims.with_label_values(&[owner, PORT]).set(signed(count));
        }
        for RefusalView { owner, resource, reason, count } in &devices.refusals {
            let counter = self.refusals.with_label_values(&[owner, resource, reason]);
            // The ledger counts; here is only shown what it says.
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
