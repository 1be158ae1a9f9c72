//! Malicious registries: to which URLs they may send this client, what of the responses is revealed, and the
//! limits on what they send.

use std::time::Duration;

use futures::StreamExt as _;
use serde_json::{Value, json};
use switchyard_registry::{
    Client, Config, Credentials, Descriptor, Digest, Error, Limits, Manifest, Platform, Platforms,
};

use crate::server::{
    CONFIG, INDEX, LAYER, MANIFEST, Registry, certs_d, client, open, quick, read, resolve, text,
    wire, with_header,
};

/// An error with all its causes.
fn report(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn link_local_redirects_are_rejected_without_retries() {
    for target in [
        "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
        "http://2852039166/computeMetadata/v1/",
        "//[fe80::1]/",
        "http://[::ffff:169.254.169.254]:80/",
        "http://user:pass@169.254.170.2/v2/credentials",
    ] {
        let registry = Registry::start().await;
        registry.rule(move |_| Some(with_header(307, "location", target)));
        let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Protocol { reason, .. } if reason.contains("link-local")),
            "{target}: {error:?}"
        );
        assert_eq!(registry.seen().len(), 1, "{target}");
        let pull = open(&client(), &registry.reference("app:v1")).await;
        let blob = pull.blob(&Descriptor::new(LAYER, Digest::sha256(b"x"), 1), 0);
        let error = read(blob).await.unwrap_err();
        assert!(
            matches!(&error, Error::Protocol { .. }),
            "{target}: {error:?}"
        );
    }
}

#[tokio::test]
async fn link_local_token_service_is_rejected() {
    for realm in [
        "http://169.254.169.254/latest/api/token",
        "http://[fe80::a9fe]/token",
    ] {
        let registry = Registry::start().await;
        let challenge = format!("Bearer realm=\"{realm}\"");
        registry.rule(move |_| Some(with_header(401, "www-authenticate", &challenge)));
        let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Protocol { reason, .. } if reason.contains("link-local")),
            "{realm}: {error:?}"
        );
    }
}

#[tokio::test]
async fn configured_link_local_host_may_redirect_only_to_itself() {
    // Requests to the link-local host would arrive at the proxy.
    let proxy = Registry::start().await;
    proxy.image("v1", b"layer");
    let hosts = format!(
        "server = \"http://169.254.1.1:5000\"\nproxy = \"{}\"",
        proxy.url()
    );
    let (_root, roots) = certs_d("registry.example", &hosts);
    let client = Client::new(Config {
        hosts_dirs: roots,
        ..quick()
    });
    proxy.first(
        1,
        |seen| seen.path().ends_with("/v1"),
        |_| with_header(307, "location", "/v2/app/manifests/v1?again"),
    );
    let pull = open(&client, &"registry.example/app:v1".parse().unwrap()).await;
    assert_eq!(pull.resolve().await.unwrap().host, "169.254.1.1:5000");
    proxy.rule(|_| {
        Some(with_header(
            307,
            "location",
            "http://169.254.1.1:80/latest/meta-data",
        ))
    });
    let error = pull.resolve().await.unwrap_err();
    assert!(error.to_string().contains("link-local"), "{error:?}");
    assert!(
        proxy
            .seen()
            .iter()
            .all(|seen| seen.uri.port_u16() == Some(5000)),
        "{:?}",
        proxy.seen()
    );
}

#[tokio::test]
async fn redirect_target_body_is_not_shown() {
    let secret = "AKIAIOSFODNN7EXAMPLE";
    let bodies = [
        format!(r#"{{"errors":[{{"code":"DENIED","message":"{secret}"}}]}}"#),
        format!(r#"{{"schemaVersion":"{secret}"}}"#),
        format!(r#"{{"schemaVersion":2,"mediaType":"{secret}"}}"#),
        format!(r#"{{"schemaVersion":1,"mediaType":"{secret}","fsLayers":[]}}"#),
        format!(
            r#"{{"schemaVersion":2,"mediaType":"{INDEX}","manifests":[{{"mediaType":"{secret}"}}]}}"#
        ),
        secret.to_owned(),
    ];
    for body in bodies {
        for status in [200, 400, 401, 403, 404, 418, 429, 500] {
            let registry = Registry::start().await;
            let target = Registry::start().await;
            let url = target.url();
            registry.rule(move |_| Some(with_header(307, "location", &format!("{url}/internal"))));
            let answer = body.clone();
            target.rule(move |_| Some(text(status, &answer)));
            let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
                .await
                .unwrap_err();
            assert!(
                !report(&error).contains(secret),
                "{status} {body}: {}",
                report(&error)
            );
        }
    }
}

#[tokio::test]
async fn registry_errors_show_only_codes_and_messages() {
    let registry = Registry::start().await;
    let message = format!("no\u{1b}]0;title\u{7}{}", "x".repeat(1000));
    let body = json!({ "errors": [{ "code": "DENIED", "message": message, "detail": "hidden" }], "details": "hidden" });
    registry.rule(move |_| Some(text(403, &body.to_string())));
    let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    let Error::Denied { reason, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(
        reason.starts_with("DENIED: no\\u{1b}]0;title\\u{7}xxx") && reason.len() == 300,
        "{reason}"
    );
    assert!(!reason.contains("hidden"));
    let other = Registry::start().await;
    other.rule(|_| Some(text(403, "<html>internal page</html>")));
    let error = resolve(&other.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Denied { reason, .. } if reason == "forbidden"),
        "{error:?}"
    );
}

#[tokio::test]
async fn endless_error_body_is_read_up_to_a_limit() {
    let registry = Registry::start().await;
    registry.rule(|_| {
        let piece = Ok::<_, std::io::Error>(bytes::Bytes::from(vec![b' '; 64 << 10]));
        let body = axum::body::Body::from_stream(futures::stream::repeat_with(move || {
            Ok::<_, std::io::Error>(piece.as_ref().unwrap().clone())
        }));
        Some(
            axum::response::Response::builder()
                .status(403)
                .body(body)
                .unwrap(),
        )
    });
    let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Denied { reason, .. } if reason == "forbidden"),
        "{error:?}"
    );
}

#[tokio::test]
async fn endless_documents_and_tokens_are_rejected_at_their_limit() {
    let endless = || {
        let stream = futures::stream::repeat_with(|| {
            Ok::<_, std::io::Error>(bytes::Bytes::from_static(&[b' '; 16 << 10]))
        });
        axum::response::Response::new(axum::body::Body::from_stream(stream))
    };
    let registry = Registry::start().await;
    registry.rule(move |_| Some(endless()));
    let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    let shown = error.to_string();
    assert!(
        matches!(error, Error::TooLarge { .. }) && shown.contains("images.max_manifest_bytes"),
        "{shown}"
    );

    let registry = Registry::start().await;
    let url = registry.url();
    registry.rule(move |seen| {
        Some(if seen.path() == "/token" {
            endless()
        } else {
            with_header(
                401,
                "www-authenticate",
                &format!("Bearer realm=\"{url}/token\""),
            )
        })
    });
    let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
}

#[tokio::test]
async fn token_unfit_for_a_header_is_rejected() {
    for token in [
        "x".repeat((64 << 10) + 1),
        "a\r\nX-Evil: 1".to_owned(),
        String::new(),
    ] {
        let registry = Registry::start().await;
        let url = registry.url();
        let answer = json!({ "token": token }).to_string();
        registry.rule(move |seen| {
            Some(if seen.path() == "/token" {
                text(200, &answer)
            } else {
                with_header(
                    401,
                    "www-authenticate",
                    &format!("Bearer realm=\"{url}/token\""),
                )
            })
        });
        let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Protocol { reason, .. } if reason.contains("no usable token")),
            "{error:?}"
        );
    }
}

/// A manifest with these layers, as `app:tag` of the registry.
async fn with_layers(
    registry: &Registry,
    tag: &str,
    layers: Vec<Value>,
) -> Result<Manifest, Error> {
    let config = registry.blob(CONFIG, b"{}");
    let manifest = json!({ "schemaVersion": 2, "config": wire(&config), "layers": layers });
    registry.document(MANIFEST, tag, &manifest);
    let limits = Limits {
        image_bytes: Some(1 << 40),
        ..Limits::default()
    };
    let pull = open(
        &Client::new(Config { limits, ..quick() }),
        &registry.reference(&format!("app:{tag}")),
    )
    .await;
    let platforms = Platforms::only(&Platform::linux("amd64", None));
    let image = pull.image(pull.resolve().await?, &platforms).await?;
    Ok(Manifest::Image(image.manifest))
}

#[tokio::test]
async fn too_many_layers_are_rejected_with_limit_and_key() {
    let registry = Registry::start().await;
    let layer = json!({ "mediaType": LAYER, "digest": Digest::sha256(b"x"), "size": 1 });
    with_layers(&registry, "most", vec![layer.clone(); 500])
        .await
        .unwrap();
    let error = with_layers(&registry, "many", vec![layer; 20_000])
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("has 20000 layers, more than the limit of 500 (images.max_layers)"),
        "{error}"
    );
}

#[tokio::test]
async fn impossible_sizes_are_rejected_without_overflow() {
    let registry = Registry::start().await;
    let layer =
        |size: Value| json!({ "mediaType": LAYER, "digest": Digest::sha256(b"x"), "size": size });
    for (tag, size) in [
        ("negative", json!(-1)),
        ("least", json!(i64::MIN)),
        ("unsigned", json!(u64::MAX)),
        ("over", json!(9_223_372_036_854_775_808_u64)),
        ("fraction", json!(1.5)),
        ("text", json!("1")),
        ("none", Value::Null),
    ] {
        let error = with_layers(&registry, tag, vec![layer(size)])
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Protocol { reason, .. } if reason == "is no valid manifest"),
            "{tag}: {error:?}"
        );
    }
    let largest = layer(json!(i64::MAX));
    let error = with_layers(&registry, "sum", vec![largest; 3])
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains(&format!(
            "has {} bytes of layers, more than the limit",
            u64::MAX
        )),
        "{error}"
    );
}

#[tokio::test]
async fn largest_index_is_searched_and_its_platform_list_truncated() {
    let registry = Registry::start().await;
    let digest = Digest::sha256(b"x");
    let entries: Vec<Value> = (0..20_000)
        .map(|n| json!({ "mediaType": MANIFEST, "digest": digest, "size": 1, "platform": { "os": format!("{n}\u{1b}") } }))
        .collect();
    registry.document(
        INDEX,
        "v1",
        &json!({ "schemaVersion": 2, "manifests": entries }),
    );
    let pull = open(&client(), &registry.reference("app:v1")).await;
    let platforms = Platforms::only(&Platform::linux("amd64", None));
    let error = pull
        .image(pull.resolve().await.unwrap(), &platforms)
        .await
        .unwrap_err();
    let shown = error.to_string();
    assert!(
        shown.ends_with("and 19984 more") && shown.len() < 700,
        "{shown}"
    );
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}

#[tokio::test]
async fn any_redirect_chain_terminates() {
    for location in [
        "",
        "\u{e9}\u{0}".trim_end_matches('\u{0}'),
        "http://",
        "http:///x",
        "https://[",
        "ftp://a/b",
        "javascript:alert(1)",
        "unix:///run/switchyard/cri.sock",
        "http://a b/",
        &format!("/{}", "a".repeat(20_000)),
        &format!("http://{}/", "a.".repeat(4000)),
    ] {
        let registry = Registry::start().await;
        let sent = location.to_owned();
        registry.rule(move |_| {
            let value = axum::http::HeaderValue::from_bytes(sent.as_bytes()).unwrap();
            let mut response = text(302, "");
            response.headers_mut().insert("location", value);
            Some(response)
        });
        let client = Client::new(Config {
            retries: 0,
            ..quick()
        });
        let error = open(&client, &registry.reference("app:v1"))
            .await
            .resolve()
            .await
            .unwrap_err();
        assert!(
            report(&error).len() < 1500,
            "{location}: {}",
            report(&error)
        );
        assert!(registry.seen().len() <= 11, "{location}");
    }
}

#[tokio::test]
async fn trickling_body_ends_at_its_deadline() {
    let registry = Registry::start().await;
    registry.rule(|_| {
        let drops = futures::stream::repeat_with(|| {
            Ok::<_, std::io::Error>(bytes::Bytes::from_static(b" "))
        });
        let slow = drops.then(async |drop| {
            tokio::time::sleep(Duration::from_secs(20)).await;
            drop
        });
        Some(axum::response::Response::new(
            axum::body::Body::from_stream(slow),
        ))
    });
    let client = Client::new(Config {
        retries: 0,
        ..quick()
    });
    let pull = open(&client, &registry.reference("app:v1")).await;
    // The connection is made in real time; from then on paused time makes timers fire as soon as all tasks
    // are idle.
    let connected = async {
        while registry.seen().is_empty() {
            tokio::task::yield_now().await;
        }
        tokio::time::pause();
        std::future::pending::<()>().await;
    };
    let error = tokio::select! {
        result = pull.resolve() => result.unwrap_err(),
        () = connected => unreachable!("it never ends"),
    };
    assert!(
        report(&error).contains("its body did not end within 300 s"),
        "{}",
        report(&error)
    );
}
