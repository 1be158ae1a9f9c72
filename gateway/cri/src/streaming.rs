//! Exec, Attach and PortForward: each is answered with a URL at which a session of the streaming server waits
//! for its client.
//!
//! The request is checked before the answer, and again when the client connects: a container may have exited
//! meanwhile.

use std::num::NonZeroU16;
use std::sync::Arc;

use switchyard_core::spec::ExecSpec;
use switchyard_core::stream::{AttachSpec, Source};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_proto::cri::v1 as cri;
use switchyard_streaming::{Output, Refusal, Sessions, Streams, TooMany};

use crate::runtime::Runtime;

mod attach;
mod exec;
mod forward;

impl Runtime {
    /// CRI v1 Exec.
    pub(crate) fn exec(&self, request: cri::ExecRequest) -> Result<cri::ExecResponse> {
        let cri::ExecRequest {
            container_id,
            cmd,
            tty,
            stdin,
            stdout,
            stderr,
        } = request;
        let streams = checked(Streams {
            stdin,
            stdout,
            stderr,
            tty,
        })?;
        require_id("container_id", &container_id)?;
        if cmd.is_empty() {
            return Err(Error::invalid("cmd", "a command is needed"));
        }
        let task = self.scope.tasks().require_running(&container_id)?;
        let drain = self.config.get().exec_drain();
        let spec = ExecSpec {
            command: cmd,
            tty,
            size: None,
            stdin,
            env: Vec::new(),
            cwd: None,
            drain,
        };
        let start = exec::PendingExec {
            scope: self.scope.for_current_caller(),
            task: task.id,
            spec,
        };
        let url = self
            .sessions()?
            .exec(streams, Box::new(start))
            .map_err(too_many)?;
        Ok(cri::ExecResponse { url: url.into() })
    }

    /// CRI v1 Attach.
    pub(crate) fn attach(&self, request: cri::AttachRequest) -> Result<cri::AttachResponse> {
        let cri::AttachRequest {
            container_id,
            stdin,
            tty,
            stdout,
            stderr,
        } = request;
        let streams = checked(Streams {
            stdin,
            stdout,
            stderr,
            tty,
        })?;
        require_id("container_id", &container_id)?;
        let task = self.scope.tasks().require_running(&container_id)?;
        let record = self.records.task(&task);
        let config = record.as_ref().and_then(|record| record.config.as_ref());
        // Input with `stdin_once` ends with this client, and the container's output after that is still sent
        // to it.
        let until_the_end = config.is_some_and(|config| config.stdin_once && !config.tty);
        let join = attach::PendingAttach {
            scope: self.scope.for_current_caller(),
            task: task.id,
            spec: AttachSpec {
                stdin,
                stdout,
                stderr,
            },
            until_the_end,
        };
        let url = self
            .sessions()?
            .attach(streams, Box::new(join))
            .map_err(too_many)?;
        Ok(cri::AttachResponse { url: url.into() })
    }

    /// CRI v1 PortForward. The ports are for clients that cannot specify theirs when they connect.
    pub(crate) fn port_forward(
        &self,
        request: cri::PortForwardRequest,
    ) -> Result<cri::PortForwardResponse> {
        let cri::PortForwardRequest {
            pod_sandbox_id,
            port,
        } = request;
        require_id("pod_sandbox_id", &pod_sandbox_id)?;
        let number = |port: i32| {
            u16::try_from(port)
                .ok()
                .and_then(NonZeroU16::new)
                .map(NonZeroU16::get)
        };
        let ports = port.into_iter().map(|port| {
            number(port)
                .ok_or_else(|| Error::invalid("port", format!("{port} is not from 1 to 65535")))
        });
        let ports = ports.collect::<Result<Vec<u16>>>()?;
        let sandbox = self.scope.sandboxes().require_ready(&pod_sandbox_id)?;
        let dial = forward::PodPorts {
            scope: self.scope.for_current_caller(),
            sandbox: sandbox.id,
        };
        let url = self
            .sessions()?
            .port_forward(ports, Arc::new(dial))
            .map_err(too_many)?;
        Ok(cri::PortForwardResponse { url: url.into() })
    }

    fn sessions(&self) -> Result<&Sessions> {
        self.sessions
            .as_ref()
            .ok_or_else(|| Error::unimplemented("this daemon has no streaming server"))
    }
}

/// Refuses combinations of streams that make no sense.
fn checked(streams: Streams) -> Result<Streams> {
    let Streams {
        stdin,
        stdout,
        stderr,
        tty,
    } = streams;
    if tty && stderr {
        return Err(Error::invalid(
            "stderr",
            "with tty all output is on stdout: ask for one of the two",
        ));
    }
    if !(stdin || stdout || stderr) {
        return Err(Error::invalid(
            "stdin, stdout, stderr",
            "one of them must be asked for",
        ));
    }
    Ok(streams)
}

fn require_id(field: &str, id: &str) -> Result<()> {
    if id.is_empty() {
        Err(Error::invalid(field, "it is empty"))
    } else {
        Ok(())
    }
}

fn too_many(error: TooMany) -> Error {
    Error::new(ErrorKind::ResourceExhausted, "no streaming session").with_source(error)
}

/// The error that a client gets when its session cannot be opened, or fails.
fn to_refusal(error: &Error) -> Refusal {
    if error.kind() == ErrorKind::ResourceExhausted {
        Refusal::Exhausted(error.report())
    } else {
        Refusal::Failed(error.report())
    }
}

fn output(source: Source) -> Output {
    match source {
        Source::Pipe(pipe) => pipe.into(),
        Source::Reader(reader) => Output::new(reader),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_is_reported_as_such_to_a_streaming_client() {
        let error = Error::exhausted("no space left on device").context("exec in task 1");
        let text = "exec in task 1: no space left on device".to_owned();
        assert_eq!(to_refusal(&error), Refusal::Exhausted(text));
        let error = Error::internal("x");
        assert_eq!(to_refusal(&error), Refusal::Failed("x".to_owned()));
    }

    #[test]
    fn tty_excludes_stderr_and_one_stream_is_required() {
        let all = Streams {
            stdin: true,
            stdout: true,
            stderr: true,
            tty: false,
        };
        assert_eq!(checked(all).expect("all streams"), all);
        let kind = |streams| checked(streams).expect_err("it is refused").kind();
        assert_eq!(
            kind(Streams { tty: true, ..all }),
            ErrorKind::InvalidArgument
        );
        assert_eq!(kind(Streams::default()), ErrorKind::InvalidArgument);
        assert_eq!(
            kind(Streams {
                tty: true,
                ..Streams::default()
            }),
            ErrorKind::InvalidArgument
        );
    }
}
