//! The calls that an agent makes on a driver. Each checks that the answer has everything whose absence would
//! crash or stall the agent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prost_types::{Duration as WireDuration, Timestamp};
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::driver_client::DriverClient;
use switchyard_proto::nomad::shared::hclspec;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use super::plugin::PluginProcess;

/// Limit for a call that ought to be answered soon.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// The calls on one connection. Each blocks.
#[derive(Debug, Clone)]
pub struct BlockingDriver {
    plugin: u32,
    channel: Channel,
    runtime: Arc<Runtime>,
}

/// A stream of answers.
pub struct ResponseStream<T> {
    stream: Streaming<T>,
    runtime: Arc<Runtime>,
}

/// The result of a command with streams.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecOutput {
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Its exit code.
    pub code: i32,
}

impl<T> fmt::Debug for ResponseStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

// === impl BlockingDriver ===

impl BlockingDriver {
    /// The calls on a plugin's connection.
    #[must_use]
    pub fn new(plugin: &PluginProcess, runtime: &Arc<Runtime>) -> Self {
        Self {
            plugin: plugin.pid(),
            channel: plugin.channel(),
            runtime: Arc::clone(runtime),
        }
    }

    /// The process of the plugin.
    #[must_use]
    pub const fn plugin(&self) -> u32 {
        self.plugin
    }

    fn call<T>(
        &self,
        limit: Duration,
        call: impl AsyncFnOnce(DriverClient<Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        let client = DriverClient::new(self.channel.clone()).max_decoding_message_size(64 << 20);
        self.runtime.block_on(async {
            match tokio::time::timeout(limit, call(client)).await {
                Ok(answer) => Ok(answer?.into_inner()),
                Err(_) => panic!("a call was not answered within {limit:?}"),
            }
        })
    }

    fn stream<T>(
        &self,
        call: impl AsyncFnOnce(DriverClient<Channel>) -> Result<Response<Streaming<T>>, Status>,
    ) -> Result<ResponseStream<T>, Status> {
        self.call(CALL_LIMIT, call).map(|stream| ResponseStream {
            stream,
            runtime: Arc::clone(&self.runtime),
        })
    }

    /// `Init`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn init(&self) -> Result<(), Status> {
        self.call(CALL_LIMIT, async |mut client| {
            client.init(nomad::InitRequest {}).await
        })
        .map(drop)
    }

    /// `Shutdown`, for which an agent has two seconds.
    ///
    /// # Errors
    /// The status of the call.
    pub fn shutdown(&self) -> Result<(), Status> {
        let limit = Duration::from_secs(2);
        self.call(limit, async |mut client| {
            client.shutdown(nomad::ShutdownRequest {}).await
        })
        .map(drop)
    }

    /// `Capabilities`.
    ///
    /// # Panics
    /// When they are missing.
    #[track_caller]
    #[must_use]
    pub fn capabilities(&self) -> nomad::DriverCapabilities {
        let answer = self.call(CALL_LIMIT, async |mut client| {
            client.capabilities(nomad::CapabilitiesRequest {}).await
        });
        answer
            .expect("a driver says what it can")
            .capabilities
            .expect("an agent needs them")
    }

    /// `TaskConfigSchema`.
    ///
    /// # Panics
    /// When it is missing.
    #[track_caller]
    #[must_use]
    pub fn task_schema(&self) -> hclspec::Spec {
        let answer = self.call(CALL_LIMIT, async |mut client| {
            client
                .task_config_schema(nomad::TaskConfigSchemaRequest {})
                .await
        });
        answer
            .expect("a driver says what it takes")
            .spec
            .expect("an agent needs it")
    }

    /// `Fingerprint`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn fingerprint(&self) -> Result<ResponseStream<nomad::FingerprintResponse>, Status> {
        self.stream(async |mut client| client.fingerprint(nomad::FingerprintRequest {}).await)
    }

    /// `TaskEvents`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn events(&self) -> Result<ResponseStream<nomad::DriverTaskEvent>, Status> {
        self.stream(async |mut client| client.task_events(nomad::TaskEventsRequest {}).await)
    }

    /// `StartTask`.
    ///
    /// # Errors
    /// The status of the call.
    ///
    /// # Panics
    /// When the handle is missing, or does not have the task's own configuration in it: an agent could not
    /// recover the task.
    #[track_caller]
    pub fn start(&self, task: &nomad::TaskConfig) -> Result<nomad::StartTaskResponse, Status> {
        let request = nomad::StartTaskRequest {
            task: Some(task.clone()),
        };
        let answer = self.call(CALL_LIMIT, async |mut client| {
            client.start_task(request).await
        })?;
        let handle = answer.handle.as_ref().expect("a started task has a handle");
        assert_eq!(
            handle.config.as_ref(),
            Some(task),
            "the configuration in the handle"
        );
        assert!(handle.version >= 1, "the version of the handle");
        assert_eq!(handle.state(), nomad::TaskState::Running);
        Ok(answer)
    }

    /// `WaitTask`, for as long as this.
    ///
    /// # Errors
    /// The status of the call.
    ///
    /// # Panics
    /// When there is no result, or no answer in time.
    #[track_caller]
    pub fn wait(&self, id: &str, limit: Duration) -> Result<nomad::ExitResult, Status> {
        let request = nomad::WaitTaskRequest {
            task_id: id.to_owned(),
        };
        let answer = self.call(limit, async |mut client| client.wait_task(request).await)?;
        let result = answer.result.expect("an agent looks at the result");
        assert!(
            answer.err.is_empty() || result.oom_killed,
            "the agent takes the wait for failed: {}",
            answer.err
        );
        Ok(result)
    }

    /// `StopTask`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn stop(&self, id: &str, timeout: Duration, signal: &str) -> Result<(), Status> {
        let request = nomad::StopTaskRequest {
            task_id: id.to_owned(),
            timeout: Some(wire(timeout)),
            signal: signal.to_owned(),
        };
        self.call(CALL_LIMIT + timeout, async |mut client| {
            client.stop_task(request).await
        })
        .map(drop)
    }

    /// `DestroyTask`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn destroy(&self, id: &str, force: bool) -> Result<(), Status> {
        let request = nomad::DestroyTaskRequest {
            task_id: id.to_owned(),
            force,
        };
        self.call(CALL_LIMIT, async |mut client| {
            client.destroy_task(request).await
        })
        .map(drop)
    }

    /// `RecoverTask`, as an agent asks for it: with the handle alone.
    ///
    /// # Errors
    /// The status of the call.
    pub fn recover(&self, handle: &nomad::TaskHandle) -> Result<(), Status> {
        let request = nomad::RecoverTaskRequest {
            task_id: String::new(),
            handle: Some(handle.clone()),
        };
        self.call(CALL_LIMIT, async |mut client| {
            client.recover_task(request).await
        })
        .map(drop)
    }

    /// `InspectTask`.
    ///
    /// # Errors
    /// The status of the call.
    ///
    /// # Panics
    /// When something is missing that an agent looks at without asking whether it is there.
    #[track_caller]
    pub fn inspect(&self, id: &str) -> Result<nomad::InspectTaskResponse, Status> {
        let request = nomad::InspectTaskRequest {
            task_id: id.to_owned(),
        };
        let answer = self.call(CALL_LIMIT, async |mut client| {
            client.inspect_task(request).await
        })?;
        let task = answer.task.as_ref().expect("an agent looks at the task");
        assert!(task.result.is_some(), "an agent looks at the result");
        let is_valid =
            |at: &Option<Timestamp>| at.is_some_and(|at| (0..1_000_000_000).contains(&at.nanos));
        assert!(
            is_valid(&task.started_at) && is_valid(&task.completed_at),
            "{task:?}"
        );
        Ok(answer)
    }

    /// `SignalTask`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn signal(&self, id: &str, signal: &str) -> Result<(), Status> {
        let request = nomad::SignalTaskRequest {
            task_id: id.to_owned(),
            signal: signal.to_owned(),
        };
        self.call(CALL_LIMIT, async |mut client| {
            client.signal_task(request).await
        })
        .map(drop)
    }

    /// `TaskStats`; every answer of it has what an agent looks at.
    ///
    /// # Errors
    /// The status of the call.
    pub fn stats(
        &self,
        id: &str,
        interval: Duration,
    ) -> Result<ResponseStream<nomad::TaskStatsResponse>, Status> {
        let request = nomad::TaskStatsRequest {
            task_id: id.to_owned(),
            collection_interval: Some(wire(interval)),
        };
        self.stream(async |mut client| client.task_stats(request).await)
    }

    /// `ExecTask`.
    ///
    /// # Errors
    /// The status of the call.
    ///
    /// # Panics
    /// When the result is missing.
    #[track_caller]
    pub fn exec(
        &self,
        id: &str,
        command: &[&str],
        timeout: Duration,
    ) -> Result<ExecOutput, Status> {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let request = nomad::ExecTaskRequest {
            task_id: id.to_owned(),
            command,
            timeout: Some(wire(timeout)),
        };
        let answer = self.call(CALL_LIMIT + timeout, async |mut client| {
            client.exec_task(request).await
        })?;
        let result = answer.result.expect("an agent looks at the result");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(ExecOutput {
            stdout: text(&answer.stdout),
            stderr: text(&answer.stderr),
            code: result.exit_code,
        })
    }

    /// `ExecTaskStreaming` with this input, which is closed after it if `close` says so; an agent never ends
    /// its side of the stream.
    ///
    /// # Errors
    /// The status of the call.
    ///
    /// # Panics
    /// When the stream ends in another order than agents know, or not within a minute.
    #[track_caller]
    pub fn exec_streaming(
        &self,
        id: &str,
        command: &[&str],
        tty: bool,
        input: &[u8],
        close: bool,
    ) -> Result<ExecOutput, Status> {
        let mut messages = vec![setup(id, command, tty), size(24, 80)];
        messages.extend(input.chunks(1000).map(|chunk| stdin(chunk, false)));
        // A heartbeat in between says nothing.
        messages.push(nomad::ExecTaskStreamingRequest::default());
        messages.extend(close.then(|| stdin(&[], true)));
        let requests =
            futures::StreamExt::chain(futures::stream::iter(messages), futures::stream::pending());
        let mut answers =
            self.stream(async |mut client| client.exec_task_streaming(requests).await)?;
        let mut stdout = Vec::new();
        let mut stderr = Vec::new();
        let mut result = None;
        while let Some(answer) = answers.next(CALL_LIMIT).transpose()? {
            assert!(result.is_none(), "something came after the end");
            if let Some(part) = answer.stdout {
                stdout.extend(part.data);
            }
            if let Some(part) = answer.stderr {
                stderr.extend(part.data);
            }
            if answer.exited {
                result = Some(answer.result.expect("an agent looks at the result"));
            }
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let code = result.expect("the stream says how it ended").exit_code;
        Ok(ExecOutput {
            stdout: text(stdout),
            stderr: text(stderr),
            code,
        })
    }

    /// `CreateNetwork`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn create_network(
        &self,
        alloc: &str,
        hostname: &str,
    ) -> Result<nomad::CreateNetworkResponse, Status> {
        let request = nomad::CreateNetworkRequest {
            alloc_id: alloc.to_owned(),
            hostname: hostname.to_owned(),
        };
        self.call(CALL_LIMIT, async |mut client| {
            client.create_network(request).await
        })
    }

    /// `DestroyNetwork`.
    ///
    /// # Errors
    /// The status of the call.
    pub fn destroy_network(
        &self,
        alloc: &str,
        spec: nomad::NetworkIsolationSpec,
    ) -> Result<(), Status> {
        let request = nomad::DestroyNetworkRequest {
            alloc_id: alloc.to_owned(),
            isolation_spec: Some(spec),
        };
        self.call(CALL_LIMIT, async |mut client| {
            client.destroy_network(request).await
        })
        .map(drop)
    }
}

// === impl ResponseStream ===

impl<T> ResponseStream<T> {
    /// The next answer; `None` at the end.
    ///
    /// # Panics
    /// When there is none in time.
    #[track_caller]
    pub fn next(&mut self, limit: Duration) -> Option<Result<T, Status>> {
        self.try_next(limit)
            .unwrap_or_else(|| panic!("nothing came within {limit:?}"))
    }

    /// The next answer, `Some(None)` at the end; `None` if there is none in time.
    pub fn try_next(&mut self, limit: Duration) -> Option<Option<Result<T, Status>>> {
        let stream = &mut self.stream;
        let next = self
            .runtime
            .block_on(async { tokio::time::timeout(limit, stream.message()).await });
        next.ok().map(Result::transpose)
    }
}

fn setup(id: &str, command: &[&str], tty: bool) -> nomad::ExecTaskStreamingRequest {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    let setup = nomad::exec_task_streaming_request::Setup {
        task_id: id.to_owned(),
        command,
        tty,
    };
    nomad::ExecTaskStreamingRequest {
        setup: Some(setup),
        ..Default::default()
    }
}

fn size(height: i32, width: i32) -> nomad::ExecTaskStreamingRequest {
    let tty_size = nomad::exec_task_streaming_request::TerminalSize { height, width };
    nomad::ExecTaskStreamingRequest {
        tty_size: Some(tty_size),
        ..Default::default()
    }
}

fn stdin(data: &[u8], close: bool) -> nomad::ExecTaskStreamingRequest {
    let stdin = nomad::ExecTaskStreamingIoOperation {
        data: data.to_vec(),
        close,
    };
    nomad::ExecTaskStreamingRequest {
        stdin: Some(stdin),
        ..Default::default()
    }
}

fn wire(duration: Duration) -> WireDuration {
    duration.try_into().expect("a test's times are short")
}
