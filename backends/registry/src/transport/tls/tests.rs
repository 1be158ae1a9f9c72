//! Tests with certificates that openssl makes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::*;

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
const NAMES: &str = "-addext subjectAltName=IP:127.0.0.1,DNS:localhost";

/// A directory with certificates: `NAME.crt` and `NAME.key`.
struct Dir(TempDir);

impl Dir {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(self.0.path())
            .output()
            .expect("openssl runs; it is in the Debian package openssl");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments}: {said}");
    }

    /// A certificate that its own key has signed.
    fn self_signed(&self, name: &str, more: &str) {
        self.openssl(&format!(
            "req -x509 {KEY} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.crt {more}"
        ));
    }

    /// A certificate that the key of `issuer` has signed, with the extensions that `extensions` has, or of version 1.
    fn issued(&self, name: &str, issuer: &str, extensions: Option<&str>) {
        self.openssl(&format!(
            "req -new {KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ));
        let extfile = match extensions {
            Some(text) => {
                fs::write(self.file("ext"), text).unwrap();
                "-extfile ext"
            }
            None => "",
        };
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {issuer}.crt -CAkey {issuer}.key -CAcreateserial -days 2 {extfile} -out {name}.crt"
        ));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn pem(&self, name: &str) -> Pem {
        let file = self.file(name);
        let content = fs::read(&file).unwrap();
        Pem { file, content }
    }

    fn der(&self, name: &str) -> CertificateDer<'static> {
        certificates(&self.pem(&format!("{name}.crt")))
            .unwrap()
            .remove(0)
    }

    fn pair(&self, certificate: &str, key: Option<&str>) -> Tls {
        let pair = ClientPair {
            certificate: self.pem(certificate),
            key: key.map(|key| self.pem(key)),
        };
        Tls {
            clients: vec![pair],
            ..Tls::default()
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[test]
fn certificates_that_are_given_are_trusted_as_in_go() {
    let dir = Dir::new();
    let leaf = "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n";
    dir.self_signed(
        "plain",
        &format!("{NAMES} -addext basicConstraints=critical,CA:TRUE"),
    );
    dir.self_signed(
        "leaf",
        &format!("{NAMES} -addext basicConstraints=critical,CA:FALSE"),
    );
    dir.self_signed("authority", "-addext basicConstraints=critical,CA:TRUE");
    dir.issued("server", "authority", Some(leaf));
    dir.issued("of-plain", "plain", Some(leaf));
    let refusals: [fn(&CertificateError) -> bool; 3] = [
        |fault| matches!(fault, CertificateError::NotValidForNameContext { .. }),
        |fault| matches!(fault, CertificateError::ExpiredContext { .. }),
        |_| true,
    ];
    let [for_another_name, expired, unknown] = refusals.map(Some);
    let now = 0;
    let later = 10 * 365 * 24 * 3600;
    /// The certificates that are given, that of the server, its name, the time from now, and how it is refused.
    type Case<'a> = (
        &'a [&'a str],
        &'a str,
        &'a str,
        u64,
        Option<fn(&CertificateError) -> bool>,
    );
    let cases: [Case<'_>; 14] = [
        // What `openssl req -x509` makes: it is an authority's.
        (&["plain"], "plain", "127.0.0.1", now, None),
        (&["plain"], "plain", "localhost", now, None),
        (&["plain"], "plain", "other.example", now, for_another_name),
        (&["plain"], "plain", "localhost", later, expired),
        (&["authority"], "plain", "localhost", now, unknown),
        (&[], "plain", "localhost", now, unknown),
        (&["authority", "plain"], "plain", "localhost", now, None),
        // It can also issue others.
        (&["plain"], "of-plain", "localhost", now, None),
        (&["leaf"], "leaf", "localhost", now, None),
        (&["authority"], "server", "localhost", now, None),
        // The server's alone, without who has issued it.
        (&["server"], "server", "localhost", now, None),
        (
            &["server"],
            "server",
            "other.example",
            now,
            for_another_name,
        ),
        (&["server"], "server", "localhost", later, expired),
        (&["leaf"], "server", "localhost", now, unknown),
    ];
    for (given, server, name, time, refusal) in cases {
        let trusted: Vec<_> = given.iter().map(|name| dir.der(name)).collect();
        let servers = TrustedServers::new(&trusted, &provider());
        let time =
            UnixTime::since_unix_epoch(Duration::from_secs(UnixTime::now().as_secs() + time));
        let verified = servers.verify_server_cert(
            &dir.der(server),
            &[],
            &ServerName::try_from(name).unwrap(),
            &[],
            time,
        );
        let case = format!("{server} as {name} with {given:?}");
        match (verified, refusal) {
            (Ok(_), None) => {}
            (Err(rustls::Error::InvalidCertificate(fault)), Some(is_expected)) => {
                assert!(is_expected(&fault), "{case}: {fault:?}");
            }
            (Ok(_), Some(_)) => panic!("{case}: it is accepted"),
            (Err(error), _) => panic!("{case}: {error:?}"),
        }
    }
}

#[test]
fn clients_may_present_every_certificate_that_a_server_may_want() {
    let dir = Dir::new();
    dir.self_signed("authority", "-addext basicConstraints=critical,CA:TRUE");
    dir.issued("v1", "authority", None);
    dir.issued("v3", "authority", Some("basicConstraints=CA:FALSE\n"));
    let v1 = dir.der("v1");
    assert!(
        ParsedCertificate::try_from(&v1).is_err(),
        "it is of version 1"
    );
    for name in ["v1", "v3", "authority"] {
        let certificate = format!("{name}.crt");
        let key = format!("{name}.key");
        let separate = client_config(&dir.pair(&certificate, Some(&key))).unwrap();
        assert!(separate.client_auth_cert_resolver.has_certs(), "{name}");
        let both = [dir.pem(&key).content, dir.pem(&certificate).content].concat();
        fs::write(dir.file("both.pem"), both).unwrap();
        client_config(&dir.pair("both.pem", None)).unwrap();
    }
}

#[test]
fn certificate_of_an_authority_that_the_server_names_is_presented() {
    let dir = Dir::new();
    for name in ["first", "second", "stranger"] {
        dir.self_signed(name, "-addext basicConstraints=critical,CA:TRUE");
    }
    dir.issued("a", "first", None);
    dir.issued("b", "second", Some("basicConstraints=CA:FALSE\n"));
    let mut clients = dir.pair("a.crt", Some("a.key")).clients;
    clients.extend(dir.pair("b.crt", Some("b.key")).clients);
    let tls = Tls {
        clients,
        ..Tls::default()
    };
    let resolver = client_config(&tls).unwrap().client_auth_cert_resolver;
    let subject = |name: &str| {
        let mut roots = RootCertStore::empty();
        roots.add(dir.der(name)).unwrap();
        roots.subjects().remove(0)
    };
    /// The authorities that the server names, and the certificate that it gets.
    type Case<'a> = (&'a [&'a str], &'a str);
    let cases: [Case<'_>; 5] = [
        (&[], "a"),
        (&["first"], "a"),
        (&["second"], "b"),
        (&["second", "first"], "a"),
        (&["stranger"], "a"),
    ];
    for (named, expected) in cases {
        let subjects: Vec<_> = named.iter().map(|name| subject(name)).collect();
        let hints: Vec<&[u8]> = subjects.iter().map(AsRef::as_ref).collect();
        let schemes = [SignatureScheme::ECDSA_NISTP256_SHA256];
        let chosen = resolver.resolve(&hints, &schemes).unwrap();
        assert_eq!(chosen.cert, [dir.der(expected)], "{named:?}");
        let others = [SignatureScheme::ED25519];
        assert!(resolver.resolve(&hints, &others).is_none(), "{named:?}");
    }
}

#[test]
fn error_names_the_file_that_is_at_fault() {
    let dir = Dir::new();
    for name in ["authority", "mine", "other"] {
        dir.self_signed(name, "");
    }
    dir.openssl("ec -in mine.key -aes128 -passout pass:x -out locked.key");
    fs::write(dir.file("text"), "no certificate").unwrap();
    let broken = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    fs::write(dir.file("broken.pem"), broken).unwrap();
    let mut cut = dir.pem("mine.crt").content;
    cut.truncate(cut.len() / 2);
    fs::write(dir.file("cut.pem"), cut).unwrap();
    // The file of the authority, of the certificate, of its key, and the one at fault.
    for (authority, certificate, key, at_fault) in [
        ("authority.crt", "text", Some("mine.key"), "text"),
        (
            "authority.crt",
            "broken.pem",
            Some("mine.key"),
            "broken.pem",
        ),
        ("authority.crt", "cut.pem", Some("mine.key"), "cut.pem"),
        ("authority.crt", "mine.crt", Some("text"), "text"),
        ("authority.crt", "mine.crt", Some("mine.crt"), "mine.crt"),
        (
            "authority.crt",
            "mine.crt",
            Some("locked.key"),
            "locked.key",
        ),
        ("authority.crt", "mine.crt", Some("other.key"), "other.key"),
        ("authority.crt", "mine.crt", None, "mine.crt"),
        ("text", "mine.crt", Some("mine.key"), "text"),
        ("mine.key", "mine.crt", Some("mine.key"), "mine.key"),
        ("broken.pem", "mine.crt", Some("mine.key"), "broken.pem"),
    ] {
        let tls = Tls {
            authorities: vec![dir.pem(authority)],
            ..dir.pair(certificate, key)
        };
        match client_config(&tls) {
            Err(Error::InvalidConfig { file, reason, .. }) => {
                assert_eq!(file, dir.file(at_fault), "{reason}");
            }
            other => panic!("{authority}, {certificate}, {key:?}: {other:?}"),
        }
    }
    let tls = Tls {
        authorities: vec![dir.pem("authority.crt")],
        ..dir.pair("mine.crt", Some("mine.key"))
    };
    client_config(&tls).unwrap();
}

#[test]
fn bundle_may_have_certificates_that_nobody_can_interpret() {
    let dir = Dir::new();
    dir.self_signed("authority", "");
    let broken = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".to_vec();
    let bundle = [broken, dir.pem("authority.crt").content].concat();
    fs::write(dir.file("bundle.pem"), bundle).unwrap();
    let tls = Tls {
        authorities: vec![dir.pem("bundle.pem")],
        ..Tls::default()
    };
    client_config(&tls).unwrap();
}
