//! The default AppArmor profile, for tasks that name none: this daemon's own, loaded whenever the kernel does
//! not have it.
//!
//! No other program loads it: containerd loads its default profile only for its own CRI. A reload of the
//! node's profiles, or a tool that removes unknown ones, may unload it at any time, so it is looked up before
//! each use. A failure to load it is remembered for a while: each try takes some tenths of a second, one at a time.

pub(crate) mod profile;

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_core::spec::{AppArmorProfile, Security};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::packages::{Needed, OsRelease};
use tokio::io::AsyncWriteExt;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::node::Node;
use crate::shims::activity::listener;

/// The profiles that the kernel has loaded, one `name (mode)` a line.
const PROFILES_FILE: &str = "/sys/kernel/security/apparmor/profiles";
/// The program that loads profiles.
const PARSER: &str = "apparmor_parser";
/// Limit for the program; compiling takes some tenths of a second on a slow machine.
const PARSER_TIMEOUT: Duration = Duration::from_secs(60);
/// For how long a failure of the program is answered instead of another try.
const FAILURE_KEPT: Duration = Duration::from_secs(60);

/// The last failure to load the default profile, and until when it is answered instead of another try; `None` after a success.
#[derive(Debug, Default)]
pub(crate) struct FailedLoad(Mutex<Option<(Instant, Error)>>);

impl FailedLoad {
    /// The failure that is answered at this time; `None` if the profile is to be loaded.
    fn current(&self, now: Instant) -> Option<Error> {
        let known = self.0.lock();
        let (until, error) = known.as_ref()?;
        (now < *until).then(|| error.clone())
    }

    /// Notes the outcome of a try. Returns whether it is a failure that differs from the last one.
    fn note(&self, until: Instant, outcome: &Result<()>) -> bool {
        let failed = outcome.as_ref().err().map(|error| (until, error.clone()));
        let last = std::mem::replace(&mut *self.0.lock(), failed.clone());
        let text = |failure: Option<(Instant, Error)>| failure.map(|(_, error)| error.report());
        failed.is_some() && text(failed) != text(last)
    }
}

impl Node {
    /// The default profile, for a container that names none; `None` if it cannot be loaded, of which the log has a warning.
    pub(crate) async fn default_profile(&self) -> Option<String> {
        self.ensure_default_profile().await.unwrap_or_default()
    }

    /// The name of the default profile, which is loaded on return. `None` where AppArmor cannot be used.
    /// Idempotent; of concurrent callers only one loads it.
    ///
    /// # Errors
    /// `FailedPrecondition` if it is not loaded and cannot be, now or within the last minute.
    async fn ensure_default_profile(&self) -> Result<Option<String>> {
        let Some(name) = self.context.host.apparmor.clone() else {
            return Ok(None);
        };
        let peer = self.further_peer().await;
        if self.has_profile(&name, peer).await {
            return Ok(Some(name));
        }
        // Bounded: if the caller that loads the profile hangs, the others try it themselves after the
        // timeout.
        let _permit = tokio::time::timeout(PARSER_TIMEOUT, self.profile_lock.acquire()).await;
        if self.has_profile(&name, peer).await {
            return Ok(Some(name));
        }
        if let Some(error) = self.failed_load.current(Instant::now()) {
            return Err(error);
        }
        let tried = load_profile(&profile::text(peer)).await;
        // One that is not installed costs nothing, and may be installed at any time.
        let kept = match &tried {
            Err(fault) if fault.kind() == ErrorKind::NotFound => Duration::ZERO,
            Ok(()) | Err(_) => FAILURE_KEPT,
        };
        let loaded = tried.map_err(|fault| {
            Error::failed_precondition(format!(
                "the default AppArmor profile {name} cannot be loaded: if {PARSER} is missing, {}",
                OsRelease::of_node().advice(Needed::AppArmorParser)
            ))
            .with_source(fault)
        });
        let is_new = self.failed_load.note(Instant::now() + kept, &loaded);
        if let Err(error) = &loaded
            && is_new
        {
            tracing::warn!(
                error = error.report(),
                "containers that name no AppArmor profile run without one"
            );
        }
        loaded?;
        self.profile_peers.loaded.store(true, Ordering::Release);
        tracing::info!(profile = name, "the default AppArmor profile is loaded");
        Ok(Some(name))
    }

    /// Returns whether the kernel has the profile, with the rule for the peer if there is one: one that was there before this daemon may
    /// lack it, since the kernel does not tell the rules.
    async fn has_profile(&self, name: &str, peer: Option<&str>) -> bool {
        let has_rule = peer.is_none() || self.profile_peers.loaded.load(Ordering::Acquire);
        has_rule && is_loaded(name).await
    }

    /// The profile that confines containerd, and so its shims, which send the signals; `None` if the default profile admits it anyway, or
    /// it is not known. Looked up once.
    async fn further_peer(&self) -> Option<&str> {
        let looked = self.profile_peers.further.get_or_try_init(|| async {
            let pid = listener(self.client.address()).await.ok_or(())?;
            let pid = u32::try_from(pid).map_err(drop)?;
            let label = label_of(pid).await.ok_or(())?;
            Ok::<_, ()>(profile::further_peer(&label).map(str::to_owned))
        });
        looked.await.ok()?.as_deref()
    }

    /// The default profile's name for a task with this security, loaded if the task uses it; also checks that
    /// a profile of the host that the task names is loaded.
    ///
    /// # Errors
    /// `FailedPrecondition` if a named profile of the host is not loaded, or the default one is requested and
    /// cannot be loaded: a task that names a profile never runs without it.
    pub(crate) async fn profile_for(&self, security: &Security) -> Result<Option<String>> {
        if security.privileged || self.context.host.apparmor.is_none() {
            return Ok(self.context.host.apparmor.clone());
        }
        match &security.apparmor {
            None => Ok(self.default_profile().await),
            Some(AppArmorProfile::RuntimeDefault) => self.ensure_default_profile().await,
            Some(AppArmorProfile::Unconfined) => Ok(self.context.host.apparmor.clone()),
            Some(AppArmorProfile::Localhost(name)) => match loaded_profiles().await {
                Some(profiles) if !lists_profile(&profiles, name) => {
                    Err(Error::failed_precondition(format!(
                        "AppArmor profile {name} is not loaded on this node: load it with {PARSER}"
                    )))
                }
                // If the list cannot be read, the runtime decides.
                Some(_) | None => Ok(self.context.host.apparmor.clone()),
            },
        }
    }
}

/// The profile of containerd, and whether the default profile was loaded with a rule for it.
#[derive(Debug, Default)]
pub(crate) struct ProfilePeers {
    further: OnceCell<Option<String>>,
    loaded: AtomicBool,
}

/// The label of a process, as the kernel writes it; `None` if it cannot be read.
async fn label_of(pid: u32) -> Option<String> {
    // The second one is that of whichever security module is the first: older kernels have it alone.
    for file in ["attr/apparmor/current", "attr/current"] {
        if let Ok(label) = tokio::fs::read_to_string(format!("/proc/{pid}/{file}")).await {
            return Some(label);
        }
    }
    None
}

/// The kernel's list of profiles; `None` if it cannot be read.
async fn loaded_profiles() -> Option<String> {
    tokio::fs::read_to_string(PROFILES_FILE).await.ok()
}

/// Returns whether the kernel has a profile; `false` if the list cannot be read, so that the caller tries to
/// load it.
async fn is_loaded(name: &str) -> bool {
    loaded_profiles()
        .await
        .is_some_and(|profiles| lists_profile(&profiles, name))
}

/// Returns whether a profile is in the kernel's list. A name may contain blanks and parentheses.
fn lists_profile(profiles: &str, name: &str) -> bool {
    profiles.lines().any(|line| {
        line.rsplit_once(" (")
            .is_some_and(|(loaded, _)| loaded == name)
    })
}

/// Loads a profile into the kernel, or replaces the one of the same name.
///
/// # Errors
/// `NotFound` if the program cannot be run, `Unavailable` if it fails.
async fn load_profile(text: &str) -> Result<()> {
    let failed = |what: String| Error::new(ErrorKind::Unavailable, format!("{PARSER}: {what}"));
    // No cache: the compiled profile would be cached although the profile has no file.
    let mut command = tokio::process::Command::new(PARSER);
    command
        .args(["--replace", "--skip-cache"])
        .kill_on_drop(true);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|fault| Error::not_found(format!("{PARSER}: cannot be run")).with_source(fault))?;
    let whole = async {
        if let Some(mut input) = child.stdin.take() {
            input.write_all(text.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(PARSER_TIMEOUT, whole)
        .await
        .map_err(|_| failed(format!("did not exit within {PARSER_TIMEOUT:?}")))?
        .map_err(|fault| {
            failed("writing to it or waiting for it failed".to_owned()).with_source(fault)
        })?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_load_is_answered_for_its_time_and_logged_once() {
        let failed = FailedLoad::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let error = |text: &str| Err(Error::failed_precondition(text));
        for (seconds, until, outcome, is_logged) in [
            // Not installed.
            (0, 0, error("not found"), true),
            (1, 1, error("not found"), false),
            (2, 62, error("denied"), true),
            (62, 122, error("denied"), false),
            (122, 182, Ok(()), false),
            (123, 183, error("denied"), true),
        ] {
            assert!(
                failed.current(after(seconds)).is_none(),
                "{seconds} s: it is tried"
            );
            assert_eq!(
                failed.note(after(until), &outcome),
                is_logged,
                "{seconds} s"
            );
            for later in seconds..until {
                let answered = failed.current(after(later));
                assert_eq!(
                    answered.map(|error| error.report()),
                    outcome.as_ref().err().map(Error::report),
                    "{later} s"
                );
            }
            assert!(failed.current(after(until)).is_none(), "{until} s");
        }
    }

    #[test]
    fn a_profile_is_found_by_its_whole_name() {
        let list = "switchyard-default-old (enforce)\n/usr/bin/a (b) (complain)\nmine (enforce)\n";
        assert!(lists_profile(list, "mine") && lists_profile(list, "/usr/bin/a (b)"));
        assert!(
            !lists_profile(list, "switchyard-default")
                && !lists_profile(list, "")
                && !lists_profile("", "mine")
        );
    }
}
