//! Tests of a launcher whose daemons end, with daemons that answer from a closure.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Full};
use prost::Message;
use switchyard_linux::process::ProcessId;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::driver_client::DriverClient;
use switchyard_proto::nomad::drivers::proto::fingerprint_response::HealthState;
use switchyard_proto::switchyard::nomad::v1 as wire;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tonic::Response;
use tonic::body::Body;
use tonic::codegen::http;

use super::calls::{Call, ResponseFuture, boxed, streaming, unary};
use super::link::DaemonGone;
use super::*;

/// Limit for what happens at once, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A daemon on a thread, until it is killed.
struct FakeDaemon {
    kill: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// A launcher's link, and the calls that its daemons have got.
struct LinkFixture {
    _dir: TempDir,
    socket: PathBuf,
    link: Link,
    task: tokio::task::JoinHandle<DaemonGone>,
    arrivals: (
        mpsc::UnboundedSender<String>,
        mpsc::UnboundedReceiver<String>,
    ),
}

// === impl FakeDaemon ===

impl FakeDaemon {
    /// Opens sessions, and answers other calls with `answer`.
    fn start(
        socket: &Path,
        answer: impl Fn(Call) -> ResponseFuture + Clone + Send + 'static,
    ) -> Self {
        // A daemon that was killed leaves its socket.
        let _ = std::fs::remove_file(socket);
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (kill, killed) = oneshot::channel();
        let service = tower::service_fn(move |call: Call| match call.uri().path() {
            "/switchyard.nomad.v1.Sessions/Open" => open_session(call),
            _ => answer(call),
        });
        let thread = std::thread::spawn(move || {
            // Its end closes all connections, as that of a process does.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = UnixListener::from_std(listener).unwrap();
                let connections = stream::unfold(listener, |listener| async move {
                    let accepted = listener.accept().await.map(|(stream, _)| stream);
                    Some((accepted, listener))
                });
                let server = Server::builder().serve_with_incoming(service, connections);
                tokio::select! {
                    served = server => served.unwrap(),
                    _ = killed => {}
                }
            });
        });
        Self { kill, thread }
    }

    fn kill(self) {
        self.kill.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

fn open_session(call: Call) -> ResponseFuture {
    let opened = wire::OpenResponse {
        session_id: "1".into(),
    };
    streaming::<wire::OpenRequest, _>(
        call,
        stream::once(async { Ok(opened) }).chain(stream::pending()),
    )
}

// === impl LinkFixture ===

impl LinkFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nomad.sock");
        let launch = Launch {
            role: Role::Driver,
            name: None,
            daemon: socket.clone(),
            version: "0.2.0",
            socket_env: SocketEnv::default(),
        };
        let (link, task) = Link::new(&launch);
        Self {
            _dir: dir,
            socket,
            link,
            task: tokio::spawn(task.run()),
            arrivals: mpsc::unbounded_channel(),
        }
    }

    /// A daemon that answers no call.
    fn silent_daemon(&self) -> FakeDaemon {
        let arrivals = self.arrivals.0.clone();
        FakeDaemon::start(&self.socket, move |call| {
            arrivals.send(call.uri().path().to_owned()).unwrap();
            boxed(pending())
        })
    }

    /// The path of the next call that comes to a daemon.
    async fn arrival(&mut self) -> String {
        let arrived = tokio::time::timeout(LIMIT, self.arrivals.1.recv()).await;
        arrived.expect("a call comes").expect("the sender is here")
    }
}

fn path_of(method: &str) -> String {
    format!("/hashicorp.nomad.plugins.drivers.proto.Driver/{method}")
}

fn call(method: &str, message: &impl Message) -> Call {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap();
    let mut body = vec![0];
    body.extend(length.to_be_bytes());
    body.extend(message);
    http::Request::builder()
        .method("POST")
        .version(http::Version::HTTP_2)
        .uri(path_of(method))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Full::new(Bytes::from(body))))
        .unwrap()
}

/// The status of an answer.
async fn code_of(answer: http::Response<Body>) -> tonic::Code {
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap();
    tonic::Status::from_header_map(&head.headers)
        .or_else(|| tonic::Status::from_header_map(body.trailers()?))
        .expect("each answer has a status")
        .code()
}

#[tokio::test]
async fn recovery_is_repeated_until_a_daemon_answers_it() {
    let mut fixture = LinkFixture::new();
    let request = nomad::RecoverTaskRequest {
        task_id: "a/web/12345678".into(),
        handle: None,
    };
    let asked = tokio::spawn(forward::recovery(
        fixture.link.clone(),
        call("RecoverTask", &request),
    ));
    let waited = nomad::WaitTaskRequest {
        task_id: "a/db/12345678".into(),
    };
    let waiting = tokio::spawn(forward::repeated(
        fixture.link.clone(),
        call("WaitTask", &waited),
    ));
    for _ in 0..3 {
        let daemon = fixture.silent_daemon();
        let mut got = [fixture.arrival().await, fixture.arrival().await];
        got.sort();
        assert_eq!(got, [path_of("RecoverTask"), path_of("WaitTask")]);
        daemon.kill();
    }
    assert!(!asked.is_finished() && !waiting.is_finished());
    let last = FakeDaemon::start(&fixture.socket, move |call| match call.uri().path() {
        path if path.ends_with("/RecoverTask") => {
            let request = request.clone();
            unary(call, move |again: nomad::RecoverTaskRequest| {
                assert_eq!(again, request);
                Ok(nomad::RecoverTaskResponse {})
            })
        }
        _ => {
            let refuse =
                |nomad::WaitTaskRequest { task_id }| Err(tonic::Status::not_found(task_id));
            unary::<_, nomad::WaitTaskResponse>(call, refuse)
        }
    });
    let answer = tokio::time::timeout(LIMIT, asked).await.unwrap().unwrap();
    assert_eq!(code_of(answer).await, tonic::Code::Ok);
    // An answer without a body ends with its headers.
    let answer = tokio::time::timeout(LIMIT, waiting).await.unwrap().unwrap();
    assert!(http_body::Body::is_end_stream(answer.body()));
    assert_eq!(code_of(answer).await, tonic::Code::NotFound);
    fixture.task.abort();
    last.kill();
}

#[tokio::test]
async fn call_that_ends_with_the_daemon_and_its_launcher_gets_no_answer() {
    let mut fixture = LinkFixture::new();
    let request = nomad::InspectTaskRequest {
        task_id: "a/web/12345678".into(),
    };
    let asked = tokio::spawn(forward::repeated(
        fixture.link.clone(),
        call("InspectTask", &request),
    ));
    let daemon = fixture.silent_daemon();
    assert_eq!(fixture.arrival().await, path_of("InspectTask"));
    daemon.kill();
    let ended = tokio::time::timeout(LIMIT, &mut fixture.task).await;
    assert_eq!(ended.unwrap().unwrap(), DaemonGone);
    assert!(!asked.is_finished(), "an agent would believe an error");
    asked.abort();
}

#[tokio::test]
async fn fingerprints_begin_again_when_the_launcher_outlives_its_daemon() {
    let fixture = LinkFixture::new();
    let of = |health: HealthState| nomad::FingerprintResponse {
        health: health.into(),
        ..nomad::FingerprintResponse::default()
    };
    let daemon = || {
        FakeDaemon::start(&fixture.socket, move |call| {
            let healthy = stream::once(async move { Ok(of(HealthState::Healthy)) });
            streaming::<nomad::FingerprintRequest, _>(call, healthy.chain(stream::pending()))
        })
    };
    let open = |up: link::SessionHandle| async move {
        DriverClient::new(up.channel)
            .fingerprint(nomad::FingerprintRequest {})
            .await
            .map(Response::into_inner)
    };
    let away = of(HealthState::Undetected);
    let mut fingerprints = Box::pin(fallback::stream(fixture.link.clone(), Some(away), open));
    for _ in 0..2 {
        let daemon = daemon();
        let next = tokio::time::timeout(LIMIT, fingerprints.next()).await;
        let next = next.unwrap().expect("it does not end").expect("no error");
        assert_eq!(next.health(), HealthState::Healthy);
        daemon.kill();
        let next = tokio::time::timeout(LIMIT, fingerprints.next()).await;
        let next = next.unwrap().expect("it does not end").expect("no error");
        assert_eq!(next.health(), HealthState::Undetected);
    }
    fixture.task.abort();
}

#[tokio::test]
async fn errors_of_a_daemon_that_ends_are_distinguished_from_others() {
    let of = async |code: tonic::Code| {
        let answer = tonic::Status::new(code, "why").into_http::<Body>();
        let (head, body) = answer.into_parts();
        let in_headers = body.collect().await.unwrap();
        let trailers = std::future::ready(Some(Ok(head.headers.clone())));
        let in_trailers = Full::new(Bytes::from_static(b"x")).with_trailers(trailers);
        let in_trailers = in_trailers.collect().await.unwrap();
        [
            forward::may_be_due_to_end(&http::Response::from_parts(head, in_headers)),
            forward::may_be_due_to_end(&http::Response::new(in_trailers)),
        ]
    };
    for code in [tonic::Code::Unavailable, tonic::Code::FailedPrecondition] {
        assert_eq!(of(code).await, [true; 2], "{code}");
    }
    for code in [tonic::Code::Ok, tonic::Code::NotFound, tonic::Code::Unknown] {
        assert_eq!(of(code).await, [false; 2], "{code}");
    }
}

#[tokio::test]
async fn calling_process_is_reported_to_the_daemon() {
    use tonic::transport::server::Connected;

    let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
    let mut extensions = http::Extensions::new();
    assert_eq!(forward::caller(&extensions), None);
    extensions.insert(ours.connect_info());
    let own = ProcessId::of(std::process::id().cast_signed()).unwrap();
    let reported: ProcessId = forward::caller(&extensions)
        .unwrap()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(reported, own);
}
