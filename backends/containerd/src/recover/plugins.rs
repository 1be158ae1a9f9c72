//! CNI plugins that outlive the daemon that ran them: what they are at comes to its end before their network is worked on.
//!
//! A plugin that is killed in the middle of taking a network away leaves rules that no later run of it finds, so they are left to end by
//! themselves; one that hangs is killed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_core::id::SandboxId;
use switchyard_core::{Error, Result};

use crate::backend::Inner;
use crate::text::blocking;

/// How long killed plugins may take to be gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

impl Inner {
    /// Finds the plugins of a predecessor, before any of our own run.
    pub(super) async fn take_plugins(&self) -> Result<()> {
        let pins = self.layout.all_pins();
        let found = blocking(move || Ok(plugins(&pins))).await?;
        let mut inherited: HashMap<SandboxId, Vec<i32>> = HashMap::new();
        for (pid, id) in found {
            inherited.entry(id).or_default().push(pid);
        }
        *self.plugins() = inherited;
        Ok(())
    }

    /// Waits until the plugins that a predecessor ran for this sandbox have ended, and kills them if they do not. Idempotent.
    pub(crate) async fn plugins_ended(&self, id: SandboxId) -> Result<()> {
        let Some(pids) = self.plugins().get(&id).cloned() else { return Ok(()) };
        let pins = self.layout.sandbox(id).pins;
        let limit = Duration::from_secs(self.settings.network.plugin_timeout_seconds.max(1));
        if !all_ended(&pids, &pins, limit).await {
            tracing::warn!(sandbox.id = %id, ?pids, "killing CNI plugins of a predecessor that do not end");
            for pid in &pids {
                match kill(Pid::from_raw(*pid), Signal::SIGKILL) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(fault) => {
                        return Err(Error::internal(format!("end the CNI plugin {pid}")).with_source(fault));
                    }
                }
            }
            if !all_ended(&pids, &pins, PATIENCE).await {
                return Err(Error::unavailable(format!("CNI plugins of sandbox {id} outlive SIGKILL")));
            }
        }
        self.plugins().remove(&id);
        Ok(())
    }
}

async fn all_ended(pids: &[i32], pins: &Path, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if pids.iter().all(|pid| namespace_of(*pid).is_none_or(|path| !Path::new(&path).starts_with(pins))) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Processes that work on a namespace of ours, and whose it is: plugins are told it in their environment, and hand that on to what they
/// run.
fn plugins<I: FromStr>(pins: &Path) -> Vec<(i32, I)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let path = namespace_of(pid)?;
            let id = Path::new(&path).strip_prefix(pins).ok()?.iter().next()?.to_str()?.parse().ok()?;
            Some((pid, id))
        })
        .collect()
}

/// The namespace that a plugin works on; `None` for any other process, and for one that has ended and waits to be reaped.
fn namespace_of(pid: i32) -> Option<std::ffi::OsString> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut lines = environment.split(|byte| *byte == 0);
    let path = lines.find_map(|line| line.strip_prefix(b"CNI_NETNS="))?;
    Some(OsStr::from_bytes(path).to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn a_plugin_is_found_by_the_namespace_it_works_on_and_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut plugin =
            Command::new("sleep").arg("1000").env("CNI_NETNS", dir.path().join("abc/net")).spawn().unwrap();
        let pid = i32::try_from(plugin.id()).unwrap();
        // The environment is that of this process until the other program has been loaded.
        let deadline = Instant::now() + PATIENCE;
        while plugins::<String>(dir.path()).is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(plugins::<String>(dir.path()), [(pid, "abc".to_owned())]);
        assert!(plugins::<String>(&dir.path().join("other")).is_empty());
        assert!(!all_ended(&[pid], &dir.path().join("abc"), Duration::ZERO).await);
        plugin.kill().unwrap();
        plugin.wait().unwrap();
        assert!(all_ended(&[pid], &dir.path().join("abc"), Duration::ZERO).await);
    }
}
