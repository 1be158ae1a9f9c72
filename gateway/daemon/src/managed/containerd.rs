//! The private containerd of `containerd.mode = "managed"`: its configuration, its command and its health
//! probe.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_config::Config;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{self, Durable};
use switchyard_linux::report;
use switchyard_socket::channel;
use toml::Table;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use super::containerd_config::{generate, has_entries};
use super::oom_score::OomScore;
use super::{Program, Timeouts, make_dir};

/// The timeout of one probe.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// containerd's directory of unfinished downloads, below its root.
const DOWNLOADS: &str = "io.containerd.content.v1.content/ingest";

/// The maximum number of downloads that are checked; it is more than ever exist at the same time.
const MOST_DOWNLOADS: usize = 10_000;

/// The managed containerd as a program to supervise; `exe` is our own binary.
#[must_use]
pub fn program(config: &Config, exe: &Path) -> Program {
    let state = config.paths.state.join("containerd");
    let run = config.paths.run.join("containerd");
    let file = state.join("config.toml");
    let socket = config.containerd_socket();
    let root = state.join("root");
    let table = generate(config, &OomScore::of_this_process(), |plugin| {
        has_entries(&root.join(plugin))
    });
    let dirs = dirs(config);
    let wanted = table.clone();
    let present = file.clone();
    let target = file.clone();
    let namespace = config.containerd.namespace.clone();
    let downloads = root.join(DOWNLOADS);
    let prepare = move || {
        configure(&target, &dirs, &table)?;
        clear_nameless(&downloads);
        Ok(())
    };
    Program {
        name: "containerd",
        exe: exe.to_owned(),
        command: vec![
            config.containerd.binary.clone(),
            "--config".into(),
            file.display().to_string(),
        ],
        pid_file: run.join("containerd.pid"),
        log: state.join("containerd.log"),
        prepare: Arc::new(prepare),
        is_configuration_current: Arc::new(move || is_current(&present, &wanted)),
        probe: Arc::new(move || Box::pin(probe(socket.clone(), namespace.clone()))),
        timeouts: Timeouts::of(&config.managed),
    }
}

/// The directories that must exist when containerd starts, with their modes.
fn dirs(config: &Config) -> Vec<(PathBuf, u32)> {
    let run = config.paths.run.join("containerd");
    let state = run.join("state");
    // A starting containerd removes data of former tasks below its root, but only for namespaces that it
    // finds in this directory: none after a reboot, which empties it.
    let tasks = state.join("io.containerd.runtime.v2.task");
    let of_namespace = tasks.join(&config.containerd.namespace);
    // Tasks in user namespaces must be able to traverse it.
    let open = [run, state, tasks, of_namespace].map(|dir| (dir, 0o711));
    std::iter::once((config.paths.state.join("containerd"), 0o700))
        .chain(open)
        .collect()
}

/// The first line of the configuration.
const HEAD: &str = "# Written by switchyard for its managed containerd, at a start at which it differs; changes are lost.\n";

/// Makes the directories, and the configuration if it differs from what is wanted. A configuration that cannot be
/// written and may be used as it is, is used: containerd starts on a full disk too, and without it nothing can be
/// removed from that disk.
fn configure(file: &Path, dirs: &[(PathBuf, u32)], wanted: &Table) -> io::Result<()> {
    dirs.iter()
        .try_for_each(|(dir, mode)| make_dir(dir, *mode))?;
    let text = format!("{HEAD}{wanted}");
    let present = fs::read_to_string(file).unwrap_or_default();
    if present == text {
        return Ok(());
    }
    let Err(error) = replace(file, &text) else {
        return Ok(());
    };
    if !serves_alike(&present, wanted) {
        return Err(error);
    }
    tracing::warn!(file = %file.display(), %error, "cannot write containerd's configuration: it starts with the present one, which an earlier start wrote");
    Ok(())
}

/// Returns whether the running containerd has read the wanted configuration: the file is as it has read it, since only a
/// start writes it, after the process before has ended. `None` if the file cannot be read.
fn is_current(file: &Path, wanted: &Table) -> Option<bool> {
    match fs::read_to_string(file) {
        Ok(present) => Some(
            present
                .parse::<Table>()
                .is_ok_and(|present| present == *wanted),
        ),
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "cannot read the configuration of the running containerd, to compare it");
            None
        }
    }
}

/// Not durable: each start writes a configuration that differs.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    files::replace(file, text.as_bytes(), 0o644, Durable::No, || {
        reach(CrashPoint::ContainerdDrafted)
    })?;
    reach(CrashPoint::ContainerdConfigured);
    Ok(())
}

/// Returns whether a containerd with this configuration would serve the same containers at the same address
/// as one with the wanted configuration. Pure.
fn serves_alike(present: &str, wanted: &Table) -> bool {
    let Ok(present) = present.parse::<Table>() else {
        return false;
    };
    ["version", "root", "state", "grpc"]
        .iter()
        .all(|key| present.get(*key) == wanted.get(*key))
}

/// Removes downloads without a name; returns how many. containerd identifies a download by a name that it
/// stores in the download's directory, and it syncs neither. So after a power cut a finished download may
/// exist again with an empty name or none; containerd's garbage collector skips it for ever, with a log line
/// at each collection. No containerd is running that could be about to write the name. Errors are only
/// logged.
fn clear_nameless(downloads: &Path) -> usize {
    let Ok(entries) = fs::read_dir(downloads) else {
        return 0;
    };
    let mut removed = 0;
    for dir in entries
        .flatten()
        .take(MOST_DOWNLOADS)
        .map(|entry| entry.path())
    {
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
                tracing::warn!(dir = %dir.display(), %error, "cannot remove an unfinished download without a name");
            }
        }
    }
    if removed > 0 {
        tracing::info!(
            removed,
            "removed downloads without a name, which a power cut leaves"
        );
    }
    removed
}

/// Queries containerd's version, and one record of its database, because a containerd whose database hangs
/// cannot serve.
async fn probe(socket: PathBuf, namespace: String) -> Result<String, String> {
    let asked = async {
        let channel = channel::grpc(&socket)
            .await
            .map_err(|error| report(&error))?;
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(|error| report(&error))?;
        let version: VersionResponse = ask(&mut grpc, VERSION, ())
            .await
            .map_err(|status| report(&status))?;
        grpc.ready().await.map_err(|error| report(&error))?;
        match ask(
            &mut grpc,
            NAMESPACE,
            GetNamespaceRequest { name: namespace },
        )
        .await
        {
            Ok(()) => {}
            // The namespace does not exist before its first object is created.
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

/// The response of [`VERSION`], whose first field is the version.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct VersionResponse {
    #[prost(string, tag = "1")]
    version: String,
}

/// The request of [`NAMESPACE`].
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
    Ok(grpc
        .unary(tonic::Request::new(request), path, codec)
        .await?
        .into_inner())
}

#[cfg(test)]
mod tests {
    use toml::Value;

    use super::super::containerd_config::DISABLED_PLUGINS;
    use super::*;

    /// The configuration for a state directory.
    fn table(state: &Path) -> Table {
        let mut config = Config::default();
        config.paths.state = state.into();
        generate(
            &config,
            &OomScore {
                current: 0,
                may_lower: true,
            },
            |_| false,
        )
    }

    #[test]
    fn configuration_that_is_as_wanted_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("containerd/config.toml");
        let dirs = [(file.parent().unwrap().to_owned(), 0o700)];
        configure(&file, &dirs, &table(dir.path())).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        // No file can be written at the place of the draft.
        fs::create_dir(files::draft_of(&file)).unwrap();
        configure(&file, &dirs, &table(dir.path())).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }

    #[test]
    fn disk_that_cannot_be_written_keeps_the_configuration_of_the_same_containerd_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        // No file can be written at the place of the draft.
        fs::create_dir(files::draft_of(&file)).unwrap();
        let wanted = table(dir.path());
        let mut earlier = wanted.clone();
        earlier.insert("oom_score".into(), Value::Integer(-1));
        let elsewhere = table(&dir.path().join("elsewhere"));
        for (present, is_used) in [
            (earlier.to_string(), true),
            (elsewhere.to_string(), false),
            ("root = ".to_owned(), false),
            (String::new(), false),
        ] {
            fs::write(&file, &present).unwrap();
            let configured = configure(&file, &[], &wanted).map_err(|error| error.kind());
            assert_eq!(
                configured,
                if is_used {
                    Ok(())
                } else {
                    Err(io::ErrorKind::IsADirectory)
                },
                "{present}"
            );
            assert_eq!(fs::read_to_string(&file).unwrap(), present);
        }
    }

    #[test]
    fn configuration_of_the_running_containerd_is_compared_by_its_meaning() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        let wanted = table(dir.path());
        assert_eq!(is_current(&file, &wanted), None);
        configure(&file, &[], &wanted).unwrap();
        assert_eq!(is_current(&file, &wanted), Some(true));
        // Another version may write another comment.
        fs::write(&file, format!("# By an earlier version.\n{wanted}")).unwrap();
        assert_eq!(is_current(&file, &wanted), Some(true));
        let mut earlier = wanted.clone();
        let fewer = DISABLED_PLUGINS[1..].iter().copied().map(Value::from);
        earlier.insert("disabled_plugins".into(), Value::Array(fewer.collect()));
        for text in [earlier.to_string(), "root = ".to_owned()] {
            fs::write(&file, text).unwrap();
            assert_eq!(is_current(&file, &wanted), Some(false));
        }
    }

    #[test]
    fn unnamed_downloads_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, files: &[(&str, &str)]| {
            fs::create_dir(dir.path().join(name)).unwrap();
            files.iter().for_each(|(file, text)| {
                fs::write(dir.path().join(name).join(file), text).unwrap()
            });
        };
        make("empty", &[]);
        make(
            "empty-name",
            &[("ref", ""), ("data", "x"), ("startedat", "")],
        );
        make("no-name", &[("data", "x")]);
        make("named", &[("ref", "k8s.io/1/layer-sha256:x"), ("data", "")]);
        fs::write(dir.path().join("a-file"), "").unwrap();
        for removed in [3, 0] {
            assert_eq!(clear_nameless(dir.path()), removed);
            let mut left: Vec<_> = fs::read_dir(dir.path())
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            left.sort();
            assert_eq!(left, ["a-file", "named"]);
        }
        assert_eq!(clear_nameless(&dir.path().join("none")), 0);
    }

    #[tokio::test]
    async fn unserved_socket_is_not_responsive() {
        let dir = tempfile::tempdir().unwrap();
        let error = probe(dir.path().join("none.sock"), "k8s.io".to_owned())
            .await
            .unwrap_err();
        assert!(error.contains("No such file"), "{error}");
    }
}
