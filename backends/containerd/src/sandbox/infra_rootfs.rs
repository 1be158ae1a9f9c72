//! The root file system of infra processes: a static program and mount points.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use switchyard_core::Result;
use switchyard_steps::reach;

use crate::base::fs::io_error;
use crate::base::steps::Step;

/// The statically linked program.
const PAUSE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// Its name in the root file system. Run with a command, the same program is the init process of a task.
pub(crate) const PROGRAM: &str = "pause";

/// The mount points that the runtime needs; they must exist, since the root file system is read-only.
const MOUNT_POINTS: [&str; 4] = ["proc", "sys", "dev", "etc"];

/// Creates the root file system of infra processes. Idempotent; running processes keep the old program.
pub(crate) fn install(dir: &Path) -> Result<()> {
    for name in MOUNT_POINTS {
        let path = dir.join(name);
        std::fs::create_dir_all(&path).map_err(|fault| io_error("make directory", &path, fault))?;
    }
    let program = dir.join(PROGRAM);
    if std::fs::read(&program).is_ok_and(|there| there == PAUSE) {
        return Ok(());
    }
    let fresh = dir.join(".pause.new");
    std::fs::write(&fresh, PAUSE).map_err(|fault| io_error("write", &fresh, fault))?;
    reach(Step::InfraDrafted);
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&fresh, mode).map_err(|fault| io_error("make executable", &fresh, fault))?;
    std::fs::rename(&fresh, &program).map_err(|fault| io_error("put in place", &program, fault))?;
    reach(Step::InfraInstalled);
    Ok(())
}
