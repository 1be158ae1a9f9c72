//! The features of OCI runtimes: queried from runtimes with a `features` command, found by trials for others,
//! never inferred from a version.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use switchyard_core::{Error, Result};
use switchyard_linux::host_features::in_user_namespace;
use switchyard_namespaces::{PROGRAM, with_own_mounts};
use tokio::process::Command;
use tokio::sync::watch;

use crate::base::disks::is_unwritable;
use crate::base::error::from_namespaces;
use crate::base::fs::{blocking, io_error, remove_tree};
use crate::base::null_device;
use crate::base::random::fill_random;
use crate::node::advisories::parse_version_output;
use crate::node::userns;

/// Limit for a runtime to answer a query, or to run a small program.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit for which a request that depends on the features waits for the first probes.
const FIRST_PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval between two checks whether a program has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(3);
/// The environment variable with the socket of the service manager; not passed on to runtimes.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// The name of the directories for trials, below the state and run directories.
const TRIALS_DIR: &str = "probe";
/// The file that caches the results, below the run directory, for the next daemon of this boot.
const CACHE_FILE: &str = "probe.json";

/// The results of probing the runtimes and the node. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuntimeProbes {
    results: Arc<Mutex<ProbeResults>>,
    completed: Arc<watch::Sender<bool>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ProbeResults {
    runtimes: BTreeMap<String, RuntimeFeatures>,
    /// The reason why idmapped mounts do not work on this node; `None` if they do.
    no_mapping: Option<String>,
    /// The name and version of each runtime that prints them.
    #[serde(default)]
    versions: BTreeMap<String, (String, String)>,
    /// The trials that runtimes did not pass, of which the log of this daemon has a warning.
    #[serde(skip)]
    failed_trials: BTreeSet<String>,
}

/// The features of a runtime that are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct RuntimeFeatures {
    /// Recursively read-only mounts (`rro`).
    pub(crate) recursive_readonly: bool,
    /// User namespaces.
    pub(crate) users: bool,
}

/// A feature that is tried with a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    RecursiveReadonly,
    Users,
}

// === impl RuntimeProbes ===

impl RuntimeProbes {
    /// The features of the runtime with this name; none until it has been probed.
    pub(crate) fn features_of(&self, binary: &str) -> RuntimeFeatures {
        let known = self.results.lock();
        known.runtimes.get(binary).copied().unwrap_or_default()
    }

    /// Returns the reason why idmapped mounts do not work on this node; `None` if they do.
    pub(crate) fn idmap_unavailable(&self) -> Option<String> {
        self.results.lock().no_mapping.clone()
    }

    /// The names and versions that the runtimes print: for reports only, never for decisions.
    pub(crate) fn versions(&self) -> Vec<(String, String)> {
        let known = self.results.lock();
        known.versions.values().cloned().collect()
    }

    /// Returns whether all runtimes have been probed once, by this daemon or by a predecessor in this boot.
    pub(crate) fn is_complete(&self) -> bool {
        *self.completed.borrow()
    }

    /// Loads the results of a predecessor in this boot, so that a restarted daemon has results before its own
    /// probes are done. Those of a runtime that was replaced meanwhile are corrected by the probes.
    pub(crate) async fn load_cached(&self, binaries: &[String], run: &Path) {
        let Ok(text) = tokio::fs::read(run.join(CACHE_FILE)).await else {
            return;
        };
        // A file that a killed daemon wrote only in part is ignored.
        let Ok(cached) = serde_json::from_slice::<ProbeResults>(&text) else {
            return;
        };
        if binaries
            .iter()
            .all(|binary| cached.runtimes.contains_key(binary))
        {
            *self.results.lock() = cached;
            self.completed.send_replace(true);
        }
    }

    /// Waits until all runtimes have been probed once, for at most [`FIRST_PROBE_TIMEOUT`]. Cancel-safe.
    pub(crate) async fn wait_completed(&self) {
        let mut completed = self.completed.subscribe();
        // After the timeout, a runtime without a result counts as one without these features.
        let _ = tokio::time::timeout(
            FIRST_PROBE_TIMEOUT,
            completed.wait_for(|completed| *completed),
        )
        .await;
    }

    /// Probes these runtimes and the node. Works in directories below `state`, which is on the disk of the
    /// snapshots, and below `run`, which does not outlive a reboot. On disks that cannot be written at the
    /// moment nothing can be tried: what is known stays.
    pub(crate) async fn probe_all(&self, binaries: &[String], state: &Path, run: &Path) {
        if let Err(error) = remove_tree(&run.join(TRIALS_DIR)).await {
            tracing::warn!(
                error = error.report(),
                "the remains of earlier runtime trials cannot be removed"
            );
        }
        let trial = state.join(TRIALS_DIR);
        let below = run.to_path_buf();
        let tried = blocking(move || {
            userns::try_idmap(&trial).and_then(|()| userns::check_traversable(&below))
        });
        match tried.await {
            Err(error) if is_unwritable(&error) && self.is_complete() => {
                tracing::warn!(
                    error = error.report(),
                    "it cannot be tried whether pods can have user namespaces"
                );
            }
            tried => {
                let no_mapping = tried
                    .err()
                    .map(|error| userns::why_not_mapped(error.report(), in_user_namespace()));
                if let Some(reason) = &no_mapping {
                    tracing::info!(reason, "pods cannot have user namespaces on this node");
                }
                self.results.lock().no_mapping = no_mapping;
            }
        }
        for binary in binaries {
            let can = self.probe_runtime(binary, run).await;
            tracing::debug!(binary, ?can, "an OCI runtime is probed");
            let version = query_version(binary).await;
            let mut known = self.results.lock();
            known.runtimes.insert(binary.clone(), can);
            match version {
                Some(version) => known.versions.insert(binary.clone(), version),
                None => known.versions.remove(binary),
            };
        }
        self.completed.send_replace(true);
        let answers = self.results.lock().clone();
        let path = run.join(CACHE_FILE);
        let text = json!(answers).to_string();
        if let Err(fault) = tokio::fs::write(&path, text).await {
            let error = io_error("write", &path, fault);
            tracing::warn!(
                error = error.report(),
                "the features of runtimes cannot be cached for the next daemon"
            );
        }
    }

    async fn probe_runtime(&self, binary: &str, run: &Path) -> RuntimeFeatures {
        let features = match query_features(binary).await {
            Ok(features) => features,
            Err(error) => {
                tracing::debug!(
                    binary,
                    error = error.report(),
                    "an OCI runtime cannot be queried"
                );
                return RuntimeFeatures::default();
            }
        };
        if let Some(features) = features {
            return RuntimeFeatures::from_features(&features);
        }
        let RuntimeFeatures {
            recursive_readonly,
            users,
        } = self.features_of(binary);
        RuntimeFeatures {
            recursive_readonly: self
                .passes(binary, Trial::RecursiveReadonly, run)
                .await
                .unwrap_or(recursive_readonly),
            users: self
                .passes(binary, Trial::Users, run)
                .await
                .unwrap_or(users),
        }
    }

    /// Returns whether a runtime passes a trial, or warns once; `None` if the trial needs a disk that cannot be written.
    async fn passes(&self, binary: &str, trial: Trial, run: &Path) -> Option<bool> {
        let name = binary.to_owned();
        let place = run.to_path_buf();
        let tried = blocking(move || run_trial(&name, trial, &place)).await;
        let key = format!("{binary} {trial:?}");
        let Err(error) = tried else {
            self.results.lock().failed_trials.remove(&key);
            return Some(true);
        };
        if is_unwritable(&error) {
            tracing::warn!(
                binary,
                ?trial,
                error = error.report(),
                "an OCI runtime cannot be tried: what is known of it stays"
            );
            return None;
        }
        if self.results.lock().failed_trials.insert(key) {
            tracing::warn!(
                binary,
                ?trial,
                error = error.report(),
                "an OCI runtime did not pass a trial: what it tries is refused with this runtime"
            );
        }
        Some(false)
    }
}

impl RuntimeFeatures {
    fn from_features(features: &Value) -> Self {
        let has = |list: &Value, wanted: &str| {
            list.as_array()
                .is_some_and(|list| list.iter().any(|word| word == wanted))
        };
        Self {
            recursive_readonly: has(&features["mountOptions"], "rro"),
            users: has(&features["linux"]["namespaces"], "user"),
        }
    }
}

/// The JSON that a runtime's `features` command prints; `None` if it has no such command.
///
/// # Errors
/// If it cannot be run, or hangs.
async fn query_features(binary: &str) -> Result<Option<Value>> {
    Ok(serde_json::from_slice(&query_runtime(binary, "features").await?).ok())
}

/// The name and version of a runtime; `None` if it does not print them.
async fn query_version(binary: &str) -> Option<(String, String)> {
    let output = query_runtime(binary, "--version").await.ok()?;
    parse_version_output(&String::from_utf8_lossy(&output))
}

/// The output of a runtime that is run with one argument.
async fn query_runtime(binary: &str, question: &str) -> Result<Vec<u8>> {
    let failed = |what: &str| Error::unimplemented(format!("{binary} {question}: {what}"));
    let mut command = Command::new(binary);
    command
        .arg(question)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(RUNTIME_TIMEOUT, command.output())
        .await
        .map_err(|_| failed("timed out"))?
        .map_err(|fault| failed("cannot be run").with_source(fault))?;
    Ok(output.stdout)
}

/// Has a runtime run a small program that succeeds only if the tried feature is in effect. The mounts are
/// made in a mount namespace of their own; a directory that a killed daemon left is removed by the next
/// probe. Blocks.
fn run_trial(binary: &str, trial: Trial, run: &Path) -> Result<()> {
    let mut random = [0; 6];
    fill_random(&mut random);
    let id = format!("switchyard-probe-{}", hex::encode(random));
    let dir = run.join(TRIALS_DIR).join(&id);
    let spec = trial_spec(trial, &dir, &id);
    let outcome = with_own_mounts(|| {
        make_bundle(&dir, &spec).and_then(|()| run_trial_bundle(binary, &dir, &id))
    });
    null_device::give_back();
    // If it was not even made, that error counts; what stays is removed by the next probe.
    let _ = std::fs::remove_dir_all(&dir);
    outcome.map_err(from_namespaces)?
}

fn run_trial_bundle(binary: &str, dir: &Path, id: &str) -> Result<()> {
    let failed = |what: &str| Error::unimplemented(format!("trial of {binary}: {what}"));
    let root = dir.join("state");
    let errors = dir.join("errors");
    let run_it = |words: &[&str]| -> Result<bool> {
        let log =
            std::fs::File::create(&errors).map_err(|fault| io_error("write", &errors, fault))?;
        let mut command = std::process::Command::new(binary);
        // crun would create a mount point for the socket in the root file system, which root inside the user
        // namespace may not do.
        command.env_remove(NOTIFY_SOCKET);
        command
            .arg("--root")
            .arg(&root)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let mut child = command
            .spawn()
            .map_err(|fault| failed("cannot be run").with_source(fault))?;
        let deadline = Instant::now() + RUNTIME_TIMEOUT;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status.success()),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
                Ok(None) | Err(_) => {
                    // The child has not been reaped, so its process id is still its own.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Ok(false);
                }
            }
        }
    };
    let bundle = dir.display().to_string();
    if run_it(&["run", "--bundle", &bundle, id])? {
        return Ok(());
    }
    let said = std::fs::read_to_string(&errors).unwrap_or_default();
    // The runtime may have created the container in part.
    let _ = run_it(&["delete", "--force", id]);
    Err(failed(said.trim()))
}

/// The bundle of a trial: a root file system with only the program, and a directory with a tmpfs mounted
/// below it. The root file system is a tmpfs too, since programs in the run directory cannot be executed on
/// nodes that mount it with noexec.
fn make_bundle(dir: &Path, spec: &Value) -> Result<()> {
    let rootfs = dir.join("rootfs");
    let below = dir.join("data/below");
    std::fs::create_dir_all(&rootfs).map_err(|fault| io_error("make directory", &rootfs, fault))?;
    mount_tmpfs(&rootfs, "mode=755,size=16m")?;
    for path in [
        &rootfs.join("proc"),
        &rootfs.join("dev"),
        &rootfs.join("data"),
        &below,
    ] {
        std::fs::create_dir_all(path).map_err(|fault| io_error("make directory", path, fault))?;
    }
    let program = rootfs.join("helper");
    write(&program, PROGRAM)?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .map_err(|fault| io_error("make executable", &program, fault))?;
    mount_tmpfs(&below, "size=65536")?;
    write(&dir.join("config.json"), spec.to_string().as_bytes())
}

fn mount_tmpfs(path: &Path, options: &str) -> Result<()> {
    mount(
        Some("probe"),
        path,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(options),
    )
    .map_err(|fault| io_error("mount", path, fault.into()))
}

fn write(path: &PathBuf, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|fault| io_error("write", path, fault))
}

fn trial_spec(trial: Trial, dir: &Path, id: &str) -> Value {
    let mut namespaces = vec![json!({ "type": "pid" }), json!({ "type": "mount" })];
    // The tmpfs on /dev is for runtimes that create files there, which root inside the user namespace may not
    // do in a directory that the host's root owns.
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": [] }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
    ];
    let mut linux = json!({ "cgroupsPath": format!("/{id}") });
    // The program succeeds if it cannot write this file.
    let forbidden = match trial {
        Trial::RecursiveReadonly => {
            mounts.push(json!({
                "destination": "/data", "type": "bind", "source": dir.join("data"),
                "options": ["rbind", "rprivate", "rro"],
            }));
            "/data/below/file"
        }
        Trial::Users => {
            namespaces.push(json!({ "type": "user" }));
            let map = json!([{ "containerID": 0, "hostID": 100_000, "size": 65_536 }]);
            linux["uidMappings"] = map.clone();
            linux["gidMappings"] = map;
            "/file"
        }
    };
    linux["namespaces"] = Value::Array(namespaces);
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 }, "args": ["/helper", "refused", forbidden],
            "env": [], "cwd": "/", "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "mounts": mounts,
        "linux": linux,
    })
}

#[cfg(test)]
mod tests;
