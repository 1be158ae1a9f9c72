//! Tests of devices and host ports on the admin socket and on the command line.

use std::time::{Duration, UNIX_EPOCH};

use http::{Method, StatusCode};
use switchyard_core::id::LeaseToken;
use switchyard_daemon::node::plugins;
use switchyard_device_host::{LastError, PluginReport, PluginState, Report};
use switchyard_operator::status::StatusSource as _;
use switchyard_operator_api::{
    AmountView, ComputeView, DevicesView, ExclusiveView, GroupView, HeldView, HolderView, PortView,
    RefusalView, ReservedView, SlotView,
};

use super::{Pages, run};

/// Two plugins, of which one has ended, and one that could not register.
pub(super) fn reported() -> Report {
    let since = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let error = |text: &str| Some(LastError { at: since, text: text.into() });
    let gpu = PluginReport {
        resource: "acme.com/gpu".into(),
        endpoint: "gpu.sock".into(),
        state: PluginState::Connected,
        since,
        devices: 3,
        healthy: 2,
        last_error: None,
    };
    let nic = PluginReport {
        resource: "acme.com/nic".into(),
        endpoint: "nic.sock".into(),
        state: PluginState::Ended,
        devices: 4,
        healthy: 0,
        last_error: error("it has ended its ListAndWatch"),
        ..gpu.clone()
    };
    Report {
        fault: None,
        plugins: vec![gpu, nic],
        refused: error("nobody listens on x.sock"),
        failures: vec![("late", 3)],
    }
}

/// The report of the status source.
pub(super) fn shown() -> DevicesView {
    let token = LeaseToken::from_bytes([7; 16]).to_string();
    let slot = |id: &str, holders: Vec<HolderView>| SlotView {
        id: id.into(),
        device: id.split("::").next().unwrap().into(),
        group: "acme/tpu/v2".into(),
        healthy: id != "acme-2",
        reason: if id == "acme-2" { "it is not there any more".into() } else { String::new() },
        holders,
    };
    let holder = HolderView {
        owner: "nomad".into(),
        sandbox: Some("cd".repeat(32)),
        name: "train".into(),
        display_name: String::new(),
        state: "bound".into(),
        token,
    };
    let unbound =
        HolderView { sandbox: None, name: String::new(), state: "unbound".into(), ..holder.clone() };
    DevicesView {
        ready: true,
        groups: vec![GroupView {
            vendor: "acme".into(),
            kind: "tpu".into(),
            name: "v2".into(),
            resource: String::new(),
            capacity: 3,
            free: 1,
            held: vec![HeldView { owner: "nomad".into(), slots: 2 }],
        }],
        slots: vec![
            slot("acme-0::0", vec![holder]),
            slot("acme-0::1", vec![unbound]),
            slot("acme-1", Vec::new()),
            slot("acme-2", Vec::new()),
        ],
        ports: vec![PortView {
            port: 8080,
            protocol: "tcp".into(),
            address: None,
            owner: "kubernetes".into(),
            sandbox: "ab".repeat(32),
            name: "web".into(),
            display_name: String::new(),
            group: "uid".into(),
        }],
        compute: ComputeView {
            capacity: Some(AmountView { cpu_milli: 8000, memory_bytes: 16 << 30 }),
            reserved: vec![ReservedView {
                owner: "nomad".into(),
                amount: AmountView { cpu_milli: 2550, memory_bytes: 256 << 20 },
            }],
            exclusive: vec![ExclusiveView {
                cpus: "2-3".into(),
                count: 2,
                owner: "nomad".into(),
                task: "ef".repeat(32),
                sandbox: "cd".repeat(32),
                name: "train".into(),
                display_name: String::new(),
            }],
        },
        host: Some(plugins::view(reported())),
        refusals: vec![RefusalView {
            owner: "kubernetes".into(),
            resource: "device".into(),
            reason: "held".into(),
            count: 3,
        }],
    }
}

/// These devices with the names that people give their holders.
fn named(devices: DevicesView) -> DevicesView {
    let train = "cd".repeat(32);
    devices.with_display_names(|sandbox| (sandbox == train).then(|| "jobs/train".to_owned()))
}

#[tokio::test]
async fn device_and_port_holders_are_served_on_the_unix_socket_only() {
    let pages = Pages::serve().await;
    let (status, body) = pages.get("/v1/devices").await;
    assert_eq!(status, StatusCode::OK);
    let devices: DevicesView = serde_json::from_str(&body).unwrap();
    assert_eq!(devices, named(pages.source.devices()));
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(json["groups"][0]["type"], "tpu");
    assert_eq!(json["slots"][0]["holders"][0]["state"], "bound");
    assert_eq!(json["ports"][0]["address"], serde_json::Value::Null);
    assert_eq!(json["compute"]["reserved"][0]["cpu_milli"], 2550);
    assert_eq!(json["host"]["plugins"][1]["last_error"]["error"], "it has ended its ListAndWatch");
    assert!(pages.get_tcp("/v1/devices").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn lease_is_released_on_the_unix_socket_by_token_only() {
    let pages = Pages::serve().await;
    let path = |token: &str| format!("/v1/devices/leases/{token}");
    let ours = "07".repeat(16);
    let other = "08".repeat(16);
    assert_eq!(pages.ask(Method::DELETE, &path(&ours)).await, (StatusCode::NO_CONTENT, String::new()));
    let (status, why) = pages.ask(Method::DELETE, &path(&other)).await;
    assert_eq!((status, why.contains("is in use by train of nomad")), (StatusCode::CONFLICT, true), "{why}");
    for wrong in ["07", "..%2f..", &"0G".repeat(16), &"a".repeat(4000)] {
        let (status, why) = pages.ask(Method::DELETE, &path(wrong)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{why}");
    }
    assert_eq!(pages.get(&path(&ours)).await.0, StatusCode::METHOD_NOT_ALLOWED);
    let words = format!("DELETE {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path(&ours));
    assert!(pages.say(&words).await.starts_with("HTTP/1.1 404"));
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_shows_devices_and_ports_and_releases_leases() {
    let pages = Pages::serve().await;
    let socket = pages.dir.path().join("admin.sock").display().to_string();
    let output = run(&["devices", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let token = "07".repeat(16);
    let since = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let days = since.elapsed().unwrap().as_secs() / (24 * 60 * 60);
    let expected = format!(
        "SLOT       GROUP        STATE      OWNER  NAME        LEASE\n\
         acme-0::0  acme/tpu/v2  bound      nomad  jobs/train  {token}\n\
         acme-0::1  acme/tpu/v2  unbound    nomad  -           {token}\n\
         acme-1     acme/tpu/v2  free       -      -           -\n\
         acme-2     acme/tpu/v2  unhealthy  -      -           -\n\
         \n\
         HOST PORT  ADDRESS  OWNER       SANDBOX        NAME\n\
         8080/tcp   all      kubernetes  ababababababa  web\n\
         \n\
         RESERVED BY  PROCESSORS  MEMORY\n\
         nomad        2.55        256 MiB\n\
         (the node)   8.00        16384 MiB\n\
         \n\
         EXCLUSIVE CORES  OWNER  SANDBOX        NAME\n\
         2-3              nomad  cdcdcdcdcdcdc  jobs/train\n\
         \n\
         PLUGIN OF     SOCKET    STATE      FOR    HEALTHY  LAST ERROR\n\
         acme.com/gpu  gpu.sock  connected  {days}d  2 of 3   -\n\
         acme.com/nic  nic.sock  ended      {days}d  0 of 4   2023-11-14T22:13:20.000Z it has ended its ListAndWatch\n\
         The last plugin that could not register: 2023-11-14T22:13:20.000Z nobody listens on x.sock\n\
         \n\
         UNHEALTHY DEVICE  REASON\n\
         acme-2            it is not there any more\n"
    );
    assert_eq!(text, expected);
    let output = run(&["devices", "--output", "json", "--socket", &socket]).await;
    assert_eq!(serde_json::from_slice::<DevicesView>(&output.stdout).unwrap(), named(pages.source.devices()));

    for args in [
        ["devices", "release", &token, "--socket", &socket],
        ["devices", "--socket", &socket, "release", &token],
    ] {
        let output = run(&args).await;
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("released {token}\n"));
        assert_eq!(output.status.code(), Some(0));
    }
    let output = run(&["devices", "release", &"08".repeat(16), "--socket", &socket]).await;
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("is in use by train of nomad"), "{stderr}");
    let output = run(&["devices", "release", "07", "--socket", &socket]).await;
    assert_eq!(output.status.code(), Some(2), "a token that is none is wrong usage");
}
