//! An agent: starts the plugin as often as Nomad does, keeps one instance for all tasks, and restarts it when
//! it has exited.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use switchyard_proto::nomad::base::proto as base;
use switchyard_proto::nomad::shared::hclspec;
use tokio::runtime::Runtime;
use tonic::{Code, Status};

use super::agent_paths::AgentPaths;
use super::config::encode;
use super::driver::BlockingDriver;
use super::plugin::{PluginProcess, ReattachConfig};

/// Time for which an agent waits for the exit of its plugin after a call has failed.
const EXIT_WAIT: Duration = Duration::from_secs(3);

/// An agent. Dropping it kills its plugin; tasks stay.
#[derive(Debug)]
pub struct Agent {
    exe: PathBuf,
    args: Vec<String>,
    config: Value,
    runtime: Arc<Runtime>,
    instance: Mutex<PluginProcess>,
}

/// The reason why a call failed, as an agent sees it.
#[derive(Debug)]
pub enum CallFailure {
    /// The plugin has exited: the agent starts a new one and repeats the call.
    PluginShutdown,
    /// The call itself failed.
    Status(Status),
}

// === impl Agent ===

impl Agent {
    /// Starts an agent, with these paths or on the daemon of a root, with this configuration of its plugin.
    ///
    /// # Panics
    /// When the agent would not start.
    #[track_caller]
    #[must_use]
    pub fn start(place: impl Into<AgentPaths>, config: &Value) -> Self {
        Self::start_with(place, &[], config)
    }

    /// As [`Agent::start`], with more arguments for the plugin.
    ///
    /// # Panics
    /// As [`Agent::start`].
    #[track_caller]
    #[must_use]
    pub fn start_with(place: impl Into<AgentPaths>, more: &[&str], config: &Value) -> Self {
        let place = place.into();
        let exe = install_plugins(&place).join("switchyard");
        let mut args = socket_args(&place);
        args.extend(more.iter().map(|word| (*word).to_owned()));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = Arc::new(runtime.expect("a runtime can be made"));
        read_schema(&exe, &args, &runtime);
        try_config(&exe, &args, config, &runtime).expect("the configuration is taken");
        let instance = Mutex::new(dispense(&exe, &args, config, &runtime));
        Self {
            exe,
            args,
            config: config.clone(),
            runtime,
            instance,
        }
    }

    /// Reattaches to the plugin that an earlier agent process left running, without configuring it.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    #[must_use]
    pub fn reattach(self_before: AgentState, record: ReattachConfig) -> Self {
        let AgentState {
            exe,
            args,
            config,
            runtime,
        } = self_before;
        read_schema(&exe, &args, &runtime);
        try_config(&exe, &args, &config, &runtime).expect("the configuration is taken");
        let plugin = PluginProcess::reattach(record, &runtime);
        let info = plugin
            .info()
            .expect("a plugin that was reattached to answers");
        assert_eq!(info.r#type(), base::PluginType::Driver);
        BlockingDriver::new(&plugin, &runtime)
            .init()
            .expect("it is asked to continue");
        Self {
            exe,
            args,
            config,
            runtime,
            instance: Mutex::new(plugin),
        }
    }

    /// Ends as with SIGKILL: the plugin stays, and so does the state from which the next agent process
    /// starts.
    #[must_use]
    pub fn crash(self) -> (AgentState, ReattachConfig) {
        let Self {
            exe,
            args,
            config,
            runtime,
            instance,
        } = self;
        let plugin = instance.into_inner();
        (
            AgentState {
                exe,
                args,
                config,
                runtime,
            },
            plugin.abandon(),
        )
    }

    /// Ends as when it is asked to: the driver is shut down, then the plugin exits.
    ///
    /// # Panics
    /// When the plugin would have to be killed.
    #[track_caller]
    pub fn stop(self) {
        self.driver().shutdown().expect("a driver takes the news");
        let plugin = self.instance.into_inner();
        assert!(plugin.kill(), "the plugin did not end in time");
    }

    /// The plugin instance that the agent keeps.
    pub fn plugin(&self) -> MutexGuard<'_, PluginProcess> {
        self.instance.lock()
    }

    /// The calls on it.
    #[must_use]
    pub fn driver(&self) -> BlockingDriver {
        BlockingDriver::new(&self.plugin(), &self.runtime)
    }

    /// The schema of tasks.
    #[must_use]
    pub fn task_schema(&self) -> hclspec::Spec {
        self.driver().task_schema()
    }

    /// The executable and its arguments.
    #[must_use]
    pub fn program(&self) -> (&Path, &[String]) {
        (&self.exe, &self.args)
    }

    /// The runtime of its calls.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Classifies the failure of a call as an agent does: it waits a while for the exit of the plugin.
    pub fn classify_failure(&self, driver: &BlockingDriver, status: Status) -> CallFailure {
        // Go's client reports `Unavailable` for a broken connection.
        let broke = status
            .source()
            .is_some_and(|source| source.is::<tonic::transport::Error>());
        let may_be_end = broke || matches!(status.code(), Code::Unavailable | Code::Cancelled);
        let ended = may_be_end && {
            let mut plugin = self.plugin();
            // Another caller has seen its exit already.
            plugin.pid() != driver.plugin() || plugin.exit(EXIT_WAIT).is_some()
        };
        if ended {
            CallFailure::PluginShutdown
        } else {
            CallFailure::Status(status)
        }
    }

    /// The running instance: a new one if the last has exited. Concurrent callers get the same one.
    ///
    /// # Panics
    /// When a new instance does not start.
    #[track_caller]
    #[must_use]
    pub fn dispense(&self) -> BlockingDriver {
        let mut plugin = self.plugin();
        if plugin.exit(Duration::ZERO).is_some() {
            *plugin = dispense(&self.exe, &self.args, &self.config, &self.runtime);
        }
        BlockingDriver::new(&plugin, &self.runtime)
    }
}

/// The state that one agent process leaves to the next.
#[derive(Debug)]
pub struct AgentState {
    exe: PathBuf,
    args: Vec<String>,
    config: Value,
    runtime: Arc<Runtime>,
}

/// Puts the plugins into a plugin_dir of a place, as an operator does; gives the directory.
///
/// # Panics
/// When that fails.
#[track_caller]
#[must_use]
pub fn install_plugins(place: impl Into<AgentPaths>) -> PathBuf {
    let AgentPaths {
        dir: place,
        program,
        ..
    } = place.into();
    let dir = place.join("nomad-plugins");
    let installed = Command::new(program)
        .args(["nomad-plugin", "install"])
        .arg(&dir)
        // That of the machine is for its own agents. An earlier version keeps none.
        .env(
            "SWITCHYARD_NOMAD_PLUGINS",
            place.join("nomad-plugins.record"),
        )
        .output();
    let installed = installed.expect("the binary exists, so it starts");
    assert!(
        installed.status.success(),
        "{}",
        String::from_utf8_lossy(&installed.stderr)
    );
    dir
}

/// The arguments that lead a plugin to the daemon of a place.
///
/// # Panics
/// When the path of its socket is no text.
#[must_use]
pub fn socket_args(place: impl Into<AgentPaths>) -> Vec<String> {
    let socket = place.into().socket;
    vec![
        "--socket".to_owned(),
        socket.to_str().expect("the path is ASCII").to_owned(),
    ]
}

/// The first start: queries the plugin's information and configuration schema.
#[track_caller]
fn read_schema(exe: &Path, args: &[String], runtime: &Arc<Runtime>) {
    let plugin = launch(exe, args, runtime);
    let info = plugin.info().expect("a plugin says what it is");
    assert_eq!(info.r#type(), base::PluginType::Driver);
    assert_eq!(info.plugin_api_versions, ["v0.1.0"]);
    assert!(!info.name.is_empty());
    // A pre-release and the metadata of a build may follow.
    let numbers = info.plugin_version.split(['-', '+']).next();
    let version: Vec<&str> = numbers
        .into_iter()
        .flat_map(|text| text.split('.'))
        .collect();
    assert!(
        version.len() == 3 && version.iter().all(|part| part.parse::<u32>().is_ok()),
        "{info:?}"
    );
    let spec = plugin
        .config_schema()
        .expect("a plugin says what it takes")
        .spec
        .expect("ours takes something");
    assert!(spec.block.is_some(), "an agent refuses an empty schema");
    assert!(plugin.kill(), "a plugin ends when it is asked to");
}

/// The second start: does it take this configuration? An agent asks twice.
#[track_caller]
fn try_config(
    exe: &Path,
    args: &[String],
    config: &Value,
    runtime: &Arc<Runtime>,
) -> Result<(), Status> {
    let plugin = launch(exe, args, runtime);
    let bytes = encoded(&plugin, config);
    let taken = plugin
        .set_config(bytes.clone(), None)
        .and_then(|()| plugin.set_config(bytes, None));
    assert!(plugin.kill(), "a plugin ends when it is asked to");
    taken
}

/// The third start: the instance that is kept.
#[track_caller]
fn dispense(exe: &Path, args: &[String], config: &Value, runtime: &Arc<Runtime>) -> PluginProcess {
    let plugin = launch(exe, args, runtime);
    let bytes = encoded(&plugin, config);
    plugin
        .set_config(bytes, Some(nomad_config()))
        .expect("the configuration was taken before");
    BlockingDriver::new(&plugin, runtime)
        .init()
        .expect("a driver begins");
    plugin
}

#[track_caller]
fn launch(exe: &Path, args: &[String], runtime: &Arc<Runtime>) -> PluginProcess {
    PluginProcess::launch(exe, args, runtime)
        .unwrap_or_else(|failed| panic!("the plugin does not start: {failed:?}"))
}

#[track_caller]
fn encoded(plugin: &PluginProcess, config: &Value) -> Vec<u8> {
    let spec = plugin
        .config_schema()
        .expect("a plugin says what it takes")
        .spec;
    encode(&spec.expect("ours takes something"), config)
}

/// Returns an agent's description of its node: two cores of 2500 MHz.
#[must_use]
pub fn nomad_config() -> base::NomadConfig {
    let core = |core_id| base::ClientTopologyCore {
        core_id,
        base_speed: 2500,
        ..Default::default()
    };
    let topology = base::ClientTopology {
        node_ids: vec![0],
        cores: vec![core(0), core(1)],
        ..Default::default()
    };
    let driver = base::NomadDriverConfig {
        client_max_port: 14512,
        client_min_port: 14000,
        topology: Some(topology),
    };
    base::NomadConfig {
        driver: Some(driver),
    }
}
