//! What OCI runtimes can do: asked of those that say it, tried with those that do not, never read from a version.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use switchyard_core::backend::Condition;
use switchyard_core::{Error, Result};
use switchyard_namespaces::{PROGRAM, with_own_mounts};
use tokio::process::Command;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::advisories::parse_version_output;
use crate::backend::{Inner, RUNC_TYPE};
use crate::fs::{blocking, io_error, remove_tree};
use crate::health::Contact;
use crate::image::lease::getrandom_fill;
use crate::sandbox::from_namespaces;
use crate::userns;

/// How long a runtime may take to answer, or to run a small program.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(10);
/// How long somebody who needs to know waits for the first answers.
const FIRST_PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// Between two looks whether a program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(3);
/// Tells a service where its manager listens; none of a runtime's business.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// The name of our directories for trials.
const TRIALS_DIR: &str = "probe";
/// The file with the answers, for the next daemon of this boot.
const CACHE_FILE: &str = "probe.json";

/// What is known of the runtimes and the node. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuntimeProbes {
    results: Arc<Mutex<ProbeResults>>,
    completed: Arc<watch::Sender<bool>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ProbeResults {
    runtimes: BTreeMap<String, RuntimeFeatures>,
    /// Why ids cannot be mapped here; nothing if they can.
    no_mapping: Option<String>,
    /// Name and version of each runtime that tells them.
    #[serde(default)]
    versions: BTreeMap<String, (String, String)>,
}

/// What a runtime can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct RuntimeFeatures {
    /// Mounts that are read-only all the way down.
    pub(crate) recursive_readonly: bool,
    /// User namespaces.
    pub(crate) users: bool,
}

/// A trial that a runtime is put to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    RecursiveReadonly,
    Users,
}

// === impl Probes ===

impl RuntimeProbes {
    /// What the runtime of this name can do; nothing special until it has been asked.
    pub(crate) fn features_of(&self, binary: &str) -> RuntimeFeatures {
        let known = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        known.runtimes.get(binary).copied().unwrap_or_default()
    }

    /// Why ids cannot be mapped on this node; nothing if they can.
    pub(crate) fn idmap_unavailable(&self) -> Option<String> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).no_mapping.clone()
    }

    /// Names and versions of the runtimes, as they tell them: for people, never to decide by.
    pub(crate) fn versions(&self) -> Vec<(String, String)> {
        let known = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        known.versions.values().cloned().collect()
    }

    /// Whether everybody has been asked once, by us or by the daemon before us.
    pub(crate) fn is_complete(&self) -> bool {
        *self.completed.borrow()
    }

    /// Takes over what the daemon before us learned in this boot, so that a restart need not ask before it can tell. What was replaced
    /// meanwhile is told right as soon as it has been asked.
    pub(crate) async fn load_cached(&self, binaries: &[String], run: &Path) {
        let Ok(text) = tokio::fs::read(run.join(CACHE_FILE)).await else { return };
        // One that a kill has left half-written is as good as none.
        let Ok(told) = serde_json::from_slice::<ProbeResults>(&text) else { return };
        if binaries.iter().all(|binary| told.runtimes.contains_key(binary)) {
            *self.results.lock().unwrap_or_else(PoisonError::into_inner) = told;
            self.completed.send_replace(true);
        }
    }

    /// Waits until everybody has been asked once, but not for ever. Cancel-safe.
    pub(crate) async fn wait_completed(&self) {
        let mut asked = self.completed.subscribe();
        // Whoever has not answered by then can do nothing special.
        let _ = tokio::time::timeout(FIRST_PROBE_TIMEOUT, asked.wait_for(|asked| *asked)).await;
    }

    /// Asks these runtimes, and the node, with directories of ours to work in: one on the disk that snapshots are on, one that does
    /// not outlive a reboot.
    pub(crate) async fn probe_all(&self, binaries: &[String], state: &Path, run: &Path) {
        if let Err(error) = remove_tree(&run.join(TRIALS_DIR)).await {
            tracing::warn!(error = error.report(), "what is left of trials of runtimes stays");
        }
        let trial = state.join(TRIALS_DIR);
        let below = run.to_path_buf();
        let tried =
            blocking(move || userns::try_idmap(&trial).and_then(|()| userns::check_traversable(&below)));
        let no_mapping = tried.await.err();
        if let Some(error) = &no_mapping {
            tracing::info!(reason = error.report(), "pods cannot have user namespaces on this node");
        }
        self.results.lock().unwrap_or_else(PoisonError::into_inner).no_mapping =
            no_mapping.map(|error| error.report());
        for binary in binaries {
            let can = self.probe_runtime(binary, run).await;
            tracing::debug!(binary, ?can, "what an OCI runtime can do is known");
            let version = query_version(binary).await;
            let mut known = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            known.runtimes.insert(binary.clone(), can);
            match version {
                Some(version) => known.versions.insert(binary.clone(), version),
                None => known.versions.remove(binary),
            };
        }
        self.completed.send_replace(true);
        let answers = self.results.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let path = run.join(CACHE_FILE);
        let text = json!(answers).to_string();
        if let Err(fault) = tokio::fs::write(&path, text).await {
            let error = io_error("write", &path, fault);
            tracing::warn!(error = error.report(), "the next daemon has to ask what runtimes can do");
        }
    }

    async fn probe_runtime(&self, binary: &str, run: &Path) -> RuntimeFeatures {
        let told = match query_features(binary).await {
            Ok(told) => told,
            Err(error) => {
                tracing::debug!(binary, error = error.report(), "an OCI runtime cannot be asked");
                return RuntimeFeatures::default();
            }
        };
        if let Some(features) = told {
            return RuntimeFeatures::from_features(&features);
        }
        let mut passed = [false; 2];
        for (passed, trial) in passed.iter_mut().zip([Trial::RecursiveReadonly, Trial::Users]) {
            let name = binary.to_owned();
            let place = run.to_path_buf();
            let outcome = blocking(move || run_trial(&name, trial, &place)).await;
            if let Err(error) = &outcome {
                tracing::debug!(
                    binary,
                    ?trial,
                    error = error.report(),
                    "an OCI runtime did not pass a trial"
                );
            }
            *passed = outcome.is_ok();
        }
        let [recursive_readonly, users] = passed;
        RuntimeFeatures { recursive_readonly, users }
    }
}

impl Inner {
    /// Asks what the OCI runtimes can do, now and whenever containerd is there anew: it and they may have been replaced.
    pub(crate) async fn watch_runtime_features(self: Arc<Self>, stop: CancellationToken) {
        let mut contact = self.health.subscribe();
        let runtimes = self.settings.containerd.runtimes.values();
        let runc_like = runtimes.filter(|runtime| runtime.type_ == RUNC_TYPE);
        let binaries: Vec<String> = runc_like.map(|runtime| runtime.binary.clone()).collect();
        let state = self.layout.state();
        let run = self.layout.run();
        let mut logged = BTreeSet::new();
        self.runtime_probes.load_cached(&binaries, run).await;
        self.runtime_probes.probe_all(&binaries, state, run).await;
        self.log_advisories(&mut logged);
        // The containerd that has come meanwhile is none that was replaced.
        contact.mark_unchanged();
        loop {
            let anew = async {
                while contact.changed().await.is_ok() {
                    if matches!(*contact.borrow_and_update(), Contact::Up { .. }) {
                        return;
                    }
                }
                std::future::pending().await
            };
            tokio::select! {
                () = anew => {
                    self.layer_usage.forget_roots();
                    self.containerd_features.refresh(&self.client).await;
                    self.runtime_probes.probe_all(&binaries, state, run).await;
                    self.log_advisories(&mut logged);
                }
                () = stop.cancelled() => return,
            }
        }
    }

    /// Whether pods can be run. Clients take what handlers can do from an answer that says so: it is not said before that is known.
    pub(crate) fn runtime_condition(&self) -> Condition {
        match self.health.condition() {
            Condition::True if !self.runtime_probes.is_complete() => Condition::False {
                reason: "AskingRuntimes".to_owned(),
                message: "the OCI runtimes are being asked what they can do".to_owned(),
            },
            condition @ (Condition::True | Condition::False { .. }) => condition,
        }
    }
}

impl RuntimeFeatures {
    fn from_features(features: &Value) -> Self {
        let has = |list: &Value, wanted: &str| {
            list.as_array().is_some_and(|list| list.iter().any(|word| word == wanted))
        };
        Self {
            recursive_readonly: has(&features["mountOptions"], "rro"),
            users: has(&features["linux"]["namespaces"], "user"),
        }
    }
}

/// What a runtime says that it can do; `None` if it knows no such question.
///
/// # Errors
/// It cannot be run, or hangs.
async fn query_features(binary: &str) -> Result<Option<Value>> {
    Ok(serde_json::from_slice(&query_runtime(binary, "features").await?).ok())
}

/// Name and version of a runtime; `None` if it does not tell them.
async fn query_version(binary: &str) -> Option<(String, String)> {
    let output = query_runtime(binary, "--version").await.ok()?;
    parse_version_output(&String::from_utf8_lossy(&output))
}

/// What a runtime prints when it is asked something.
async fn query_runtime(binary: &str, question: &str) -> Result<Vec<u8>> {
    let failed = |what: &str| Error::unimplemented(format!("{binary} {question}: {what}"));
    let mut command = Command::new(binary);
    command.arg(question).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(RUNTIME_TIMEOUT, command.output())
        .await
        .map_err(|_| failed("no answer in time"))?
        .map_err(|fault| failed("cannot be run").with_source(fault))?;
    Ok(output.stdout)
}

/// Has a runtime run a small program that succeeds only if the runtime did what it was asked for. Its mounts nobody else sees; what a
/// kill leaves of its directory goes when runtimes are asked again. Blocks.
fn run_trial(binary: &str, trial: Trial, run: &Path) -> Result<()> {
    let mut random = [0; 6];
    getrandom_fill(&mut random);
    let id = format!("switchyard-probe-{}", hex::encode(random));
    let dir = run.join(TRIALS_DIR).join(&id);
    let spec = trial_spec(trial, &dir, &id);
    let outcome =
        with_own_mounts(|| make_bundle(&dir, &spec).and_then(|()| run_trial_bundle(binary, &dir, &id)));
    std::fs::remove_dir_all(&dir).map_err(|fault| io_error("remove", &dir, fault))?;
    outcome.map_err(from_namespaces)?
}

fn run_trial_bundle(binary: &str, dir: &Path, id: &str) -> Result<()> {
    let failed = |what: &str| Error::unimplemented(format!("trial of {binary}: {what}"));
    let root = dir.join("state");
    let errors = dir.join("errors");
    let run_it = |words: &[&str]| -> Result<bool> {
        let log = std::fs::File::create(&errors).map_err(|fault| io_error("write", &errors, fault))?;
        let mut command = std::process::Command::new(binary);
        // crun would make a place for it in the root file system, which root inside may not.
        command.env_remove(NOTIFY_SOCKET);
        command.arg("--root").arg(&root).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn().map_err(|fault| failed("cannot be run").with_source(fault))?;
        let deadline = Instant::now() + RUNTIME_TIMEOUT;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status.success()),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
                Ok(None) | Err(_) => {
                    // It is ours, and has not been waited for.
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
    // It may have been left half-made.
    let _ = run_it(&["delete", "--force", id]);
    Err(failed(said.trim()))
}

/// The bundle of a trial: a root file system with the program alone, and a directory with a file system of its own below it.
fn make_bundle(dir: &Path, spec: &Value) -> Result<()> {
    let rootfs = dir.join("rootfs");
    let below = dir.join("data/below");
    for path in [&rootfs.join("proc"), &rootfs.join("dev"), &rootfs.join("data"), &below] {
        std::fs::create_dir_all(path).map_err(|fault| io_error("make directory", path, fault))?;
    }
    let program = rootfs.join("helper");
    write(&program, PROGRAM)?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .map_err(|fault| io_error("make executable", &program, fault))?;
    mount(Some("probe"), &below, Some("tmpfs"), MsFlags::empty(), Some("size=65536"))
        .map_err(|fault| io_error("mount", &below, fault.into()))?;
    write(&dir.join("config.json"), spec.to_string().as_bytes())
}

fn write(path: &PathBuf, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|fault| io_error("write", path, fault))
}

fn trial_spec(trial: Trial, dir: &Path, id: &str) -> Value {
    let mut namespaces = vec![json!({ "type": "pid" }), json!({ "type": "mount" })];
    // Runtimes make device nodes, which root inside may not do in a directory of the host's root.
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": [] }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
    ];
    let mut linux = json!({ "cgroupsPath": format!("/{id}") });
    // The program succeeds if it may not write there.
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
mod tests {
    use super::*;

    #[test]
    fn what_a_runtime_says_is_believed_word_for_word() {
        let said = json!({ "mountOptions": ["ro", "rro"], "linux": { "namespaces": ["pid", "user"] } });
        assert_eq!(
            RuntimeFeatures::from_features(&said),
            RuntimeFeatures { recursive_readonly: true, users: true }
        );
        let said = json!({ "mountOptions": ["ro"], "linux": {} });
        assert_eq!(RuntimeFeatures::from_features(&said), RuntimeFeatures::default());
        assert_eq!(RuntimeFeatures::from_features(&json!("no object")), RuntimeFeatures::default());
    }

    /// Debian's runc both says what it can do and passes the trials.
    #[tokio::test]
    async fn a_runtime_that_says_it_can_passes_the_trial_and_one_that_cannot_be_run_does_not() {
        let dir = tempfile::tempdir().unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let told = RuntimeFeatures::from_features(
            &query_features("runc").await.unwrap().expect("Debian's runc answers"),
        );
        assert_eq!(told, RuntimeFeatures { recursive_readonly: true, users: true });
        for trial in [Trial::RecursiveReadonly, Trial::Users] {
            run_trial("runc", trial, dir.path()).unwrap();
            assert!(run_trial("/bin/false", trial, dir.path()).is_err());
        }
        assert_eq!(std::fs::read_dir(dir.path().join("probe")).unwrap().count(), 0);
        assert!(query_features("/no/such/runtime").await.is_err());
    }
}
