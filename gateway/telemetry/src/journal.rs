//! The protocol of systemd's journal: entries of fields, sent as datagrams to its socket.
//!
//! The names of fields are those of the source, never data. A value with a newline is written with its length, so that no
//! value makes a field of its own.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};

/// The socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Names another socket of a journal.
const SOCKET_VARIABLE: &str = "SWITCHYARD_JOURNAL_SOCKET";

/// Names the device and the inode of the stream that the service manager has connected to the journal.
const STREAM_VARIABLE: &str = "JOURNAL_STREAM";

/// The longest value of a field, in bytes; the rest of a longer one is left out.
const VALUE_MAX: usize = 256 << 10;

/// The prefix of the names of our fields.
const PREFIX: &str = "SWITCHYARD_";

/// Maximum number of repeated sends of an entry that signals interrupt.
const INTERRUPTIONS_MAX: usize = 8;

/// The severity of an entry, as syslog numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Something failed that should not.
    Error = 3,
    /// Something is wrong that may mend itself.
    Warning = 4,
    /// Something happened that is in order.
    Info = 6,
    /// Something for developers.
    Debug = 7,
}

/// An entry of the journal.
#[derive(Debug, Clone)]
pub struct JournalEntry(Vec<u8>);

/// The time for which a send to the journal may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendWait {
    /// It does not wait: an entry that finds no room is lost.
    Never,
    /// It waits at most for this time.
    AtMost(Duration),
}

/// The socket of the journal. It is connected for the first entry, and again when the journal was restarted.
#[derive(Debug)]
pub struct JournalSocket {
    path: PathBuf,
    wait: SendWait,
    connected: Option<UnixDatagram>,
}

/// Returns the path of the journal's socket; the environment may name another one than systemd's.
#[must_use]
pub fn journal_socket() -> PathBuf {
    std::env::var_os(SOCKET_VARIABLE)
        .filter(|path| !path.is_empty())
        .map_or_else(|| SOCKET.into(), PathBuf::from)
}

/// Returns whether standard error is the stream that the service manager has connected to the journal.
#[must_use]
pub fn is_stderr_journal() -> bool {
    let Ok(stream) = std::env::var(STREAM_VARIABLE) else {
        return false;
    };
    let opened = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let place = opened.and_then(|file| file.metadata());
    place.is_ok_and(|place| is_stream(&stream, place.dev(), place.ino()))
}

/// Returns whether `JOURNAL_STREAM` names this device and inode. Pure.
fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    let named = stream.split_once(':').and_then(|(device, inode)| {
        Some((device.parse::<u64>().ok()?, inode.parse::<u64>().ok()?))
    });
    named == Some((device, inode))
}

// === impl JournalEntry ===

impl JournalEntry {
    /// Begins an entry with a message, of the program with this name.
    #[must_use]
    pub fn new(priority: Priority, program: &str, message: &str) -> Self {
        let mut entry = Self(Vec::with_capacity(256));
        entry.push("PRIORITY", &(priority as u8).to_string());
        entry.push("SYSLOG_IDENTIFIER", program);
        entry.push("MESSAGE", message);
        entry
    }

    /// Adds a field of ours, as `SWITCHYARD_…`. A name that is not one of the source's is left out.
    pub fn field(&mut self, name: &str, value: &str) {
        if let Some(name) = field_name(name) {
            self.push(&name, value);
        }
    }

    /// The bytes that are sent.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn push(&mut self, name: &str, value: &str) {
        let value = &value[..value.floor_char_boundary(VALUE_MAX)];
        self.0.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
            self.0.push(b'\n');
            self.0.extend_from_slice(&length.to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(b'\n');
    }
}

/// The name of a field in the journal; `None` if it cannot be one: the journal takes at most 64 capitals, digits and
/// underscores.
fn field_name(name: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_valid = !name.is_empty() && name.len() + PREFIX.len() <= 64 && name.chars().all(is_part);
    is_valid.then(|| format!("{PREFIX}{}", name.to_ascii_uppercase()))
}

// === impl JournalSocket ===

impl JournalSocket {
    /// The socket at this path; nothing is connected yet.
    #[must_use]
    pub const fn new(path: PathBuf, wait: SendWait) -> Self {
        Self {
            path,
            wait,
            connected: None,
        }
    }

    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects the socket, if it is not connected.
    ///
    /// # Errors
    /// There is no journal at the path.
    pub fn connect(&mut self) -> io::Result<()> {
        let socket = self.take()?;
        self.connected = Some(socket);
        Ok(())
    }

    /// Sends an entry. One that is too large for a datagram is passed as a sealed file in memory.
    ///
    /// # Errors
    /// The journal does not take it: it is away, or did not read for as long as may be waited.
    pub fn send(&mut self, entry: &JournalEntry) -> io::Result<()> {
        let socket = self.take()?;
        match self.send_by(&socket, entry) {
            Err(error) if is_gone(&error) => {
                // The journal was restarted: its socket is another one now.
                let socket = self.take()?;
                self.send_by(&socket, entry)?;
                self.connected = Some(socket);
                Ok(())
            }
            sent => {
                self.connected = Some(socket);
                sent
            }
        }
    }

    fn take(&mut self) -> io::Result<UnixDatagram> {
        if let Some(socket) = self.connected.take() {
            return Ok(socket);
        }
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.path)?;
        if let SendWait::AtMost(limit) = self.wait {
            socket.set_write_timeout(Some(limit))?;
        }
        Ok(socket)
    }

    fn send_by(&self, socket: &UnixDatagram, entry: &JournalEntry) -> io::Result<()> {
        let flags = match self.wait {
            SendWait::Never => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            SendWait::AtMost(_) => SendFlags::NOSIGNAL,
        };
        let sent = send_uninterrupted(|| Ok(send(socket, &entry.0, flags)?));
        match sent {
            Err(error) if is_too_large(&error) => {
                let file = sealed(&entry.0)?;
                send_uninterrupted(|| pass(socket, &file, flags))
            }
            sent => sent,
        }
    }
}

/// Returns whether the socket leads nowhere any more, or not yet.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotConnected | io::ErrorKind::NotFound
    )
}

fn is_too_large(error: &io::Error) -> bool {
    [Errno::MSGSIZE, Errno::NOBUFS]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// A file in memory with this content, which nobody can change any more: the journal takes no other.
fn sealed(bytes: &[u8]) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("switchyard-log", flags)?);
    file.write_all(bytes)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file)
}

/// Sends a descriptor alone, which stands for an entry with the content of its file.
fn pass(socket: &UnixDatagram, file: &File, flags: SendFlags) -> io::Result<usize> {
    let descriptors = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other(
            "a control message has no room for one descriptor",
        ));
    }
    let nothing: [IoSlice<'_>; 0] = [];
    Ok(sendmsg(socket, &nothing, &mut control, flags)?)
}

/// Sends again what a signal has interrupted: the kernel does not resume a send with a timeout (signal(7)).
fn send_uninterrupted(mut send: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    for _ in 0..INTERRUPTIONS_MAX {
        match send() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            sent => return sent.map(drop),
        }
    }
    send().map(drop)
}

#[cfg(test)]
mod tests;
