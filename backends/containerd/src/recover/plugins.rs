//! CNI plugins that outlive the daemon that ran them: what they are still adding would come after the undo.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_core::{Error, Result};

use crate::backend::Inner;
use crate::text::blocking;

/// How long killed plugins may take to be gone.
const PATIENCE: Duration = Duration::from_secs(5);

impl Inner {
    /// Ends the plugins of a predecessor, and what they run, before anything is decided about the networks that they were at.
    pub(super) async fn end_plugins(&self) -> Result<()> {
        let pins = self.layout.all_pins();
        blocking(move || {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let found = plugins(&pins);
                if found.is_empty() {
                    return Ok(());
                }
                if Instant::now() > deadline {
                    return Err(Error::unavailable(format!(
                        "{} CNI plugins of a predecessor outlive SIGKILL",
                        found.len()
                    )));
                }
                for pid in found {
                    match kill(Pid::from_raw(pid), Signal::SIGKILL) {
                        Ok(()) | Err(Errno::ESRCH) => {}
                        Err(fault) => {
                            return Err(
                                Error::internal(format!("end the CNI plugin {pid}")).with_source(fault)
                            );
                        }
                    }
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        })
        .await
    }
}

/// Processes that work on a namespace of ours: plugins are told it in their environment, and hand that on to what they run.
fn plugins(pins: &Path) -> Vec<i32> {
    let wanted = format!("CNI_NETNS={}/", pins.display());
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // Empty for a process that has ended and waits to be reaped.
            let environment = fs::read(entry.path().join("environ")).ok()?;
            environment
                .split(|byte| *byte == 0)
                .any(|line| line.starts_with(wanted.as_bytes()))
                .then_some(pid)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_plugin_is_found_by_the_namespace_it_works_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut plugin =
            Command::new("sleep").arg("1000").env("CNI_NETNS", dir.path().join("abc/net")).spawn().unwrap();
        let pid = i32::try_from(plugin.id()).unwrap();
        // The environment is that of this process until the other program has been loaded.
        let deadline = Instant::now() + PATIENCE;
        while plugins(dir.path()).is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(plugins(dir.path()), [pid]);
        assert!(plugins(&dir.path().join("other")).is_empty());
        plugin.kill().unwrap();
        plugin.wait().unwrap();
        assert!(plugins(dir.path()).is_empty());
    }
}
