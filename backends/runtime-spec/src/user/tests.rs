//! Tests of resolving users in an image.

use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;

const PASSWD: &[u8] = b"\
root:x:0:0:root:/root:/bin/sh
# a comment
broken line
web:x:33:33:web:/var/www:/bin/false
alice:x:1000:100::/home/alice:/bin/sh
:x:5:5::/:
big:x:99999999999:1::/:
";
const GROUP: &[u8] = b"\
root:x:0:
wheel:x:10:root, alice
users:x:100:alice
www:x:33:
audio:x:29:alice,web
";

fn spec(user: Option<UserRef>) -> UserSpec {
    UserSpec {
        user,
        ..Default::default()
    }
}

fn name(text: &str) -> Option<UserRef> {
    Some(UserRef::Name(text.to_owned()))
}

fn accounts() -> Accounts {
    Accounts {
        passwd: PASSWD.to_vec(),
        group: GROUP.to_vec(),
    }
}

fn read(rootfs: &Path) -> Result<Accounts> {
    AccountFiles::open(rootfs, MAX_FILE_BYTES)?.read()
}

#[track_caller]
fn check(spec: &UserSpec, image: &str, uid: u32, gid: u32, groups: &[u32]) {
    let user = resolve(spec, image, &accounts()).unwrap();
    // The result is the same however little is read at a time.
    let slow = |bytes: &'static [u8]| BufReader::with_capacity(1, bytes);
    assert_eq!(
        resolve_from(spec, image, slow(PASSWD), slow(GROUP)).unwrap(),
        user
    );
    assert_eq!(
        (user.uid, user.gid, user.additional_gids.as_slice()),
        (uid, gid, groups)
    );
}

#[test]
fn user_is_found_by_name_and_uid_with_groups() {
    check(&spec(name("alice")), "", 1000, 100, &[100, 10, 29]);
    check(&spec(name("1000")), "", 1000, 100, &[100, 10, 29]);
    check(
        &spec(Some(UserRef::Uid(1000))),
        "root",
        1000,
        100,
        &[100, 10, 29],
    );
    check(&spec(name("web")), "", 33, 33, &[33, 29]);
}

#[test]
fn user_defaults_to_the_images_then_root() {
    check(&spec(None), "web:users", 33, 100, &[100, 29]);
    check(&spec(None), "", 0, 0, &[0, 10]);
    check(&spec(None), ":100", 0, 100, &[100, 10]);
    check(&spec(None), "web:", 33, 33, &[33, 29]);
}

#[test]
fn unknown_uid_has_gid_0() {
    check(&spec(Some(UserRef::Uid(4711))), "", 4711, 0, &[0]);
    check(&spec(name("4711:12")), "", 4711, 12, &[12]);
}

#[test]
fn request_groups_are_added_and_strict_drops_image_groups() {
    let asked = |policy| UserSpec {
        user: name("alice"),
        gid: Some(7),
        supplemental: vec![8, 10, 7],
        policy,
        ..Default::default()
    };
    check(
        &asked(GroupPolicy::Merge),
        "",
        1000,
        7,
        &[7, 10, 100, 29, 8],
    );
    check(&asked(GroupPolicy::Strict), "", 1000, 7, &[7, 8, 10]);
}

#[test]
fn unknown_names_and_out_of_range_ids_are_rejected() {
    for bad in [
        "bob",
        "alice:nobody",
        "broken line",
        "4294967295",
        "99999999999",
        "big",
        "0:4294967296",
    ] {
        let error = resolve(&spec(name(bad)), "", &accounts()).unwrap_err();
        assert!(error.to_string().starts_with("user: "), "{error}");
    }
    assert!(resolve(&spec(Some(UserRef::Uid(u32::MAX))), "", &accounts()).is_err());
}

#[test]
fn only_numeric_users_with_strict_groups_need_no_image() {
    assert!(needs_rootfs(&spec(Some(UserRef::Uid(1))), ""));
    let strict = |user, gid| UserSpec {
        user,
        gid,
        policy: GroupPolicy::Strict,
        ..Default::default()
    };
    assert!(!needs_rootfs(&strict(Some(UserRef::Uid(1)), Some(1)), ""));
    assert!(!needs_rootfs(&strict(name("1:2"), None), ""));
    assert!(needs_rootfs(&strict(Some(UserRef::Uid(1)), None), ""));
    assert!(needs_rootfs(&strict(None, Some(1)), "web"));
}

#[test]
fn image_links_do_not_escape_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let etc = dir.path().join("etc");
    std::fs::create_dir(&etc).unwrap();
    // Resolved inside, /real is the image's own file; outside it would be the host's.
    std::fs::write(dir.path().join("real"), "web:x:77:78::/:\n").unwrap();
    symlink("/real", etc.join("passwd")).unwrap();
    symlink("../../../../../../etc/group", etc.join("group")).unwrap();
    // Resolved inside, the second symlink points to itself, which is an error; the host's file is not read.
    assert!(read(dir.path()).is_err());
    std::fs::remove_file(etc.join("group")).unwrap();
    let user = resolve(&spec(name("web")), "", &read(dir.path()).unwrap()).unwrap();
    assert_eq!((user.uid, user.gid), (77, 78));
}

#[test]
fn image_without_account_files_runs_by_uid() {
    let dir = tempfile::tempdir().unwrap();
    let none = read(dir.path()).unwrap();
    assert_eq!(none, Accounts::default());
    assert_eq!(resolve(&spec(None), "5:6", &none).unwrap().gid, 6);
    assert!(resolve(&spec(name("web")), "", &none).is_err());
}

#[test]
fn fifo_or_huge_account_file_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("etc")).unwrap();
    let passwd = dir.path().join("etc/passwd");
    nix::unistd::mkfifo(&passwd, Mode::S_IRWXU).unwrap();
    let error = read(dir.path()).unwrap_err();
    assert!(
        error
            .report()
            .contains("/etc/passwd of the image cannot be read"),
        "{error:?}"
    );
    std::fs::remove_file(&passwd).unwrap();
    File::create(&passwd)
        .unwrap()
        .set_len(MAX_FILE_BYTES + 1)
        .unwrap();
    let error = read(dir.path()).unwrap_err().report();
    assert_eq!(
        error,
        "/etc/passwd of the image has 10485761 bytes, and may have 10485760: see images.max_account_file_bytes"
    );
}

#[test]
fn long_account_fields_parse_and_invalid_names_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let etc = dir.path().join("etc");
    std::fs::create_dir(&etc).unwrap();
    let long = "x".repeat(1 << 20);
    std::fs::write(
        etc.join("passwd"),
        format!("{long}:x:1:1::/:\nweb:{long}:33:34:{long}:/:/bin/sh\r\n"),
    )
    .unwrap();
    let group = format!(
        "{long}:x:5:web\nmany:x:6:{}web\nlong:x:7:{long}, web ,b\nlast:x:8:web",
        "a,".repeat(1 << 20)
    );
    std::fs::write(etc.join("group"), group).unwrap();
    let files = || AccountFiles::open(dir.path(), MAX_FILE_BYTES).unwrap();
    let found = files().resolve(&spec(name("web:last")), "").unwrap();
    assert_eq!(
        (found.uid, found.gid, found.additional_gids),
        (33, 8, vec![8, 6, 7])
    );
    assert_eq!(
        files().bytes(),
        files()
            .read()
            .map(|all| (all.passwd.len() + all.group.len()) as u64)
            .unwrap()
    );
    assert!(
        files()
            .resolve(&spec(Some(UserRef::Name(long))), "")
            .is_err()
    );
}

#[test]
fn user_in_too_many_groups_is_rejected() {
    let group: String = (0..70_000)
        .map(|gid| format!("g{gid}:x:{gid}:web\n"))
        .collect();
    let accounts = Accounts {
        passwd: PASSWD.to_vec(),
        group: group.into_bytes(),
    };
    let error = resolve(&spec(name("web")), "", &accounts)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "user: 65537 groups are more than the 65536 of Linux");
}

proptest! {
    #[test]
    fn any_account_file_parses_without_panic(
        passwd in prop::collection::vec(any::<u8>(), 0..300),
        group in "([a-z:0-9,\n]|\\PC){0,120}",
        user in "\\PC{0,12}",
    ) {
        let mut accounts = Accounts { passwd, group: group.into_bytes() };
        let _ = resolve(&spec(Some(UserRef::Name(user.clone()))), "", &accounts);
        std::mem::swap(&mut accounts.passwd, &mut accounts.group);
        let _ = resolve(&spec(None), &user, &accounts);
    }

    #[test]
    fn groups_are_unique_with_the_primary_first(gids in prop::collection::vec(0_u32..6, 0..8), gid in 0_u32..6) {
        let asked = UserSpec { user: name("alice"), gid: Some(gid), supplemental: gids.clone(), ..Default::default() };
        let user = resolve(&asked, "", &accounts()).unwrap();
        prop_assert_eq!(user.additional_gids[0], gid);
        let distinct: std::collections::BTreeSet<u32> = user.additional_gids.iter().copied().collect();
        prop_assert_eq!(distinct.len(), user.additional_gids.len());
        prop_assert!(gids.iter().all(|gid| distinct.contains(gid)));
    }
}

#[test]
fn links_are_resolved_within_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::create_dir_all(dir.path().join("out")).unwrap();
    std::fs::write(root.join("file"), "").unwrap();
    symlink("/a", root.join("absolute")).unwrap();
    symlink("../../../out", root.join("escape")).unwrap();
    let found = |path: &str| directory_in_root(&root, Path::new(path)).unwrap();
    assert_eq!(found("a/b"), Some("a/b".into()));
    assert_eq!(found("absolute/b"), Some("a/b".into()));
    assert_eq!(found("."), Some("".into()));
    assert_eq!(
        [found("file"), found("none"), found("escape")],
        [None, None, None]
    );
}
