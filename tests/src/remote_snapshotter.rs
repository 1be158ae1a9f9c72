//! A remote snapshotter for containerd, as a proxy plugin: a test chooses the layers that it provides, which stand for those that
//! stargz, SOCI, nydus and overlaybd bring by themselves. Every snapshot is a directory of its own, with a copy of its parent's
//! files.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use parking_lot::Mutex;
use prost::Message;
use prost_types::Timestamp;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::server::Grpc;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_prost::ProstCodec;

/// The label with the name under which a snapshot will be committed.
const TARGET: &str = "containerd.io/snapshot.ref";
/// The label with the digest of the layer.
const LAYER: &str = "containerd.io/snapshot/cri.layer-digest";

/// A running snapshotter. Dropping it ends it; its files are below the directory that it was started with.
#[derive(Debug)]
pub struct RemoteSnapshotter {
    snapshots: Arc<Mutex<Snapshots>>,
    socket: PathBuf,
    _runtime: Runtime,
}

#[derive(Debug, Default)]
struct Snapshots {
    dir: PathBuf,
    by_key: BTreeMap<String, Snapshot>,
    /// Number of the directories that were made.
    dirs: u64,
    /// The archives of the layers that it provides, by their digests.
    provided: HashMap<String, PathBuf>,
    /// The labels of all snapshots that were prepared, also of those that it provided.
    prepared: Vec<HashMap<String, String>>,
}

#[derive(Debug)]
struct Snapshot {
    info: snap::Info,
    dir: PathBuf,
}

// === impl RemoteSnapshotter ===

impl RemoteSnapshotter {
    /// Starts a snapshotter, with its socket and its files in a directory, which is made.
    ///
    /// # Panics
    /// If the directory cannot be made or written.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("the scratch directory can be written");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime can be made");
        let snapshots = Arc::new(Mutex::new(Snapshots {
            dir: dir.to_owned(),
            ..Default::default()
        }));
        let socket = dir.join("snapshotter.sock");
        let entered = runtime.enter();
        let listener = UnixListener::bind(&socket).expect("the scratch directory can be written");
        let incoming = futures::stream::unfold(listener, async |listener| {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        let shared = Arc::clone(&snapshots);
        let serve = tower::service_fn(move |request: Request<Body>| {
            let snapshots = Arc::clone(&shared);
            async move { Ok::<_, Infallible>(answer(&snapshots, request).await) }
        });
        let routes = Routes::from(Router::new().fallback_service(serve));
        runtime.spawn(async move {
            let served = Server::builder()
                .add_routes(routes)
                .serve_with_incoming(Box::pin(incoming))
                .await;
            served.expect("a socket that is bound can be served");
        });
        drop(entered);
        Self {
            snapshots,
            socket,
            _runtime: runtime,
        }
    }

    /// The part of containerd's configuration by which it is a snapshotter with this name.
    #[must_use]
    pub fn plugin(&self, name: &str) -> String {
        format!(
            "[proxy_plugins.{name}]\ntype = \"snapshot\"\naddress = {:?}\n",
            self.socket
        )
    }

    /// From now on provides the layer with this digest, whose content is a tar archive with gzip.
    ///
    /// # Panics
    /// If the archive cannot be written.
    pub fn provide(&self, layer: &str, archive: &[u8]) {
        let mut snapshots = self.snapshots.lock();
        let file = snapshots.dir.join(format!("{layer}.tar.gz"));
        fs::write(&file, archive).expect("the scratch directory can be written");
        snapshots.provided.insert(layer.to_owned(), file);
    }

    /// The labels of the snapshots that were prepared for the layer with this digest, in their order.
    #[must_use]
    pub fn prepared(&self, layer: &str) -> Vec<HashMap<String, String>> {
        let snapshots = self.snapshots.lock();
        let is_it = |labels: &&HashMap<String, String>| {
            labels.get(LAYER).is_some_and(|digest| digest == layer)
        };
        snapshots.prepared.iter().filter(is_it).cloned().collect()
    }
}

// === impl Snapshots ===

impl Snapshots {
    fn find(&mut self, key: &str) -> Result<&mut Snapshot, Status> {
        self.by_key
            .get_mut(key)
            .ok_or_else(|| Status::not_found(format!("snapshot {key}")))
    }

    fn create(
        &mut self,
        key: &str,
        parent: &str,
        labels: HashMap<String, String>,
        kind: snap::Kind,
    ) -> Result<Vec<Mount>, Status> {
        if self.by_key.contains_key(key) {
            return Err(Status::already_exists(format!("snapshot {key}")));
        }
        self.dirs += 1;
        let dir = self.dir.join(self.dirs.to_string());
        if parent.is_empty() {
            fs::create_dir(&dir)?;
        } else {
            let from = &self.find(parent)?.dir;
            let copy = Command::new("cp").arg("-a").arg(from).arg(&dir).status()?;
            assert!(copy.success(), "cp -a {from:?} {dir:?}: {copy}");
        }
        let info = snap::Info {
            name: key.to_owned(),
            parent: parent.to_owned(),
            kind: kind.into(),
            created_at: Some(Timestamp::default()),
            updated_at: Some(Timestamp::default()),
            labels,
        };
        let snapshot = Snapshot { info, dir };
        let mounts = snapshot.mounts();
        self.by_key.insert(key.to_owned(), snapshot);
        Ok(mounts)
    }

    fn prepare(
        &mut self,
        request: snap::PrepareSnapshotRequest,
    ) -> Result<snap::PrepareSnapshotResponse, Status> {
        let snap::PrepareSnapshotRequest {
            key,
            parent,
            labels,
            ..
        } = request;
        self.prepared.push(labels.clone());
        let archive = labels
            .get(LAYER)
            .and_then(|layer| self.provided.get(layer))
            .cloned();
        if let (Some(archive), Some(target)) = (archive, labels.get(TARGET).cloned()) {
            if !self.by_key.contains_key(&target) {
                self.create(&target, &parent, labels, snap::Kind::Committed)?;
                let dir = &self.find(&target)?.dir;
                let unpack = Command::new("tar")
                    .arg("-xzf")
                    .arg(&archive)
                    .arg("-C")
                    .arg(dir)
                    .status()?;
                assert!(unpack.success(), "tar -xzf {archive:?}: {unpack}");
            }
            return Err(Status::already_exists(format!("target snapshot {target}")));
        }
        let mounts = self.create(&key, &parent, labels, snap::Kind::Active)?;
        Ok(snap::PrepareSnapshotResponse { mounts })
    }

    fn view(
        &mut self,
        request: snap::ViewSnapshotRequest,
    ) -> Result<snap::ViewSnapshotResponse, Status> {
        let snap::ViewSnapshotRequest {
            key,
            parent,
            labels,
            ..
        } = request;
        let mounts = self.create(&key, &parent, labels, snap::Kind::View)?;
        Ok(snap::ViewSnapshotResponse { mounts })
    }

    fn mounts(&mut self, request: snap::MountsRequest) -> Result<snap::MountsResponse, Status> {
        let mounts = self.find(&request.key)?.mounts();
        Ok(snap::MountsResponse { mounts })
    }

    fn commit(&mut self, request: snap::CommitSnapshotRequest) -> Result<(), Status> {
        if self.by_key.contains_key(&request.name) {
            return Err(Status::already_exists(format!("snapshot {}", request.name)));
        }
        self.find(&request.key)?;
        let mut snapshot = self.by_key.remove(&request.key).expect("it was found");
        snapshot.info.name.clone_from(&request.name);
        snapshot.info.kind = snap::Kind::Committed.into();
        snapshot.info.labels = request.labels;
        self.by_key.insert(request.name, snapshot);
        Ok(())
    }

    fn remove(&mut self, request: snap::RemoveSnapshotRequest) -> Result<(), Status> {
        let key = &request.key;
        let dir = self.find(key)?.dir.clone();
        if self
            .by_key
            .values()
            .any(|snapshot| snapshot.info.parent == *key)
        {
            return Err(Status::failed_precondition(format!(
                "snapshot {key} has children"
            )));
        }
        fs::remove_dir_all(dir)?;
        self.by_key.remove(key);
        Ok(())
    }

    fn stat(
        &mut self,
        request: snap::StatSnapshotRequest,
    ) -> Result<snap::StatSnapshotResponse, Status> {
        let info = Some(self.find(&request.key)?.info.clone());
        Ok(snap::StatSnapshotResponse { info })
    }

    fn update(
        &mut self,
        request: snap::UpdateSnapshotRequest,
    ) -> Result<snap::UpdateSnapshotResponse, Status> {
        let new = request.info.unwrap_or_default();
        let info = &mut self.find(&new.name)?.info;
        info.labels.extend(new.labels);
        let info = Some(info.clone());
        Ok(snap::UpdateSnapshotResponse { info })
    }

    fn usage(&mut self, request: snap::UsageRequest) -> Result<snap::UsageResponse, Status> {
        self.find(&request.key)?;
        Ok(snap::UsageResponse::default())
    }

    /// All snapshots: containerd checks itself what it has asked for.
    fn list(
        &mut self,
        _: snap::ListSnapshotsRequest,
    ) -> Result<snap::ListSnapshotsResponse, Status> {
        let info = self.by_key.values().map(|of| of.info.clone()).collect();
        Ok(snap::ListSnapshotsResponse { info })
    }
}

// === impl Snapshot ===

impl Snapshot {
    fn mounts(&self) -> Vec<Mount> {
        let access = if self.info.kind() == snap::Kind::Active {
            "rw"
        } else {
            "ro"
        };
        vec![Mount {
            r#type: "bind".to_owned(),
            source: self.dir.display().to_string(),
            options: vec!["rbind".to_owned(), access.to_owned()],
            ..Default::default()
        }]
    }
}

async fn answer(snapshots: &Arc<Mutex<Snapshots>>, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let method = path.rsplit('/').next().unwrap_or_default();
    match method {
        "Prepare" => unary(snapshots, request, Snapshots::prepare).await,
        "View" => unary(snapshots, request, Snapshots::view).await,
        "Mounts" => unary(snapshots, request, Snapshots::mounts).await,
        "Commit" => unary(snapshots, request, Snapshots::commit).await,
        "Remove" => unary(snapshots, request, Snapshots::remove).await,
        "Stat" => unary(snapshots, request, Snapshots::stat).await,
        "Update" => unary(snapshots, request, Snapshots::update).await,
        "Usage" => unary(snapshots, request, Snapshots::usage).await,
        "Cleanup" => unary(snapshots, request, |_, _: snap::CleanupRequest| Ok(())).await,
        "List" => list(snapshots, request).await,
        _ => Status::unimplemented(path).into_http(),
    }
}

async fn unary<Q, A>(
    snapshots: &Arc<Mutex<Snapshots>>,
    request: Request<Body>,
    effect: fn(&mut Snapshots, Q) -> Result<A, Status>,
) -> Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
{
    let snapshots = Arc::clone(snapshots);
    let service = tower::service_fn(move |request: tonic::Request<Q>| {
        let answer = effect(&mut snapshots.lock(), request.into_inner());
        async move { answer.map(tonic::Response::new) }
    });
    Grpc::new(ProstCodec::<A, Q>::default())
        .unary(service, request)
        .await
        .map(Body::new)
}

async fn list(snapshots: &Arc<Mutex<Snapshots>>, request: Request<Body>) -> Response<Body> {
    let snapshots = Arc::clone(snapshots);
    let service = tower::service_fn(move |request: tonic::Request<snap::ListSnapshotsRequest>| {
        let answer = snapshots.lock().list(request.into_inner());
        async move {
            let answers = futures::stream::iter([answer]);
            Ok::<_, Status>(tonic::Response::new(answers))
        }
    });
    Grpc::new(ProstCodec::<
        snap::ListSnapshotsResponse,
        snap::ListSnapshotsRequest,
    >::default())
    .server_streaming(service, request)
    .await
    .map(Body::new)
}
