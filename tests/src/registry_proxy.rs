//! A reverse proxy in front of a registry: asks for credentials, records requests, injects faults.
//!
//! Each connection carries one request. `Basic` answers as a registry with a password file does; `Bearer`
//! sends the client to `/token` on the same address, which takes the password and gives out a token of one
//! repository.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::http::head_length;

/// Limit for an idle connection and for a held request, after which the proxy closes the connection.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// The clients that may pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody, without credentials.
    Open,
    /// Clients that send this user and password.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// Clients that send a token. A token is issued for this user and password or, if there are none, to
    /// everybody.
    Bearer {
        /// The user and the password, or `None` if tokens are issued to everybody.
        credentials: Option<(String, String)>,
    },
}

/// A fault of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryFault {
    /// The answer is this status.
    Status(u16),
    /// The answer has this status, these headers and this body.
    Answer(u16, Vec<(String, String)>, Vec<u8>),
    /// The answer has this status and an endless body of blanks.
    Endless(u16),
    /// The answer stalls after this many bytes, until [`RegistryProxy::release`] or for a minute.
    StallAfter(usize),
    /// The answer comes slowly: so many bytes a second.
    Drip(usize),
    /// The connection is closed after this many bytes of the answer.
    CutAfter(usize),
    /// One bit of the last byte of the answer is flipped.
    Corrupt,
    /// The request is held until [`RegistryProxy::release`], or for a minute.
    Hold,
    /// The request is held as with [`RegistryFault::Hold`], then answered with this status.
    HoldThen(u16),
}

/// A running proxy. Dropping it closes its socket.
#[derive(Debug)]
pub struct RegistryProxy {
    address: SocketAddr,
    shared: Arc<ProxyServer>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ProxyServer {
    upstream: SocketAddr,
    address: SocketAddr,
    access: Access,
    closed: AtomicBool,
    state: Mutex<ProxyState>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct ProxyState {
    requests: Vec<String>,
    heads: Vec<String>,
    faults: Vec<(String, RegistryFault)>,
    releases: u64,
}

impl RegistryProxy {
    /// Starts a proxy in front of `upstream`, on a free port of loopback.
    ///
    /// # Panics
    /// When loopback has no free port.
    #[must_use]
    pub fn start(upstream: SocketAddr, access: Access) -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(ProxyServer {
            upstream,
            address,
            access,
            closed: AtomicBool::new(false),
            state: Mutex::default(),
            released: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if accepting.closed.load(Ordering::SeqCst) {
                    break;
                }
                let serving = Arc::clone(&accepting);
                // The thread ends with its connection, which has a deadline.
                thread::spawn(move || serving.serve(stream));
            }
        });
        Self {
            address,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// Returns the address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests so far, in the order they came: method, blank, path with query.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.shared.lock().requests.clone()
    }

    /// The heads of all requests so far, with their headers.
    #[must_use]
    pub fn request_heads(&self) -> Vec<String> {
        self.shared.lock().heads.clone()
    }

    /// Returns the number of requests so far that contain `part`.
    #[must_use]
    pub fn count(&self, part: &str) -> usize {
        self.shared
            .lock()
            .requests
            .iter()
            .filter(|request| request.contains(part))
            .count()
    }

    /// Clears the recorded requests.
    pub fn clear_requests(&self) {
        self.shared.lock().requests.clear();
    }

    /// Adds a fault to the next request that contains `part` (of `GET /path`). If several faults are pending,
    /// a request takes the oldest that matches it.
    pub fn add_fault(&self, part: &str, fault: RegistryFault) {
        self.shared.lock().faults.push((part.to_owned(), fault));
    }

    /// Removes all pending faults.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// Releases all held requests.
    pub fn release(&self) {
        self.shared.lock().releases += 1;
        self.shared.released.notify_all();
    }
}

impl Drop for RegistryProxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.release();
        // Wakes the accepting thread, which then sees that the proxy is closed.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl ProxyServer {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        // The state is a log and a list, which stay consistent when a test panics while it holds the lock.
        self.state.lock()
    }

    /// Serves one connection. A client that disconnects is not an error.
    fn serve(&self, mut client: TcpStream) {
        let _ = client.set_read_timeout(Some(IDLE_LIMIT));
        let _ = client.set_write_timeout(Some(IDLE_LIMIT));
        let _ = self.answer(&mut client);
        let _ = client.shutdown(Shutdown::Write);
    }

    fn answer(&self, client: &mut TcpStream) -> io::Result<()> {
        let mut bytes = Vec::new();
        let length = loop {
            if let Some(length) = head_length(&bytes) {
                break length;
            }
            let mut block = [0; 8192];
            let count = match client.read(&mut block) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                count => count?,
            };
            if count == 0 {
                return Ok(());
            }
            bytes.extend_from_slice(&block[..count]);
            // The first byte of a TLS handshake: no HTTP head follows, and the proxy does not speak TLS.
            if bytes[0] == 0x16 {
                return Ok(());
            }
        };
        let head = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let line = head.lines().next().unwrap_or_default();
        let request = line
            .rsplit_once(' ')
            .map_or(line, |(request, _)| request)
            .to_owned();
        let (fault, releases) = self.record_request(&request, &head);
        if let Some(RegistryFault::Hold | RegistryFault::HoldThen(_)) = fault {
            self.wait_release(releases);
        }
        if let Some(RegistryFault::Status(status) | RegistryFault::HoldThen(status)) = fault {
            return reply(
                client,
                status,
                &[],
                "{\"errors\":[{\"code\":\"UNKNOWN\",\"message\":\"a planned fault\"}]}",
            );
        }
        if let Some(RegistryFault::Endless(status)) = fault {
            return reply_endless(client, status);
        }
        if let Some(RegistryFault::Answer(status, headers, body)) = &fault {
            return reply_planned(client, *status, headers, body);
        }
        if request.starts_with("GET /token") || request.starts_with("POST /token") {
            return self.token(client, &head, &request);
        }
        if let Some(challenge) = self.challenge(&head, &request) {
            let body = "{\"errors\":[{\"code\":\"UNAUTHORIZED\",\"message\":\"authentication required\"}]}";
            return reply(client, 401, &[("WWW-Authenticate", &challenge)], body);
        }
        self.forward(client, &head, &bytes[length..], fault, releases)
    }

    /// Records a request. Returns its fault, and the number of releases before it.
    fn record_request(&self, request: &str, head: &str) -> (Option<RegistryFault>, u64) {
        let mut state = self.lock();
        state.requests.push(request.to_owned());
        state.heads.push(head.to_owned());
        let at = state
            .faults
            .iter()
            .position(|(part, _)| request.contains(part.as_str()));
        (at.map(|at| state.faults.remove(at).1), state.releases)
    }

    /// Waits until the number of releases exceeds `before`.
    fn wait_release(&self, before: u64) {
        let mut state = self.lock();
        // A timeout has the same effect as a release.
        self.released
            .wait_while_for(&mut state, |state| state.releases == before, IDLE_LIMIT);
    }

    fn token(&self, client: &mut TcpStream, head: &str, request: &str) -> io::Result<()> {
        let Access::Bearer { credentials } = &self.access else {
            return reply(client, 404, &[], "");
        };
        let expected = credentials
            .as_ref()
            .map(|(user, password)| basic(user, password));
        if expected.is_some() && authorization(head) != expected.as_deref() {
            return reply(
                client,
                401,
                &[],
                "{\"details\":\"incorrect username or password\"}",
            );
        }
        let scope = request
            .split(['?', '&'])
            .find_map(|pair| pair.strip_prefix("scope="))
            .unwrap_or_default();
        let scope = scope
            .replace("%3A", ":")
            .replace("%3a", ":")
            .replace("%2F", "/")
            .replace("%2f", "/");
        let repository = scope.split(':').nth(1).unwrap_or_default();
        let token = STANDARD.encode(format!("pull {repository}"));
        reply(
            client,
            200,
            &[],
            &format!("{{\"token\":\"{token}\",\"expires_in\":300}}"),
        )
    }

    /// The challenge to answer with, if the request lacks credentials.
    fn challenge(&self, head: &str, request: &str) -> Option<String> {
        let given = authorization(head);
        match &self.access {
            Access::Open => None,
            Access::Basic { user, password } => (given != Some(basic(user, password).as_str()))
                .then(|| "Basic realm=\"tests\"".to_owned()),
            Access::Bearer { .. } => {
                let repository = repository(request);
                let token = format!("Bearer {}", STANDARD.encode(format!("pull {repository}")));
                (given != Some(token.as_str())).then(|| {
                    let scope = if repository.is_empty() {
                        String::new()
                    } else {
                        format!(",scope=\"repository:{repository}:pull\"")
                    };
                    format!(
                        "Bearer realm=\"http://{}/token\",service=\"tests\"{scope}",
                        self.address
                    )
                })
            }
        }
    }

    fn forward(
        &self,
        client: &mut TcpStream,
        head: &str,
        body: &[u8],
        fault: Option<RegistryFault>,
        releases: u64,
    ) -> io::Result<()> {
        let mut upstream = TcpStream::connect(self.upstream)?;
        upstream.set_read_timeout(Some(IDLE_LIMIT))?;
        let mut lines = head.trim_end().split("\r\n");
        let mut forwarded = format!(
            "{}\r\nConnection: close\r\n",
            lines.next().unwrap_or_default()
        );
        for line in lines {
            let name = line
                .split(':')
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase();
            // The proxy's credentials are not forwarded: the registry would refuse credentials that it did
            // not ask for.
            if name != "connection" && name != "authorization" {
                forwarded.push_str(line);
                forwarded.push_str("\r\n");
            }
        }
        forwarded.push_str("\r\n");
        upstream.write_all(forwarded.as_bytes())?;
        upstream.write_all(body)?;

        // The rest of a request body is sent while the answer is received.
        let mut from = client.try_clone()?;
        let mut to = upstream.try_clone()?;
        let up = thread::spawn(move || io::copy(&mut from, &mut to));
        let copied = match fault {
            Some(RegistryFault::CutAfter(limit)) => io::copy(
                &mut upstream.take(u64::try_from(limit).unwrap_or(u64::MAX)),
                client,
            )
            .map(drop),
            Some(RegistryFault::Corrupt) => {
                let mut answer = Vec::new();
                upstream.read_to_end(&mut answer)?;
                if let Some(last) = answer.last_mut() {
                    *last ^= 1;
                }
                client.write_all(&answer)
            }
            Some(RegistryFault::StallAfter(limit)) => {
                let limit = u64::try_from(limit).unwrap_or(u64::MAX);
                let begun = io::copy(&mut (&upstream).take(limit), client);
                self.wait_release(releases);
                begun.map(drop)
            }
            Some(RegistryFault::Drip(rate)) => drip(&mut upstream, client, rate),
            Some(
                RegistryFault::Status(_)
                | RegistryFault::Answer(..)
                | RegistryFault::Endless(_)
                | RegistryFault::Hold
                | RegistryFault::HoldThen(_),
            )
            | None => io::copy(&mut upstream, client).map(drop),
        };
        // The reading half is closed as well, so that the copy in the other direction ends.
        let _ = client.shutdown(Shutdown::Both);
        let _ = up.join();
        copied
    }
}

/// Copies so many bytes a second, until the end or until the client disconnects.
fn drip(from: &mut TcpStream, to: &mut TcpStream, rate: usize) -> io::Result<()> {
    // A tenth of it each tenth of a second.
    let mut block = vec![0; (rate / 10).max(1)];
    loop {
        match from.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&block[..count])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Sends blanks until the client disconnects.
fn reply_endless(client: &mut TcpStream, status: u16) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} Planned\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    );
    client.write_all(head.as_bytes())?;
    let blanks = vec![b' '; 64 << 10];
    loop {
        client.write_all(&blanks)?;
    }
}

/// Sends the answer that a test prescribed.
fn reply_planned(
    client: &mut TcpStream,
    status: u16,
    headers: &[(String, String)],
    body: &[u8],
) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Gate\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    client.write_all(head.as_bytes())?;
    client.write_all(body)
}

fn reply(
    client: &mut TcpStream,
    status: u16,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<()> {
    let mut head = format!(
        "HTTP/1.1 {status} Gate\r\nConnection: close\r\nContent-Type: application/json\r\n"
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    client.write_all(head.as_bytes())
}

fn authorization(head: &str) -> Option<&str> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("authorization")
            .then(|| value.trim())
    })
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// The repository of `GET /v2/<repository>/{manifests,blobs,tags}/...`; empty for `/v2/`.
fn repository(request: &str) -> &str {
    let Some((_, rest)) = request.split_once("/v2/") else {
        return "";
    };
    ["/manifests/", "/blobs/", "/tags/"]
        .iter()
        .find_map(|part| rest.split_once(part))
        .map_or("", |(name, _)| name)
}
