//! Tests of the whole daemon with the in-memory backend: start, requests, refusal of a second daemon, stop.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use switchyard_config::{Config, Loaded, Sources, load};
use switchyard_core::Error;
use switchyard_core::backend::BackendObserver;
use switchyard_core::id::{LeaseToken, Owner};
use switchyard_core::ledger::{LeaseStore, StoredLease};
use switchyard_daemon::detach::read_pid_file;
use switchyard_daemon::lock::DirLocks;
use switchyard_daemon::serve::{self, ServeError};
use switchyard_daemon::shutdown::Shutdown;
use switchyard_daemon::wiring::ConnectedBackend;
use switchyard_fake::{Fake, Method};
use switchyard_kubelet::{Kubelet, Options};
use switchyard_ledger::Journal;
use switchyard_operator_api::{DevicesView, Objects, StatusReport};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use switchyard_socket::channel;
use switchyard_telemetry::LogLevel;
use switchyard_telemetry::TraceSettings;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::support::{Killed, exe, soon, switchyard};

mod served_daemon;
mod successor;
mod traces;

use served_daemon::ServedDaemon;

#[tokio::test(flavor = "multi_thread")]
async fn daemon_starts_serves_and_stops_leaving_the_logkeeper() {
    let node = ServedDaemon::new();
    let daemon = node.serve(&Fake::with_busybox());
    node.ready().await;
    let request = cri::VersionRequest {
        version: "v1".into(),
    };
    let version = node
        .client()
        .await
        .version(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(version.runtime_api_version, "v1");
    let images = channel::grpc(Path::new(&node.path("run/cri.sock")))
        .await
        .unwrap();
    let image = cri::ImageSpec {
        image: switchyard_fake::BUSYBOX.into(),
        ..Default::default()
    };
    let pull = cri::PullImageRequest {
        image: Some(image),
        ..Default::default()
    };
    ImageServiceClient::new(images)
        .pull_image(pull)
        .await
        .unwrap();
    let metrics = node.page("/metrics").await.unwrap().1;
    let counted = "{code=\"OK\",method=\"runtime.v1.RuntimeService/Version\",protocol=\"cri\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    assert!(metrics.contains("switchyard_images 1"), "{metrics}");
    assert!(
        metrics.contains("switchyard_image_pulls_total{registry=\"docker.io\",result=\"ok\"} 1"),
        "{metrics}"
    );
    let address = fs::read_to_string(node.path("run/admin.addr")).unwrap();
    tokio::net::TcpStream::connect(address.trim())
        .await
        .unwrap();

    node.listeners_are_stored().await;
    daemon.stop().await.unwrap();
    assert!(
        !Path::new(&node.path("run/admin.addr")).exists(),
        "nobody listens there any more"
    );
    for socket in ["run/cri.sock", "run/admin.sock"] {
        let waits = tokio::net::UnixStream::connect(node.path(socket)).await;
        waits.unwrap_or_else(|error| panic!("{socket}: {error}"));
    }
    let logkeeper = read_pid_file(Path::new(&node.path("run/logkeeper/logkeeper.pid")))
        .unwrap()
        .unwrap();
    assert!(logkeeper.is_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_before_recovery_wait_for_it() {
    let node = ServedDaemon::new();
    let fake = Fake::new();
    let hold = fake.hold(Method::Recover);
    let daemon = node.serve(&fake);
    let answers = async {
        while channel::grpc(Path::new(&node.path("run/cri.sock")))
            .await
            .is_err()
        {}
    };
    soon("the socket to be there", answers).await;
    let mut client = node.client().await;
    let mut early = tokio::spawn(async move {
        client
            .list_pod_sandbox(cri::ListPodSandboxRequest::default())
            .await
    });
    // Queries of the daemon's own status are answered meanwhile.
    let mut client = node.client().await;
    client
        .version(cri::VersionRequest::default())
        .await
        .unwrap();
    let status = client
        .status(cri::StatusRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert!(
        status
            .status
            .unwrap()
            .conditions
            .iter()
            .any(|condition| !condition.status)
    );
    assert!(futures::poll!(&mut early).is_pending());
    drop(hold);
    soon("the request to be answered", early)
        .await
        .unwrap()
        .unwrap();
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_rejected_and_reported_when_recovery_takes_too_long() {
    let node = ServedDaemon::with("[recovery]\nwait_seconds = 0");
    let fake = Fake::new();
    fake.fail_next(Method::Recover, Error::unavailable("the runtime is away"));
    let hold = fake.hold(Method::Recover);
    let daemon = node.serve(&fake);
    let up = async {
        while !matches!(node.page("/statusz").await, Some((_, text)) if text.contains("\"cri\",\"up\":true"))
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon("CRI to be served", up).await;
    let (status, text) = node.page("/readyz").await.unwrap();
    assert_eq!(status, 503);
    assert!(text.contains("[-]recovery failed"), "{text}");
    let list = cri::ListPodSandboxRequest::default();
    let refused = node
        .client()
        .await
        .list_pod_sandbox(list.clone())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    drop(hold);
    node.ready().await;
    node.client().await.list_pod_sandbox(list).await.unwrap();
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_on_the_same_directories_is_refused() {
    let node = ServedDaemon::new();
    let daemon = node.serve(&Fake::new());
    node.ready().await;
    let config = node.path("config.toml");
    let second = tokio::task::spawn_blocking(move || switchyard(&["serve", "--config", &config]))
        .await
        .unwrap();
    assert_eq!(second.status.code(), Some(75));
    let complaint = String::from_utf8(second.stderr).unwrap();
    let wanted = format!(
        "{} is in use by switchyard process {}:",
        node.path("state"),
        std::process::id()
    );
    assert!(complaint.contains(&wanted), "{complaint}");
    assert_eq!(node.page("/livez").await.unwrap().0, 200);
    daemon.stop().await.unwrap();
}

#[test]
fn an_address_in_use_and_a_socket_path_that_is_too_long_are_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let long = format!("/tmp/{}", "x".repeat(120));
    let node = ServedDaemon::new();
    let config = node.path("config.toml");
    for (set, status, wanted) in [
        (
            format!("admin.listen={address}"),
            75,
            [&*address, "admin.listen"],
        ),
        (
            format!("cri.socket={long}"),
            78,
            ["cri.socket", "the kernel allows 107"],
        ),
        (
            format!("paths.run={long}"),
            78,
            ["paths.run", "the kernel allows 107"],
        ),
    ] {
        let output = switchyard(&["serve", "--config", &config, "--set", &set]);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{complaint}");
        assert!(
            wanted.iter().all(|part| complaint.contains(part)),
            "{set}: {complaint}"
        );
    }
}

#[test]
fn start_that_does_not_know_the_defaults_of_its_networks_ends_and_changes_nothing() {
    let node = ServedDaemon::new();
    let record = node.path("state/network-defaults.toml");
    fs::create_dir(node.path("state")).unwrap();
    for damaged in ["", "version = 2\ndriver = \"native\"\n"] {
        fs::write(&record, damaged).unwrap();
        let output = switchyard(&["serve", "--config", &node.path("config.toml")]);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{complaint}");
        for part in [record.as_str(), "network.isolation"] {
            assert!(complaint.contains(part), "{complaint}");
        }
        assert_eq!(fs::read_to_string(&record).unwrap(), damaged);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_pods_are_visible_to_all_commands() {
    let node = ServedDaemon::new();
    let daemon = node.serve(&Fake::with_busybox());
    node.ready().await;
    let cri_socket = node.path("run/cri.sock");
    let logs = node.path("logs");
    let cri = async |args: &[&str]| {
        switchyard_result(&[&["cri", "--socket", &cri_socket], args].concat()).await
    };

    let image = switchyard_fake::BUSYBOX;
    let (code, out, err) = cri(&[
        "run",
        "--name",
        "web",
        "--log-dir",
        &logs,
        "--output",
        "json",
        image,
        "--",
        "sleep",
        "1000",
    ])
    .await;
    assert_eq!(code, Some(0), "{out}{err}");
    let made: serde_json::Value = serde_json::from_str(&out).unwrap();
    let pod = made["pod"].as_str().unwrap();
    let container = made["container"].as_str().unwrap();

    let (_, out, _) = cri(&["pods"]).await;
    assert!(
        out.contains(&pod[..13]) && out.contains("web") && out.contains("ready"),
        "{out}"
    );
    let (_, out, _) = cri(&["ps"]).await;
    assert!(
        out.contains(&container[..13]) && out.contains("running"),
        "{out}"
    );
    assert_pod_is_seen_by_the_operator(&node.path("run/admin.sock"), pod, container).await;

    assert_eq!(
        cri(&["exec", &container[..13], "--", "echo", "hello"]).await,
        (Some(0), "hello\n".into(), String::new())
    );
    let (code, _, err) = cri(&["exec", container, "--", "false"]).await;
    assert_eq!(
        (code, err.as_str()),
        (Some(1), "switchyard: the command ended with 1\n")
    );
    let (code, _, err) = cri(&["exec", &"0".repeat(64), "--", "true"]).await;
    assert_eq!(code, Some(1));
    let missing = |err: &str| err.contains("kubernetes has no ") && err.contains("(NotFound)");
    assert!(missing(&err), "{err}");

    let (code, _, err) = cri(&["stop", pod]).await;
    assert_eq!(code, Some(0), "{err}");
    let (code, out, err) = cri(&["rm", pod]).await;
    assert_eq!((code, out), (Some(0), format!("removed {pod}\n")), "{err}");
    assert_eq!(cri(&["pods", "--output", "json"]).await.1.trim(), "[]");
    for command in ["stop", "rm"] {
        let (code, _, err) = cri(&[command, pod]).await;
        assert!(code == Some(1) && missing(&err), "{err}");
    }
    daemon.stop().await.unwrap();
}

/// Runs a command to its end. Returns its exit code, and the text of its output and of its errors.
async fn switchyard_result(args: &[&str]) -> (Option<i32>, String, String) {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let output = tokio::task::spawn_blocking(move || {
        switchyard(&args.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let output = output.await.unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), out, err)
}

async fn assert_pod_is_seen_by_the_operator(admin: &str, pod: &str, container: &str) {
    let (_, out, _) = switchyard_result(&["ps", "--socket", admin, "--output", "json"]).await;
    let objects: Objects = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (
            objects.sandboxes[0].id.as_str(),
            objects.tasks[0].id.as_str()
        ),
        (pod, container)
    );
    let names = [
        &objects.tasks[0].names["pod"],
        &objects.tasks[0].names["image"],
    ];
    assert_eq!(names, ["web", switchyard_fake::BUSYBOX]);
    let (_, out, _) = switchyard_result(&["ps", "--socket", admin]).await;
    let shown = format!("{}/web/", objects.tasks[0].names["namespace"]);
    assert!(
        out.contains(&shown) && !out.contains(&objects.tasks[0].name),
        "{out}"
    );
    let (_, out, _) = switchyard_result(&["status", "--socket", admin, "--output", "json"]).await;
    let report: StatusReport = serde_json::from_str(&out).unwrap();
    assert_eq!(report.tasks[0].count, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn recovered_lease_is_listed_and_stays_released() {
    let node = ServedDaemon::with(
        "[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\npaths = [\"/dev/null\"]",
    );
    let token = LeaseToken::random();
    // A lease of a predecessor that used the device's path as its id.
    let lease = StoredLease {
        token,
        owner: Owner::Nomad,
        slots: vec!["/dev/null".parse().unwrap()],
    };
    Journal::new(Path::new(&node.path("state")))
        .put(&lease)
        .await
        .unwrap();
    let daemon = node.serve(&Fake::new());
    node.ready().await;
    let shown = async || -> DevicesView {
        serde_json::from_str(&node.page("/v1/devices").await.unwrap().1).unwrap()
    };
    let looked_at = async {
        while shown().await.groups.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon("the devices to be looked at", looked_at).await;
    let devices = shown().await;
    assert!(devices.ready);
    let [slot] = &devices.slots[..] else {
        panic!("{devices:?}")
    };
    assert!(slot.healthy && slot.group == "acme/tpu/default", "{slot:?}");
    assert_eq!(
        (
            slot.holders[0].owner.as_str(),
            slot.holders[0].state.as_str()
        ),
        ("nomad", "unbound")
    );
    assert_eq!((devices.groups[0].capacity, devices.groups[0].free), (1, 0));
    let (_, verbose) = node.page("/readyz?verbose").await.unwrap();
    assert!(verbose.contains("[+]devices ok"), "{verbose}");

    let admin = node.path("run/admin.sock");
    let text = token.to_string();
    let release = async || {
        let admin = admin.clone();
        let text = text.clone();
        tokio::task::spawn_blocking(move || {
            switchyard(&["devices", "release", &text, "--socket", &admin])
        })
        .await
        .unwrap()
    };
    assert_eq!(release().await.status.code(), Some(0));
    let again = release().await;
    assert_eq!(again.status.code(), Some(1));
    assert!(
        String::from_utf8(again.stderr)
            .unwrap()
            .contains("does not exist")
    );
    assert_eq!(shown().await.groups[0].free, 1);
    daemon.stop().await.unwrap();
    assert_eq!(
        Journal::new(Path::new(&node.path("state")))
            .load()
            .await
            .unwrap(),
        []
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_lease_journal_blocks_devices_and_is_reported() {
    let node = ServedDaemon::with(
        "[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\npaths = [\"/dev/null\"]",
    );
    fs::create_dir_all(node.path("state/ledger/leases.journal")).unwrap();
    let daemon = node.serve(&Fake::new());
    node.ready().await;
    let (status, verbose) = node.page("/readyz?verbose").await.unwrap();
    assert!(
        status == 200
            && verbose.contains("[!]devices failed, the node stays ready: the leases of before"),
        "{verbose}"
    );
    assert_eq!(node.page("/readyz/devices").await.unwrap().0, 503);
    let devices: DevicesView =
        serde_json::from_str(&node.page("/v1/devices").await.unwrap().1).unwrap();
    assert!(!devices.ready);
    // It is read again, as for a disk that is late.
    fs::remove_dir(node.path("state/ledger/leases.journal")).unwrap();
    let readable = async {
        while !matches!(node.page("/readyz/devices").await, Some((200, _))) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon("the leases to be read", readable).await;
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_with_a_resource_are_offered_to_the_kubelet_until_shutdown() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("device-plugins");
    let node = ServedDaemon::with(&format!(
        "[devices.kubelet]\ndirectory = \"{0}/device-plugins\"\npod_resources_socket = \"{0}/none.sock\"\n\
         [[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\nresource = \"acme.com/tpu\"\npaths = [\"/dev/null\"]\n",
        place.path().display()
    ));
    let daemon = node.serve(&Fake::new());
    let kubelet = Kubelet::start(&directory, Options::default());
    kubelet
        .wait_until("the device is known", |kubelet| {
            kubelet.capacity("acme.com/tpu") == (1, 1)
        })
        .await;
    let followed = async {
        let is_followed = |text: &str| text.contains("a kubelet follows 1 resources");
        while !node
            .page("/statusz")
            .await
            .is_some_and(|(_, text)| is_followed(&text))
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon("the page to say so", followed).await;
    let metrics = node.page("/metrics").await.unwrap().1;
    let counted = "{code=\"OK\",method=\"v1beta1.DevicePlugin/GetDevicePluginOptions\",protocol=\"device_plugin\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    daemon.stop().await.unwrap();
    kubelet
        .wait_until("its stream has ended", |kubelet| {
            kubelet.capacity("acme.com/tpu") == (1, 0)
        })
        .await;
    let left: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["kubelet.sock"]);
}
