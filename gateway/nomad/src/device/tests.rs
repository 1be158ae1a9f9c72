//! The plugin over devices that a test says there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use switchyard_core::device::{Device, DeviceGroup, Fact, Health, Inventory, SlotPlacement, Traffic, node};
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_fake::Fake;
use tokio::sync::watch;
use tonic::Code;

use super::*;

type Tell = watch::Sender<Option<Arc<Inventory>>>;

fn plugin() -> (Gateway, Tell, DeviceService) {
    let gateway = Gateway::new(Arc::new(Fake::new()), Limits::default());
    let (tell, inventories) = watch::channel(None);
    let service = DeviceService::new(gateway.scope(Owner::Nomad), inventories);
    (gateway, tell, service)
}

fn inventory(health: Health) -> Inventory {
    let device = |number: u8, health: &Health| Device {
        id: format!("acme{number}"),
        aliases: vec![format!("/dev/acme{number}")],
        nodes: vec![node(format!("/dev/acme{number}").into(), "rw")],
        cdi: Vec::new(),
        health: health.clone(),
        pci_bus_id: Some(format!("0000:3b:00.{number}")),
        numa_node: None,
        traffic: (number == 0).then_some(Traffic { read_bytes: 4096, written_bytes: 10 }),
    };
    let facts = [
        ("memory", Fact::Whole(16, "GiB".to_owned())),
        ("clock", Fact::Number(1.5, "GHz".to_owned())),
        ("ecc", Fact::Flag(true)),
        ("board", Fact::Text("B1".to_owned())),
    ];
    let full = DeviceGroup {
        vendor: "acme".to_owned(),
        kind: "tpu".to_owned(),
        name: "v2".to_owned(),
        resource: String::new(),
        attributes: facts.map(|(name, fact)| (name.to_owned(), fact)).into(),
        shares: 1,
        quota: BTreeMap::new(),
        placement: SlotPlacement::Packed,
        devices: vec![device(0, &Health::Healthy), device(1, &health)],
        variable: "ACME_DEVICES".to_owned(),
        env: BTreeMap::new(),
        shared: vec![node("/dev/acmectl".into(), "rw")],
        mounts: Vec::new(),
    };
    let empty = DeviceGroup {
        name: "v1".to_owned(),
        devices: Vec::new(),
        attributes: BTreeMap::new(),
        ..full.clone()
    };
    Inventory { groups: vec![full, empty] }
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_comes_although_nothing_is_known_and_then_each_change() {
    let (_gateway, tell, plugin) = plugin();
    let mut stream = Box::pin(plugin.fingerprints());
    assert_eq!(stream.next().await.unwrap().unwrap(), nomad::FingerprintResponse::default());
    tell.send_replace(Some(Arc::new(inventory(Health::Healthy))));
    let known = stream.next().await.unwrap().unwrap();
    let [group] = &known.device_group[..] else { panic!("a group without devices is left out: {known:?}") };
    assert_eq!((&*group.vendor, &*group.device_type, &*group.device_name), ("acme", "tpu", "v2"));
    assert!(group.devices.iter().all(|device| device.healthy && !device.id.is_empty()));
    assert_eq!(group.devices[0].hw_locality.as_ref().unwrap().pci_bus_id, "0000:3b:00.0");
    assert_eq!((group.attributes.len(), &*group.attributes["memory"].unit), (4, "GiB"));
    // What an agent does not see is no news to it.
    let mut same = inventory(Health::Healthy);
    same.groups[0].devices[0].traffic = None;
    tell.send_replace(Some(Arc::new(same)));
    let quiet = tokio::time::timeout(Duration::from_secs(60), stream.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    tell.send_replace(Some(Arc::new(inventory(Health::Unhealthy("it burns".to_owned())))));
    let changed = stream.next().await.unwrap().unwrap();
    let device = &changed.device_group[0].devices[1];
    assert_eq!((device.healthy, &*device.health_description), (false, "it burns"));
    tell.send_replace(Some(Arc::default()));
    assert_eq!(stream.next().await.unwrap().unwrap(), nomad::FingerprintResponse::default());
    // Nobody looks any more: an agent that saw the end would drop all devices for good.
    drop(tell);
    let quiet = tokio::time::timeout(Duration::from_secs(60), stream.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}

#[tokio::test]
async fn what_is_known_already_is_said_at_once() {
    let (_gateway, tell, plugin) = plugin();
    tell.send_replace(Some(Arc::new(inventory(Health::Healthy))));
    for _ in 0..2 {
        let first = Box::pin(plugin.fingerprints()).next().await.unwrap().unwrap();
        assert_eq!(first.device_group.len(), 1);
    }
}

#[tokio::test]
async fn a_reservation_has_no_mounts_and_is_the_same_each_time() {
    let (_gateway, tell, plugin) = plugin();
    let reserve = async |ids: &[&str]| {
        let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        plugin.reserve(Request::new(nomad::ReserveRequest { device_ids })).await.map(Response::into_inner)
    };
    // It is known in a moment: an agent may try again.
    assert_eq!(reserve(&["acme0"]).await.unwrap_err().code(), Code::FailedPrecondition);
    tell.send_replace(Some(Arc::new(inventory(Health::Unhealthy("it burns".to_owned())))));
    let given = reserve(&["acme0"]).await.unwrap();
    assert_eq!(reserve(&["/dev/acme0"]).await.unwrap(), given, "its id of before is taken too");
    let reservation = given.container_res.expect("an agent falls over without it");
    assert!(reservation.mounts.is_empty(), "{reservation:?}");
    assert_eq!(reservation.envs.get("ACME_DEVICES").map(String::as_str), Some("/dev/acme0"));
    let nodes: Vec<_> =
        reservation.devices.iter().map(|device| (&*device.host_path, &*device.permissions)).collect();
    assert_eq!(nodes, [("/dev/acme0", "rw"), ("/dev/acmectl", "rw")]);
    assert_eq!(reserve(&["acme7"]).await.unwrap_err().code(), Code::NotFound);
    let refused = reserve(&["acme1"]).await.unwrap_err();
    assert!(refused.message().contains("it burns"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn stats_are_whole_and_go_on() {
    let (_gateway, tell, plugin) = plugin();
    tell.send_replace(Some(Arc::new(inventory(Health::Unhealthy("it burns".to_owned())))));
    let request = nomad::StatsRequest { collection_interval: None };
    let mut stream = DevicePlugin::stats(&plugin, Request::new(request)).await.unwrap().into_inner();
    for _ in 0..3 {
        let told = stream.next().await.unwrap().unwrap();
        assert_eq!(told.groups.len(), 1);
        let devices = &told.groups[0].instance_stats;
        assert_eq!(devices.len(), 2);
        for stats in devices.values() {
            assert!(
                stats.timestamp.is_some() && stats.summary.is_some() && stats.stats.is_some(),
                "{stats:?}"
            );
        }
        assert_eq!(devices["acme1"].summary.as_ref().unwrap().string_val.as_deref(), Some("it burns"));
        let read = &devices["acme0"].stats.as_ref().unwrap().attributes["Read"];
        assert_eq!((read.int_numerator_val, &*read.unit), (Some(4), "KiB"));
    }
}

#[tokio::test]
async fn streams_end_with_the_gateway() {
    let (gateway, tell, plugin) = plugin();
    tell.send_replace(Some(Arc::default()));
    let mut fingerprints = Box::pin(plugin.fingerprints());
    assert!(fingerprints.next().await.is_some());
    gateway.shut_down(Duration::from_secs(5)).await.unwrap();
    assert!(fingerprints.next().await.is_none());
}
