//! Mirrors and their settings.

use switchyard_registry::{Client, Config, Credentials, Error, Pull};

use crate::server::{LAYER, Registry, certs_d, quick, read, text};

async fn open(roots: &[std::path::PathBuf], image: &str) -> Pull {
    let client = Client::new(Config {
        hosts_dirs: roots.to_vec(),
        ..quick()
    });
    client
        .open(&image.parse().unwrap(), Credentials::Anonymous)
        .await
        .unwrap()
}

#[tokio::test]
async fn mirrors_are_tried_first_with_the_registry_name() {
    let mirror = Registry::start().await;
    let upstream = Registry::start().await;
    let image = mirror.image("v1", b"layer");
    let layer = mirror.blob(LAYER, b"layer");
    let (_root, roots) = certs_d(
        "_default",
        &format!(
            "server = \"{}\"\n[host.\"{}\"]",
            upstream.url(),
            mirror.url()
        ),
    );
    let pull = open(&roots, "a.example:5000/app:v1").await;
    let resolved = pull.resolve().await.unwrap();
    assert_eq!(
        (resolved.descriptor, resolved.host),
        (image, mirror.authority())
    );
    assert_eq!(read(pull.blob(&layer, 0)).await.unwrap(), b"layer");
    assert!(
        mirror
            .seen()
            .iter()
            .all(|seen| seen.uri.query() == Some("ns=a.example%3A5000"))
    );
    assert!(upstream.seen().is_empty());
}

#[tokio::test]
async fn failing_mirror_is_skipped_at_once() {
    for status in [404, 401, 403, 429, 500] {
        let mirror = Registry::start().await;
        let upstream = Registry::start().await;
        mirror.rule(move |_| Some(text(status, "")));
        upstream.image("v1", b"layer");
        let layer = upstream.blob(LAYER, b"layer");
        let hosts = format!(
            "server = \"{}\"\n[host.\"{}\"]",
            upstream.url(),
            mirror.url()
        );
        let (_root, roots) = certs_d(&upstream.authority(), &hosts);
        let pull = open(&roots, &format!("{}/app:v1", upstream.authority())).await;
        assert_eq!(pull.resolve().await.unwrap().host, upstream.authority());
        assert_eq!(read(pull.blob(&layer, 0)).await.unwrap(), b"layer");
        assert_eq!(mirror.seen().len(), 2, "{status}");
        assert!(
            upstream
                .seen()
                .iter()
                .all(|seen| seen.uri.query().is_none())
        );
    }
}

#[tokio::test]
async fn unreachable_or_wrong_mirror_is_skipped() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let down = listener.local_addr().unwrap();
    let liar = Registry::start().await;
    let upstream = Registry::start().await;
    // Not before: another one might get this port.
    drop(listener);
    let image = upstream.image("v1", b"layer");
    liar.put(
        &format!("/v2/app/manifests/{}", image.digest),
        "x",
        "something else",
    );
    let hosts = format!(
        "server = \"{}\"\n[host.\"http://{down}\"]\n[host.\"{}\"]\ncapabilities = [\"pull\"]",
        upstream.url(),
        liar.url()
    );
    let (_root, roots) = certs_d("a.example", &hosts);
    let pinned = open(&roots, &format!("a.example/app@{}", image.digest)).await;
    assert_eq!(pinned.resolve().await.unwrap().host, upstream.authority());
    assert_eq!(liar.seen().len(), 1);
}

#[tokio::test]
async fn last_host_error_is_reported() {
    let mirror = Registry::start().await;
    let upstream = Registry::start().await;
    mirror.rule(|_| Some(text(500, "")));
    let (_root, roots) = certs_d(
        "a.example",
        &format!(
            "server = \"{}\"\n[host.\"{}\"]",
            upstream.url(),
            mirror.url()
        ),
    );
    let error = open(&roots, "a.example/app:v1")
        .await
        .resolve()
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::NotFound { host, .. } if *host == upstream.authority()),
        "{error:?}"
    );
}

#[tokio::test]
async fn hosts_are_used_only_for_their_capabilities() {
    let pull_only = Registry::start().await;
    let upstream = Registry::start().await;
    for registry in [&pull_only, &upstream] {
        registry.image("v1", b"layer");
    }
    let layer = upstream.blob(LAYER, b"layer");
    let hosts = format!(
        "server = \"{}\"\ncapabilities = [\"resolve\"]\n[host.\"{}\"]\ncapabilities = [\"pull\"]",
        upstream.url(),
        pull_only.url()
    );
    let (_root, roots) = certs_d("a.example", &hosts);
    let pull = open(&roots, "a.example/app:v1").await;
    let resolved = pull.resolve().await.unwrap();
    assert_eq!(resolved.host, upstream.authority());
    assert_eq!(
        pull.manifest(&resolved.descriptor).await.unwrap().host,
        pull_only.authority()
    );
    assert_eq!(read(pull.blob(&layer, 0)).await.unwrap(), b"layer");
    assert_eq!(upstream.seen().len(), 1);

    let (_root, roots) = certs_d("a.example", "capabilities = [\"push\"]");
    let error = open(&roots, "a.example/app:v1")
        .await
        .resolve()
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::NotFound { .. }) && error.to_string().contains("capability"),
        "{error}"
    );
}

#[tokio::test]
async fn mirror_path_and_headers_are_used() {
    let mirror = Registry::start().await;
    let image = mirror.image("v1", b"layer");
    let bytes = serde_json::json!({ "schemaVersion": 2, "manifests": [] }).to_string();
    mirror.put(
        "/proxy/hub/app/manifests/v1",
        "application/vnd.oci.image.index.v1+json",
        bytes,
    );
    let hosts = format!(
        "server = \"{url}/proxy/hub\"\noverride_path = true\n[header]\nX-Team = [\"a\", \"b\"]\n",
        url = mirror.url()
    );
    let (_root, roots) = certs_d("a.example", &hosts);
    let resolved = open(&roots, "a.example/app:v1")
        .await
        .resolve()
        .await
        .unwrap();
    assert_ne!(resolved.descriptor.digest, image.digest);
    let seen = &mirror.seen()[0];
    assert_eq!(seen.uri, "/proxy/hub/app/manifests/v1?ns=a.example");
    assert_eq!(
        seen.headers.get_all("x-team").iter().collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert!(
        seen.header("user-agent")
            .unwrap()
            .starts_with("switchyard/")
    );
}

#[tokio::test]
async fn plain_http_host_with_tls_settings_falls_back_to_http() {
    let registry = Registry::start().await;
    let image = registry.image("v1", b"layer");
    let layer = registry.blob(LAYER, b"layer");
    let (_root, roots) = certs_d(
        "a.example",
        &format!("server = \"{}\"\nskip_verify = true", registry.url()),
    );
    let pull = open(&roots, "a.example/app:v1").await;
    assert_eq!(pull.resolve().await.unwrap().descriptor, image);
    assert_eq!(read(pull.blob(&layer, 0)).await.unwrap(), b"layer");
    // A host that is configured with TLS is never accessed without it.
    let (_root, roots) = certs_d(
        "a.example",
        &format!("server = \"https://{}\"", registry.authority()),
    );
    assert!(matches!(
        open(&roots, "a.example/app:v1").await.resolve().await,
        Err(Error::Unavailable { .. })
    ));
}

#[tokio::test]
async fn configuration_is_reread_for_each_pull() {
    let old = Registry::start().await;
    let new = Registry::start().await;
    for registry in [&old, &new] {
        registry.image("v1", b"layer");
    }
    let (root, roots) = certs_d("a.example", &format!("server = \"{}\"", old.url()));
    let client = Client::new(Config {
        hosts_dirs: roots,
        ..quick()
    });
    let reference = "a.example/app:v1".parse().unwrap();
    let host = async || {
        client
            .open(&reference, Credentials::Anonymous)
            .await
            .unwrap()
            .resolve()
            .await
            .unwrap()
            .host
    };
    assert_eq!(host().await, old.authority());
    std::fs::write(
        root.path().join("a.example/hosts.toml"),
        format!("server = \"{}\"", new.url()),
    )
    .unwrap();
    assert_eq!(host().await, new.authority());
    std::fs::write(root.path().join("a.example/hosts.toml"), "server = 1").unwrap();
    let error = client
        .open(&reference, Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { .. }), "{error:?}");
}

#[tokio::test]
async fn configured_proxy_is_used() {
    let proxy = Registry::start().await;
    let body = r#"{"errors":[{"message":"through the proxy"}]}"#;
    proxy.rule(move |seen| (seen.uri.host() == Some("a.invalid")).then(|| text(403, body)));
    let hosts = format!("server = \"http://a.invalid\"\nproxy = \"{}\"", proxy.url());
    let (_root, roots) = certs_d("a.invalid", &hosts);
    let error = open(&roots, "a.invalid/app:v1")
        .await
        .resolve()
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Denied { reason, .. } if reason == "through the proxy"),
        "{error:?}"
    );
}
