//! Tests of what errors tell of the answers of registries and mirrors.

use switchyard_registry::{Client, Config, Credentials, Descriptor, Digest, Error};

use crate::server::{LAYER, Registry, certs_d, open, quick, read, resolve, text};

#[tokio::test]
async fn rate_limit_is_told_in_the_words_of_who_sets_it() {
    let said = r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"pull rate limit reached"}]}"#;
    for (body, words) in [
        (said, "TOOMANYREQUESTS: pull rate limit reached"),
        (
            r#"{"errors":[{"message":"slower\u001b[2J"}]}"#,
            "slower\\u{1b}[2J",
        ),
        // A body in no known format is not shown.
        ("<html>later</html>", "too many requests"),
        ("", "too many requests"),
    ] {
        let registry = Registry::start().await;
        registry.rule(move |_| Some(text(429, body)));
        let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::RateLimited { reason, .. } if reason == words),
            "{error:?}"
        );
        assert!(
            error.to_string().ends_with(&format!(": {words}")),
            "{error}"
        );
    }
}

/// An address at which nothing listens.
async fn closed() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

/// The text of an error with its causes.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn mirror_that_refuses_is_named_though_the_registry_cannot_be_reached() {
    for (status, words) in [
        (401, "wants credentials"),
        (403, "denied access"),
        (500, "answered 500: blocked by policy"),
        (429, "limits the rate"),
        (502, "answered 502"),
        (405, "answered 405"),
        // Also that it does not have the image: a node behind a mirror need not reach anything else.
        (404, "was not found on"),
    ] {
        let mirror = Registry::start().await;
        let body = r#"{"errors":[{"message":"blocked by policy"}]}"#;
        mirror.rule(move |_| Some(text(status, body)));
        let away = closed().await;
        let hosts = format!("server = \"http://{away}\"\n[host.\"{}\"]", mirror.url());
        let (_root, roots) = certs_d("a.example", &hosts);
        let client = Client::new(Config {
            hosts_dirs: roots,
            ..quick()
        });
        let reference = "a.example/app:v1".parse().unwrap();
        let pull = open(&client, &reference).await;
        let layer = Descriptor::new(LAYER, Digest::sha256(b"layer"), 5);
        for error in [
            pull.resolve().await.unwrap_err(),
            read(pull.blob(&layer, 0)).await.unwrap_err(),
        ] {
            let told = chain(&error);
            assert!(
                told.contains(&mirror.authority()) && told.contains(words),
                "{status}: {told}"
            );
            assert!(!told.contains(&away), "{status}: {told}");
        }
    }
}
