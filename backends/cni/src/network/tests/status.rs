//! STATUS and GC, which are about the network and not about an attachment.

use super::*;
use crate::verb::GC_OF;

#[tokio::test]
async fn status_is_asked_of_each_plugin_until_one_refuses() {
    let code = |code: u32| format!("echo '{{\"code\":{code},\"msg\":\"no\"}}'; exit 1");
    for (version, first, expected, order) in [
        ("1.1.0", "exit 0".to_owned(), None, &["one", "two"][..]),
        // A plugin that does not have it says nothing.
        ("1.1.0", code(4), None, &["one", "two"][..]),
        (
            "1.1.0",
            code(50),
            Some("refused STATUS with code 50"),
            &["one"][..],
        ),
        (
            "1.1.0",
            code(51),
            Some("refused STATUS with code 51"),
            &["one"][..],
        ),
        (
            "1.1.0",
            "exit 7".to_owned(),
            Some("failed on STATUS"),
            &["one"][..],
        ),
        // There is no STATUS in these versions.
        ("1.0.0", code(50), None, &[][..]),
        ("0.4.0", code(50), None, &[][..]),
    ] {
        let bench = Bench::new();
        bench.plugin("one", &first);
        bench.good("two", "10.0.0.2/24");
        let network = bench.network(&list(version, &["loopback", "one", "two"]));
        let error = network.status().await.err().map(|error| error.to_string());
        match (&error, expected) {
            (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
            (error, expected) => assert_eq!(error.as_deref(), expected, "{version} {first}"),
        }
        let order: Vec<_> = order
            .iter()
            .map(|plugin| format!("STATUS {plugin}"))
            .collect();
        assert_eq!(bench.order(), order, "{version} {first}");
    }
}

#[tokio::test]
async fn status_has_no_attachment() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    let mut list = list("1.1.0", &["one"]);
    list["plugins"][0]["capabilities"] = json!({ "portMappings": true });
    bench.network(&list).status().await.unwrap();
    let given = bench.stdin("one", "STATUS");
    let expected = json!({ "cniVersion": "1.1.0", "name": "net", "type": "one" });
    assert_eq!(given, expected);
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"] {
        assert_eq!(bench.env("one", "STATUS", name), None, "{name}");
    }
    assert!(bench.env("one", "STATUS", "CNI_PATH").is_some());
}

#[tokio::test]
async fn gc_is_run_by_each_plugin_with_the_attachments_that_stay() {
    let code = |code: u32| format!("echo '{{\"code\":{code},\"msg\":\"no\"}}'; exit 1");
    let all = &["GC one", "GC two"][..];
    for (version, disabled, first, expected, order) in [
        ("1.1.0", false, "exit 0".to_owned(), None, all),
        // A plugin that does not have it is passed over, and one that fails does not keep the next one from it.
        ("1.1.0", false, code(4), None, all),
        ("1.1.0", false, code(7), Some("refused GC with code 7"), all),
        (
            "1.1.0",
            false,
            "exit 7".to_owned(),
            Some("failed on GC"),
            all,
        ),
        ("1.1.0", true, code(7), None, &[][..]),
        ("1.0.0", false, code(7), None, &[][..]),
    ] {
        let bench = Bench::new();
        bench.plugin("one", &first);
        bench.good("two", "10.0.0.2/24");
        let mut conf = list(version, &["one", "two"]);
        conf["disableGC"] = disabled.into();
        // What is in the configuration under such a key is not the runtime's.
        conf["plugins"][1]["cni.dev/valid-attachments"] = json!([]);
        conf["plugins"][1]["cni.dev/attachments"] = json!([]);
        let valid = [
            ("c0ffee".to_owned(), "eth0".to_owned()),
            ("decaf".to_owned(), "net1".to_owned()),
        ];
        let done = bench.network(&conf).gc(&valid).await;
        let error = done.err().map(|error| error.to_string());
        match (&error, expected) {
            (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
            (error, expected) => assert_eq!(error.as_deref(), expected, "{version} {first}"),
        }
        assert_eq!(bench.order(), order, "{version} {first}");
        if order.is_empty() {
            continue;
        }
        let given = bench.stdin("two", "GC");
        let stay = json!([
            { "containerID": "c0ffee", "ifname": "eth0" },
            { "containerID": "decaf", "ifname": "net1" },
        ]);
        assert_eq!(given["cni.dev/valid-attachments"], stay);
        assert_eq!(given["cni.dev/attachments"], stay, "the former key");
        assert_eq!(bench.env("two", "GC", "CNI_CONTAINERID"), None);
    }
}

#[tokio::test]
async fn gc_says_whose_it_is_and_no_other_command_does() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    let mut network = bench.network(&list("1.1.0", &["one"]));
    network.gc(&[]).await.unwrap();
    assert_eq!(bench.env("one", "GC", GC_OF), None, "nobody has said it");
    network.plugins = network.plugins.of_instance(Path::new("/run/some where"));
    network.gc(&[]).await.unwrap();
    network.status().await.unwrap();
    network.del(&attachment(), None).await.unwrap();
    for (verb, expected) in [
        ("GC", Some("/run/some where")),
        ("STATUS", None),
        ("DEL", None),
    ] {
        assert_eq!(bench.env("one", verb, GC_OF).as_deref(), expected, "{verb}");
    }
}
