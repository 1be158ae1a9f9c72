//! One executable that was started as a plugin: its handshake, its output, its connection and its exit.

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use switchyard_proto::go_plugin as wire;
use switchyard_proto::go_plugin::grpc_controller_client::GrpcControllerClient;
use switchyard_proto::grpc::health::v1 as health;
use switchyard_proto::grpc::health::v1::health_client::HealthClient;
use switchyard_proto::nomad::base::proto as base;
use switchyard_proto::nomad::base::proto::base_plugin_client::BasePluginClient;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::pipe_reader::{OnEof, PipeReader};
use crate::host::eventually;

/// Limit for which an agent waits for the first line.
const HANDSHAKE: Duration = Duration::from_secs(60);

/// Limit for a call that a plugin answers by itself.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// Time for which an agent waits for the end that it has requested, before it kills.
pub const GRACE: Duration = Duration::from_secs(2);

/// Nomad's magic cookie, and the name of its variable.
pub const COOKIE: (&str, &str) = (
    "NOMAD_PLUGIN_MAGIC_COOKIE",
    "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
);

/// A plugin that was started, or reattached to.
pub struct PluginProcess {
    child: Option<Child>,
    pid: u32,
    address: PathBuf,
    channel: Channel,
    runtime: Arc<Runtime>,
    // An agent that reattaches has no pipes.
    pipes: Option<(PipeReader, PipeReader)>,
}

/// An agent's note of a plugin, to find it again after its own crash. The process remains our child.
#[derive(Debug)]
pub struct ReattachConfig {
    child: Child,
    /// The address at which it listens.
    pub address: PathBuf,
    /// Its process.
    pub pid: u32,
}

/// A plugin that did not come up.
#[derive(Debug)]
pub struct LaunchFailure {
    /// Its exit status, if it has ended.
    pub status: Option<ExitStatus>,
    /// Its output on standard error.
    pub stderr: String,
}

impl fmt::Debug for PluginProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("pid", &self.pid)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

// === impl PluginProcess ===

impl PluginProcess {
    /// Starts an executable as an agent does, and reads its handshake.
    ///
    /// # Errors
    /// [`LaunchFailure`] if it ends, or says something else.
    ///
    /// # Panics
    /// When the executable is not there.
    pub fn launch(
        exe: &Path,
        args: &[String],
        runtime: &Arc<Runtime>,
    ) -> Result<Self, LaunchFailure> {
        Self::launch_with(exe, args, &[COOKIE], runtime)
    }

    /// As [`PluginProcess::launch`], with these variables beside those that every agent sets.
    ///
    /// # Errors
    /// As [`PluginProcess::launch`].
    ///
    /// # Panics
    /// As [`PluginProcess::launch`].
    pub fn launch_with(
        exe: &Path,
        args: &[String],
        variables: &[(&str, &str)],
        runtime: &Arc<Runtime>,
    ) -> Result<Self, LaunchFailure> {
        let mut command = Command::new(exe);
        command.args(args).envs(variables.iter().copied());
        command
            .env("PLUGIN_MIN_PORT", "10000")
            .env("PLUGIN_MAX_PORT", "25000");
        command.env("PLUGIN_PROTOCOL_VERSIONS", "2");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", exe.display()));
        let stdout = PipeReader::start(
            OwnedFd::from(child.stdout.take().expect("it is piped")),
            OnEof::EndOfInput,
        );
        let stderr = PipeReader::start(
            OwnedFd::from(child.stderr.take().expect("it is piped")),
            OnEof::EndOfInput,
        );
        stdout.wait(HANDSHAKE, |text| text.contains('\n'));
        let printed = stdout.text();
        let Some(address) = printed
            .lines()
            .next()
            .filter(|_| printed.contains('\n'))
            .and_then(parse_handshake)
        else {
            let ended = eventually(GRACE, || stderr.has_ended() && stdout.has_ended());
            let status = if ended { child.wait().ok() } else { None };
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
            return Err(LaunchFailure {
                status,
                stderr: stderr.text(),
            });
        };
        let pid = child.id();
        let channel = connect(&address, runtime);
        Ok(Self {
            child: Some(child),
            pid,
            address,
            channel,
            runtime: Arc::clone(runtime),
            pipes: Some((stdout, stderr)),
        })
    }

    /// Takes up a plugin that an agent left when it crashed: a look at its process, a bare connection, then a
    /// new one to speak on.
    ///
    /// # Panics
    /// When it is not there any more.
    #[track_caller]
    #[must_use]
    pub fn reattach(record: ReattachConfig, runtime: &Arc<Runtime>) -> Self {
        let ReattachConfig {
            mut child,
            address,
            pid,
        } = record;
        assert!(
            child
                .try_wait()
                .expect("a child can be waited for")
                .is_none(),
            "the plugin has ended"
        );
        drop(UnixStream::connect(&address).expect("a plugin listens for as long as it lives"));
        let channel = connect(&address, runtime);
        Self {
            child: Some(child),
            pid,
            address,
            channel,
            runtime: Arc::clone(runtime),
            pipes: None,
        }
    }

    /// Leaves it as an agent does that is killed: its pipes and its connection end, and nobody says a word.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn abandon(mut self) -> ReattachConfig {
        let child = self.child.take().expect("a plugin has a process");
        ReattachConfig {
            child,
            address: self.address.clone(),
            pid: self.pid,
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the address at which it listens.
    #[must_use]
    pub fn address(&self) -> &Path {
        &self.address
    }

    /// The connection.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The runtime that calls are made on.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// `PluginInfo`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn info(&self) -> Result<base::PluginInfoResponse, Status> {
        self.base(async |mut client| client.plugin_info(base::PluginInfoRequest {}).await)
    }

    /// `ConfigSchema`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn config_schema(&self) -> Result<base::ConfigSchemaResponse, Status> {
        self.base(async |mut client| client.config_schema(base::ConfigSchemaRequest {}).await)
    }

    /// `SetConfig`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn set_config(
        &self,
        msgpack_config: Vec<u8>,
        nomad_config: Option<base::NomadConfig>,
    ) -> Result<(), Status> {
        let plugin_api_version = "v0.1.0".to_owned();
        let request = base::SetConfigRequest {
            msgpack_config,
            nomad_config,
            plugin_api_version,
        };
        self.base(async |mut client| client.set_config(request).await)
            .map(drop)
    }

    fn base<T>(
        &self,
        call: impl AsyncFnOnce(BasePluginClient<Channel>) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Status> {
        self.with_call_limit(async {
            Ok(call(BasePluginClient::new(self.channel()))
                .await?
                .into_inner())
        })
    }

    /// Awaits a call that ought to be answered soon.
    fn with_call_limit<T>(
        &self,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        self.runtime.block_on(async {
            match tokio::time::timeout(CALL_LIMIT, call).await {
                Ok(answer) => answer,
                Err(_) => panic!("a plugin has not answered within {CALL_LIMIT:?}"),
            }
        })
    }

    /// Returns the answer to go-plugin's `Ping`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn ping(&self, service: &str) -> Result<health::HealthCheckResponse, Status> {
        let request = health::HealthCheckRequest {
            service: service.to_owned(),
        };
        self.with_call_limit(async {
            Ok(HealthClient::new(self.channel())
                .check(request)
                .await?
                .into_inner())
        })
    }

    /// Asks it to end, closes the connection, and waits as an agent does; whether it ended before an agent
    /// would have killed it.
    ///
    /// # Panics
    /// When the call fails.
    #[track_caller]
    #[must_use]
    pub fn kill(mut self) -> bool {
        let mut client = GrpcControllerClient::new(self.channel());
        self.with_call_limit(client.shutdown(wire::Empty {}))
            .expect("a plugin takes the wish for its end");
        drop(client);
        self.exit(GRACE).is_some()
    }

    /// Waits for its end as an agent sees it: the end of both pipes, and then of the process; without pipes
    /// the process alone.
    pub fn exit(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        if let Some((stdout, stderr)) = &self.pipes
            && !eventually(limit, || stdout.has_ended() && stderr.has_ended())
        {
            return None;
        }
        let child = self.child.as_mut()?;
        let mut status = None;
        eventually(
            limit
                .saturating_sub(begin.elapsed())
                .max(Duration::from_millis(50)),
            || {
                status = child.try_wait().expect("a child can be waited for");
                status.is_some()
            },
        );
        status
    }

    /// Returns its output on standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.pipes
            .as_ref()
            .map(|(_, stderr)| stderr.text())
            .unwrap_or_default()
    }

    /// Returns its output on standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.pipes
            .as_ref()
            .map(|(stdout, _)| stdout.text())
            .unwrap_or_default()
    }
}

impl Drop for PluginProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The address in a handshake line, if an agent would take it.
fn parse_handshake(line: &str) -> Option<PathBuf> {
    let fields: Vec<&str> = line.trim_end().split('|').collect();
    let [core, app, network, address, protocol, rest @ ..] = fields.as_slice() else {
        return None;
    };
    let fits = *core == "1"
        && *app == "2"
        && *network == "unix"
        && *protocol == "grpc"
        && address.len() < 108;
    // A sixth field that is long is a certificate.
    (fits && rest.first().is_none_or(|field| field.len() <= 50)).then(|| PathBuf::from(address))
}

/// A connection to where a plugin listens, as an agent makes it.
///
/// # Panics
/// When the path is no text.
#[must_use]
pub fn connect(address: &Path, runtime: &Runtime) -> Channel {
    let _entered = runtime.enter();
    Endpoint::from_shared(format!("unix://{}", address.display()))
        .expect("the path of a test's socket needs no escapes")
        .origin("http://unused".parse().expect("it is a URI"))
        .connect_lazy()
}

/// The lines of hclog in what a plugin said; an agent panics over those of another form that begin like one.
///
/// # Panics
/// When a line is not what an agent takes.
#[track_caller]
#[must_use]
pub fn hclog(stderr: &str) -> Vec<Value> {
    stderr.lines().map(parse_log_line).collect()
}

#[track_caller]
fn parse_log_line(line: &str) -> Value {
    let object: Value =
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    for key in ["@level", "@message", "@timestamp"] {
        assert!(object[key].is_string(), "{key} of {line:?}");
    }
    assert!(
        ["trace", "debug", "info", "warn", "error"]
            .contains(&object["@level"].as_str().unwrap_or_default())
    );
    let time = object["@timestamp"].as_str().unwrap_or_default();
    let fraction = time.rsplit('.').next().unwrap_or_default();
    assert!(
        fraction.len() == 7 && fraction.ends_with('Z'),
        "six digits: {time}"
    );
    object
}
