//! Trees are removed, copied and labelled with the same result as with the standard library, also those that it cannot
//! handle.

mod copies;
mod hostile;
mod relabels;
mod removals;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::{FileType, Mode, mkdirat, mknodat, openat};

/// An entry to create in a tree; its number selects the existing directory that it is created in.
#[derive(Debug, Clone)]
enum Make {
    Dir(usize, u32),
    File(usize, Vec<u8>, u32),
    Link(usize, String),
    /// A hard link to an existing file.
    Name(usize, usize),
    Fifo(usize),
}

fn make() -> impl Strategy<Value = Make> {
    let place = any::<usize>();
    let mode = prop_oneof![
        Just(0o755_u32),
        Just(0o1777),
        Just(0o4711),
        Just(0o000),
        Just(0o500)
    ];
    prop_oneof![
        4 => (place, mode.clone()).prop_map(|(at, mode)| Make::Dir(at, mode)),
        3 => (place, prop::collection::vec(any::<u8>(), 0..600), mode).prop_map(|(at, content, mode)| Make::File(at, content, mode)),
        1 => (place, "[a-z./]{1,20}").prop_map(|(at, target)| Make::Link(at, target)),
        2 => (place, any::<usize>()).prop_map(|(at, file)| Make::Name(at, file)),
        1 => place.prop_map(Make::Fifo),
    ]
}

fn makes() -> impl Strategy<Value = Vec<Make>> {
    prop::collection::vec(make(), 0..80)
}

/// Creates a tree at `root`.
fn build(root: &Path, makes: &[Make]) {
    fs::create_dir(root).expect("what a test makes can be used");
    let mut dirs = vec![root.to_path_buf()];
    let mut files = Vec::new();
    let mut modes = Vec::new();
    for (number, make) in makes.iter().enumerate() {
        let new = |at: &usize, dirs: &[PathBuf]| dirs[at % dirs.len()].join(format!("n{number}"));
        match make {
            Make::Dir(at, mode) => {
                let path = new(at, &dirs);
                fs::create_dir(&path).expect("what a test makes can be used");
                modes.push((path.clone(), *mode));
                dirs.push(path);
            }
            Make::File(at, content, mode) => {
                let path = new(at, &dirs);
                fs::write(&path, content).expect("what a test makes can be used");
                modes.push((path.clone(), *mode));
                files.push(path);
            }
            Make::Link(at, target) => {
                symlink(target, new(at, &dirs)).expect("what a test makes can be used")
            }
            Make::Name(at, file) => {
                if let Some(file) = files.get(file % files.len().max(1)) {
                    fs::hard_link(file, new(at, &dirs)).expect("what a test makes can be used");
                }
            }
            Make::Fifo(at) => {
                let path = new(at, &dirs);
                mknodat(
                    rustix::fs::CWD,
                    &path,
                    FileType::Fifo,
                    Mode::from_raw_mode(0o640),
                    0,
                )
                .expect("what a test makes can be used");
            }
        }
    }
    for (path, mode) in modes {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .expect("what a test makes can be used");
    }
}

/// All visible properties of an entry; hard links of one file share the first name.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    times: (i64, i64),
    device: u64,
    size: u64,
    content: Vec<u8>,
    first_name: PathBuf,
}

/// The entries of a tree, by path, read with the standard library.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, Seen> {
    fn walk(
        root: &Path,
        path: &Path,
        first: &mut BTreeMap<u64, PathBuf>,
        all: &mut BTreeMap<PathBuf, Seen>,
    ) {
        let data = fs::symlink_metadata(path).expect("what a test makes can be used");
        let kind = data.file_type();
        let relative = path
            .strip_prefix(root)
            .expect("what a test makes can be used")
            .to_path_buf();
        let content = if kind.is_symlink() {
            fs::read_link(path)
                .expect("what a test makes can be used")
                .as_os_str()
                .as_bytes()
                .to_vec()
        } else if kind.is_file() {
            fs::read(path).expect("what a test makes can be used")
        } else {
            Vec::new()
        };
        let is_device = kind.is_char_device() || kind.is_block_device();
        let seen = Seen {
            mode: data.mode(),
            owner: (data.uid(), data.gid()),
            times: (data.mtime(), data.mtime_nsec()),
            device: if is_device { data.rdev() } else { 0 },
            size: if kind.is_dir() { 0 } else { data.size() },
            content,
            first_name: first
                .entry(data.ino())
                .or_insert_with(|| relative.clone())
                .clone(),
        };
        all.insert(relative, seen);
        if kind.is_dir() {
            let mut names: Vec<OsString> = fs::read_dir(path)
                .expect("what a test makes can be used")
                .map(|entry| entry.expect("what a test makes can be used").file_name())
                .collect();
            names.sort();
            for name in names {
                walk(root, &path.join(name), first, all);
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(root, root, &mut BTreeMap::new(), &mut all);
    all
}

/// Creates a chain of so many nested directories below `top`, and returns the deepest.
fn chain(top: &Path, levels: usize) -> OwnedFd {
    let mut dir = switchyard_tree::open(top).expect("what a test makes can be used");
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    for _ in 0..levels {
        mkdirat(&dir, "d", Mode::from_raw_mode(0o755)).expect("what a test makes can be used");
        dir = openat(&dir, "d", flags, Mode::empty()).expect("what a test makes can be used");
    }
    dir
}
