//! Shared by the tests: stand-in plugins, shell scripts that record their input.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::attachment::Attachment;
use crate::conf::NetworkList;
use crate::error::Error;
use crate::network::Network;
use crate::plugin::{Limits, Plugins};
use crate::result::CniResult;

/// A timeout long enough for a shell script on a busy machine, and short enough for a test to wait for.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// A directory with stand-in plugins and what they recorded.
#[derive(Debug)]
pub(crate) struct Bench {
    temp: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["bin", "log"] {
            fs::create_dir(temp.path().join(dir)).unwrap();
        }
        Self { temp }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Adds a plugin that records its name, environment and configuration, and then runs `body`.
    pub(crate) fn plugin(&self, name: &str, body: &str) {
        let log = self.path("log");
        let log = log.display();
        let script = format!(
            "#!/bin/sh\ncd '{log}' || exit 99\necho \"$CNI_COMMAND {name}\" >> order\n\
             env | sort > '{name}'.$CNI_COMMAND.env\ncat > '{name}'.$CNI_COMMAND.stdin\n{body}\n"
        );
        let path = self.path("bin").join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Adds a plugin whose ADD answers with one address on eth0, and whose other commands succeed.
    pub(crate) fn good(&self, name: &str, address: &str) {
        self.plugin(
            name,
            &format!(
                "[ $CNI_COMMAND != ADD ] || echo '{}'",
                result("1.0.0", address)
            ),
        );
    }

    pub(crate) fn plugins(&self) -> Plugins {
        self.plugins_within(Duration::from_secs(60))
    }

    pub(crate) fn plugins_within(&self, limit: Duration) -> Plugins {
        let limits = Limits {
            plugin: limit,
            undo: 2 * limit,
        };
        Plugins::new([self.path("no-such-bin"), self.path("bin")], limits)
    }

    pub(crate) fn network(&self, list: &Value) -> Network {
        self.network_within(list, Duration::from_secs(60))
    }

    pub(crate) fn network_within(&self, list: &Value, limit: Duration) -> Network {
        let list =
            NetworkList::parse(Path::new("test.conflist"), list.to_string().as_bytes()).unwrap();
        Network::new(Arc::new(list), self.plugins_within(limit))
    }

    /// The recorded calls, in order.
    pub(crate) fn order(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("log/order")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The input that a plugin read on one command.
    pub(crate) fn stdin(&self, plugin: &str, verb: &str) -> Value {
        serde_json::from_str(
            &fs::read_to_string(self.path(&format!("log/{plugin}.{verb}.stdin"))).unwrap(),
        )
        .unwrap()
    }

    /// A variable of a plugin's environment on one command.
    pub(crate) fn env(&self, plugin: &str, verb: &str, name: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(&format!("log/{plugin}.{verb}.env"))).unwrap();
        text.lines().find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix('=')
                .map(str::to_owned)
        })
    }
}

/// A result with one address on eth0.
pub(crate) fn result(version: &str, address: &str) -> Value {
    json!({
        "cniVersion": version,
        "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
        "ips": [{"address": address, "interface": 1}],
    })
}

/// A list of plugins without any configuration of their own.
pub(crate) fn list(version: &str, plugins: &[&str]) -> Value {
    let plugins: Vec<_> = plugins.iter().map(|kind| json!({"type": kind})).collect();
    json!({"cniVersion": version, "name": "net", "plugins": plugins})
}

pub(crate) fn attachment() -> Attachment {
    Attachment {
        container_id: "c0ffee".to_owned(),
        netns: Some("/run/netns/x".into()),
        ifname: "eth0".to_owned(),
        ..Attachment::default()
    }
}

/// Attaches with a journal at `path`, as a sandbox is attached.
pub(crate) async fn attach_saved(
    network: &Network,
    path: &Path,
    attachment: &Attachment,
) -> Result<CniResult, Error> {
    network.save(path, attachment).await?;
    network.add_saved(path, attachment).await
}
