//! Tests of the plugin with a given inventory.

use std::sync::Arc;

use futures::StreamExt;
use switchyard_core::device::{Fact, Health, Inventory, Traffic};
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::{LeaseToken, Owner};
use switchyard_fake::Fake;
use switchyard_proto::nomad::shared::structs::attribute;
use tokio::sync::watch;
use tonic::Code;

use super::*;
use crate::configs::devices;

type Tell = watch::Sender<Option<Arc<Inventory>>>;

/// Far longer than any wait in these tests.
const MINUTE: Duration = Duration::from_secs(60);

fn unrecovered() -> (Gateway, Tell, DeviceService) {
    let gateway = Gateway::new(Arc::new(Fake::new()), Limits::default());
    let (tell, inventories) = watch::channel(None);
    gateway.devices().watch(inventories);
    let service = DeviceService::new(gateway.scope(Owner::Nomad));
    (gateway, tell, service)
}

async fn plugin() -> (Gateway, Tell, DeviceService) {
    let (gateway, tell, service) = unrecovered();
    gateway.recover().await.unwrap();
    (gateway, tell, service)
}

/// Changes the computed class of a node with the health of its devices, so that servers re-evaluate jobs that
/// wait for one.
fn healthy_slots(group: &nomad::DeviceGroup) -> Option<attribute::Value> {
    group.attributes[HEALTHY_SLOTS].value.clone()
}

/// Two devices, the second with this health, and a group without devices.
fn inventory(health: Health) -> Inventory {
    let mut inventory = devices(&["acme0", "acme1"], 1);
    let full = Arc::make_mut(&mut inventory.groups[0]);
    let facts = [
        ("memory", Fact::Whole(16, "GiB".to_owned())),
        ("clock", Fact::Number(1.5, "GHz".to_owned())),
        ("ecc", Fact::Flag(true)),
        ("board", Fact::Text("B1".to_owned())),
    ];
    full.attributes = facts.map(|(name, fact)| (name.to_owned(), fact)).into();
    full.devices[0].traffic = Some(Traffic {
        read_bytes: 4096,
        written_bytes: 10,
    });
    full.devices[1].health = health;
    let mut empty = full.clone();
    (empty.name, empty.devices) = ("v1".to_owned(), Vec::new());
    inventory.groups.push(Arc::new(empty));
    inventory
}

fn well() -> Option<Arc<Inventory>> {
    Some(Arc::new(inventory(Health::Healthy)))
}

impl DeviceService {
    async fn reserve_ids(&self, ids: &[&str]) -> Result<nomad::ContainerReservation, Status> {
        let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let answer = self
            .reserve(Request::new(nomad::ReserveRequest { device_ids }))
            .await?;
        Ok(answer
            .into_inner()
            .container_res
            .expect("an agent falls over without it"))
    }
}

/// The lease token of a reservation.
fn token(reservation: &nomad::ContainerReservation) -> LeaseToken {
    let mut tokens = reservation
        .envs
        .iter()
        .filter(|(name, _)| name.starts_with(LEASE_VARIABLE));
    let (name, token) = tokens.next().expect("it has a lease");
    assert_eq!(
        (name.strip_prefix(LEASE_VARIABLE), tokens.next()),
        (Some(&token[..8]), None)
    );
    token.parse().expect("it is a token")
}

/// The health of each device, by id.
fn health(response: &nomad::FingerprintResponse) -> Vec<(&str, &str)> {
    let devices = response
        .device_group
        .iter()
        .flat_map(|group| &group.devices);
    let health = devices.map(|device| {
        assert_eq!(
            device.healthy,
            device.health_description.is_empty(),
            "{device:?}"
        );
        (device.id.as_str(), device.health_description.as_str())
    });
    health.collect()
}

#[test]
fn healthy_slot_count_follows_health() {
    let of = |health: Health| {
        to_proto::fingerprint(Some(&inventory(health)))
            .device_group
            .remove(0)
    };
    assert_eq!(
        healthy_slots(&of(Health::Healthy)),
        Some(attribute::Value::IntVal(2))
    );
    assert_eq!(
        healthy_slots(&of(Health::Unhealthy("it burns".to_owned()))),
        Some(attribute::Value::IntVal(1))
    );
    assert_eq!(
        healthy_slots(&of(Health::Gone)),
        Some(attribute::Value::IntVal(1))
    );
}

#[tokio::test(start_paused = true)]
async fn fingerprint_is_sent_at_once_and_on_each_change() {
    let (_gateway, tell, plugin) = plugin().await;
    let mut stream = Box::pin(plugin.fingerprints());
    let asked = tokio::time::Instant::now();
    assert_eq!(
        stream.next().await.unwrap().unwrap(),
        nomad::FingerprintResponse::default()
    );
    assert!(
        asked.elapsed() <= Duration::from_millis(2001),
        "an agent's start waits for it"
    );
    tell.send_replace(well());
    let known = stream.next().await.unwrap().unwrap();
    let [group] = &known.device_group[..] else {
        panic!("a group without devices is left out: {known:?}")
    };
    assert_eq!(
        (&*group.vendor, &*group.device_type, &*group.device_name),
        ("acme", "tpu", "v2")
    );
    assert_eq!(
        health(&known),
        [("acme0", ""), ("acme1", "")],
        "names of earlier versions are not reported"
    );
    assert_eq!(
        group.devices[0].hw_locality.as_ref().unwrap().pci_bus_id,
        "0000:3b:00.0"
    );
    assert_eq!(
        (group.attributes.len(), &*group.attributes["memory"].unit),
        (5, "GiB")
    );
    assert_eq!(healthy_slots(group), Some(attribute::Value::IntVal(2)));
    // A change that the agent cannot see is not reported.
    let mut same = inventory(Health::Healthy);
    Arc::make_mut(&mut same.groups[0]).devices[0].traffic = None;
    tell.send_replace(Some(Arc::new(same)));
    let quiet = tokio::time::timeout(MINUTE, stream.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    tell.send_replace(Some(Arc::new(inventory(Health::Unhealthy(
        "it burns".to_owned(),
    )))));
    assert_eq!(
        health(&stream.next().await.unwrap().unwrap()),
        [("acme0", ""), ("acme1", "it burns")]
    );
    tell.send_replace(Some(Arc::default()));
    assert_eq!(
        stream.next().await.unwrap().unwrap(),
        nomad::FingerprintResponse::default()
    );
    // The scanner ends: an agent that saw the end of the stream would drop all devices for good.
    drop(tell);
    let quiet = tokio::time::timeout(MINUTE, stream.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}

#[tokio::test(start_paused = true)]
async fn devices_are_unhealthy_until_recovery() {
    let (gateway, tell, plugin) = unrecovered();
    tell.send_replace(well());
    let mut stream = Box::pin(plugin.fingerprints());
    let first = stream.next().await.unwrap().unwrap();
    let why = "the gateway is still recovering what its predecessor left";
    assert_eq!(health(&first), [("acme0", why), ("acme1", why)]);
    let quiet = tokio::time::timeout(MINUTE, stream.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    gateway.recover().await.unwrap();
    assert_eq!(
        health(&stream.next().await.unwrap().unwrap()),
        [("acme0", ""), ("acme1", "")]
    );
}

#[tokio::test]
async fn known_devices_are_fingerprinted_at_once() {
    let (_gateway, tell, plugin) = plugin().await;
    tell.send_replace(well());
    for _ in 0..2 {
        let first = Box::pin(plugin.fingerprints())
            .next()
            .await
            .unwrap()
            .unwrap();
        assert_eq!(first.device_group.len(), 1);
    }
}

#[tokio::test]
async fn a_later_stream_begins_with_changes_made_without_streams() {
    let (gateway, tell, plugin) = plugin().await;
    tell.send_replace(well());
    let first = Box::pin(plugin.fingerprints())
        .next()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(health(&first), [("acme0", ""), ("acme1", "")]);
    gateway
        .scope(Owner::Kubernetes)
        .devices()
        .lease(&["acme1".parse().unwrap()])
        .await
        .unwrap();
    let later = Box::pin(plugin.fingerprints())
        .next()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        health(&later),
        [("acme0", ""), ("acme1", "it is held by kubernetes")]
    );
}

#[tokio::test]
async fn slots_of_other_owners_are_unhealthy_until_free() {
    let (gateway, tell, plugin) = plugin().await;
    tell.send_replace(Some(Arc::new(devices(&["acme0"], 2))));
    let mut stream = Box::pin(plugin.fingerprints());
    assert_eq!(
        health(&stream.next().await.unwrap().unwrap()),
        [("acme0::0", ""), ("acme0::1", "")]
    );
    let kubelet = gateway.scope(Owner::Kubernetes);
    let lease = kubelet
        .devices()
        .lease(&["acme0::1".parse().unwrap()])
        .await
        .unwrap();
    let held = "it is held by kubernetes";
    assert_eq!(
        health(&stream.next().await.unwrap().unwrap()),
        [("acme0::0", ""), ("acme0::1", held)]
    );
    plugin.reserve_ids(&["acme0::0"]).await.unwrap();
    gateway.devices().release_lease(lease.token).await.unwrap();
    assert_eq!(
        health(&stream.next().await.unwrap().unwrap()),
        [("acme0::0", ""), ("acme0::1", "")]
    );
}

#[tokio::test]
async fn repeated_reservation_returns_the_same_unused_lease() {
    let (_gateway, tell, plugin) = plugin().await;
    tell.send_replace(Some(Arc::new(inventory(Health::Unhealthy(
        "it burns".to_owned(),
    )))));
    let given = plugin.reserve_ids(&["acme0"]).await.unwrap();
    assert_eq!(
        plugin.reserve_ids(&["acme0", "acme0"]).await.unwrap(),
        given
    );
    assert_eq!(
        plugin.reserve_ids(&["/dev/acme0"]).await.unwrap(),
        given,
        "its name of an earlier version"
    );
    token(&given);
    assert!(given.mounts.is_empty(), "{given:?}");
    let env = |name: &str| given.envs.get(name).map(String::as_str);
    assert_eq!(
        (env("ACME_DEVICES"), env("ACME_HOME")),
        (Some("/dev/acme0"), Some("/opt/acme"))
    );
    let nodes: Vec<_> = given
        .devices
        .iter()
        .map(|device| (&*device.host_path, &*device.permissions))
        .collect();
    assert_eq!(nodes, [("/dev/acme0", "rw"), ("/dev/acmectl", "rw")]);
    assert_eq!(
        plugin.reserve_ids(&["acme7"]).await.unwrap_err().code(),
        Code::NotFound
    );
    let refused = plugin.reserve_ids(&["acme1"]).await.unwrap_err();
    assert!(refused.message().contains("it burns"), "{refused}");
}

#[tokio::test]
async fn reservation_of_a_held_device_is_rejected_naming_the_holder() {
    let (gateway, tell, plugin) = plugin().await;
    tell.send_replace(well());
    let kubelet = gateway.scope(Owner::Kubernetes);
    plugin.scope.devices().scanned().await;
    kubelet
        .devices()
        .lease(&["acme0".parse().unwrap()])
        .await
        .unwrap();
    let refused = plugin.reserve_ids(&["acme1", "acme0"]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused
            .message()
            .starts_with("device \"acme0\" is held by kubernetes"),
        "{refused}"
    );
    plugin
        .reserve_ids(&["acme1"])
        .await
        .expect("nothing is kept of what was refused");
}

#[tokio::test]
async fn reservation_waits_for_recovery_and_first_scan() {
    let (gateway, tell, plugin) = unrecovered();
    let mut asked = Box::pin(plugin.reserve_ids(&["acme0"]));
    assert!(futures::poll!(&mut asked).is_pending());
    gateway.recover().await.unwrap();
    assert!(
        futures::poll!(&mut asked).is_pending(),
        "nobody has looked yet"
    );
    tell.send_replace(well());
    token(&asked.await.unwrap());
}

#[tokio::test]
async fn reservations_of_no_unknown_or_too_many_devices_are_rejected() {
    let (_gateway, tell, plugin) = plugin().await;
    tell.send_replace(well());
    let many: Vec<String> = (0..10_000).map(|number| format!("acme{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(
        plugin.reserve_ids(&[]).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    assert_eq!(
        plugin.reserve_ids(&many).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    for unknown in ["", "acme0::0", "acme0::", "../acme0", "ACME0"] {
        assert_eq!(
            plugin
                .reserve_ids(&["acme0", unknown])
                .await
                .unwrap_err()
                .code(),
            Code::NotFound,
            "{unknown}"
        );
    }
    plugin
        .reserve_ids(&["acme0", "acme1"])
        .await
        .expect("none of that has taken anything");
}

#[tokio::test(start_paused = true)]
async fn device_stats_are_complete_and_repeated() {
    let (_gateway, tell, plugin) = plugin().await;
    tell.send_replace(Some(Arc::new(inventory(Health::Unhealthy(
        "it burns".to_owned(),
    )))));
    plugin.scope.devices().scanned().await;
    let request = nomad::StatsRequest {
        collection_interval: None,
    };
    let mut stream = DevicePlugin::stats(&plugin, Request::new(request))
        .await
        .unwrap()
        .into_inner();
    for _ in 0..3 {
        let response = stream.next().await.unwrap().unwrap();
        assert_eq!(response.groups.len(), 1);
        let devices = &response.groups[0].instance_stats;
        assert_eq!(devices.len(), 2);
        for stats in devices.values() {
            assert!(
                stats.timestamp.is_some() && stats.summary.is_some() && stats.stats.is_some(),
                "{stats:?}"
            );
        }
        assert_eq!(
            devices["acme1"]
                .summary
                .as_ref()
                .unwrap()
                .string_val
                .as_deref(),
            Some("it burns")
        );
        let read = &devices["acme0"].stats.as_ref().unwrap().attributes["Read"];
        assert_eq!((read.int_numerator_val, &*read.unit), (Some(4), "KiB"));
    }
}

#[tokio::test]
async fn device_streams_end_with_the_gateway() {
    let (gateway, tell, plugin) = plugin().await;
    tell.send_replace(Some(Arc::default()));
    let mut fingerprints = Box::pin(plugin.fingerprints());
    assert!(fingerprints.next().await.is_some());
    gateway.shut_down(Duration::from_secs(5)).await.unwrap();
    assert!(fingerprints.next().await.is_none());
}
