//! Tests of archives: complete ones, with links, with several images, and malformed ones.

use std::io::{Seek, Write};

use super::*;

/// An archive of files and symbolic links; a content that begins with `->` is the target of a link.
fn archive(entries: &[(&str, &str)]) -> File {
    let mut builder = tar::Builder::new(tempfile::tempfile().expect("there is room"));
    for (path, content) in entries {
        let mut header = tar::Header::new_gnu();
        match content.strip_prefix("->") {
            Some(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                builder
                    .append_link(&mut header, path, target)
                    .expect("there is room");
            }
            None => {
                header.set_size(content.len() as u64);
                builder
                    .append_data(&mut header, path, content.as_bytes())
                    .expect("there is room");
            }
        }
    }
    let mut file = builder.into_inner().expect("there is room");
    file.flush()
        .and_then(|()| file.rewind())
        .expect("it is a file");
    file
}

const LIST: &str = r#"[{"Config":"c.json","RepoTags":["busybox:1"],"Layers":["a/layer.tar","b/layer.tar"]},
    {"Config":"d.json","RepoTags":null,"Layers":[]}]"#;

fn open(file: File) -> Result<Archive> {
    Archive::open(file, CancellationToken::new())
}

fn found(entries: &[(&str, &str)], reference: &str) -> Result<ArchiveImage> {
    open(archive(entries))?.image(reference, &Limits::default())
}

fn refused(entries: &[(&str, &str)], reference: &str) -> Error {
    found(entries, reference).err().expect("it is refused")
}

#[test]
fn an_image_is_found_by_its_name_however_that_is_written_and_its_layers_by_links() {
    let entries = [
        ("a/layer.tar", "one"),
        ("b/layer.tar", "->../a/layer.tar"),
        ("./c.json", "{}"),
        ("d.json", "{\"d\":1}"),
        ("manifest.json", LIST),
    ];
    let image = found(&entries, "docker.io/library/busybox:1").expect("it is there");
    assert_eq!((image.config.as_ref(), image.layers.len()), (&b"{}"[..], 2));
    let digest = "sha256:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
    for layer in &image.layers {
        assert_eq!(
            (
                layer.descriptor.digest.to_string().as_str(),
                layer.descriptor.size
            ),
            (digest, 3)
        );
        let mut bytes = [0; 3];
        image
            .file
            .read_exact_at(&mut bytes, layer.at)
            .expect("it is there");
        assert_eq!(&bytes, b"one");
    }
    assert_eq!(refused(&entries, "other:1").kind(), ErrorKind::NotFound);
}

#[test]
fn the_only_image_needs_no_name() {
    let entries = [
        ("manifest.json", r#"[{"Config":"c","Layers":null}]"#),
        ("c", "{}"),
    ];
    assert!(
        found(&entries, "whatever:1")
            .expect("it is there")
            .layers
            .is_empty()
    );
}

#[test]
fn layers_are_told_apart_by_their_first_bytes() {
    assert!(media_type([0x1f, 0x8b, 8, 0]).ends_with("+gzip"));
    assert!(media_type([0x28, 0xb5, 0x2f, 0xfd]).ends_with("+zstd"));
    assert!(media_type([0; 4]).ends_with(".tar"));
}

#[test]
fn what_is_no_such_archive_is_refused() {
    let circle = [
        ("manifest.json", r#"[{"Config":"x"}]"#),
        ("x", "->y"),
        ("y", "->x"),
    ];
    let missing = [("manifest.json", LIST), ("c.json", "{}")];
    let no_list = [("manifest.json", "{}")];
    for entries in [
        &circle[..],
        &missing[..],
        &no_list[..],
        &[("other", "")][..],
    ] {
        assert_eq!(
            refused(entries, "busybox:1").kind(),
            ErrorKind::InvalidArgument,
            "{entries:?}"
        );
    }
    let mut text = tempfile::tempfile().expect("there is room");
    text.write_all(&[b'x'; 2000])
        .and_then(|()| text.rewind())
        .expect("there is room");
    assert_eq!(
        open(text).err().map(|error| error.kind()),
        Some(ErrorKind::InvalidArgument)
    );
}

/// An archive that is written header by header, which need not be well-formed.
struct Written {
    file: File,
    at: u64,
}

impl Written {
    fn new() -> Self {
        Self {
            file: tempfile::tempfile().expect("there is room"),
            at: 0,
        }
    }

    /// Appends a header that claims `size` bytes, and `content`; the rest of the claimed size is a hole in
    /// the file.
    fn entry(mut self, kind: u8, name: &str, size: u64, content: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_path(name).expect("it is short");
        header.set_size(size);
        header.set_cksum();
        self.file
            .write_all_at(header.as_bytes(), self.at)
            .expect("there is room");
        self.file
            .write_all_at(content, self.at + 512)
            .expect("there is room");
        self.at += 512 + size.next_multiple_of(512);
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.entry(b'0', name, content.len() as u64, content.as_bytes())
    }

    /// An archive of one header that claims `size` bytes, and no content.
    fn header(kind: u8, size: u64) -> File {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_path("x").expect("it is short");
        header.set_size(size);
        header.set_cksum();
        let mut file = tempfile::tempfile().expect("there is room");
        file.write_all(header.as_bytes())
            .and_then(|()| file.set_len(1024))
            .expect("there is room");
        file
    }

    fn end(self) -> File {
        self.file.set_len(self.at + 1024).expect("it is a hole");
        self.file
    }
}

#[track_caller]
fn report(outcome: Result<Archive>) -> String {
    outcome.err().expect("it is refused").report()
}

#[test]
fn what_is_in_an_entry_is_not_read_and_its_length_is_any() {
    let list = r#"[{"Config":"c.json","Layers":[]}]"#;
    let file = Written::new()
        .entry(b'0', "hole", 1 << 40, b"")
        .file("c.json", "{}")
        .entry(b'g', "global", 1 << 20, b"")
        .file("manifest.json", list)
        .end();
    assert_eq!(
        open(file)
            .expect("it is one")
            .image("x", &Limits::default())
            .expect("it is there")
            .config
            .as_ref(),
        b"{}"
    );
}

#[test]
fn names_of_pax_and_of_gnu_are_read_and_so_are_sizes_of_pax() {
    let name = "n".repeat(300);
    let record = |key: &str, value: &str| {
        let rest = format!(" {key}={value}\n");
        let length = (1..).find(|length: &usize| length.to_string().len() + rest.len() == *length);
        format!("{}{rest}", length.expect("there is one"))
    };
    let pax = [record("path", &name), record("size", "3")].concat();
    let list = format!(r#"[{{"Config":"link","Layers":["{name}"]}}]"#);
    let mut file = Written::new()
        .entry(b'x', "pax", pax.len() as u64, pax.as_bytes())
        // Its own header says that the file is empty; the PAX header before it gives the true size.
        .entry(b'0', "short", 0, b"one");
    file.at += 512;
    let file = file
        .entry(b'L', "long", 302, format!("{name}x\0").as_bytes())
        .file("short", "{}")
        .entry(b'K', "long", 302, format!("{name}x\0").as_bytes())
        .entry(b'2', "link", 0, b"")
        .file("manifest.json", &list)
        .end();
    let image = open(file)
        .expect("it is one")
        .image("x", &Limits::default())
        .expect("it is there");
    assert_eq!(
        (image.config.as_ref(), image.layers[0].descriptor.size),
        (&b"{}"[..], 3)
    );
}

#[test]
fn headers_with_names_are_bounded_in_length_one_by_one_and_together() {
    for kind in [b'x', b'g', b'L', b'K'] {
        for size in [(1 << 20) + 1, 1 << 32, 1 << 62] {
            let text = report(open(Written::header(kind, size)));
            assert!(
                text.contains(&format!("has {size} bytes, and may have 1048576")),
                "{text}"
            );
        }
    }
    let many = (0..40).fold(Written::new(), |file, _| {
        file.entry(b'L', "long", 1 << 20, b"a\0")
    });
    let text = report(open(many.file("c", "{}").end()));
    assert!(text.contains("more than 33554432 bytes together"), "{text}");
    let text = report(open(
        Written::new()
            .entry(b'L', "long", 8192, &[b'a'; 8192])
            .file("c", "{}")
            .end(),
    ));
    assert!(
        text.contains("a name in it has 8192 bytes, and may have 4096"),
        "{text}"
    );
}

#[test]
fn more_entries_than_an_image_has_are_refused_of_whatever_type() {
    for kind in [b'0', b'5', b'g', b'L'] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_path("x").expect("it is short");
        header.set_size(0);
        header.set_cksum();
        let block = header.as_bytes().repeat(1000);
        let mut file = tempfile::tempfile().expect("there is room");
        (0..=100)
            .try_for_each(|_| file.write_all(&block))
            .expect("there is room");
        let text = report(open(file));
        assert!(
            text.contains("more than 100000 entries"),
            "{}: {text}",
            char::from(kind)
        );
    }
}

#[test]
fn an_archive_that_is_cut_off_or_has_sizes_beyond_it_is_refused() {
    for size in [513, 1 << 20, u64::MAX / 2, u64::MAX] {
        let text = report(open(Written::header(b'0', size)));
        assert!(text.contains("cut off"), "{size}: {text}");
    }
    let whole = Written::new().file("c", "{}").end();
    whole.set_len(513).expect("it is shorter");
    assert!(report(open(whole)).contains("cut off"));
}

#[test]
fn layers_are_bounded_in_number_and_one_that_is_named_often_is_read_once() {
    let list = |count: usize| {
        format!(
            r#"[{{"Config":"c","Layers":[{}]}}]"#,
            vec![r#""l""#; count].join(",")
        )
    };
    let with = |count: usize, layers: usize| {
        let list = list(count);
        let file = Written::new()
            .file("c", "{}")
            .entry(b'0', "l", 16 << 20, b"")
            .file("manifest.json", &list);
        open(file.end()).expect("it is one").image(
            "x",
            &Limits {
                layers,
                ..Limits::default()
            },
        )
    };
    for limit in [3, 600] {
        assert_eq!(
            with(limit, limit).expect("as many as may be").layers.len(),
            limit
        );
        let text = with(limit + 1, limit).err().expect("one more").report();
        let expected = format!(
            "has {} layers, more than the limit of {limit} (images.max_layers)",
            limit + 1
        );
        assert!(text.contains(&expected), "{text}");
    }
    let list = Written::new()
        .entry(b'0', "manifest.json", (1 << 20) + 1, b"[]")
        .end();
    let text = open(list)
        .expect("it is one")
        .image("x", &Limits::default())
        .err()
        .expect("it is too long")
        .report();
    assert!(
        text.contains("manifest.json has 1048577 bytes, and may have 1048576"),
        "{text}"
    );
}

#[test]
fn a_configuration_is_bounded_by_its_key_before_it_is_read() {
    let with = |config_bytes: u64| {
        let list = r#"[{"Config":"c"}]"#;
        let file = Written::new()
            .entry(b'0', "c", 9 << 20, b"{}")
            .file("manifest.json", list)
            .end();
        open(file).expect("it is one").image(
            "x",
            &Limits {
                config_bytes,
                ..Limits::default()
            },
        )
    };
    assert_eq!(
        with(9 << 20).expect("as many as may be").config.len(),
        9 << 20
    );
    let text = with((9 << 20) - 1).err().expect("one more").report();
    let expected = "has 9437184 bytes, more than the limit of 9437183 (images.max_config_bytes)";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn whoever_reads_an_archive_stops_when_nobody_waits_any_more() {
    let list = r#"[{"Config":"c","Layers":["l"]}]"#;
    let file = Written::new()
        .file("c", "{}")
        .file("manifest.json", list)
        .entry(b'0', "l", 1 << 42, b"")
        .end();
    let stop = CancellationToken::new();
    let archive = Archive::open(file, stop.clone()).expect("it is one");
    let reading = std::thread::spawn(move || {
        archive
            .image("x", &Limits::default())
            .err()
            .map(|error| error.kind())
    });
    stop.cancel();
    assert_eq!(reading.join().expect("it ends"), Some(ErrorKind::Cancelled));
    let file = Written::new().file("c", "{}").end();
    assert_eq!(
        Archive::open(file, stop).err().map(|error| error.kind()),
        Some(ErrorKind::Cancelled)
    );
}

#[test]
fn errors_show_no_more_of_an_archive_than_people_read() {
    let tags: Vec<String> = (0..100)
        .map(|tag| format!("{}:{tag}", "t".repeat(500)))
        .collect();
    let image = serde_json::json!({ "Config": "c", "RepoTags": tags });
    let list = serde_json::json!([image, image]).to_string();
    let error = refused(&[("manifest.json", &list), ("c", "{}")], "other:1");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.report().len() < 2500, "{}", error.report());
    let list = serde_json::json!("x".repeat(900_000)).to_string();
    assert!(
        refused(&[("manifest.json", &list)], "other:1")
            .report()
            .len()
            < 500
    );
    let list = serde_json::json!([{ "Config": "c".repeat(9000) }]).to_string();
    assert!(
        refused(&[("manifest.json", &list)], "other:1")
            .report()
            .len()
            < 500
    );
}
