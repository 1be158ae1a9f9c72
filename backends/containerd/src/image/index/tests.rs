//! Tests of image names, of queries for images, and of the cache.

use proptest::prelude::*;
use switchyard_core::ErrorKind;

use super::*;

fn digest(byte: char) -> Digest {
    format!("sha256:{}", byte.to_string().repeat(64))
        .parse()
        .unwrap()
}

/// A record of an image without layers.
pub(in crate::image) fn named(name: &str, id: char, target: char) -> ImageRecord {
    let config = ImageConfig::parse("x", br#"{"architecture":"amd64","os":"linux","config":{"User":"www-data","Volumes":{"/data":{}}},"rootfs":{"type":"layers","diff_ids":[]}}"#).unwrap();
    let info = ImageInfo {
        id: ImageId::new(digest(id).to_string()),
        layers: vec![],
        config,
        config_digest: digest(id),
        manifest: digest(target),
        config_bytes: 2,
        manifest_bytes: 3,
        size_bytes: 5,
    };
    ImageRecord {
        reference: name.parse().ok(),
        name: name.to_owned(),
        target: digest(target),
        pinned: false,
        info: Arc::new(info),
        holders: Holders::new(),
        released: false,
        stored_at: None,
    }
}

fn records() -> Vec<ImageRecord> {
    vec![
        named("docker.io/library/busybox:latest", 'a', '1'),
        named(
            &format!("docker.io/library/busybox@{}", digest('1')),
            'a',
            '1',
        ),
        named("registry.k8s.io/pause:3.9", 'b', '2'),
        named("k8s.gcr.io/pause:3.9", 'b', '2'),
        named(&digest('b').to_string(), 'b', '2'),
    ]
}

fn id_of(query: &str) -> Option<String> {
    find(&records(), query)
        .unwrap()
        .map(|record| record.info.id.to_string())
}

#[test]
fn an_image_with_many_names_is_one_entry() {
    let images = images(&records());
    assert_eq!(images.len(), 2);
    assert_eq!(images[0].repo_tags, ["docker.io/library/busybox:latest"]);
    assert_eq!(
        images[0].repo_digests,
        [format!("docker.io/library/busybox@{}", digest('1'))]
    );
    assert_eq!(
        images[1].repo_tags,
        ["k8s.gcr.io/pause:3.9", "registry.k8s.io/pause:3.9"]
    );
    assert_eq!(images[1].repo_digests.len(), 2);
    assert_eq!(
        (images[0].user.as_str(), images[0].volumes.len()),
        ("www-data", 1)
    );
}

#[test]
fn a_query_may_be_short_long_an_id_or_the_beginning_of_one() {
    let a = Some(digest('a').to_string());
    let b = Some(digest('b').to_string());
    assert_eq!(id_of("busybox"), a);
    assert_eq!(id_of("docker.io/library/busybox:latest"), a);
    assert_eq!(id_of(&format!("busybox@{}", digest('1'))), a);
    assert_eq!(id_of(&format!("busybox:other@{}", digest('1'))), a);
    assert_eq!(id_of(&digest('a').to_string()), a);
    assert_eq!(id_of(&"a".repeat(64)), a);
    assert_eq!(id_of("aaaa"), a);
    assert_eq!(id_of("sha256:bb"), b);
    assert_eq!(id_of("pause:3.9"), None);
    assert_eq!(id_of("k8s.gcr.io/pause:3.9"), b);
    assert_eq!(id_of("busybox:other"), None);
    assert_eq!(id_of(""), None);
    assert_eq!(id_of("::::"), None);
}

#[test]
fn the_beginning_of_two_ids_is_refused() {
    let mut records = records();
    records[2].info = Arc::new(ImageInfo {
        id: ImageId::new(format!("sha256:aa{}", "c".repeat(62))),
        ..(*records[2].info).clone()
    });
    assert_eq!(
        find(&records, "aa").unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

proptest! {
    #[test]
    fn no_query_panics(query in "\\PC{0,80}") {
        let _ = find(&records(), &query);
    }
}
