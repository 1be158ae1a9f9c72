//! Keys of images and registries.

use std::fs;

use switchyard_tests::node::TestNode;
use switchyard_tests::registry::Registry;
use switchyard_tests::registry_proxy::Access;
use tonic::Code;

use super::apply;
use crate::images::{auth, with_file};

#[test]
fn images_are_pinned_and_unpinned_by_a_reload() {
    let node = TestNode::start();
    let reference = node.image();
    let pinned = || {
        node.cri()
            .image(&reference)
            .expect("it is asked for")
            .expect("it is there")
            .pinned
    };
    assert!(!pinned());
    apply(
        &node,
        &format!("[images]\npinned = [{reference:?}]\n"),
        &["images.pinned"],
    );
    assert!(pinned());
    apply(&node, "", &["images.pinned"]);
    assert!(!pinned());
}

#[test]
fn a_new_limit_refuses_the_next_pull_and_a_lifted_one_allows_it() {
    let node = TestNode::start();
    apply(
        &node,
        "[images]\nmax_image_bytes = 1\n",
        &["images.max_image_bytes"],
    );
    node.registry()
        .push("limited/one:1", &with_file("one").build());
    let reference = node.registry().reference("limited/one:1");
    let refused = node
        .cri()
        .pull(&reference, None)
        .expect_err("it has more than one byte");
    assert!(
        refused.message().contains("images.max_image_bytes"),
        "{refused}"
    );
    apply(&node, "", &["images.max_image_bytes"]);
    node.cri()
        .pull(&reference, None)
        .expect("there is no limit");
}

#[test]
fn registry_directories_are_reloaded() {
    let node = TestNode::start();
    let reference = "reloaded.example/library/one:1";
    node.registry()
        .push("library/one:1", &with_file("one").build());
    let other = node.root().path().join("other-certs");
    node.registry().mirror(&other, "reloaded.example");
    node.cri()
        .pull(reference, None)
        .expect_err("the mirror is not known");
    let section = format!(
        "[registry]\nconfig_dirs = [{:?}]\n",
        other.display().to_string()
    );
    apply(&node, &section, &["registry.config_dirs"]);
    node.cri().pull(reference, None).expect("the mirror has it");
    fs::remove_dir_all(&other).expect("it is ours");
}

#[test]
fn mirror_gets_credentials_from_a_reload_on() {
    let node = TestNode::start();
    let mirror = Registry::start_behind_proxy(Access::Basic {
        user: "user".into(),
        password: "secret".into(),
    });
    mirror.push("library/lent:1", &with_file("lent").build());
    let host = mirror.address().to_string();
    let dir = node.root().certs().join("lent.example");
    fs::create_dir_all(&dir).expect("the directory of a test can be written");
    let hosts = format!("server = \"http://{host}\"\n");
    fs::write(dir.join("hosts.toml"), hosts).expect("the directory was just made");
    let reference = "lent.example/library/lent:1";
    let pull = || node.cri().pull(reference, auth("user", "secret"));
    let refused = pull().expect_err("it is under another name");
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    assert!(refused.message().contains(&host), "{refused}");
    let key = format!("registry.hosts.{host}.send_credentials_of");
    for (registry, is_lent) in [("other.example", false), ("lent.example", true)] {
        let section = format!("[registry.hosts.{host:?}]\nsend_credentials_of = {registry:?}\n");
        apply(&node, &section, &[key.as_str()]);
        assert_eq!(pull().is_ok(), is_lent, "{registry}");
    }
}
