//! Answers of a hostile registry: errors, and manifests and configurations that say what it likes.

use super::*;

pub(super) fn answer(status: u16, headers: &[(&str, &str)], body: &[u8]) -> RegistryFault {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    RegistryFault::Answer(status, headers, body.to_vec())
}

pub(super) fn unique(seed: u64) -> Image {
    busybox().layer(random_layer(100_000, 7000 + seed)).build()
}

/// A manifest with this configuration and these layers.
pub(super) fn manifest(config: &Value, layers: &[Value]) -> Value {
    json!({ "schemaVersion": 2, "config": config, "layers": layers })
}

/// The same image with a configuration that has `hostile` after the first `at`.
pub(super) fn with_config(image: &Image, at: &str, hostile: &str) -> Image {
    let own = String::from_utf8(image.config.bytes.clone()).expect("it is JSON");
    let config = own.replacen(at, &format!("{at}{hostile}"), 1);
    let config = Blob::new(&image.config.media_type, config.into_bytes());
    let mut document: Value = serde_json::from_slice(&image.manifest.bytes).expect("it is JSON");
    document["config"] = config.descriptor();
    let manifest = Blob::new(
        &image.manifest.media_type,
        document.to_string().into_bytes(),
    );
    Image {
        config,
        manifest,
        ..image.clone()
    }
}

/// A layer that does not exist.
pub(super) fn layer(size: Value) -> Value {
    let kind = "application/vnd.oci.image.layer.v1.tar";
    json!({ "mediaType": kind, "digest": format!("sha256:{}", "5".repeat(64)), "size": size })
}
