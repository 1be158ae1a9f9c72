//! Kills during operations on device leases: a reservation that was cut off is obtained by repeating the
//! request, and a lease that was ended stays ended.

use serde_json::Value;
use switchyard_crash_points::Operation;
use switchyard_tests::host::eventually;
use switchyard_tests::http;

use super::cases::KillCase;
use super::fixture::{KillFixture, KillPoint, LIMIT};
use crate::nomad::devices::LaunchedDevicePlugin;

pub(super) const KILLS: &[KillCase] = &[
    KillCase::of(lease, Operation::ReserveDevice),
    KillCase::of(release, Operation::ReleaseDevice),
];

fn report(fixture: &KillFixture) -> Value {
    let (_, body) = fixture.node.daemon().get("/v1/devices");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// The id of the device, once it has been determined.
fn device(fixture: &KillFixture) -> String {
    let id = || {
        report(fixture)["slots"][0]["id"]
            .as_str()
            .map(str::to_owned)
    };
    assert!(
        eventually(LIMIT, || id().is_some()),
        "{:#}",
        report(fixture)
    );
    id().expect("it was there a moment ago")
}

/// The tokens of the device's leases that are not bound to any object.
fn leases(fixture: &KillFixture) -> Vec<String> {
    let report = report(fixture);
    let holders = report["slots"][0]["holders"]
        .as_array()
        .expect("it is a list");
    for holder in holders {
        assert_eq!(
            (holder["owner"].as_str(), holder["state"].as_str()),
            (Some("nomad"), Some("unbound")),
            "{report:#}"
        );
    }
    holders
        .iter()
        .map(|holder| holder["token"].as_str().expect("it has one").to_owned())
        .collect()
}

/// Ends a lease, as `switchyard devices release` does.
fn end(fixture: &KillFixture, token: &str) -> Result<(), tonic::Status> {
    let socket = fixture.node.root().run().join("admin.sock");
    let answer = http::delete_unix(&socket, &format!("/v1/devices/leases/{token}"));
    match answer.map(|answer| answer.status) {
        Ok(204) => Ok(()),
        Ok(status) => panic!("{status}"),
        Err(error) => Err(tonic::Status::unavailable(error.to_string())),
    }
}

/// The lease is recorded, and its agent has got no answer: the agent asks again, and gets the same lease.
fn lease(fixture: &KillFixture, kill: KillPoint) {
    let id = device(fixture);
    fixture.killed_during(kill, || {
        LaunchedDevicePlugin::launch(fixture.node.root()).reserve(&[&id])
    });
    assert_eq!(device(fixture), id);
    let known = leases(fixture);
    assert_eq!(known.len(), 1, "{kill:?}");
    let given = LaunchedDevicePlugin::launch(fixture.node.root())
        .reserve(&[&id])
        .expect("it can be sent again");
    assert!(
        given.envs.values().any(|value| *value == known[0]),
        "{kill:?}: {given:?}"
    );
    assert_eq!(leases(fixture), known, "{kill:?}");
    end(fixture, &known[0]).expect("nothing was made with it");
    assert_eq!(leases(fixture), [""; 0], "{kill:?}");
    fixture.assert_nothing_left(kill);
}

/// The end of the lease is recorded, and the client has got no answer.
fn release(fixture: &KillFixture, kill: KillPoint) {
    let id = device(fixture);
    LaunchedDevicePlugin::launch(fixture.node.root())
        .reserve(&[&id])
        .expect("it is free");
    let [token] = &leases(fixture)[..] else {
        panic!("{:#}", report(fixture))
    };
    fixture.killed_during(kill, || end(fixture, token));
    assert_eq!(device(fixture), id);
    assert_eq!(leases(fixture), [""; 0], "{kill:?}");
    LaunchedDevicePlugin::launch(fixture.node.root())
        .reserve(&[&id])
        .expect("it is free");
    let again = leases(fixture);
    assert_ne!(
        &again[0], token,
        "{kill:?}: another lease has another token"
    );
    end(fixture, &again[0]).expect("nothing was made with it");
    fixture.assert_nothing_left(kill);
}
