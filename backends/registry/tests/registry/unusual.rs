//! Images as old and odd tools make them, and as registries serve them.

use serde_json::{Value, json};
use switchyard_registry::{Credentials, Error, Platform, Platforms};

use crate::server::{
    CONFIG, INDEX, LAYER, MANIFEST, Registry, client, open, read, resolve, text, wire,
};

const FOREIGN: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
const DOCKER: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// A manifest with these layers.
fn manifest(registry: &Registry, layers: Value) -> Value {
    let config = registry.blob(CONFIG, br#"{"os":"linux"}"#);
    json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": wire(&config), "layers": layers })
}

#[tokio::test]
async fn unusual_images_are_pulled() {
    let registry = Registry::start().await;
    let layer = wire(&registry.blob(LAYER, b"layer"));
    let foreign = wire(&registry.blob(FOREIGN, b"base of another system"));
    let mut bare = manifest(&registry, Value::Null);
    bare.as_object_mut().unwrap().remove("layers");
    let here = Platforms::only(&Platform::linux("arm64", None));
    // The header, the document, and the contents of its layers.
    let cases: [(&str, Value, &[&[u8]]); 5] = [
        (MANIFEST, bare, &[]),
        (MANIFEST, manifest(&registry, Value::Null), &[]),
        (DOCKER, manifest(&registry, json!([layer])), &[b"layer"]),
        (
            MANIFEST,
            manifest(&registry, json!([foreign, layer])),
            &[b"base of another system", b"layer"],
        ),
        (
            "text/plain",
            manifest(&registry, json!([layer])),
            &[b"layer"],
        ),
    ];
    for (header, document, layers) in cases {
        registry.document(header, "v1", &document);
        let pull = open(&client(), &registry.reference("app:v1")).await;
        let image = pull.image(pull.resolve().await.unwrap(), &here).await;
        let image = image.unwrap();
        assert_eq!(image.promised(), None);
        let (config, _) = pull.config(&image.manifest).await.unwrap();
        assert!(here.accept(&config.platform), "{document}");
        let mut contents = Vec::new();
        for layer in &image.manifest.layers {
            contents.push(read(pull.blob(layer, 0)).await.unwrap());
        }
        assert_eq!(contents, layers, "{document} as {header}");
    }
}

#[tokio::test]
async fn platform_of_an_index_is_promised_for_what_is_below_it() {
    let registry = Registry::start().await;
    let image = registry.image("only", b"layer");
    let mut entry = wire(&image);
    // The configuration says amd64.
    entry["platform"] = json!({ "os": "linux", "architecture": "arm64" });
    let list = |entries: Value| json!({ "schemaVersion": 2, "manifests": entries });
    let promised = registry.document(INDEX, "promised", &list(json!([entry])));
    registry.document(INDEX, "unsaid", &list(json!([wire(&image)])));
    // An index that names the platform of another one.
    let mut outer = wire(&promised);
    outer["platform"] = json!({ "os": "linux", "architecture": "arm64" });
    registry.document(INDEX, "nested", &list(json!([outer])));
    let here = Platforms::only(&Platform::linux("arm64", None));
    for (tag, is_promised) in [
        ("promised", true),
        ("nested", true),
        ("unsaid", false),
        ("only", false),
    ] {
        let pull = open(&client(), &registry.reference(&format!("app:{tag}"))).await;
        let found = pull.image(pull.resolve().await.unwrap(), &here).await;
        let found = found.unwrap();
        assert_eq!(found.descriptor.digest, image.digest, "{tag}");
        let platform = found.promised().map(ToString::to_string);
        let expected = is_promised.then(|| "linux/arm64".to_owned());
        assert_eq!(platform, expected, "{tag}");
    }
}

#[tokio::test]
async fn layer_that_the_registry_may_not_distribute_is_asked_of_nobody_else() {
    let registry = Registry::start().await;
    let elsewhere = Registry::start().await;
    elsewhere.blob(FOREIGN, b"base");
    let mut layer = wire(&registry.blob(FOREIGN, b"base"));
    layer["urls"] = json!([format!("{}/base", elsewhere.url())]);
    registry.rule(|seen| seen.is_blob().then(|| text(404, "")));
    let document = manifest(&registry, json!([layer]));
    registry.document(MANIFEST, "v1", &document);
    let resolved = resolve(&registry.reference("app:v1"), Credentials::Anonymous).await;
    let pull = open(&client(), &registry.reference("app:v1")).await;
    let here = Platforms::only(&Platform::linux("arm64", None));
    let image = pull.image(resolved.unwrap(), &here).await.unwrap();
    let error = read(pull.blob(&image.manifest.layers[0], 0))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::NotFound { what, .. } if what.contains("may not be distributed")),
        "{error:?}"
    );
    assert!(elsewhere.seen().is_empty());
}
