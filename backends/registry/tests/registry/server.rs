//! A registry in this process. Rules may answer a request before the registry does, which is how it
//! misbehaves.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use parking_lot::Mutex;
use serde_json::{Value, json};
use switchyard_core::image::ImageReference;
use switchyard_registry::{
    Blob, Client, Config, Credentials, Descriptor, Digest, Error, Pull, Resolved,
};
use tempfile::TempDir;

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A request that the registry received.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn path(&self) -> &str {
        self.uri.path()
    }

    pub(crate) fn is_blob(&self) -> bool {
        self.path().contains("/blobs/")
    }

    /// The first byte that was requested, and the end, exclusive, if the request has one.
    pub(crate) fn range(&self) -> Option<(usize, Option<usize>)> {
        let range = self.header("range")?.strip_prefix("bytes=").unwrap();
        let (start, last) = range.split_once('-').unwrap();
        let end = last.parse::<usize>().ok().map(|last| last + 1);
        Some((start.parse().unwrap(), end))
    }
}

type Rule = Box<dyn FnMut(&Seen) -> Option<Response> + Send>;

#[derive(Default)]
struct Content {
    /// By path.
    documents: HashMap<String, (String, Bytes)>,
    seen: Vec<Seen>,
    rules: Vec<Rule>,
    ignores_ranges: bool,
}

/// The registry. It ends when this is dropped.
pub(crate) struct Registry {
    address: SocketAddr,
    content: Arc<Mutex<Content>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Registry {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let content = Arc::new(Mutex::new(Content::default()));
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&content));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            content,
            task,
        }
    }

    pub(crate) fn authority(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn put(&self, path: &str, media_type: &str, bytes: impl Into<Bytes>) {
        self.content
            .lock()
            .documents
            .insert(path.to_owned(), (media_type.to_owned(), bytes.into()));
    }

    /// Returns what is stored under a path.
    pub(crate) fn stored(&self, path: &str) -> Bytes {
        let content = self.content.lock();
        let (_, bytes) = &content.documents[path];
        bytes.clone()
    }

    /// Stores a blob of `app` and describes it.
    pub(crate) fn blob(&self, media_type: &str, bytes: &[u8]) -> Descriptor {
        let digest = Digest::sha256(bytes);
        self.put(
            &format!("/v2/app/blobs/{digest}"),
            "application/octet-stream",
            bytes.to_vec(),
        );
        Descriptor::new(media_type, digest, bytes.len().try_into().unwrap())
    }

    /// Stores a manifest of `app` under its digest and `tag`, and describes it.
    pub(crate) fn document(&self, media_type: &str, tag: &str, document: &Value) -> Descriptor {
        let bytes = document.to_string().into_bytes();
        let digest = Digest::sha256(&bytes);
        for name in [tag, &digest.to_string()] {
            self.put(
                &format!("/v2/app/manifests/{name}"),
                media_type,
                bytes.clone(),
            );
        }
        Descriptor::new(media_type, digest, bytes.len().try_into().unwrap())
    }

    /// Stores an image with one layer as `app:tag`.
    pub(crate) fn image(&self, tag: &str, layer: &[u8]) -> Descriptor {
        let config =
            json!({ "architecture": "amd64", "os": "linux", "config": { "Cmd": ["/bin/true"] } });
        let config = self.blob(CONFIG, config.to_string().as_bytes());
        let layer = self.blob(LAYER, layer);
        self.document(
            MANIFEST,
            tag,
            &json!({ "schemaVersion": 2, "config": wire(&config), "layers": [wire(&layer)] }),
        )
    }

    /// Adds a rule, which is tried before those that are added later.
    pub(crate) fn rule(&self, rule: impl FnMut(&Seen) -> Option<Response> + Send + 'static) {
        self.content.lock().rules.push(Box::new(rule));
    }

    /// Answers the first `times` requests that `applies` selects with `answer`.
    pub(crate) fn first(
        &self,
        mut times: usize,
        applies: impl Fn(&Seen) -> bool + Send + 'static,
        answer: impl Fn(&Seen) -> Response + Send + 'static,
    ) {
        self.rule(move |seen| {
            if times == 0 || !applies(seen) {
                return None;
            }
            times -= 1;
            Some(answer(seen))
        });
    }

    pub(crate) fn ignore_ranges(&self) {
        self.content.lock().ignores_ranges = true;
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.content.lock().seen.clone()
    }

    pub(crate) fn reference(&self, name: &str) -> ImageReference {
        format!("{}/{name}", self.address).parse().unwrap()
    }
}

async fn answer(State(content): State<Arc<Mutex<Content>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let seen = Seen {
        method: parts.method.to_string(),
        uri: parts.uri,
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    };
    let mut content = content.lock();
    content.seen.push(seen.clone());
    if let Some(response) = content.rules.iter_mut().find_map(|rule| rule(&seen)) {
        return response;
    }
    let Some((media_type, bytes)) = content.documents.get(seen.path()) else {
        return text(
            404,
            r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#,
        );
    };
    match seen
        .range()
        .filter(|_| seen.is_blob() && !content.ignores_ranges)
    {
        None => Response::builder()
            .header(header::CONTENT_TYPE, media_type)
            .body(Body::from(bytes.clone()))
            .unwrap(),
        Some((start, end)) => part(bytes, start..end.unwrap_or(bytes.len())),
    }
}

/// The answer to a request of a range.
pub(crate) fn part(bytes: &Bytes, range: Range<usize>) -> Response {
    let (start, last) = (range.start, range.end - 1);
    Response::builder()
        .status(StatusCode::PARTIAL_CONTENT)
        .header(
            header::CONTENT_RANGE,
            format!("bytes {start}-{last}/{}", bytes.len()),
        )
        .body(Body::from(bytes.slice(range)))
        .unwrap()
}

/// A descriptor as JSON.
pub(crate) fn wire(descriptor: &Descriptor) -> Value {
    json!({ "mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size })
}

pub(crate) fn text(status: u16, body: &str) -> Response {
    Response::builder()
        .status(status)
        .body(Body::from(body.to_owned()))
        .unwrap()
}

pub(crate) fn with_header(status: u16, name: &str, value: &str) -> Response {
    Response::builder()
        .status(status)
        .header(name, value)
        .body(Body::empty())
        .unwrap()
}

/// A response that announces `length` bytes, sends `part` and breaks the connection.
pub(crate) fn broken(length: usize, part: &[u8]) -> Response {
    let pieces = [
        Ok(Bytes::copy_from_slice(part)),
        Err(io::Error::other("cut")),
    ];
    // A pause lets the part leave before the failure is seen, as it would on a real network.
    let body = stream::unfold(pieces.into_iter(), async |mut pieces| {
        tokio::task::yield_now().await;
        pieces.next().map(|piece| (piece, pieces))
    });
    Response::builder()
        .header(header::CONTENT_LENGTH, length)
        .body(Body::from_stream(body))
        .unwrap()
}

/// A response that announces `length` bytes, sends `part` and then nothing, for ever.
pub(crate) fn stuck(length: usize, part: &[u8]) -> Response {
    use futures::StreamExt as _;
    let part = Ok::<_, io::Error>(Bytes::copy_from_slice(part));
    let body = stream::iter([part]).chain(stream::pending());
    Response::builder()
        .header(header::CONTENT_LENGTH, length)
        .body(Body::from_stream(body))
        .unwrap()
}

/// A client that retries quickly.
pub(crate) fn client() -> Client {
    Client::new(quick())
}

pub(crate) fn quick() -> Config {
    Config {
        retry_pause: Duration::from_millis(2),
        retries: 3,
        ..Config::default()
    }
}

pub(crate) async fn open(client: &Client, reference: &ImageReference) -> Pull {
    client
        .open(reference, Credentials::Anonymous)
        .await
        .unwrap()
}

pub(crate) async fn resolve(
    reference: &ImageReference,
    credentials: Credentials,
) -> Result<Resolved, Error> {
    client()
        .open(reference, credentials)
        .await
        .unwrap()
        .resolve()
        .await
}

pub(crate) async fn read(mut blob: Blob) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = blob.chunk().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// A `certs.d` directory with one `hosts.toml`.
pub(crate) fn certs_d(name: &str, hosts_toml: &str) -> (TempDir, Vec<PathBuf>) {
    let root = TempDir::new().unwrap();
    let directory = root.path().join(name);
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("hosts.toml"), hosts_toml).unwrap();
    let roots = vec![root.path().to_owned()];
    (root, roots)
}
