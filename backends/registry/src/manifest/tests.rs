//! Tests of parsing manifests and of choosing a platform.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const OCI: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

fn descriptor(media_type: &str, seed: &str) -> Value {
    json!({ "mediaType": media_type, "digest": Digest::sha256(seed.as_bytes()), "size": 3 })
}

fn entry(seed: &str, platform: Option<Value>) -> Value {
    let mut entry = descriptor(OCI, seed);
    if let Some(platform) = platform {
        entry["platform"] = platform;
    }
    entry
}

fn image() -> Value {
    json!({ "schemaVersion": 2, "config": descriptor(OCI_CONFIG, "c"), "layers": [descriptor(GZIP, "l")] })
}

fn parse(content_type: Option<&str>, document: &Value) -> Result<(MediaType, Manifest)> {
    Manifest::parse("it", content_type, document.to_string().as_bytes())
}

fn index(entries: Vec<Value>) -> Index {
    match parse(None, &json!({ "schemaVersion": 2, "manifests": entries })).unwrap() {
        (MediaType::OciIndex, Manifest::Index(index)) => index,
        other => panic!("{other:?}"),
    }
}

#[test]
fn manifest_kind_is_detected_by_header_media_type_or_shape() {
    for content_type in [
        Some(OCI),
        Some("application/vnd.oci.image.manifest.v1+json; charset=utf-8"),
        None,
    ] {
        assert_eq!(
            parse(content_type, &image()).unwrap().0,
            MediaType::OciManifest
        );
    }
    let mut docker = image();
    docker["mediaType"] = json!(MediaType::DockerManifest.as_str());
    assert_eq!(
        parse(Some("text/plain"), &docker).unwrap().0,
        MediaType::DockerManifest
    );
}

#[test]
fn contradictory_manifests_are_rejected() {
    let mut both = image();
    both["manifests"] = json!([]);
    assert!(matches!(parse(None, &both), Err(Error::Protocol { .. })));
    assert!(matches!(
        parse(Some(OCI), &both),
        Err(Error::Protocol { .. })
    ));
    let mut lying = image();
    lying["mediaType"] = json!(MediaType::OciIndex.as_str());
    assert!(matches!(
        parse(Some(OCI), &lying),
        Err(Error::Protocol { .. })
    ));
    assert!(matches!(parse(None, &lying), Err(Error::Protocol { .. })));
}

#[test]
fn schema_1_and_artifacts_are_rejected_with_a_reason() {
    let old = json!({ "schemaVersion": 1, "name": "a", "fsLayers": [] });
    let text = parse(
        Some("application/vnd.docker.distribution.manifest.v1+prettyjws"),
        &old,
    )
    .unwrap_err();
    assert!(text.to_string().contains("schema 1"), "{text}");
    let mut chart = image();
    chart["config"] = descriptor("application/vnd.cncf.helm.config.v1+json", "c");
    assert!(matches!(
        parse(None, &chart),
        Err(Error::UnsupportedMediaType { .. })
    ));
}

#[test]
fn layers_that_containerd_unpacks_are_taken() {
    for (media_type, compression, is_foreign) in [
        ("oci.image.layer.v1.tar", Some(Compression::None), false),
        (
            "oci.image.layer.v1.tar+zstd",
            Some(Compression::Zstd),
            false,
        ),
        (
            "oci.image.layer.nondistributable.v1.tar",
            Some(Compression::None),
            true,
        ),
        (
            "oci.image.layer.nondistributable.v1.tar+gzip",
            Some(Compression::Gzip),
            true,
        ),
        (
            "oci.image.layer.nondistributable.v1.tar+zstd",
            Some(Compression::Zstd),
            true,
        ),
        (
            "docker.image.rootfs.diff.tar.gzip",
            Some(Compression::Gzip),
            false,
        ),
        (
            "docker.image.rootfs.foreign.diff.tar.gzip",
            Some(Compression::Gzip),
            true,
        ),
        ("oci.image.config.v1+json", None, false),
    ] {
        let media_type = format!("application/vnd.{media_type}");
        let layer = Descriptor::new(media_type.as_str(), Digest::sha256(b""), 0);
        assert_eq!(layer.layer_compression().ok(), compression, "{media_type}");
        assert_eq!(layer.is_foreign_layer(), is_foreign, "{media_type}");
        let mut manifest = image();
        manifest["layers"] = json!([descriptor(&media_type, "l")]);
        assert_eq!(
            parse(None, &manifest).is_ok(),
            compression.is_some(),
            "{media_type}"
        );
    }
}

#[test]
fn layers_for_snapshotters_alone_are_taken_and_cannot_be_unpacked() {
    for (media_type, is_taken) in [
        ("oci.image.layer.nydus.blob.v1", true),
        ("oci.image.layer.v1.erofs", true),
        ("oci.image.layer.v1.tar+lz4", true),
        ("oci.image.layer.v1.tar+gzip+encrypted", true),
        ("oci.image.layer.diff.tar", true),
        ("oci.image.layers.v1.tar", false),
        ("oci.image.manifest.v1+json", false),
        ("docker.image.rootfs.diff.tar.xz", false),
        ("in-toto+json", false),
    ] {
        let media_type = format!("application/vnd.{media_type}");
        let mut manifest = image();
        let tar = descriptor("application/vnd.oci.image.layer.v1.tar", "b");
        manifest["layers"] = json!([tar, descriptor(&media_type, "l")]);
        let found = parse(None, &manifest);
        assert_eq!(found.is_ok(), is_taken, "{media_type}: {found:?}");
        if let Ok((_, Manifest::Image(image))) = found {
            let refused = image.check_unpackable().unwrap_err();
            assert!(refused.to_string().contains(&media_type), "{refused}");
        }
    }
}

/// Documents as tools and registries make them, with the header that comes with them, and the number of layers or entries
/// that they have.
#[test]
fn unusual_manifests_are_read_as_in_containerd() {
    let without = |key: &str, mut document: Value| {
        document.as_object_mut().unwrap().remove(key);
        document
    };
    let with = |key: &str, value: Value, mut document: Value| {
        document[key] = value;
        document
    };
    let typed = |media_type: MediaType| with("mediaType", json!(media_type.as_str()), image());
    let list = json!({ "schemaVersion": 2, "manifests": [entry("a", None)] });
    let docker = Some(MediaType::DockerManifest.as_str());
    let docker_list = Some(MediaType::DockerList.as_str());
    let oci = MediaType::OciManifest;
    let index = MediaType::OciIndex;
    for (header, document, expected, count) in [
        (None, without("layers", image()), oci, 0),
        (None, with("layers", json!(null), image()), oci, 0),
        (None, with("layers", json!([]), image()), oci, 0),
        (None, with("manifests", json!(null), image()), oci, 1),
        (None, without("schemaVersion", image()), oci, 1),
        (docker, image(), MediaType::DockerManifest, 1),
        (docker, typed(oci), oci, 1),
        (docker, without("layers", typed(oci)), oci, 0),
        (
            Some(OCI),
            typed(MediaType::DockerManifest),
            MediaType::DockerManifest,
            1,
        ),
        (
            docker_list,
            with("mediaType", json!(index.as_str()), list.clone()),
            index,
            1,
        ),
        (
            Some(index.as_str()),
            with("manifests", json!(null), list.clone()),
            index,
            0,
        ),
        (
            Some(index.as_str()),
            without("manifests", list.clone()),
            index,
            0,
        ),
    ] {
        let (media_type, manifest) = parse(header, &document).unwrap();
        let found = match manifest {
            Manifest::Image(image) => image.layers.len(),
            Manifest::Index(index) => index.manifests.len(),
        };
        assert_eq!(
            (media_type, found),
            (expected, count),
            "{document} as {header:?}"
        );
    }
    // What is one thing by the header and the other by itself stays refused, and what is of another time.
    for (header, document) in [
        (
            docker,
            with("mediaType", json!(index.as_str()), list.clone()),
        ),
        (docker_list, typed(oci)),
        (docker_list, image()),
        (None, with("schemaVersion", json!(3), image())),
    ] {
        let read = parse(header, &document);
        assert!(
            matches!(read, Err(Error::Protocol { .. })),
            "{document} as {header:?}"
        );
    }
}

#[test]
fn best_platform_wins_in_any_order() {
    let platforms = Platforms::only(&Platform::linux("arm64", None));
    let index = index(vec![
        entry(
            "attestation",
            Some(json!({ "os": "unknown", "architecture": "unknown" })),
        ),
        entry("any", None),
        entry(
            "amd64",
            Some(json!({ "os": "linux", "architecture": "amd64" })),
        ),
        entry(
            "arm64",
            Some(
                json!({ "os": "linux", "architecture": "arm64", "variant": "v8", "os.version": "1" }),
            ),
        ),
    ]);
    assert_eq!(
        index.select("it", &platforms).unwrap().digest,
        Digest::sha256(b"arm64")
    );
    let riscv = Platforms::only(&Platform::linux("riscv64", None));
    assert_eq!(
        index.select("it", &riscv).unwrap().digest,
        Digest::sha256(b"any")
    );
}

#[test]
fn missing_platform_error_lists_available_ones() {
    let index = index(vec![entry(
        "w",
        Some(json!({ "os": "windows", "architecture": "amd64" })),
    )]);
    let error = index
        .select("it", &Platforms::of_this_machine())
        .unwrap_err();
    assert!(
        matches!(&error, Error::NoMatchingPlatform { available, .. } if available == "windows/amd64")
    );
}

#[test]
fn configurations_may_have_nulls_and_unknown_fields() {
    let config = json!({
        "architecture": "amd64", "os": "linux", "future": 1, "created": "2026-01-01T00:00:00Z",
        "config": { "Env": ["A=b"], "Cmd": null, "User": "1:2", "Volumes": {"/data": {}}, "Healthcheck": {"Test": []} },
        "rootfs": { "type": "layers", "diff_ids": [Digest::sha256(b"l")] },
    });
    let config = ImageConfig::parse("it", config.to_string().as_bytes()).unwrap();
    assert_eq!(config.platform, Platform::linux("amd64", None));
    assert_eq!(
        (config.config.user.as_str(), config.config.cmd.len()),
        ("1:2", 0)
    );
    assert!(config.config.volumes.contains_key("/data"));
    assert_eq!(config.rootfs.diff_ids, [Digest::sha256(b"l")]);
    let nulls = br#"{"config":null,"os":null,"architecture":null,"variant":null,"rootfs":null,"created":null}"#;
    for bare in [br#"{"config":null}"#.as_slice(), nulls] {
        let bare = ImageConfig::parse("it", bare).unwrap();
        assert_eq!(bare.config, ProcessConfig::default());
        assert_eq!(bare.rootfs, RootFs::default());
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes: Vec<u8>, content_type: Option<String>) {
        let _ = Manifest::parse("it", content_type.as_deref(), &bytes);
        let _ = ImageConfig::parse("it", &bytes);
    }

    #[test]
    fn mutilated_manifests_never_panic(at in 0usize..200, with: u8) {
        let mut bytes = image().to_string().into_bytes();
        let at = at.min(bytes.len() - 1);
        bytes[at] = with;
        let _ = Manifest::parse("it", None, &bytes);
    }
}

#[test]
fn annotations_of_layers_are_kept_if_they_are_for_snapshotters() {
    let layer = |annotations: Value| {
        let mut document = image();
        document["layers"][0]["annotations"] = annotations;
        match parse(None, &document) {
            Ok((_, Manifest::Image(mut image))) => image.layers.remove(0).annotations,
            other => panic!("{other:?}"),
        }
    };
    let toc = "containerd.io/snapshot/stargz/toc.digest";
    let bootstrap = "containerd.io/snapshot/nydus-bootstrap";
    let overlaybd = "containerd.io/snapshot/overlaybd/blob-size";
    let cases = [
        (json!({ toc: "sha256:1" }), vec![(toc, "sha256:1")]),
        (json!({ bootstrap: "true" }), vec![(bootstrap, "true")]),
        (
            json!({ overlaybd: "4096", "org.opencontainers.image.title": "x" }),
            vec![(overlaybd, "4096")],
        ),
        (json!({ "containerd.io/snapshot.ref": "sha256:2" }), vec![]),
        (json!({ "containerd.io/gc.root": "1", "other": 7 }), vec![]),
        (json!({ toc: null }), vec![(toc, "")]),
        (json!({}), vec![]),
        (Value::Null, vec![]),
    ];
    for (annotations, expected) in cases {
        let kept = layer(annotations.clone());
        let kept: Vec<_> = kept
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(kept, expected, "{annotations}");
    }
    let many: serde_json::Map<_, _> = (0..100)
        .map(|number| (format!("{SNAPSHOT_ANNOTATION}{number}"), json!("x")))
        .collect();
    assert_eq!(layer(many.into()).len(), 32);
}
