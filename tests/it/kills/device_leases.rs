//! Kills amid leases of devices: a lease that was cut off is had by the same request, and one that was ended stays so.

use serde_json::Value;
use switchyard_steps::Step::*;
use switchyard_tests::host::eventually;
use switchyard_tests::http;
use switchyard_tests::node::TestNode;

use super::KillCase;
use super::fixture::{KillFixture, KillPoint, LIMIT};
use crate::nomad::devices::{LaunchedDevicePlugin, make_device};

pub(super) const KILLS: &[KillCase] = &[
    KillCase { run: lease, points: &[(LeaseStored, 1)] },
    KillCase { run: release, points: &[(LeaseEnded, 1)] },
];

/// A node with one device.
pub(super) fn node() -> TestNode {
    TestNode::start_configured(|root| {
        let dir = root.path().join("dev");
        std::fs::create_dir(&dir).expect("the root can be written");
        make_device(&dir.join("acme0"));
        format!(
            "[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\nname = \"v2\"\npaths = [\"{}/acme[0-9]\"]\n",
            dir.display()
        )
    })
}

fn report(lab: &KillFixture) -> Value {
    let (_, body) = lab.node.daemon().get("/v1/devices");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// The id of the device, once it was looked at.
fn device(lab: &KillFixture) -> String {
    let id = || report(lab)["slots"][0]["id"].as_str().map(str::to_owned);
    assert!(eventually(LIMIT, || id().is_some()), "{:#}", report(lab));
    id().expect("it was there a moment ago")
}

/// Who has the device: the tokens of leases that nothing was made with.
fn leases(lab: &KillFixture) -> Vec<String> {
    let report = report(lab);
    let holders = report["slots"][0]["holders"].as_array().expect("it is a list");
    for holder in holders {
        assert_eq!(
            (holder["owner"].as_str(), holder["state"].as_str()),
            (Some("nomad"), Some("unbound")),
            "{report:#}"
        );
    }
    holders.iter().map(|holder| holder["token"].as_str().expect("it has one").to_owned()).collect()
}

/// Ends a lease, as `switchyard devices release` does.
fn end(lab: &KillFixture, token: &str) -> Result<(), tonic::Status> {
    let socket = lab.node.root().run().join("admin.sock");
    let answer = http::delete_unix(&socket, &format!("/v1/devices/leases/{token}"));
    match answer.map(|answer| answer.status) {
        Ok(204) => Ok(()),
        Ok(status) => panic!("{status}"),
        Err(error) => Err(tonic::Status::unavailable(error.to_string())),
    }
}

/// The lease is on record, and its agent has had no answer: it asks again, and is given the same.
fn lease(lab: &KillFixture, kill: KillPoint) {
    let id = device(lab);
    lab.dies_amid(kill, || LaunchedDevicePlugin::launch(lab.node.root()).reserve(&[&id]));
    assert_eq!(device(lab), id);
    let known = leases(lab);
    assert_eq!(known.len(), 1, "{kill:?}");
    let given = LaunchedDevicePlugin::launch(lab.node.root()).reserve(&[&id]).expect("it can be sent again");
    assert!(given.envs.values().any(|value| *value == known[0]), "{kill:?}: {given:?}");
    assert_eq!(leases(lab), known, "{kill:?}");
    end(lab, &known[0]).expect("nothing was made with it");
    assert_eq!(leases(lab), [""; 0], "{kill:?}");
    lab.assert_nothing_left(kill);
}

/// It is on record that the lease has ended, and nobody was told.
fn release(lab: &KillFixture, kill: KillPoint) {
    let id = device(lab);
    LaunchedDevicePlugin::launch(lab.node.root()).reserve(&[&id]).expect("it is free");
    let [token] = &leases(lab)[..] else { panic!("{:#}", report(lab)) };
    lab.dies_amid(kill, || end(lab, token));
    assert_eq!(device(lab), id);
    assert_eq!(leases(lab), [""; 0], "{kill:?}");
    LaunchedDevicePlugin::launch(lab.node.root()).reserve(&[&id]).expect("it is free");
    let again = leases(lab);
    assert_ne!(&again[0], token, "{kill:?}: another lease has another token");
    end(lab, &again[0]).expect("nothing was made with it");
    lab.assert_nothing_left(kill);
}
