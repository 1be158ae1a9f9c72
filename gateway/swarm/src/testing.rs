//! Certificate authorities of swarms for tests, made by openssl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A root with its key, and the certificates that it issues.
#[derive(Debug)]
pub(crate) struct TestAuthority {
    dir: PathBuf,
    name: String,
}

/// Numbers certificates and files.
static NUMBER: AtomicU32 = AtomicU32::new(1);

/// The extensions of a certificate of SwarmKit.
const NODE: &str = "basicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n\
                    keyUsage=critical,digitalSignature,keyEncipherment\n";
const AUTHORITY: &str =
    "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n";

impl TestAuthority {
    /// A new root, whose files are in `dir`. All roots of SwarmKit have the same name.
    ///
    /// # Panics
    /// When openssl is missing or fails.
    #[must_use]
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
        Self::of_kind(
            dir,
            name,
            &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"],
            "swarm-ca",
        )
    }

    /// A new root with another kind of key or name.
    ///
    /// # Panics
    /// As [`TestAuthority::new`].
    #[must_use]
    pub(crate) fn of_kind(dir: &Path, name: &str, key: &[&str], subject: &str) -> Self {
        let made = Self {
            dir: dir.to_owned(),
            name: name.to_owned(),
        };
        let [subject, certificate, key_file] =
            [format!("/CN={subject}"), made.file("crt"), made.file("key")];
        let mut words = vec!["req", "-x509", "-nodes", "-days", "7300", "-subj", &subject];
        words.extend_from_slice(key);
        words.extend_from_slice(&["-addext", "basicConstraints=critical,CA:TRUE"]);
        words.extend_from_slice(&["-addext", "keyUsage=critical,keyCertSign,cRLSign"]);
        words.extend_from_slice(&["-out", &certificate, "-keyout", &key_file]);
        openssl(&words);
        made
    }

    /// The root, as PEM.
    #[must_use]
    pub(crate) fn root(&self) -> Vec<u8> {
        fs::read(self.file("crt")).expect("openssl wrote it")
    }

    /// The private key of the root, as PEM.
    #[must_use]
    pub(crate) fn root_key(&self) -> Vec<u8> {
        fs::read(self.file("key")).expect("openssl wrote it")
    }

    /// The chain for a request: of this node, with this role (`swarm-worker`), valid for 90 days.
    #[must_use]
    pub(crate) fn issue(&self, request: &str, cluster: &str, role: &str, node: &str) -> Vec<u8> {
        let names = format!("{NODE}subjectAltName=DNS:{role},DNS:{node},DNS:swarm-ca\n");
        self.sign(
            request,
            &format!("/O={cluster}/OU={role}/CN={node}"),
            &names,
        )
    }

    /// As [`TestAuthority::issue`] for a worker, valid between these times, such as `20200101000000Z`.
    #[must_use]
    pub(crate) fn issue_between(
        &self,
        request: &str,
        cluster: &str,
        node: &str,
        between: [&str; 2],
    ) -> Vec<u8> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        let [signed, names, settings, requested, index] = ["out", "names", "cnf", "req", "index"]
            .map(|kind| self.file(&format!("{number}.{kind}")));
        let write = |file: &str, text: &str| {
            fs::write(file, text).expect("the directory of a test can be written")
        };
        write(&requested, request);
        write(
            &names,
            &format!("{NODE}subjectAltName=DNS:swarm-worker,DNS:{node},DNS:swarm-ca\n"),
        );
        write(&index, "");
        let dir = self.dir.display();
        write(
            &settings,
            &format!(
                "[ca]\ndefault_ca = own\n[own]\ndatabase = {index}\nnew_certs_dir = {dir}\nrand_serial = yes\n\
                 default_md = sha256\npolicy = any\n[any]\nO = optional\nOU = optional\nCN = optional\n"
            ),
        );
        let [begin, end] = between;
        openssl(&[
            "ca",
            "-batch",
            "-notext",
            "-config",
            &settings,
            "-in",
            &requested,
            "-out",
            &signed,
            "-keyfile",
            &self.file("key"),
            "-cert",
            &self.file("crt"),
            "-startdate",
            begin,
            "-enddate",
            end,
            "-subj",
            &format!("/O={cluster}/OU=swarm-worker/CN={node}"),
            "-preserveDN",
            "-extfile",
            &names,
        ]);
        fs::read(signed).expect("openssl wrote it")
    }

    /// The root of another authority, signed by this one: what managers put behind certificates while the root is
    /// rotated.
    #[must_use]
    pub(crate) fn cross_sign(&self, other: &Self) -> Vec<u8> {
        let request = other.file("csr");
        openssl(&[
            "x509",
            "-x509toreq",
            "-in",
            &other.file("crt"),
            "-key",
            &other.file("key"),
            "-out",
            &request,
        ]);
        self.sign(
            &fs::read_to_string(request).expect("openssl wrote it"),
            "/CN=swarm-ca",
            AUTHORITY,
        )
    }

    /// A certificate for a request.
    #[must_use]
    pub(crate) fn sign(&self, request: &str, subject: &str, extensions: &str) -> Vec<u8> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        let [signed, settings, requested] =
            ["out", "cnf", "req"].map(|kind| self.file(&format!("{number}.{kind}")));
        fs::write(&requested, request).expect("the directory of a test can be written");
        fs::write(&settings, extensions).expect("the directory of a test can be written");
        let [root, key] = [self.file("crt"), self.file("key")];
        openssl(&[
            "x509",
            "-req",
            "-in",
            &requested,
            "-CA",
            &root,
            "-CAkey",
            &key,
            "-set_serial",
            &number,
            "-days",
            "90",
            "-subj",
            subject,
            "-extfile",
            &settings,
            "-out",
            &signed,
        ]);
        fs::read(signed).expect("openssl wrote it")
    }

    fn file(&self, kind: &str) -> String {
        format!("{}/{}.{kind}", self.dir.display(), self.name)
    }
}

/// Runs openssl.
///
/// # Panics
/// When it is missing or fails.
fn openssl(words: &[&str]) {
    let made = Command::new("openssl").args(words).output();
    let made = made.expect("openssl runs; it is in the Debian package openssl");
    assert!(
        made.status.success(),
        "openssl {words:?}: {}",
        String::from_utf8_lossy(&made.stderr)
    );
}
