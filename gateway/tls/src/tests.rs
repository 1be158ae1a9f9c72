//! Handshakes over memory, with certificates that openssl makes.

use std::time::Duration;

use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use super::*;
use crate::testing::Authority;

/// Checks whether a client and a server come to terms: a byte of the client arrives, and one comes back.
async fn shake(acceptor: &Acceptor, client: TlsConnector) -> io::Result<()> {
    let (near, far) = tokio::io::duplex(64 << 10);
    let server = async {
        let mut stream = acceptor.accept(far).await?;
        let byte = stream.read_u8().await?;
        stream.write_u8(byte).await?;
        stream.shutdown().await
    };
    let client = async {
        let name = ServerName::try_from("localhost").expect("it is a name");
        let mut stream = client.connect(name, near).await?;
        stream.write_u8(7).await?;
        // With TLS 1.3 the client learns here that its certificate was refused.
        stream.read_u8().await.map(|byte| assert_eq!(byte, 7))
    };
    let (server, client) = tokio::join!(server, client);
    server.and(client)
}

fn read(config: &TlsConfig) -> Certificate {
    Certificate::new(config.read().expect("the files are valid"))
}

#[tokio::test]
async fn client_needs_a_certificate_of_the_configured_authority() {
    let dir = TempDir::new().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let other = Authority::new(dir.path(), "other");
    let server = ours.issue("server");
    let open = read(&server.server(None)).acceptor();
    shake(&open, ours.client(None)).await.unwrap();
    shake(&open, other.client(None)).await.unwrap_err();
    let closed = read(&server.server(Some(ours.certificate()))).acceptor();
    shake(&closed, ours.client(Some(&ours.issue("client"))))
        .await
        .unwrap();
    shake(&closed, ours.client(None)).await.unwrap_err();
    shake(&closed, ours.client(Some(&other.issue("client"))))
        .await
        .unwrap_err();
}

/// A certificate that its own key has signed is an authority's, as openssl makes it.
#[tokio::test]
async fn client_may_have_one_of_the_configured_certificates_itself() {
    let dir = TempDir::new().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let client = Authority::new(dir.path(), "client");
    let other = Authority::new(dir.path(), "other");
    let server = ours.issue("server");
    let issued = ours.issue("issued");
    // The certificates that are given, that of the client, and whether it is accepted.
    for (given, identity, is_accepted) in [
        (client.certificate(), client.own_identity(), true),
        (client.certificate(), client.issue("of-client"), true),
        (issued.certificate.clone(), issued.clone(), true),
        (client.certificate(), other.own_identity(), false),
        (issued.certificate.clone(), ours.issue("another"), false),
        (other.certificate(), issued.clone(), false),
    ] {
        let acceptor = read(&server.server(Some(given.clone()))).acceptor();
        let shaken = shake(&acceptor, ours.client(Some(&identity))).await;
        assert_eq!(
            shaken.is_ok(),
            is_accepted,
            "{identity:?} with {given:?}: {shaken:?}"
        );
    }
}

#[tokio::test]
async fn replacement_is_in_force_for_the_next_connection_and_tells_the_former() {
    let dir = TempDir::new().unwrap();
    let old = Authority::new(dir.path(), "old");
    let new = Authority::new(dir.path(), "new");
    let certificate = read(&old.issue("server").server(None));
    let former = certificate.acceptor();
    let clone = certificate.clone();
    clone.replace(new.issue("server").server(None).read().unwrap());
    tokio::time::timeout(Duration::from_secs(60), former.replaced())
        .await
        .expect("it is notified");
    let present = certificate.acceptor();
    shake(&present, new.client(None)).await.unwrap();
    shake(&present, old.client(None)).await.unwrap_err();
    assert!(!present.replaced.is_cancelled());
}

#[test]
fn unusable_file_is_named() {
    let dir = TempDir::new().unwrap();
    let ours = Authority::new(dir.path(), "ours");
    let other = Authority::new(dir.path(), "other");
    let good = ours.issue("server").server(Some(ours.certificate()));
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let absent = dir.path().join("absent.pem");
    let with = |change: &dyn Fn(&mut TlsConfig)| {
        let mut config = good.clone();
        change(&mut config);
        config.read().unwrap_err().to_string()
    };
    let text = with(&|config| config.certificates.clone_from(&absent));
    assert!(text.contains("absent.pem"), "{text}");
    let text = with(&|config| config.certificates.clone_from(&empty));
    assert!(
        text.contains("no certificate is in") && text.contains("empty.pem"),
        "{text}"
    );
    let text = with(&|config| config.key.clone_from(&empty));
    assert!(
        text.contains("private key") && text.contains("empty.pem"),
        "{text}"
    );
    let text = with(&|config| config.key = other.issue("server").key);
    assert!(text.contains("does not serve"), "{text}");
    let text = with(&|config| config.client_ca = Some(empty.clone()));
    assert!(text.contains("empty.pem"), "{text}");
    // An endless file of a kind that is not read at all.
    for text in [
        with(&|config| config.certificates = "/dev/zero".into()),
        with(&|config| config.key = "/dev/zero".into()),
        with(&|config| config.client_ca = Some("/dev/zero".into())),
    ] {
        assert!(
            text.contains("from /dev/zero: it is no regular file"),
            "{text}"
        );
    }
    assert_eq!(good.files().count(), 3);
    good.read().unwrap();
}
