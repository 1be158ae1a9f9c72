//! Archives: whole, with links, of several images, and broken ones.

use std::io::{Seek, Write};

use super::*;

/// An archive of files and links; a text that begins with `->` is a link.
fn archive(entries: &[(&str, &str)]) -> File {
    let mut builder = tar::Builder::new(tempfile::tempfile().expect("there is room"));
    for (path, content) in entries {
        let mut header = tar::Header::new_gnu();
        match content.strip_prefix("->") {
            Some(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                builder.append_link(&mut header, path, target).expect("there is room");
            }
            None => {
                header.set_size(content.len() as u64);
                builder.append_data(&mut header, path, content.as_bytes()).expect("there is room");
            }
        }
    }
    let mut file = builder.into_inner().expect("there is room");
    file.flush().and_then(|()| file.rewind()).expect("it is a file");
    file
}

const LIST: &str = r#"[{"Config":"c.json","RepoTags":["busybox:1"],"Layers":["a/layer.tar","b/layer.tar"]},
    {"Config":"d.json","RepoTags":null,"Layers":[]}]"#;

fn found(entries: &[(&str, &str)], reference: &str) -> Result<Found> {
    Archive::open(archive(entries))?.image(reference)
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
        assert_eq!((layer.descriptor.digest.to_string().as_str(), layer.descriptor.size), (digest, 3));
        let mut bytes = [0; 3];
        image.file.read_exact_at(&mut bytes, layer.at).expect("it is there");
        assert_eq!(&bytes, b"one");
    }
    assert_eq!(refused(&entries, "other:1").kind(), ErrorKind::NotFound);
}

#[test]
fn the_only_image_needs_no_name() {
    let entries = [("manifest.json", r#"[{"Config":"c","Layers":null}]"#), ("c", "{}")];
    assert!(found(&entries, "whatever:1").expect("it is there").layers.is_empty());
}

#[test]
fn layers_are_told_apart_by_their_first_bytes() {
    assert!(media_type([0x1f, 0x8b, 8, 0]).ends_with("+gzip"));
    assert!(media_type([0x28, 0xb5, 0x2f, 0xfd]).ends_with("+zstd"));
    assert!(media_type([0; 4]).ends_with(".tar"));
}

#[test]
fn what_is_no_such_archive_is_refused() {
    let circle = [("manifest.json", r#"[{"Config":"x"}]"#), ("x", "->y"), ("y", "->x")];
    let missing = [("manifest.json", LIST), ("c.json", "{}")];
    let no_list = [("manifest.json", "{}")];
    for entries in [&circle[..], &missing[..], &no_list[..], &[("other", "")][..]] {
        assert_eq!(refused(entries, "busybox:1").kind(), ErrorKind::InvalidArgument, "{entries:?}");
    }
    let mut text = tempfile::tempfile().expect("there is room");
    text.write_all(&[b'x'; 2000]).and_then(|()| text.rewind()).expect("there is room");
    assert_eq!(Archive::open(text).err().map(|error| error.kind()), Some(ErrorKind::InvalidArgument));
}
