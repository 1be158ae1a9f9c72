//! A blocking HTTP/1.1 client of one request per connection: enough for a registry and for an admin address.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Limit for a connection without data before a request fails.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// An answer, with its body decoded.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The header fields in their order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header field of this name (in lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as text; bytes that are no UTF-8 are replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends `GET path`.
///
/// # Errors
/// When the address refuses, falls silent for 30 seconds, or answers with something that is no HTTP.
pub fn get(address: SocketAddr, path: &str) -> io::Result<Response> {
    request(address, "GET", path, &[], &[])
}

/// Sends `GET path` over a unix socket.
///
/// # Errors
/// As [`get`].
pub fn get_unix(socket: &Path, path: &str) -> io::Result<Response> {
    over_unix(socket, "GET", path, &[], b"")
}

/// Sends `DELETE path` over a unix socket.
///
/// # Errors
/// As [`get`].
pub fn delete_unix(socket: &Path, path: &str) -> io::Result<Response> {
    over_unix(socket, "DELETE", path, &[], b"")
}

/// Sends `POST path` with a JSON text over a unix socket.
///
/// # Errors
/// As [`get`].
pub fn post_unix(socket: &Path, path: &str, json: &str) -> io::Result<Response> {
    over_unix(
        socket,
        "POST",
        path,
        &[("Content-Type", "application/json")],
        json.as_bytes(),
    )
}

fn over_unix(
    socket: &Path,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(IDLE_LIMIT))?;
    stream.set_write_timeout(Some(IDLE_LIMIT))?;
    exchange(stream, "localhost", method, path, headers, body)
}

/// Sends one request and reads the whole answer.
///
/// # Errors
/// When the address refuses, falls silent for 30 seconds, or answers with something that is no HTTP.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    let stream = TcpStream::connect_timeout(&address, IDLE_LIMIT)?;
    stream.set_read_timeout(Some(IDLE_LIMIT))?;
    stream.set_write_timeout(Some(IDLE_LIMIT))?;
    exchange(stream, &address.to_string(), method, path, headers, body)
}

fn exchange(
    mut stream: impl Read + Write,
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer, method == "HEAD").ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{method} {path} on {host}: the answer is no HTTP"),
        )
    })
}

/// The length of the head of a message, its blank line included, once that has arrived.
#[must_use]
pub fn head_length(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .map(|at| at + 4)
}

fn parse(answer: &[u8], bodiless: bool) -> Option<Response> {
    let length = head_length(answer)?;
    let head = std::str::from_utf8(&answer[..length]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut response = Response {
        status,
        headers,
        body: Vec::new(),
    };
    let rest = &answer[length..];
    if bodiless {
        return Some(response);
    }
    response.body = if response
        .header("transfer-encoding")
        .is_some_and(|value| value.contains("chunked"))
    {
        unchunk(rest)?
    } else if let Some(length) = response.header("content-length") {
        rest.get(..length.parse().ok()?)?.to_vec()
    } else {
        rest.to_vec()
    };
    Some(response)
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..line])
            .ok()?
            .split(';')
            .next()?
            .trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        rest = &rest[line + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}
