//! Authorities and certificates for tests, made by openssl.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::TlsConfig;

/// An authority that issues certificates for 127.0.0.1 and localhost.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    name: String,
}

/// A certificate and its key.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate, as PEM.
    pub certificate: PathBuf,
    /// The key, as PEM.
    pub key: PathBuf,
}

impl Authority {
    /// A new authority of this name, whose files are in `dir`.
    ///
    /// # Panics
    /// When openssl is missing or fails.
    #[must_use]
    pub fn new(dir: &Path, name: &str) -> Self {
        let authority = Self {
            dir: dir.to_owned(),
            name: name.to_owned(),
        };
        let made = authority.identity("");
        request(
            name,
            &made,
            &["-addext", "basicConstraints=critical,CA:TRUE"],
        );
        authority
    }

    /// The certificate of the authority, as PEM.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.identity("").certificate
    }

    /// The certificate of the authority with its key, as one of a server or client.
    #[must_use]
    pub fn own_identity(&self) -> Identity {
        self.identity("")
    }

    /// A new certificate for a server or a client. One of the same name is replaced.
    ///
    /// # Panics
    /// When openssl fails.
    #[must_use]
    pub fn issue(&self, subject: &str) -> Identity {
        let Identity { certificate, key } = self.identity("");
        let issued = self.identity(subject);
        let authority = [
            "-CA".as_ref(),
            certificate.as_os_str(),
            "-CAkey".as_ref(),
            key.as_os_str(),
        ];
        let names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"];
        let leaf = ["-addext", "basicConstraints=critical,CA:FALSE"];
        let words = authority
            .into_iter()
            .chain(names.map(AsRef::as_ref))
            .chain(leaf.map(AsRef::as_ref));
        request(subject, &issued, &words.collect::<Vec<_>>());
        issued
    }

    /// A client that accepts the certificates of this authority alone, and presents `identity`.
    ///
    /// # Panics
    /// When the files are not valid.
    #[must_use]
    pub fn client(&self, identity: Option<&Identity>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        let authority =
            CertificateDer::from_pem_file(self.certificate()).expect("openssl wrote it");
        roots.add(authority).expect("openssl wrote it");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let chain =
                    vec![CertificateDer::from_pem_file(certificate).expect("openssl wrote it")];
                let key = PrivateKeyDer::from_pem_file(key).expect("openssl wrote it");
                config
                    .with_client_auth_cert(chain, key)
                    .expect("they belong together")
            }
        };
        TlsConnector::from(Arc::new(config))
    }

    fn identity(&self, subject: &str) -> Identity {
        let file = |kind: &str| self.dir.join(format!("{}-{subject}.{kind}", self.name));
        Identity {
            certificate: file("crt"),
            key: file("key"),
        }
    }
}

impl Identity {
    /// The files of a server that presents it.
    #[must_use]
    pub fn server(&self, client_ca: Option<PathBuf>) -> TlsConfig {
        TlsConfig {
            certificates: self.certificate.clone(),
            key: self.key.clone(),
            client_ca,
        }
    }
}

/// Makes a key, and a certificate of this name for it.
fn request(subject: &str, files: &Identity, more: &[impl AsRef<std::ffi::OsStr>]) {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ])
        .args(["-days", "2", "-subj", &format!("/CN={subject}")])
        .args(more)
        .arg("-out")
        .arg(&files.certificate)
        .arg("-keyout")
        .arg(&files.key)
        .output()
        .expect("openssl runs; it is in the Debian package openssl");
    assert!(
        made.status.success(),
        "openssl: {}",
        String::from_utf8_lossy(&made.stderr)
    );
}
