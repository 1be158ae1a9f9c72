//! Images as old and odd tools make them, and as registries serve them.

use serde_json::{Value, json};
use switchyard_registry::{Credentials, Error, Platform, Platforms};

use crate::server::{
    CONFIG, INDEX, LAYER, MANIFEST, Registry, client, open, read, resolve, text, wire, with_header,
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

/// A registry that leads to this one, whose images anybody may pull who has a token of its service. That answers so.
async fn other_name_of(registry: &Registry, status: u16, service: (u16, &'static str)) -> Registry {
    let challenge = format!(
        r#"Bearer realm="{}/token",service="reg",scope="repository:app:pull""#,
        registry.url()
    );
    registry.rule(move |seen| {
        if seen.path() == "/token" {
            Some(text(service.0, service.1))
        } else if seen.header("authorization") == Some("Bearer granted") {
            None
        } else {
            Some(with_header(401, "www-authenticate", &challenge))
        }
    });
    let other = Registry::start().await;
    let url = registry.url();
    other.rule(move |seen| {
        let location = format!("{url}{}", seen.path());
        Some(with_header(status, "location", &location))
    });
    other
}

#[tokio::test]
async fn registry_may_be_another_name_of_one_that_wants_a_token() {
    let user = Credentials::Basic {
        username: "user".into(),
        password: "pass".into(),
    };
    let token = Credentials::IdentityToken("secret".into());
    for (status, credentials) in [
        (307, Credentials::Anonymous),
        (301, Credentials::Anonymous),
        (302, user.clone()),
        (308, user),
        (307, token),
    ] {
        let registry = Registry::start().await;
        registry.image("v1", b"layer");
        let granted = (200, r#"{"token":"granted","expires_in":300}"#);
        let other = other_name_of(&registry, status, granted).await;
        let pull = client()
            .open(&other.reference("app:v1"), credentials)
            .await
            .unwrap();
        let resolved = pull.resolve().await.unwrap();
        let image = pull
            .image(resolved, &Platforms::of_this_machine())
            .await
            .unwrap();
        let layer = read(pull.blob(&image.manifest.layers[0], 0)).await;
        assert_eq!(layer.unwrap(), b"layer", "{status}");
        let seen = registry.seen();
        let is_token = |path: &str| path == "/token";
        let tokens = seen.iter().filter(|seen| is_token(seen.path())).count();
        assert_eq!(tokens, 1, "{status}: the token is kept");
        for request in seen {
            let sent = request.header("authorization");
            assert!(matches!(sent, None | Some("Bearer granted")), "{request:?}");
            assert!(!request.uri.to_string().contains("user"), "{request:?}");
        }
        // The other name gets no token that is not its own.
        let sent = other.seen();
        assert!(
            sent.iter()
                .all(|seen| seen.header("authorization").is_none())
        );
    }
}

#[tokio::test]
async fn nothing_is_shown_of_the_token_service_of_another_registry() {
    let secret = r#"{"errors":[{"message":"AKIASECRET"}],"token":"AKIASECRET"}"#;
    for (status, body, is_transient) in [
        (200, secret, false),
        (200, "AKIASECRET", false),
        (401, secret, false),
        (403, secret, false),
        (404, secret, false),
        (429, secret, true),
        (503, secret, true),
    ] {
        let registry = Registry::start().await;
        registry.image("v1", b"layer");
        let other = other_name_of(&registry, 307, (status, body)).await;
        let error = resolve(&other.reference("app:v1"), Credentials::Anonymous)
            .await
            .unwrap_err();
        let told = format!("{error} {error:?}");
        assert!(!told.contains("AKIASECRET"), "{status}: {told}");
        assert!(told.contains(&registry.authority()), "{status}: {told}");
        assert_eq!(error.is_transient(), is_transient, "{status}: {told}");
        assert!(
            is_transient || matches!(error, Error::Unauthorized { .. }),
            "{told}"
        );
    }
}
