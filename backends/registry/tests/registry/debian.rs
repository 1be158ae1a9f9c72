//! Debian's `docker-registry`, as it is, with and without TLS.

use std::path::Path;
use std::process::Stdio;

use reqwest::header::{CONTENT_TYPE, LOCATION};
use switchyard_core::image::ImageReference;
use switchyard_registry::{Client, Config, Credentials, Digest, Error, Platform, Platforms, Pull};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::server::{CONFIG, LAYER, MANIFEST, certs_d, quick, read};

/// A running `docker-registry`; killed when dropped.
struct Debian {
    _child: Child,
    _output: tokio::task::JoinHandle<()>,
    root: TempDir,
    authority: String,
}

impl Debian {
    /// Starts it on a free port, with TLS if `certificates` names a directory with `server.crt` and
    /// `server.key`. With `clients.crt` too, it demands certificates of that authority.
    async fn start(certificates: Option<&Path>) -> Self {
        let root = TempDir::new().unwrap();
        let config = root.path().join("config.yml");
        let mut text = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n",
            root.path().join("data").display()
        );
        if let Some(directory) = certificates {
            let file = |name: &str| directory.join(name).display().to_string();
            text += &format!(
                "  tls:\n    certificate: {}\n    key: {}\n",
                file("server.crt"),
                file("server.key")
            );
            if directory.join("clients.crt").exists() {
                text += &format!("    clientcas:\n      - {}\n", file("clients.crt"));
            }
        }
        std::fs::write(&config, text).unwrap();
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect(
                "docker-registry cannot be started; install the Debian package docker-registry",
            );
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let authority = loop {
            let line = lines
                .next_line()
                .await
                .unwrap()
                .expect("docker-registry ended before it listened");
            if let Some((_, address)) = line.split_once("listening on ") {
                break address.split(['"', ',', ' ']).next().unwrap().to_owned();
            }
        };
        // Reads on, so that the registry never blocks on its log.
        let output =
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self {
            _child: child,
            _output: output,
            root,
            authority,
        }
    }

    fn reference(&self, name: &str) -> ImageReference {
        format!("{}/{name}", self.authority).parse().unwrap()
    }
}

/// Pushes an image with one layer, the way any client would, and returns the digest of its manifest.
async fn push(http: &reqwest::Client, base: &str, layer: &[u8]) -> Digest {
    let config = br#"{"architecture":"amd64","os":"linux","config":{"User":"1000"}}"#;
    for blob in [config.as_slice(), layer] {
        let started = http
            .post(format!("{base}/v2/team/app/blobs/uploads/"))
            .send()
            .await
            .unwrap();
        assert_eq!(started.status(), 202);
        let location = started.headers()[LOCATION].to_str().unwrap();
        let location = reqwest::Url::parse(base).unwrap().join(location).unwrap();
        let digest = Digest::sha256(blob).to_string();
        let put = http
            .put(location)
            .query(&[("digest", digest)])
            .body(blob.to_vec())
            .send()
            .await
            .unwrap();
        assert_eq!(put.status(), 201);
    }
    let describe = |media_type, bytes: &[u8]| serde_json::json!({ "mediaType": media_type, "digest": Digest::sha256(bytes), "size": bytes.len() });
    let manifest = serde_json::json!({ "schemaVersion": 2, "mediaType": MANIFEST,
        "config": describe(CONFIG, config), "layers": [describe(LAYER, layer)] });
    let manifest = manifest.to_string();
    let put = http
        .put(format!("{base}/v2/team/app/manifests/v1"))
        .header(CONTENT_TYPE, MANIFEST);
    assert_eq!(
        put.body(manifest.clone()).send().await.unwrap().status(),
        201
    );
    Digest::sha256(manifest.as_bytes())
}

async fn check_pull(pull: &Pull, digest: &Digest, layer: &[u8]) {
    let resolved = pull.resolve().await.unwrap();
    assert_eq!(resolved.descriptor.digest, *digest);
    let image = pull
        .image(resolved, &Platforms::only(&Platform::linux("amd64", None)))
        .await
        .unwrap();
    assert_eq!(
        pull.config(&image.manifest).await.unwrap().0.config.user,
        "1000"
    );
    assert_eq!(
        read(pull.blob(&image.manifest.layers[0], 0)).await.unwrap(),
        layer
    );
    let offset = layer.len() / 2;
    let rest = read(pull.blob(&image.manifest.layers[0], offset.try_into().unwrap()))
        .await
        .unwrap();
    assert_eq!(rest, layer[offset..]);
}

async fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(directory)
        .output()
        .await
        .expect("openssl cannot be started; install the Debian package openssl");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// An authority (`ca.crt`) and a certificate for 127.0.0.1 (`server.crt`, `server.key`).
async fn certificates() -> TempDir {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        path,
        &format!("req -x509 {key} -keyout ca.key -out ca.crt -subj /CN=ca -days 2"),
    )
    .await;
    openssl(
        path,
        &format!("req -new {key} -keyout server.key -out server.csr -subj /CN=server"),
    )
    .await;
    std::fs::write(
        path.join("ext"),
        "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
    )
    .unwrap();
    let sign = "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.crt";
    openssl(path, sign).await;
    directory
}

/// A server's certificate that its own key has signed (`server.crt`), as most make it, and certificates of clients by
/// the authority `clients.crt`: `v1.crt`, of version 1 of X.509, and `v3.crt`.
async fn certificates_of_both_sides() -> TempDir {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for (name, more) in [
        ("server", " -addext subjectAltName=IP:127.0.0.1"),
        ("clients", ""),
        ("stranger", ""),
    ] {
        let made = format!(
            "req -x509 {key} -keyout {name}.key -out {name}.crt -subj /CN={name} -days 2{more}"
        );
        openssl(path, &made).await;
    }
    std::fs::write(path.join("ext"), "basicConstraints=CA:FALSE\n").unwrap();
    for (name, extensions) in [("v1", ""), ("v3", " -extfile ext")] {
        openssl(
            path,
            &format!("req -new {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"),
        )
        .await;
        let signed = format!(
            "x509 -req -in {name}.csr -CA clients.crt -CAkey clients.key -CAcreateserial -days 2{extensions} -out {name}.crt"
        );
        openssl(path, &signed).await;
    }
    directory
}

#[tokio::test]
async fn both_sides_may_have_certificates_as_go_accepts_them() {
    let certificates = certificates_of_both_sides().await;
    let registry = Debian::start(Some(certificates.path())).await;
    let file = |name: &str| certificates.path().join(name).display().to_string();
    let named = |name: &str| {
        let certificate = file(&format!("{name}.crt"));
        let key = file(&format!("{name}.key"));
        format!("[{certificate:?}, {key:?}]")
    };
    let pair = |name: &str| format!("client = [{}]\n", named(name));
    let pairs = |names: [&str; 2]| format!("client = [{}]\n", names.map(named).join(", "));
    let ca = |name: &str| format!("ca = {:?}\n", file(name));
    // Whether the registry gets to answer that it has no such image.
    for (settings, answers) in [
        (ca("server.crt") + &pair("v1"), true),
        (ca("server.crt") + &pair("v3"), true),
        ("skip_verify = true\n".to_owned() + &pair("v1"), true),
        // The one of an authority that the server names.
        (ca("server.crt") + &pairs(["stranger", "v1"]), true),
        (ca("server.crt"), false),
        (ca("server.crt") + &pair("stranger"), false),
        (ca("clients.crt") + &pair("v1"), false),
        (pair("v1"), false),
    ] {
        let hosts = format!("server = \"https://{}\"\n{settings}", registry.authority);
        let (_root, roots) = certs_d("a.example", &hosts);
        let client = Client::new(Config {
            hosts_dirs: roots,
            ..quick()
        });
        let reference = "a.example/team/app:v1".parse().unwrap();
        let pull = client
            .open(&reference, Credentials::Anonymous)
            .await
            .unwrap();
        let error = pull.resolve().await.unwrap_err();
        if answers {
            assert!(
                matches!(error, Error::NotFound { .. }),
                "{settings}: {error:?}"
            );
        } else {
            assert!(
                matches!(error, Error::Unavailable { .. }),
                "{settings}: {error:?}"
            );
        }
    }
}

#[tokio::test]
async fn plain_http_docker_registry_is_pulled_from() {
    let registry = Debian::start(None).await;
    let layer: Vec<u8> = (0..700_000u32).flat_map(u32::to_le_bytes).collect();
    let client = Client::new(quick());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let digest = push(&http, &format!("http://{}", registry.authority), &layer).await;
    for name in [
        "team/app:v1".to_owned(),
        format!("team/app@{digest}"),
        format!("team/app:other@{digest}"),
    ] {
        let pull = client
            .open(&registry.reference(&name), Credentials::Anonymous)
            .await
            .unwrap();
        check_pull(&pull, &digest, &layer).await;
    }
    let missing = client
        .open(&registry.reference("team/app:none"), Credentials::Anonymous)
        .await
        .unwrap();
    assert!(matches!(
        missing.resolve().await,
        Err(Error::NotFound { .. })
    ));
    assert!(registry.root.path().join("data").is_dir());
}

#[tokio::test]
async fn docker_registry_with_tls_is_trusted_as_configured() {
    let certificates = certificates().await;
    let registry = Debian::start(Some(certificates.path())).await;
    // Makes the process install a cryptography provider before the pushing client needs one.
    let loopback = Client::new(quick());
    let http = reqwest::Client::builder()
        .no_proxy()
        .danger_accept_invalid_certs(true)
        .build()
        .unwrap();
    let digest = push(&http, &format!("https://{}", registry.authority), b"layer").await;
    // Loopback is not verified.
    let pull = loopback
        .open(&registry.reference("team/app:v1"), Credentials::Anonymous)
        .await
        .unwrap();
    check_pull(&pull, &digest, b"layer").await;

    let ca = certificates.path().join("ca.crt").display().to_string();
    let open = async |settings: &str| {
        let hosts = format!("server = \"https://{}\"\n{settings}", registry.authority);
        let (_root, roots) = certs_d("a.example", &hosts);
        let client = Client::new(Config {
            hosts_dirs: roots,
            retries: 0,
            ..quick()
        });
        client
            .open(
                &"a.example/team/app:v1".parse().unwrap(),
                Credentials::Anonymous,
            )
            .await
            .unwrap()
    };
    check_pull(&open(&format!("ca = {ca:?}")).await, &digest, b"layer").await;
    check_pull(&open("skip_verify = true").await, &digest, b"layer").await;
    let untrusted = open("").await.resolve().await.unwrap_err();
    assert!(
        matches!(untrusted, Error::Unavailable { .. }) && !untrusted.is_transient(),
        "{untrusted:?}"
    );
    let no_pem = certificates.path().join("ext").display().to_string();
    let error = open(&format!("ca = {no_pem:?}"))
        .await
        .resolve()
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::InvalidConfig { file, .. } if file.ends_with("ext")),
        "{error:?}"
    );
    // A plain scheme with TLS settings prefers TLS, but never trusts the wrong certificate by falling back.
    let hosts = format!(
        "server = \"http://{}\"\nskip_verify = false",
        registry.authority
    );
    let (_root, roots) = certs_d("a.example", &hosts);
    let client = Client::new(Config {
        hosts_dirs: roots,
        retries: 0,
        ..quick()
    });
    let pull = client
        .open(
            &"a.example/team/app:v1".parse().unwrap(),
            Credentials::Anonymous,
        )
        .await
        .unwrap();
    assert!(matches!(
        pull.resolve().await,
        Err(Error::Unavailable { .. })
    ));
}
