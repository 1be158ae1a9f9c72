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
fn layer_compressions_are_known_and_foreign_layers_rejected() {
    let layer =
        |media_type: &str| Descriptor::new(media_type, Digest::sha256(b""), 0).layer_compression();
    assert_eq!(
        layer("application/vnd.oci.image.layer.v1.tar").unwrap(),
        Compression::None
    );
    assert_eq!(
        layer("application/vnd.docker.image.rootfs.diff.tar.gzip").unwrap(),
        Compression::Gzip
    );
    assert_eq!(
        layer("application/vnd.oci.image.layer.v1.tar+zstd").unwrap(),
        Compression::Zstd
    );
    for foreign in [
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    ] {
        assert!(layer(foreign).unwrap_err().to_string().contains("foreign"));
        let mut manifest = image();
        manifest["layers"] = json!([descriptor(foreign, "l")]);
        assert!(matches!(
            parse(None, &manifest),
            Err(Error::UnsupportedMediaType { .. })
        ));
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
    let bare = ImageConfig::parse("it", br#"{"config":null}"#).unwrap();
    assert_eq!(bare.config, ProcessConfig::default());
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
