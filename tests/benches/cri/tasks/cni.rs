//! The network of a bare container: a namespace, and the plugins of the gateway's own bridge, run as the CNI
//! specification prescribes.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use switchyard_tests::prereq::CNI_BIN_DIR;
use switchyard_tests::root::PrivateRoot;

use super::nomad::INSIDE;
use crate::failure::Failure;
use crate::timed::TimedPrograms;

/// A network.
#[derive(Clone, Debug)]
pub(crate) struct Cni {
    /// The list of plugins as the daemon has written it down.
    list: Value,
    plugins: PathBuf,
}

impl Cni {
    /// The gateway's own bridge.
    pub(crate) fn of(root: &PrivateRoot, timed: Option<&TimedPrograms>) -> Result<Self, Failure> {
        let name = format!("network/{}.conflist", root.bridge().bridge());
        let path = root.state().join(name);
        let text =
            fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let plugins = timed.map_or(Path::new(CNI_BIN_DIR), TimedPrograms::plugins);
        Ok(Self {
            list: serde_json::from_slice(&text)?,
            plugins: plugins.to_owned(),
        })
    }

    /// ADD of all plugins, each with the result of the one before; gives the last.
    pub(crate) fn add(&self, id: &str, netns: &Path, port: u16) -> Result<Value, Failure> {
        let mut previous = Value::Null;
        for plugin in self.plugins()? {
            let result = self.run("ADD", plugin, (id, netns, port), &previous)?;
            previous = serde_json::from_slice(&result)?;
        }
        Ok(previous)
    }

    /// DEL of all plugins, the last first, of what ADD has given.
    pub(crate) fn del(
        &self,
        id: &str,
        netns: &Path,
        port: u16,
        added: &Value,
    ) -> Result<(), Failure> {
        for plugin in self.plugins()?.iter().rev() {
            self.run("DEL", plugin, (id, netns, port), added)?;
        }
        Ok(())
    }

    fn plugins(&self) -> Result<&Vec<Value>, Failure> {
        self.list["plugins"]
            .as_array()
            .ok_or_else(|| "the network has no plugins".into())
    }

    fn run(
        &self,
        command: &str,
        plugin: &Value,
        (id, netns, port): (&str, &Path, u16),
        previous: &Value,
    ) -> Result<Vec<u8>, Failure> {
        let mut config = plugin.clone();
        let wants_ports = config["capabilities"]["portMappings"] == json!(true);
        let fields = config.as_object_mut().ok_or("a plugin is an object")?;
        fields.remove("capabilities");
        for key in ["cniVersion", "name"] {
            fields.insert(key.to_owned(), self.list[key].clone());
        }
        if wants_ports {
            let mapping = |protocol| json!({ "hostPort": port, "containerPort": INSIDE, "protocol": protocol, "hostIP": "127.0.0.1" });
            let mappings = json!({ "portMappings": [mapping("tcp"), mapping("udp")] });
            fields.insert("runtimeConfig".to_owned(), mappings);
        }
        if !previous.is_null() {
            fields.insert("prevResult".to_owned(), previous.clone());
        }
        let program = self
            .plugins
            .join(plugin["type"].as_str().ok_or("a plugin has a type")?);
        let mut child = Command::new(&program)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", id)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let mut stdin = child.stdin.take().ok_or("it is piped")?;
        stdin.write_all(config.to_string().as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let stdout_text = String::from_utf8_lossy(&output.stdout);
        Err(format!(
            "{command} of {}: {}: {stdout_text}",
            program.display(),
            output.status
        )
        .into())
    }
}

/// Makes a network namespace that this file holds.
pub(crate) fn make_namespace(path: &Path) -> Result<(), Failure> {
    File::create_new(path)?;
    // A separate thread, because it stays in the new namespace until it exits.
    let make = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let none: Option<&str> = None;
        mount(
            Some("/proc/thread-self/ns/net"),
            path,
            none,
            MsFlags::MS_BIND,
            none,
        )
    };
    std::thread::scope(|scope| scope.spawn(make).join())
        .map_err(|_| "the making of a namespace panicked")??;
    Ok(())
}
