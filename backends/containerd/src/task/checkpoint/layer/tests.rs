//! Tests of layers: what an upper directory becomes.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::sys::stat::{Mode, SFlag, mknod};
use switchyard_core::spec::IdRange;

use super::*;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// The layer of an upper directory as the kernel's overlay leaves it, read back by the names of its
/// entries.
#[test]
fn a_layer_has_what_was_written_changed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let upper = dir.path().join("upper");
    let long = "n".repeat(150);
    let _socket = fill_upper(&upper, &long);

    let range = IdRange {
        inside: 0,
        host: 100_000,
        length: 65_536,
    };
    let map = IdMap::new(vec![range]).unwrap();
    let users = UserNamespace {
        uids: map.clone(),
        gids: map,
    };
    let into = dir.path().join("layer.tar");
    write(&upper, Some(&users), OVERLAY, &into, soon()).unwrap();

    let seen = entries_of(&into);
    let names: Vec<&str> = seen.keys().map(|name| name.trim_end_matches('/')).collect();
    let long = format!("dir/{long}");
    let expected = [
        "dir",
        "dir/.wh.gone",
        "dir/below",
        "dir/below/.wh..wh..opq",
        "dir/file",
        "dir/name",
        &long,
        "fifo",
        "link",
    ];
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let file = &seen["dir/file"];
    assert_eq!(
        (file.uid, file.mode, file.content.as_str()),
        (33, 0o4751, "text")
    );
    assert_eq!(seen["dir/name"].link.as_deref(), Some("dir/file"));
    assert_eq!(seen["link"].link.as_deref(), Some("../there"));
    assert_eq!(seen["fifo"].kind, EntryType::Fifo);
    assert_eq!(
        seen["fifo"].pax,
        [("SCHILY.xattr.trusted.kept".to_owned(), b"v\0".to_vec())]
    );
    // The host's root is nobody inside.
    assert_eq!(seen["link"].uid, u64::from(NOBODY));
    assert_eq!(seen[&long].content, "long");
}

/// An entry of an archive, as far as the tests compare it.
struct Entry {
    kind: EntryType,
    uid: u64,
    mode: u32,
    content: String,
    link: Option<String>,
    pax: Vec<(String, Vec<u8>)>,
}

/// Reads an archive; its entries by their paths.
fn entries_of(archive: &Path) -> BTreeMap<String, Entry> {
    let mut archive = tar::Archive::new(File::open(archive).unwrap());
    let mut seen = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        let header = entry.header();
        let uid = header.uid().unwrap();
        let mode = header.mode().unwrap();
        let kind = header.entry_type();
        let link = entry
            .link_name()
            .unwrap()
            .map(|link| link.display().to_string());
        let pax: Vec<_> = entry
            .pax_extensions()
            .unwrap()
            .into_iter()
            .flatten()
            .map(|pax| pax.unwrap())
            .map(|pax| (pax.key().unwrap().to_owned(), pax.value_bytes().to_vec()))
            .collect();
        let path = entry.path().unwrap().display().to_string();
        seen.insert(
            path,
            Entry {
                kind,
                uid,
                mode,
                content,
                link,
                pax,
            },
        );
    }
    seen
}

/// Fills an upper directory as the kernel's overlay does. Returns the socket in it, which is left out.
fn fill_upper(upper: &Path, long: &str) -> UnixListener {
    fs::create_dir_all(upper.join("dir/below")).unwrap();
    fs::write(upper.join("dir/file"), "text").unwrap();
    fs::write(upper.join("dir").join(long), "long").unwrap();
    chown(upper.join("dir/file"), Some(100_033), Some(100_044)).unwrap();
    // Set after `chown`, which clears the set-user-ID bit.
    fs::set_permissions(upper.join("dir/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(upper.join("dir/file"), upper.join("dir/name")).unwrap();
    symlink("../there", upper.join("link")).unwrap();
    mknod(&upper.join("dir/gone"), SFlag::S_IFCHR, Mode::empty(), 0).unwrap();
    nix::unistd::mkfifo(&upper.join("fifo"), Mode::S_IRWXU).unwrap();
    let socket = UnixListener::bind(upper.join("socket")).unwrap();
    rustix::fs::setxattr(
        upper.join("dir/below"),
        "trusted.overlay.opaque",
        b"y",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    rustix::fs::setxattr(
        upper.join("fifo"),
        "trusted.kept",
        b"v\0",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    socket
}

/// In a user namespace overlays are mounted with `userxattr`. What else a task writes there is its own, as the storage of a runtime within
/// the container.
#[test]
fn state_of_an_overlay_is_in_the_attributes_that_it_was_mounted_with() {
    let mount = |options: &[&str]| Mount {
        r#type: "overlay".to_owned(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..Default::default()
    };
    for (options, of_overlay, of_task) in [
        (&["upperdir=/u"][..], OVERLAY, USER_OVERLAY),
        (&["index=off"][..], OVERLAY, USER_OVERLAY),
        (&["userxattr", "upperdir=/u"][..], USER_OVERLAY, OVERLAY),
        (&["upperdir=/u", "userxattr"][..], USER_OVERLAY, OVERLAY),
    ] {
        let overlay = own_attributes(&[mount(options)]);
        assert_eq!(overlay, of_overlay);
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("upper");
        let set = |name: &str, attribute: String| {
            let path = upper.join(name);
            fs::create_dir_all(&path).unwrap();
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(path, attribute, b"y", flags).unwrap();
        };
        set("hides", format!("{of_overlay}opaque"));
        set("hides", format!("{of_overlay}impure"));
        set("shows", format!("{of_task}opaque"));
        let into = dir.path().join("layer.tar");
        write(&upper, None, overlay, &into, soon()).unwrap();
        let seen = entries_of(&into);
        let marked = |name: &str| seen.contains_key(&format!("{name}/{OPAQUE_WHITEOUT}"));
        assert!(marked("hides") && !marked("shows"), "{options:?}");
        let pax = |name: &str| {
            let mut entries = seen.iter();
            let found = entries.find(|(path, _)| path.trim_end_matches('/') == name);
            found.map(|(_, entry)| entry.pax.clone()).unwrap()
        };
        assert!(pax("hides").is_empty(), "{options:?}");
        let kept = (format!("SCHILY.xattr.{of_task}opaque"), b"y".to_vec());
        // No container writes the other ones.
        let kept: Vec<_> = [kept]
            .into_iter()
            .filter(|_| of_task == USER_OVERLAY)
            .collect();
        assert_eq!(pax("shows"), kept, "{options:?}");
    }
    assert_eq!(own_attributes(&[]), OVERLAY);
}

/// A file is read as it was opened, even if its path is replaced in between.
#[test]
fn what_takes_the_place_of_a_file_or_directory_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let upper = dir.path().join("upper");
    let secret = dir.path().join("secret");
    fs::create_dir_all(upper.join("dir")).unwrap();
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("key"), "secret").unwrap();
    fs::write(upper.join("file"), "text").unwrap();
    fs::write(upper.join("other"), "more").unwrap();
    let node = OpenFile::open(CWD, upper.as_os_str(), OFlags::DIRECTORY).unwrap();
    let [file, other] = ["file", "other"]
        .map(|name| OpenFile::open(&node.file, name.as_ref(), OFlags::empty()).unwrap());
    for name in ["file", "other"] {
        fs::remove_file(upper.join(name)).unwrap();
    }
    symlink(secret.join("key"), upper.join("file")).unwrap();
    nix::unistd::mkfifo(&upper.join("other"), Mode::S_IRWXU).unwrap();
    fs::remove_dir(upper.join("dir")).unwrap();
    symlink(&secret, upper.join("dir")).unwrap();

    assert!(node.below(Path::new("dir")).unwrap().is_none());
    let mut layer = LayerWriter {
        builder: Builder::new(Vec::new()),
        users: None,
        overlay: OVERLAY,
        names: HashMap::new(),
        path_memory: 0,
        until: soon(),
    };
    layer.entry(&file, Path::new("file")).unwrap();
    layer.entry(&other, Path::new("other")).unwrap();
    let written = layer.builder.into_inner().unwrap();
    let text = String::from_utf8_lossy(&written);
    assert!(text.contains("text") && text.contains("more") && !text.contains("secret"));

    // Links and FIFOs that exist from the beginning are written as such.
    let into = dir.path().join("layer.tar");
    write(&upper, None, OVERLAY, &into, soon()).unwrap();
    let mut archive = tar::Archive::new(File::open(&into).unwrap());
    let kinds: Vec<_> = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().header().entry_type())
        .collect();
    assert_eq!(
        kinds,
        [EntryType::Symlink, EntryType::Symlink, EntryType::Fifo]
    );
}

#[test]
fn a_tree_whose_paths_nobody_could_unpack_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut below = File::open(dir.path()).unwrap();
    for _ in 0..20 {
        let name = "n".repeat(250);
        rustix::fs::mkdirat(&below, &name, rustix::fs::Mode::RWXU).unwrap();
        below = File::from(
            openat(&below, &name, OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap(),
        );
    }
    let into = tempfile::tempdir().unwrap();
    let refused = write(
        dir.path(),
        None,
        OVERLAY,
        &into.path().join("layer.tar"),
        soon(),
    )
    .unwrap_err();
    assert!(
        refused.report().contains("longer than 4096 bytes"),
        "{}",
        refused.report()
    );
    assert!(
        check_path_memory(MAX_PATH_MEMORY).is_ok()
            && check_path_memory(MAX_PATH_MEMORY + 1).is_err()
    );
}

#[test]
fn a_layer_that_takes_too_long_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("upper")).unwrap();
    fs::write(dir.path().join("upper/file"), "text").unwrap();
    let late = write(
        &dir.path().join("upper"),
        None,
        OVERLAY,
        &dir.path().join("layer.tar"),
        Instant::now(),
    );
    assert_eq!(
        late.unwrap_err().kind(),
        switchyard_core::ErrorKind::DeadlineExceeded
    );
}
