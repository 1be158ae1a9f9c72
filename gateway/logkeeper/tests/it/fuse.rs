//! An in-memory FUSE file system that hangs on demand, like a network file system: this process serves the
//! kernel's requests over `/dev/fuse`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use parking_lot::{Condvar, Mutex};

/// A mounted file system. Dropping it unmounts it, and calls that wait for it fail.
pub(crate) struct Fuse {
    point: PathBuf,
    state: Arc<State>,
    server: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    hung: Mutex<bool>,
    /// True if it hangs from the creation of the next file on.
    hangs_at_creation: Mutex<bool>,
    /// The time that each write takes.
    delay: Mutex<Duration>,
    changed: Condvar,
    /// By inode number less 2; the root is 1.
    nodes: Mutex<Vec<Inode>>,
}

/// A file, or a directory, which has no content.
struct Inode {
    /// The directory; 0 for a file without a name.
    parent: u64,
    name: Vec<u8>,
    content: Option<Vec<u8>>,
}

/// Opcodes of requests, from `linux/fuse.h`.
mod op {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const RENAME: u32 = 12;
    pub(super) const OPEN: u32 = 14;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const CREATE: u32 = 35;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

impl Fuse {
    pub(crate) fn mount(point: PathBuf) -> Self {
        Self::mount_as("hung", point)
    }

    /// Mounts it under a name, which the mount tables show.
    pub(crate) fn mount_as(source: &str, point: PathBuf) -> Self {
        fs::create_dir_all(&point).unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device =
            device.expect("/dev/fuse is there: the kernel has FUSE, or `modprobe fuse` loads it");
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        mount(
            Some(source),
            &point,
            Some("fuse"),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .expect("mounting needs root with CAP_SYS_ADMIN");
        let state = Arc::new(State::default());
        let served = Arc::clone(&state);
        let server = std::thread::spawn(move || served.serve(device));
        Self {
            point,
            state,
            server: Some(server),
        }
    }

    /// Stops answering requests.
    pub(crate) fn hang(&self) {
        *self.state.hung.lock() = true;
    }

    /// Stops answering requests with the next one that creates a file.
    pub(crate) fn hang_at_creation(&self) {
        *self.state.hangs_at_creation.lock() = true;
    }

    /// Takes so long for each write from now on.
    #[allow(dead_code, reason = "for other tests that include this file")]
    pub(crate) fn delay_writes(&self, delay: Duration) {
        *self.state.delay.lock() = delay;
    }

    /// Answers the pending requests, and all later ones.
    pub(crate) fn resume(&self) {
        *self.state.hung.lock() = false;
        self.state.changed.notify_all();
    }

    /// The content of each file, by its path below the root, read without the kernel.
    pub(crate) fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let nodes = self.state.nodes.lock();
        let path = |node: &Inode| {
            let mut path = PathBuf::from(String::from_utf8(node.name.clone()).unwrap());
            let mut parent = node.parent;
            while parent > 1 {
                let above = &nodes[usize::try_from(parent - 2).unwrap()];
                path = Path::new(std::str::from_utf8(&above.name).unwrap()).join(path);
                parent = above.parent;
            }
            path.display().to_string()
        };
        let named = nodes.iter().filter(|node| node.parent > 0);
        named
            .filter_map(|node| Some((path(node), node.content.clone()?)))
            .collect()
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.resume();
        // Forced, so that pending callers get an error, and the server's read too.
        let _ = umount2(&self.point, MntFlags::MNT_FORCE);
        if let Err(error) = umount2(&self.point, MntFlags::MNT_DETACH) {
            // The first call may have unmounted it already.
            assert_eq!(error, Errno::EINVAL);
        }
        drop(self.server.take().map(JoinHandle::join));
    }
}

impl State {
    fn serve(&self, mut device: File) {
        let mut buffer = vec![0; 1 << 20];
        while let Ok(len) = device.read(&mut buffer) {
            let request = &buffer[..len];
            let code = number(request, 4);
            let unique = long(request, 8);
            if code == op::CREATE && std::mem::take(&mut *self.hangs_at_creation.lock()) {
                *self.hung.lock() = true;
            }
            self.changed.wait_while(&mut self.hung.lock(), |hung| *hung);
            if [op::FORGET, op::BATCH_FORGET, op::INTERRUPT].contains(&code) {
                continue;
            }
            if code == op::WRITE {
                let delay = *self.delay.lock();
                std::thread::sleep(delay);
            }
            let (error, body) = match self.answer(code, long(request, 16), &request[40..]) {
                Ok(body) => (0, body),
                Err(errno) => (-(errno as i32), Vec::new()),
            };
            let mut reply = u32::try_from(16 + body.len())
                .unwrap()
                .to_le_bytes()
                .to_vec();
            reply.extend(error.to_le_bytes());
            reply.extend(unique.to_le_bytes());
            reply.extend(body);
            // The caller may be gone.
            drop(device.write(&reply));
        }
    }

    fn answer(&self, code: u32, id: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut nodes = self.nodes.lock();
        let at = usize::try_from(id).unwrap().wrapping_sub(2);
        match code {
            // Version 7.31, no features, writes of at most 128 KiB.
            op::INIT => Ok(fields(&[
                7,
                31,
                0,
                0,
                0,
                128 << 10,
                1,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
            ])),
            op::LOOKUP => {
                let name = name(body);
                let found = nodes
                    .iter()
                    .position(|node| node.parent == id && node.name == name);
                found.map(|at| entry(&nodes[at], at)).ok_or(Errno::ENOENT)
            }
            op::MKDIR | op::CREATE => {
                let header = if code == op::MKDIR { 8 } else { 16 };
                let content = (code == op::CREATE).then(Vec::new);
                nodes.push(Inode {
                    parent: id,
                    name: name(&body[header..]),
                    content,
                });
                let mut reply = entry(nodes.last().unwrap(), nodes.len() - 1);
                if code == op::CREATE {
                    reply.extend([0; 16]);
                }
                Ok(reply)
            }
            op::RENAME => rename(&mut nodes, id, body),
            op::GETATTR | op::SETATTR => {
                if let Some(node) = nodes.get_mut(at)
                    && code == op::SETATTR
                    && number(body, 0) & 8 != 0
                {
                    node.content
                        .as_mut()
                        .unwrap()
                        .truncate(usize::try_from(long(body, 16)).unwrap());
                }
                let mut reply = vec![0; 16];
                reply.extend(attributes(nodes.get(at), id));
                Ok(reply)
            }
            op::WRITE => Ok(write(&mut nodes[at], body)),
            op::OPEN => Ok(vec![0; 16]),
            op::FLUSH | op::RELEASE => Ok(Vec::new()),
            _ => Err(Errno::ENOSYS),
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn name(body: &[u8]) -> Vec<u8> {
    body.split(|byte| *byte == 0).next().unwrap().to_vec()
}

fn fields(numbers: &[u32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

/// An entry that the kernel must not cache.
fn entry(node: &Inode, at: usize) -> Vec<u8> {
    let id = at as u64 + 2;
    let mut entry = id.to_le_bytes().to_vec();
    entry.extend([0; 32]);
    entry.extend(attributes(Some(node), id));
    entry
}

fn attributes(node: Option<&Inode>, id: u64) -> Vec<u8> {
    let content = node.and_then(|node| node.content.as_ref());
    let mut attributes = id.to_le_bytes().to_vec();
    attributes.extend((content.map_or(0, Vec::len) as u64).to_le_bytes());
    attributes.extend([0; 44]);
    let mode = if content.is_some() {
        0o100_640
    } else {
        0o040_755
    };
    attributes.extend(fields(&[mode, 1, 0, 0, 0, 4096, 0]));
    attributes
}

/// Moves a node to another directory or name. A node that has that name already is in no directory then.
fn rename(nodes: &mut [Inode], parent: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
    let directory = long(body, 0);
    let old = name(&body[8..]);
    let new = name(&body[8 + old.len() + 1..]);
    let named = |node: &Inode, parent: u64, name: &[u8]| node.parent == parent && node.name == name;
    let moved = nodes
        .iter()
        .position(|node| named(node, parent, &old))
        .ok_or(Errno::ENOENT)?;
    if let Some(replaced) = nodes.iter_mut().find(|node| named(node, directory, &new)) {
        replaced.parent = 0;
    }
    nodes[moved].parent = directory;
    nodes[moved].name = new;
    Ok(Vec::new())
}

/// Writes to a file, behind its end too.
fn write(node: &mut Inode, body: &[u8]) -> Vec<u8> {
    let content = node.content.as_mut().unwrap();
    let offset = usize::try_from(long(body, 8)).unwrap();
    let size = number(body, 16);
    let end = offset + usize::try_from(size).unwrap();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(&body[40..40 + (end - offset)]);
    fields(&[size, 0])
}
