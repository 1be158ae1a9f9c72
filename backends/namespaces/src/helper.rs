//! The helper: a small program for operations that only a single-threaded process can do. It is run from memory, or from a file
//! where the node does not let memory be executed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use parking_lot::Mutex;
use switchyard_linux::files::{self, Durable};
use switchyard_linux::host_features::executable_memory;

use crate::error::Error;

/// The statically linked program; see `helper/helper.c`.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/helper"));

/// The name of its file, and of the memory that it is run from.
const NAME: &str = "switchyard-helper";

/// The directory for its file.
static DIR: OnceLock<PathBuf> = OnceLock::new();

/// Writes the file one at a time: two would rename each other's unfinished one.
static INSTALLING: Mutex<()> = Mutex::new(());

/// A process that keeps namespaces alive until this is dropped.
#[derive(Debug)]
pub(crate) struct Holder {
    child: Child,
}

// === impl Holder ===

impl Holder {
    /// Creates a user namespace with these maps, in the format of `/proc/<pid>/uid_map`, and inside of it the
    /// namespaces that `letters` name.
    pub(crate) fn make(letters: &str, uids: &str, gids: &str) -> Result<Self, Error> {
        let mut command = command(["namespaces", letters])?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command
            .spawn()
            .map_err(|source| Error::Program { source })?;
        let mut holder = Self { child };
        holder.wait_for(b'u')?;
        for (file, map) in [("uid_map", uids), ("gid_map", gids)] {
            let path = format!("/proc/{}/{file}", holder.child.id());
            // The kernel accepts a map only as a single write.
            fs::write(&path, map).map_err(Error::file("write", path))?;
        }
        let sent = holder
            .child
            .stdin
            .as_mut()
            .map(|input| input.write_all(b"m"));
        if !matches!(sent, Some(Ok(()))) {
            return Err(holder.fault());
        }
        holder.wait_for(b'n')?;
        Ok(holder)
    }

    /// The `/proc` directory of its namespaces.
    pub(crate) fn namespaces(&self) -> String {
        format!("/proc/{}/ns", self.child.id())
    }

    /// Waits until the process writes this letter.
    fn wait_for(&mut self, letter: u8) -> Result<(), Error> {
        let mut byte = [0];
        let read = self
            .child
            .stdout
            .as_mut()
            .map(|output| output.read_exact(&mut byte));
        if matches!(read, Some(Ok(()))) && byte == [letter] {
            Ok(())
        } else {
            Err(self.fault())
        }
    }

    /// The error for what the process wrote before it exited.
    fn fault(&mut self) -> Error {
        drop(self.child.stdin.take());
        let mut said = String::new();
        if let Some(errors) = self.child.stderr.as_mut() {
            // If its message cannot be read, the failure is still reported.
            let _ = errors.take(4096).read_to_string(&mut said);
        }
        Error::Helper { said }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It exits when its input is closed; the kill makes sure that a stopped process does not block the
        // wait.
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Mounts `source` (a directory or a file), with everything mounted below it, at the existing `target`,
/// idmapped: the ids of files are mapped as the user namespace maps ids, so that files of the host's root
/// belong to root inside. If something that is mounted below it cannot be mapped, such as the namespaces below `/run/netns`,
/// nothing below it is: so do runtimes that map ids themselves.
///
/// Not idempotent: each call mounts once more. [`crate::mounts::unmount_tree`] unmounts it.
///
/// # Errors
/// [`Error::Helper`] with the kernel's error, for example for a file system without support for idmapped
/// mounts; [`Error::Program`].
pub fn map_ids(users: &Path, source: &Path, target: &Path) -> Result<(), Error> {
    let words = [
        OsStr::new("idmap"),
        users.as_os_str(),
        source.as_os_str(),
        target.as_os_str(),
    ];
    run(words).map_err(|error| {
        if let Error::Helper { said } = error {
            Error::Helper {
                said: format!("{}: {said}", source.display()),
            }
        } else {
            error
        }
    })
}

/// Tries whether mount_setattr(2) can be used: by it ids are mapped, and runtimes make mounts recursively read-only. Changes nothing.
///
/// # Errors
/// [`Error::Helper`] with the kernel's error, such as that of Linux before 5.12 or of a seccomp filter; [`Error::Program`].
pub fn try_mount_setattr() -> Result<(), Error> {
    run(["setattr"])
}

/// Chooses the directory for the program's file, which is made if it is needed. Of several directories in one process the first is used.
pub fn set_program_dir(dir: &Path) {
    // Another one may be there already.
    let _ = DIR.set(dir.to_owned());
}

fn run(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<(), Error> {
    let output = command(words)?
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|source| Error::Program { source })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Helper {
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

pub(crate) fn command(
    words: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<Command, Error> {
    let mut command = match program().map_err(|source| Error::Program { source })? {
        Some(memory) => command_of(memory),
        None => Command::new(file_in(DIR.get())?),
    };
    command.args(words).env_clear();
    Ok(command)
}

/// The command with the program in this memory. The child resolves the path before its exec closes the descriptor.
fn command_of(memory: &File) -> Command {
    Command::new(format!("/proc/self/fd/{}", memory.as_raw_fd()))
}

/// The program in memory; `None` where memory cannot be executed. The descriptor is close-on-exec; the exec itself still opens the
/// program through it.
fn program() -> io::Result<Option<&'static File>> {
    static FOUND: OnceLock<Option<File>> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found.as_ref());
    }
    let made = match in_memory() {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
            ) =>
        {
            None
        }
        made => Some(made?),
    };
    Ok(FOUND.get_or_init(|| made).as_ref())
}

fn in_memory() -> io::Result<File> {
    let mut memory = executable_memory(NAME)?;
    memory.write_all(PROGRAM)?;
    // A security module may refuse what the kernel itself allows. Without words the program only says so.
    command_of(&memory)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    Ok(memory)
}

/// The file with the program in this directory. Written if it is missing, or that of another version; a kill leaves at most a draft,
/// which the next write replaces.
fn file_in(dir: Option<&PathBuf>) -> Result<PathBuf, Error> {
    let dir = dir.ok_or_else(|| Error::Program {
        source: io::ErrorKind::PermissionDenied.into(),
    })?;
    let file = dir.join(NAME);
    let _one_at_a_time = INSTALLING.lock();
    if !fs::read(&file).is_ok_and(|there| there == PROGRAM) {
        fs::create_dir_all(dir).map_err(Error::file("make directory", dir))?;
        // Not durable: one that a power cut has emptied is replaced.
        files::replace(&file, PROGRAM, 0o755, Durable::No, || {})?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Set in the environment of a process that may execute no memory: the directory for the program's file.
    const PLACE: &str = "SWITCHYARD_TEST_HELPER_DIR";

    /// Needs to run as root.
    #[test]
    fn program_is_run_from_memory() {
        assert!(program().unwrap().is_some());
        try_mount_setattr().expect("these tests need Linux 5.12");
        assert!(matches!(run(["unknown"]), Err(Error::Helper { .. })));
    }

    /// Body of another test, which runs it in a process that may execute no memory.
    #[test]
    fn program_of_a_process_without_executable_memory() {
        let Some(dir) = std::env::var_os(PLACE).map(PathBuf::from) else {
            return;
        };
        assert!(matches!(command(["setattr"]), Err(Error::Program { .. })));
        set_program_dir(&dir);
        assert!(program().unwrap().is_none());
        try_mount_setattr().unwrap();
        let file = dir.join(NAME);
        // An empty one, as after a power cut, that of another version, and none.
        for there in [Some(""), Some("of another version"), None] {
            match there {
                Some(text) => fs::write(&file, text).unwrap(),
                None => fs::remove_dir_all(&dir).unwrap(),
            }
            try_mount_setattr().unwrap();
            assert_eq!(fs::read(&file).unwrap(), PROGRAM);
        }
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o7777,
            0o755
        );
        println!("the program is run from its file");
    }

    /// Needs to run as root. The sysctl belongs to the PID namespace, of which the process has one of its own.
    #[test]
    fn program_is_run_from_a_file_where_memory_cannot_be_executed() {
        let sysctl = Path::new("/proc/sys/vm/memfd_noexec");
        if !sysctl.exists() {
            // Before Linux 6.3 all memory can be executed.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "sh", "-ec"])
            .arg("echo 2 > /proc/sys/vm/memfd_noexec\nexec \"$0\" \"$@\"")
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "helper::tests::program_of_a_process_without_executable_memory",
                "--nocapture",
            ])
            .env(PLACE, dir.path().join("infra"))
            .output()
            .expect("unshare is missing: install the Debian package util-linux");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("the program is run from its file"),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
