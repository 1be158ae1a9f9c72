//! The root file system of infra processes: a static program and mount points.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use parking_lot::Mutex;
use switchyard_core::Result;
use switchyard_crash_points::reach;
use switchyard_linux::files::{self, Durable};
use switchyard_tree::Cancel;

use crate::base::crash_points::CrashPoint;
use crate::base::fs::io_error;
use crate::base::selinux::label_tree;

/// The statically linked program.
const PAUSE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// Its name in the root file system. Run with a command, the same program is the init process of a task.
pub(crate) const PROGRAM: &str = "pause";

/// The mount points that the runtime needs; they must exist, since the root file system is read-only.
const MOUNT_POINTS: [&str; 4] = ["proc", "sys", "dev", "etc"];

/// The permission bits of the root directory, at least.
const OPEN: u32 = 0o755;

/// The first bytes of a program (elf(5)).
const ELF: &[u8] = b"\x7fELF";

/// Makes the program one at a time: two would rename each other's unfinished file.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Creates the root file system of infra processes, with this SELinux label if there is one. Idempotent; running processes
/// keep the old program. Blocks.
///
/// An earlier version's program that cannot be replaced, as on a full disk, stays in use with a warning.
///
/// # Errors
/// `Internal` or `ResourceExhausted`, naming the file, if there is none that can be used; those of [`label_tree`].
pub(crate) fn install(dir: &Path, label: Option<&str>) -> Result<()> {
    let _one_at_a_time = INSTALLING.lock();
    let written = match write(dir) {
        Err(error) if is_usable(dir) => {
            tracing::warn!(
                error = error.report(),
                "cannot replace the infra program: that of an earlier version stays in use"
            );
            Ok(())
        }
        written => written,
    };
    written?;
    let Some(label) = label else { return Ok(()) };
    let opened = switchyard_tree::open(dir).map_err(|fault| io_error("open", dir, fault))?;
    label_tree(opened, dir, label, &Cancel::default())
}

/// Creates the root file system if there is none that can be used, because the start of the daemon could not. Blocks.
///
/// # Errors
/// As for [`install`].
pub(crate) fn ensure(dir: &Path, label: Option<&str>) -> Result<()> {
    if is_usable(dir) {
        Ok(())
    } else {
        install(dir, label)
    }
}

fn write(dir: &Path) -> Result<()> {
    for name in MOUNT_POINTS {
        let path = dir.join(name);
        std::fs::create_dir_all(&path).map_err(|fault| io_error("make directory", &path, fault))?;
    }
    open_to_all(dir)?;
    let program = dir.join(PROGRAM);
    if std::fs::read(&program).is_ok_and(|there| there == PAUSE) {
        return Ok(());
    }
    // Not durable: a program that a power cut has emptied is replaced.
    files::replace(&program, PAUSE, 0o755, Durable::No, || {
        reach(CrashPoint::InfraDrafted)
    })
    .map_err(|error| io_error(error.doing, &error.path, error.source))?;
    reach(CrashPoint::InfraInstalled);
    Ok(())
}

/// Lets every user look into the directory, since not each infra process is root's: an earlier version made it with the umask
/// of whoever started the daemon.
fn open_to_all(dir: &Path) -> Result<()> {
    let fail = |fault| io_error("set the mode of", dir, fault);
    let mode = std::fs::metadata(dir).map_err(fail)?.permissions().mode();
    if mode & OPEN == OPEN {
        return Ok(());
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(OPEN)).map_err(fail)
}

/// Returns whether there is a root file system that infra processes can use. After a power cut the program
/// may be empty.
fn is_usable(dir: &Path) -> bool {
    let mut head = [0; ELF.len()];
    let read = std::fs::File::open(dir.join(PROGRAM)).and_then(|mut program| {
        program.read_exact(&mut head)?;
        program.metadata()
    });
    let is_program =
        read.is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0) && head == *ELF;
    is_program && MOUNT_POINTS.iter().all(|name| dir.join(name).is_dir())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use switchyard_core::ErrorKind;
    use switchyard_linux::files::draft_of;

    use super::*;

    #[test]
    fn root_that_only_root_may_enter_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        for closed in [0o700, 0o750, 0o711] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(closed)).unwrap();
            install(dir.path(), None).unwrap();
            let mode = fs::metadata(dir.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, OPEN, "after {closed:o}");
        }
    }

    #[test]
    fn disk_that_cannot_be_written_keeps_the_program_of_an_earlier_version() {
        let dir = tempfile::tempdir().unwrap();
        install(dir.path(), None).unwrap();
        let program = dir.path().join(PROGRAM);
        fs::write(&program, [ELF, b"of an earlier version"].concat()).unwrap();
        // No file can be written at the place of the draft.
        let obstacle = draft_of(&program);
        fs::create_dir(&obstacle).unwrap();
        install(dir.path(), None).unwrap();
        assert_ne!(fs::read(&program).unwrap(), PAUSE);

        fs::write(&program, "").unwrap();
        for attempt in [install, ensure] {
            assert_eq!(
                attempt(dir.path(), None).unwrap_err().kind(),
                ErrorKind::Internal
            );
        }
        fs::remove_dir(&obstacle).unwrap();
        ensure(dir.path(), None).unwrap();
        assert_eq!(fs::read(&program).unwrap(), PAUSE);
    }
}
