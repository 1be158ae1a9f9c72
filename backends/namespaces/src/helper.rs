//! The helper: a small program, run from memory, for operations that only a single-threaded process can do.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::error::Error;

/// The statically linked program; see `helper/helper.c`.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/helper"));

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
            std::fs::write(&path, map).map_err(Error::file("write", path))?;
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
    let output = command(words)?
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|source| Error::Program { source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Helper {
        said: format!("{}: {said}", source.display()),
    })
}

pub(crate) fn command(
    words: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<Command, Error> {
    // The child resolves this path before its exec closes the descriptor.
    let mut command = Command::new(format!("/proc/self/fd/{}", program()?.as_raw_fd()));
    command.args(words).env_clear();
    Ok(command)
}

/// The program in an in-memory file. The descriptor is close-on-exec; the exec itself still opens the program
/// through it.
fn program() -> Result<&'static File, Error> {
    static FILE: OnceLock<File> = OnceLock::new();
    if let Some(file) = FILE.get() {
        return Ok(file);
    }
    let made = memfd_create("switchyard-helper", MFdFlags::MFD_CLOEXEC);
    let mut file = File::from(made.map_err(|errno| Error::Program {
        source: errno.into(),
    })?);
    file.write_all(PROGRAM)
        .map_err(|source| Error::Program { source })?;
    Ok(FILE.get_or_init(|| file))
}
