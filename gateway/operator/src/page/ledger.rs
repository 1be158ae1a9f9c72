//! Devices, host ports, processors and memory, with their holders, as rows.

use std::collections::BTreeMap;

use switchyard_operator_api::text::{processors, size};
use switchyard_operator_api::{
    AmountView, ComputeView, DevicesView, ExclusiveView, GroupView, PortView, SlotView,
};

use super::text;
use super::work::Tone;

/// Maximum number of rows in each table of holders.
pub(super) const HOLDERS_MAX: usize = 200;

/// The allocations of the ledger.
#[derive(Debug, Default)]
pub(super) struct LedgerTables {
    pub(super) groups: Vec<GroupRow>,
    pub(super) slots: Vec<SlotRow>,
    pub(super) more_slots: usize,
    pub(super) ports: Vec<PortRow>,
    pub(super) more_ports: usize,
    pub(super) cores: Vec<CoreRow>,
    pub(super) more_cores: usize,
    pub(super) compute: Vec<ComputeRow>,
    pub(super) plugins: Vec<PluginRow>,
    pub(super) refusals: Vec<RefusalRow>,
}

/// A group of devices.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GroupRow {
    pub(super) name: String,
    pub(super) resource: String,
    pub(super) capacity: usize,
    pub(super) free: usize,
    pub(super) held: String,
}

/// A slot of a device, with one of its holders.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlotRow {
    pub(super) id: String,
    pub(super) group: String,
    pub(super) health: String,
    pub(super) tone: Tone,
    pub(super) holders: Vec<Holder>,
}

/// The holder of a resource.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) owner: String,
    /// The page of its sandbox; empty if it has none.
    pub(super) href: String,
    pub(super) name: String,
    /// The state of a lease; empty for what is no lease.
    pub(super) state: String,
}

/// A host port.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PortRow {
    pub(super) port: String,
    pub(super) address: String,
    pub(super) holder: Holder,
}

/// Exclusive processors.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CoreRow {
    pub(super) cpus: String,
    pub(super) count: u64,
    pub(super) holder: Holder,
}

/// The reservations of an owner, or what is left of the node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ComputeRow {
    pub(super) owner: String,
    pub(super) processors: String,
    pub(super) memory: String,
}

/// A vendor's device plugin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PluginRow {
    pub(super) resource: String,
    pub(super) state: String,
    pub(super) tone: Tone,
    pub(super) devices: String,
    pub(super) error: String,
}

/// Number of refusals of one kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusalRow {
    pub(super) owner: String,
    pub(super) resource: String,
    pub(super) reason: String,
    pub(super) count: u64,
}

// === impl LedgerTables ===

impl LedgerTables {
    pub(super) fn of(devices: &DevicesView) -> Self {
        let DevicesView {
            ready: _,
            groups,
            slots,
            ports,
            compute,
            host,
            refusals,
            // The command line shows them.
            dynamic: _,
        } = devices;
        let plugins = host.iter().flat_map(|host| &host.plugins);
        Self {
            groups: groups.iter().map(GroupRow::of).collect(),
            slots: slots.iter().take(HOLDERS_MAX).map(SlotRow::of).collect(),
            more_slots: slots.len().saturating_sub(HOLDERS_MAX),
            ports: ports.iter().take(HOLDERS_MAX).map(PortRow::of).collect(),
            more_ports: ports.len().saturating_sub(HOLDERS_MAX),
            cores: compute
                .exclusive
                .iter()
                .take(HOLDERS_MAX)
                .map(CoreRow::of)
                .collect(),
            more_cores: compute.exclusive.len().saturating_sub(HOLDERS_MAX),
            compute: compute_rows(compute),
            plugins: plugins
                .map(|plugin| PluginRow {
                    resource: text::name(&plugin.resource),
                    state: plugin.state.clone(),
                    tone: if plugin.state == "connected" {
                        Tone::Good
                    } else {
                        Tone::Bad
                    },
                    devices: format!("{} of {} healthy", plugin.healthy, plugin.devices),
                    error: plugin
                        .last_error
                        .as_ref()
                        .map(|error| text::sentence(&format!("{} ({})", error.error, error.at)))
                        .unwrap_or_default(),
                })
                .collect(),
            refusals: refusals
                .iter()
                .map(|refusal| RefusalRow {
                    owner: refusal.owner.clone(),
                    resource: refusal.resource.clone(),
                    reason: text::words(&refusal.reason),
                    count: refusal.count,
                })
                .collect(),
        }
    }
}

/// A row for each owner, and one for what is left.
fn compute_rows(compute: &ComputeView) -> Vec<ComputeRow> {
    let mut rows: Vec<_> = compute
        .reserved
        .iter()
        .map(|reserved| compute_row(&reserved.owner, reserved.amount))
        .collect();
    if let Some(capacity) = compute.capacity {
        let sum = |part: fn(&AmountView) -> u64| {
            compute.reserved.iter().fold(0_u64, |sum, reserved| {
                sum.saturating_add(part(&reserved.amount))
            })
        };
        let left = AmountView {
            cpu_milli: capacity
                .cpu_milli
                .saturating_sub(sum(|amount| amount.cpu_milli)),
            memory_bytes: capacity
                .memory_bytes
                .saturating_sub(sum(|amount| amount.memory_bytes)),
        };
        rows.push(compute_row("not reserved", left));
        rows.push(compute_row("the node", capacity));
    }
    rows
}

fn compute_row(owner: &str, amount: AmountView) -> ComputeRow {
    ComputeRow {
        owner: owner.to_owned(),
        processors: processors(amount.cpu_milli),
        memory: size(amount.memory_bytes),
    }
}

// === impl GroupRow ===

impl GroupRow {
    fn of(group: &GroupView) -> Self {
        let held: BTreeMap<&str, usize> = group
            .held
            .iter()
            .map(|held| (held.owner.as_str(), held.slots))
            .collect();
        let held: Vec<_> = held
            .into_iter()
            .map(|(owner, slots)| format!("{owner} {slots}"))
            .collect();
        Self {
            name: text::name(&group.title()),
            resource: text::name(&group.resource),
            capacity: group.capacity,
            free: group.free,
            held: if held.is_empty() {
                "nobody".to_owned()
            } else {
                held.join(", ")
            },
        }
    }
}

// === impl SlotRow ===

impl SlotRow {
    fn of(slot: &SlotView) -> Self {
        let holders = slot.holders.iter().map(|holder| Holder {
            owner: holder.owner.clone(),
            href: holder
                .sandbox
                .as_ref()
                .map(|id| format!("/sandboxes/{id}"))
                .unwrap_or_default(),
            name: text::name(called(&holder.display_name, &holder.name)),
            state: holder.state.clone(),
        });
        let health = match (slot.healthy, slot.reason.is_empty()) {
            (true, _) => "healthy".to_owned(),
            (false, true) => "unhealthy".to_owned(),
            (false, false) => text::sentence(&format!("unhealthy: {}", slot.reason)),
        };
        Self {
            id: text::name(&slot.id),
            group: text::name(&slot.group),
            health,
            tone: if slot.healthy { Tone::Good } else { Tone::Bad },
            holders: holders.collect(),
        }
    }
}

// === impl PortRow ===

impl PortRow {
    fn of(port: &PortView) -> Self {
        Self {
            port: format!("{}/{}", port.port, port.protocol),
            address: port
                .address
                .map_or_else(|| "all addresses".to_owned(), |address| address.to_string()),
            holder: Holder {
                owner: port.owner.clone(),
                href: format!("/sandboxes/{}", port.sandbox),
                name: text::name(called(&port.display_name, &port.name)),
                state: String::new(),
            },
        }
    }
}

// === impl CoreRow ===

impl CoreRow {
    fn of(exclusive: &ExclusiveView) -> Self {
        Self {
            cpus: exclusive.cpus.clone(),
            count: exclusive.count,
            holder: Holder {
                owner: exclusive.owner.clone(),
                href: format!("/tasks/{}", exclusive.task),
                name: text::name(called(&exclusive.display_name, &exclusive.name)),
                state: String::new(),
            },
        }
    }
}

/// The display name of an object, or the name of its request if it has none.
fn called<'a>(display_name: &'a str, name: &'a str) -> &'a str {
    if display_name.is_empty() {
        name
    } else {
        display_name
    }
}

#[cfg(test)]
mod tests {
    use switchyard_operator_api::ReservedView;

    use super::*;

    #[test]
    fn what_is_left_of_the_node_is_told() {
        let amount = |cpu_milli, memory_bytes| AmountView {
            cpu_milli,
            memory_bytes,
        };
        let compute = ComputeView {
            capacity: Some(amount(4_000, 8 << 30)),
            reserved: vec![ReservedView {
                owner: "nomad".into(),
                amount: amount(1_500, 2 << 30),
            }],
            exclusive: Vec::new(),
        };
        let rows = compute_rows(&compute);
        let rows: Vec<_> = rows
            .iter()
            .map(|row| (&*row.owner, &*row.processors, &*row.memory))
            .collect();
        assert_eq!(
            rows,
            [
                ("nomad", "1.50", "2.0 GiB"),
                ("not reserved", "2.50", "6.0 GiB"),
                ("the node", "4.00", "8.0 GiB")
            ]
        );
        assert!(compute_rows(&ComputeView::default()).is_empty());
    }

    #[test]
    fn tables_of_holders_are_bounded() {
        let port = |port: u16| PortView {
            port,
            protocol: "tcp".into(),
            address: None,
            owner: "nomad".into(),
            sandbox: "ab".into(),
            name: "web".into(),
            display_name: String::new(),
            group: String::new(),
        };
        let devices = DevicesView {
            ports: (1..=1000).map(port).collect(),
            ..DevicesView::default()
        };
        let tables = LedgerTables::of(&devices);
        assert_eq!((tables.ports.len(), tables.more_ports), (HOLDERS_MAX, 800));
        assert_eq!(tables.ports[0].holder.name, "web");
    }
}
