//! Talking to a task's shim itself, over its socket, about further processes.
//!
//! containerd only passes such calls on, and asks the shim how the process is before and after each. The shim answers everybody alike, so
//! for what it cannot be asked directly, and for what it leaves without an answer, containerd is asked (ADR 19).

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use switchyard_proto::containerd::task::v2 as task;
use tokio::net::UnixStream;
use tonic::Status;

use self::ttrpc::{Connection, Fault};
use crate::backend::Inner;
use crate::task::TaskEntry;

mod lifelines;
pub(crate) mod ttrpc;

pub(crate) use lifelines::{Lifelines, SocketGuard};

/// Where the shim of a task listens, and what it calls its service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShimAddress {
    socket: PathBuf,
    service: &'static str,
}

/// What containerd 2 writes down about a shim.
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
}

/// A process of a task that is not its main one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExecRef<'a> {
    pub(crate) task: &'a str,
    pub(crate) exec: &'a str,
}

/// What a shim says.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    Done(T),
    Refused(Status),
    /// It does not say anything any more: ask containerd. The connection is of no use.
    Lost,
}

// === impl Address ===

impl ShimAddress {
    /// The address of the shim that is the parent of a task's main process. A shim works in the bundle of the container that it was
    /// started for; those of all containers are side by side, and containerd keeps the address in each. `None` if there is none that
    /// can be used. Blocks as long as it takes to read a small file of the running system.
    pub(crate) fn find(parent: u32, task: &str) -> Option<Self> {
        // A bundle that has been deleted has " (deleted)" at its end, which is cut off with it.
        let cwd = fs::read_link(format!("/proc/{parent}/cwd")).ok()?;
        Self::in_bundle(&cwd.parent()?.join(task))
    }

    fn in_bundle(bundle: &Path) -> Option<Self> {
        match fs::read(bundle.join("bootstrap.json")) {
            Ok(text) => Self::from_bootstrap(&serde_json::from_slice(&text).ok()?),
            Err(_) => Self::new(&fs::read_to_string(bundle.join("address")).ok()?, 2),
        }
    }

    fn from_bootstrap(bootstrap: &Bootstrap) -> Option<Self> {
        if bootstrap.protocol == "ttrpc" { Self::new(&bootstrap.address, bootstrap.version) } else { None }
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

// === impl Shim ===

impl ShimClient {
    /// A connection to the shim of a task that runs; takes no time. `None` if there is none to be had: containerd is to be asked.
    /// Cancel-safe.
    pub(crate) async fn for_task(task: &TaskEntry, inner: &Inner) -> Option<Self> {
        inner.health.check_logkeeper().ok()?;
        match Self::connect(&task.shim()?, inner.client.namespace()).await {
            Ok(shim) => Some(shim),
            Err(fault) => {
                tracing::debug!(task.id = %task.id, error = %fault, "a shim is talked to through containerd");
                None
            }
        }
    }

    async fn connect(address: &ShimAddress, namespace: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(&address.socket).await?;
        Ok(Self { connection: Connection::new(stream, namespace), service: address.service })
    }

    /// A duplicate of its socket.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.connection.stream.as_fd().try_clone_to_owned()
    }

    /// Makes a further process known, which does not start it. Not cancel-safe, as no call is that does not say so: the connection must
    /// not be used again then.
    pub(crate) async fn exec(&mut self, request: &task::ExecProcessRequest) -> Answer<()> {
        self.connection.call(self.service, "Exec", request).await.into()
    }

    /// Tells it to start the process; [`Shim::started`] waits for that. A shim kills the OCI runtime that it runs for a caller whose
    /// connection closes.
    pub(crate) async fn send_start(&mut self, process: ExecRef<'_>) -> Answer<()> {
        let request = task::StartRequest { id: process.task.to_owned(), exec_id: process.exec.to_owned() };
        self.connection.send_request(self.service, "Start", &request).await.into()
    }

    /// Waits until the process that it was told to start runs: its number. Cancel-safe.
    pub(crate) async fn recv_started(&mut self) -> Answer<u32> {
        self.connection.read_response::<task::StartResponse>().await.map(|answer| answer.pid).into()
    }

    /// Asks for its end, which [`Shim::exit`] then waits for.
    pub(crate) async fn send_wait(&mut self, process: ExecRef<'_>) -> Answer<()> {
        let request = task::WaitRequest { id: process.task.to_owned(), exec_id: process.exec.to_owned() };
        self.connection.send_request(self.service, "Wait", &request).await.into()
    }

    /// The exit code of the process whose end was asked for. Cancel-safe.
    pub(crate) async fn recv_exit(&mut self) -> Answer<u32> {
        let exit = self.connection.read_response::<task::WaitResponse>().await;
        exit.map(|exit| exit.exit_status).into()
    }

    /// Has it forget a process that has ended.
    pub(crate) async fn delete(&mut self, process: ExecRef<'_>) -> Answer<()> {
        let request = task::DeleteRequest { id: process.task.to_owned(), exec_id: process.exec.to_owned() };
        let deleted = self.connection.call::<task::DeleteResponse>(self.service, "Delete", &request).await;
        deleted.map(drop).into()
    }
}

// === impl Answer ===

impl<T> From<Result<T, Fault>> for Answer<T> {
    fn from(result: Result<T, Fault>) -> Self {
        match result {
            Ok(answer) => Self::Done(answer),
            Err(Fault::Refused(status)) => Self::Refused(status),
            Err(Fault::Lost(fault)) => {
                tracing::debug!(error = %fault, "a shim gives no answer: containerd is asked");
                Self::Lost
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            format!(r#"{{"version":{version},"address":"unix:///run/s/1","protocol":"{protocol}"}}"#)
        };
        assert_eq!(found(&[("address", "unix:///run/s/1")]), v2);
        assert_eq!(found(&[("bootstrap.json", &json(2, "ttrpc"))]), v2);
        assert_eq!(found(&[("bootstrap.json", &json(3, "ttrpc")), ("address", "unix:///run/s/2")]), v3);
    }

    #[test]
    fn what_is_not_known_is_not_used() {
        let json = |version: u32, protocol: &str, address: &str| {
            format!(r#"{{"version":{version},"address":"{address}","protocol":"{protocol}"}}"#)
        };
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("address", "vsock://3:10")]), None);
        assert_eq!(found(&[("address", "/containerd-shim/abstract.sock")]), None);
        assert_eq!(found(&[("bootstrap.json", &json(3, "grpc", "unix:///run/s/1"))]), None);
        assert_eq!(found(&[("bootstrap.json", &json(4, "ttrpc", "unix:///run/s/1"))]), None);
        assert_eq!(found(&[("bootstrap.json", &json(3, "ttrpc", "unix://s/1"))]), None);
        assert_eq!(found(&[("bootstrap.json", "half"), ("address", "unix:///run/s/1")]), None);
    }

    #[test]
    fn a_process_that_works_elsewhere_is_no_shim() {
        assert_eq!(ShimAddress::find(1, &"0".repeat(64)), None);
        assert_eq!(ShimAddress::find(u32::MAX, &"0".repeat(64)), None);
    }
}
