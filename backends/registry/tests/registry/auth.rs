//! Challenges, tokens, and who must never see credentials.

use axum::response::Response;
use switchyard_registry::{Client, Config, Credentials, Error};

use crate::server::{
    MANIFEST, Registry, Seen, certs_d, client, quick, read, resolve, text, with_header,
};

const BASIC: &str = "Basic dXNlcjpwYXNz";

fn user() -> Credentials {
    Credentials::Basic {
        username: "user".into(),
        password: "pass".into(),
    }
}

fn unauthorized(challenge: &str) -> Response {
    with_header(401, "www-authenticate", challenge)
}

/// Makes `registry` require a token, which `service` gives to requests that `may` accepts.
fn want_token(
    registry: &Registry,
    service: &Registry,
    may: impl Fn(&Seen) -> bool + Send + 'static,
) {
    let challenge = format!(
        r#"Bearer realm="{}/token",service="reg",scope="repository:app:pull""#,
        service.url()
    );
    registry.rule(move |seen| {
        if seen.path() == "/token" || seen.header("authorization") == Some("Bearer granted") {
            None
        } else {
            Some(unauthorized(&challenge))
        }
    });
    service.rule(move |seen| {
        (seen.path() == "/token").then(|| {
            if may(seen) {
                text(200, r#"{"token":"granted","expires_in":300}"#)
            } else {
                text(401, "{}")
            }
        })
    });
}

fn tokens(registry: &Registry) -> Vec<Seen> {
    registry
        .seen()
        .into_iter()
        .filter(|seen| seen.path() == "/token")
        .collect()
}

#[tokio::test]
async fn basic_credentials_are_sent_only_after_a_challenge() {
    let registry = Registry::start().await;
    registry.image("v1", b"layer");
    registry.rule(|seen| {
        (seen.header("authorization") != Some(BASIC)).then(|| unauthorized("Basic realm=\"x\""))
    });
    let pull = client()
        .open(&registry.reference("app:v1"), user())
        .await
        .unwrap();
    pull.resolve().await.unwrap();
    pull.resolve().await.unwrap();
    let headers: Vec<bool> = registry
        .seen()
        .iter()
        .map(|seen| seen.header("authorization").is_some())
        .collect();
    assert_eq!(headers, [false, true, true]);
}

#[tokio::test]
async fn wrong_or_missing_credentials_are_unauthorized() {
    let registry = Registry::start().await;
    registry.image("v1", b"layer");
    registry.rule(|_| Some(unauthorized("Basic realm=\"x\"")));
    for credentials in [
        Credentials::Anonymous,
        user(),
        Credentials::RegistryToken("t".into()),
    ] {
        let has_some = credentials != Credentials::Anonymous;
        let error = resolve(&registry.reference("app:v1"), credentials)
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::Unauthorized { given, .. } if given == has_some),
            "{error:?}"
        );
    }
    // Never more than one answer to a challenge.
    assert_eq!(registry.seen().len(), 4);
}

#[tokio::test]
async fn anonymous_tokens_are_fetched_once_and_used_for_everything() {
    let registry = Registry::start().await;
    registry.image("v1", b"layer");
    want_token(&registry, &registry, |_| true);
    let pull = client()
        .open(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap();
    let resolved = pull.resolve().await.unwrap();
    let again = pull.manifest(&resolved.descriptor).await.unwrap();
    assert_eq!(again, resolved);
    let tokens = tokens(&registry);
    assert_eq!(tokens.len(), 1);
    assert_eq!(
        tokens[0].uri.query(),
        Some("service=reg&scope=repository%3Aapp%3Apull")
    );
    assert_eq!(tokens[0].header("authorization"), None);
}

#[tokio::test]
async fn credentials_go_to_the_token_service_and_never_to_the_registry() {
    let registry = Registry::start().await;
    let service = Registry::start().await;
    registry.image("v1", b"layer");
    want_token(&registry, &service, |seen| {
        seen.header("authorization") == Some(BASIC)
    });
    resolve(&registry.reference("app:v1"), user())
        .await
        .unwrap();
    assert!(
        registry
            .seen()
            .iter()
            .all(|seen| seen.header("authorization") != Some(BASIC))
    );
    let refused = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, Error::Unauthorized { host, given: false, .. } if *host == service.authority()),
        "{refused:?}"
    );
}

#[tokio::test]
async fn expired_and_rejected_tokens_are_replaced() {
    let registry = Registry::start().await;
    registry.image("v1", b"layer");
    let url = registry.url();
    let mut given = 0;
    // Tokens are valid until the next one is given, and say that they live for an hour.
    let mut valid = String::new();
    let mut uses = 0;
    registry.rule(move |seen| {
        if seen.path() == "/token" {
            given += 1;
            uses = 0;
            valid = format!("Bearer t{given}");
            return Some(text(
                200,
                &format!(r#"{{"access_token":"t{given}","expires_in":3600}}"#),
            ));
        }
        uses += 1;
        let ok = seen.header("authorization") == Some(&valid) && uses <= 2;
        (!ok).then(|| unauthorized(&format!("Bearer realm=\"{url}/token\"")))
    });
    let pull = client()
        .open(&registry.reference("app:v1"), Credentials::Anonymous)
        .await
        .unwrap();
    for _ in 0..6 {
        pull.resolve().await.unwrap();
    }
    let tokens = tokens(&registry);
    assert_eq!(tokens.len(), 3, "each token served two requests");
    assert_eq!(
        tokens[0].uri.query(),
        Some("scope=repository%3Aapp%3Apull"),
        "the default scope"
    );
}

#[tokio::test]
async fn tokens_are_not_shared_between_users() {
    let registry = Registry::start().await;
    registry.image("v1", b"layer");
    want_token(&registry, &registry, |seen| {
        seen.header("authorization") == Some(BASIC)
    });
    let client = client();
    let reference = registry.reference("app:v1");
    client
        .open(&reference, user())
        .await
        .unwrap()
        .resolve()
        .await
        .unwrap();
    let stranger = client
        .open(&reference, Credentials::Anonymous)
        .await
        .unwrap();
    assert!(matches!(
        stranger.resolve().await,
        Err(Error::Unauthorized { .. })
    ));
}

#[tokio::test]
async fn identity_tokens_are_exchanged_by_post_and_by_get_where_post_is_unknown() {
    for post_works in [true, false] {
        let registry = Registry::start().await;
        registry.image("v1", b"layer");
        if !post_works {
            registry.rule(|seen| (seen.method == "POST").then(|| text(405, "")));
        }
        want_token(&registry, &registry, |seen| {
            // The name is empty, the token is the password.
            seen.body.contains("refresh_token=r%2B1")
                || seen.header("authorization") == Some("Basic OnIrMQ==")
        });
        resolve(
            &registry.reference("app:v1"),
            Credentials::IdentityToken("r+1".into()),
        )
        .await
        .unwrap();
        let seen = tokens(&registry);
        assert_eq!(seen.len(), if post_works { 1 } else { 2 });
        assert!(
            seen[0].body.contains("grant_type=refresh_token")
                && seen[0].body.contains("service=reg")
        );
    }
}

#[tokio::test]
async fn registry_tokens_are_sent_as_they_are() {
    let registry = Registry::start().await;
    registry.image("v1", b"layer");
    want_token(&registry, &registry, |_| false);
    resolve(
        &registry.reference("app:v1"),
        Credentials::RegistryToken("granted".into()),
    )
    .await
    .unwrap();
    assert!(tokens(&registry).is_empty());
}

#[tokio::test]
async fn token_service_failures_are_distinguished() {
    for (status, check) in [
        (
            503,
            (|error| matches!(error, Error::Unavailable { .. })) as fn(&Error) -> bool,
        ),
        (429, |error| matches!(error, Error::RateLimited { .. })),
        (403, |error| matches!(error, Error::Unauthorized { .. })),
        (200, |error| matches!(error, Error::Protocol { .. })),
    ] {
        let registry = Registry::start().await;
        registry.rule(move |seen| (seen.path() == "/token").then(|| text(status, "{}")));
        want_token(&registry, &registry, |_| true);
        let error = resolve(&registry.reference("app:v1"), user())
            .await
            .unwrap_err();
        assert!(check(&error), "{status}: {error:?}");
    }
}

#[tokio::test]
async fn redirects_to_another_host_carry_no_credentials_and_no_headers() {
    let registry = Registry::start().await;
    let storage = Registry::start().await;
    let layer = storage.blob("x", b"the layer");
    registry.image("v1", b"the layer");
    let target = format!(
        "{}/v2/app/blobs/{}?signature=s",
        storage.url(),
        layer.digest
    );
    registry.rule(|seen| {
        (seen.header("authorization") != Some(BASIC)).then(|| unauthorized("Basic realm=\"x\""))
    });
    registry.rule(move |seen| {
        seen.is_blob()
            .then(|| with_header(307, "location", &target))
    });
    let (_root, roots) = certs_d(
        &registry.authority(),
        &format!(
            "server = \"{}\"\n[header]\nx-secret = \"s\"",
            registry.url()
        ),
    );
    let client = Client::new(Config {
        hosts_dirs: roots,
        ..quick()
    });
    let pull = client
        .open(&registry.reference("app:v1"), user())
        .await
        .unwrap();
    assert_eq!(read(pull.blob(&layer, 0)).await.unwrap(), b"the layer");
    let sent = registry.seen();
    assert!(
        sent.iter()
            .any(|seen| seen.header("authorization") == Some(BASIC))
    );
    assert!(sent.iter().all(|seen| seen.header("x-secret") == Some("s")));
    let [seen] = storage.seen().try_into().unwrap();
    assert_eq!(
        (seen.header("authorization"), seen.header("x-secret")),
        (None, None)
    );
    assert_eq!(seen.uri.query(), Some("signature=s"));
}

#[tokio::test]
async fn redirect_target_gets_no_credentials_however_it_asks() {
    let registry = Registry::start().await;
    let thief = Registry::start().await;
    let url = thief.url();
    registry.rule(move |_| Some(with_header(307, "location", &format!("{url}/x"))));
    let realm = thief.url();
    thief.rule(move |_| {
        Some(unauthorized(&format!(
            "Basic realm=\"x\", Bearer realm=\"{realm}/token\""
        )))
    });
    let error = resolve(&registry.reference("app:v1"), user())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Unauthorized { host, .. } if *host == thief.authority()),
        "{error:?}"
    );
    let sent = thief.seen();
    assert!(
        sent.iter()
            .all(|seen| seen.header("authorization").is_none())
    );
    // It was asked for a token, as one for anybody.
    let paths: Vec<&str> = sent.iter().map(Seen::path).collect();
    assert_eq!(paths, ["/x", "/token"]);
    assert!(
        matches!(&error, Error::Unauthorized { given: false, .. }),
        "{error:?}"
    );
    assert!(!sent[1].uri.to_string().contains("user"), "{sent:?}");
}

#[tokio::test]
async fn mirrors_never_see_the_credentials_of_the_registry() {
    let registry = Registry::start().await;
    let mirror = Registry::start().await;
    registry.image("v1", b"layer");
    registry.rule(|seen| {
        (seen.header("authorization") != Some(BASIC)).then(|| unauthorized("Basic realm=\"x\""))
    });
    let realm = mirror.url();
    mirror.rule(move |_| {
        Some(unauthorized(&format!(
            "Basic realm=\"x\", Bearer realm=\"{realm}/token\""
        )))
    });
    let hosts = format!(
        "server = \"{}\"\n[host.\"{}\"]",
        registry.url(),
        mirror.url()
    );
    let (_root, roots) = certs_d(&registry.authority(), &hosts);
    let client = Client::new(Config {
        hosts_dirs: roots,
        ..quick()
    });
    let pull = client
        .open(&registry.reference("app:v1"), user())
        .await
        .unwrap();
    assert_eq!(pull.resolve().await.unwrap().host, registry.authority());
    assert!(!mirror.seen().is_empty());
    assert!(mirror.seen().iter().all(
        |seen| seen.header("authorization").is_none() && !seen.uri.to_string().contains("user")
    ));
}

#[tokio::test]
async fn mirror_gets_credentials_only_where_the_configuration_names_both() {
    let mirror = Registry::start().await;
    let service = Registry::start().await;
    mirror.image("v1", b"layer");
    want_token(&mirror, &service, |seen| {
        seen.header("authorization") == Some(BASIC)
    });
    let authority = mirror.authority();
    let own = authority.as_str();
    // The host and the registry that are named, the registry of the image, and whether the mirror gets its credentials.
    for (host, registry, image, is_sent) in [
        (own, "a.example", "a.example", true),
        (own, "A.example", "a.example", true),
        (own, "docker.io", "docker.io", true),
        (own, "index.docker.io", "docker.io", true),
        (own, "a.example:5000", "a.example:5000", true),
        (own, "b.example", "a.example", false),
        (own, "a.example:5000", "a.example", false),
        ("other.example", "a.example", "a.example", false),
        ("a.example", "a.example", "a.example", false),
    ] {
        let hosts = format!("server = \"{}\"", mirror.url());
        let (_root, roots) = certs_d("_default", &hosts);
        let client = Client::new(Config {
            hosts_dirs: roots,
            credentials_of: [(host.to_owned(), registry.to_owned())].into(),
            ..quick()
        });
        let reference = format!("{image}/app:v1").parse().unwrap();
        // An image without a path of Docker Hub is below library.
        if image == "docker.io" {
            let stored = mirror.image("v1", b"layer");
            let bytes = mirror.stored(&format!("/v2/app/manifests/{}", stored.digest));
            mirror.put("/v2/library/app/manifests/v1", MANIFEST, bytes);
        }
        let pull = client.open(&reference, user()).await.unwrap();
        let resolved = pull.resolve().await;
        assert_eq!(
            resolved.is_ok(),
            is_sent,
            "{image} of {host}, which has {registry}'s"
        );
        let last = tokens(&service).pop().unwrap();
        assert_eq!(
            last.header("authorization").is_some(),
            is_sent,
            "{host}, {registry}"
        );
    }
    assert!(
        mirror
            .seen()
            .iter()
            .all(|seen| seen.header("authorization") != Some(BASIC))
    );
}
