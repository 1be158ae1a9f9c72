//! Builds OCI and Docker images in memory: layers, configuration, manifest, index.

use std::io::Write;
use std::process::Command;
use std::sync::OnceLock;

use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::prereq;
use crate::ustar::{self, TarEntry, TarEntryKind};

/// The users of [`busybox_layer`], in `/etc/passwd` format. `app` is there for tests of named users.
pub const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
    daemon:x:1:1:daemon:/usr/sbin:/bin/false\n\
    www-data:x:33:33:www-data:/var/www:/bin/false\n\
    app:x:1000:1000:app:/home/app:/bin/sh\n\
    nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n";

/// The groups of [`busybox_layer`]. `app` is also a member of `audio` and `video`.
pub const GROUP: &str = "root:x:0:\ndaemon:x:1:\naudio:x:29:app\nwww-data:x:33:\nvideo:x:44:app,www-data\n\
    users:x:100:\napp:x:1000:\nnogroup:x:65534:\n";

/// The family of media types that an image uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// `application/vnd.oci.image.*`.
    #[default]
    Oci,
    /// `application/vnd.docker.distribution.*`, schema 2.
    Docker,
}

/// A blob with its digest and media type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// The media type a descriptor of it states.
    pub media_type: String,
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A compressed layer, and the digest of what it is uncompressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The bytes as they travel.
    pub bytes: Vec<u8>,
    /// The digest of the tar archive.
    pub diff_id: String,
    /// True if `bytes` are compressed with gzip; otherwise they are the archive itself.
    pub gzip: bool,
}

/// Collects the entries of a layer.
#[derive(Clone, Debug, Default)]
pub struct LayerBuilder {
    entries: Vec<TarEntry>,
}

/// An image for one platform, ready to be pushed.
#[derive(Clone, Debug)]
pub struct Image {
    /// The configuration; its digest is the image's id in CRI.
    pub config: Blob,
    /// The layers, lowest first.
    pub layers: Vec<Blob>,
    /// The manifest.
    pub manifest: Blob,
    /// The platform, as an index states it.
    pub platform: Value,
}

/// An image for several platforms.
#[derive(Clone, Debug)]
pub struct Index {
    /// The images it lists.
    pub images: Vec<Image>,
    /// The index itself.
    pub manifest: Blob,
}

/// Collects what an image consists of.
#[derive(Clone, Debug)]
pub struct ImageBuilder {
    family: Family,
    architecture: String,
    layers: Vec<Layer>,
    config: Value,
}

/// The digest of `bytes`, as registries write it.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// An image of the host's static busybox for the host's platform, whose command is `sh`.
///
/// # Panics
/// When Debian's `busybox-static` is not installed.
#[must_use]
pub fn busybox() -> ImageBuilder {
    ImageBuilder::new()
        .layer(busybox_layer())
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .cmd(&["sh"])
}

/// One layer with busybox, a hard link for each applet, the usual directories, [`PASSWD`] and [`GROUP`].
///
/// # Panics
/// When Debian's `busybox-static` is not installed.
#[must_use]
pub fn busybox_layer() -> Layer {
    static LAYER: OnceLock<Layer> = OnceLock::new();
    LAYER.get_or_init(build_busybox_layer).clone()
}

/// A layer of `size` bytes that do not compress and that no other seed gives: for measuring pulls.
#[must_use]
pub fn random_layer(size: usize, seed: u64) -> Layer {
    // Splitmix64: good enough to be incompressible, and the same on every machine.
    let mut state = seed;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(size);
    LayerBuilder::default()
        .dir("random", 0o755)
        .file(&format!("random/{seed:016x}"), bytes, 0o644)
        .build()
}

// === impl Blob ===

impl Blob {
    /// A blob of `bytes`.
    #[must_use]
    pub fn new(media_type: &str, bytes: Vec<u8>) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: digest(&bytes),
            bytes,
        }
    }

    /// The descriptor that a manifest or an index holds for it.
    #[must_use]
    pub fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len() })
    }
}

// === impl LayerBuilder ===

impl LayerBuilder {
    /// Adds a directory owned by root.
    #[must_use]
    pub fn dir(self, path: &str, mode: u32) -> Self {
        self.entry(path, mode, 0, 0, TarEntryKind::Directory)
    }

    /// Adds a file owned by root.
    #[must_use]
    pub fn file(self, path: &str, bytes: impl Into<Vec<u8>>, mode: u32) -> Self {
        self.entry(path, mode, 0, 0, TarEntryKind::File(bytes.into()))
    }

    /// Adds a hard link to `target`, which an earlier entry of this layer made.
    #[must_use]
    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(path, 0o755, 0, 0, TarEntryKind::HardLink(target.to_owned()))
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, 0o777, 0, 0, TarEntryKind::Symlink(target.to_owned()))
    }

    /// Adds the mark that removes `path` of the layers below (OCI image-spec, whiteouts).
    #[must_use]
    pub fn whiteout(self, path: &str) -> Self {
        let marked = match path.rsplit_once('/') {
            Some((dir, name)) => format!("{dir}/.wh.{name}"),
            None => format!(".wh.{path}"),
        };
        self.file(&marked, Vec::new(), 0o644)
    }

    /// Adds any entry.
    #[must_use]
    pub fn entry(mut self, path: &str, mode: u32, uid: u32, gid: u32, kind: TarEntryKind) -> Self {
        self.entries.push(TarEntry {
            path: path.to_owned(),
            mode,
            uid,
            gid,
            kind,
        });
        self
    }

    /// The layer, compressed with gzip.
    #[must_use]
    pub fn build(&self) -> Layer {
        let tar = ustar::archive(&self.entries);
        let mut gzip = GzBuilder::new()
            .mtime(0)
            .write(Vec::new(), Compression::fast());
        let written = gzip.write_all(&tar).and_then(|()| gzip.finish());
        Layer {
            bytes: written.expect("a vector takes every write"),
            diff_id: digest(&tar),
            gzip: true,
        }
    }

    /// The layer as a plain archive.
    #[must_use]
    pub fn build_uncompressed(&self) -> Layer {
        let tar = ustar::archive(&self.entries);
        Layer {
            diff_id: digest(&tar),
            bytes: tar,
            gzip: false,
        }
    }
}

// === impl ImageBuilder ===

impl Default for ImageBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl ImageBuilder {
    /// An image without layers, of OCI media types, for the host's platform.
    #[must_use]
    pub fn new() -> Self {
        Self {
            family: Family::Oci,
            architecture: host_architecture().to_owned(),
            layers: Vec::new(),
            config: json!({}),
        }
    }

    /// Chooses the media types.
    #[must_use]
    pub fn family(mut self, family: Family) -> Self {
        self.family = family;
        self
    }

    /// Chooses the architecture, by its Go name (`amd64`, `arm64`, `s390x`).
    #[must_use]
    pub fn architecture(mut self, architecture: &str) -> Self {
        self.architecture = architecture.to_owned();
        self
    }

    /// Adds a layer on top.
    #[must_use]
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    /// Adds a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        let mut env = self.config["Env"].as_array().cloned().unwrap_or_default();
        env.push(json!(format!("{name}={value}")));
        self.config["Env"] = json!(env);
        self
    }

    /// Sets the user (`user`, `uid`, `user:group`, `uid:gid`).
    #[must_use]
    pub fn user(self, user: &str) -> Self {
        self.set("User", json!(user))
    }

    /// Sets the entry point.
    #[must_use]
    pub fn entrypoint(self, words: &[&str]) -> Self {
        self.set("Entrypoint", json!(words))
    }

    /// Sets the command.
    #[must_use]
    pub fn cmd(self, words: &[&str]) -> Self {
        self.set("Cmd", json!(words))
    }

    /// Sets the working directory.
    #[must_use]
    pub fn working_dir(self, dir: &str) -> Self {
        self.set("WorkingDir", json!(dir))
    }

    /// Sets the signal that stops it (`SIGQUIT`, `3`).
    #[must_use]
    pub fn stop_signal(self, signal: &str) -> Self {
        self.set("StopSignal", json!(signal))
    }

    /// Adds a volume.
    #[must_use]
    pub fn volume(mut self, path: &str) -> Self {
        self.config["Volumes"][path] = json!({});
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.config["Labels"][name] = json!(value);
        self
    }

    /// Sets any field of the configuration's `config` object, also to something wrong.
    #[must_use]
    pub fn set(mut self, field: &str, value: Value) -> Self {
        self.config[field] = value;
        self
    }

    /// The image.
    #[must_use]
    pub fn build(&self) -> Image {
        let platform = json!({ "architecture": self.architecture, "os": "linux" });
        let diff_ids: Vec<_> = self.layers.iter().map(|layer| &layer.diff_id).collect();
        let history: Vec<_> = self
            .layers
            .iter()
            .map(|_| json!({ "created_by": "switchyard tests" }))
            .collect();
        let config = json!({
            "architecture": self.architecture, "os": "linux", "created": "2026-01-01T00:00:00Z", "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids }, "history": history,
        });
        let config = Blob::new(self.family.config(), to_bytes(&config));
        let layers: Vec<_> = self
            .layers
            .iter()
            .map(|layer| Blob::new(self.family.layer(layer.gzip), layer.bytes.clone()))
            .collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": self.family.manifest(), "config": config.descriptor(),
            "layers": layers.iter().map(Blob::descriptor).collect::<Vec<_>>(),
        });
        let manifest = Blob::new(self.family.manifest(), to_bytes(&manifest));
        Image {
            config,
            layers,
            manifest,
            platform,
        }
    }
}

// === impl Index ===

impl Index {
    /// An index of `images`, in their order.
    #[must_use]
    pub fn new(family: Family, images: Vec<Image>) -> Self {
        let manifests: Vec<_> = images
            .iter()
            .map(|image| {
                let mut descriptor = image.manifest.descriptor();
                descriptor["platform"] = image.platform.clone();
                descriptor
            })
            .collect();
        let index =
            json!({ "schemaVersion": 2, "mediaType": family.index(), "manifests": manifests });
        Self {
            images,
            manifest: Blob::new(family.index(), to_bytes(&index)),
        }
    }
}

// === impl Family ===

impl Family {
    fn config(self) -> &'static str {
        match self {
            Self::Oci => "application/vnd.oci.image.config.v1+json",
            Self::Docker => "application/vnd.docker.container.image.v1+json",
        }
    }

    fn layer(self, gzip: bool) -> &'static str {
        match (self, gzip) {
            (Self::Oci, true) => "application/vnd.oci.image.layer.v1.tar+gzip",
            (Self::Oci, false) => "application/vnd.oci.image.layer.v1.tar",
            (Self::Docker, true) => "application/vnd.docker.image.rootfs.diff.tar.gzip",
            (Self::Docker, false) => "application/vnd.docker.image.rootfs.diff.tar",
        }
    }

    fn manifest(self) -> &'static str {
        match self {
            Self::Oci => "application/vnd.oci.image.manifest.v1+json",
            Self::Docker => "application/vnd.docker.distribution.manifest.v2+json",
        }
    }

    fn index(self) -> &'static str {
        match self {
            Self::Oci => "application/vnd.oci.image.index.v1+json",
            Self::Docker => "application/vnd.docker.distribution.manifest.list.v2+json",
        }
    }
}

fn build_busybox_layer() -> Layer {
    let path = prereq::require_static_busybox();
    let binary = std::fs::read(&path).expect("busybox was just found, so it can be read");
    let list = Command::new(&path)
        .arg("--list")
        .output()
        .expect("busybox was just found, so it runs");
    let applets = String::from_utf8(list.stdout).expect("the names of applets are ASCII");

    let mut layer = LayerBuilder::default();
    for dir in [
        "bin", "dev", "etc", "home", "proc", "root", "run", "sys", "usr", "usr/bin", "usr/sbin",
        "var",
    ] {
        layer = layer.dir(dir, 0o755);
    }
    layer = layer
        .dir("tmp", 0o1777)
        .entry("home/app", 0o755, 1000, 1000, TarEntryKind::Directory)
        .file("etc/passwd", PASSWD, 0o644)
        .file("etc/group", GROUP, 0o644)
        .file("bin/busybox", binary, 0o755);
    for applet in applets.split_whitespace().filter(|name| *name != "busybox") {
        layer = layer.hard_link(&format!("bin/{applet}"), "bin/busybox");
    }
    layer.build()
}

fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

fn to_bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a JSON value with text keys always serializes")
}
