//! Images loaded from archives: they run, get no name that others trust, and belong to the owner that loaded
//! them.

use std::fs::File;
use std::future::pending;
use std::path::Path;
use std::time::Duration;

use switchyard_contract::Fixture;
use switchyard_core::ErrorKind;
use switchyard_core::gateway::Scope;
use switchyard_core::image::ImageId;
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::host::eventually;
use switchyard_tests::image::Image;
use switchyard_tests::leak_scan::{LeakScan, NAMESPACE, stored};
use switchyard_tests::scratch::Scratch;
use switchyard_tests::ustar::{self, TarEntry, TarEntryKind};

use super::ownership::{TwoOwners, run};
use crate::images::with_file;

/// Time for containerd to collect unreferenced content: it pauses for up to 50 times as long as a collection
/// takes, and beside other tests one takes up to a second.
const LIMIT: Duration = Duration::from_secs(120);

/// Writes an image as `docker save` does.
pub(crate) fn save(image: &Image, tag: &str, path: &Path) {
    let file = |path: &str, bytes: &[u8]| TarEntry {
        path: path.to_owned(),
        mode: 0o644,
        uid: 0,
        gid: 0,
        kind: TarEntryKind::File(bytes.to_vec()),
    };
    let names: Vec<String> = (0..image.layers.len())
        .map(|layer| format!("{layer}/layer.tar"))
        .collect();
    let list = serde_json::json!([{ "Config": "config.json", "RepoTags": [tag], "Layers": names }]);
    let mut entries: Vec<TarEntry> = names
        .iter()
        .zip(&image.layers)
        .map(|(name, layer)| file(name, &layer.bytes))
        .collect();
    entries.push(file("config.json", &image.config.bytes));
    entries.push(file("manifest.json", list.to_string().as_bytes()));
    std::fs::write(path, ustar::archive(&entries)).expect("the scratch directory can be written");
}

async fn load(scope: &Scope, path: &Path) -> switchyard_core::Result<ImageId> {
    let file = File::open(path).expect("it is there");
    scope
        .images()
        .load(file, "busybox:loaded".into(), String::new(), pending())
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn loaded_image_is_private_to_its_owner_and_unnamed() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let TwoOwners { kubernetes, nomad } = TwoOwners::of(world.backend()).await;
    let dir = Scratch::new();
    let path = dir.path().join("image.tar");
    let image = with_file("loaded").build();
    save(&image, "busybox:loaded", &path);
    let id = load(&nomad, &path).await.expect("it is an image");
    assert_eq!(id.as_str(), image.config.digest);
    assert_eq!(load(&nomad, &path).await.expect("it is there"), id);

    assert_eq!(
        nomad
            .images()
            .find("busybox:loaded")
            .await
            .expect("it is asked for"),
        None
    );
    let seen = nomad
        .images()
        .find(id.as_str())
        .await
        .expect("it is asked for")
        .expect("it is there");
    assert_eq!(seen.repo_tags, Vec::<String>::new());
    assert_eq!(
        kubernetes
            .images()
            .find(id.as_str())
            .await
            .expect("it is asked for"),
        None
    );
    let refused = run(&world, &kubernetes, id.as_str())
        .await
        .expect_err("it is not its to use");
    assert_eq!(refused.kind(), ErrorKind::NotFound, "{}", refused.report());

    let task = run(&world, &nomad, id.as_str())
        .await
        .expect("it is its own");
    nomad
        .tasks()
        .start(&task)
        .await
        .expect("it is an image that runs");
    assert_eq!(nomad.tasks().wait(&task).await.expect("it ends").code, 0);
    nomad
        .images()
        .remove(id.as_str())
        .await
        .expect("it is its own");
    assert_eq!(
        nomad
            .images()
            .find(id.as_str())
            .await
            .expect("it is asked for"),
        None
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_archive_leaves_nothing_behind() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let TwoOwners {
        kubernetes: _,
        nomad,
    } = TwoOwners::of(world.backend()).await;
    let socket = world
        .root()
        .containerd_socket()
        .expect("containerd has been started");
    let dir = Scratch::new();
    let path = dir.path().join("image.tar");
    let mut image = with_file("broken").build();
    // The last layer is not the one that the configuration names.
    image.layers.pop();
    save(&image, "busybox:loaded", &path);
    let broken = load(&nomad, &path).await.expect_err("a layer is missing");
    assert_eq!(
        broken.kind(),
        ErrorKind::InvalidArgument,
        "{}",
        broken.report()
    );
    std::fs::write(&path, [b'x'; 4096]).expect("there is room");
    let broken = load(&nomad, &path).await.expect_err("it is no archive");
    assert_eq!(
        broken.kind(),
        ErrorKind::InvalidArgument,
        "{}",
        broken.report()
    );
    // When it is seen what the last layer unpacks to, all else of it is stored.
    let mut image = with_file("expected").build();
    image.layers.pop();
    image.layers.extend(with_file("found").build().layers.pop());
    save(&image, "busybox:loaded", &path);
    load(&nomad, &path)
        .await
        .expect_err("the last layer is another");
    assert_eq!(nomad.images().list().await.expect("they can be listed"), []);
    let mut left = Vec::new();
    let gone = tokio::task::block_in_place(|| {
        eventually(LIMIT, || {
            left = LeakScan::of(world.root()).findings;
            left.extend(stored(&socket, NAMESPACE));
            left.is_empty()
        })
    });
    assert!(gone, "left behind: {left:#?}");
}
