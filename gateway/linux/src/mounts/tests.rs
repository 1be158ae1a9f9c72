//! Lists of mounts as the kernel writes them, and any other text.

use proptest::prelude::*;

use super::*;

const TEXT: &str = "\
22 1 8:1 / / rw shared:1 - ext4 /dev/sda rw
23 22 0:5 / /mnt rw - tmpfs t rw
24 23 0:6 / /mnt/a\\040b rw master:7 - tmpfs t rw
25 23 0:7 / /mnt/both rw master:2 shared:3 - tmpfs t rw
26 22 0:8 / /over rw - tmpfs t rw
27 22 0:9 / /over rw shared:9 master:4 - tmpfs t rw
nonsense
28 22 0:10 / /last rw
";

fn table() -> MountTable {
    MountTable::from_text(TEXT)
}

#[test]
fn line_is_parsed_completely() {
    let line = "36 35 98:0 /a\\040b /mnt/c\\134d rw,noatime shared:7 master:1 odd:9 - ext3 /dev/r\\011t rw,errors=continue\n";
    let table = MountTable::from_text(line);
    let mounts: Vec<_> = table.checked().collect();
    let expected = Mount {
        id: 36,
        parent: 35,
        device: "98:0",
        root: Cow::Owned("/a b".into()),
        point: Cow::Owned("/mnt/c\\d".into()),
        options: Options(b"rw,noatime"),
        propagation: Propagation::Shared,
        fs_type: "ext3".into(),
        source: Cow::Owned("/dev/r\tt".into()),
        fs_options: Options(b"rw,errors=continue"),
    };
    assert_eq!(mounts, [Ok(expected)]);
    let options = mounts[0].as_ref().unwrap().options;
    assert!(options.has("noatime") && !options.has("no") && !options.has("rw,noatime"));
}

#[test]
fn malformed_lines_are_reported_in_their_place_or_skipped() {
    for line in [
        "36 35 98:0 / /mnt rw shared:7",
        "36 35",
        "x 35 98:0 / / rw - ext3 a b",
        "36 35 98:0 / / rw - ext3",
    ] {
        let table = MountTable::from_text(line);
        let malformed = table.checked().next().unwrap().unwrap_err();
        assert!(malformed.to_string().contains(line), "{malformed}");
    }
    let table = table();
    assert_eq!(table.iter().count(), 6);
    let places: Vec<_> = table
        .checked()
        .enumerate()
        .filter(|(_, line)| line.is_err())
        .collect();
    assert_eq!(
        places.iter().map(|(place, _)| *place).collect::<Vec<_>>(),
        [6, 7]
    );
}

#[test]
fn path_is_on_its_nearest_and_last_mount() {
    let table = table();
    for (path, device, propagation) in [
        ("/etc", "8:1", Propagation::Shared),
        ("/mntx", "8:1", Propagation::Shared),
        ("/mnt/c", "0:5", Propagation::Private),
        ("/mnt/a b/c", "0:6", Propagation::Slave),
        ("/mnt/both", "0:7", Propagation::Shared),
        ("/over/x", "0:9", Propagation::Shared),
    ] {
        let mount = table.containing(Path::new(path)).unwrap();
        assert_eq!(
            (mount.device, mount.propagation),
            (device, propagation),
            "{path}"
        );
    }
    assert_eq!(MountTable::default().containing(Path::new("/")), None);
}

#[test]
fn mounts_of_this_machine_are_all_well_formed() {
    for table in [
        MountTable::of_this_process(),
        MountTable::of_this_thread(),
        MountTable::of_process(1),
    ] {
        let table = table.unwrap();
        assert!(table.checked().all(|mount| mount.is_ok()));
        assert_eq!(
            &*table.containing(Path::new("/proc/self")).unwrap().point,
            Path::new("/proc")
        );
    }
}

proptest! {
    #[test]
    fn escapes_of_the_kernel_are_reverted(name in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut written = Vec::new();
        for byte in &name {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' | b'#' => written.extend(format!("\\{byte:03o}").bytes()),
                _ => written.push(*byte),
            }
        }
        prop_assert_eq!(&*line::unescape(&written), &name[..]);
    }

    #[test]
    fn any_text_keeps_the_properties(
        text in prop::collection::vec(
            prop_oneof![any::<u8>(), Just(b' '), Just(b'\n'), Just(b'-'), Just(b'\\'), Just(b'/'), b'0'..=b'9'],
            0..300,
        ),
        lines in "([0-9]{1,2} [0-9]{1,2} [0-9]:[0-9] /[a\\\\0-7]{0,9} /[a/\\\\0-7]{0,9} rw( (shared|master):[0-9])? - [a-z]{0,3} x( [a-z=,]{0,9})?\n){0,4}",
    ) {
        check(&text);
        check(lines.as_bytes());
    }
}
