//! The control socket: who may connect, and the requests on each connection.

use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use serde::Serialize;
use tokio::io::{BufReader, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{self, Durable, draft_of, if_present};

use crate::Error;
use crate::descriptor_store::DescriptorStore;
use crate::follow::Follower;
use crate::keeper::Keeper;
use crate::protocol::{
    Attached, Done, Fault, FaultKind, MAX_DESCRIPTORS, Reply, Request, VERSION, Welcome,
};
use crate::socket_holder::SocketHolder;
use crate::wire;

mod client_descriptors;

use client_descriptors::ClientDescriptors;

/// Maximum number of open control connections; further ones wait to be accepted.
const CONNECTIONS: usize = 64;

/// Time for a client to send Hello, since it occupies one of the connections.
const GREETING: Duration = Duration::from_secs(10);

/// Time for a client to read an answer.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// Pause after a connection could not be accepted, for instance for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The configuration of a logkeeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The control socket; at most 100 bytes long, because of the kernel's limit.
    pub socket: PathBuf,
    /// The directory for state that must outlive the logkeeper. It belongs on tmpfs: FIFOs do not outlive a
    /// reboot either, and all output passes through it.
    pub state_dir: PathBuf,
    /// The socket's permission bits.
    pub socket_mode: u32,
    /// The socket's owner; the keeper's own user if `None`.
    pub socket_uid: Option<u32>,
    /// The socket's group; the keeper's own group if `None`.
    pub socket_gid: Option<u32>,
    /// True if [`crate::run`] confines the process: no new privileges, few capabilities, and a system call
    /// filter.
    pub sandbox: bool,
    /// The version of the build, which is reported to clients.
    pub build: String,
}

/// A logkeeper that listens on its socket.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    socket: PathBuf,
    keeper: Arc<Keeper>,
    shutdown: Arc<Notify>,
    build: Arc<str>,
}

// === impl Config ===

impl Config {
    /// The defaults for a socket and a state directory: mode 0660, owned by the logkeeper's user, and
    /// confined.
    pub fn new(socket: impl Into<PathBuf>, state_dir: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            state_dir: state_dir.into(),
            socket_mode: 0o660,
            socket_uid: None,
            socket_gid: None,
            sandbox: true,
            build: String::new(),
        }
    }
}

// === impl Server ===

impl Server {
    /// Locks the state directory, recovers the containers in it, and listens; returns once the socket
    /// answers.
    ///
    /// # Errors
    /// Another logkeeper is running ([`Error::StateInUse`], [`Error::SocketInUse`]), the state directory is
    /// unfit, or a file operation fails.
    pub async fn start(config: &Config) -> Result<Self, Error> {
        let keeper = Arc::new(Keeper::recover(&config.state_dir).await?);
        let listener = listen(config).await?;
        let build = Arc::from(config.build.as_str());
        Ok(Self {
            listener,
            socket: config.socket.clone(),
            keeper,
            shutdown: Arc::new(Notify::new()),
            build,
        })
    }

    /// Starts, and serves until `shutdown` completes or a client asks to end.
    ///
    /// # Errors
    /// Those of [`Server::start`].
    pub async fn run(config: &Config, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        Self::start(config).await?.serve(shutdown).await;
        Ok(())
    }

    /// Serves until `shutdown` completes or a client asks to end; the next logkeeper recovers the containers.
    ///
    /// Dropping the future aborts everything, which loses no output either.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        let Self {
            listener,
            socket,
            keeper,
            shutdown: asked,
            build,
        } = self;
        let mut connections = JoinSet::new();
        let holder = SocketHolder::new();
        let store = DescriptorStore::new();
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        tokio::pin!(shutdown);
        let mut failure_logged = false;
        loop {
            let accept = async {
                let permit = Arc::clone(&permits).acquire_owned().await;
                (
                    permit.expect("the semaphore is never closed"),
                    listener.accept().await,
                )
            };
            tokio::select! {
                () = &mut shutdown => break,
                () = asked.notified() => break,
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the task of a control connection panicked");
                    }
                }
                (permit, accepted) = accept => match accepted {
                    Ok((stream, _address)) => {
                        failure_logged = false;
                        let keeper = Arc::clone(&keeper);
                        let asked = Arc::clone(&asked);
                        let build = Arc::clone(&build);
                        let mut descriptors = ClientDescriptors::new(&holder, &store);
                        connections.spawn(async move {
                            let end = serve_client(stream, &build, &keeper, &asked, &mut descriptors).await;
                            // Followers, held sockets and stored descriptors have limits of their own, and last long.
                            drop(permit);
                            match end {
                                Ok(None) => {}
                                Ok(Some((client, follower))) => follower.run(client).await,
                                Err(error) => tracing::debug!(%error, "a control connection broke"),
                            }
                            descriptors.linger().await;
                        });
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut failure_logged, true) {
                            tracing::warn!(%error, "cannot accept a control connection; retrying");
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        if let Err(error) = std::fs::remove_file(&socket) {
            tracing::warn!(socket = %socket.display(), %error, "cannot remove the control socket");
        }
        // Before the connections are closed: requests in progress get their answers.
        keeper.stop().await;
        connections.shutdown().await;
    }
}

/// Binds under a temporary name, sets owner and mode, and only then renames the socket to its path: no
/// process can connect before the permissions are set, and a stale socket is replaced atomically.
async fn listen(config: &Config) -> Result<UnixListener, Error> {
    let Config {
        socket,
        state_dir: _,
        socket_mode,
        socket_uid,
        socket_gid,
        sandbox: _,
        build: _,
    } = config;
    match timeout(WRITE_LIMIT, UnixStream::connect(socket)).await {
        // A server that accepts slowly is running too.
        Ok(Ok(_)) | Err(_) => return Err(Error::SocketInUse(socket.clone())),
        Ok(Err(error)) => {
            let vacant =
                [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&error.kind());
            if !vacant {
                return Err(Error::file("check for another logkeeper on", socket)(error));
            }
        }
    }
    let new = &draft_of(socket);
    if_present(std::fs::remove_file(new)).map_err(Error::file("remove", new))?;
    let listener = match UnixListener::bind(new) {
        // The file system has no inode left: the stale socket has one.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            std::fs::remove_file(socket).map_err(Error::file("remove", socket))?;
            UnixListener::bind(new)
        }
        bound => bound,
    };
    let listener = listener.map_err(Error::file("bind", new))?;
    let permissions = std::fs::Permissions::from_mode(*socket_mode);
    std::fs::set_permissions(new, permissions).map_err(Error::file("set the mode of", new))?;
    if socket_uid.is_some() || socket_gid.is_some() {
        chown(new, *socket_uid, *socket_gid).map_err(Error::file("set the owner of", new))?;
    }
    reach(CrashPoint::KeeperBound);
    files::rename(new, socket, Durable::No).map_err(Error::file("create", socket))?;
    Ok(listener)
}

/// Answers one client's requests in sequence, until it closes the connection or attaches to a container's
/// output.
async fn serve_client(
    stream: UnixStream,
    build: &str,
    keeper: &Keeper,
    shutdown: &Notify,
    descriptors: &mut ClientDescriptors,
) -> io::Result<Option<(UnixStream, Follower)>> {
    let peer = stream.peer_cred()?;
    if peer.uid() != 0 && peer.uid() != nix::unistd::geteuid().as_raw() {
        tracing::warn!(
            uid = peer.uid(),
            pid = peer.pid(),
            "refused a control connection of another user"
        );
        return Ok(None);
    }
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    let mut greeted = false;
    while read_request(&mut stream, &mut line, greeted).await? {
        let request = wire::decode::<Request>(&line);
        let ends = matches!(request, Ok(Request::Shutdown)) && greeted;
        let reply = match request {
            Ok(Request::Hello { version: VERSION }) => {
                greeted = true;
                encode(Ok(welcome(build)))
            }
            Ok(Request::Hello { version }) => encode::<Done>(Err(Fault::new(
                FaultKind::Unsupported,
                format!("version {version} is not supported, only {VERSION} is"),
            ))),
            Ok(
                request @ (Request::Hold { .. }
                | Request::Put { .. }
                | Request::Take { .. }
                | Request::Descriptors),
            ) if greeted => match keeper.check_serving() {
                Err(fault) => encode::<Done>(Err(fault)),
                Ok(()) => descriptors.answer(request, &mut stream).await,
            },
            Ok(Request::Attach {
                id,
                stream: output,
                from,
            }) if greeted => {
                match while_connected(stream.get_ref(), keeper.attach(&id, output, from)).await? {
                    Ok(follower) => {
                        send_reply(
                            &mut stream,
                            &encode(Ok(Attached {
                                from: follower.offset(),
                            }))?,
                        )
                        .await?;
                        return Ok(Some((stream.into_inner(), follower)));
                    }
                    Err(fault) => encode::<Attached>(Err(fault)),
                }
            }
            Ok(Request::Release) if greeted => {
                descriptors.release();
                encode(Ok(Done {}))
            }
            Ok(request) if greeted => answer(request, keeper, stream.get_ref()).await,
            Ok(_) => refuse("the first request must be hello"),
            Err(error) => refuse(&format!("not a request: {error}")),
        }?;
        // The answer comes first: the shutdown that it confirms closes this connection.
        let sent = send_reply(&mut stream, &reply).await;
        if ends {
            shutdown.notify_one();
        }
        sent?;
    }
    Ok(None)
}

fn welcome(build: &str) -> Welcome {
    Welcome {
        version: VERSION,
        pid: std::process::id(),
        build: build.to_owned(),
        descriptors: u32::try_from(MAX_DESCRIPTORS).unwrap_or(u32::MAX),
    }
}

/// Reads the next request. Before Hello, this has a time limit.
async fn read_request(
    stream: &mut BufReader<UnixStream>,
    line: &mut Vec<u8>,
    greeted: bool,
) -> io::Result<bool> {
    let read = wire::read_line(stream, line);
    if greeted {
        return read.await;
    }
    timeout(GREETING, read)
        .await
        .map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Sends an answer; fails if the client does not read it in time.
async fn send_reply(stream: &mut BufReader<UnixStream>, reply: &[u8]) -> io::Result<()> {
    let written = timeout(WRITE_LIMIT, wire::write_line(stream, reply)).await;
    written.map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Carries out one request, after Hello.
async fn answer(request: Request, keeper: &Keeper, client: &UnixStream) -> io::Result<Vec<u8>> {
    match request {
        Request::Open(spec) => encode(keeper.open(spec).await.map(|()| Done {})),
        // Given up with its client, who may have given the old file its name back.
        Request::Reopen { id } => encode(
            while_connected(client, keeper.reopen(&id))
                .await?
                .map(|()| Done {}),
        ),
        Request::Finish { id, drain_ms } => encode(keeper.finish(&id, drain_ms).await),
        Request::Abandon { id } => encode(keeper.abandon(&id).await),
        Request::List { after } => encode(keeper.list(after.as_deref())),
        Request::Stats => encode(keeper.stats()),
        Request::Shutdown => encode(Ok(Done {})),
        Request::Hello { .. }
        | Request::Hold { .. }
        | Request::Release
        | Request::Put { .. }
        | Request::Take { .. }
        | Request::Descriptors
        | Request::Attach { .. } => refuse("hello was sent already"),
    }
}

/// Carries out a request that is withdrawn when its client closes the connection.
async fn while_connected<T>(client: &UnixStream, work: impl Future<Output = T>) -> io::Result<T> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        closed = closed(client) => Err(closed),
    }
}

/// Returns when a client has closed its end. What it sends meanwhile stays unread.
async fn closed(client: &UnixStream) -> io::Error {
    loop {
        if let Err(error) = client.readable().await {
            return error;
        }
        let peeked = client.try_io(Interest::READABLE, || {
            Ok(recv(
                client,
                &mut [0_u8],
                RecvFlags::PEEK | RecvFlags::DONTWAIT,
            )?)
        });
        match peeked {
            Ok((_, 0)) => return io::ErrorKind::UnexpectedEof.into(),
            // It sends the next request early, and is there.
            Ok(_) => std::future::pending().await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return error,
        }
    }
}

fn refuse(message: &str) -> io::Result<Vec<u8>> {
    encode::<Done>(Err(Fault::new(FaultKind::InvalidArgument, message)))
}

fn encode<T: Serialize>(result: Result<T, Fault>) -> io::Result<Vec<u8>> {
    wire::encode(&match result {
        Ok(body) => Reply::Ok(body),
        Err(fault) => Reply::Error(fault),
    })
}
