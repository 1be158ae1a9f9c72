//! The private containerd of `containerd.mode = "managed"`: its configuration, its command and how it is asked for life.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_steps::{Step, reach};
use toml::{Table, Value};
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use super::{Program, Timeouts, make_dir};
use crate::channel::{self, report};
use crate::config::Config;

/// How long one question may take.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// Plugins that a gateway has no use for: containerd's own CRI in all its generations, what only CRI needs, the restart monitor (under
/// its name of 1.x and that of 2.x), which starts containers by their labels, behind the gateway's back, and snapshotters that warn at
/// each start where their kernel part is missing. Names that a release does not have are ignored by it.
const DISABLED_PLUGINS: [&str; 13] = [
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.images",
    "io.containerd.cri.v1.runtime",
    "io.containerd.podsandbox.controller.v1.podsandbox",
    "io.containerd.nri.v1.nri",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.restart",
    "io.containerd.monitor.container.v1.restart",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
];

/// Where containerd keeps downloads that have not ended, below its root.
const DOWNLOADS: &str = "io.containerd.content.v1.content/ingest";

/// As many of these are looked at as at most are there in earnest.
const MOST_DOWNLOADS: usize = 10_000;

/// The bit of CAP_SYS_RESOURCE (capabilities(7)).
const CAP_SYS_RESOURCE: u32 = 24;

/// The managed containerd as a program to supervise; `exe` is our own binary.
#[must_use]
pub fn program(config: &Config, exe: &Path) -> Program {
    let state = config.paths.state.join("containerd");
    let run = config.paths.run.join("containerd");
    let file = state.join("config.toml");
    let socket = config.containerd_socket();
    let text = generate(config, &OomScore::of_this_process()).to_string();
    let dirs = dirs(config);
    let target = file.clone();
    let namespace = config.containerd.namespace.clone();
    let downloads = state.join("root").join(DOWNLOADS);
    let prepare = move || {
        write(&target, &dirs, &text)?;
        clear_nameless(&downloads);
        Ok(())
    };
    Program {
        name: "containerd",
        exe: exe.to_owned(),
        command: vec![config.containerd.binary.clone(), "--config".into(), file.display().to_string()],
        pid_file: run.join("containerd.pid"),
        log: state.join("containerd.log"),
        prepare: Arc::new(prepare),
        probe: Arc::new(move || Box::pin(probe(socket.clone(), namespace.clone()))),
        timeouts: Timeouts::of(&config.managed),
    }
}

/// The directories that it finds when it starts, with their modes.
fn dirs(config: &Config) -> Vec<(PathBuf, u32)> {
    let run = config.paths.run.join("containerd");
    let state = run.join("state");
    // A starting containerd clears away what tasks that are gone have left below its root, but only for the namespaces that it finds here:
    // none after a reboot, which takes these directories along.
    let tasks = state.join("io.containerd.runtime.v2.task");
    let of_namespace = tasks.join(&config.containerd.namespace);
    // Tasks with user namespaces of their own have to pass through.
    let open = [run, state, tasks, of_namespace].map(|dir| (dir, 0o711));
    std::iter::once((config.paths.state.join("containerd"), 0o700)).chain(open).collect()
}

fn write(file: &Path, dirs: &[(PathBuf, u32)], text: &str) -> io::Result<()> {
    dirs.iter().try_for_each(|(dir, mode)| make_dir(dir, *mode))?;
    let new = file.with_extension("toml.new");
    fs::write(
        &new,
        format!("# Written by switchyard at each start of its managed containerd; changes are lost.\n{text}"),
    )?;
    reach(Step::ContainerdDrafted);
    fs::rename(new, file)?;
    reach(Step::ContainerdConfigured);
    Ok(())
}

/// Removes downloads without a name; gives how many. containerd knows a download by the name that is in its directory and syncs neither, so
/// that after a power cut one that had ended is there again with an empty name or none: containerd's collector passes over it for ever, and
/// with a log line at each collection. No containerd runs that could be about to write the name. What cannot be removed is left.
fn clear_nameless(downloads: &Path) -> usize {
    let Ok(entries) = fs::read_dir(downloads) else { return 0 };
    let mut removed = 0;
    for dir in entries.flatten().take(MOST_DOWNLOADS).map(|entry| entry.path()) {
        let is_nameless = match fs::metadata(dir.join("ref")) {
            Ok(name) => name.len() == 0,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if !is_nameless {
            continue;
        }
        match fs::remove_dir_all(&dir) {
            Ok(()) => removed += 1,
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "what is left of a download cannot be removed");
            }
        }
    }
    if removed > 0 {
        tracing::info!(removed, "downloads without a name are removed, as a power cut leaves them");
    }
    removed
}

/// containerd's configuration, in version 2 of its form: 1.6 reads no later one, and later releases read it.
fn generate(config: &Config, oom: &OomScore) -> Table {
    let text = |path: &Path| Value::String(path.display().to_string());
    let run = config.paths.run.join("containerd");
    let disabled = DISABLED_PLUGINS.into_iter().map(Value::from).collect();
    let mut table = Table::from_iter([
        ("version".to_owned(), Value::Integer(2)),
        ("root".to_owned(), text(&config.paths.state.join("containerd/root"))),
        ("state".to_owned(), text(&run.join("state"))),
        ("temp".to_owned(), Value::from("")),
        ("disabled_plugins".to_owned(), Value::Array(disabled)),
        (
            "grpc".to_owned(),
            Value::Table(Table::from_iter([("address".to_owned(), text(&config.containerd_socket()))])),
        ),
    ]);
    if let Some(score) = oom.allowed(config.managed.oom_score) {
        table.insert("oom_score".into(), Value::Integer(score.into()));
    }
    table
}

/// What this process may do about scores of the OOM killer (proc(5), `oom_score_adj`).
struct OomScore {
    current: i32,
    may_lower: bool,
}

impl OomScore {
    fn of_this_process() -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let capabilities = read("status")
            .lines()
            .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
            .unwrap_or_default();
        Self {
            current: read("oom_score_adj").trim().parse().unwrap_or_default(),
            may_lower: capabilities & (1 << CAP_SYS_RESOURCE) != 0,
        }
    }

    /// The score nearest to `wanted` that a child can be given; `None` is the one it has anyway. containerd does not start
    /// if it is told to set a score that it may not.
    fn allowed(&self, wanted: i32) -> Option<i32> {
        let score = if self.may_lower { wanted } else { wanted.max(self.current) };
        (score != self.current).then_some(score)
    }
}

/// Asks containerd for its version, and for one record: one whose database hangs is as good as none.
async fn probe(socket: PathBuf, namespace: String) -> Result<String, String> {
    let asked = async {
        let channel = channel::grpc(&socket).await.map_err(|error| report(&error))?;
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(|error| report(&error))?;
        let version: VersionResponse = ask(&mut grpc, VERSION, ()).await.map_err(|status| report(&status))?;
        grpc.ready().await.map_err(|error| report(&error))?;
        match ask(&mut grpc, NAMESPACE, GetNamespaceRequest { name: namespace }).await {
            Ok(()) => {}
            // It is made with the first object in it.
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => return Err(report(&status)),
        }
        Ok(format!("containerd {}", version.version))
    };
    let asked = tokio::time::timeout(PROBE_LIMIT, asked).await;
    asked.unwrap_or_else(|_| Err(format!("no answer within {PROBE_LIMIT:?}")))
}

/// containerd `services.version.v1.Version.Version`.
const VERSION: &str = "/containerd.services.version.v1.Version/Version";
/// containerd `services.namespaces.v1.Namespaces.Get`.
const NAMESPACE: &str = "/containerd.services.namespaces.v1.Namespaces/Get";

/// The answer of [`VERSION`], whose first field is the version.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct VersionResponse {
    #[prost(string, tag = "1")]
    version: String,
}

/// What [`NAMESPACE`] is asked.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct GetNamespaceRequest {
    #[prost(string, tag = "1")]
    name: String,
}

/// Calls a method of a service that is ready.
async fn ask<Q, A>(grpc: &mut Grpc<Channel>, method: &'static str, request: Q) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let path = http::uri::PathAndQuery::from_static(method);
    let codec = ProstCodec::<Q, A>::default();
    Ok(grpc.unary(tonic::Request::new(request), path, codec).await?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_keeps_containerd_below_our_directories_and_its_cri_off() {
        let mut config = Config::default();
        config.paths.state = "/s".into();
        config.paths.run = "/r".into();
        let table = generate(&config, &OomScore { current: 0, may_lower: true });
        assert_eq!(table["root"].as_str(), Some("/s/containerd/root"));
        assert_eq!(table["state"].as_str(), Some("/r/containerd/state"));
        assert_eq!(table["grpc"]["address"].as_str(), Some("/r/containerd/containerd.sock"));
        assert_eq!(table["oom_score"].as_integer(), Some(-999));
        assert!(table["disabled_plugins"].as_array().unwrap().contains(&"io.containerd.grpc.v1.cri".into()));
        assert_eq!(table.to_string().parse::<Table>().unwrap(), table);
    }

    #[test]
    fn of_downloads_those_without_a_name_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, files: &[(&str, &str)]| {
            fs::create_dir(dir.path().join(name)).unwrap();
            files.iter().for_each(|(file, text)| fs::write(dir.path().join(name).join(file), text).unwrap());
        };
        make("empty", &[]);
        make("empty-name", &[("ref", ""), ("data", "x"), ("startedat", "")]);
        make("no-name", &[("data", "x")]);
        make("named", &[("ref", "k8s.io/1/layer-sha256:x"), ("data", "")]);
        fs::write(dir.path().join("a-file"), "").unwrap();
        for removed in [3, 0] {
            assert_eq!(clear_nameless(dir.path()), removed);
            let mut left: Vec<_> =
                fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            left.sort();
            assert_eq!(left, ["a-file", "named"]);
        }
        assert_eq!(clear_nameless(&dir.path().join("none")), 0);
    }

    #[test]
    fn a_score_is_kept_at_what_may_be_set() {
        assert_eq!(OomScore { current: 0, may_lower: false }.allowed(-999), None);
        assert_eq!(OomScore { current: -5, may_lower: false }.allowed(-999), None);
        assert_eq!(OomScore { current: 0, may_lower: false }.allowed(100), Some(100));
        assert_eq!(OomScore { current: 0, may_lower: true }.allowed(-999), Some(-999));
        assert_eq!(OomScore { current: -999, may_lower: true }.allowed(-999), None);
    }

    #[tokio::test]
    async fn a_socket_that_nobody_serves_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let error = probe(dir.path().join("none.sock"), "k8s.io".to_owned()).await.unwrap_err();
        assert!(error.contains("No such file"), "{error}");
    }
}
