//! Tests of parsing, normalising and showing references.

use proptest::prelude::*;

use super::*;

const D: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

#[track_caller]
fn check(text: &str, canonical: &str) {
    let reference: ImageReference = text.parse().unwrap();
    assert_eq!(reference.to_string(), canonical);
    assert_eq!(canonical.parse::<ImageReference>().unwrap(), reference);
}

#[track_caller]
fn check_invalid(text: &str, expected: ReferenceField) {
    match text.parse::<ImageReference>() {
        Err(InvalidReference { field, .. }) => assert_eq!(field, expected, "{text}"),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn short_names_are_on_docker_hub() {
    check("busybox", "docker.io/library/busybox:latest");
    check("busybox:1.36", "docker.io/library/busybox:1.36");
    check("user/app", "docker.io/user/app:latest");
    check("docker.io/busybox", "docker.io/library/busybox:latest");
    check(
        "index.docker.io/library/busybox",
        "docker.io/library/busybox:latest",
    );
    check("docker.io/library/a/b", "docker.io/library/a/b:latest");
    check("docker.io/a.b/c", "docker.io/a.b/c:latest");
    check("docker.io/localhost/c", "docker.io/localhost/c:latest");
    check("localhost:5000", "docker.io/library/localhost:5000");
}

#[test]
fn other_registries_are_kept() {
    check("quay.io/a/b/c:v1", "quay.io/a/b/c:v1");
    check("localhost/app", "localhost/app:latest");
    check("node-1:5000/app", "node-1:5000/app:latest");
    check("127.0.0.1:5000/app:x", "127.0.0.1:5000/app:x");
    check("[::1]:5000/app", "[::1]:5000/app:latest");
    check("[fd00::2]/app", "[fd00::2]/app:latest");
    check("HOST/app", "HOST/app:latest");
}

#[test]
fn digests_replace_the_default_tag_and_keep_a_given_one() {
    check(
        &format!("busybox@{D}"),
        &format!("docker.io/library/busybox@{D}"),
    );
    check(&format!("a.b/c:t@{D}"), &format!("a.b/c:t@{D}"));
    let both: ImageReference = format!("a.b/c:t@{D}").parse().unwrap();
    assert_eq!(both.tag(), Some("t"));
    assert_eq!(both.digest().unwrap().to_string(), D);
    assert_eq!(both.repo_tag().unwrap(), "a.b/c:t");
    assert_eq!(both.repo_digest(&D.parse().unwrap()), format!("a.b/c@{D}"));
}

#[test]
fn docker_hub_uses_its_registry_host() {
    let hub: ImageReference = "busybox".parse().unwrap();
    assert_eq!(
        (hub.registry(), hub.resolve_host()),
        ("docker.io", "registry-1.docker.io")
    );
    assert!(hub.is_served_by("registry-1.docker.io") && hub.is_served_by("docker.io"));
    assert!(!hub.is_served_by("mirror.example"));
    let other: ImageReference = "quay.io/a/b".parse().unwrap();
    assert_eq!(other.resolve_host(), "quay.io");
    assert!(!other.is_served_by("registry-1.docker.io"));
    let endpoint: ImageReference = "registry-1.docker.io/a/b".parse().unwrap();
    assert!(endpoint.is_served_by("index.docker.io") && endpoint.is_served_by("Docker.IO"));
    assert!(!endpoint.is_served_by("docker.io:5000") && !endpoint.is_served_by("a"));
}

#[test]
fn errors_name_the_field() {
    check_invalid("", ReferenceField::Name);
    check_invalid(&"a".repeat(64), ReferenceField::Name);
    check_invalid("Busybox", ReferenceField::Repository);
    check_invalid("a.b/", ReferenceField::Repository);
    check_invalid("a//b", ReferenceField::Repository);
    check_invalid("a/b_.c", ReferenceField::Repository);
    check_invalid("a___b", ReferenceField::Repository);
    check_invalid("-a", ReferenceField::Repository);
    check_invalid("/a", ReferenceField::Repository);
    check_invalid("bus\u{e9}box", ReferenceField::Repository);
    check_invalid(
        &format!("a.b/{}", "c".repeat(252)),
        ReferenceField::Repository,
    );
    check_invalid("a.b:0/c", ReferenceField::Registry);
    check_invalid("a.b:99999/c", ReferenceField::Registry);
    check_invalid("a.b:/c", ReferenceField::Registry);
    check_invalid("-.b/c", ReferenceField::Registry);
    check_invalid("[::1/c", ReferenceField::Registry);
    check_invalid("[::1]x/c.d", ReferenceField::Registry);
    check_invalid("[g::]:1/c", ReferenceField::Registry);
    check_invalid("http://a.b/c", ReferenceField::Registry);
    check_invalid("a:", ReferenceField::Tag);
    check_invalid("a:-x", ReferenceField::Tag);
    check_invalid("a:x y", ReferenceField::Tag);
    check_invalid(&format!("a:{}", "x".repeat(129)), ReferenceField::Tag);
    check_invalid("a@", ReferenceField::Digest);
    check_invalid("a@md5:00", ReferenceField::Digest);
    check_invalid("a@sha256:00", ReferenceField::Digest);
}

fn component() -> impl Strategy<Value = String> {
    "[a-z0-9]{1,8}((\\.|_|__|-{1,3})[a-z0-9]{1,8}){0,2}"
}

fn registry() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("docker.io/".to_owned()),
        Just("localhost/".to_owned()),
        "[a-z][a-z0-9]{0,5}(-[a-z0-9]{1,3})?\\.[a-z]{2,4}(:[1-9][0-9]{0,3})?/",
        Just("[::1]:5000/".to_owned()),
    ]
}

proptest! {
    #[test]
    fn references_round_trip(
        registry in registry(),
        path in prop::collection::vec(component(), 1..4),
        tag in prop::option::of("[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}"),
        digest: bool,
    ) {
        let mut text = format!("{registry}{}", path.join("/"));
        if let Some(tag) = &tag {
            text = format!("{text}:{tag}");
        }
        if digest {
            text = format!("{text}@{D}");
        }
        let reference: ImageReference = text.parse().unwrap();
        prop_assert_eq!(reference.tag().is_some(), tag.is_some() || !digest);
        prop_assert_eq!(&reference.to_string().parse::<ImageReference>().unwrap(), &reference);
    }

    #[test]
    fn garbage_never_panics_and_what_parses_is_stable(text in "[a-zA-Z0-9:/@.\\[\\]_ \u{e9}-]{0,40}") {
        if let Ok(reference) = text.parse::<ImageReference>() {
            prop_assert_eq!(&reference.to_string().parse::<ImageReference>().unwrap(), &reference);
        }
    }

    #[test]
    fn any_string_is_parsed_or_rejected(text: String) {
        let _ = text.parse::<ImageReference>();
    }
}
