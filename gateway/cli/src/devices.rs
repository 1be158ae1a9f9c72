//! `switchyard devices`: the devices and host ports, with their holders.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use http::Method;
use jiff::Timestamp;
use switchyard_core::id::LeaseToken;
use switchyard_operator_api::text::{age, processors, short};
use switchyard_operator_api::{
    AmountView, ComputeView, DevicesView, DynamicView, ErrorView, HolderView, HostView, PluginView,
    PortView, SlotView,
};

use super::daemon::{DaemonError, ask, send};
use super::watch::ListArgs;
use crate::output::{Format, print, print_json, table};

/// The placeholder of an empty column.
const NOTHING: &str = "-";

/// Shows the ledger, or changes it.
#[derive(Debug, Args)]
pub(super) struct DevicesArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(subcommand)]
    command: Option<DevicesCommand>,
}

#[derive(Debug, Subcommand)]
enum DevicesCommand {
    /// End a lease of devices that no sandbox uses, so that others can have the devices at once.
    Release {
        /// The token of the lease, as `switchyard devices` shows it.
        token: LeaseToken,
    },
}

/// Lists devices and host ports, or ends a lease.
pub(super) async fn run(args: &DevicesArgs) -> Result<(), DaemonError> {
    let watch = &args.list.watch;
    let target = &watch.target;
    match &args.command {
        None => {
            let path = args.list.path("/v1/devices");
            let asked = async || ask::<DevicesView>(target, &path).await;
            watch
                .show(asked, |devices| shown(devices, Timestamp::now()))
                .await?;
        }
        Some(DevicesCommand::Release { token }) => {
            send(
                &target.socket,
                Method::DELETE,
                &format!("/v1/devices/leases/{token}"),
            )
            .await?;
            match target.output {
                Format::Json => print_json(&serde_json::json!({ "released": token.to_string() }))?,
                Format::Text => print(format!("released {token}\n"))?,
            }
        }
    }
    Ok(())
}

fn shown(devices: &DevicesView, now: Timestamp) -> String {
    let mut text = String::new();
    if !devices.ready {
        text.push_str("No device is given out: `switchyard status` says why.\n\n");
    }
    let slots: Vec<_> = devices.slots.iter().flat_map(slot_rows).collect();
    text.push_str(&table(
        ["SLOT", "GROUP", "STATE", "OWNER", "NAME", "LEASE"],
        &slots,
    ));
    text.push('\n');
    let ports: Vec<_> = devices.ports.iter().map(port_row).collect();
    text.push_str(&table(
        ["HOST PORT", "ADDRESS", "OWNER", "SANDBOX", "NAME"],
        &ports,
    ));
    text.push('\n');
    text.push_str(&compute(&devices.compute));
    text.push_str(
        &devices
            .host
            .as_ref()
            .map(|host| plugins(host, now))
            .unwrap_or_default(),
    );
    text.push_str(&dynamic(&devices.dynamic));
    let unhealthy = devices.slots.iter().filter(|slot| !slot.healthy);
    let reasons: BTreeSet<_> = unhealthy
        .map(|slot| [slot.device.clone(), slot.reason.clone()])
        .collect();
    if !reasons.is_empty() {
        text.push('\n');
        text.push_str(&table(
            ["UNHEALTHY DEVICE", "REASON"],
            &reasons.into_iter().collect::<Vec<_>>(),
        ));
    }
    text
}

/// The reservations of each owner beside the capacity of the node, and the tasks with exclusive processors.
fn compute(compute: &ComputeView) -> String {
    let row = |owner: &str, amount: AmountView| {
        [
            owner.to_owned(),
            processors(amount.cpu_milli),
            format!("{} MiB", amount.memory_bytes >> 20),
        ]
    };
    let reserved = compute
        .reserved
        .iter()
        .map(|reserved| row(&reserved.owner, reserved.amount));
    let all = compute.capacity.map(|capacity| row("(the node)", capacity));
    let mut text = table(
        ["RESERVED BY", "PROCESSORS", "MEMORY"],
        &reserved.chain(all).collect::<Vec<_>>(),
    );
    if !compute.exclusive.is_empty() {
        text.push('\n');
        let rows: Vec<_> = compute
            .exclusive
            .iter()
            .map(|own| {
                [
                    own.cpus.clone(),
                    own.owner.clone(),
                    short(&own.sandbox),
                    or_nothing(name(&own.display_name, &own.name)),
                ]
            })
            .collect();
        text.push_str(&table(
            ["EXCLUSIVE CORES", "OWNER", "SANDBOX", "NAME"],
            &rows,
        ));
    }
    text
}

/// The devices that pods have by dynamic resource allocation; nothing if there are none.
fn dynamic(devices: &[DynamicView]) -> String {
    if devices.is_empty() {
        return String::new();
    }
    let row = |device: &DynamicView| {
        [
            format!("{}/{}/{}", device.driver, device.pool, device.device),
            device.claim.clone(),
            device.pod.clone(),
            device.container.clone(),
            or_nothing(&device.cdi.join(",")),
        ]
    };
    let rows: Vec<_> = devices.iter().map(row).collect();
    let headings = [
        "DYNAMIC RESOURCE",
        "CLAIM",
        "POD",
        "CONTAINER",
        "CDI DEVICES",
    ];
    format!("\n{}", table(headings, &rows))
}

/// Vendors' device plugins, and why a plugin could not register.
fn plugins(host: &HostView, now: Timestamp) -> String {
    let row = |plugin: &PluginView| {
        [
            plugin.resource.clone(),
            plugin.endpoint.clone(),
            plugin.state.clone(),
            age(&plugin.since, now),
            format!("{} of {}", plugin.healthy, plugin.devices),
            plugin
                .last_error
                .as_ref()
                .map_or_else(|| NOTHING.to_owned(), failed),
        ]
    };
    let rows: Vec<_> = host.plugins.iter().map(row).collect();
    let headings = [
        "PLUGIN OF",
        "SOCKET",
        "STATE",
        "FOR",
        "HEALTHY",
        "LAST ERROR",
    ];
    let mut text = format!("\n{}", table(headings, &rows));
    if let Some(fault) = &host.fault {
        text.push_str(&format!("No plugin can register: {fault}\n"));
    }
    if let Some(refused) = &host.last_refused {
        text.push_str(&format!(
            "The last plugin that could not register: {}\n",
            failed(refused)
        ));
    }
    text
}

fn failed(error: &ErrorView) -> String {
    format!("{} {}", error.at, error.error)
}

/// A row for each holder of a slot, or one row without a holder.
fn slot_rows(slot: &SlotView) -> Vec<[String; 6]> {
    let row = |holder: Option<&HolderView>| {
        let state = match (holder, slot.healthy) {
            (Some(holder), true) => holder.state.clone(),
            (Some(holder), false) => format!("{} (unhealthy)", holder.state),
            (None, true) => "free".to_owned(),
            (None, false) => "unhealthy".to_owned(),
        };
        let of = |text: fn(&HolderView) -> String| holder.map_or_else(|| NOTHING.to_owned(), text);
        [
            slot.id.clone(),
            or_nothing(&slot.group),
            state,
            of(|holder| holder.owner.clone()),
            of(|holder| or_nothing(name(&holder.display_name, &holder.name))),
            of(|holder| holder.token.clone()),
        ]
    };
    if slot.holders.is_empty() {
        vec![row(None)]
    } else {
        slot.holders.iter().map(Some).map(row).collect()
    }
}

fn port_row(port: &PortView) -> [String; 5] {
    [
        format!("{}/{}", port.port, port.protocol),
        port.address
            .map_or_else(|| "all".to_owned(), |address| address.to_string()),
        port.owner.clone(),
        short(&port.sandbox),
        name(&port.display_name, &port.name).to_owned(),
    ]
}

/// The display name of a sandbox, or else its name.
const fn name<'a>(display_name: &'a str, name: &'a str) -> &'a str {
    if display_name.is_empty() {
        name
    } else {
        display_name
    }
}

fn or_nothing(text: &str) -> String {
    if text.is_empty() {
        NOTHING.to_owned()
    } else {
        text.to_owned()
    }
}
