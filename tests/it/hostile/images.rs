//! Hostile registries and images: each is refused or bounded, the error says why, and daemon and containerd
//! stay up.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::cri::image_spec;
use switchyard_tests::host::eventually;
use switchyard_tests::image::{Blob, Image, busybox, random_layer};
use switchyard_tests::leak_scan::{NAMESPACE, ctr};
use switchyard_tests::node::TestNode;
use switchyard_tests::registry::Registry;
use switchyard_tests::registry_proxy::{Access, RegistryFault, RegistryProxy};
use tonic::{Code, Status};

mod manifests;
mod watched_node;

use manifests::{answer, layer, manifest, unique, with_config};
use watched_node::WatchedNode;

/// Time for a pull that is refused after all its tries.
const SOON: Duration = Duration::from_secs(60);
/// Number of planned faults that outlasts all tries.
const MORE_THAN_RETRIES: usize = 8;
const MIB: u64 = 1 << 20;

fn conf() -> &'static str {
    "[registry]\nidle_timeout_seconds = 1\n"
}

#[test]
fn oversized_image_parts_are_rejected_with_size_limit_and_key() {
    let watched = WatchedNode::start(&format!("{}[images]\nmax_image_bytes = 10000000\n", conf()));
    let image = unique(1);
    let config = image.config.descriptor();
    watched.serve("layers", &manifest(&config, &vec![layer(json!(1)); 20_000]));
    let status = watched.refused(64 * MIB, "hostile:layers", &[Code::InvalidArgument]);
    assert!(
        status
            .message()
            .contains("has 20000 layers, more than the limit of 500 (images.max_layers)"),
        "{status}"
    );

    let mut large = config.clone();
    large["size"] = json!(8 << 20);
    watched.serve("config", &manifest(&large, &[]));
    let status = watched.refused(16 * MIB, "hostile:config", &[Code::InvalidArgument]);
    let expected = "has 8388608 bytes, more than the limit of 4194304 (images.max_config_bytes)";
    assert!(status.message().contains(expected), "{status}");

    watched.serve(
        "bytes",
        &manifest(&config, &[layer(json!(4_000_000)), layer(json!(6_000_001))]),
    );
    let status = watched.refused(16 * MIB, "hostile:bytes", &[Code::InvalidArgument]);
    let expected =
        "has 10000001 bytes of layers, more than the limit of 10000000 (images.max_image_bytes)";
    assert!(status.message().contains(expected), "{status}");

    watched.plan("/manifests/endless", &RegistryFault::Endless(200));
    let status = watched.refused(64 * MIB, "hostile:endless", &[Code::InvalidArgument]);
    let expected = "more than the limit of 4393216 (images.max_manifest_bytes)";
    assert!(status.message().contains(expected), "{status}");
    assert_eq!(watched.blobs(), 0, "something was downloaded");
}

#[test]
fn impossible_sizes_are_rejected_before_download() {
    let watched = WatchedNode::start(conf());
    let config = unique(2).config.descriptor();
    for (number, size) in [
        json!(-1),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1.5),
        json!("1"),
        Value::Null,
    ]
    .into_iter()
    .enumerate()
    {
        watched.serve(&format!("s{number}"), &manifest(&config, &[layer(size)]));
        let status = watched.refused(
            16 * MIB,
            &format!("hostile:s{number}"),
            &[Code::Unknown, Code::Internal],
        );
        assert!(
            status.message().contains("is no valid manifest"),
            "{status}"
        );
    }
    // Two of these do not fit 64 bits as a sum, and none of them a disk.
    let mut other = layer(json!(i64::MAX));
    let largest = layer(json!(i64::MAX));
    other["digest"] = json!(format!("sha256:{}", "6".repeat(64)));
    let mut third = other.clone();
    third["digest"] = json!(format!("sha256:{}", "7".repeat(64)));
    watched.serve("sum", &manifest(&config, &[largest, other, third]));
    let status = watched.refused(16 * MIB, "hostile:sum", &[Code::ResourceExhausted]);
    assert!(
        status
            .message()
            .contains(&format!("need {} bytes", u64::MAX)),
        "{status}"
    );
    assert!(
        status.message().contains("images.check_free_space"),
        "{status}"
    );
    assert_eq!(watched.blobs(), 0, "something was downloaded");
}

#[test]
fn present_layer_needs_no_space_whatever_size_its_manifest_claims() {
    let watched = WatchedNode::start(conf());
    let image = busybox().build();
    let mut here = image.layers[0].descriptor();
    here["size"] = json!(1_u64 << 50);
    watched.node.registry().put_blob("hostile", &image.config);
    watched.serve("here", &manifest(&image.config.descriptor(), &[here]));
    let reference = watched.node.registry().reference("hostile:here");
    watched
        .during(16 * MIB, |node| node.cri().pull(&reference, None))
        .expect("its layer is here");
    watched
        .node
        .cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn largest_image_config_uses_bounded_memory() {
    let watched = WatchedNode::start(conf());
    let image = unique(3);
    let fill = |text: &str| {
        text.repeat(4_000_000 / text.len())
            .trim_end_matches(',')
            .to_owned()
    };
    let volumes: Vec<String> = (0..100_000).map(|n| format!("\"/v{n}\":{{}}")).collect();
    for (tag, at, hostile) in [
        (
            "volumes",
            "\"config\":{",
            format!("\"Volumes\":{{{}}},", volumes.join(",")),
        ),
        (
            "words",
            "\"config\":{",
            format!("\"Entrypoint\":[{}],", fill("\"\",")),
        ),
        (
            "unknown",
            "\"config\":{",
            format!("\"Unknown\":[{}],", fill("[],")),
        ),
        ("above", "{", format!("\"unknown\":[{}],", fill("[],"))),
        (
            "deep",
            "{",
            format!("\"unknown\":{}{},", "[".repeat(100), "]".repeat(100)),
        ),
    ] {
        let image = with_config(&image, at, &hostile);
        watched
            .node
            .registry()
            .push(&format!("hostile/config:{tag}"), &image);
        let reference = watched
            .node
            .registry()
            .reference(&format!("hostile/config:{tag}"));
        watched.during(160 * MIB, |node| {
            node.cri()
                .pull(&reference, None)
                .expect("it is within the limits");
            assert!(
                node.cri()
                    .image(&reference)
                    .expect("it is asked for")
                    .is_some()
            );
            node.cri()
                .remove_image(&reference)
                .expect("it can be removed");
        });
    }
}

#[test]
fn imported_image_beyond_the_limits_is_rejected_at_create() {
    let watched = WatchedNode::start(&format!("{}[images]\nmax_layers = 2\n", conf()));
    let layers = (0..2)
        .fold(busybox(), |image, layer| {
            image.layer(random_layer(1000, 9000 + layer))
        })
        .build();
    let config = with_config(
        &unique(4),
        "{",
        &format!("\"unknown\":\"{}\",", "x".repeat(4 << 20)),
    );
    let node = &watched.node;
    let socket = node.root().containerd_socket().expect("containerd runs");
    let pod = node.pod("beyond");
    for (tag, image, expected) in [
        (
            "layers",
            &layers,
            "has 3 layers, more than the limit of 2 (images.max_layers)".to_owned(),
        ),
        (
            "config",
            &config,
            format!(
                "has {} bytes, more than the limit of 4194304 (images.max_config_bytes)",
                config.config.bytes.len()
            ),
        ),
    ] {
        node.registry().push(&format!("hostile/other:{tag}"), image);
        let reference = node.registry().reference(&format!("hostile/other:{tag}"));
        let printed = ctr(
            &socket,
            NAMESPACE,
            &["images", "pull", "--plain-http", &reference],
        );
        let found = node.cri().image(&reference).expect("it is asked for");
        assert!(
            found.is_some(),
            "it is listed, so that it can be removed: {printed:?}"
        );
        let mut container = node.container(tag, &["true"]);
        container.image = Some(image_spec(&reference));
        let status = watched
            .during(64 * MIB, |_| pod.try_create(&container))
            .expect_err("it is beyond a limit");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(&expected), "{status}");
        node.cri()
            .remove_image(&reference)
            .expect("it can be removed");
    }
}

#[test]
fn registry_redirect_to_link_local_address_is_rejected() {
    let watched = WatchedNode::start(conf());
    for (tag, target) in [
        (
            "v4",
            "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
        ),
        ("number", "http://2852039166/"),
        ("v6", "http://[fe80::1]:80/"),
        ("mapped", "http://[::ffff:169.254.169.254]/"),
    ] {
        watched.plan(
            &format!("/manifests/{tag}"),
            &answer(307, &[("Location", target)], b""),
        );
        let status = watched.refused(
            16 * MIB,
            &format!("hostile:{tag}"),
            &[Code::Unknown, Code::Internal],
        );
        assert!(status.message().contains("is link-local"), "{status}");
        let asked = watched
            .node
            .registry()
            .proxy()
            .count(&format!("/manifests/{tag}"));
        assert_eq!(asked, 1, "a redirect there is no fault to try again after");
    }
    let realm = "Bearer realm=\"http://169.254.169.254/latest/api/token\"";
    watched.plan(
        "/manifests/realm",
        &answer(401, &[("WWW-Authenticate", realm)], b""),
    );
    let status = watched.refused(16 * MIB, "hostile:realm", &[Code::Unknown, Code::Internal]);
    assert!(status.message().contains("is link-local"), "{status}");
}

#[test]
fn registry_errors_are_truncated_and_hide_redirect_targets() {
    let watched = WatchedNode::start(conf());
    let secret = "AKIAIOSFODNN7EXAMPLE";
    // An address that the node can reach and the author of the image cannot.
    let inner = Registry::start();
    let elsewhere = RegistryProxy::start(inner.upstream(), Access::Open);
    let location = format!("http://{}/internal", elsewhere.address());
    let mut large =
        format!(r#"{{"errors":[{{"code":"{secret}","message":"{secret}"}}],"x":""#).into_bytes();
    large.resize(100 << 20, b'x');
    for (status, body) in [
        (403, large.clone()),
        (
            404,
            format!(r#"{{"errors":[{{"message":"{secret}"}}]}}"#).into_bytes(),
        ),
        (500, secret.as_bytes().to_vec()),
        (200, secret.as_bytes().to_vec()),
        (
            200,
            format!(r#"{{"schemaVersion":"{secret}","mediaType":"{secret}"}}"#).into_bytes(),
        ),
    ] {
        for _ in 0..MORE_THAN_RETRIES {
            elsewhere.add_fault("/internal", answer(status, &[], &body));
        }
        watched.plan(
            "/manifests/led",
            &answer(307, &[("Location", &location)], b""),
        );
        let codes = [
            Code::Unknown,
            Code::Internal,
            Code::NotFound,
            Code::Unauthenticated,
            Code::Unavailable,
            Code::InvalidArgument,
        ];
        let expected = watched.refused(64 * MIB, "hostile:led", &codes);
        assert!(!expected.message().contains(secret), "{expected}");
        elsewhere.clear_faults();
    }
    // The registry's own body: code and message, cut, and nothing that a terminal would obey.
    let message = format!("no\\u001b[2J{}", "y".repeat(10_000));
    let body =
        format!(r#"{{"errors":[{{"code":"DENIED","message":"{message}","detail":"{secret}"}}]}}"#);
    watched.plan("/manifests/own", &answer(403, &[], body.as_bytes()));
    let expected = watched.refused(
        16 * MIB,
        "hostile:own",
        &[Code::Unauthenticated, Code::Unknown, Code::PermissionDenied],
    );
    assert!(
        expected.message().contains("DENIED: no\\u{1b}[2Jyyy")
            && !expected.message().contains(secret),
        "{expected}"
    );
    large.fill(b'z');
    watched.plan("/manifests/large", &answer(403, &[], &large));
    let expected = watched.refused(
        64 * MIB,
        "hostile:large",
        &[Code::Unauthenticated, Code::Unknown, Code::PermissionDenied],
    );
    assert!(!expected.message().contains("zzz"), "{expected}");
    watched.plan("/manifests/endless", &RegistryFault::Endless(403));
    watched.refused(
        16 * MIB,
        "hostile:endless",
        &[Code::Unauthenticated, Code::Unknown, Code::PermissionDenied],
    );
}

#[test]
fn endless_or_invalid_blobs_leave_nothing_behind() {
    let watched = WatchedNode::start(conf());
    let codes = [
        Code::Unknown,
        Code::Internal,
        Code::FailedPrecondition,
        Code::Unavailable,
    ];
    for (tag, fault, expected) in [
        ("endless", RegistryFault::Endless(200), "bytes instead of"),
        ("corrupt", RegistryFault::Corrupt, "digest"),
        ("nothing", answer(200, &[], b""), "bytes instead of"),
        (
            "part",
            answer(
                206,
                &[("Content-Range", "bytes 0-0/18446744073709551615")],
                b"x",
            ),
            "bytes instead of",
        ),
    ] {
        for (kind, seed) in [("config", 20), ("layer", 40)] {
            let image = unique(seed + tag.len() as u64);
            watched
                .node
                .registry()
                .push(&format!("hostile/{tag}:{kind}"), &image);
            let blob = if kind == "config" {
                &image.config
            } else {
                &image.layers[1]
            };
            watched.plan(&format!("/blobs/{}", blob.digest), &fault);
            let status = watched.refused(32 * MIB, &format!("hostile/{tag}:{kind}"), &codes);
            assert!(
                status.message().contains(expected),
                "{tag} {kind}: {status}"
            );
        }
    }
}

#[test]
fn silent_blobs_leave_nothing_behind() {
    let watched = WatchedNode::start(conf());
    let codes = [Code::Unavailable];
    for (kind, seed) in [("config", 26), ("layer", 46)] {
        let image = unique(seed);
        watched
            .node
            .registry()
            .push(&format!("hostile/silent:{kind}"), &image);
        let blob = if kind == "config" {
            &image.config
        } else {
            &image.layers[1]
        };
        watched.plan(
            &format!("/blobs/{}", blob.digest),
            &RegistryFault::StallAfter(300),
        );
    }
    // At once: each waits fourteen seconds, with its retries.
    thread::scope(|scope| {
        for kind in ["config", "layer"] {
            let watched = &watched;
            scope.spawn(move || {
                let name = format!("hostile/silent:{kind}");
                let status = watched.refused_beside_others(32 * MIB, &name, &codes);
                assert!(
                    status.message().contains("is unavailable"),
                    "{kind}: {status}"
                );
            });
        }
    });
}

#[test]
fn arbitrary_image_names_are_rejected_or_not_found() {
    let watched = WatchedNode::start(conf());
    let registry = watched.node.registry().address().to_string();
    let lengths = [
        0, 1, 2, 63, 64, 127, 128, 129, 200, 233, 255, 256, 300, 4096, 100_000,
    ];
    let characters = (0..=0x17f)
        .chain([0x202e, 0x2028, 0xfeff, 0xff0f, 0x1_f600])
        .filter_map(char::from_u32);
    let mut names: Vec<String> = characters
        .flat_map(|c| {
            [
                format!("{registry}/a{c}b:t"),
                format!("{registry}/a:t{c}"),
                format!("{c}{registry}/a"),
            ]
        })
        .collect();
    for length in lengths {
        let long = "a".repeat(length);
        names.extend([
            format!("{registry}/{long}:t"),
            format!("{registry}/a:{long}"),
            format!("{registry}/{}a", "a/".repeat(length / 2)),
            format!("{registry}/a@sha256:{long}"),
            format!("{registry}/a:t@{long}"),
        ]);
    }
    let codes = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::Unavailable,
        Code::Unknown,
    ];
    watched.during(64 * MIB, |node| {
        for name in &names {
            // A name that does not begin with the test's registry would be requested from another host; it is
            // left out.
            if name.starts_with(&registry) {
                let status = node.cri().pull(name, None).expect_err(name);
                assert!(codes.contains(&status.code()), "{name:?}: {status}");
                assert!(
                    status.message().len() < 4000,
                    "{} bytes are reported",
                    status.message().len()
                );
            }
            let known = node.cri().image(name);
            assert!(known.is_ok_and(|image| image.is_none()), "{name:?}");
            node.cri().remove_image(name).expect(name);
        }
    });
}
