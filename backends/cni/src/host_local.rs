//! Frees addresses that `host-local` has leaked in a power cut: it reserves an address by a file that it does
//! not sync.
//!
//! After the power cut such a file may be empty, so that it does not name its holder any more, and no DEL
//! frees the address.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;
use switchyard_linux::files::if_present;

use crate::conf::NetworkList;

/// The plugin's default data directory.
const DATA_DIR: &str = "/var/lib/cni/networks";

/// Time for which the lock is tried: the plugin holds it briefly, unless it hangs.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two tries.
const AGAIN: Duration = Duration::from_millis(10);

/// Frees the addresses of a network whose reservation is an empty file, and returns how many. The plugin
/// writes its files under a lock, which is taken here, so that a file that is just being written is not taken
/// for an empty one. Frees nothing if the lock cannot be acquired. Blocks briefly.
pub(crate) fn free_unowned(list: &NetworkList) -> io::Result<usize> {
    let mut freed = 0;
    for dir in directories(list) {
        freed += free_in(&dir)?;
    }
    Ok(freed)
}

/// The directories with the network's reservations, for plugins that use `host-local`.
fn directories(list: &NetworkList) -> impl Iterator<Item = PathBuf> {
    list.plugins
        .iter()
        .filter_map(|plugin| plugin.get("ipam"))
        .filter(|ipam| ipam["type"] == "host-local")
        .map(|ipam| {
            Path::new(
                ipam.get("dataDir")
                    .and_then(Value::as_str)
                    .unwrap_or(DATA_DIR),
            )
            .join(&list.name)
        })
}

fn free_in(dir: &Path) -> io::Result<usize> {
    let lock = if_present(
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(dir.join("lock")),
    )?;
    // Without the directory nothing was ever reserved.
    let Some(lock) = lock else { return Ok(0) };
    let _lock = lock_with_timeout(lock, dir)?;
    let mut freed = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_address = entry.file_name().to_str().is_some_and(is_address);
        if is_address && entry.metadata()?.len() == 0 {
            fs::remove_file(entry.path())?;
            freed += 1;
        }
    }
    Ok(freed)
}

/// Acquires the lock of a directory, or gives up after a timeout: a plugin that hangs must not block all
/// removals of sandboxes.
fn lock_with_timeout(mut file: File, dir: &Path) -> io::Result<Flock<File>> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file,
            Err((_, Errno::EWOULDBLOCK)) => {
                let why = format!(
                    "the lock in {} is held for longer than {LOCK_TIMEOUT:?}",
                    dir.display()
                );
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
            Err((_, errno)) => return Err(errno.into()),
        };
        std::thread::sleep(AGAIN);
    }
}

/// Returns whether a file name is an address; IPv6 addresses may have another character instead of colons.
fn is_address(name: &str) -> bool {
    name.parse::<std::net::IpAddr>().is_ok()
        || name.replace('_', ":").parse::<std::net::Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_orphaned_reservations_are_released() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("net");
        fs::create_dir(&own).unwrap();
        for (name, text) in [
            ("10.0.0.2", ""),
            ("10.0.0.3", "c0ffee\r\neth0"),
            ("fd00::2", ""),
            ("fd00__3", ""),
            ("lock", ""),
            ("last_reserved_ip.0", ""),
        ] {
            fs::write(own.join(name), text).unwrap();
        }
        let conf = json!({ "cniVersion": "1.0.0", "name": "net", "plugins": [
            { "type": "bridge", "ipam": { "type": "host-local", "dataDir": dir.path() } }, { "type": "portmap" } ] });
        let list =
            NetworkList::parse(Path::new("test.conflist"), conf.to_string().as_bytes()).unwrap();
        assert_eq!(free_unowned(&list).unwrap(), 3);
        assert_eq!(free_unowned(&list).unwrap(), 0);
        let mut left: Vec<_> = fs::read_dir(&own)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["10.0.0.3", "last_reserved_ip.0", "lock"]);
    }

    #[test]
    fn held_ipam_lock_is_not_waited_for_forever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        fs::write(dir.path().join("10.0.0.2"), "").unwrap();
        let held = Flock::lock(File::create(&path).unwrap(), FlockArg::LockExclusive).unwrap();
        assert_eq!(
            free_in(dir.path()).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(held);
        assert_eq!(free_in(dir.path()).unwrap(), 1);
    }

    #[test]
    fn other_ipam_plugins_are_left_untouched() {
        let conf = json!({ "cniVersion": "1.0.0", "name": "net", "plugins": [
            { "type": "bridge", "ipam": { "type": "dhcp" } }, { "type": "portmap" } ] });
        let list =
            NetworkList::parse(Path::new("test.conflist"), conf.to_string().as_bytes()).unwrap();
        assert_eq!(directories(&list).count(), 0);
    }
}
