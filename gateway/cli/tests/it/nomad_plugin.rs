//! Tests of a plugin as a Nomad agent starts it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use switchyard_nomad::launcher::COOKIE;
use switchyard_proto::nomad::base::proto as base;
use switchyard_proto::nomad::base::proto::base_plugin_client::BasePluginClient;
use switchyard_socket::channel;
use tokio::net::UnixListener;
use tokio::task::spawn_blocking;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::support::{RunningChild, exe, soon};

/// Starts the plugin for devices, which a daemon serves at `daemon`. Its own socket is below `dir`.
fn start_plugin(daemon: &Path, dir: &Path) -> RunningChild {
    let mut command = Command::new(exe());
    command
        .args(["nomad-plugin", "device", "--socket"])
        .arg(daemon)
        .env(COOKIE.0, COOKIE.1)
        .env("PLUGIN_UNIX_SOCKET_DIR", dir.join("sockets"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    RunningChild(command.spawn().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_that_its_daemon_refuses_writes_the_reason_into_the_agents_log() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nomad.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let connections = futures::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    // A daemon of a version that has other sessions.
    let daemon = Server::builder()
        .add_routes(Routes::default())
        .serve_with_incoming(connections);
    let daemon = tokio::spawn(daemon);

    let mut plugin = start_plugin(&socket, dir.path());
    let mut stdout = BufReader::new(plugin.0.stdout.take().unwrap());
    let stderr = BufReader::new(plugin.0.stderr.take().unwrap());
    let handshake = spawn_blocking(move || {
        let mut line = String::new();
        stdout.read_line(&mut line).map(|_| (line, stdout))
    });
    let handshake = soon("the handshake", handshake).await.unwrap();
    // An agent keeps it open.
    let (handshake, _stdout) = handshake.unwrap();
    let address = handshake.split('|').nth(3).unwrap();

    let refusal = spawn_blocking(move || {
        let mut lines = stderr.lines().map(Result::unwrap);
        lines.find(|line| line.contains("the switchyard daemon"))
    });
    let channel = channel::grpc(Path::new(address)).await.unwrap();
    let meant = base::SetConfigRequest {
        nomad_config: Some(base::NomadConfig::default()),
        ..Default::default()
    };
    BasePluginClient::new(channel)
        .set_config(meant)
        .await
        .unwrap();
    let refusal = soon("the agent's log", refusal).await.unwrap().unwrap();
    let refusal: serde_json::Value = serde_json::from_str(&refusal).unwrap();
    assert_eq!(refusal["@level"], "warn");
    let message = refusal["@message"].as_str().unwrap();
    assert!(
        message.starts_with("the switchyard daemon refuses this plugin: "),
        "{message}"
    );
    assert_eq!(
        refusal["reason"],
        "Operation is not implemented or not supported"
    );
    assert_eq!(refusal["daemon"], socket.display().to_string());
    daemon.abort();
}
