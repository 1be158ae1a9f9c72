//! Pins of sandboxes on the gateway's bridges, with which they send with their own addresses alone.
//!
//! A sandbox is attached before all of its tasks are known, so that it is pinned from then on, as its journal says. A task with the capability
//! NET_ADMIN may give the sandbox other addresses, as programs with virtual ones do: before one is created, a file beside the journal says so,
//! and the pins go. The sandbox stays without them, also when it is started again, or when a later process takes it over. The file is written as
//! well when a sandbox is started again that has such a task and was not pinned before.
//!
//! A task may be created while its sandbox is attached or taken over, by somebody who joins its network. Each side writes first, and then looks at
//! what the other one writes, so that one of them finds both, in whatever order they come:
//!
//! ```text
//! task     note ──> journal read ──> pins removed          allow_net_admin
//! sandbox  journal saved or read ──> pins ──> note looked at ──> pins removed     unpin_noted
//! ```
//!
//! If a step of the sandbox fails, its attachment is undone, or the next look at the journals repeats it.

use std::path::Path;
use std::sync::Arc;

use switchyard_cni as cni;
use switchyard_core::Result;
use switchyard_core::id::SandboxId;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::report;
use switchyard_network::addresses::Holder;
use switchyard_network::driver::{BridgeDriver, BridgeTables};
use switchyard_network::netlink::Mac;

use super::{NATIVE, NativeBridges, holder};
use crate::base::config::PinChoice;
use crate::base::error::{from_cni, from_network};
use crate::base::fs::{blocking, io_error, write_durable};
use crate::base::layout::SandboxDirs;
use crate::network::request::INTERFACE;

/// A sandbox that is attached, and may be pinned.
#[derive(Debug)]
pub(super) struct AttachedSandbox {
    pub(super) driver: Arc<BridgeDriver>,
    pub(super) holder: Holder,
    pub(super) dirs: SandboxDirs,
}

/// Returns whether a sandbox is pinned, of which a task has NET_ADMIN or none has.
pub(super) const fn is_pinned(choice: PinChoice, has_net_admin: bool) -> bool {
    match choice {
        PinChoice::Auto => !has_net_admin,
        PinChoice::All => true,
        PinChoice::None => false,
    }
}

/// The hardware address that an attachment gave to the sandbox, if its result has one.
pub(super) fn mac_of(result: &cni::CniResult) -> Option<Mac> {
    let mut interfaces = result.interfaces.iter();
    let own = interfaces.find(|one| {
        let is_inside = one.sandbox.as_ref().is_some_and(|path| !path.is_empty());
        one.name == INTERFACE && is_inside
    });
    own?.mac.as_deref()?.parse().ok()
}

/// The reason why the kernel cannot pin sandboxes, if it is asked to; logged.
pub(super) fn fault(tables: &BridgeTables, choice: PinChoice) -> Option<String> {
    if choice == PinChoice::None {
        return None;
    }
    let reason = report(&tables.probe_pins().err()?);
    tracing::warn!(
        reason,
        "network.bridge.pin has no effect on this kernel: containers with NET_RAW can send with the addresses of others"
    );
    Some(reason)
}

/// Returns whether a task of a sandbox has, or had, NET_ADMIN. Blocks.
///
/// # Errors
/// `Internal` if the disk does not tell.
pub(super) fn has_net_admin(dirs: &SandboxDirs) -> Result<bool> {
    let mark = dirs.net_admin_mark();
    mark.try_exists()
        .map_err(|fault| io_error("look at", &mark, fault))
}

/// Notes that a task of a sandbox has NET_ADMIN. Blocks.
fn note(dirs: &SandboxDirs) -> Result<()> {
    if has_net_admin(dirs)? {
        return Ok(());
    }
    write_durable(&dirs.net_admin_mark(), b"", 0o600)?;
    reach(CrashPoint::NetAdminNoted);
    Ok(())
}

fn is_there(dir: &Path) -> Result<bool> {
    dir.try_exists()
        .map_err(|fault| io_error("look at", dir, fault))
}

/// Notes that a task of a sandbox has NET_ADMIN, if the daemon has attached and pinned it, or is about to: then it has no journal yet. Returns the
/// journal of one that is pinned by now. Blocks.
pub(super) fn note_if_pinned(dirs: &SandboxDirs) -> Result<Option<cni::Saved>> {
    let read = || cni::Saved::read(&dirs.cni_journal()).map_err(from_cni);
    let is_ours = |saved: &cni::Saved| saved.driver() == Some(NATIVE) && saved.is_pinned();
    match read()? {
        Some(saved) if !is_ours(&saved) => return Ok(None),
        // The sandbox is gone. What the disk does not tell is not taken for that: the task would have NET_ADMIN without a note.
        None if !is_there(&dirs.state)? => return Ok(None),
        Some(_) | None => note(dirs)?,
    }
    // It may have been saved in between, by an attachment that did not find the note.
    Ok(read()?.filter(is_ours))
}

/// Returns those of these sandboxes of which a task has NET_ADMIN by now. Blocks.
///
/// # Errors
/// `Internal` if the disk does not tell.
pub(super) fn noted(attached: Vec<AttachedSandbox>) -> Result<Vec<AttachedSandbox>> {
    let mut noted = Vec::new();
    for one in attached {
        if has_net_admin(&one.dirs)? {
            noted.push(one);
        }
    }
    Ok(noted)
}

impl NativeBridges {
    /// The reason why the kernel cannot pin sandboxes, if the configuration asks for it.
    pub(crate) fn pin_fault(&self) -> Option<&str> {
        self.pin_fault.as_deref()
    }

    /// Returns whether sandboxes are pinned, if the kernel can do it.
    pub(crate) fn is_pin_wanted(&self) -> bool {
        self.pin != PinChoice::None
    }

    /// Returns whether a sandbox is pinned if it is attached now. Cancel-safe.
    ///
    /// # Errors
    /// `Internal` if the disk does not tell whether a task of it has NET_ADMIN; those of a daemon that ends.
    pub(crate) async fn pins(&self, dirs: &SandboxDirs) -> Result<bool> {
        if !self.is_chosen() || self.pin_fault.is_some() {
            return Ok(false);
        }
        let dirs = dirs.clone();
        let has_net_admin = blocking(move || has_net_admin(&dirs)).await?;
        Ok(is_pinned(self.pin, has_net_admin))
    }

    /// Notes that a task of a sandbox that is not attached has NET_ADMIN. Idempotent. Cancel-safe.
    ///
    /// # Errors
    /// `Internal` or `ResourceExhausted` if that cannot be noted.
    pub(crate) async fn note_net_admin(&self, dirs: &SandboxDirs) -> Result<()> {
        let dirs = dirs.clone();
        blocking(move || note(&dirs)).await
    }

    /// Removes the pins of these sandboxes, of which a task has NET_ADMIN by now, unless the configuration pins all. They are those that [`noted`]
    /// finds after the pins were added. Idempotent. Cancel-safe.
    ///
    /// # Errors
    /// `Internal` with the kernel's text: call it again.
    pub(super) async fn unpin_noted(&self, noted: Vec<AttachedSandbox>) -> Result<()> {
        if noted.is_empty() || is_pinned(self.pin, true) {
            return Ok(());
        }
        let unpin = move |_: &BridgeTables| {
            let mut all = noted.iter();
            all.try_for_each(|one| one.driver.unpin(&one.holder))
        };
        self.call(unpin).await?.map_err(from_network)
    }

    /// Before a task with NET_ADMIN is created in a sandbox: lets the sandbox send with any address from now on, for good, unless the
    /// configuration pins all. Idempotent; without effect on a sandbox that plugins have attached, or that has no network of its own.
    /// Cancel-safe.
    ///
    /// # Errors
    /// `Internal` or `ResourceExhausted` if that cannot be noted; `Internal` with the kernel's text.
    pub(crate) async fn allow_net_admin(&self, id: SandboxId, dirs: &SandboxDirs) -> Result<()> {
        let of_sandbox = dirs.clone();
        let Some(saved) = blocking(move || note_if_pinned(&of_sandbox)).await? else {
            return Ok(());
        };
        if is_pinned(self.pin, true) {
            return Ok(());
        }
        let list = saved.list(&dirs.cni_journal()).map_err(from_cni)?;
        let driver = self.driver_of(&list)?;
        let holder = holder(id)?;
        let unpinned = self.call(move |_| driver.unpin(&holder)).await?;
        unpinned.map_err(from_network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::layout::Layout;

    #[test]
    fn sandbox_is_pinned_by_the_key_and_by_what_its_tasks_may() {
        for (choice, has_net_admin, expected) in [
            (PinChoice::Auto, false, true),
            (PinChoice::Auto, true, false),
            (PinChoice::All, false, true),
            (PinChoice::All, true, true),
            (PinChoice::None, false, false),
            (PinChoice::None, true, false),
        ] {
            let found = is_pinned(choice, has_net_admin);
            assert_eq!(found, expected, "{choice:?} {has_net_admin}");
        }
    }

    #[test]
    fn pinned_hardware_address_is_that_of_the_sandboxs_own_interface() {
        let interface = |name: &str, mac: Option<&str>, sandbox: Option<&str>| cni::Interface {
            name: name.to_owned(),
            mac: mac.map(str::to_owned),
            sandbox: sandbox.map(str::to_owned),
        };
        let mac = "02:42:ac:1a:50:02";
        for (interfaces, expected) in [
            (vec![], None),
            (
                vec![interface("eth0", Some(mac), Some("/run/ns"))],
                Some(mac),
            ),
            (
                vec![
                    interface("switchyard0", Some("02:42:ac:1a:50:01"), None),
                    interface("eth0", Some("02:42:ac:1a:50:09"), None),
                    interface("eth0", Some(mac), Some("/run/ns")),
                ],
                Some(mac),
            ),
            (vec![interface("eth0", Some(mac), Some(""))], None),
            (vec![interface("eth1", Some(mac), Some("/run/ns"))], None),
            (vec![interface("eth0", None, Some("/run/ns"))], None),
            (vec![interface("eth0", Some("?"), Some("/run/ns"))], None),
        ] {
            let result = cni::CniResult {
                interfaces,
                ips: Vec::new(),
                routes: Vec::new(),
                dns: cni::ResultDns::default(),
                raw: serde_json::Value::Null,
            };
            let expected: Option<Mac> = expected.map(|mac: &str| mac.parse().unwrap());
            assert_eq!(mac_of(&result), expected, "{:?}", result.interfaces);
        }
    }

    /// The record that a task has NET_ADMIN is made once, and only where it means something.
    #[test]
    fn net_admin_is_noted_for_pinned_sandboxes_of_the_daemon() {
        let golden = include_str!("golden/journal.json");
        let driver = "\"switchyard.driver\":\"native\"";
        let pinned = |value: &str| {
            let both = format!("{driver},\"switchyard.pinned\":{value}");
            Some(golden.replacen(driver, &both, 1))
        };
        let of_another = pinned("true").map(|text| text.replacen("\"native\"", "\"ipvlan\"", 1));
        for (journal, is_noted) in [
            // It may be about to be attached.
            (None, true),
            (Some(golden.to_owned()), false),
            (pinned("false"), false),
            (of_another, false),
            (pinned("true"), true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let layout = Layout::new(&dir.path().join("state"), &dir.path().join("run"));
            let dirs = layout.sandbox(SandboxId::random());
            std::fs::create_dir_all(&dirs.state).unwrap();
            if let Some(text) = &journal {
                std::fs::write(dirs.cni_journal(), text).unwrap();
            }
            for _ in 0..2 {
                let noted = note_if_pinned(&dirs).unwrap();
                let is_known = is_noted && journal.is_some();
                assert_eq!(noted.is_some(), is_known, "{journal:?}");
                assert_eq!(has_net_admin(&dirs).unwrap(), is_noted, "{journal:?}");
            }
        }
    }
}
