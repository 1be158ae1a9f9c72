//! Calls a task's shim directly, over its ttrpc socket, for execs.
//!
//! containerd only forwards such calls, and queries the state of the process before and after each. A shim
//! gives the same answers to any caller, so for shims that cannot be called directly, and for calls that get
//! no answer, containerd is asked instead (ADR 19).

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use prost::Message;
use serde::Deserialize;
use switchyard_core::backend::BackendObserver;
use switchyard_proto::containerd::task::v2 as task;
use switchyard_rpc::Call;
use tokio::net::UnixStream;
use tonic::{Code, Status};

use self::ttrpc::{Connection, Fault};
use crate::client::observed::{BackendCall, handed_on, span_of};

mod lifelines;
pub(crate) mod ttrpc;

pub(crate) use lifelines::{Lifelines, SocketGuard};

/// Limit for a shim to wait for the rest of an exec's output, which children of it may hold open, before it closes the output and
/// deletes the exec. By itself it waits for ten seconds, and before containerd 1.7.29, 2.0.7 and 2.1.5 for two.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// The socket of a task's shim, and the name of its ttrpc service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShimAddress {
    socket: PathBuf,
    service: &'static str,
}

/// The `bootstrap.json` that containerd 2 writes about a shim.
#[derive(Debug, Deserialize)]
struct Bootstrap {
    version: u32,
    address: String,
    protocol: String,
}

/// A connection to a shim; one call at a time.
#[derive(Debug)]
pub(crate) struct ShimClient {
    connection: Connection,
    service: &'static str,
    observer: Arc<dyn BackendObserver>,
    /// The call whose response has not been read yet.
    pending: Option<Call<BackendCall>>,
}

/// An exec: a process of a task that is not its main process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExecRef<'a> {
    pub(crate) task: &'a str,
    pub(crate) exec: &'a str,
}

/// The result of a call to a shim.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    Done(T),
    Refused(Status),
    /// The connection broke before an answer: ask containerd. The connection must not be used again.
    Lost,
}

// === impl ShimAddress ===

impl ShimAddress {
    /// The address of the shim that is the parent of a task's main process. The working directory of a shim
    /// is the bundle of the container that it was started for; the bundles of all containers are siblings,
    /// and each has a file with the shim's address. `None` if there is no usable address. Blocks briefly, to
    /// read small files.
    pub(crate) fn find(parent: u32, task: &str) -> Option<Self> {
        // The link to a deleted bundle ends in " (deleted)"; taking the parent cuts that off.
        let cwd = fs::read_link(format!("/proc/{parent}/cwd")).ok()?;
        Self::in_bundle(&cwd.parent()?.join(task))
    }

    fn in_bundle(bundle: &Path) -> Option<Self> {
        match fs::read(bundle.join("bootstrap.json")) {
            Ok(text) => Self::from_bootstrap(&serde_json::from_slice(&text).ok()?),
            // Shims before `bootstrap.json` speak version 2, and have the address alone.
            Err(_) => Self::new(&fs::read_to_string(bundle.join("address")).ok()?, 2),
        }
    }

    fn from_bootstrap(bootstrap: &Bootstrap) -> Option<Self> {
        if bootstrap.protocol == "ttrpc" {
            Self::new(&bootstrap.address, bootstrap.version)
        } else {
            None
        }
    }

    fn new(address: &str, version: u32) -> Option<Self> {
        let service = match version {
            2 => "containerd.task.v2.Task",
            3 => "containerd.task.v3.Task",
            _ => return None,
        };
        let socket = PathBuf::from(address.trim_end().strip_prefix("unix://")?);
        socket.is_absolute().then_some(Self { socket, service })
    }
}

// === impl ShimClient ===

impl ShimClient {
    /// Connects to a shim, whose calls are reported to `observer`. Cancel-safe.
    pub(crate) async fn connect(
        address: &ShimAddress,
        namespace: &str,
        observer: &Arc<dyn BackendObserver>,
    ) -> io::Result<Self> {
        let stream = UnixStream::connect(&address.socket).await?;
        Ok(Self {
            connection: Connection::new(stream, namespace),
            service: address.service,
            observer: Arc::clone(observer),
            pending: None,
        })
    }

    /// A duplicate of its socket.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.connection.stream.as_fd().try_clone_to_owned()
    }

    /// Creates an exec without starting it. Not cancel-safe, like all calls here that do not say otherwise:
    /// the connection must not be used again after a call was dropped.
    pub(crate) async fn exec(&mut self, request: &task::ExecProcessRequest) -> Answer<()> {
        if let Err(fault) = self.send("Exec", request, None).await {
            return Err(fault).into();
        }
        self.receive().await.into()
    }

    /// Sends the request to start the exec; [`ShimClient::recv_started`] waits for the answer. When the
    /// caller's connection closes meanwhile, the shim kills the OCI runtime that it runs for the call.
    pub(crate) async fn send_start(&mut self, process: ExecRef<'_>) -> Answer<()> {
        let request = task::StartRequest {
            id: process.task.to_owned(),
            exec_id: process.exec.to_owned(),
        };
        self.send("Start", &request, None).await.into()
    }

    /// Waits for the answer to [`ShimClient::send_start`]: the process id of the exec. Cancel-safe.
    pub(crate) async fn recv_started(&mut self) -> Answer<u32> {
        self.receive::<task::StartResponse>()
            .await
            .map(|answer| answer.pid)
            .into()
    }

    /// Sends the request to wait for the exit of the exec; [`ShimClient::recv_exit`] waits for the answer.
    pub(crate) async fn send_wait(&mut self, process: ExecRef<'_>) -> Answer<()> {
        let request = task::WaitRequest {
            id: process.task.to_owned(),
            exec_id: process.exec.to_owned(),
        };
        self.send("Wait", &request, None).await.into()
    }

    /// Waits for the answer to [`ShimClient::send_wait`]: the exit code of the exec. Cancel-safe.
    pub(crate) async fn recv_exit(&mut self) -> Answer<u32> {
        self.receive::<task::WaitResponse>()
            .await
            .map(|exit| exit.exit_status)
            .into()
    }

    /// Deletes an exec that has exited, and closes its output. At the timeout, the shim breaks off no more than its wait for the end of the
    /// output, and succeeds.
    pub(crate) async fn delete(&mut self, process: ExecRef<'_>) -> Answer<()> {
        let request = task::DeleteRequest {
            id: process.task.to_owned(),
            exec_id: process.exec.to_owned(),
        };
        if let Err(fault) = self.send("Delete", &request, Some(OUTPUT_TIMEOUT)).await {
            return Err(fault).into();
        }
        self.receive::<task::DeleteResponse>()
            .await
            .map(drop)
            .into()
    }

    /// Sends a request; [`ShimClient::receive`] waits for the response.
    async fn send(
        &mut self,
        method: &str,
        request: &impl Message,
        timeout: Option<Duration>,
    ) -> Result<(), Fault> {
        let method_path = format!("{}/{method}", self.service);
        let span = span_of(&method_path, "ttrpc");
        let context = span
            .iter()
            .flat_map(|span| handed_on(span.context()))
            .collect();
        let mut call = BackendCall::begin(&self.observer, method_path, span);
        let sent = self
            .connection
            .send_request(self.service, method, request, context, timeout)
            .await;
        match &sent {
            Ok(()) => self.pending = Some(call),
            Err(fault) => call.end(fault.code()),
        }
        sent
    }

    /// The response to the latest request. Cancel-safe.
    async fn receive<T: Message + Default>(&mut self) -> Result<T, Fault> {
        let response = self.connection.read_response().await;
        if let Some(mut call) = self.pending.take() {
            call.end(response.as_ref().err().map_or(Code::Ok, Fault::code));
        }
        response
    }
}

// === impl Answer ===

impl<T> From<Result<T, Fault>> for Answer<T> {
    fn from(result: Result<T, Fault>) -> Self {
        match result {
            Ok(answer) => Self::Done(answer),
            Err(Fault::Refused(status)) => Self::Refused(status),
            Err(Fault::Lost(fault)) => {
                tracing::debug!(error = %fault, "a shim does not answer: containerd is asked");
                Self::Lost
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::backend::unobserved;
    use switchyard_proto::ttrpc::{Request, Response};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::ttrpc::HEADER_LEN;
    use super::*;

    /// Answers one call with an empty message, and returns its method and its timeout.
    async fn serve(far: &mut UnixStream) -> (String, Duration) {
        let mut header = [0; HEADER_LEN];
        far.read_exact(&mut header).await.unwrap();
        let length = u32::from_be_bytes(header[..4].try_into().unwrap());
        let mut message = vec![0; length.try_into().unwrap()];
        far.read_exact(&mut message).await.unwrap();
        let request = Request::decode(&*message).unwrap();
        let response = Response::default().encode_to_vec();
        header[..4].copy_from_slice(&u32::try_from(response.len()).unwrap().to_be_bytes());
        // A response has the stream of its request.
        header[8] = 2;
        far.write_all(&[&header[..], &response].concat())
            .await
            .unwrap();
        let timeout = u64::try_from(request.timeout_nano).unwrap();
        (request.method, Duration::from_nanos(timeout))
    }

    #[tokio::test]
    async fn a_shim_breaks_off_no_call_but_the_wait_for_the_output_of_a_deleted_exec() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut shim = ShimClient {
            connection: Connection::new(near, "k8s.io"),
            service: "containerd.task.v2.Task",
            observer: unobserved(),
            pending: None,
        };
        let process = ExecRef {
            task: "task",
            exec: "exec",
        };
        let create = task::ExecProcessRequest::default();
        let calls = async {
            assert!(matches!(shim.exec(&create).await, Answer::Done(())));
            assert!(matches!(shim.send_start(process).await, Answer::Done(())));
            assert!(matches!(shim.recv_started().await, Answer::Done(0)));
            assert!(matches!(shim.send_wait(process).await, Answer::Done(())));
            assert!(matches!(shim.recv_exit().await, Answer::Done(0)));
            assert!(matches!(shim.delete(process).await, Answer::Done(())));
        };
        let served = async {
            let mut served = Vec::new();
            while served.len() < 4 {
                served.push(serve(&mut far).await);
            }
            served
        };
        let ((), served) = tokio::join!(calls, served);
        let expected = [
            ("Exec", Duration::ZERO),
            ("Start", Duration::ZERO),
            ("Wait", Duration::ZERO),
            ("Delete", OUTPUT_TIMEOUT),
        ];
        assert_eq!(
            served,
            expected.map(|(method, timeout)| (method.to_owned(), timeout))
        );
    }

    fn found(files: &[(&str, &str)]) -> Option<(PathBuf, &'static str)> {
        let bundle = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(bundle.path().join(name), text).unwrap();
        }
        ShimAddress::in_bundle(bundle.path()).map(|address| (address.socket, address.service))
    }

    #[test]
    fn the_address_is_where_each_version_of_containerd_keeps_it() {
        let v2 = Some((PathBuf::from("/run/s/1"), "containerd.task.v2.Task"));
        let v3 = Some((PathBuf::from("/run/s/1"), "containerd.task.v3.Task"));
        let json = |version: u32, protocol: &str| {
            format!(
                r#"{{"version":{version},"address":"unix:///run/s/1","protocol":"{protocol}"}}"#
            )
        };
        assert_eq!(found(&[("address", "unix:///run/s/1")]), v2);
        assert_eq!(found(&[("bootstrap.json", &json(2, "ttrpc"))]), v2);
        assert_eq!(
            found(&[
                ("bootstrap.json", &json(3, "ttrpc")),
                ("address", "unix:///run/s/2")
            ]),
            v3
        );
    }

    #[test]
    fn what_is_not_known_is_not_used() {
        let json = |version: u32, protocol: &str, address: &str| {
            format!(r#"{{"version":{version},"address":"{address}","protocol":"{protocol}"}}"#)
        };
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("address", "vsock://3:10")]), None);
        assert_eq!(
            found(&[("address", "/containerd-shim/abstract.sock")]),
            None
        );
        assert_eq!(
            found(&[("bootstrap.json", &json(3, "grpc", "unix:///run/s/1"))]),
            None
        );
        assert_eq!(
            found(&[("bootstrap.json", &json(4, "ttrpc", "unix:///run/s/1"))]),
            None
        );
        assert_eq!(
            found(&[("bootstrap.json", &json(3, "ttrpc", "unix://s/1"))]),
            None
        );
        assert_eq!(
            found(&[("bootstrap.json", "half"), ("address", "unix:///run/s/1")]),
            None
        );
    }

    #[test]
    fn a_process_that_works_elsewhere_is_no_shim() {
        assert_eq!(ShimAddress::find(1, &"0".repeat(64)), None);
        assert_eq!(ShimAddress::find(u32::MAX, &"0".repeat(64)), None);
    }
}
