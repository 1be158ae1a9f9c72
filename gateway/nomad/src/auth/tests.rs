//! Tests of where credentials are looked up, and in which order.

use std::sync::mpsc;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use switchyard_core::ErrorKind;

use super::*;

const BASIC: &str = r#"{"auths":{"https://index.docker.io/v1/":{"auth":"dXNlcjpwYXNz"},"reg.example:5000":{"auth":"YTpi"}}}"#;

fn basic(username: &str, password: &str) -> Credentials {
    Credentials::Basic {
        username: username.into(),
        password: password.into(),
    }
}

fn image_request(reference: &str) -> ImageRequest {
    ImageRequest {
        reference: reference.into(),
        load: None,
        always: false,
        timeout: Duration::from_secs(1),
        activity_timeout: Duration::from_secs(1),
        credentials: None,
        soft_fail: false,
    }
}

fn pool() -> BlockingPool {
    BlockingPool::new(1, switchyard_core::blocking_pool::LIMIT)
}

#[track_caller]
fn check(config: &str, reference: &str, expected: Option<CredentialSource>) {
    let config = DockerConfig::parse(config.as_bytes()).expect("it is well-formed");
    let found = config
        .credential_source(registry_of(&reference.parse().unwrap()))
        .expect("its entries are well-formed");
    assert_eq!(found, expected, "{reference}");
}

#[test]
fn image_registry_is_the_host_before_the_first_slash() {
    for hub in [
        "busybox",
        "library/busybox:1",
        "docker.io/library/busybox",
        "index.docker.io/a/b",
    ] {
        assert_eq!(registry_of(&hub.parse().unwrap()), DOCKER_HUB);
    }
    assert_eq!(
        registry_of(&"reg.example:5000/a/b".parse().unwrap()),
        "reg.example:5000"
    );
    assert_eq!(registry_of(&"localhost/a".parse().unwrap()), "localhost");
    assert_eq!(registry_of(&"[::1]/a".parse().unwrap()), "[::1]");
    assert_eq!(
        registry_of(&"Evil/busybox".parse().unwrap()),
        "Evil",
        "whoever pulls takes it for a host"
    );
}

#[test]
fn auth_file_entries_match_any_host_spelling() {
    check(
        BASIC,
        "busybox",
        Some(CredentialSource::Here(basic("user", "pass"))),
    );
    check(
        BASIC,
        "reg.example:5000/a",
        Some(CredentialSource::Here(basic("a", "b"))),
    );
    check(BASIC, "other.example/a", None);
    let url = r#"{"auths":{"https://reg.example/v2/":{"username":"u","password":"p"}}}"#;
    check(
        url,
        "reg.example/a",
        Some(CredentialSource::Here(basic("u", "p"))),
    );
    let token = r#"{"auths":{"reg.example":{"auth":"YTpi","identitytoken":"t"}}}"#;
    check(
        token,
        "reg.example/a",
        Some(CredentialSource::Here(Credentials::IdentityToken(
            "t".into(),
        ))),
    );
}

#[test]
fn registry_helper_precedes_store_and_file() {
    let all = r#"{"auths":{"reg.example":{"auth":"YTpi"}},"credHelpers":{"reg.example":"ecr"},"credsStore":"pass"}"#;
    check(
        all,
        "reg.example/a",
        Some(CredentialSource::Helper("ecr".into())),
    );
    check(
        all,
        "busybox",
        Some(CredentialSource::Helper("pass".into())),
    );
}

#[test]
fn unreadable_auth_file_is_reported_without_content() {
    let broken = DockerConfig::parse(br#"{"auths":{"r":{"auth": hunter2}}}"#)
        .err()
        .expect("it is no JSON");
    assert!(!broken.report().contains("hunter2"), "{broken:?}");
    let config =
        DockerConfig::parse(br#"{"auths":{"r.example":{"auth":"hunter2!"}}}"#).expect("it is JSON");
    let broken = config
        .credential_source("r.example")
        .expect_err("it is no base64");
    assert!(
        broken.report().contains("r.example") && !broken.report().contains("hunter2"),
        "{broken:?}"
    );
}

#[tokio::test]
async fn task_credentials_come_first_and_default_to_none() {
    let own = ImageRequest {
        credentials: Some(basic("own", "x")),
        ..image_request("busybox")
    };
    let nowhere = AuthConfig {
        config: "/no/such/config.json".into(),
        helper: String::new(),
    };
    assert_eq!(
        credentials(&own, &nowhere, &pool())
            .await
            .expect("nothing is looked for"),
        basic("own", "x")
    );
    let found = credentials(&image_request("busybox"), &AuthConfig::default(), &pool())
        .await
        .expect("nothing is looked for");
    assert_eq!(found, Credentials::Anonymous);
}

#[tokio::test]
async fn failed_lookup_fails_the_pull_unless_soft_fail() {
    let nowhere = AuthConfig {
        config: "/no/such/config.json".into(),
        helper: String::new(),
    };
    let failed = credentials(&image_request("busybox"), &nowhere, &pool())
        .await
        .expect_err("there is no such file");
    assert!(
        failed.report().contains("/no/such/config.json"),
        "{failed:?}"
    );
    let soft = ImageRequest {
        soft_fail: true,
        ..image_request("busybox")
    };
    assert_eq!(
        credentials(&soft, &nowhere, &pool())
            .await
            .expect("it continues"),
        Credentials::Anonymous
    );
}

#[tokio::test]
async fn auth_file_precedes_the_helper() {
    let dir = tempfile::tempdir().expect("there is room");
    let path = dir.path().join("config.json");
    std::fs::write(&path, BASIC).expect("there is room");
    let config = AuthConfig {
        config: path.display().to_string(),
        helper: "no-such-helper".into(),
    };
    assert_eq!(
        credentials(&image_request("busybox"), &config, &pool())
            .await
            .expect("the file has it"),
        basic("user", "pass")
    );
    let asked = credentials(&image_request("other.example/a"), &config, &pool())
        .await
        .expect_err("the helper is asked");
    assert!(
        asked.report().contains("docker-credential-no-such-helper"),
        "{asked:?}"
    );
}

#[tokio::test]
async fn hung_auth_file_fails_at_the_lookup_timeout() {
    let dir = tempfile::tempdir().expect("there is room");
    let path = dir.path().join("config.json");
    std::fs::write(&path, BASIC).expect("there is room");
    let pool = BlockingPool::new(1, Duration::from_millis(50));
    let config = AuthConfig {
        config: path.display().to_string(),
        helper: String::new(),
    };
    // Another look at the same file, on a file system that does not answer.
    let (answers, answer) = mpsc::channel::<()>();
    let hangs = pool.run(format!("auth.config ({})", config.config), move || {
        let _ = answer.recv();
        Ok(())
    });
    let wanted = image_request("busybox");
    let (hung, late) = tokio::join!(hangs, credentials(&wanted, &config, &pool));
    hung.expect_err("nobody has said anything");
    let later = credentials(&wanted, &config, &pool).await;
    for late in [late, later] {
        let late = late.expect_err("nobody has said anything");
        assert_eq!(late.kind(), ErrorKind::Unavailable);
        let text = late.report();
        assert!(
            text.contains("still hangs")
                && text.contains(&format!("auth.config ({})", config.config)),
            "{text}"
        );
    }
    let soft = ImageRequest {
        soft_fail: true,
        ..image_request("busybox")
    };
    assert_eq!(
        credentials(&soft, &config, &pool)
            .await
            .expect("it continues"),
        Credentials::Anonymous
    );

    drop(answers);
    // The blocked thread has to return first.
    let found = loop {
        match credentials(&image_request("busybox"), &config, &pool).await {
            Ok(found) => break found,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(found, basic("user", "pass"));
}

#[tokio::test]
async fn auth_file_that_is_endless_or_a_fifo_is_rejected() {
    let dir = tempfile::tempdir().expect("there is room");
    let fifo = dir.path().join("fifo");
    // Without a writer, an ordinary open would wait for ever.
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("there is room");
    let fifo = fifo.display().to_string();
    for (config, found) in [("/dev/zero", "a character device"), (&fifo, "a FIFO")] {
        let config = AuthConfig {
            config: config.into(),
            helper: String::new(),
        };
        let refused = credentials(&image_request("busybox"), &config, &pool())
            .await
            .expect_err("it is no file");
        let expected = format!(
            "auth.config ({}): it is no regular file but {found}",
            config.config
        );
        assert!(refused.report().contains(&expected), "{refused:?}");
    }
}
