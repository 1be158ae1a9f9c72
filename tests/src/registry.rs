//! A real registry (Debian's `docker-registry`) on loopback, for one test, and the client that fills it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::host::eventually;
use crate::image::{self, Blob, Image, Index};
use crate::registry_proxy::{Access, RegistryProxy};
use crate::scratch::Scratch;
use crate::{http, prereq};

/// Number of tries with another port when somebody took the chosen one first.
const PORT_TRIES: usize = 5;

/// A running registry; it ends, with all it holds, when this is dropped.
#[derive(Debug)]
pub struct Registry {
    child: Child,
    address: SocketAddr,
    proxy: Option<RegistryProxy>,
    // Last: its drop removes the directory that the registry writes to.
    scratch: Scratch,
}

impl Registry {
    /// Starts a registry that serves everybody, without anything in front of it.
    ///
    /// # Panics
    /// When `docker-registry` is not installed or does not come up.
    #[must_use]
    pub fn start() -> Self {
        let program = prereq::require("docker-registry", "docker-registry");
        let scratch = Scratch::new();
        for _ in 0..PORT_TRIES {
            let address = free_address();
            let config = write_config(scratch.path(), address);
            let log = File::create(scratch.path().join("log"))
                .expect("the scratch directory can be written");
            let errors = log.try_clone().expect("a file can be opened twice");
            let mut child = Command::new(&program)
                .args(["serve", &config])
                .stdin(Stdio::null())
                .stdout(log)
                .stderr(errors)
                .spawn()
                .expect("docker-registry was found, so it starts");
            let up = eventually(Duration::from_secs(20), || {
                child.try_wait().is_ok_and(|status| status.is_some()) || is_registry(address)
            });
            // An exit means that the port was taken meanwhile, and that another process answers.
            if up && child.try_wait().is_ok_and(|status| status.is_none()) {
                return Self {
                    child,
                    address,
                    proxy: None,
                    scratch,
                };
            }
            end(&mut child);
        }
        let log = fs::read_to_string(scratch.path().join("log")).unwrap_or_default();
        panic!("docker-registry did not come up in {PORT_TRIES} tries; its log ends:\n{log}");
    }

    /// Starts a registry behind a [`RegistryProxy`], which asks for credentials, counts requests and injects
    /// faults.
    ///
    /// # Panics
    /// As [`Registry::start`].
    #[must_use]
    pub fn start_behind_proxy(access: Access) -> Self {
        let mut registry = Self::start();
        registry.proxy = Some(RegistryProxy::start(registry.address, access));
        registry
    }

    /// The address that a runtime pulls from: the proxy's, if there is one.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.proxy
            .as_ref()
            .map_or(self.address, RegistryProxy::address)
    }

    /// The address of the registry itself, without the proxy.
    #[must_use]
    pub const fn upstream(&self) -> SocketAddr {
        self.address
    }

    /// The proxy.
    ///
    /// # Panics
    /// When the registry was started without one.
    #[must_use]
    pub fn proxy(&self) -> &RegistryProxy {
        self.proxy
            .as_ref()
            .expect("this registry was started without a gate")
    }

    /// The reference to pull `name` (`repository:tag` or `repository@digest`) by.
    #[must_use]
    pub fn reference(&self, name: &str) -> String {
        format!("{}/{name}", self.address())
    }

    /// Pushes an image under `repository:tag`, without going through the proxy. Returns the digest of its
    /// manifest.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn push(&self, name: &str, image: &Image) -> String {
        let (repository, tag) = name
            .rsplit_once(':')
            .expect("an image is pushed as repository:tag");
        self.push_parts(repository, image);
        self.put_manifest(repository, tag, &image.manifest)
    }

    /// Pushes all images of an index, and the index under `repository:tag`. Returns the digest of the index.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn push_index(&self, name: &str, index: &Index) -> String {
        let (repository, tag) = name
            .rsplit_once(':')
            .expect("an index is pushed as repository:tag");
        for image in &index.images {
            self.push_parts(repository, image);
            self.put_manifest(repository, &image.manifest.digest, &image.manifest);
        }
        self.put_manifest(repository, tag, &index.manifest)
    }

    /// Uploads a blob, unless it is there.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn put_blob(&self, repository: &str, blob: &Blob) {
        let path = format!("/v2/{repository}/blobs/{}", blob.digest);
        if self.request("HEAD", &path, &[], &[]).status == 200 {
            return;
        }
        let started = self.request(
            "POST",
            &format!("/v2/{repository}/blobs/uploads/"),
            &[],
            &[],
        );
        assert_eq!(
            started.status,
            202,
            "upload to {repository}: {}",
            started.text()
        );
        let location = started
            .header("location")
            .expect("an upload that was begun has a location");
        let location = &location[location.find("/v2/").expect("the location is below /v2/")..];
        let separator = if location.contains('?') { '&' } else { '?' };
        let target = format!("{location}{separator}digest={}", blob.digest);
        let done = self.request(
            "PUT",
            &target,
            &[("Content-Type", "application/octet-stream")],
            &blob.bytes,
        );
        assert_eq!(
            done.status,
            201,
            "upload of {} to {repository}: {}",
            blob.digest,
            done.text()
        );
    }

    /// Uploads a manifest or an index under a tag or its own digest. Returns its digest.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn put_manifest(&self, repository: &str, reference: &str, manifest: &Blob) -> String {
        let path = format!("/v2/{repository}/manifests/{reference}");
        let answer = self.request(
            "PUT",
            &path,
            &[("Content-Type", &manifest.media_type)],
            &manifest.bytes,
        );
        assert_eq!(
            answer.status,
            201,
            "manifest {repository}:{reference}: {}",
            answer.text()
        );
        image::digest(&manifest.bytes)
    }

    /// Writes `<config_dir>/<host>/hosts.toml`, which makes this registry the mirror of `host`.
    ///
    /// # Panics
    /// When the directory cannot be written.
    pub fn mirror(&self, config_dir: &Path, host: &str) {
        let dir = config_dir.join(host);
        let text = format!(
            "server = \"https://{host}\"\n\n[host.\"http://{}\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
            self.address()
        );
        fs::create_dir_all(&dir).expect("the directory of a test can be written");
        fs::write(dir.join("hosts.toml"), text).expect("the directory was just made");
    }

    fn push_parts(&self, repository: &str, image: &Image) {
        self.put_blob(repository, &image.config);
        for layer in &image.layers {
            self.put_blob(repository, layer);
        }
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> http::Response {
        http::request(self.address, method, path, headers, body).unwrap_or_else(|error| {
            let log = fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default();
            panic!("{method} {path}: {error}; the registry's log:\n{log}")
        })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    // It fails only if the process has been waited for already.
    let _ = child.kill();
    let _ = child.wait();
}

fn write_config(dir: &Path, address: SocketAddr) -> String {
    let file = dir.join("registry.yml");
    let text = format!(
        "version: 0.1\nlog: {{level: warn, accesslog: {{disabled: true}}}}\n\
         storage:\n  filesystem: {{rootdirectory: {}}}\n  delete: {{enabled: true}}\n\
         http: {{addr: '{address}'}}\n",
        dir.join("data").display()
    );
    fs::write(&file, text).expect("the scratch directory can be written");
    file.to_str().expect("the scratch path is ASCII").to_owned()
}

/// A port that was free a moment ago: the registry cannot choose a port itself and report it.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    listener
        .local_addr()
        .expect("a bound socket has an address")
}

fn is_registry(address: SocketAddr) -> bool {
    http::get(address, "/v2/").is_ok_and(|answer| answer.status == 200)
}
