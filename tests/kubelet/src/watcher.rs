//! The plugin watcher: finds sockets in a directory, and asks each what kind of plugin it serves.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use switchyard_proto::kubelet::plugin_registration as watcher;
use tokio::time::{sleep, timeout};

use crate::KubeletInner;
use crate::manager::AcceptedRegistration;
use crate::raw;

/// The interval between two scans: a real watcher uses inotify, and retries once a second.
const SCAN_INTERVAL: Duration = Duration::from_millis(20);

/// The deadline of GetInfo.
const GET_INFO: Duration = Duration::from_secs(1);

/// The deadline of NotifyRegistrationStatus.
const NOTIFY: Duration = Duration::from_secs(5);

/// Watches the sockets in a directory; a plugin that was refused is tried again.
pub(crate) async fn follow(shared: Arc<KubeletInner>, directory: PathBuf) {
    let mut known = BTreeSet::new();
    loop {
        let found: BTreeSet<PathBuf> = sockets(&directory);
        known.retain(|path| found.contains(path));
        for path in &found {
            if !known.contains(path) && register(&shared, path).await.is_ok() {
                known.insert(path.clone());
            }
        }
        sleep(SCAN_INTERVAL).await;
    }
}

fn sockets(directory: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets.map(|entry| entry.path()).collect()
}

async fn register(shared: &KubeletInner, socket: &Path) -> io::Result<()> {
    let called = Instant::now();
    let info = raw::unary(
        socket,
        "/pluginregistration.Registration/GetInfo",
        &watcher::InfoRequest {},
    );
    let info: watcher::PluginInfo = timeout(GET_INFO, info).await??;
    let watcher::PluginInfo {
        r#type,
        name,
        endpoint,
        supported_versions,
    } = info;
    let endpoint = if endpoint.is_empty() {
        socket.to_owned()
    } else {
        PathBuf::from(endpoint)
    };
    let connected = if r#type == "DevicePlugin"
        && supported_versions
            .iter()
            .any(|version| version == "v1beta1")
    {
        shared
            .connect(&name, &endpoint)
            .await
            .map_err(|status| status.message().to_owned())
    } else {
        Err(format!("no handler for {type} of {supported_versions:?}", type = r#type))
    };
    let status = watcher::RegistrationStatus {
        plugin_registered: connected.is_ok(),
        error: connected.as_ref().err().cloned().unwrap_or_default(),
    };
    let notify = raw::unary(
        socket,
        "/pluginregistration.Registration/NotifyRegistrationStatus",
        &status,
    );
    let _: watcher::RegistrationStatusResponse = timeout(NOTIFY, notify).await??;
    connected.map_err(io::Error::other)?;
    let endpoint = endpoint
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    shared.change(|state| {
        state.registered.push(AcceptedRegistration {
            resource: name,
            endpoint,
            called,
            answered: Instant::now(),
        });
    });
    Ok(())
}
