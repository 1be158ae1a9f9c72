//! The AppArmor profile of tasks that ask for none: ours, loaded whenever it is not there.
//!
//! Nobody else loads it: containerd loads its own only for its own CRI. A reload of the node's profiles, or a tool that removes
//! unknown ones, may take it away at any time, so it is looked for before each use.

use std::process::Stdio;
use std::time::Duration;

use switchyard_core::spec::{AppArmorProfile, Security};
use switchyard_core::{Error, ErrorKind, Result};
use tokio::io::AsyncWriteExt;

use crate::backend::Inner;

/// The name of the profile that stands for the default.
pub(crate) const DEFAULT_PROFILE: &str = "switchyard-default";
/// Its text, in the language of apparmor.d(5).
const TEXT: &str = include_str!("apparmor/switchyard-default");
/// What the kernel has loaded, one `name (mode)` a line.
const PROFILES_FILE: &str = "/sys/kernel/security/apparmor/profiles";
/// The program that loads profiles; Debian has it in the package `apparmor`.
const PARSER: &str = "apparmor_parser";
/// How long it may take; compiling is some tenths of a second on a slow machine.
const PARSER_TIMEOUT: Duration = Duration::from_secs(60);

impl Inner {
    /// The default profile for what does not ask for it: without one where it cannot be loaded, which is told in the log.
    pub(crate) async fn default_profile(&self) -> Option<String> {
        self.ensure_default_profile().await.unwrap_or_else(|error| {
            tracing::warn!(error = error.report(), "what names no AppArmor profile is not confined by one");
            None
        })
    }

    /// The default profile that a task may be given now: loaded if it was not. `None` where the kernel has no AppArmor. Idempotent; of many
    /// callers at once one loads it.
    ///
    /// # Errors
    /// `FailedPrecondition` if it is not there and cannot be loaded.
    async fn ensure_default_profile(&self) -> Result<Option<String>> {
        let Some(name) = self.host.apparmor.clone() else { return Ok(None) };
        if is_loaded(&name).await {
            return Ok(Some(name));
        }
        // Behind one that hangs nobody waits for longer than it is given itself.
        let _permit = tokio::time::timeout(PARSER_TIMEOUT, self.profile_lock.acquire()).await;
        if is_loaded(&name).await {
            return Ok(Some(name));
        }
        load_profile(TEXT).await.map_err(|fault| {
            Error::failed_precondition(format!(
                "the default AppArmor profile {name} cannot be loaded: is the package apparmor installed?"
            ))
            .with_source(fault)
        })?;
        tracing::info!(profile = name, "the default AppArmor profile is loaded");
        Ok(Some(name))
    }

    /// The default profile, if a task with this security gets it; and a word for a profile that is asked for and not there.
    ///
    /// # Errors
    /// `FailedPrecondition` for a profile of the host that is not loaded, and for the default one that cannot be: whoever names a
    /// profile does not run without.
    pub(crate) async fn profile_for(&self, security: &Security) -> Result<Option<String>> {
        if security.privileged || self.host.apparmor.is_none() {
            return Ok(self.host.apparmor.clone());
        }
        match &security.apparmor {
            None => Ok(self.default_profile().await),
            Some(AppArmorProfile::RuntimeDefault) => self.ensure_default_profile().await,
            Some(AppArmorProfile::Unconfined) => Ok(self.host.apparmor.clone()),
            Some(AppArmorProfile::Localhost(name)) => match loaded_profiles().await {
                Some(profiles) if !lists_profile(&profiles, name) => Err(Error::failed_precondition(
                    format!("AppArmor profile {name} is not loaded on this node: load it with {PARSER}"),
                )),
                // What cannot be looked at is left to the runtime.
                Some(_) | None => Ok(self.host.apparmor.clone()),
            },
        }
    }
}

/// The kernel's list; `None` where it cannot be read.
async fn loaded_profiles() -> Option<String> {
    tokio::fs::read_to_string(PROFILES_FILE).await.ok()
}

/// Whether the kernel has a profile. What cannot be looked at is loaded where that can be done.
async fn is_loaded(name: &str) -> bool {
    loaded_profiles().await.is_some_and(|profiles| lists_profile(&profiles, name))
}

/// Whether a profile is in the kernel's list. The name of one may hold blanks and parentheses.
fn lists_profile(profiles: &str, name: &str) -> bool {
    profiles.lines().any(|line| line.rsplit_once(" (").is_some_and(|(loaded, _)| loaded == name))
}

/// Has the kernel take a profile, in the place of an older one of its name.
async fn load_profile(text: &str) -> Result<()> {
    let failed = |what: String| Error::new(ErrorKind::Unavailable, format!("{PARSER}: {what}"));
    // No cache: it would be kept for a profile that has no file.
    let mut command = tokio::process::Command::new(PARSER);
    command.args(["--replace", "--skip-cache"]).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|fault| failed("cannot be run".to_owned()).with_source(fault))?;
    let whole = async {
        if let Some(mut input) = child.stdin.take() {
            input.write_all(text.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(PARSER_TIMEOUT, whole)
        .await
        .map_err(|_| failed(format!("no end within {PARSER_TIMEOUT:?}")))?
        .map_err(|fault| failed("broke off".to_owned()).with_source(fault))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_text_is_of_the_profile_that_is_looked_for() {
        assert!(TEXT.contains(&format!("\nprofile {DEFAULT_PROFILE} ")), "{TEXT}");
    }
}
