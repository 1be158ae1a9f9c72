//! Registries that break connections, send wrong data or do not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use serde_json::json;
use switchyard_core::image::DigestAlgorithm;
use switchyard_registry::{
    Client, Config, Credentials, Descriptor, Digest, Error, Hasher, Platform, Platforms,
};

use crate::server::{
    CONFIG, INDEX, LAYER, MANIFEST, Registry, broken, client, open, quick, read, resolve, stuck,
    text, wire, with_header,
};

/// The default of `images.max_manifest_bytes`, which is containerd's.
const LARGEST_MANIFEST: usize = 4 * 1048 * 1048;

fn content(length: usize) -> Vec<u8> {
    (0..length)
        .map(|n| u8::try_from(n * 7 % 251).unwrap())
        .collect()
}

#[tokio::test]
async fn image_is_pulled_completely_through_its_index() {
    let registry = Registry::start().await;
    let layer = content(200_000);
    let manifest = registry.image("only-amd64", &layer);
    let mut entry = wire(&manifest);
    entry["platform"] = json!({ "os": "linux", "architecture": "amd64" });
    let other = json!({ "mediaType": MANIFEST, "digest": Digest::sha256(b"o"), "size": 1,
        "platform": { "os": "linux", "architecture": "s390x" } });
    let inner = registry.document(
        INDEX,
        "inner",
        &json!({ "schemaVersion": 2, "manifests": [other, entry] }),
    );
    let outer = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [wire(&inner)] });
    let outer = registry.document(INDEX, "v1", &outer);

    let pull = open(&client(), &registry.reference("app:v1")).await;
    let resolved = pull.resolve().await.unwrap();
    assert_eq!(resolved.descriptor, outer);
    assert_eq!(Digest::sha256(&resolved.bytes), outer.digest);
    let image = pull
        .image(
            resolved.clone(),
            &Platforms::only(&Platform::linux("amd64", None)),
        )
        .await
        .unwrap();
    assert_eq!(
        image
            .indexes
            .iter()
            .map(|index| &index.descriptor.digest)
            .collect::<Vec<_>>(),
        [&outer.digest, &inner.digest]
    );
    assert_eq!(image.descriptor.digest, manifest.digest);
    let (config, bytes) = pull.config(&image.manifest).await.unwrap();
    assert_eq!(config.config.cmd, ["/bin/true"]);
    assert_eq!(Digest::sha256(&bytes), image.manifest.config.digest);
    assert_eq!(
        read(pull.blob(&image.manifest.layers[0], 0)).await.unwrap(),
        layer
    );
    let missing = pull
        .image(resolved, &Platforms::only(&Platform::linux("arm64", None)))
        .await
        .unwrap_err();
    assert!(
        matches!(missing, Error::NoMatchingPlatform { .. }),
        "{missing:?}"
    );
    let accept = registry.seen()[0].header("accept").unwrap().to_owned();
    for media_type in [
        INDEX,
        MANIFEST,
        "application/vnd.docker.distribution.manifest.list.v2+json",
    ] {
        assert!(accept.contains(media_type), "{accept}");
    }
}

#[tokio::test]
async fn missing_content_is_not_found_without_retries() {
    let registry = Registry::start().await;
    let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    assert_eq!(registry.seen().len(), 1);
}

#[tokio::test]
async fn denials_carry_the_registrys_reason() {
    let registry = Registry::start().await;
    registry.rule(|_| {
        Some(text(
            403,
            r#"{"errors":[{"code":"DENIED","message":"blocked by policy"}]}"#,
        ))
    });
    let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Denied { reason, .. } if reason == "DENIED: blocked by policy"),
        "{error:?}"
    );
}

#[tokio::test]
async fn rate_limits_and_failures_are_retried_until_success() {
    for status in [429, 500, 503] {
        let registry = Registry::start().await;
        let image = registry.image("v1", b"layer");
        registry.first(
            2,
            |_| true,
            move |_| with_header(status, "retry-after", "0"),
        );
        let resolved = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
            .await
            .unwrap();
        assert_eq!(resolved.descriptor.digest, image.digest);
        assert_eq!(registry.seen().len(), 3);
    }
}

#[tokio::test]
async fn retries_are_bounded() {
    let registry = Registry::start().await;
    registry.rule(|seen| Some(text(if seen.is_blob() { 503 } else { 429 }, "")));
    let pull = open(&client(), &registry.reference("app:v1")).await;
    assert!(matches!(
        pull.resolve().await,
        Err(Error::RateLimited { .. })
    ));
    assert_eq!(registry.seen().len(), 4);
    let layer = Descriptor::new(LAYER, Digest::sha256(b"x"), 1);
    assert!(matches!(
        read(pull.blob(&layer, 0)).await,
        Err(Error::Unavailable { .. })
    ));
    assert_eq!(registry.seen().len(), 8);
}

#[tokio::test]
async fn refused_connection_is_unavailable_with_a_cause() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let reference = format!("{}/app:v1", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    drop(listener);
    let error = resolve(&reference, Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let mut chain = format!("{error}");
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        chain = format!("{chain}: {error}");
        cause = error.source();
    }
    assert!(chain.contains("refused"), "{chain}");
}

#[tokio::test]
async fn interrupted_body_is_resumed_at_its_offset() {
    for ignores_ranges in [false, true] {
        let registry = Registry::start().await;
        let bytes = content(300_000);
        let layer = registry.blob(LAYER, &bytes);
        if ignores_ranges {
            registry.ignore_ranges();
        }
        let first = bytes[..100_000].to_vec();
        let length = bytes.len();
        registry.first(1, |_| true, move |_| broken(length, &first));
        let pull = open(&client(), &registry.reference("app:v1")).await;
        assert_eq!(read(pull.blob(&layer, 0)).await.unwrap(), bytes);
        let ranges: Vec<_> = registry
            .seen()
            .iter()
            .map(|seen| seen.header("range").map(ToOwned::to_owned))
            .collect();
        assert_eq!(ranges.len(), 2, "{ranges:?}");
        assert_eq!(ranges[0], None);
        assert_eq!(ranges[1].as_deref(), Some("bytes=100000-"));
    }
}

#[tokio::test]
async fn repeatedly_interrupted_body_fails_with_the_cause() {
    let registry = Registry::start().await;
    let layer = registry.blob(LAYER, &content(1000));
    registry.rule(|_| Some(broken(1000, b"")));
    let pull = open(&client(), &registry.reference("app:v1")).await;
    let mut stream = pull.blob(&layer, 0).into_stream();
    let error = stream.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(stream.next().await.is_none(), "the error is the last item");
    assert_eq!(registry.seen().len(), 4);
}

#[tokio::test]
async fn blob_fetch_may_start_at_an_offset() {
    let registry = Registry::start().await;
    let bytes = content(5000);
    let layer = registry.blob(LAYER, &bytes);
    let pull = open(&client(), &registry.reference("app:v1")).await;
    assert_eq!(read(pull.blob(&layer, 4000)).await.unwrap(), bytes[4000..]);
    assert_eq!(registry.seen()[0].header("range"), Some("bytes=4000-"));
    assert_eq!(read(pull.blob(&layer, 5000)).await.unwrap(), b"");
    assert_eq!(
        registry.seen().len(),
        1,
        "nothing is missing, so nothing is asked for"
    );
    assert!(matches!(
        read(pull.blob(&layer, 5001)).await,
        Err(Error::SizeMismatch { .. })
    ));
    let mut seen = Hasher::new(DigestAlgorithm::Sha256);
    seen.update(&bytes[..4000]);
    assert_eq!(
        read(pull.blob(&layer, 4000).after(seen.clone()))
            .await
            .unwrap(),
        bytes[4000..]
    );
    seen.update(b"something else");
    assert!(matches!(
        read(pull.blob(&layer, 4000).after(seen)).await,
        Err(Error::DigestMismatch { .. })
    ));
}

#[tokio::test]
async fn wrong_content_is_detected() {
    let registry = Registry::start().await;
    let layer = registry.blob(LAYER, b"good layer");
    let path = format!("/v2/app/blobs/{}", layer.digest);
    let pull = open(&client(), &registry.reference("app:v1")).await;
    registry.put(&path, "x", b"evil layer".to_vec());
    assert!(matches!(
        read(pull.blob(&layer, 0)).await,
        Err(Error::DigestMismatch { .. })
    ));
    for wrong in ["short", "much too long a layer"] {
        registry.put(&path, "x", wrong);
        assert!(
            matches!(
                read(pull.blob(&layer, 0)).await,
                Err(Error::SizeMismatch { .. })
            ),
            "{wrong}"
        );
    }
    let many = stream_without_length(100);
    registry.rule(move |seen| seen.is_blob().then(&many));
    assert!(matches!(
        read(pull.blob(&layer, 0)).await,
        Err(Error::SizeMismatch { .. })
    ));
}

/// Answers with `length` bytes and does not say how many they are.
fn stream_without_length(length: usize) -> impl Fn() -> axum::response::Response {
    move || {
        let content = bytes::Bytes::from(vec![b' '; length]);
        let pieces: Vec<_> = (0..length)
            .step_by(4096)
            .map(|n| content.slice(n..length.min(n + 4096)))
            .map(Ok::<_, std::io::Error>)
            .collect();
        axum::response::Response::new(axum::body::Body::from_stream(futures::stream::iter(pieces)))
    }
}

#[tokio::test]
async fn wrong_manifests_are_detected() {
    let registry = Registry::start().await;
    let image = registry.image("v1", b"layer");
    let pinned = registry.reference(&format!("app@{}", image.digest));
    assert_eq!(
        resolve(&pinned, Credentials::Anonymous)
            .await
            .unwrap()
            .descriptor,
        image
    );

    let wrong_size = Descriptor {
        size: image.size + 1,
        ..image.clone()
    };
    let pull = open(&client(), &pinned).await;
    assert!(matches!(
        pull.manifest(&wrong_size).await,
        Err(Error::SizeMismatch { .. })
    ));

    registry.put(
        &format!("/v2/app/manifests/{}", image.digest),
        MANIFEST,
        "{\"schemaVersion\":2}",
    );
    let error = pull.resolve().await.unwrap_err();
    assert!(
        matches!(&error, Error::DigestMismatch { expected, .. } if *expected == image.digest),
        "{error:?}"
    );

    let header = Arc::new(parking_lot::Mutex::new(
        Digest::sha256(b"other").to_string(),
    ));
    let sent = Arc::clone(&header);
    registry.rule(move |_| Some(with_header(200, "docker-content-digest", &sent.lock())));
    let tag = registry.reference("app:v1");
    assert!(matches!(
        resolve(&tag, Credentials::Anonymous).await,
        Err(Error::DigestMismatch { .. })
    ));
    "garbage".clone_into(&mut header.lock());
    assert!(matches!(
        resolve(&tag, Credentials::Anonymous).await,
        Err(Error::Protocol { .. })
    ));
}

#[tokio::test]
async fn oversized_documents_are_rejected() {
    let registry = Registry::start().await;
    registry.put(
        "/v2/app/manifests/v1",
        MANIFEST,
        vec![b' '; LARGEST_MANIFEST + 1],
    );
    let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
    let endless = stream_without_length(LARGEST_MANIFEST + 1);
    registry.first(1, |_| true, move |_| endless());
    let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
    let pull = open(&client(), &registry.reference("app:v1")).await;
    let config = Descriptor::new(CONFIG, Digest::sha256(b"x"), (4 << 20) + 1);
    let manifest = switchyard_registry::ImageManifest {
        config,
        layers: Vec::new(),
    };
    assert!(matches!(
        pull.config(&manifest).await,
        Err(Error::TooLarge { .. })
    ));
}

#[tokio::test]
async fn schema_1_is_rejected_with_advice() {
    let registry = Registry::start().await;
    let old = json!({ "schemaVersion": 1, "fsLayers": [] });
    registry.document(
        "application/vnd.docker.distribution.manifest.v1+prettyjws",
        "v1",
        &old,
    );
    let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::UnsupportedMediaType { .. })
            && error.to_string().contains("schema 1")
    );
}

#[tokio::test]
async fn stalled_body_is_detected_and_resumed() {
    let registry = Registry::start().await;
    let bytes = content(1000);
    let layer = registry.blob(LAYER, &bytes);
    let part = bytes[..400].to_vec();
    registry.first(1, |_| true, move |_| stuck(1000, &part));
    let impatient = Config {
        idle_timeout: Duration::from_millis(150),
        ..quick()
    };
    let pull = open(
        &Client::new(impatient.clone()),
        &registry.reference("app:v1"),
    )
    .await;
    assert_eq!(read(pull.blob(&layer, 0)).await.unwrap(), bytes);
    assert_eq!(registry.seen()[1].header("range"), Some("bytes=400-"));

    registry.rule(|_| Some(stuck(1000, b"")));
    let give_up = Client::new(Config {
        retries: 0,
        ..impatient
    });
    let pull = open(&give_up, &registry.reference("app:v1")).await;
    let error = read(pull.blob(&layer, 0)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        std::error::Error::source(&error)
            .unwrap()
            .to_string()
            .contains("nothing was received")
    );
}

#[tokio::test]
async fn dropping_a_blob_closes_its_connection() {
    let registry = Registry::start().await;
    let closed = Arc::new(tokio::sync::Notify::new());
    let guard = Arc::new(AtomicBool::new(false));
    struct OnDrop(Arc<tokio::sync::Notify>, Arc<AtomicBool>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.1.store(true, Ordering::SeqCst);
            self.0.notify_one();
        }
    }
    let held = Arc::new(parking_lot::Mutex::new(Some(OnDrop(
        Arc::clone(&closed),
        Arc::clone(&guard),
    ))));
    registry.rule(move |_| {
        // The server drops the body's stream when the connection is gone.
        let held = held.lock().take();
        let body =
            futures::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"first"))])
                .chain(futures::stream::pending())
                .map(move |piece| {
                    let _ = &held;
                    piece
                });
        Some(axum::response::Response::new(
            axum::body::Body::from_stream(body),
        ))
    });
    let layer = Descriptor::new(LAYER, Digest::sha256(b"never"), 1000);
    let pull = open(&client(), &registry.reference("app:v1")).await;
    let mut blob = pull.blob(&layer, 0);
    assert_eq!(blob.chunk().await.unwrap().unwrap(), "first");
    assert!(!guard.load(Ordering::SeqCst));
    drop(blob);
    tokio::time::timeout(Duration::from_secs(20), closed.notified())
        .await
        .expect("the connection stays open");
}

#[tokio::test]
async fn endless_or_invalid_redirects_are_rejected() {
    let registry = Registry::start().await;
    registry.rule(|seen| Some(with_header(307, "location", seen.path())));
    let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    assert_eq!(registry.seen().len(), 11);
    let other = Registry::start().await;
    other.rule(|_| Some(with_header(307, "location", "file:///etc/passwd")));
    assert!(matches!(
        resolve(&other.reference("app:v1"), Credentials::Anonymous).await,
        Err(Error::Protocol { .. })
    ));
}
